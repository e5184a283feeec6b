// SPDX-License-Identifier: BSD-3-Clause
// The signature of a method for Python: copies, which outlive the program.
#pragma once

#include <nanobind/nanobind.h>

#include "torchette/runtime/method_meta.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// A TensorInfo.
struct TensorSignature {
  nb::tuple sizes, dim_order;
  int dtype;
  bool is_dynamic, is_memory_planned;
  size_t nbytes;
  nb::str name;
  nb::tuple ranges;  // the minimum and maximum size of each dimension; empty if unknown
};

/// An input or output. `tensor` is None if it is not a tensor.
struct PortSignature {
  int tag;
  nb::object tensor;
};

/// The contents of a MethodMeta.
struct MethodSignature {
  nb::str name;
  nb::list inputs, outputs;  // of PortSignature
  nb::list attributes;       // of TensorSignature
  nb::list planned_sizes, backend_names;
  size_t num_instructions;
  nb::str encoded_inputs, encoded_outputs;
};

/// Throws Fault if the file is damaged.
MethodSignature signature_of(const MethodMeta& meta);

}  // namespace torchette::pybindings
