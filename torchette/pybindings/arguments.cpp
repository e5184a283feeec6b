// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/arguments.h"

#include <cstring>

#include "torchette/extension/element.h"
#include "torchette/runtime/tensor.h"

namespace torchette::pybindings {
namespace {

std::string shape_text(const int64_t* sizes, size_t rank) {
  std::string text = "(";
  for (size_t d = 0; d < rank; ++d) text += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
  return text + (rank == 1 ? ",)" : ")");
}

}  // namespace

ScalarType scalar_type_of(const char* format, Py_ssize_t item_size) {
  if (format == nullptr) return ScalarType::Byte;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == 'Z') {
    return format[1] == 'f'   ? ScalarType::ComplexFloat
           : format[1] == 'd' ? ScalarType::ComplexDouble
                              : ScalarType::Undefined;
  }
  if (format[0] == 0 || format[1] != 0) return ScalarType::Undefined;
  constexpr ScalarType kSigned[] = {ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long};
  constexpr ScalarType kUnsigned[] = {ScalarType::Byte, ScalarType::UInt16, ScalarType::UInt32,
                                      ScalarType::UInt64};
  const size_t i = item_size == 1 ? 0 : item_size == 2 ? 1 : item_size == 4 ? 2 : 3;
  switch (*format) {
    case '?':
      return ScalarType::Bool;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return kSigned[i];
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return kUnsigned[i];
    case 'e':
      return ScalarType::Half;
    case 'f':
      return ScalarType::Float;
    case 'd':
      return ScalarType::Double;
    default:
      return ScalarType::Undefined;
  }
}

void copy_dense(const ArrayView& source, Span<const DimOrderType> dim_order, uint8_t* target) {
  const size_t item = element_size(source.type);
  int64_t count = 1;
  for (size_t d = 0; d < source.rank; ++d) count *= source.sizes[d];
  if (count == 0) return;
  int64_t index[kMaxDim] = {};
  const size_t inner = source.rank == 0 ? 0 : dim_order[source.rank - 1];
  const int64_t run = source.rank == 0 ? 1 : source.sizes[inner];
  const int64_t step = source.rank == 0 ? 1 : source.strides[inner];
  const uint8_t* row = source.data;
  for (int64_t done = 0; done < count; done += run) {
    if (step == 1) {
      memcpy(target, row, static_cast<size_t>(run) * item);
      target += static_cast<size_t>(run) * item;
    } else {
      for (int64_t i = 0; i < run; ++i, target += item)
        memcpy(target, row + i * step * static_cast<int64_t>(item), item);
    }
    // Advances to the next row: increments the dimensions from the second innermost to the outermost.
    for (size_t k = source.rank; k-- > 1;) {
      const size_t d = dim_order[k - 1];
      row += source.strides[d] * static_cast<int64_t>(item);
      if (++index[d] < source.sizes[d]) break;
      row -= source.sizes[d] * source.strides[d] * static_cast<int64_t>(item);
      index[d] = 0;
    }
  }
}

void Argument::set_tensor(nb::handle object, const TensorInfo& info, bool needs_writable, size_t input) {
  ArrayView array;
  view(object, input, &array);
  check(array, info, input);
  for (size_t d = 0; d < array.rank; ++d) sizes_[d] = static_cast<SizesType>(array.sizes[d]);
  const Result<int32_t> numel = dense_strides({sizes_, array.rank}, info.dim_order().data(), strides_);
  if (!numel.ok()) throw input_fault(input, "is too large");
  bool in_place = (!needs_writable || array.writable) && is_aligned_for(array.data, array.type);
  for (size_t d = 0; d < array.rank; ++d)
    in_place = in_place && (array.sizes[d] == 1 || array.strides[d] == strides_[d]);
  if (!in_place && *numel != 0) {
    copy_ = allocate_memory(static_cast<size_t>(*numel) * element_size(array.type));
    copy_dense(array, info.dim_order(), static_cast<uint8_t*>(copy_.get()));
    array.data = static_cast<const uint8_t*>(copy_.get());
  }
  impl_.data = const_cast<uint8_t*>(array.data);
  impl_.sizes = sizes_;
  impl_.strides = strides_;
  impl_.dim_order = info.dim_order().data();
  impl_.capacity = static_cast<size_t>(*numel);
  impl_.numel = *numel;
  impl_.dim = static_cast<uint8_t>(array.rank);
  impl_.type = array.type;
  impl_.dynamism = TensorShapeDynamism::STATIC;
  value_ = Value(Tensor(&impl_));
}

