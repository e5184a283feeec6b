// SPDX-License-Identifier: BSD-3-Clause
// Opens a program, reads its metadata, loads it into the caller's memory, executes and steps it. Wrong inputs
// are refused. The results do not depend on the loader.
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "test_backend.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/file_data_loader.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/mmap_data_loader.h"
#include "torchette/runtime/method.h"

using namespace torchette;

namespace {

struct Memory {
  alignas(64) uint8_t method_pool[8192];
  alignas(64) uint8_t planned_pool[512];
  alignas(64) uint8_t temp_pool[256];
  Span<uint8_t> planned_span{planned_pool, sizeof(planned_pool)};
  MemoryAllocator method{sizeof(method_pool), method_pool};
  MemoryAllocator temp{sizeof(temp_pool), temp_pool};
  HierarchicalAllocator planned{{&planned_span, 1}};
  MemoryManager manager{&method, &planned, &temp};
  Memory() { memset(planned_pool, 0xAB, sizeof(planned_pool)); }
};

/// float32[rows, 3] with elements 0, 1, 2 ...
struct Input {
  float data[64];
  SizesType sizes[2];
  StridesType strides[2] = {3, 1};
  DimOrderType order[2] = {0, 1};
  TensorImpl impl;
  explicit Input(int rows, int columns = 3, ScalarType type = ScalarType::Float) : sizes{rows, columns} {
    strides[0] = columns;
    for (int i = 0; i < 64; ++i) data[i] = static_cast<float>(i);
    impl = {data, sizes, strides, order, 64, rows * columns, 2, type, TensorShapeDynamism::STATIC};
  }
  Value value() { return Value(Tensor(&impl)); }
};

void meta(const Program& program) {
  CHECK(program.num_methods() == 3);
  CHECK(strcmp(*program.get_method_name(0), "forward") == 0);
  CHECK(!program.get_method_name(3).ok());
  CHECK(program.method_meta("backward").error() == Error::InvalidArgument);
  const Result<MethodMeta> found = program.method_meta("forward");
  const MethodMeta& meta = *found;
  CHECK(strcmp(meta.name(), "forward") == 0);
  CHECK(meta.num_inputs() == 2 && meta.num_outputs() == 4);
  CHECK(*meta.input_tag(0) == Tag::Tensor && *meta.input_tag(1) == Tag::Bool);
  CHECK(!meta.input_tag(2).ok());
  CHECK(meta.input_tensor_meta(1).error() == Error::InvalidArgument);
  const Result<TensorInfo> x = meta.input_tensor_meta(0);
  CHECK(x->sizes().size() == 2 && x->sizes()[0] == 4 && x->scalar_type() == ScalarType::Float);
  CHECK(!x->is_memory_planned() && x->nbytes() == 48);
  CHECK(meta.output_tensor_meta(0)->is_memory_planned() && !meta.output_tensor_meta(1)->is_memory_planned());
  CHECK(meta.num_attributes() == 0);  // the state has a name, but is an output
  CHECK(meta.num_memory_planned_buffers() == 1 && *meta.memory_planned_buffer_size(0) == 512);
  CHECK(!meta.memory_planned_buffer_size(1).ok());
  CHECK(meta.num_backends() == 0 && !meta.uses_backend("First") && !meta.get_backend_name(0).ok());
  CHECK(meta.num_instructions() == 12);
}

void execute(const Program& program) {
  Memory memory;
  Result<Method> loaded = program.load_method("forward", &memory.manager);
  CHECK(loaded.ok());
  if (!loaded.ok()) return;
  Method& method = *loaded;
  CHECK(method.inputs_size() == 2 && method.outputs_size() == 4);
  CHECK(method.execute() == Error::InvalidState);  // no input yet
  Input x(2);
  CHECK(method.set_input(x.value(), 0) == Error::Ok);
  CHECK(method.execute() == Error::InvalidState);  // output 1 has no memory
  float scaled[12];
  CHECK(method.set_output_data_ptr(scaled, sizeof(scaled), 0) == Error::NotSupported);
  CHECK(method.set_output_data_ptr(scaled, 8, 1) == Error::InvalidArgument);
  CHECK(method.set_output_data_ptr(reinterpret_cast<char*>(scaled) + 1, sizeof(scaled), 1) ==
        Error::InvalidArgument);
  CHECK(method.set_output_data_ptr(scaled, sizeof(scaled), 2) == Error::InvalidArgument);
  CHECK(method.set_output_data_ptr(scaled, sizeof(scaled), 4) == Error::InvalidArgument);
  CHECK(method.set_output_data_ptr(scaled, sizeof(scaled), 1) == Error::Ok);
  for (int round = 1; round <= 3; ++round) {
    CHECK(method.execute() == Error::Ok);
    const Tensor total = method.get_output(0).to_tensor();
    CHECK(total.size(0) == 2 && total.const_data_ptr<float>()[4] == 4 + 2);
    CHECK(method.get_output(1).to_tensor().const_data_ptr() == scaled && scaled[5] == 10);
    CHECK(method.get_output(2).is_int() && method.get_output(2).to_int() == 2);
    CHECK(method.get_output(3).to_tensor().const_data_ptr<float>()[0] == 10.0f + static_cast<float>(round));
    CHECK(method.get_output(4).is_none());
  }
  CHECK(memory.temp.used_size() == 0);
  CHECK(method.reset() == Error::Ok);
  CHECK(method.get_attribute("state")->const_data_ptr<float>()[0] == 10.0f);
  CHECK(method.get_attribute("other").error() == Error::NotFound);

  // The other branch with other sizes, one instruction at a time.
  Input four(4);
  const Value both[] = {four.value(), Value(false)};
  CHECK(method.set_inputs(both) == Error::Ok);
  CHECK(method.set_inputs({both, 1}) == Error::InvalidArgument);
  int steps = 0;
  Error error = Error::Ok;
  while ((error = method.step()) == Error::Ok) ++steps;
  CHECK(error == Error::EndOfMethod && steps == 11 && method.in_progress());
  CHECK(method.reset_execution() == Error::Ok && !method.in_progress());
  CHECK(scaled[11] == 33 && method.get_output(2).to_int() == 4);
}

/// A loop ends by its condition, by the maximum number of iterations, or by cancel(). The next execution is
/// not affected.
void bounded_loops(const Program& program) {
  Memory memory;
  Result<Method> loaded = program.load_method("loop", &memory.manager);
  CHECK(loaded.ok());
  if (!loaded.ok()) return;
  Method& method = *loaded;
  const auto iterations = [&](int64_t limit) {
    CHECK(method.set_input(Value(limit), 0) == Error::Ok);
    const Error error = method.execute();
    return error == Error::Ok ? method.get_output(0).to_int() : -static_cast<int64_t>(error);
  };
  constexpr auto kOutOfResources = -static_cast<int64_t>(Error::OutOfResources);
  CHECK(iterations(5) == 5);
  method.set_max_loop_iterations(3);
  CHECK(iterations(5) == kOutOfResources);
  CHECK(iterations(4) == 4);  // the first iteration needs no jump
  method.set_max_loop_iterations(0);
  CHECK(iterations(1) == 1 && iterations(2) == kOutOfResources);
  method.set_max_loop_iterations(UINT32_MAX);
  method.cancel();
  CHECK(iterations(1) == kOutOfResources && !method.in_progress());
  CHECK(iterations(1) == 1);
  method.cancel();
  CHECK(method.reset_execution() == Error::Ok && iterations(1) == 1);

  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    method.cancel();
  });
  CHECK(iterations(INT64_MAX) == kOutOfResources);
  other.join();
  CHECK(iterations(3) == 3);

  CHECK(method.step() == Error::Ok && method.step() == Error::Ok && method.in_progress());
  method.cancel();
  CHECK(method.step() == Error::OutOfResources && !method.in_progress());
  CHECK(iterations(2) == 2);
  Method moved(std::move(method));
  CHECK(moved.execute() == Error::Ok && moved.get_output(0).to_int() == 2);
}

