// SPDX-License-Identifier: BSD-3-Clause
// Runs all C++ tests of the core. Argument: the file written by make_program.py.
#include "check.h"

int main(int argc, char** argv) {
  memory_tests();
  tensor_tests();
  flat_tests();
  platform_tests();
  registry_tests();
  if (argc > 1) {
    program_tests(argv[1]);
    tracer_tests(argv[1]);
  }
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
