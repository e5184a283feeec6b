// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/values.h"

#include <cstring>

#include "torchette/runtime/tensor.h"

namespace torchette::pybindings {
ScalarType scalar_type_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return ScalarType::Undefined;
  switch (static_cast<Code>(type.code)) {
    case Code::Bool:
      return type.bits == 8 ? ScalarType::Bool : ScalarType::Undefined;
    case Code::Int:
      return type.bits == 8    ? ScalarType::Char
             : type.bits == 16 ? ScalarType::Short
             : type.bits == 32 ? ScalarType::Int
             : type.bits == 64 ? ScalarType::Long
                               : ScalarType::Undefined;
    case Code::UInt:
      return type.bits == 8    ? ScalarType::Byte
             : type.bits == 16 ? ScalarType::UInt16
             : type.bits == 32 ? ScalarType::UInt32
             : type.bits == 64 ? ScalarType::UInt64
                               : ScalarType::Undefined;
    case Code::Float:
      return type.bits == 16   ? ScalarType::Half
             : type.bits == 32 ? ScalarType::Float
             : type.bits == 64 ? ScalarType::Double
                               : ScalarType::Undefined;
    case Code::Bfloat:
      return type.bits == 16 ? ScalarType::BFloat16 : ScalarType::Undefined;
    case Code::Complex:
      return type.bits == 64    ? ScalarType::ComplexFloat
             : type.bits == 128 ? ScalarType::ComplexDouble
                                : ScalarType::Undefined;
    default:
      return ScalarType::Undefined;
  }
}

nb::dlpack::dtype dlpack_type_of(ScalarType type) {
  using Code = nb::dlpack::dtype_code;
  const auto code = type == ScalarType::Bool                                                ? Code::Bool
                    : type == ScalarType::BFloat16                                          ? Code::Bfloat
                    : is_floating(type)                                                     ? Code::Float
                    : type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble ? Code::Complex
                    : type == ScalarType::Byte || type == ScalarType::UInt16 || type == ScalarType::UInt32 ||
                            type == ScalarType::UInt64
                        ? Code::UInt
                        : Code::Int;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * element_size(type)), 1};
}

nb::str text_of(Span<const char> text) {
  // Names in a damaged file may not be UTF-8.
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}
nb::str text_of(const char* text) { return text_of({text, strlen(text)}); }

nb::object value_to_python(const Value& value) {
  switch (value.tag()) {
    case Tag::Int:
      return nb::int_(value.to_int());
    case Tag::Double:
      return nb::float_(value.to_double());
    case Tag::Bool:
      return nb::bool_(value.to_bool());
    default:
      return nb::none();
  }
}

}  // namespace torchette::pybindings
