// SPDX-License-Identifier: BSD-3-Clause
// Calls methods of a Module, each of which is loaded at its first call, and prints the first element of each
// result. Arguments: FILE share|separate METHOD=VALUE ...; METHOD without a value resets the method.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "torchette/extension/module.h"

using namespace torchette;
using namespace torchette::extension;

int main(int count, char** arguments) {
  const bool share = strcmp(arguments[2], "share") == 0;
  Module module(arguments[1], Module::LoadMode::File, nullptr, nullptr, nullptr, share);
  for (int i = 3; i < count; ++i) {
    const std::string call = arguments[i];
    const size_t end = call.find('=');
    const std::string method = call.substr(0, end);
    if (end == std::string::npos) {
      if (module.reset(method) != Error::Ok) return 1;
      continue;
    }
    const float number = strtof(call.c_str() + end + 1, nullptr);
    const TensorPtr x = make_tensor_ptr({4}, {number, number, number, number});
    const Result<Value> result = module.get(method, Value(*x));
    if (!result.ok()) return 1;
    printf("%g ", static_cast<double>(result->toTensor().const_data_ptr<float>()[0]));
  }
  return 0;
}
