// SPDX-License-Identifier: BSD-3-Clause
// BundledProgram: a .bpte file, a program with inputs and the outputs that eager has computed of them. The
// file is hostile until load() has passed; nothing is copied and nothing asks the heap.
#pragma once

#include "torchette/runtime/flat.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// How one output of a method compares with the expected one.
struct OutputComparison {
  bool same_kind;     // a tensor of the same dtype and shape, or a number
  size_t elements;    // that were compared
  size_t mismatches;  // elements beyond the tolerance
  double difference;  // the largest one; not a number where one side is not
  bool fits() const { return same_kind && mismatches == 0; }
};

class BundledProgram {
 public:
  static bool is_bundled(const void* data, size_t size);
  /// Checks the whole file, in time linear in its size. The bytes start at a multiple of 32 and must
  /// stay. Errors: InvalidProgram (not a bundled program, or damaged), InvalidArgument (not aligned).
  static Result<BundledProgram> load(const void* data, size_t size);

  /// The .pte file inside, which Program::load() checks itself.
  Span<const uint8_t> program() const;
  /// The number of cases of a method; 0 if it has none.
  size_t num_cases(const char* method_name) const;
  /// Gives a method the inputs of a case. Errors: InvalidArgument (no such case), those of
  /// Method::set_input().
  Error load_bundled_input(Method& method, size_t case_index) const;
  size_t num_expected(const char* method_name, size_t case_index) const;
  /// Output `index` of an executed method, element by element: it fits where |output - expected| <= atol +
  /// rtol * |expected|, and where both are the same infinity or not a number. Error: InvalidArgument.
  Result<OutputComparison> compare(const Method& method, size_t case_index, size_t index, double rtol,
                                   double atol) const;
  /// All outputs that the case has. Errors: InvalidArgument, InvalidState (one does not fit; the log has it).
  Error verify_method_outputs(const Method& method, size_t case_index, double rtol = 1e-5,
                              double atol = 1e-8) const;

 private:
  BundledProgram(const void* data, size_t size) : data_(data), size_(size) {}

  flat::Reader reader() const { return {data_, size_}; }
  Error verify() const;
  /// The case's record; the absent table if there is none.
  flat::Table find(flat::Reader& reader, const char* method_name, size_t case_index) const;

  const void* data_;
  size_t size_;
};

}  // namespace torchette::extension
