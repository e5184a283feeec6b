// SPDX-License-Identifier: BSD-3-Clause
// The XNNPACK backend on the device: a payload becomes one of the library's runtimes at init, and runs on the
// method's own tensors.
#include <pthread.h>
#include <pthreadpool.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <thread>

#include "torchette/backends/xnnpack/graph.h"
#include "torchette/backends/xnnpack/profile.h"
#include "torchette/backends/xnnpack/taps.h"
#include "torchette/runtime/backend_options.h"
#include "torchette/runtime/threads.h"

namespace torchette {
namespace {

using xnnpack::External;

/// A mutex that a child of fork() does not wait for if a thread of its parent holds it: the thread is not in
/// the child, so it never unlocks the mutex.
class ForkMutex {
 public:
  /// Returns false if a thread of the parent holds it.
  bool lock() {
    if (!mutex_.try_lock()) {
      if (!was_used_here()) return false;
      mutex_.lock();
    }
    process_ = getpid();
    return true;
  }
  void unlock() { mutex_.unlock(); }
  /// Whether this process made it or was the last to lock it.
  bool was_used_here() const { return process_ == getpid(); }

 private:
  std::mutex mutex_;
  std::atomic<pid_t> process_{getpid()};
};

/// Holds a ForkMutex for as long as it lives, if the mutex can be locked.
class ForkLock {
 public:
  explicit ForkLock(ForkMutex& mutex) : mutex_(mutex.lock() ? &mutex : nullptr) {}
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
  ~ForkLock() {
    if (mutex_ != nullptr) mutex_->unlock();
  }
  explicit operator bool() const { return mutex_ != nullptr; }

 private:
  ForkMutex* const mutex_;
};

/// Memory for values inside of graphs; whoever runs on it holds the lock.
struct Workspace {
  xnn_workspace_t it = nullptr;
  ForkMutex mutex;
  Workspace() = default;
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;
  ~Workspace() {
    if (it != nullptr) xnn_release_workspace(it);
  }
};

/// Packed weights of a program; whoever makes a runtime holds the lock.
struct Weights {
  xnnpack::PackedWeights packed;
  ForkMutex mutex;
};

/// The one object of its kind for a key, for as long as somebody holds it. A child of fork() makes new
/// objects: threads of its parent may hold the mutexes of the parent's objects.
template <class T>
class Pool {
 public:
  std::shared_ptr<T> get(const void* key) {
    if (key == nullptr) return std::make_shared<T>();
    for (auto it = known_.begin(); it != known_.end();)
      it = it->second.expired() ? known_.erase(it) : std::next(it);
    std::shared_ptr<T> found = known_[key].lock();
    if (found == nullptr || !found->mutex.was_used_here()) known_[key] = found = std::make_shared<T>();
    return found;
  }

 private:
  std::map<const void*, std::weak_ptr<T>> known_;
};

/// The library's threads. In a process that is forked from theirs they do not run, and nobody waits for their
/// end.
struct ThreadPool {
  explicit ThreadPool(int count) : it(pthreadpool_create(static_cast<size_t>(count))) {}
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;
  ~ThreadPool() {
    if (runs_here()) pthreadpool_destroy(it);
  }
  bool runs_here() const { return process_ == getpid(); }

  const pthreadpool_t it;

 private:
  const pid_t process_ = getpid();
};
using Threads = std::shared_ptr<ThreadPool>;

struct Handle {
  xnnpack::Graph graph;
  Threads threads;
  std::shared_ptr<Weights> weights;
  std::shared_ptr<Workspace> workspace;
  xnn_runtime_t runtime = nullptr;
  std::vector<xnn_external_value> pointers;
  std::vector<std::vector<size_t>> shapes;  // of the inputs at the last execution
  std::vector<xnnpack::Dims> sizes;         // of all values
  bool ready = false;                       // reshaped and set up
  xnnpack::Profile profile;                 // where a tracer was there when this was loaded
  xnnpack::Taps taps;                       // where it asked for what is inside

