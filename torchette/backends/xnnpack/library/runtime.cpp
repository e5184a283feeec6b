// SPDX-License-Identifier: BSD-3-Clause
// The XNNPACK backend of a build with XNNPACK's library. If the library can run a payload as eager does, the
// payload becomes a runtime of the library. Our kernels run all other payloads.
#include "torchette/backends/xnnpack/kernels/runtime.h"

#include <pthreadpool.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "torchette/backends/xnnpack/library/graph.h"
#include "torchette/backends/xnnpack/library/profile.h"
#include "torchette/runtime/backend_options.h"
#include "torchette/runtime/threads.h"

namespace torchette {
namespace xnnpack {
namespace {

/// The library's threads. They do not exist in a process that was forked from theirs.
struct ThreadPool {
  explicit ThreadPool(int count) : pool(pthreadpool_create(static_cast<size_t>(count))) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() {
    if (runs_here()) pthreadpool_destroy(pool);
  }
  bool runs_here() const { return process == getpid(); }

  const pthreadpool_t pool;
  const pid_t process = getpid();
};

/// A payload stores a scalar as a value of one dimension or of none.
Dims sizes_of(const Tensor& tensor, size_t rank) {
  if (tensor.dim() == 0 && rank == 1) return {1};
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

/// A payload that the library runs.
class LibraryMethod {
 public:
  LibraryMethod() = default;
  LibraryMethod(const LibraryMethod&) = delete;
  LibraryMethod& operator=(const LibraryMethod&) = delete;
  ~LibraryMethod() {
    if (runtime_ != nullptr) xnn_delete_runtime(runtime_);
  }

  /// Error: NotSupported (our kernels run the payload; `reason()` says why), those of Payload.
  Error load(BackendInitContext& context, const FreeableBuffer& processed,
             std::shared_ptr<ThreadPool> threads) {
    TORCHETTE_TRY(graph_.read(processed, context.get_named_data_map()));
    const bool is_traced = context.event_tracer() != nullptr;
    threads_ = std::move(threads);
    if (xnn_create_runtime_v2(graph_.subgraph(), threads_ == nullptr ? nullptr : threads_->pool,
                              is_traced ? XNN_FLAG_BASIC_PROFILING : 0, &runtime_) != xnn_status_success)
      return Error::NotSupported;
    for (const auto* list : {&graph_.inputs(), &graph_.outputs()})
      for (const External& it : *list) pointers_.push_back({it.id, nullptr});
    sizes_ = graph_.sizes();
    if (is_traced) profile_.learn(runtime_, graph_.origins());
    graph_.release_subgraph();
    return Error::Ok;
  }

  const std::string& reason() const { return graph_.reason(); }
  size_t num_inputs() const { return graph_.inputs().size(); }

  Error execute(BackendExecutionContext& context, Span<Value*> arguments) {
    TORCHETTE_CHECK(threads_ == nullptr || threads_->runs_here(), InvalidState,
                    "this process was forked from the process that loaded the method, and XNNPACK's threads "
                    "exist only there: load the method in this process, or use one thread");
    TORCHETTE_CHECK(arguments.size() == pointers_.size(), InvalidArgument,
                    "XNNPACK receives %zu arguments, its graph has %zu", arguments.size(), pointers_.size());
    bool is_empty = false;
    TORCHETTE_TRY(resize(arguments, &is_empty));
    if (is_empty) return Error::Ok;
    for (xnn_external_value& it : pointers_) {
      void* const data = arguments[it.id]->to_tensor().mutable_data_ptr();
      is_set_up_ = is_set_up_ && it.data == data;
      it.data = data;
    }
    if (!is_set_up_) {
      TORCHETTE_CHECK(
          xnn_setup_runtime_v2(runtime_, pointers_.size(), pointers_.data()) == xnn_status_success,
          InvalidState, "XNNPACK cannot be set up");
      is_set_up_ = true;
    }
    EventTracer* const tracer = context.event_tracer();
    const torchette_timestamp_t start = tracer != nullptr ? current_ticks() : 0;
    TORCHETTE_CHECK(xnn_invoke_runtime(runtime_) == xnn_status_success, Internal, "XNNPACK failed");
    if (tracer != nullptr) profile_.log(runtime_, start, tracer);
    return Error::Ok;
  }

 private:
  static Error check(const Value& value, const External& expected) {
    TORCHETTE_CHECK(value.is_tensor(), InvalidArgument, "argument %u of XNNPACK is not a tensor",
                    expected.id);
    const Tensor tensor = value.to_tensor();
    TORCHETTE_CHECK(tensor.scalar_type() == expected.type && is_contiguous(tensor) &&
                        (tensor.const_data_ptr() != nullptr || tensor.numel() == 0),
                    InvalidArgument, "argument %u of XNNPACK has another dtype or layout than its graph",
                    expected.id);
    return Error::Ok;
  }

  /// Passes the sizes of the inputs to the library and resizes the outputs. `is_empty`: no output has
  /// elements.
  Error resize(Span<Value*> arguments, bool* is_empty) {
    for (const External& input : graph_.inputs()) {
      TORCHETTE_TRY(check(*arguments[input.id], input));
      Dims dims = sizes_of(arguments[input.id]->to_tensor(), sizes_[input.value].size());
      Dims& sizes = sizes_[input.value];
      TORCHETTE_CHECK(dims.size() == sizes.size(), InvalidArgument,
                      "argument %u of XNNPACK has %zu dimensions, its graph has %zu", input.id, dims.size(),
                      sizes.size());
      if (dims != sizes) is_shaped_ = false;
      sizes = std::move(dims);
    }
    if (!is_shaped_) {
      is_set_up_ = false;
      TORCHETTE_CHECK(graph_.find_sizes(&sizes_), InvalidArgument,
                      "XNNPACK's graph cannot run on values of these sizes");
    }
    *is_empty = true;
    for (const External& output : graph_.outputs()) {
      TORCHETTE_TRY(check(*arguments[output.id], output));
      const Dims& dims = sizes_[output.value];
      const Tensor tensor = arguments[output.id]->to_tensor();
      TORCHETTE_CHECK(dims.size() == sizes_of(tensor, dims.size()).size(), InvalidArgument,
                      "result %u of XNNPACK has %zu dimensions", output.id, dims.size());
      SizesType sizes[XNN_MAX_TENSOR_DIMS];  // at most 2^30 each
      std::transform(dims.begin(), dims.end(), sizes, [](size_t d) { return static_cast<SizesType>(d); });
      if (tensor.dim() != 0) TORCHETTE_TRY(resize_tensor(tensor, {sizes, dims.size()}));
      *is_empty = *is_empty && tensor.numel() == 0;
    }
    if (is_shaped_ || *is_empty) return Error::Ok;
    for (const External& input : graph_.inputs()) {
      const Dims& dims = sizes_[input.value];
      TORCHETTE_CHECK(
          xnn_reshape_external_value(runtime_, input.id, dims.size(), dims.data()) == xnn_status_success,
          InvalidArgument, "XNNPACK refuses the shape of argument %u", input.id);
    }
    TORCHETTE_CHECK(xnn_reshape_runtime(runtime_) == xnn_status_success, InvalidArgument,
                    "XNNPACK cannot run with these shapes");
    for (const External& output : graph_.outputs()) {
      size_t rank = 0, dims[XNN_MAX_TENSOR_DIMS];
      TORCHETTE_CHECK(xnn_get_external_value_shape(runtime_, output.id, &rank, dims) == xnn_status_success &&
                          Dims(dims, dims + rank) == sizes_[output.value],
                      Internal, "XNNPACK computes other sizes of result %u", output.id);
    }
    is_shaped_ = true;
    return Error::Ok;
  }

  LibraryGraph graph_;
  std::shared_ptr<ThreadPool> threads_;  // null: the calling thread
  xnn_runtime_t runtime_ = nullptr;
  std::vector<xnn_external_value> pointers_;
  std::vector<Dims> sizes_;  // of all values
  bool is_shaped_ = false;   // the library knows these sizes
  bool is_set_up_ = false;   // and these pointers
  Profile profile_;
};

/// A loaded delegate: a method of the library or of our kernels.
struct LoadedPayload {
  std::unique_ptr<LibraryMethod> library;
  DelegateHandle* kernels = nullptr;
};

class LibraryBackend final : public KernelsBackend {
 public:
  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec> specs) const override {
    void* const memory =
        context.get_runtime_allocator()->allocate(sizeof(LoadedPayload), alignof(LoadedPayload));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    std::unique_ptr<LibraryMethod> library;
    const Error error = load(context, *processed, &library);
    if (error != Error::Ok && error != Error::NotSupported) return error;
    DelegateHandle* kernels = nullptr;
    if (error == Error::Ok) {
      processed->Free();
    } else {
      const Result<DelegateHandle*> handle = KernelsBackend::init(context, processed, specs);
      if (!handle.ok()) return handle.error();
      kernels = *handle;
    }
    return static_cast<DelegateHandle*>(new (memory) LoadedPayload{std::move(library), kernels});
  }

  size_t num_inputs(DelegateHandle* handle) const override {
    const auto* const it = static_cast<const LoadedPayload*>(handle);
    return it->library != nullptr ? it->library->num_inputs() : KernelsBackend::num_inputs(it->kernels);
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* handle,
                Span<Value*> arguments) const override {
    const auto* const it = static_cast<const LoadedPayload*>(handle);
    return it->library != nullptr ? it->library->execute(context, arguments)
                                  : KernelsBackend::execute(context, it->kernels, arguments);
  }

  void destroy(DelegateHandle* handle) const override {
    auto* const it = static_cast<LoadedPayload*>(handle);
    if (it->kernels != nullptr) KernelsBackend::destroy(it->kernels);
    it->~LoadedPayload();
  }

  /// Applies to payloads that are loaded afterwards. "library": whether the library runs the payloads that it
  /// can run. "num_threads": the threads of the library, from 1 to the number of processors.
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const BackendOption& option : options) {
      if (strcmp(option.key, kLibrary) == 0) {
        const bool* const value = std::get_if<bool>(&option.value);
        TORCHETTE_CHECK(value != nullptr, InvalidArgument, "XNNPACK's %s must be true or false", kLibrary);
        is_used_ = *value;
      } else if (strcmp(option.key, kThreads) == 0) {
        const int* const value = std::get_if<int>(&option.value);
        TORCHETTE_CHECK(value != nullptr && *value >= 1 && *value <= processors(), InvalidArgument,
                        "XNNPACK's %s must be an integer from 1 to %d, the number of processors", kThreads,
                        processors());
        num_threads_ = *value;
      } else {
        return refuse(option);
      }
    }
    return Error::Ok;
  }

