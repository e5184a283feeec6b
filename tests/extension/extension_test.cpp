// SPDX-License-Identifier: BSD-3-Clause
// Tests the classes above the core: tensors that own their data, modules, loaders and printing. Arguments: a
// .pte file with the methods `forward` (relu(x @ ones), with planned inputs and outputs) and `twice` (x + x,
// without them); the same file with every byte xored with 0x5A; the file with a receipt; the file with a
// receipt and one flipped bit.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iterator>
#include <sstream>

#include "tests/runtime/check.h"
#include "torchette/extension/arena.h"
#include "torchette/extension/event_recorder.h"
#include "torchette/extension/file_data_loader.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/module.h"
#include "torchette/extension/prepare_inputs.h"
#include "torchette/extension/print_value.h"
#include "torchette/extension/receipt.h"
#include "torchette/extension/shared_ptr_data_loader.h"

using namespace torchette;
using namespace torchette::extension;

namespace {

std::string text(const Value& value, long edge = 0) {
  std::ostringstream out;
  if (edge != 0) out << evalue_edge_items(edge);
  out << value;
  return out.str();
}

// [decrypting loader]
/// Loads a file in which every byte is xored with `key`.
class XorDataLoader final : public FileDataLoader {
 public:
  XorDataLoader(FileDataLoader&& file, uint8_t key) : FileDataLoader(std::move(file)), key_(key) {}
  Error load_into(size_t offset, size_t size, const SegmentInfo& info, void* buffer) const override {
    TORCHETTE_TRY(FileDataLoader::load_into(offset, size, info, buffer));
    for (size_t i = 0; i < size; ++i) static_cast<uint8_t*>(buffer)[i] ^= key_;
    return Error::Ok;
  }

