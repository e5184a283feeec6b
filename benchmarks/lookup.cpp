// SPDX-License-Identifier: BSD-3-Clause
// Looks up the kernels of operators and prints the microseconds for all of them, the minimum of many rounds.
// Usage: lookup < names, one per line; the part after the last dot is the overload.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "torchette/runtime/kernel_registry.h"

using namespace torchette;

int main() {
  std::vector<std::pair<std::string, std::string>> names;
  for (std::string line; std::getline(std::cin, line);) {
    const size_t dot = line.rfind('.');
    names.emplace_back(line.substr(0, dot), dot == std::string::npos ? "" : line.substr(dot + 1));
  }
  double best = 1e9;
  size_t found = 0;
  for (int round = 0; round < 200; ++round) {
    found = 0;
    const auto start = std::chrono::steady_clock::now();
    for (const auto& [name, overload] : names)
      found += find_kernel({name.data(), name.size()}, {overload.data(), overload.size()}) != nullptr;
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - start;
    best = std::min(best, took.count());
  }
  std::printf("%zu of %zu found in %.1f us\n", found, names.size(), best);
  return found == names.size() ? 0 : 1;
}