void refused_inputs(const Program& program) {
  Memory memory;
  Result<Method> loaded = program.load_method("forward", &memory.manager);
  Method& method = *loaded;
  Input fits(4), rows(5), columns(2, 8), type(2, 3, ScalarType::Int), gaps(2), order(2), negative(2);
  CHECK(method.set_input(fits.value(), 0) == Error::Ok);
  CHECK(method.set_input(fits.value(), 2) == Error::InvalidArgument);
  CHECK(method.set_input(rows.value(), 0) == Error::InvalidArgument);
  // The number of elements is within the maximum, but one dimension exceeds its own bound.
  CHECK(method.set_input(Input(1, 4).value(), 0) == Error::InvalidArgument);
  CHECK(method.set_input(columns.value(), 0) == Error::InvalidArgument);
  CHECK(method.set_input(type.value(), 0) == Error::InvalidArgument);
  CHECK(method.set_input(Value(int64_t{1}), 0) == Error::InvalidArgument);
  CHECK(method.set_input(Value(), 0) == Error::InvalidArgument);
  gaps.strides[0] = 4;
  CHECK(method.set_input(gaps.value(), 0) == Error::InvalidArgument);
  order.strides[0] = 1, order.strides[1] = 2;
  CHECK(method.set_input(order.value(), 0) == Error::InvalidArgument);
  negative.sizes[0] = -1;
  CHECK(method.set_input(negative.value(), 0) == Error::InvalidArgument);
  fits.impl.data = nullptr;
  CHECK(method.set_input(fits.value(), 0) == Error::InvalidArgument);
  fits.impl.dim = 1;
  CHECK(method.set_input(fits.value(), 0) == Error::InvalidArgument);
  CHECK(method.set_input(Value(int64_t{1}), 1) == Error::InvalidArgument);
  CHECK(method.set_input(Value(true), 1) == Error::Ok);
}

