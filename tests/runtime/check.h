// SPDX-License-Identifier: BSD-3-Clause
// The test framework: CHECK(condition) counts, and prints a condition that is false. main() calls the groups.
#pragma once

#include <cstdio>

inline int failures = 0;
inline int checks = 0;

#define CHECK(condition)                                                   \
  do {                                                                     \
    ++checks;                                                              \
    if (!(condition)) {                                                    \
      ++failures;                                                          \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition); \
    }                                                                      \
  } while (0)

void memory_tests();
void tensor_tests();
void flat_tests();
void platform_tests();
void registry_tests();
void program_tests(const char* path);
void tracer_tests(const char* path);
