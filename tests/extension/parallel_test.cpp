// SPDX-License-Identifier: BSD-3-Clause
// Runs chains in parallel: independent chains overlap, dependent chains wait, and the results equal those of
// one thread bit for bit. Arguments: a program with two delegates of NullBackend, x * x and y * y; and, if
// the kernels are linked, a program with chains of kernels, one input and one output.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tests/runtime/check.h"
#include "torchette/extension/file_data_loader.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/parallel_method.h"
#include "torchette/extension/thread_pool.h"
#include "torchette/runtime/backend.h"

using namespace torchette;
using namespace torchette::extension;
using torchette::extension::threadpool::ThreadPool;

namespace {

/// Computes squares. Each call waits until `num_required` calls are running at the same time.
class OverlapBackend final : public BackendInterface {
 public:
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer*,
                               Span<const CompileSpec>) const override {
    return context.get_runtime_allocator()->allocate(8);
  }
  size_t num_inputs(DelegateHandle*) const override { return 1; }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<Value*> arguments) const override {
    std::unique_lock<std::mutex> lock(mutex_);
    max_running = std::max(max_running, ++num_running_);
    arrived_.notify_all();
    arrived_.wait_for(lock, std::chrono::seconds(num_required > 1 ? 120 : 0),
                      [this] { return max_running >= num_required; });
    --num_running_;
    if (fails) return Error::Internal;
    lock.unlock();
    square(arguments);
    return Error::Ok;
  }

  /// Simulates a device: a separate thread ends each call when `num_required` calls have started.
  Error execute_async(BackendExecutionContext&, DelegateHandle*, Span<Value*> arguments,
                      void (*done)(void*, Error), void* argument) const override {
    if (device == Device::None) return Error::NotSupported;
    if (device == Device::AtOnce) {
      square(arguments);
      done(argument, Error::Ok);
      return Error::Ok;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    max_running = std::max(max_running, ++num_running_);
    arrived_.notify_all();
    devices.emplace_back([=] {
      std::unique_lock<std::mutex> device_lock(mutex_);
      arrived_.wait_for(device_lock, std::chrono::seconds(120),
                        [this] { return max_running >= num_required; });
      --num_running_;
      device_lock.unlock();
      if (!fails) square(arguments);
      done(argument, fails ? Error::Internal : Error::Ok);
    });
    return Error::Ok;
  }

  static void square(Span<Value*> arguments) {
    const Tensor x = arguments[0]->to_tensor(), out = arguments[arguments.size() - 1]->to_tensor();
    for (ptrdiff_t i = 0; i < x.numel(); ++i)
      out.mutable_data_ptr<float>()[i] = x.const_data_ptr<float>()[i] * x.const_data_ptr<float>()[i];
  }

  enum class Device { None, AtOnce, Threads } device = Device::None;
  mutable std::vector<std::thread> devices;
  mutable int max_running = 0;
  int num_required = 1;
  bool fails = false;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable arrived_;
  mutable int num_running_ = 0;
};

OverlapBackend overlap_backend;
Backend backend_entry{"NullBackend", &overlap_backend};

/// Runs tasks on the thread that submits them.
class Inline final : public Executor {
 public:
  void submit(void (*task)(void*), void* argument) override { task(argument); }
};

/// A loaded method with its memory, inputs with increasing values, and separate output buffers.
struct Loaded {
  explicit Loaded(const char* path)
      : loader(FileDataLoader::from(path)), own_program(Program::load(&**loader)) {
    load(**own_program);
  }
  /// Has no `CHECK`, which is not thread-safe. The results show whether the load succeeded.
  explicit Loaded(const Program& program) { load(program); }

