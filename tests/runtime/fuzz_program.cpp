// SPDX-License-Identifier: BSD-3-Clause
// Coverage-guided fuzzing of loading and executing: libFuzzer mutates programs, data files and bundled
// programs to reach new code.
#include <cstdlib>
#include <cstring>

#include "try_program.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  prepare();
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // Aligned like the bytes of a file, in a block of exactly this size.
  void* memory = nullptr;
  if (posix_memalign(&memory, 64, size) != 0) return 0;
  auto* bytes = static_cast<uint8_t*>(memory);
  if (size != 0) std::memcpy(bytes, data, size);
  if (size >= 8 && std::memcmp(bytes + 4, "BP", 2) == 0) {
    (void)try_bundle(bytes, size);
  } else if (size >= 8 && std::memcmp(bytes + 4, "FT", 2) == 0) {
    (void)try_data_file(bytes, size, {});
  } else {
    (void)try_program(bytes, size);
  }
  std::free(bytes);
  return 0;
}
