// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/extension/shared_arenas.h"

#include <algorithm>
#include <cstring>

#include "torchette/extension/huge_pages.h"
#include "torchette/extension/module.h"
#include "torchette/schema/program.h"

namespace torchette::extension {

Result<std::unique_ptr<SharedArenas>> SharedArenas::make(const Program& program, Kind kind) {
  std::unique_ptr<SharedArenas> shared(new SharedArenas());
  TORCHETTE_TRY(shared->find_state(program));
  TORCHETTE_TRY(shared->allocate(program, kind));
  return shared;
}

/// Returns whether load writes values of the file to a planned tensor.
static bool has_initial_values(const flat::Table& tensor) {
  const flat::Table extra = tensor.table(schema::Tensor::kExtraTensorInfo);
  return tensor.get<uint32_t>(schema::Tensor::kDataBufferIdx) != 0 ||
         (extra.present() && extra.get<schema::TensorDataLocation>(schema::ExtraTensorInfo::kLocation) ==
                                 schema::TensorDataLocation::EXTERNAL);
}

/// The planned tensors of all methods.
struct SharedArenas::Plans {
  flat::Reader reader;
  std::map<std::string, Ranges> tensors{};   // by method; excludes the first arena
  Ranges initialized{};                      // tensors with initial values in the file
  std::map<size_t, int64_t> sizes{};         // of each arena
  std::set<size_t> without_shared_state{0};  // arenas

  void read(const flat::Table& plan) {
    const std::string name = plan.string(schema::ExecutionPlan::kName).data();
    const auto buffers = plan.vector<int64_t>(schema::ExecutionPlan::kNonConstBufferSizes);
    if (buffers.size() <= 2 || Module::is_fallback(name.c_str())) return;
    const bool separate = plan.get<uint8_t>(schema::ExecutionPlan::kSeparateState) != 0;
    for (size_t id = 1; id + 1 < buffers.size(); ++id) {
      const auto [entry, is_new] = sizes.emplace(id, buffers[id + 1]);
      if (separate || (!is_new && entry->second != buffers[id + 1])) without_shared_state.insert(id);
    }
    const auto inputs = plan.vector<int32_t>(schema::ExecutionPlan::kInputs);
    const std::set<size_t> is_input(inputs.begin(), inputs.end());
    const flat::Tables values = plan.tables(schema::ExecutionPlan::kValues);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].get<schema::KernelTypes>(schema::EValue::kValType) != schema::KernelTypes::Tensor)
        continue;
      const flat::Table tensor = values[i].table(schema::EValue::kVal);
      const flat::Table allocation = tensor.table(schema::Tensor::kAllocationInfo);
      const size_t id = allocation.get<uint32_t>(schema::AllocationDetails::kMemoryId) - size_t{1};
      if (!allocation.present() || sizes.count(id) == 0) continue;
      const uint64_t begin =
          allocation.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetLow) |
          static_cast<uint64_t>(allocation.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetHigh)) << 32;
      const auto size = static_cast<uint64_t>(sizes[id]);
      const Result<TensorInfo> info = TensorInfo::of(reader, tensor);
      if (!info.ok() || begin > size || info->nbytes() > size - begin || is_input.count(i) != 0) {
        without_shared_state.insert(id);  // an invalid method fails at load
        continue;
      }
      const auto offset = static_cast<size_t>(begin);
      if (info->nbytes() == 0) continue;
      tensors[name].insert({id, offset, offset + info->nbytes()});
      if (has_initial_values(tensor)) initialized.insert({id, offset, offset + info->nbytes()});
    }
  }
};

/// A file does not declare the arenas that contain shared state. The compilers of ExecuTorch and Torchette
/// plan shared state into an arena after the first one. Such an arena contains no input and has the same size
/// in all methods. Two tensors in it are disjoint, or one is a view of the other.
Error SharedArenas::find_state(const Program& program) {
  Plans plans{program.reader()};
  const flat::Tables records = flat::Table::root(&plans.reader).tables(schema::Program::kExecutionPlan);
  size_t value_budget = program.bytes_.size();  // a damaged file may contain one list of values many times
  for (size_t i = 0; i < records.size(); ++i) {
    const size_t count = records[i].tables(schema::ExecutionPlan::kValues).size();
    TORCHETTE_CHECK(count <= value_budget, InvalidProgram,
                    "the file is damaged: its methods have more values than its size allows");
    value_budget -= count;
    plans.read(records[i]);
  }
  TORCHETTE_CHECK(plans.reader.ok(), InvalidProgram, "the file is damaged: a method is outside the file");
  Ranges all, buffers;
  for (const auto& [name, ranges] : plans.tensors) all.insert(ranges.begin(), ranges.end());
  for (const Range& range : all) {
    const Range* const last = buffers.empty() ? nullptr : &*buffers.rbegin();
    if (last == nullptr || last->id != range.id || range.begin >= last->end)
      buffers.insert(range);
    else if (range.end > last->end)
      plans.without_shared_state.insert(range.id);
  }
  std::map<size_t, std::set<std::string>> users;  // of each arena
  for (const auto& [name, ranges] : plans.tensors)
    for (const Range& range : ranges) users[range.id].insert(name);
  for (const auto& [name, ranges] : plans.tensors) {
    for (const Range& range : ranges) {
      if (plans.without_shared_state.count(range.id) != 0 || users[range.id].size() < 2) continue;
      state_[name].insert(*std::prev(buffers.upper_bound({range.id, range.begin, range.begin})));
    }
  }
  for (const Range& range : plans.initialized)
    initialized_.insert(*std::prev(buffers.upper_bound({range.id, range.begin, range.begin})));
  return Error::Ok;
}

