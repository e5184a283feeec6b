// SPDX-License-Identifier: BSD-3-Clause
// BundledProgram: a .bpte file, which contains a program, inputs and the outputs that eager mode computes for
// them. load() checks the file, which is untrusted. Nothing is copied or allocated.
#pragma once

#include "torchette/runtime/flat.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// The result of comparing an output of a method with the expected output.
struct OutputComparison {
  bool same_kind;     // both are scalars, or tensors of the same dtype and shape
  size_t elements;    // number of compared elements
  size_t mismatches;  // number of elements beyond the tolerance
  double difference;  // the largest difference; NaN if only one of two elements is NaN
  bool matches() const { return same_kind && mismatches == 0; }
};

class BundledProgram {
 public:
  static bool is_bundled(const void* data, size_t size);
  /// Checks the file, in time linear in its size. `data` must be aligned to 32 bytes and outlive the object.
  /// Errors: InvalidProgram (not a bundled program, or damaged), InvalidArgument (misaligned).
  static Result<BundledProgram> load(const void* data, size_t size);

  /// Returns the embedded .pte file. Program::load() checks it.
  Span<const uint8_t> program() const;
  /// Returns the number of cases of a method; 0 if it has none.
  size_t num_cases(const char* method_name) const;
  /// Sets the inputs of a method to those of a case. Errors: InvalidArgument (the case does not exist or has
  /// another number of inputs), NotSupported (the method writes to an input in place), those of
  /// Method::set_input().
  Error load_bundled_input(Method& method, size_t case_index) const;
  size_t num_expected(const char* method_name, size_t case_index) const;
  /// Compares output `index` of an executed method with the expected output. Elements match if |output -
  /// expected| <= atol + rtol * |expected|, if both are the same infinity, or if both are NaN. Error:
  /// InvalidArgument (the case or the output does not exist).
  Result<OutputComparison> compare(const Method& method, size_t case_index, size_t index, double rtol,
                                   double atol) const;
  /// Compares all outputs of a case. Errors: InvalidArgument, InvalidState (an output differs; the log has
  /// the details).
  Error verify_method_outputs(const Method& method, size_t case_index, double rtol = 1e-5,
                              double atol = 1e-8) const;

 private:
  BundledProgram(const void* data, size_t size) : data_(data), size_(size) {}

  flat::Reader reader() const { return {data_, size_}; }
  Error verify() const;
  /// Returns the record of a case, or an absent table if the case does not exist.
  flat::Table find(flat::Reader& reader, const char* method_name, size_t case_index) const;

  const void* data_;
  size_t size_;
};

}  // namespace torchette::extension
