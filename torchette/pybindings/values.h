// SPDX-License-Identifier: BSD-3-Clause
// Converts dtypes and single values between the runtime and Python.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <string>

#include "torchette/runtime/dtype.h"
#include "torchette/runtime/span.h"
#include "torchette/runtime/value.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// Undefined if the runtime has no such type.
ScalarType scalar_type_of(nb::dlpack::dtype type);
nb::dlpack::dtype dlpack_type_of(ScalarType type);

nb::str text_of(Span<const char> text);
nb::str text_of(const char* text);
/// An int, float or bool; None for all other values.
nb::object value_to_python(const Value& value);

template <typename Items>
nb::tuple tuple_of(const Items& items) {
  nb::list list;
  for (const auto item : items) list.append(static_cast<int64_t>(item));
  return nb::tuple(list);
}

}  // namespace torchette::pybindings