Error SharedArenas::allocate(const Program& program, Kind kind) {
  std::map<size_t, size_t> sizes;
  for (const auto& [name, ranges] : state_)
    for (const Range& range : ranges) sizes[range.id] = 0;
  for (size_t i = 0; i < program.num_methods(); ++i) {
    const Result<const char*> name = program.get_method_name(i);
    if (!name.ok()) return name.error();
    if (Module::is_fallback(*name)) continue;
    const Result<MethodMeta> meta = program.method_meta(*name);
    if (!meta.ok()) return meta.error();
    for (size_t id = 0; id < meta->num_memory_planned_buffers(); ++id) {
      if (kind == Kind::State && sizes.count(id) == 0) continue;
      const Result<int64_t> size = meta->memory_planned_buffer_size(id);
      if (!size.ok()) return size.error();
      sizes[id] = std::max(sizes[id], static_cast<size_t>(*size));
    }
  }
  for (const auto& [id, size] : sizes) {
    Result<Arena> arena = allocate_arena(program, nullptr, id, size);
    if (!arena.ok()) return arena.error();
    while (arenas_.size() < id) arenas_.emplace_back();
    arenas_.push_back(std::move(*arena));
  }
  return Error::Ok;
}

Result<Arena> SharedArenas::allocate_arena(const Program& program, const char* method_name, size_t id,
                                           size_t size) {
  const bool is_huge = huge_size(size) >= kHugePage && !is_used_in_part(program, method_name, id);
  Result<Arena> arena = Arena::allocate(size, is_huge ? Arena::Pages::Huge : Arena::Pages::Small);
  TORCHETTE_CHECK(arena.ok(), MemoryAllocationFailed, "cannot allocate %zu bytes for arena %zu", size, id);
  return arena;
}

/// Returns the inputs and outputs of a method.
static std::set<size_t> ports_of(const flat::Table& plan) {
  std::set<size_t> ports;
  for (const uint16_t slot : {schema::ExecutionPlan::kInputs, schema::ExecutionPlan::kOutputs})
    for (const int32_t port : plan.vector<int32_t>(slot)) ports.insert(static_cast<size_t>(port));
  return ports;
}

/// Returns whether planned buffer `id` of a method, or of any method if `method_name` is null, contains state
/// or tensors of dynamic shape that fill more than a few small pages.
bool SharedArenas::is_used_in_part(const Program& program, const char* method_name, size_t id) {
  constexpr size_t kMinBytes = size_t{1} << 16;
  flat::Reader reader = program.reader();
  const flat::Tables plans = flat::Table::root(&reader).tables(schema::Program::kExecutionPlan);
  for (size_t p = 0; p < plans.size(); ++p) {
    const char* const name = plans[p].string(schema::ExecutionPlan::kName).data();
    if (method_name != nullptr ? strcmp(name, method_name) != 0 : Module::is_fallback(name)) continue;
    const std::set<size_t> ports = ports_of(plans[p]);
    const flat::Tables values = plans[p].tables(schema::ExecutionPlan::kValues);
    for (size_t i = 0; i < values.size(); ++i) {
      if (values[i].get<schema::KernelTypes>(schema::EValue::kValType) != schema::KernelTypes::Tensor)
        continue;
      const flat::Table tensor = values[i].table(schema::EValue::kVal);
      const flat::Table allocation = tensor.table(schema::Tensor::kAllocationInfo);
      if (!allocation.present() || allocation.get<uint32_t>(schema::AllocationDetails::kMemoryId) != id + 1)
        continue;
      const Result<TensorInfo> info = TensorInfo::of(reader, tensor);
      if (!info.ok()) return false;  // load reports the error
      const bool is_state = !info->name().empty() && ports.count(i) == 0;
      if (info->nbytes() >= kMinBytes && (is_state || info->shape_dynamism() != TensorShapeDynamism::STATIC))
        return true;
    }
  }
  return false;
}

void SharedArenas::clear(size_t id, size_t size) {
  size_t begin = 0;
  for (const Range& range : preserved_) {
    if (range.id != id || range.begin >= size) continue;
    arenas_[id].clear(begin, range.begin);
    begin = range.end;
  }
  if (begin < size) arenas_[id].clear(begin, size);
}

/// Preserves `ranges` while `function` clears the arenas and writes the initial values of the file.
Error SharedArenas::preserve(const Ranges& ranges, const std::function<Error()>& function) {
  std::vector<uint8_t> saved;
  for (const Range& range : ranges) {
    if (initialized_.count(range) == 0) continue;
    const uint8_t* const bytes = arenas_[range.id].bytes().data();
    saved.insert(saved.end(), bytes + range.begin, bytes + range.end);
  }
  preserved_ = ranges;
  const Error error = function();
  preserved_.clear();
  size_t at = 0;
  for (const Range& range : ranges) {
    if (initialized_.count(range) == 0) continue;
    memcpy(arenas_[range.id].bytes().data() + range.begin, saved.data() + at, range.end - range.begin);
    at += range.end - range.begin;
  }
  return error;
}

Error SharedArenas::load(const std::string& method_name, const std::function<Error()>& load) {
  TORCHETTE_TRY(preserve(loaded_, load));
  const auto method_state = state_.find(method_name);
  if (method_state != state_.end()) loaded_.insert(method_state->second.begin(), method_state->second.end());
  return Error::Ok;
}

Error SharedArenas::reset(const std::string& method_name, const std::function<Error()>& reset) {
  Ranges others = loaded_;
  const auto method_state = state_.find(method_name);
  if (method_state != state_.end())
    for (const Range& range : method_state->second) others.erase(range);
  return preserve(others, reset);
}

}  // namespace torchette::extension