  Handle() = default;
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    if (runtime == nullptr) return;
    const ForkLock lock(workspace->mutex);
    if (lock) xnn_delete_runtime(runtime);  // a child of fork() keeps it while it counts as running
  }
};

/// Whether the library can be used. Values inside of graphs are in memory of our choice.
bool initialize() {
  static const xnn_allocator allocator = {
      nullptr,
      [](void*, size_t size) { return malloc(size); },
      [](void*, void* old, size_t size) { return realloc(old, size); },
      [](void*, void* data) { free(data); },
      xnnpack::allocate,
      [](void*, void* data) { free(data); },
  };
  return xnn_initialize(&allocator) == xnn_status_success;
}

std::vector<size_t> shape_of(const Tensor& tensor) {
  if (tensor.dim() == 0) return {1};  // the library's scalars have one dimension
  return {tensor.sizes().begin(), tensor.sizes().end()};
}

class XnnpackBackend final : public BackendInterface {
 public:
  XnnpackBackend() {
    // No other thread holds it while the process forks, so the child can lock it.
    pthread_atfork([] { settings.lock(); }, [] { settings.unlock(); }, [] { settings.unlock(); });
  }

  bool is_available() const override { return initialize(); }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    void* memory = context.get_runtime_allocator()->allocate(sizeof(Handle), alignof(Handle));
    if (memory == nullptr) return Error::MemoryAllocationFailed;
    Handle* handle = new (memory) Handle;
    const Error error = start(context, *processed, handle);
    if (error != Error::Ok) {
      handle->~Handle();
      return error;
    }
    if (!handle->graph.needs_bytes) processed->Free();
    return static_cast<DelegateHandle*>(handle);
  }

  size_t num_inputs(DelegateHandle* pointer) const override {
    const xnnpack::Graph& graph = static_cast<const Handle*>(pointer)->graph;
    size_t first = graph.inputs.size();
    for (const External& output : graph.outputs) first = std::min<size_t>(first, output.id);
    return first;
  }

