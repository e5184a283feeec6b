// SPDX-License-Identifier: BSD-3-Clause
// What goes out: an output of a method, detached from it, as an object of Python.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <vector>

#include "torchette/pybindings/memory.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/error.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// One output of a call, detached from the method.
struct Outcome {
  Value value;  // where it is a number or None
  Tag tag = Tag::None;
  std::string text;
  Memory memory;
  ScalarType type = ScalarType::Undefined;
  std::vector<size_t> sizes;
  std::vector<int64_t> strides;
  bool is_list = false;
  std::vector<Outcome> items;
};

/// A value with all that is in it. Errors: those of its lists.
Error detach(const Value& output, Memory memory, Outcome& outcome);
/// Takes over `memory` if the tensor's bytes are in it, else copies them.
void detach(const Tensor& tensor, Memory memory, Outcome& outcome);

/// Whether it is a tensor of torch, which need not be imported.
bool is_torch_tensor(nb::handle object);
/// An array of numpy over the tensor's own bytes, which stay while `owner` does.
nb::object array_over(const Tensor& tensor, nb::handle owner);
/// Takes the memory of the outcome: an array of torch or of numpy.
nb::object to_python(Outcome& outcome, bool torch);

}  // namespace torchette::pybindings
