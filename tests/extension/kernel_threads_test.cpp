// SPDX-License-Identifier: BSD-3-Clause
// Runs loops of kernels on the pool of the process: methods in parallel, chains in parallel with loops, and
// nested loops. Results equal those of one thread bit for bit. Arguments: programs with one float input and
// one output.
#include "torchette/extension/kernel_threads.h"

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/runtime/check.h"
#include "torchette/extension/module.h"
#include "torchette/extension/tensor_ptr.h"

using namespace torchette;
using namespace torchette::extension;

namespace {

/// Returns the bytes of the output of several executions on `threads` threads, or nothing if an execution
/// fails or the outputs differ.
std::vector<uint8_t> results(const char* path, size_t threads) {
  Module module(path);
  if (module.set_num_threads(threads) != Error::Ok || module.load_method("forward") != Error::Ok) return {};
  const Result<TensorInfo> info = module.method_meta("forward")->input_tensor_meta(0);
  std::vector<SizesType> sizes(info->sizes().begin(), info->sizes().end());
  std::vector<float> data(info->nbytes() / sizeof(float));
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<float>(i % 97) * 0.01f - 0.3f;
  const TensorPtr input = make_tensor_ptr(sizes, data.data());
  std::vector<uint8_t> first;
  for (int turn = 0; turn < 4; ++turn) {
    const Result<std::vector<Value>> outputs = module.forward(Value(Tensor(*input)));
    if (!outputs.ok()) return {};
    const Tensor out = (*outputs)[0].to_tensor();
    const auto* bytes = static_cast<const uint8_t*>(out.const_data_ptr());
    std::vector<uint8_t> now(bytes, bytes + out.nbytes());
    if (turn > 0 && now != first) return {};
    first = now;
  }
  return first;
}

/// Counts the calls of a loop's body, and those on other threads than the caller's.
struct LoopCounts {
  std::thread::id caller = std::this_thread::get_id();
  std::atomic<size_t> calls{0}, items{0}, on_other_threads{0};
};

void inner(const void* argument, size_t begin, size_t end, size_t worker) {
  auto* seen = static_cast<LoopCounts*>(const_cast<void*>(argument));
  ++seen->calls;
  seen->items += end - begin;
  seen->on_other_threads += std::this_thread::get_id() != seen->caller || worker != 0;
}

void nested_loop_runs_on_the_caller() {
  static std::atomic<size_t> outer{0}, wrong{0};
  kernel_threads(3)->run(
      24, 1,
      [](const void*, size_t begin, size_t end, size_t) {
        outer += end - begin;
        LoopCounts seen;
        kernel_threads(3)->run(100, 1, inner, &seen);
        wrong += seen.calls != 1 || seen.items != 100 || seen.on_other_threads != 0;
      },
      nullptr);
  CHECK(outer == 24);
  CHECK(wrong == 0);
}

void every_item_is_processed_once() {
  for (const size_t items : {size_t{1}, size_t{2}, size_t{7}, size_t{1000}})
    for (const size_t min_items : {size_t{1}, size_t{3}, size_t{5000}}) {
      std::vector<std::atomic<int>> seen(items);
      kernel_threads(3)->run(
          items, min_items,
          [](const void* argument, size_t begin, size_t end, size_t) {
            auto* counts = static_cast<std::atomic<int>*>(const_cast<void*>(argument));
            for (size_t i = begin; i < end; ++i) ++counts[i];
          },
          seen.data());
      size_t once = 0;
      for (const std::atomic<int>& count : seen) once += count == 1;
      CHECK(once == items);
    }
}

}  // namespace

int main(int argc, char** argv) {
  CHECK(kernel_threads(0) == nullptr);
  CHECK(kernel_threads(1) == nullptr);
  CHECK(kernel_threads(3)->count() == 3);
  CHECK(physical_cores() >= 1);
  every_item_is_processed_once();
  nested_loop_runs_on_the_caller();
  std::vector<std::vector<uint8_t>> alone;
  for (int i = 1; i < argc; ++i) {
    alone.push_back(results(argv[i], 1));
    CHECK(!alone.back().empty());
    CHECK(results(argv[i], 3) == alone.back());
  }
  // Run all programs in parallel, each on 2 and on 3 threads.
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int i = 1; i < argc; ++i)
    for (const size_t count : {size_t{2}, size_t{3}})
      threads.emplace_back(
          [&, i, count] { wrong += results(argv[i], count) != alone[static_cast<size_t>(i) - 1]; });
  for (std::thread& thread : threads) thread.join();
  CHECK(wrong == 0);
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