void too_little_memory(const Program& program) {
  size_t needed = 0;
  {
    Memory memory;
    CHECK(program.load_method("forward", &memory.manager).ok());
    needed = memory.method.used_size();
  }
  for (size_t size = 0; size < needed; ++size) {
    Memory memory;
    MemoryAllocator small(size, memory.method_pool);
    MemoryManager manager(&small, &memory.planned, &memory.temp);
    CHECK(program.load_method("forward", &manager).error() == Error::MemoryAllocationFailed);
  }
  Memory memory;
  MemoryManager unplanned(&memory.method);
  CHECK(program.load_method("forward", &unplanned).error() == Error::InvalidArgument);
  MemoryManager nothing(nullptr);
  CHECK(program.load_method("forward", &nothing).error() == Error::InvalidArgument);
  CHECK(program.load_method("forward", nullptr).error() == Error::InvalidArgument);
  // Without a temp allocator, scratch memory comes from the platform or from the free bytes of the method
  // allocator.
  MemoryAllocator full(needed, memory.method_pool);
  PalImpl without_memory;
  without_memory.allocate = [](size_t) -> void* { return nullptr; };
  for (const bool platform : {true, false}) {
    if (!platform) register_pal(without_memory);
    for (MemoryAllocator* allocator : {&full, &memory.method}) {
      allocator->reset();
      MemoryManager no_temp(allocator, &memory.planned);
      Result<Method> method = program.load_method("forward", &no_temp);
      Input x(2);
      float out[12];
      CHECK(method->set_input(x.value(), 0) == Error::Ok &&
            method->set_output_data_ptr(out, 48, 1) == Error::Ok);
      const bool enough = platform || allocator != &full;
      CHECK(method->execute() == (enough ? Error::Ok : Error::MemoryAllocationFailed));
      CHECK(allocator->used_size() == needed);
    }
  }
  PalImpl with_memory;
  with_memory.allocate = torchette_pal_allocate;
  register_pal(with_memory);
}