  void load(const Program& program) {
    const Result<MethodMeta> meta = program.method_meta("forward");
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); ++i)
      buffers.emplace_back(static_cast<size_t>(*meta->memory_planned_buffer_size(i)) + 16);
    for (auto& buffer : buffers) spans.push_back({buffer.data(), buffer.size()});
    planned.emplace(Span<Span<uint8_t>>{spans.data(), spans.size()});
    manager.emplace(&method_memory, &*planned, &temp);
    method.emplace(program.load_method("forward", &*manager));
    for (size_t i = 0; i < (*method)->inputs_size(); ++i) {
      TensorImpl impl = *(*method)->get_input(i).to_tensor().unsafe_impl();
      auto& data = inputs.emplace_back(impl.capacity);
      for (size_t k = 0; k < data.size(); ++k) data[k] = static_cast<float>(k % 97) * 0.01f - 0.3f;
      impl.data = data.data();
      (void)(*method)->set_input(Value(Tensor(&impl)), i);
    }
    for (size_t i = 0; i < (*method)->outputs_size(); ++i) {
      const Tensor out = (*method)->get_output(i).to_tensor();
      outputs.emplace_back(out.unsafe_impl()->capacity);
      lend(i, i);
    }
  }
  void lend(size_t output, size_t buffer) {
    if (!(*method)->output_needs_memory(output)) return;
    (void)(*method)->set_output_data_ptr(outputs[buffer].data(), outputs[buffer].size() * sizeof(float),
                                         output);
  }
  std::vector<float> result(size_t index) {
    const Tensor out = (*method)->get_output(index).to_tensor();
    return {out.const_data_ptr<float>(), out.const_data_ptr<float>() + out.numel()};
  }
  void clear_outputs() {
    for (auto& output : outputs) std::fill(output.begin(), output.end(), -1.0f);
  }

  std::optional<Result<FileDataLoader>> loader;
  std::optional<Result<Program>> own_program;
  std::vector<std::vector<uint8_t>> buffers;
  std::vector<Span<uint8_t>> spans;
  std::optional<HierarchicalAllocator> planned;
  MallocMemoryAllocator method_memory, temp;
  std::optional<MemoryManager> manager;
  std::optional<Result<Method>> method;
  std::deque<std::vector<float>> inputs, outputs;
};

void delegates_overlap(const char* path) {
  Loaded loaded(path);
  Method& method = **loaded.method;
  MallocMemoryAllocator first, second;
  ParallelMethod parallel(method, {&first, &second});
  CHECK(parallel.is_parallel() && parallel.num_chains() == 2 && !parallel.waits_for(1, 0));

  CHECK(method.execute() == Error::Ok);
  const std::vector<float> x = loaded.result(0), y = loaded.result(1);
  CHECK(x.size() > 1 && x[1] == loaded.inputs[0][1] * loaded.inputs[0][1]);
  const auto same = [&] { return loaded.result(0) == x && loaded.result(1) == y; };

  Inline on_this_thread;
  loaded.clear_outputs();
  CHECK(parallel.execute(&on_this_thread) == Error::Ok && same() && overlap_backend.max_running == 1);
  loaded.clear_outputs();
  CHECK(parallel.execute() == Error::Ok && same() && overlap_backend.max_running == 1);

  ThreadPool threads(2);
  overlap_backend.num_required = 2;
  loaded.clear_outputs();
  CHECK(parallel.execute(&threads) == Error::Ok && same() && overlap_backend.max_running == 2);

  // Chains run in sequence if there is scratch memory for only one, or if outputs share the caller's memory.
  overlap_backend.num_required = 1;
  overlap_backend.max_running = 0;
  ParallelMethod narrow(method, {&first});
  CHECK(narrow.execute(&threads) == Error::Ok && same() && overlap_backend.max_running == 1);
  if (method.output_needs_memory(1)) {
    loaded.lend(1, 0);
    CHECK(parallel.execute(&threads) == Error::Ok && overlap_backend.max_running == 1 &&
          loaded.result(1) == y);
    loaded.lend(1, 1);
  }

  // The callback is called once at the end, and only one execution runs at a time.
  overlap_backend.num_required = 2;
  overlap_backend.max_running = 0;
  struct End {
    std::atomic<int> calls{0};
    Error error = Error::Internal;
  } end;
  const auto ended = [](void* context, Error error) {
    static_cast<End*>(context)->error = error;
    ++static_cast<End*>(context)->calls;
  };
  CHECK(parallel.execute_async(threads, ended, &end) == Error::Ok);
  CHECK(parallel.done() || parallel.execute_async(threads) == Error::InvalidState || end.calls == 1);
  CHECK(parallel.wait() == Error::Ok);
  while (end.calls == 0) std::this_thread::yield();
  CHECK(parallel.done() && end.error == Error::Ok && end.calls == 1 && same());

  // The execution returns the error of a backend or of a cancellation, and the next execution succeeds.
  overlap_backend.num_required = 1;
  overlap_backend.fails = true;
  CHECK(parallel.execute(&threads) == Error::Internal);
  overlap_backend.fails = false;
  method.cancel();
  CHECK(parallel.execute(&threads) == Error::OutOfResources);
  loaded.clear_outputs();
  CHECK(parallel.execute(&threads) == Error::Ok && same());
  for (int round = 0; round < 200; ++round) {
    ParallelMethod brief(method, {&first, &second});
    CHECK(brief.execute_async(threads) == Error::Ok);  // destroyed during the execution or after it
  }
  CHECK(same());
}

