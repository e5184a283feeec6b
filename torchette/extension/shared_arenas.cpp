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

/// The planned tensors of all methods.
struct SharedArenas::Plans {
  flat::Reader reader;
  std::map<std::string, Ranges> tensors{};   // by method; excludes the first arena
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
      if (info->nbytes() != 0) tensors[name].insert({id, offset, offset + info->nbytes()});
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
    const Result<Span<uint8_t>> arena = allocate_arena(memory_, id, size);
    if (!arena.ok()) return arena.error();
    arenas_.resize(id + 1);
    arenas_[id] = *arena;
  }
  return Error::Ok;
}

Result<Span<uint8_t>> SharedArenas::allocate_arena(MemoryAllocator& memory, size_t id, size_t size) {
  auto* bytes = static_cast<uint8_t*>(memory.allocate(huge_size(size), huge_alignment(size, kAlignment)));
  TORCHETTE_CHECK(bytes != nullptr, MemoryAllocationFailed, "cannot allocate %zu bytes for arena %zu", size,
                  id);
  prefer_huge_pages(bytes, size);
  return Span<uint8_t>(bytes, size);
}

Error SharedArenas::preserve(const Ranges& ranges, const std::function<Error()>& function) {
  std::vector<uint8_t> saved;
  for (const Range& range : ranges) {
    const uint8_t* const bytes = arenas_[range.id].data();
    saved.insert(saved.end(), bytes + range.begin, bytes + range.end);
  }
  const Error error = function();
  size_t at = 0;
  for (const Range& range : ranges) {
    memcpy(arenas_[range.id].data() + range.begin, saved.data() + at, range.end - range.begin);
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