/// Makes one call fail, and counts the blocks that are not freed.
struct Fault {
  long calls_left = -1;  // successful calls before the failing one; negative: none fails
  bool is_due() { return calls_left >= 0 && calls_left-- == 0; }
};
struct FaultyAllocator final : MemoryAllocator {
  Fault& fault;
  FaultyAllocator(Fault& plan, size_t size, uint8_t* base) : MemoryAllocator(size, base), fault(plan) {}
  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    return fault.is_due() ? nullptr : bump(size, alignment);
  }
};
struct FaultyLoader final : DataLoader {
  const std::vector<char>& bytes;
  Fault& fault;
  mutable int live = 0;
  FaultyLoader(const std::vector<char>& file, Fault& plan) : bytes(file), fault(plan) {}
  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo&) const override {
    if (fault.is_due()) return Error::AccessFailed;
    ++live;
    return FreeableBuffer(
        bytes.data() + offset, size,
        [](void* loader, void*, size_t) { --static_cast<FaultyLoader*>(loader)->live; },
        const_cast<FaultyLoader*>(this));
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    if (fault.is_due()) return Error::AccessFailed;
    memcpy(buffer, bytes.data() + offset, size);
    return Error::Ok;
  }
  Result<size_t> size() const override {
    if (fault.is_due()) return Error::AccessFailed;
    return bytes.size();
  }
};

/// Opens, loads and executes one method.
Error use(DataLoader& loader, const char* name, MemoryManager& memory) {
  const Result<Program> program = Program::load(&loader);
  if (!program.ok()) return program.error();
  Result<Method> method = program->load_method(name, &memory);
  if (!method.ok()) return method.error();
  Input x(2);
  float pair[] = {1, 2}, out[12];
  SizesType two = 2;
  StridesType one = 1;
  DimOrderType zero = 0;
  TensorImpl impl{pair, &two, &one, &zero, 2, 2, 1, ScalarType::Float, TensorShapeDynamism::STATIC};
  TORCHETTE_TRY(method->set_input(strcmp(name, "forward") == 0 ? x.value() : Value(Tensor(&impl)), 0));
  if (method->output_needs_memory(1)) TORCHETTE_TRY(method->set_output_data_ptr(out, sizeof(out), 1));
  return method->execute();
}

/// If the allocation or access with any index fails, its error is returned, and all memory is freed.
void every_failure(const std::vector<char>& bytes) {
  const TestBackend& backend = test_backend();
  for (const char* name : {"forward", "delegated"}) {
    for (const bool memory_fails : {false, true}) {
      long failures_seen = 0;
      for (long n = 0;; ++n) {
        Fault fault, none;
        fault.calls_left = n;
        Fault& of_memory = memory_fails ? fault : none;
        alignas(64) uint8_t method_pool[8192], planned_pool[512], temp_pool[256];
        FaultyAllocator method(of_memory, sizeof(method_pool), method_pool);
        FaultyAllocator temp(of_memory, sizeof(temp_pool), temp_pool);
        Span<uint8_t> span{planned_pool, sizeof(planned_pool)};
        HierarchicalAllocator planned({&span, 1});
        MemoryManager manager(&method, &planned, &temp);
        FaultyLoader loader(bytes, memory_fails ? none : fault);
        const Error error = use(loader, name, manager);
        CHECK(loader.live == 0 && backend.live == 0);
        if (fault.calls_left >= 0) {  // fewer calls than n
          CHECK(error == Error::Ok);
          break;
        }
        ++failures_seen;
        CHECK(error == (memory_fails ? Error::MemoryAllocationFailed : Error::AccessFailed));
      }
      CHECK(failures_seen > (memory_fails ? 8 : 3));
    }
  }
}