 private:
  uint8_t key_;
};
// [end]

void tensor_pointers() {
  const TensorPtr a = make_tensor_ptr({2, 3}, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
  CHECK(a && a->dim() == 2 && a->numel() == 6 && a->scalar_type() == ScalarType::Float);
  CHECK(a->strides()[0] == 3 && a->const_data_ptr<float>()[5] == 6);
  const TensorPtr b =
      make_tensor_ptr({2, 3}, std::vector<int>{1, 2, 3, 4, 5, 6}, {1, 0}, {}, ScalarType::Half);
  CHECK(b && b->strides()[0] == 1 && b->strides()[1] == 2 && b->const_data_ptr<Half>()[5] == 6.0f);
  CHECK(make_tensor_ptr({1, 2, 3})->scalar_type() == ScalarType::Int);
  CHECK(make_tensor_ptr(2.5)->dim() == 0 && *make_tensor_ptr(2.5)->const_data_ptr<double>() == 2.5);
  CHECK(make_tensor_ptr({true, false})->scalar_type() == ScalarType::Bool);

  float data[6] = {0, 1, 2, 3, 4, 5};
  bool freed = false;
  {
    const TensorPtr blob = for_blob(data, {2, 3}).strides({1, 2}).deleter([&](void*) { freed = true; });
    CHECK(blob && blob->dim_order()[0] == 1 && blob->const_data_ptr() == data);
    const TensorPtr view = make_tensor_ptr(blob, {6});
    CHECK(view && view->dim() == 1 && view->const_data_ptr() == data);
    CHECK(!make_tensor_ptr(blob, {7}));
  }
  CHECK(freed);
  CHECK(from_blob(data, {3, 2})->const_data_ptr() == data);
  // Gaps, overlaps and invalid sizes are rejected.
  CHECK(!from_blob(data, {2, 2}, {3, 1}) && !from_blob(data, {2, 3}, {1, 1}) && !from_blob(data, {-1}));
  CHECK(!for_blob(data, {2, 3}).dim_order({0, 0}).make_tensor_ptr());
  CHECK(!from_blob(data, std::vector<SizesType>(17, 1)) && !from_blob(data, {1 << 30, 1 << 30}));
  CHECK(!make_tensor_ptr({2, 2}, {1.0f, 2.0f, 3.0f}));

  TensorPtr clone = clone_tensor_ptr(a, ScalarType::Long);
  CHECK(clone->const_data_ptr<int64_t>()[3] == 4 && clone->const_data_ptr() != a->const_data_ptr());
  CHECK(resize_tensor_ptr(clone, {1, 4}) == Error::Ok && clone->numel() == 4);
  CHECK(resize_tensor_ptr(clone, {7, 1}) == Error::MemoryAllocationFailed);

  CHECK(zeros({2, 2})->const_data_ptr<float>()[3] == 0 &&
        ones({3}, ScalarType::Char)->const_data_ptr<int8_t>()[2] == 1);
  CHECK(full({2}, Scalar(7.5), ScalarType::Double)->const_data_ptr<double>()[1] == 7.5);
  CHECK(scalar_tensor(Scalar(int64_t{3}))->dim() == 0);
  // C++ scalars.
  CHECK(full({2, 3}, 42)->const_data_ptr<float>()[5] == 42 &&
        full({1}, 2.5f)->const_data_ptr<float>()[0] == 2.5f);
  CHECK(full({1}, true, ScalarType::Bool)->const_data_ptr<bool>()[0] && full({1}, 7u)->numel() == 1);
  CHECK(scalar_tensor(1)->const_data_ptr<float>()[0] == 1 &&
        full_like(b, 3)->const_data_ptr<Half>()[1] == 3.0f);
  CHECK(full_strided({2}, {1}, 9L)->const_data_ptr<float>()[1] == 9);
  CHECK(Scalar(1).is_integral() && Scalar('a').is_integral() && Scalar(size_t{2}).to_int() == 2);
  CHECK(Scalar(1.0f).is_floating() && !Scalar(true).is_integral() && Value(1).is_int());
  CHECK(Value(Scalar(5)).to_int() == 5);
  const TensorPtr r = randint_like(b, 5, 8);
  CHECK(r->scalar_type() == ScalarType::Half && r->strides()[1] == 2);
  for (int i = 0; i < 6; ++i)
    CHECK(r->const_data_ptr<Half>()[i] >= 5.0f && r->const_data_ptr<Half>()[i] < 8.0f);
  const TensorPtr n = randn({1000});
  float sum = 0;
  for (int i = 0; i < 1000; ++i) sum += n->const_data_ptr<float>()[i];
  CHECK(std::fabs(sum) < 200 && empty({0})->numel() == 0 && rand({4})->const_data_ptr<float>()[0] <= 1);
  CHECK(!randint(3, 3, {1}));
}

void printing() {
  CHECK(text(Value(int64_t{5})) == "5" && text(Value(0.5)) == "0.5" && text(Value(true)) == "true");
  CHECK(text(Value()) == "None");
  CHECK(text(make_tensor_ptr({2, 2}, {1.0f, 2.5f, 3.0f, 4.0f})) == "tensor(sizes=[2, 2], [1, 2.5, 3, 4])");
  CHECK(text(make_tensor_ptr({1, 2, 3, 4, 5}), 2) == "tensor(Int, sizes=[5], [1, 2, ..., 4, 5])");
  CHECK(text(make_tensor_ptr({1, 2, 3, 4}), 2) == "tensor(Int, sizes=[4], [1, 2, 3, 4])");
  CHECK(text(make_tensor_ptr({true}), -1) == "tensor(Bool, sizes=[1], [true])");
  PlainList list{"text", 4};
  CHECK(text(Value(Tag::String, &list)) == "\"text\"");
}

/// Checks that `forward` returns the sums of the rows.
void check_forward(Module& module) {
  float x[6] = {1, 2, 3, 4, 5, 6};
  Result<std::vector<Value>> result = module.forward(from_blob(x, {2, 3}));
  CHECK(result.ok());
  if (!result.ok()) return;
  CHECK(result->size() == 1 && (*result)[0].isTensor());
  const Tensor& y = result->at(0).toTensor();
  CHECK(y.dim() == 2 && y.size(0) == 2 && y.size(1) == 4);
  CHECK(y.const_data_ptr<float>()[0] == 6 && y.const_data_ptr<float>()[7] == 15);
}

/// clear() sets exactly its range to zero, on the heap and in small and huge pages.
void arenas() {
  for (const size_t size : {size_t{100'000}, size_t{5'000'001}})
    for (const Arena::Pages pages : {Arena::Pages::Small, Arena::Pages::Huge}) {
      Result<Arena> allocated = Arena::allocate(size, pages);
      CHECK(allocated.ok() && allocated->bytes().size() == size);
      if (!allocated.ok()) continue;
      Arena arena(std::move(*allocated));
      uint8_t* const bytes = arena.bytes().data();
      CHECK(reinterpret_cast<uintptr_t>(bytes) % Arena::kAlignment == 0);
      const size_t ranges[][2] = {{0, size}, {1, 2}, {4095, 4097}, {4096, 8192}, {100, size - 100}};
      for (const auto& [begin, end] : ranges) {
        std::fill(bytes, bytes + size, uint8_t{7});
        arena.clear(begin, end);
        CHECK(std::count(bytes + begin, bytes + end, 0) == static_cast<std::ptrdiff_t>(end - begin));
        CHECK(std::count(bytes, bytes + size, 7) == static_cast<std::ptrdiff_t>(size - (end - begin)));
      }
    }
  CHECK(Arena::allocate(SIZE_MAX, Arena::Pages::Small).error() == Error::MemoryAllocationFailed);
  CHECK(Arena::allocate(SIZE_MAX / 4, Arena::Pages::Huge).error() == Error::MemoryAllocationFailed);
}

void modules(const char* path, const char* encrypted) {
  for (const auto mode :
       {Module::LoadMode::File, Module::LoadMode::Mmap, Module::LoadMode::MmapUseMlockIgnoreErrors}) {
    Module module(path, mode);
    CHECK(!module.is_loaded() && !module.is_method_loaded("forward"));
    check_forward(module);
    CHECK(module.is_loaded() && module.is_method_loaded("forward") && !module.is_method_loaded("twice"));
  }
  Module alone(path);
  CHECK(alone.load() == Error::Ok);
  const Result<FreeableBuffer> head = alone.data_loader()->load(0, 16, {});
  CHECK(head.ok() && head->data() == alone.data_loader()->load(0, 16, {})->data());  // the file is mapped
  CHECK(alone.share_state(alone) == Error::Ok && !alone.shares_state());
  CHECK(alone.load_forward() == Error::Ok && !alone.shares_state());  // the file has no state
  Module module(path);
  CHECK(*module.num_methods() == 2 &&
        *module.method_names() == (std::unordered_set<std::string>{"forward", "twice"}));
  CHECK(module.method_meta("twice")->num_inputs() == 1 && !module.method_meta("none").ok());
  CHECK(module.load_method("none") == Error::InvalidArgument &&
        module.execute("none").error() == Error::InvalidArgument);
  CHECK(module.forward().error() == Error::InvalidState);  // the input is not set
  check_forward(module);
  CHECK(module.forward().ok());  // uses the copy of the last input in planned memory
  CHECK(module.forward(make_tensor_ptr({2, 3}, {1, 2, 3, 4, 5, 6})).error() == Error::InvalidArgument);
  CHECK(module.unload_forward() && !module.unload_forward());

  // Outputs without planned memory are in memory of the module or of the caller.
  float x[3] = {1, 2, 3}, y[3] = {};
  const TensorPtr in = from_blob(x, {3}), out = from_blob(y, {3});
  CHECK(module.get("twice", in)->toTensor().const_data_ptr<float>()[2] == 6);
  CHECK(module.execute("twice").error() == Error::InvalidArgument);  // the memory of `in` might be freed
  CHECK(module.set_output("twice", out) == Error::Ok && module.set_input("twice", in, 0) == Error::Ok);
  CHECK(module.execute("twice").ok() && y[2] == 6);
  CHECK(module.get_output("twice")->toTensor().const_data_ptr() == y &&
        module.get_outputs("twice")->size() == 1);
  CHECK(module.get_output("twice", 1).error() == Error::InvalidArgument);
  CHECK(module.set_output("twice", Value(1.0)) == Error::InvalidType);
  CHECK(module.set_inputs("twice", {in, in}) == Error::InvalidArgument);
  CHECK(module.set_outputs("twice", {}) == Error::InvalidArgument);

  // A method uses the same number of bytes from the module's allocator and from the caller's.
  const Result<MethodMemory> memory = module.method_memory("twice");
  const Result<MethodMeta> meta = module.method_meta("twice");
  CHECK(memory.ok() && memory->planned.size() == meta->num_memory_planned_buffers());
  for (size_t id = 0; id < memory->planned.size(); ++id)
    CHECK(memory->planned[id].size() == static_cast<size_t>(*meta->memory_planned_buffer_size(id)));
  auto pool = std::make_shared<MallocMemoryAllocator>();
  Module with_pool(path, Module::LoadMode::Mmap, nullptr, pool);
  CHECK(with_pool.method_memory("twice")->method_bytes == memory->method_bytes && memory->method_bytes > 0);
  CHECK(pool->size() >= memory->method_bytes && memory->dynamic_peak == 0);
  CHECK(module.method_memory("none").error() == Error::InvalidArgument);

  // Methods that share planned memory, and two modules with the same program.
  Module shared(path, Module::LoadMode::Mmap, nullptr, nullptr, nullptr, true);
  check_forward(shared);
  CHECK(shared.get("twice", in)->toTensor().const_data_ptr<float>()[0] == 2);
  check_forward(shared);
  Module other(shared.program());
  check_forward(other);

#if TORCHETTE_EVENT_TRACER
  // The tracer of the module receives the events of methods without a separate tracer.
  auto recorder = std::make_shared<EventRecorder>();
  EventRecorder method_recorder;
  Module traced(path, Module::LoadMode::Mmap, recorder);
  CHECK(traced.event_tracer() == recorder.get() && module.event_tracer() == nullptr);
  CHECK(traced.load_method("twice", nullptr, &method_recorder) == Error::Ok && recorder->events().empty());
  check_forward(traced);
  CHECK(traced.get("twice", in).ok());
  CHECK(method_recorder.blocks() == std::vector<std::string>({"Default", "Execute"}));
  const std::vector<RecordedEvent>& events = method_recorder.events();
  CHECK(events.size() > 2 && events[0].name == "Method::init" && events[0].chain == kUnsetChainId);
  CHECK(events[1].name == "Method::execute" && events[1].block == 1 && events[0].end <= events[1].begin);
  for (size_t i = 2; i < events.size(); ++i) {
    CHECK(events[i].chain == 0 && events[i].instruction == i - 2 && !events[i].in_delegate);
    CHECK(events[i - 1].begin <= events[i].begin && events[i].begin <= events[i].end);
    CHECK(events[i].end <= events[1].end);
  }
  CHECK(!recorder->events().empty() && recorder->events()[0].name == "Method::init");
  recorder->clear();
  CHECK(recorder->events().empty() && recorder->blocks().empty());
  check_forward(traced);
  CHECK(recorder->blocks() == std::vector<std::string>({"Execute"}) && recorder->events()[0].block == 0);
#endif

  // The results do not depend on the loader.
  std::ifstream file(path, std::ios::binary);
  auto bytes = std::make_shared<std::vector<char>>(std::istreambuf_iterator<char>(file),
                                                   std::istreambuf_iterator<char>());
  Module in_memory(
      std::make_unique<SharedPtrDataLoader>(std::shared_ptr<void>(bytes, bytes->data()), bytes->size()));
  bytes.reset();
  check_forward(in_memory);
  const int descriptor = open(path, O_RDONLY);
  const std::string uri = "fd:///" + std::to_string(descriptor);
  Result<FileDescriptorDataLoader> opened = FileDescriptorDataLoader::fromFileDescriptorUri(uri.c_str());
  CHECK(opened.ok());
  close(descriptor);
  Module from_descriptor(std::make_unique<FileDescriptorDataLoader>(std::move(*opened)));
  check_forward(from_descriptor);
  CHECK(FileDataLoader::from_descriptor(descriptor).error() == Error::AccessFailed);  // closed
  for (const char* wrong : {"fd:///", "fd:///x", "12", "fd:///-1", "fd:///99999999999"})
    CHECK(FileDataLoader::fromFileDescriptorUri(wrong).error() == Error::InvalidArgument);
  Result<FileDataLoader> secret = FileDataLoader::from(encrypted);
  Module decrypted(std::make_unique<XorDataLoader>(std::move(*secret), 0x5A));
  check_forward(decrypted);

  CHECK(Module(encrypted).load() == Error::InvalidProgram && Module("none").load() == Error::AccessFailed);

  // A file that shrinks after it was opened, and a loader that fails during the load of a program.
  const std::string cut = std::string(encrypted) + ".cut";
  std::ofstream(cut, std::ios::binary) << std::ifstream(path, std::ios::binary).rdbuf();
  Result<FileDataLoader> shrinking = FileDataLoader::from(cut.c_str());
  CHECK(shrinking.ok() && truncate(cut.c_str(), 100) == 0);
  char piece[200];
  const DataLoader::SegmentInfo info{DataLoader::SegmentInfo::Type::Program};
  CHECK(shrinking->load(0, 200, info).error() == Error::AccessFailed);
  CHECK(shrinking->load_into(50, 100, info, piece) == Error::AccessFailed);
  CHECK(shrinking->load_into(0, 100, info, piece) == Error::Ok);
  CHECK(shrinking->load(*shrinking->size(), 1, info).error() == Error::InvalidArgument);
  Module shrunk(std::make_unique<FileDataLoader>(std::move(*shrinking)));
  CHECK(shrunk.load() == Error::AccessFailed && !shrunk.is_loaded() &&
        shrunk.forward().error() == Error::AccessFailed);

  Module prepared(path);
  const Result<PreparedInputs> inputs = prepare_input_tensors(**prepared.method("forward"));
  CHECK(inputs.ok() && inputs->size() == 1);
  CHECK(prepared.forward()->front().toTensor().const_data_ptr<float>()[0] == 3);
}

/// Verifies files with a loader that copies and one that maps. `damaged` has one flipped bit.
void integrity(const char* without, const char* signed_file, const char* damaged) {
  using LoadMode = Module::LoadMode;
  for (const LoadMode mode : {LoadMode::File, LoadMode::Mmap}) {
    Module module(signed_file, mode), wrong(damaged, mode), plain(without, mode);
    CHECK(module.verify_integrity() == Error::Ok && module.is_loaded());
    CHECK(module.forward(make_tensor_ptr({2, 3}, std::vector<float>(6, 1.0f)))->size() == 1);
    CHECK(wrong.verify_integrity() == Error::InvalidProgram);
    CHECK(plain.verify_integrity() == Error::NotFound);
    Module shared(module.program());
    CHECK(shared.verify_integrity() == Error::NotSupported);
  }
  CHECK(Module("none").verify_integrity() == Error::AccessFailed);
  CHECK(xxh64("abc", 3) == 0x44BC2CF5AD770999);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  tensor_pointers();
  printing();
  arenas();
  modules(argv[1], argv[2]);
  integrity(argv[1], argv[3], argv[4]);
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
