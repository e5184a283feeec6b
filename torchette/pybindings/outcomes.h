// SPDX-License-Identifier: BSD-3-Clause
// Converts an output of a method to a Python object.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "torchette/pybindings/memory.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/error.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// A copy of one output, independent of the method.
struct Outcome {
  Value value;  // a scalar or None
  Tag tag = Tag::None;
  std::string text;
  Memory memory;
  ScalarType type = ScalarType::Undefined;
  std::vector<size_t> sizes;
  std::vector<int64_t> strides;
  bool is_list = false;
  std::vector<Outcome> items;
};

/// Copies an output with its elements. Uses `memory` if it has the tensor's data. Errors: those of lists.
Error detach(const Value& output, Memory memory, Outcome& outcome);
/// Moves `memory` to the outcome if it has the tensor's data; otherwise copies the data.
void detach(const Tensor& tensor, Memory memory, Outcome& outcome);

/// Whether the object is a tensor of torch. Does not import torch.
bool is_torch_tensor(nb::handle object);
/// A numpy array over the tensor's memory, which `owner` keeps alive.
nb::object array_over(const Tensor& tensor, nb::handle owner);
/// Moves the memory of the outcome to an array of torch or numpy.
nb::object to_python(Outcome& outcome, bool torch);

}  // namespace torchette::pybindings
