// SPDX-License-Identifier: BSD-3-Clause
// Prints values. print_list() prints the sequences of all kinds with a function that prints an element.
#include "torchette/extension/print_value.h"

#include "torchette/extension/element.h"

namespace torchette {
namespace {

/// Returns the index of the stream storage (iword) for the number of edge items. A stored 0 means the
/// default.
int edge_items_index() {
  static const int index = std::ios_base::xalloc();
  return index;
}

void print(std::ostream& out, Scalar value) {
  if (value.is_bool())
    out << (value.to_bool() ? "true" : "false");
  else if (value.is_integral())
    out << value.to_int();
  else
    out << value.to_double();
}

template <typename Element>
void print_list(std::ostream& out, size_t count, Element element) {
  const long setting = out.iword(edge_items_index());
  const size_t edge = setting == 0 ? 100 : setting < 0 ? count : static_cast<size_t>(setting);
  out << '[';
  for (size_t i = 0; i < count; ++i) {
    if (i != 0) out << ", ";
    if (count - edge > edge && i == edge && edge < count) {
      out << "..., ";
      i = count - edge;
    }
    element(i);
  }
  out << ']';
}

void print(std::ostream& out, const Tensor& tensor) {
  static constexpr const char* kNames[] = {"Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double"};
  const auto type = static_cast<size_t>(tensor.scalar_type());
  out << "tensor(";
  if (tensor.scalar_type() == ScalarType::Bool)
    out << "Bool, ";
  else if (tensor.scalar_type() == ScalarType::BFloat16)
    out << "BFloat16, ";
  else if (type >= sizeof(kNames) / sizeof(kNames[0]))
    out << "dtype " << type << ", ";
  else if (tensor.scalar_type() != ScalarType::Float)
    out << kNames[type] << ", ";
  out << "sizes=";
  print_list(out, tensor.sizes().size(), [&](size_t d) { out << tensor.sizes()[d]; });
  out << ", ";
  if (tensor.const_data_ptr() == nullptr || !extension::has_elements(tensor.scalar_type())) {
    out << (tensor.const_data_ptr() == nullptr ? "no data" : "elements of an unsupported dtype") << ')';
    return;
  }
  print_list(out, static_cast<size_t>(tensor.numel()), [&](size_t i) {
    print(out, extension::get_element(tensor.const_data_ptr(), tensor.scalar_type(), i));
  });
  out << ')';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Value& value) {
  switch (value.tag()) {
    case Tag::None:
      return out << "None";
    case Tag::Tensor:
      return print(out, value.toTensor()), out;
    case Tag::Int:
    case Tag::Double:
    case Tag::Bool:
      return print(out, value.to_scalar()), out;
    case Tag::String:
      out << '"';
      return out.write(value.to_string().data(), static_cast<std::streamsize>(value.to_string().size()))
             << '"';
    case Tag::ListInt: {
      const Span<const int64_t> list = value.to_int_list();
      return print_list(out, list.size(), [&](size_t i) { out << list[i]; }), out;
    }
    case Tag::ListDouble: {
      const Span<const double> list = value.to_double_list();
      return print_list(out, list.size(), [&](size_t i) { out << list[i]; }), out;
    }
    case Tag::ListBool: {
      const Span<const bool> list = value.to_bool_list();
      return print_list(out, list.size(), [&](size_t i) { print(out, Scalar(list[i])); }), out;
    }
    case Tag::ListTensor: {
      const Span<const Tensor> list = value.to_tensor_list();
      return print_list(out, list.size(), [&](size_t i) { print(out, list[i]); }), out;
    }
    case Tag::ListOptionalTensor: {
      const Span<const Optional<Tensor>> list = value.to_optional_tensor_list();
      return print_list(out, list.size(), [&](size_t i) { out << (list[i] ? Value(*list[i]) : Value()); }),
             out;
    }
    case Tag::ListScalar:
      break;
  }
  return out << "a value of kind " << static_cast<unsigned>(value.tag());
}

namespace extension {

std::ostream& operator<<(std::ostream& out, evalue_edge_items items) {
  out.iword(edge_items_index()) = items.count <= 0 ? -1 : items.count;
  return out;
}

}  // namespace extension
}  // namespace torchette