  Error execute(BackendExecutionContext& context, DelegateHandle* pointer,
                Span<Value*> arguments) const override {
    Handle& handle = *static_cast<Handle*>(pointer);
    TORCHETTE_CHECK(handle.threads == nullptr || handle.threads->runs_here(), InvalidState,
                    "a process was forked from the one that loaded this method, and XNNPACK's threads stayed "
                    "there: load it "
                    "in the process that runs it, or use one thread");
    const ForkLock lock(handle.workspace->mutex);
    TORCHETTE_CHECK(
        lock, InvalidState,
        "a process was forked from the one that loaded this method while a method ran on XNNPACK's "
        "memory that they share: load it in the process that runs it");
    const auto& inputs = handle.graph.inputs;
    const auto& outputs = handle.graph.outputs;
    TORCHETTE_CHECK(arguments.size() == inputs.size() + outputs.size(), InvalidArgument,
                    "XNNPACK is given %zu arguments, its graph has %zu", arguments.size(),
                    inputs.size() + outputs.size());
    bool reshape = !handle.ready, setup = reshape;
    handle.ready = false;
    for (size_t i = 0; i < inputs.size(); ++i) {
      TORCHETTE_TRY(check(*arguments[inputs[i].id], inputs[i]));
      const Tensor tensor = arguments[inputs[i].id]->to_tensor();
      std::vector<size_t> shape = shape_of(tensor);
      if (shape == handle.shapes[i]) continue;
      const xnn_status status =
          xnn_reshape_external_value(handle.runtime, inputs[i].id, shape.size(), shape.data());
      TORCHETTE_CHECK(status == xnn_status_success, InvalidArgument,
                      "XNNPACK refuses the shape of argument %u", inputs[i].id);
      handle.sizes[inputs[i].value] = shape;
      handle.shapes[i] = std::move(shape);
      reshape = true;
    }
    if (reshape) {
      TORCHETTE_TRY(xnnpack::find_sizes(handle.graph.steps, handle.graph.sizes, handle.sizes));
      if (is_empty(handle)) {  // a batch of 0, which not all of the library's operators take
        for (const External& output : outputs) {
          TORCHETTE_TRY(check(*arguments[output.id], output));
          TORCHETTE_TRY(resize(*arguments[output.id], output, handle.sizes[output.value]));
        }
        return Error::Ok;
      }
      const xnn_status status = xnn_reshape_runtime(handle.runtime);
      TORCHETTE_CHECK(status == xnn_status_success, InvalidArgument,
                      "XNNPACK cannot run with these shapes: status %d", static_cast<int>(status));
      setup = true;
    }
    for (const External& output : outputs) {
      TORCHETTE_TRY(check(*arguments[output.id], output));
      size_t rank = 0, dims[XNN_MAX_TENSOR_DIMS];
      const xnn_status status = xnn_get_external_value_shape(handle.runtime, output.id, &rank, dims);
      TORCHETTE_CHECK(status == xnn_status_success, InvalidArgument, "result %u of XNNPACK has no shape",
                      output.id);
      TORCHETTE_TRY(resize(*arguments[output.id], output, {dims, dims + rank}));
    }
    if (setup) TORCHETTE_TRY(handle.taps.make_room(handle.runtime));
    for (xnn_external_value& it : handle.pointers) {
      void* data = handle.taps.data(it.id);
      if (data == nullptr) data = arguments[it.id]->to_tensor().mutable_data_ptr();
      setup = setup || it.data != data;
      it.data = data;
    }
    if (setup) {
      const xnn_status status =
          xnn_setup_runtime_v2(handle.runtime, handle.pointers.size(), handle.pointers.data());
      TORCHETTE_CHECK(status == xnn_status_success, InvalidState, "XNNPACK cannot be set up: status %d",
                      static_cast<int>(status));
    }
    EventTracer* const tracer = context.event_tracer();
    const torchette_timestamp_t start = tracer != nullptr ? current_ticks() : 0;
    const xnn_status status = xnn_invoke_runtime(handle.runtime);
    TORCHETTE_CHECK(status == xnn_status_success, Internal, "XNNPACK failed: status %d",
                    static_cast<int>(status));
    if (tracer != nullptr) handle.profile.tell(handle.runtime, start, tracer);
    if (wants_taps(tracer)) handle.taps.tell(handle.sizes, arguments, tracer);
    handle.ready = true;
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { static_cast<Handle*>(handle)->~Handle(); }

  /// "num_threads": from 1 to the number of processors; until it is set, as many as
  /// torchette/runtime/threads.h says, and not more than the processors. "workspace_sharing_mode": 0, each
  /// delegate has memory of its own; 1, those of a program share it; 2, all. "weight_cache_enabled": whether
  /// weights that are packed alike are held once in a program. All of them are for what is loaded afterwards.
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    const std::lock_guard<std::mutex> lock(settings);
    for (const BackendOption& option : options) {
      const int* number = std::get_if<int>(&option.value);
      if (strcmp(option.key, kThreads) == 0) {
        TORCHETTE_CHECK(number != nullptr, InvalidArgument, "XNNPACK's %s is a number", kThreads);
        TORCHETTE_CHECK(*number >= 1 && *number <= processors(), InvalidArgument,
                        "XNNPACK cannot have %d threads: 1 to %d, the processors of this machine", *number,
                        processors());
        Threads threads;
        TORCHETTE_TRY(get_threads(*number, &threads));
        set_threads_ = *number;
      } else if (strcmp(option.key, kSharing) == 0) {
        TORCHETTE_CHECK(number != nullptr && *number >= 0 && *number <= 2, InvalidArgument,
                        "XNNPACK's %s is 0 (none), 1 (a program's) or 2 (all)", kSharing);
        sharing_ = *number;
      } else if (strcmp(option.key, kCache) == 0) {
        const bool* on = std::get_if<bool>(&option.value);
        TORCHETTE_CHECK(on != nullptr, InvalidArgument, "XNNPACK's %s is true or false", kCache);
        caches_ = *on;
      } else {
        TORCHETTE_LOG(Error, "XNNPACK has no option %.63s; it has %s, %s, %s", option.key, kThreads, kSharing,
                      kCache);
        return Error::InvalidArgument;
      }
    }
    return Error::Ok;
  }

