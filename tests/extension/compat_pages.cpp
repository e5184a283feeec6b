// SPDX-License-Identifier: BSD-3-Clause
// The programs of ExecuTorch's documentation, a function for each page. They use only ExecuTorch's headers
// and names. Arguments: the page, a .pte file with one float input of sizes {2, 3}, and the arguments of the
// page.
#define PROFILING_ENABLED
#define ET_USE_LIBDL

#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/extension/tensor/tensor_accessor.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_shape_to_c_string.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/platform/clock.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/profiler.h>
#include <executorch/runtime/platform/runtime.h>
#include <executorch/runtime/platform/system.h>
#if __has_include(<executorch/devtools/bundled_program/bundled_program.h>)  // the ExecuTorch wheel lacks it
#include <executorch/devtools/bundled_program/bundled_program.h>
#include <executorch/extension/module/bundled_module.h>
#define HAS_BUNDLED_PROGRAMS
#endif

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

// --- The platform abstraction layer: functions that a program defines override the default ones.
static int lines_of_the_program = 0, lines_of_register_pal = 0;
static size_t bytes_allocated = 0;

void et_pal_emit_log_message(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t,
                             const char* message, size_t length) {
  ++lines_of_the_program;
  std::fprintf(stderr, "%c %.*s\n", static_cast<char>(level), static_cast<int>(length), message);
}

