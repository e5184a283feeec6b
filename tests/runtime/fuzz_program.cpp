// SPDX-License-Identifier: BSD-3-Clause
// The coverage-guided fuzzer of loading and executing: libFuzzer mutates programs for as long as they reach
// new code.
#include <cstdlib>
#include <cstring>

#include "try_program.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  prepare();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // aligned as a file's bytes are, and ending where they end
  auto* bytes = static_cast<uint8_t*>(std::malloc(size));
  if (size != 0) std::memcpy(bytes, data, size);
  (void)try_program(bytes, size);
  std::free(bytes);
  return 0;
}