  /// Those, and "library": that it computes, not our kernels in its place.
  Error get_option(BackendOptionContext&, Span<BackendOption>& options) override {
    const std::lock_guard<std::mutex> lock(settings);
    for (BackendOption& option : options) {
      if (strcmp(option.key, kThreads) == 0) {
        option.value = wanted_threads();
      } else if (strcmp(option.key, kSharing) == 0) {
        option.value = sharing_;
      } else if (strcmp(option.key, kCache) == 0) {
        option.value = caches_;
      } else if (strcmp(option.key, kLibrary) == 0) {
        option.value = true;
      } else {
        TORCHETTE_LOG(Error, "XNNPACK has no option %.63s; it has %s, %s, %s", option.key, kThreads, kSharing,
                      kCache);
        return Error::InvalidArgument;
      }
    }
    return Error::Ok;
  }

 private:
  static constexpr const char* kThreads = "num_threads";
  static constexpr const char* kSharing = "workspace_sharing_mode";
  static constexpr const char* kCache = "weight_cache_enabled";
  static constexpr const char* kLibrary = "library";

  Error start(BackendInitContext& context, const FreeableBuffer& processed, Handle* handle) const {
    TORCHETTE_CHECK(initialize(), NotSupported, "XNNPACK does not know this processor, or has no memory");
    const void* program = context.get_named_data_source();
    TORCHETTE_TRY(xnnpack::read_graph(processed, context.get_named_data_map(),
                                      wants_taps(context.event_tracer()), &handle->graph));
    {
      const std::lock_guard<std::mutex> lock(settings);
      TORCHETTE_TRY(get_threads(wanted_threads(), &handle->threads));
      handle->weights = weights_.get(caches_ ? program : nullptr);
      const void* const sharers[] = {nullptr, program, &workspaces_};
      handle->workspace = workspaces_.get(sharers[sharing_]);
    }
    const ForkLock lock(handle->workspace->mutex);  // of this process, so it locks; as the next one
    TORCHETTE_CHECK(handle->workspace->it != nullptr ||
                        xnn_create_workspace(&handle->workspace->it) == xnn_status_success,
                    MemoryAllocationFailed, "XNNPACK has no memory");
    xnn_status status = xnn_status_uninitialized;
    const bool traced = context.event_tracer() != nullptr;
    {
      const ForkLock packing(handle->weights->mutex);
      xnnpack::PackedWeights& packed = handle->weights->packed;
      const xnn_weights_cache_t cache =
          packed.open(handle->graph.identities, handle->graph.constant_bytes,
                      [handle](const void* data) { handle->graph.packed(data); });
      const pthreadpool_t threads = handle->threads == nullptr ? nullptr : handle->threads->it;
      packed.pack(handle->graph.matrices, [&] {
        status = xnn_create_runtime_v4(handle->graph.subgraph, cache, handle->workspace->it, threads,
                                       traced ? XNN_FLAG_BASIC_PROFILING : 0, &handle->runtime);
      });
      packed.close();
    }
    TORCHETTE_CHECK(status == xnn_status_success, DelegateInvalidCompatibility,
                    "XNNPACK refuses the graph: status %d", static_cast<int>(status));
    for (const auto* list : {&handle->graph.inputs, &handle->graph.outputs})
      for (const External& it : *list) handle->pointers.push_back({it.id, nullptr});
    handle->taps.learn(handle->graph, static_cast<uint32_t>(handle->pointers.size()), &handle->pointers);
    handle->shapes.resize(handle->graph.inputs.size());
    handle->sizes = handle->graph.sizes;
    if (traced) handle->profile.learn(handle->runtime, handle->graph.origins);
    handle->graph.shrink();
    return Error::Ok;
  }