void header(const std::vector<char>& bytes) {
  using Status = Program::HeaderStatus;
  CHECK(Program::check_header(bytes.data(), bytes.size()) == Status::CompatibleVersion);
  CHECK(Program::check_header(bytes.data(), Program::kMinHeadBytes - 1) == Status::ShortData);
  std::vector<char> other = bytes;
  other[6] = '9';
  CHECK(Program::check_header(other.data(), other.size()) == Status::IncompatibleVersion);
  other[4] = 'X';
  CHECK(Program::check_header(other.data(), other.size()) == Status::NotPresent);
  for (size_t size = 0; size < bytes.size(); ++size) {
    extension::BufferDataLoader loader(bytes.data(), size);
    // A file that ends within its last padding is complete.
    CHECK(!Program::load(&loader).ok() || size + 128 > bytes.size());
  }
}

/// Named data are found in any order of requests.
void named(const Program& program) {
  const char* const names[] = {"first", "second", "third"};
  CHECK(program.get_num_keys().ok() && *program.get_num_keys() == 3 && !program.get_key(3).ok());
  for (size_t from = 0; from < 3; ++from) {
    const Result<const char*> key = program.get_key(static_cast<uint32_t>(from));
    CHECK(key.ok() && strcmp(*key, names[from]) == 0);
    for (size_t to = 0; to < 3; ++to) {
      for (size_t i : {from, to}) {
        const Result<FreeableBuffer> data = program.get_data(names[i]);
        CHECK(data.ok() && data->size() == i + 1 && *static_cast<const char*>(data->data()) == '1' + char(i));
      }
      CHECK(program.get_data("fourth").error() == Error::NotFound);
    }
  }
}

/// A user's loader of an encrypted model.
struct XorLoader final : DataLoader {
  std::vector<char> bytes;
  Result<FreeableBuffer> load(size_t offset, size_t size, const SegmentInfo& info) const override {
    if (offset > bytes.size() || size > bytes.size() - offset) return Error::InvalidArgument;
    char* copy = new char[size];
    const Error error = load_into(offset, size, info, copy);
    FreeableBuffer result(copy, size, [](void*, void* p, size_t) { delete[] static_cast<char*>(p); });
    if (error != Error::Ok) return error;
    return result;
  }
  Error load_into(size_t offset, size_t size, const SegmentInfo&, void* buffer) const override {
    for (size_t i = 0; i < size; ++i)
      static_cast<char*>(buffer)[i] = static_cast<char>(bytes[offset + i] ^ 0x5A);
    return Error::Ok;
  }
  Result<size_t> size() const override { return bytes.size(); }
};

}  // namespace

void program_tests(const char* path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  header(bytes);

  extension::BufferDataLoader buffer(bytes.data(), bytes.size());
  const Result<Program> program = Program::load(&buffer, Program::Verification::InternalConsistency);
  CHECK(program.ok());
  if (!program.ok()) return;
  meta(*program);
  execute(*program);
  bounded_loops(*program);
  refused_inputs(*program);
  too_little_memory(*program);
  named(*program);

  every_failure(bytes);

  const Result<extension::MmapDataLoader> mapped = extension::MmapDataLoader::from(path);
  const Result<extension::FileDataLoader> read = extension::FileDataLoader::from(path);
  XorLoader hidden;
  for (char c : bytes) hidden.bytes.push_back(static_cast<char>(c ^ 0x5A));
  CHECK(mapped.ok() && read.ok());
  const DataLoader* const loaders[] = {&*mapped, &*read, &hidden};
  for (const DataLoader* loader : loaders) {
    const Result<Program> same = Program::load(const_cast<DataLoader*>(loader));
    CHECK(same.ok());
    if (same.ok()) execute(*same);
    CHECK(!loader->load(bytes.size(), 1, {DataLoader::SegmentInfo::Type::Program}).ok());
    CHECK(!loader->load(SIZE_MAX, 2, {DataLoader::SegmentInfo::Type::Program}).ok());
  }
  CHECK(extension::MmapDataLoader::from("/nowhere").error() == Error::AccessFailed);
  CHECK(extension::FileDataLoader::from("/nowhere").error() == Error::AccessFailed);
  CHECK(extension::FileDataLoader::from("/").error() == Error::AccessFailed);
  CHECK(extension::FileDataLoader::from(path, 3).error() == Error::InvalidArgument);
}