namespace {

float ones[6] = {1, 1, 1, 1, 1, 1};

void print(const executorch::aten::Tensor& tensor) {
  for (ssize_t i = 0; i < tensor.numel(); ++i) std::printf("%.9g\n", tensor.const_data_ptr<float>()[i]);
}

int low_level(const char* path) {
  using namespace torch::executor;
  Result<util::FileDataLoader> loader = util::FileDataLoader::from(path);
  ET_CHECK(loader.ok());
  Result<Program> program = torch::executor::Program::load(&loader.get());
  ET_CHECK(program.ok());
  const char* method_name = "forward";
  Result<MethodMeta> method_meta = program->method_meta(method_name);
  ET_CHECK(method_meta.ok());

  std::vector<std::unique_ptr<uint8_t[]>> planned_buffers;
  std::vector<Span<uint8_t>> planned_arenas;
  for (size_t id = 0; id < method_meta->num_memory_planned_buffers(); ++id) {
    const auto size = static_cast<size_t>(method_meta->memory_planned_buffer_size(id).get());
    planned_buffers.push_back(std::make_unique<uint8_t[]>(size));
    planned_arenas.push_back({planned_buffers.back().get(), size});
  }
  HierarchicalAllocator planned_memory({planned_arenas.data(), planned_arenas.size()});
  util::MallocMemoryAllocator method_allocator;
  MemoryManager memory_manager(&method_allocator, &planned_memory);
  Result<Method> method = program->load_method(method_name, &memory_manager);
  ET_CHECK(method.ok());

  Tensor::SizesType sizes[] = {2, 3};
  Tensor::DimOrderType dim_order[] = {0, 1};
  TensorImpl impl(ScalarType::Float, 2, sizes, ones, dim_order);
  Tensor t(&impl);
  ET_CHECK(method->set_input(t, 0) == Error::Ok);
  ET_CHECK(method->execute() == Error::Ok);
  EValue output = method->get_output(0);
  ET_CHECK(output.isTensor());
  print(output.toTensor());
  return 0;
}

int using_cpp(const char* path) {
  using namespace ::executorch::extension;
  Module module(path);
  auto tensor = from_blob(ones, {2, 3});
  const auto result = module.forward(tensor);
  if (!result.ok()) return 1;
  print(result->at(0).toTensor());
  return 0;
}

int extension_module(const char* path) {
  using namespace ::torch::executor;
  Module module(path, Module::LoadMode::MmapUseMadvise);
  Tensor::SizesType sizes[] = {2, 3};
  TensorImpl tensor(ScalarType::Float, std::size(sizes), sizes, ones);
  if (module.load() != Error::Ok || !module.is_loaded()) return 1;
  if (module.load_method("forward") != Error::Ok || !module.is_method_loaded("forward")) return 1;
  const auto names = module.method_names();
  if (!names.ok() || names->count("forward") == 0) return 1;
  const auto meta = module.method_meta("forward");
  if (!meta.ok() || std::string(meta->name()) != "forward" || meta->num_inputs() != 1) return 1;
  const auto input_meta = meta->input_tensor_meta(0);
  if (!input_meta.ok() || input_meta->scalar_type() != ScalarType::Float) return 1;
  const auto result = module.execute("forward", Tensor(&tensor));
  if (!result.ok()) return 1;
  print(result->at(0).toTensor());
  const auto first = module.get("forward", Tensor(&tensor));
  return first.ok() && first->isTensor() && module.unload_method("forward") ? 0 : 1;
}

int profile_module(const char* path, const char* trace_path) {
  using namespace ::torch::executor;
  Module module(path, Module::LoadMode::MmapUseMlockIgnoreErrors, std::make_unique<ETDumpGen>());
  const auto tensor = ::executorch::extension::from_blob(ones, {2, 3});
  if (!module.forward(tensor).ok()) return 1;
  auto* etdump = dynamic_cast<ETDumpGen*>(module.event_tracer());
  if (etdump == nullptr) return 1;
  const auto trace = etdump->get_etdump_data();
  std::unique_ptr<void, decltype(&free)> guard(trace.buf, free);
  std::ofstream file(trace_path, std::ios::binary);
  file.write(static_cast<const char*>(trace.buf), static_cast<std::streamsize>(trace.size));
  return file && trace.size > 0 ? 0 : 1;
}

int tensors(const char* path) {
  using namespace executorch::aten;
  using namespace executorch::extension;
  using ::executorch::extension::ET_MODULE_NAMESPACE::Module;
  Module module(path);
  SizesType sizes[] = {2, 3};
  DimOrderType dim_order[] = {0, 1};
  StridesType strides[] = {3, 1};
  float data[] = {1.0f, 1.0f, 1.0f, 1.0f, 1.0f, 1.0f};
  TensorImpl tensor_impl(ScalarType::Float, std::size(sizes), sizes, data, dim_order, strides);
  const auto first = module.forward(Tensor(&tensor_impl));
  if (!first.ok()) return 1;
  print(first->at(0).toTensor());

  auto tensor = make_tensor_ptr({2, 3}, {1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f});
  if (!module.forward(tensor).ok() || module.forward({tensor, tensor}).ok()) return 1;  // it has one input
  const auto scalar = make_tensor_ptr(3.14);
  const auto cast = make_tensor_ptr(std::vector<int32_t>{42}, ScalarType::Float);
  const auto converted = make_tensor_ptr({1, 2, 3, 4, 5, 6}, ScalarType::Double);
  const auto bytes = make_tensor_ptr({2, 1}, std::vector<uint8_t>(8, 0), ScalarType::Int);
  const auto pointed = make_tensor_ptr({2, 3}, data, ScalarType::Float);
  int freed = 0;
  auto deleter = [&freed](void* memory) { ++freed, delete[] static_cast<double*>(memory); };
  make_tensor_ptr({2, 3}, new double[6]{1.0, 2.0, 3.0, 4.0, 5.0, 6.0}, ScalarType::Double, DeviceType::CPU,
                  TensorShapeDynamism::DYNAMIC_BOUND, deleter);
  from_blob(new double[3]{1, 2, 3}, {3}, ScalarType::Double, DeviceType::CPU, deleter);
  const auto view = make_tensor_ptr(*tensor);
  const auto clone = clone_tensor_ptr(tensor);
  auto accessor = make_tensor_accessor<float, 2>(*tensor);
  if (!accessor.ok() || accessor->size(1) != 3 || accessor->stride(0) != 3) return 1;
  accessor.get()[1][2] += 0.5f;
  if (tensor->const_data_ptr<float>()[5] != 6.5f) return 1;
  if (make_tensor_accessor<float, 3>(*tensor).ok() || make_tensor_accessor<double, 2>(*tensor).ok()) return 1;
  view->mutable_data_ptr<float>()[0] = 7;
  std::printf("%g %g %g %g %d %d %g\n", scalar->const_data_ptr<double>()[0], cast->const_data_ptr<float>()[0],
              converted->const_data_ptr<double>()[5], tensor->const_data_ptr<float>()[0],
              bytes->const_data_ptr<int32_t>()[1], freed, clone->const_data_ptr<float>()[0]);

  auto resized =
      make_tensor_ptr({2, 3}, {1, 2, 3, 4, 5, 6}, ScalarType::Int, TensorShapeDynamism::DYNAMIC_BOUND);
  for (const std::vector<SizesType>& to : {std::vector<SizesType>{2, 2}, {1, 3}, {3, 2}, {6, 1}})
    std::printf("%d", resize_tensor_ptr(resized, to) == executorch::runtime::Error::Ok);
  std::printf("%d\n", resize_tensor_ptr(resized, {7, 1}) == executorch::runtime::Error::Ok);
  const auto fluent = for_blob(data, {2, 3}, ScalarType::Float)
                          .strides({3, 1})
                          .dynamism(TensorShapeDynamism::STATIC)
                          .make_tensor_ptr();
  const TensorPtr made[] = {fluent,
                            pointed,
                            empty({2, 3}),
                            zeros({2, 3}),
                            empty_like(pointed),
                            empty_strided({2, 3}, {3, 1}),
                            full({2}, 42.0),
                            ones_like(pointed),
                            rand({2, 3}),
                            randn({2, 3}),
                            randint(0, 10, {2}),
                            scalar_tensor(3.5)};
  for (const TensorPtr& it : made)
    if (!it) return 1;
  std::printf("%g %g\n", full({2}, 42.0)->const_data_ptr<float>()[1],
              scalar_tensor(3.5)->const_data_ptr<float>()[0]);
  return 0;
}

#ifdef HAS_BUNDLED_PROGRAMS
int bundled(const char*, const char* bundle_path) {
  using executorch::extension::BundledModule;
  using executorch::runtime::Error;
  auto module = BundledModule::from_file(bundle_path);
  if (!module.ok()) return 1;
  const auto outputs = module.get()->execute("forward", 0);
  if (!outputs.ok()) return 1;
  print(outputs->at(0).toTensor());
  std::printf("%d", module.get()->verify_method_outputs("forward", 0, 1e-4, 1e-5) == Error::Ok);
  std::printf("%d", module.get()->verify_method_outputs("forward", 1, 1e-4, 1e-5) == Error::Ok);
  std::printf("%d\n", module.get()->execute("forward", 2).ok());

  namespace bundled_program = executorch::bundled_program;
  std::ifstream file(bundle_path, std::ios::binary);
  const std::vector<char> contents((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::vector<uint8_t> memory(contents.size() + 32);
  uint8_t* buffer = memory.data() + (32 - reinterpret_cast<uintptr_t>(memory.data()) % 32);
  memcpy(buffer, contents.data(), contents.size());
  const auto method = module.get()->method("forward");
  if (!method.ok() || !bundled_program::is_bundled_program(buffer, contents.size())) return 1;
  std::printf("%d", bundled_program::load_bundled_input(**method, buffer, 0) == Error::InvalidState);
  const void* program = nullptr;
  size_t size = 0;
  std::printf("%d",
              bundled_program::get_program_data(buffer, contents.size() / 2, &program, &size) != Error::Ok);
  std::printf("%d", bundled_program::get_program_data(buffer, contents.size(), &program, &size) == Error::Ok);
  std::printf("%d", bundled_program::load_bundled_input(**method, buffer, 0) == Error::Ok);
  std::printf("%d", (*method)->execute() == Error::Ok);
  std::printf("%d\n", bundled_program::verify_method_outputs(**method, buffer, 0, 1e-4, 1e-5) == Error::Ok);
  return 0;
}

#endif

int platform(const char*) {
  using namespace executorch::runtime;
  using executorch::extension::FileDataLoader;
  runtime_init();
  const et_timestamp_t start = pal_current_ticks();
  if (FileDataLoader::from("/no such file").ok() || lines_of_the_program == 0) return 1;
  const int before = lines_of_the_program;
  register_pal(PalImpl::create([](et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t,
                                  const char*, size_t) { lines_of_register_pal += level == kError; },
                               __FILE__));
  if (FileDataLoader::from("/no such file").ok()) return 1;
  std::printf("%d %d\n", lines_of_the_program - before, lines_of_register_pal > 0);
  register_pal(PalImpl::create(
      nullptr, nullptr, [] { return et_timestamp_t{250}; }, [] { return et_tick_ratio_t{4, 2}; }, nullptr,
      [](size_t size) { return bytes_allocated += size, std::malloc(size); },
      [](void* memory) { std::free(memory); }, __FILE__));
  pal_free(pal_allocate(24));
  std::printf("%d %llu %zu\n", start > 0, static_cast<unsigned long long>(ticks_to_ns(pal_current_ticks())),
              bytes_allocated);
  const std::string name = et_pal_get_shared_library_name(reinterpret_cast<const void*>(&platform));
  std::printf("%s\n", name.substr(name.rfind('/') + 1).c_str());
  return 0;
}

int profiler(const char* path, const char* output_path) {
  using namespace executorch::runtime;
  using executorch::extension::Module;
  profiler_init();
  EXECUTORCH_PROFILE_CREATE_BLOCK("my block");
  {
    EXECUTORCH_SCOPE_PROF("whole program");
    EXECUTORCH_PROFILE_INSTRUCTION_SCOPE(2, 7);
    const uint32_t token = EXECUTORCH_BEGIN_PROF("inner");
    EXECUTORCH_END_PROF(token);
    const uint32_t allocator = EXECUTORCH_TRACK_ALLOCATOR("my allocator");
    EXECUTORCH_TRACK_ALLOCATION(static_cast<int32_t>(allocator), 96);
  }
  Module module(path);
#ifdef TORCHETTE_LOG  // ExecuTorch's methods use the profiler without a tracer
  if (module.load_method("forward", nullptr, &profiler_tracer()) != Error::Ok) return 1;
#endif
  const auto tensor = executorch::extension::from_blob(ones, {2, 3});
  if (!module.forward(tensor).ok()) return 1;
  prof_result_t result;
  EXECUTORCH_DUMP_PROFILE_RESULTS(&result);
  std::ofstream file(output_path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(result.prof_data), result.num_bytes);
  std::printf("%u %u %zu %zu %zu\n", result.num_blocks, prof_buf_size, prof_events_offset,
              prof_mem_alloc_info_offset, prof_mem_alloc_events_offset);
  EXECUTORCH_RESET_PROFILE_RESULTS();
  EXECUTORCH_DUMP_PROFILE_RESULTS(&result);
  return result.num_bytes == 0 ? 0 : 1;
}

int data_file(const char* path, const char* data_path) {
  using executorch::extension::Module;
  Module module(std::string(path), std::string(data_path), Module::LoadMode::MmapUseMadvise);
  const auto result = module.forward(executorch::extension::from_blob(ones, {2, 3}));
  if (!result.ok()) return 1;
  print(result->at(0).toTensor());
  return 0;
}

int kernel_functions(const char*) {
  using namespace executorch::runtime;
  using executorch::aten::ScalarType;
  const uint8_t channels_last[] = {0, 2, 3, 1}, twice[] = {0, 0, 1};
  const int64_t sizes[] = {2, 3, 4, 5}, empty_sizes[] = {2, 0, 3};
  int64_t strides[4];
  uint8_t order[4];
  ET_CHECK(dim_order_to_stride(sizes, channels_last, 4, strides) == Error::Ok);
  std::printf("%d %d %d %d\n", static_cast<int>(strides[0]), static_cast<int>(strides[1]),
              static_cast<int>(strides[2]), static_cast<int>(strides[3]));
  ET_CHECK(stride_to_dim_order(strides, 4, order) == Error::Ok && memcmp(order, channels_last, 4) == 0);
  ET_CHECK(is_channels_last_dim_order(order, 4) && !is_contiguous_dim_order(order, 4));
  ET_CHECK(dim_order_to_stride(sizes, twice, 3, strides) == Error::InvalidArgument);
  const uint8_t natural[] = {0, 1, 2};
  ET_CHECK(dim_order_to_stride(empty_sizes, natural, 3, strides) == Error::Ok);
  std::printf("%d %d %d %s\n", static_cast<int>(strides[0]), static_cast<int>(strides[1]),
              static_cast<int>(strides[2]), tensor_shape_to_c_string(Span<const int64_t>(sizes, 4)).data());
  // Print all pairs; the Python test compares them with torch.
  for (ScalarType a :
       {ScalarType::Bool, ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int,
        ScalarType::Long, ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double}) {
    for (ScalarType b :
         {ScalarType::Bool, ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int,
          ScalarType::Long, ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double})
      std::printf("%s%s ", toString(promoteTypes(a, b)), canCast(a, b) ? "+" : "-");
  }
  std::printf("\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  const std::string page = argv[1];
  const char* more = argc > 3 ? argv[3] : "";
  if (page == "low_level") return low_level(argv[2]);
  if (page == "using_cpp") return using_cpp(argv[2]);
  if (page == "module") return extension_module(argv[2]);
  if (page == "profile") return profile_module(argv[2], more);
  if (page == "tensors") return tensors(argv[2]);
#ifdef HAS_BUNDLED_PROGRAMS
  if (page == "bundled") return bundled(argv[2], more);
#endif
  if (page == "platform") return platform(argv[2]);
  if (page == "profiler") return profiler(argv[2], more);
  if (page == "data_file") return data_file(argv[2], more);
  if (page == "kernel_functions") return kernel_functions(argv[2]);
  return 2;
}