  /// The same options, and "last_payload": states which kernels run the payload that was loaded last, and
  /// why.
  Error get_option(BackendOptionContext&, Span<BackendOption>& options) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (BackendOption& option : options) {
      if (strcmp(option.key, kLibrary) == 0) {
        option.value = is_used_ && is_initialized();
      } else if (strcmp(option.key, kThreads) == 0) {
        option.value = num_library_threads();
      } else if (strcmp(option.key, kLastPayload) == 0) {
        std::array<char, kMaxOptionValueLength> text{};
        last_payload_.copy(text.data(), text.size() - 1);
        option.value = text;
      } else {
        return refuse(option);
      }
    }
    return Error::Ok;
  }

 private:
  static constexpr const char* kLibrary = "library";
  static constexpr const char* kThreads = "num_threads";
  static constexpr const char* kLastPayload = "last_payload";

  static Error refuse(const BackendOption& option) {
    TORCHETTE_LOG(Error, "XNNPACK has no option %.63s; it has %s, %s and %s (read-only)", option.key,
                  kLibrary, kThreads, kLastPayload);
    return Error::InvalidArgument;
  }

  /// On x86 without AVX the library's kernels turn NaN into a limit.
  static bool is_initialized() {
#if defined(__x86_64__) || defined(__i386__)
    if (!TORCHETTE_CPU_HAS("avx")) return false;
#endif
    static const bool result = xnn_initialize(nullptr) == xnn_status_success;
    return result;
  }
  static int processors() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }
  int num_library_threads() const {
    if (num_threads_ != 0) return num_threads_;
    return static_cast<int>(std::min<size_t>(num_threads(), static_cast<size_t>(processors())));
  }

  /// Error: NotSupported (our kernels are to run the payload), those of LibraryMethod.
  Error load(BackendInitContext& context, const FreeableBuffer& processed,
             std::unique_ptr<LibraryMethod>* out) const {
    std::shared_ptr<ThreadPool> threads;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      last_payload_ = "Torchette's kernels: ";
      const EventTracer* const tracer = context.event_tracer();
      const bool needs_intermediate_results =
          tracer != nullptr &&
          tracer->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs;
      if (!is_used_ || !is_initialized() || needs_intermediate_results) {
        last_payload_ +=
            needs_intermediate_results ? "the tracer requests intermediate results" : "the library is off";
        return Error::NotSupported;
      }
      TORCHETTE_TRY(get_threads(&threads));
    }
    auto method = std::make_unique<LibraryMethod>();
    const Error error = method->load(context, processed, std::move(threads));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (error != Error::Ok) {
      last_payload_ = "Torchette's kernels: " + method->reason();
      return error;
    }
    last_payload_ = "XNNPACK's library";
    *out = std::move(method);
    return Error::Ok;
  }

  /// Runtimes with the same number of threads share them; null for one thread.
  Error get_threads(std::shared_ptr<ThreadPool>* out) const {
    const int count = num_library_threads();
    if (count == 1) return Error::Ok;
    *out = threads_[count].lock();
    if (*out != nullptr && (*out)->runs_here()) return Error::Ok;
    *out = std::make_shared<ThreadPool>(count);
    TORCHETTE_CHECK((*out)->pool != nullptr, MemoryAllocationFailed, "XNNPACK cannot start %d threads",
                    count);
    threads_[count] = *out;
    return Error::Ok;
  }

  mutable std::mutex mutex_;  // protects all members
  mutable std::map<int, std::weak_ptr<ThreadPool>> threads_;
  mutable std::string last_payload_ = "nothing was loaded";
  int num_threads_ = 0;  // 0: the number of threads of the runtime
  bool is_used_ = true;
};

LibraryBackend backend;

}  // namespace
}  // namespace xnnpack

Backend xnnpack_backend{"XnnpackBackend", &xnnpack::backend};

}  // namespace torchette
