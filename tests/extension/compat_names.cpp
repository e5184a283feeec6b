// SPDX-License-Identifier: BSD-3-Clause
// Uses the public C++ names of ExecuTorch like a program. The file is compiled and not run: it checks that
// the headers declare the names with compatible parameters and results.
#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/data_loader/mmap_data_loader.h>
#include <executorch/extension/data_loader/shared_ptr_data_loader.h>
#include <executorch/extension/flat_tensor/flat_tensor_data_map.h>
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/extension/memory_allocator/malloc_memory_allocator.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/event_tracer.h>
#include <executorch/runtime/core/exec_aten/util/dim_order_util.h>
#include <executorch/runtime/core/exec_aten/util/scalar_type_util.h>
#include <executorch/runtime/core/exec_aten/util/tensor_shape_to_c_string.h>
#include <executorch/runtime/core/exec_aten/util/tensor_util.h>
#include <executorch/runtime/core/portable_type/scalar.h>
#include <executorch/runtime/core/portable_type/tensor.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/kernel_includes.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/abort.h>
#include <executorch/runtime/platform/clock.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/profiler.h>
#include <executorch/runtime/platform/runtime.h>
#include <executorch/runtime/platform/system.h>

#if __has_include(<executorch/devtools/bundled_program/bundled_program.h>)  // the ExecuTorch wheel lacks it
#include <executorch/devtools/bundled_program/bundled_program.h>
#include <executorch/extension/data_loader/file_descriptor_data_loader.h>
#include <executorch/extension/evalue_util/print_evalue.h>
#include <executorch/extension/module/bundled_module.h>
#include <executorch/extension/runner_util/inputs.h>
#define HAS_ALL_HEADERS
#endif

#include <iostream>

namespace rt = executorch::runtime;
namespace ext = executorch::extension;
using rt::Error, rt::EValue, rt::Result, rt::Span;

