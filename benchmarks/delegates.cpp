// SPDX-License-Identifier: BSD-3-Clause
// In: a program of one delegate of NullBackend and one of two that are independent. Out: milliseconds of an
// execution, the minimum of ten. A delegate is a device that works for 20 ms. The columns are: one delegate;
// both without an executor; both on two threads; both pending at the same time, started by one thread.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/module.h"
#include "torchette/extension/parallel_method.h"
#include "torchette/extension/thread_pool.h"
#include "torchette/runtime/backend.h"

using namespace torchette;
using namespace torchette::extension;
using Clock = std::chrono::steady_clock;

namespace {

constexpr auto kWork = std::chrono::milliseconds(20);

class Device final : public BackendInterface {
 public:
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer*,
                               Span<const CompileSpec>) const override {
    return context.get_runtime_allocator()->allocate(8);
  }
  size_t num_inputs(DelegateHandle*) const override { return 1; }
  Error execute(BackendExecutionContext&, DelegateHandle*, Span<Value*> arguments) const override {
    std::this_thread::sleep_for(kWork);
    square(arguments);
    return Error::Ok;
  }
  Error execute_async(BackendExecutionContext&, DelegateHandle*, Span<Value*> arguments,
                      void (*done)(void*, Error), void* argument) const override {
    if (!works_by_itself) return Error::NotSupported;
    std::thread([=] {
      std::this_thread::sleep_for(kWork);
      square(arguments);
      done(argument, Error::Ok);
    }).detach();
    return Error::Ok;
  }
  bool works_by_itself = false;

 private:
  static void square(Span<Value*> arguments) {
    const Tensor x = arguments[0]->to_tensor(), out = arguments[arguments.size() - 1]->to_tensor();
    for (ptrdiff_t i = 0; i < x.numel(); ++i)
      out.mutable_data_ptr<float>()[i] = x.const_data_ptr<float>()[i] * x.const_data_ptr<float>()[i];
  }
};
Device device;
Backend device_backend{"NullBackend", &device};

template <typename F>
double milliseconds(F f) {
  double best = 1e9;
  for (int round = 0; round < 10; ++round) {
    const auto start = Clock::now();
    if (f() != Error::Ok) std::exit(1);
    best = std::min(best, std::chrono::duration<double, std::milli>(Clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3 || register_backend(device_backend) != Error::Ok) return 2;
  Module one_branch(argv[1]), two_branches(argv[2]);
  const auto one = one_branch.method("forward"), two = two_branches.method("forward");
  if (!one.ok() || !two.ok()) return 1;
  std::vector<float> numbers(16, 2.0f);
  for (Method* method : {*one, *two})
    for (size_t i = 0; i < method->inputs_size(); ++i) {
      TensorImpl input = *method->get_input(i).to_tensor().unsafe_impl();
      input.data = numbers.data();
      if (method->set_input(Value(Tensor(&input)), i) != Error::Ok) return 1;
    }
  MallocMemoryAllocator scratch[2];
  ParallelMethod parallel(**two, {&scratch[0], &scratch[1]});
  threadpool::ThreadPool pool(2), single(1);
  std::printf("%.2f", milliseconds([&] { return (*one)->execute(); }));
  std::printf(" %.2f", milliseconds([&] { return parallel.execute(); }));
  std::printf(" %.2f", milliseconds([&] { return parallel.execute(&pool); }));
  device.works_by_itself = true;
  const auto pending = [&] {
    const Error started = parallel.execute_async(single);
    return started != Error::Ok ? started : parallel.wait();
  };
  std::printf(" %.2f\n", milliseconds(pending));
  return 0;
}