void Argument::view(nb::handle object, size_t input, ArrayView* out) {
  if (PyObject_CheckBuffer(object.ptr()) && !PyBytes_Check(object.ptr())) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
      const ScalarType type = scalar_type_of(view_.format, view_.itemsize);
      if (type == ScalarType::Undefined)
        throw input_type_fault(input, std::string("is an array of format '") + view_.format + "'");
      if (view_.ndim > static_cast<int>(kMaxDim)) throw input_fault(input, "has more than 16 dimensions");
      *out = {static_cast<const uint8_t*>(view_.buf),
              static_cast<size_t>(view_.ndim),
              {},
              {},
              type,
              !view_.readonly};
      for (int d = 0; d < view_.ndim; ++d) {
        out->sizes[d] = view_.shape[d];
        out->strides[d] = view_.strides[d] / view_.itemsize;
        if (view_.strides[d] % view_.itemsize != 0 && view_.shape[d] > 1)
          throw input_fault(
              input, "is an array with strides that are not multiples of its item size; copy it first");
      }
      return;
    }
    PyErr_Clear();  // arrays of extension types such as bfloat16 may still support DLPack
    view_.obj = nullptr;
  }
  if (nb::hasattr(object, "__dlpack__") && nb::try_cast<nb::ndarray<nb::ro>>(object, array_)) {
    if (array_.device_type() != nb::device::cpu::value)
      throw input_fault(input, "is not in CPU memory; copy it with .cpu()");
    const ScalarType type = pybindings::scalar_type_of(array_.dtype());
    if (array_.ndim() > kMaxDim) throw input_fault(input, "has more than 16 dimensions");
    *out = {static_cast<const uint8_t*>(array_.data()), array_.ndim(), {}, {}, type, true};
    for (size_t d = 0; d < array_.ndim(); ++d) {
      out->sizes[d] = static_cast<int64_t>(array_.shape(d));
      out->strides[d] = array_.stride(d);
    }
    return;
  }
  throw input_type_fault(input, std::string("is a ") + Py_TYPE(object.ptr())->tp_name +
                                    ", expected a tensor (a numpy array or an object with DLPack support)");
}

void Argument::check(const ArrayView& array, const TensorInfo& info, size_t input) {
  if (array.type != info.scalar_type())
    throw input_fault(input, std::string("has dtype ") + extension::dtype_name(array.type) + ", expected " +
                                 extension::dtype_name(info.scalar_type()));
  const bool dynamic = info.shape_dynamism() != TensorShapeDynamism::STATIC;
  const size_t rank = info.sizes().size();
  int64_t bounds[kMaxDim];
  for (size_t d = 0; d < rank; ++d) bounds[d] = info.sizes()[d];
  const auto differs = [&](const std::string& why) {
    return input_fault(input, "has shape " + shape_text(array.sizes, array.rank) + ", expected " +
                                  (dynamic ? "at most " : "") + shape_text(bounds, rank) + why);
  };
  if (array.rank != rank) throw differs("");
  for (size_t d = 0; d < rank; ++d) {
    int64_t min = dynamic ? 0 : bounds[d], max = bounds[d];
    if (!info.ranges().empty()) {
      min = info.ranges()[2 * d];
      max = info.ranges()[2 * d + 1];
    }
    const std::string expected = max == INT32_MAX ? std::to_string(min) + " or more"
                                 : min == max     ? std::to_string(max)
                                                  : std::to_string(min) + " to " + std::to_string(max);
    if (!info.ranges().empty() && (array.sizes[d] < min || array.sizes[d] > max))
      throw input_fault(input, "has shape " + shape_text(array.sizes, rank) + ": its size in dimension " +
                                   std::to_string(d) + " is " + std::to_string(array.sizes[d]) +
                                   ", expected " + expected);
    if (array.sizes[d] < min || array.sizes[d] > max) throw differs("");
  }
}

}  // namespace torchette::pybindings