// --- runtime/executor
Error program_names(rt::DataLoader* loader, rt::MemoryManager* memory, rt::EventTracer* tracer,
                    const rt::NamedDataMap* data) {
  using rt::Program;
  Result<Program> program = Program::load(loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return program.error();
  ET_ASSIGN_OR_RETURN(method_name, program->get_method_name(0), "method %d has no name", 0);
  char head[Program::kMinHeadBytes] = {};
  if (program->num_methods() == 0 ||
      Program::check_header(head, sizeof(head)) == Program::HeaderStatus::CompatibleVersion)
    return Error::NotFound;
  ET_ASSIGN_OR_RETURN(meta, program->method_meta(method_name));
  ET_ASSIGN_OR_RETURN(attributes, Result<size_t>(meta.num_attributes()));
  for (size_t i = 0; i < meta.num_inputs() + attributes; ++i) {
    ET_ASSIGN_OR_RETURN(tag, meta.input_tag(i));
    ET_ASSIGN_OR_RETURN(info, meta.input_tensor_meta(i));
    if (tag != rt::Tag::Tensor || info.scalar_type() == executorch::aten::ScalarType::Float) continue;
    std::cout << info.sizes().size() << info.dim_order().size() << info.nbytes() << info.is_memory_planned();
  }
  if (meta.num_outputs() > 0) ET_CHECK(meta.output_tag(0).ok() && meta.output_tensor_meta(0).ok());
  if (meta.num_memory_planned_buffers() > 0 && !meta.memory_planned_buffer_size(0).ok())
    return Error::Internal;
  if (meta.uses_backend("XnnpackBackend") && meta.num_backends() > 0) std::cout << *meta.get_backend_name(0);

  Result<rt::Method> method = program->load_method(method_name, memory, tracer, data);
  if (!method.ok()) return method.error();
  EValue inputs[1];
  ET_CHECK_OK_OR_RETURN_ERROR(method->set_input(inputs[0], 0));
  ET_CHECK_OK_OR_RETURN_ERROR(method->set_inputs({inputs, 1}), "%zu inputs", method->inputs_size());
  ET_CHECK_OK_OR_RETURN_ERROR(method->set_output_data_ptr(inputs, 4, 0));
  ET_CHECK_OK_OR_RETURN_ERROR(method->execute());
  while (method->in_progress()) ET_CHECK_OK_OR_RETURN_ERROR(method->step());
  ET_CHECK_OK_OR_RETURN_ERROR(method->reset_execution());
  ET_CHECK_OK_OR_RETURN_ERROR(method->get_outputs(inputs, method->outputs_size()));
  const EValue& output = method->get_output(0);
  if (!method->get_attribute("weight").ok() || !output.isTensor()) return Error::NotFound;
  return method->method_meta().num_inputs() == 1 ? Error::Ok : Error::Internal;
}

// --- runtime/core
struct OwnLoader : rt::DataLoader {
  Result<rt::FreeableBuffer> load(size_t, size_t size, const SegmentInfo& info) const override {
    if (info.segment_type == SegmentInfo::Type::Backend) return Error::NotSupported;
    return rt::FreeableBuffer(nullptr, size, [](void*, void*, size_t) {});
  }
  Error load_into(size_t, size_t, const SegmentInfo&, void*) const override { return Error::NotImplemented; }
  Result<size_t> size() const override { return 0; }
};

int64_t core_names(const EValue& value, uint8_t* pool) {
  rt::MemoryAllocator allocator(64, pool);
  allocator.allocateInstance<int>();
  allocator.allocateList<float>(2);
  allocator.reset();
  rt::HierarchicalAllocator hierarchical({});
  const OwnLoader loader;
  const OwnLoader::SegmentInfo info(OwnLoader::SegmentInfo::Type::Program, 0, "whole");
  Result<rt::FreeableBuffer> buffer = loader.load(0, 0, info);
  if (buffer.ok()) buffer->Free();
  executorch::aten::ArrayRef<int64_t> list;
  if (value.isIntList()) list = value.toIntList();
  if (value.isDouble()) return static_cast<int64_t>(value.toDouble());
  if (value.isBool()) return value.toBool();
  if (value.isString()) return static_cast<int64_t>(value.toString().size());
  if (value.isScalar()) return value.toScalar().to<int64_t>();
  if (value.isNone()) return static_cast<int64_t>(list.size());
  ET_LOG(Info, "%zu", list.size());
  ET_DCHECK_MSG(value.isInt(), "kind %d", value.isInt());
  return value.tryToInt().ok() ? value.toInt() : 0;
}

Error macros(const Result<size_t>& size) {
  ET_CHECK_OR_RETURN_ERROR(size.ok(), InvalidArgument, "no size: %d", 1);
  if ET_UNLIKELY (*size == 0) return Error::Internal;
  const size_t unwrapped = ET_UNWRAP(Result<size_t>(*size));
  ET_CHECK_MSG(unwrapped == *size, "%zu", unwrapped);
  return Error::Ok;
}

// --- runtime/core/exec_aten
namespace older = torch::executor;
static_assert(std::is_same_v<older::Tensor, executorch::aten::Tensor>);
static_assert(std::is_same_v<exec_aten::Tensor, executorch::runtime::etensor::Tensor>);
static_assert(std::is_same_v<older::Method, rt::Method>);
static_assert(std::is_same_v<older::util::FileDataLoader, ext::FileDataLoader>);
static_assert(std::is_same_v<older::Module, ext::Module>);
static_assert(std::is_same_v<ext::ET_MODULE_NAMESPACE::Module, ext::Module>);
static_assert(std::is_same_v<executorch::ET_RUNTIME_NAMESPACE::Program, rt::Program>);
static_assert(std::is_same_v<executorch::aten::SizesType, int32_t>);
static_assert(std::is_same_v<executorch::aten::StridesType, int32_t>);
static_assert(std::is_same_v<executorch::aten::DimOrderType, uint8_t>);
static_assert(std::is_same_v<rt::ScalarTypeToCppType<executorch::aten::ScalarType::Long>::type, int64_t>);
static_assert(rt::CppTypeToScalarType<bool>::value == executorch::aten::ScalarType::Bool);

// --- runtime/kernel
executorch::aten::Tensor& scale_out(rt::KernelRuntimeContext& context, const executorch::aten::Tensor& self,
                                    const executorch::aten::Scalar& factor,
                                    executorch::aten::optional<int64_t>, executorch::aten::Tensor& out) {
  ET_KERNEL_CHECK(context, rt::tensors_have_same_shape_and_dtype(self, out), InvalidArgument, out);
  ET_KERNEL_CHECK_MSG(context, rt::resize_tensor(out, self.sizes()) == Error::Ok, InvalidArgument, out, "%d",
                      1);
  Result<void*> scratch = context.allocate_temp(16);
  if (!scratch.ok()) context.fail(Error::MemoryAllocationFailed);
  ET_SWITCH_REALHBBF16_TYPES(self.scalar_type(), context, "scale.out", CTYPE, [&]() {
    for (ssize_t i = 0; i < self.numel(); ++i)
      out.mutable_data_ptr<CTYPE>()[i] =
          static_cast<CTYPE>(static_cast<double>(self.const_data_ptr<CTYPE>()[i]) + factor.to<double>());
  });
  ET_SWITCH_THREE_TYPES(Float, Long, Bool, out.scalar_type(), context, "scale.out", CTYPE,
                        [&]() { static_assert(sizeof(CTYPE) > 0); });
  ET_SWITCH_REAL_TYPES_AND2(Half, Bool, out.scalar_type(), context, "scale.out", CTYPE, [] {});
  ET_SWITCH_SCALAR_OBJ_TYPES(out.scalar_type(), context, "scale.out", CTYPE, [] {});
  return out;
}
EXECUTORCH_LIBRARY(names, "scale.out", scale_out);

bool registry_names() { return rt::registry_has_op_function("names::scale.out"); }

// --- runtime/backend
struct Chip final : rt::BackendInterface {
  bool is_available() const override { return true; }
  Result<rt::DelegateHandle*> init(rt::BackendInitContext&, rt::FreeableBuffer*,
                                   executorch::aten::ArrayRef<rt::CompileSpec>) const override {
    return nullptr;
  }
  Error execute(rt::BackendExecutionContext&, rt::DelegateHandle*, Span<EValue*>) const override {
    return Error::Ok;
  }
  void destroy(rt::DelegateHandle*) const override {}
  Error set_option(rt::BackendOptionContext&, const Span<rt::BackendOption>& options) override {
    for (const rt::BackendOption& option : options)
      if (const int* threads = std::get_if<int>(&option.value)) ET_LOG(Info, "%s %d", option.key, *threads);
    return Error::Ok;
  }
  Error get_option(rt::BackendOptionContext&, Span<rt::BackendOption>& options) override {
    options[0].value = true;
    return Error::Ok;
  }
};

Error backend_names() {
  static Chip chip;
  static rt::Backend node{"Chip", &chip};
  ET_CHECK_OK_OR_RETURN_ERROR(rt::register_backend(node));
  if (rt::get_backend_class("Chip") != &chip || rt::get_num_registered_backends() == 0)
    return Error::Internal;
  rt::BackendOptions<3> options;
  ET_CHECK_OK_OR_RETURN_ERROR(options.set_option("threads", 2));
  ET_CHECK_OK_OR_RETURN_ERROR(options.set_option("fast", true));
  ET_CHECK_OK_OR_RETURN_ERROR(options.set_option("name", "chip"));
  ET_CHECK_OK_OR_RETURN_ERROR(rt::set_option("Chip", options.view()));
  ET_CHECK_OK_OR_RETURN_ERROR(rt::get_option("Chip", options.view()));
  const char* text = nullptr;
  return options.get_option("name", text);
}
struct OlderChip final : older::PyTorchBackendInterface {
  bool is_available() const override { return false; }
  Result<rt::DelegateHandle*> init(rt::BackendInitContext&, rt::FreeableBuffer*,
                                   executorch::aten::ArrayRef<rt::CompileSpec>) const override {
    return Error::NotSupported;
  }
  Error execute(rt::BackendExecutionContext&, rt::DelegateHandle*, Span<EValue*>) const override {
    return Error::NotSupported;
  }
};

// --- runtime/platform
void platform_names() {
  rt::runtime_init();
  rt::register_pal(rt::PalImpl::create(
      [](et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char*, size_t) {
        if (level == kError) rt::runtime_abort();
      },
      __FILE__));
  rt::register_pal(rt::PalImpl::create(et_pal_init, et_pal_abort, et_pal_current_ticks,
                                       et_pal_ticks_to_ns_multiplier, et_pal_emit_log_message,
                                       et_pal_allocate, et_pal_free, __FILE__));
  rt::pal_free(rt::pal_allocate(rt::ticks_to_ns(rt::pal_current_ticks()) > 0 ? 8 : 16));
  std::cout << et_pal_get_shared_library_name(nullptr);
}

// --- extension
Error extension_names(const char* path) {
  using ext::Module, ext::TensorPtr;
  for (Module::LoadMode mode :
       {Module::LoadMode::File, Module::LoadMode::Mmap, Module::LoadMode::MmapUseMlock,
        Module::LoadMode::MmapUseMlockIgnoreErrors, Module::LoadMode::MmapUseMadvise})
    ET_CHECK_OK_OR_RETURN_ERROR(Module(path, mode).load());
  Module with_data(std::string(path), std::string("weights.ptd"), Module::LoadMode::Mmap);
  Module with_files(path, std::vector<std::string>{"a.ptd", "b.ptd"});
  Module traced(path, Module::LoadMode::File, std::make_unique<executorch::etdump::ETDumpGen>(),
                std::make_unique<ext::MallocMemoryAllocator>(),
                std::make_unique<ext::MallocMemoryAllocator>(), true);
  Result<ext::FileDataLoader> file = ext::FileDataLoader::from(path);
  if (!file.ok()) return file.error();
  Module on_loader(std::make_unique<ext::FileDataLoader>(std::move(*file)));
  Module on_program(with_data.program());
  const TensorPtr tensor = ext::make_tensor_ptr({2}, {1.0f, 2.0f});
  ET_CHECK_OK_OR_RETURN_ERROR(traced.load_forward());
  ET_CHECK_OK_OR_RETURN_ERROR(traced.set_input(tensor, 0));
  ET_CHECK_OK_OR_RETURN_ERROR(traced.set_inputs({tensor}));
  ET_CHECK_OK_OR_RETURN_ERROR(traced.set_output(tensor));
  if (!traced.get("forward", tensor).ok() || !traced.get_outputs().ok() || !traced.num_methods().ok())
    return Error::Internal;
  for (const TensorPtr& made :
       {ext::empty({2}), ext::zeros({2}), ext::ones({2}), ext::full({2}, 3.0), ext::rand({2}),
        ext::randn({2}), ext::randint(0, 4, {2}), ext::empty_like(tensor), ext::zeros_like(tensor),
        ext::ones_like(tensor), ext::full_like(tensor, 2.0), ext::rand_like(tensor), ext::randn_like(tensor),
        ext::randint_like(tensor, 0, 2), ext::empty_strided({2, 2}, {2, 1}), ext::full_strided({2}, {1}, 1.0),
        ext::scalar_tensor(1.0), ext::clone_tensor_ptr(tensor)})
    if (!made) return Error::Internal;
  TensorPtr resized = tensor;
  ET_CHECK_OK_OR_RETURN_ERROR(ext::resize_tensor_ptr(resized, {1}));

  ext::BufferDataLoader buffer(path, 4);
  Result<ext::MmapDataLoader> mapped =
      ext::MmapDataLoader::from(path, ext::MmapDataLoader::MlockConfig::UseMadvise);
  if (!mapped.ok()) return Error::AccessFailed;
  Result<ext::FlatTensorDataMap> map = ext::FlatTensorDataMap::load(&*mapped);
  if (!map.ok() || !map->get_tensor_layout("weight").ok() || !map->get_data("weight").ok() ||
      !map->get_num_keys().ok() || !map->get_key(0).ok())
    return Error::NotFound;
  return Error::Ok;
}

// --- devtools
Error etdump_names(uint8_t* debug_buffer) {
  executorch::etdump::ETDumpGen tracer;
  if (!tracer.set_debug_buffer({debug_buffer, 1024}).ok()) return Error::Internal;
  tracer.set_event_tracer_debug_level(rt::EventTracerDebugLogLevel::kIntermediateOutputs);
  const executorch::etdump::ETDumpResult result = tracer.get_etdump_data();
  free(result.buf);
  return result.size > 0 ? Error::Ok : Error::Internal;
}

#ifdef HAS_ALL_HEADERS
Error bundled_names(rt::Method& method, std::vector<uint8_t>& file) {
  namespace bundled = executorch::bundled_program;
  const void* program = nullptr;
  size_t size = 0;
  if (!bundled::is_bundled_program(file.data(), file.size())) return Error::NotSupported;
  ET_CHECK_OK_OR_RETURN_ERROR(bundled::get_program_data(file.data(), file.size(), &program, &size));
  ET_CHECK_OK_OR_RETURN_ERROR(bundled::load_bundled_input(method, file.data(), 0));
  return bundled::verify_method_outputs(method, file.data(), 0, 1e-3, 1e-3);
}

Error more_extension_names(const char* path, int descriptor, rt::Method& method) {
  Result<std::unique_ptr<ext::BundledModule>> bundled = ext::BundledModule::from_file(path);
  if (!bundled.ok()) return bundled.error();
  if (!(*bundled)->execute("forward", 0).ok()) return Error::Internal;
  ET_CHECK_OK_OR_RETURN_ERROR((*bundled)->verify_method_outputs("forward", 0, 1e-3, 1e-3));

  Result<ext::FileDataLoader> descriptor_loader =
      ext::FileDescriptorDataLoader::fromFileDescriptorUri(("fd:///" + std::to_string(descriptor)).c_str());
  if (!descriptor_loader.ok()) return descriptor_loader.error();
  std::cout << ext::evalue_edge_items(2) << EValue(*ext::ones({2}));
  auto inputs = ext::prepare_input_tensors(method);
  return inputs.ok() ? Error::Ok : inputs.error();
}
#endif