  static bool wants_taps(const EventTracer* tracer) {
    return tracer != nullptr &&
           tracer->event_tracer_debug_level() >= EventTracerDebugLogLevel::kIntermediateOutputs;
  }

  static Error check(const Value& value, const External& expected) {
    TORCHETTE_CHECK(value.is_tensor(), InvalidArgument, "argument %u of XNNPACK is no tensor", expected.id);
    const Tensor tensor = value.to_tensor();
    TORCHETTE_CHECK(tensor.scalar_type() == expected.type && is_contiguous(tensor) &&
                        (tensor.const_data_ptr() != nullptr || tensor.numel() == 0),
                    InvalidArgument, "argument %u of XNNPACK has another type or layout than its graph",
                    expected.id);
    TORCHETTE_CHECK(shape_of(tensor).size() == expected.dims.size(), InvalidArgument,
                    "argument %u of XNNPACK has %td dimensions, its graph has %zu", expected.id, tensor.dim(),
                    expected.dims.size());
    return Error::Ok;
  }

  /// Whether all results of these sizes are without elements.
  static bool is_empty(const Handle& handle) {
    return std::all_of(handle.graph.outputs.begin(), handle.graph.outputs.end(), [&](const External& it) {
      const xnnpack::Dims& dims = handle.sizes[it.value];
      return std::find(dims.begin(), dims.end(), 0u) != dims.end();
    });
  }

  static Error resize(const Value& value, const External& output, const xnnpack::Dims& dims) {
    const Tensor tensor = value.to_tensor();
    TORCHETTE_CHECK(dims.size() == shape_of(tensor).size(), InvalidArgument,
                    "result %u of XNNPACK has %zu dimensions", output.id, dims.size());
    if (tensor.dim() == 0) return Error::Ok;
    SizesType sizes[XNN_MAX_TENSOR_DIMS];
    for (size_t d = 0; d < dims.size(); ++d) {
      TORCHETTE_CHECK(dims[d] <= INT32_MAX, InvalidArgument, "result %u of XNNPACK is too large", output.id);
      sizes[d] = static_cast<SizesType>(dims[d]);
    }
    return resize_tensor(tensor, {sizes, dims.size()});
  }

  static int processors() { return static_cast<int>(std::max(1u, std::thread::hardware_concurrency())); }

  /// What a runtime that is made now uses.
  int wanted_threads() const {
    if (set_threads_ != 0) return set_threads_;
    return static_cast<int>(std::min<size_t>(num_threads(), static_cast<size_t>(processors())));
  }

  /// Runtimes share threads where they use as many; null for one.
  Error get_threads(int count, Threads* out) const {
    out->reset();
    if (count == 1) return Error::Ok;
    *out = threads_[count].lock();
    if (*out == nullptr || !(*out)->runs_here()) {
      *out = std::make_shared<ThreadPool>(count);
      TORCHETTE_CHECK((*out)->it != nullptr, MemoryAllocationFailed, "XNNPACK cannot start %d threads",
                      count);
      threads_[count] = *out;
    }
    return Error::Ok;
  }

  static inline std::mutex settings;  // over all that follows
  mutable Pool<Weights> weights_;
  mutable Pool<Workspace> workspaces_;
  mutable std::map<int, std::weak_ptr<ThreadPool>> threads_;  // by how many
  int set_threads_ = 0;                                       // by the option; 0: by nobody
  int sharing_ = 1;
  bool caches_ = true;
};

XnnpackBackend backend;

}  // namespace

Backend xnnpack_backend{"XnnpackBackend", &backend};

}  // namespace torchette
