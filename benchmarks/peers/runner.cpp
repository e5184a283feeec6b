// SPDX-License-Identifier: BSD-3-Clause
// In: a .pte file, a number of threads, a folder with inputs and one for results. Out: the answers of
// worker.py: seconds of the load and of the first call, memory, and for each line of seconds the times of
// calls. Both sides are built from this source, with ExecuTorch's library and, through the compatibility
// headers, with Torchette.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <fstream>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#ifdef TORCHETTE_PEERS
#include "torchette/runtime/threads.h"
static void use_threads(int count) { (void)torchette::set_num_threads(count); }
#else
namespace executorch::extension::threadpool {  // the package contains the library, but not this header
class ThreadPool {
 public:
  bool _unsafe_reset_threadpool(uint32_t count);
};
ThreadPool* get_threadpool();
}  // namespace executorch::extension::threadpool
static void use_threads(int count) {
  executorch::extension::threadpool::get_threadpool()->_unsafe_reset_threadpool(count);
}
#endif

namespace {

using executorch::extension::Module;
using executorch::runtime::EValue;
using Clock = std::chrono::steady_clock;

double since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

double cpu_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

long status_bytes(const char* key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);)
    if (line.rfind(key, 0) == 0) return 1024 * std::atol(line.c_str() + std::strlen(key));
  return 0;
}

[[noreturn]] void fail(const char* what, int error) {
  std::fprintf(stderr, "%s failed with error %d\n", what, error);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  const std::string path = argv[1], folder = argv[3], results = argv[4];
  std::vector<std::vector<char>> bytes;
  std::vector<executorch::extension::TensorPtr> tensors;
  std::vector<EValue> inputs;
  std::ifstream list(folder + "/inputs");
  for (std::string line; std::getline(list, line);) {
    std::istringstream words(line);
    std::string dtype;
    words >> dtype;
    const std::vector<executorch::aten::SizesType> sizes{std::istream_iterator<int>(words), {}};
    std::ifstream file(folder + "/in" + std::to_string(bytes.size()), std::ios::binary);
    bytes.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
    tensors.push_back(executorch::extension::make_tensor_ptr(
        sizes, bytes.back().data(),
        dtype == "int64" ? executorch::aten::ScalarType::Long : executorch::aten::ScalarType::Float));
    inputs.emplace_back(tensors.back());
  }
  use_threads(std::atoi(argv[2]));

  const long before = status_bytes("VmRSS:");
  auto begin = Clock::now();
  Module module(path, Module::LoadMode::Mmap);
  if (const auto error = module.load_forward(); error != executorch::runtime::Error::Ok)
    fail("loading", static_cast<int>(error));
  const double load = since(begin);
  begin = Clock::now();
  const auto outputs = module.forward(inputs);
  if (!outputs.ok()) fail("the first call", static_cast<int>(outputs.error()));
  const double first = since(begin);
  const long memory = status_bytes("VmHWM:") - before;
  for (size_t i = 0; i < outputs->size(); ++i) {
    const auto tensor = (*outputs)[i].toTensor();
    std::ofstream(results + "/out" + std::to_string(i), std::ios::binary)
        .write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<long>(tensor.nbytes()));
  }
  std::printf("{\"load\": %.9f, \"first\": %.9f, \"memory\": %ld}\n", load, first, memory);
  std::fflush(stdout);

  std::vector<double> seconds;
  for (std::string line; std::getline(std::cin, line);) {
    seconds.clear();
    const double cpu = cpu_seconds(), patience = std::atof(line.c_str());
    const auto start = Clock::now();
    while (seconds.size() < 3 || since(start) < patience) {
      begin = Clock::now();
      if (!module.forward(inputs).ok()) return 1;
      seconds.push_back(since(begin));
    }
    const double each = (cpu_seconds() - cpu) / static_cast<double>(seconds.size());
    std::sort(seconds.begin(), seconds.end());
    std::printf("{\"median\": %.9f, \"least\": %.9f, \"cpu\": %.9f, \"calls\": %zu}\n",
                seconds[seconds.size() / 2], seconds[0], each, seconds.size());
    std::fflush(stdout);
  }
  return 0;
}