/// Two asynchronous delegate calls are pending at the same time, with one thread that starts them.
void delegates_are_pending(const char* path) {
  Loaded loaded(path);
  Method& method = **loaded.method;
  MallocMemoryAllocator first, second;
  ParallelMethod parallel(method, {&first, &second});
  CHECK(method.execute() == Error::Ok);
  const std::vector<float> x = loaded.result(0), y = loaded.result(1);
  const auto same = [&] { return loaded.result(0) == x && loaded.result(1) == y; };

  ThreadPool one(1);
  overlap_backend.device = OverlapBackend::Device::Threads;
  overlap_backend.num_required = 2;
  overlap_backend.max_running = 0;
  loaded.clear_outputs();
  CHECK(parallel.execute_async(one) == Error::Ok && parallel.wait() == Error::Ok);
  CHECK(overlap_backend.max_running == 2 && same());
  overlap_backend.max_running = 0;
  loaded.clear_outputs();
  CHECK(parallel.execute(&one) == Error::Ok && overlap_backend.max_running == 2 && same());

  overlap_backend.fails = true;
  CHECK(parallel.execute(&one) == Error::Internal);
  overlap_backend.fails = false;
  for (std::thread& device : overlap_backend.devices) device.join();

  // The backend calls `done` before execute_async() returns.
  overlap_backend.device = OverlapBackend::Device::AtOnce;
  loaded.clear_outputs();
  Inline on_this_thread;
  CHECK(parallel.execute(&on_this_thread) == Error::Ok && same());
  overlap_backend.device = OverlapBackend::Device::None;
  overlap_backend.num_required = 1;
}

/// Several threads share a program, its weights and its backends. Each thread has a separate method.
void many_methods_of_one_program(const char* path) {
  Loaded shared(path);
  CHECK((*shared.method)->execute() == Error::Ok);
  const std::vector<float> expected = shared.result(0);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      Loaded thread_method(**shared.own_program);
      bool all = true;
      for (int round = 0; round < 20; ++round) {
        thread_method.clear_outputs();
        all = all && (*thread_method.method)->execute() == Error::Ok && thread_method.result(0) == expected;
      }
      right += all ? 1 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == 8);
}

void pools_run_loops() {
  ThreadPool pool(3);
  CHECK(pool.get_thread_count() == 3);
  std::vector<int> seen(1000);
  pool.run([&](size_t i) { pool.run([&](size_t k) { ++seen[i * 10 + k]; }, 10); }, 100);
  CHECK(std::count(seen.begin(), seen.end(), 1) == 1000);
  pool.run([](size_t) { CHECK(false); }, 0);
  std::atomic<int64_t> sum{0};
  std::atomic<int> parts{0};
  CHECK(parallel_for(-5, 1001, 100, [&](int64_t first, int64_t last) {
    ++parts;
    for (int64_t i = first; i < last; ++i) sum += i;
  }));
  CHECK(sum == 1000 * 1001 / 2 - 15 && parts >= 1 && parts <= 11);
  CHECK(!parallel_for(2, 1, 1, [](int64_t, int64_t) {}) && !parallel_for(0, 1, 0, [](int64_t, int64_t) {}));
  CHECK(parallel_for(3, 3, 1, [](int64_t, int64_t) { CHECK(false); }));
}

/// A task has the context of the thread that submitted it, and so have the tasks that it submits.
void tasks_have_the_context_of_their_submitter() {
  using namespace torchette::extension::threadpool;
  ThreadPool pool(3);
  int outer = 0, inner = 0;
  const auto count = [&](void* context, int* matches) {
    const TaskContextScope scope(context);
    std::atomic<int> found{0};
    pool.run([&](size_t) { pool.run([&](size_t) { found += task_context() == context ? 1 : 0; }, 8); }, 8);
    *matches = found;
  };
  CHECK(task_context() == nullptr);
  std::thread other([&] { count(&outer, &outer); });
  count(&inner, &inner);
  other.join();
  CHECK(outer == 64 && inner == 64 && task_context() == nullptr);
}

void kernels_are_bitwise_equal(const char* path) {
  Loaded loaded(path);
  Method& method = **loaded.method;
  MallocMemoryAllocator first, second;
  ParallelMethod parallel(method, {&first, &second});
  CHECK(parallel.is_parallel());
  CHECK(method.execute() == Error::Ok);
  const std::vector<float> expected = loaded.result(0);
  ThreadPool threads(2);
  for (int round = 0; round < 50; ++round) {
    loaded.clear_outputs();
    CHECK(parallel.execute(&threads) == Error::Ok && loaded.result(0) == expected);
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || register_backend(backend_entry) != Error::Ok) return 2;
  delegates_overlap(argv[1]);
  delegates_are_pending(argv[1]);
  many_methods_of_one_program(argv[1]);
  pools_run_loops();
  tasks_have_the_context_of_their_submitter();
  if (argc > 2) kernels_are_bitwise_equal(argv[2]);
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
