// SPDX-License-Identifier: BSD-3-Clause
// Operators on scalars (which represent symbolic sizes at run time) and on sizes, and two operators that move
// memory without computing: a view that shares the bytes of its source, and the operator that writes one
// slice of the result of a map.
#include <cmath>
#include <cstring>

#include "torchette/kernels/dims.h"

namespace torchette {
namespace TORCHETTE_ISA {

static bool is_integer(const Scalar& a) { return !a.is_floating(); }

// Sizes are small. Larger values wrap around on overflow, as in ExecuTorch.
static uint64_t bits(const Scalar& a) { return static_cast<uint64_t>(a.to_int()); }
static Value int_value(uint64_t value) { return Value(static_cast<int64_t>(value)); }

static Error add(Context&, const Scalar& a, const Scalar& b, Value& out) {
  out = is_integer(a) && is_integer(b) ? int_value(bits(a) + bits(b)) : Value(a.to_double() + b.to_double());
  return Error::Ok;
}
static Error sub(Context&, const Scalar& a, const Scalar& b, Value& out) {
  out = is_integer(a) && is_integer(b) ? int_value(bits(a) - bits(b)) : Value(a.to_double() - b.to_double());
  return Error::Ok;
}
static Error mul(Context&, const Scalar& a, const Scalar& b, Value& out) {
  out = is_integer(a) && is_integer(b) ? int_value(bits(a) * bits(b)) : Value(a.to_double() * b.to_double());
  return Error::Ok;
}
static Error truediv(Context&, const Scalar& a, const Scalar& b, Value& out) {
  TORCHETTE_CHECK(b.to_double() != 0, InvalidArgument, "division by zero");
  out = Value(a.to_double() / b.to_double());
  return Error::Ok;
}
/// Floor division and a remainder with the sign of the divisor, as in Python.
static Error divide(const Scalar& a, const Scalar& b, Value& quotient, Value& remainder) {
  if (is_integer(a) && is_integer(b)) {
    const int64_t x = a.to_int(), y = b.to_int();
    TORCHETTE_CHECK(y != 0, InvalidArgument, "division by zero");
    if (y == -1) {  // the most negative number has no opposite
      quotient = int_value(0 - bits(a));
      remainder = Value(int64_t{0});
      return Error::Ok;
    }
    const int64_t remainder_value = x % y;
    const bool down = remainder_value != 0 && (remainder_value < 0) != (y < 0);
    quotient = Value(x / y - (down ? 1 : 0));
    remainder = Value(down ? remainder_value + y : remainder_value);
    return Error::Ok;
  }
  const double x = a.to_double(), y = b.to_double();
  TORCHETTE_CHECK(y != 0, InvalidArgument, "division by zero");
  const double remainder_value = std::fmod(x, y);
  const bool down = remainder_value != 0 && (remainder_value < 0) != (y < 0);
  quotient = Value(std::floor((x - remainder_value) / y + 0.5) - (down ? 1 : 0));
  remainder = Value(down ? remainder_value + y : remainder_value);
  return Error::Ok;
}
static Error floordiv(Context&, const Scalar& a, const Scalar& b, Value& out) {
  Value remainder;
  return divide(a, b, out, remainder);
}
static Error mod(Context&, const Scalar& a, const Scalar& b, Value& out) {
  Value quotient;
  return divide(a, b, quotient, out);
}
static Error neg(Context&, const Scalar& a, Value& out) {
  out = is_integer(a) ? int_value(0 - bits(a)) : Value(-a.to_double());
  return Error::Ok;
}

/// Returns -1, 0 or 1; returns 2 if either value is NaN.
static int compare(const Scalar& a, const Scalar& b) {
  if (is_integer(a) && is_integer(b)) return (a.to_int() > b.to_int()) - (a.to_int() < b.to_int());
  const double x = a.to_double(), y = b.to_double();
  return x != x || y != y ? 2 : (x > y) - (x < y);
}
/// Stores the result of a comparison. For an assertion, which has a message instead of a result, returns an
/// error with this message if the comparison is false.
static Error decide(bool holds, const Scalar& a, const Scalar& b, const char* requested,
                    ConditionResult out) {
  if (out.slot != nullptr) {
    *out.slot = Value(holds);
    return Error::Ok;
  }
  if (holds) return Error::Ok;
  const auto length = static_cast<int>(out.text.size());
  if (a.is_bool())  // the message suffices
    TORCHETTE_LOG(Error, "%.*s", length, out.text.data());
  else
    TORCHETTE_LOG(Error, "%.*s: %.15g is not %s%.15g", length, out.text.data(), a.to_double(), requested,
                  b.to_double());
  return Error::InvalidArgument;
}
#define TORCHETTE_COMPARISON(name, expression, requested)                              \
  static Error name(Context&, const Scalar& a, const Scalar& b, ConditionResult out) { \
    const int order = compare(a, b);                                                   \
    return decide(expression, a, b, requested, out);                                   \
  }
TORCHETTE_COMPARISON(eq, order == 0, "")
TORCHETTE_COMPARISON(ne, order != 0, "other than ")
TORCHETTE_COMPARISON(lt, order == -1, "less than ")
TORCHETTE_COMPARISON(le, order == -1 || order == 0, "at most ")
TORCHETTE_COMPARISON(gt, order == 1, "more than ")
TORCHETTE_COMPARISON(ge, order == 1 || order == 0, "at least ")
#undef TORCHETTE_COMPARISON

static Value value_of(const Scalar& a) {
  return a.is_floating() ? Value(a.to_double()) : a.is_bool() ? Value(a.to_bool()) : Value(a.to_int());
}
static Error sym_max(Context&, const Scalar& a, const Scalar& b, Value& out) {
  out = value_of(compare(a, b) == -1 ? b : a);
  return Error::Ok;
}
static Error sym_min(Context&, const Scalar& a, const Scalar& b, Value& out) {
  out = value_of(compare(a, b) == 1 ? b : a);
  return Error::Ok;
}
static Error sym_ite(Context&, const Scalar& condition, const Scalar& a, const Scalar& b, Value& out) {
  out = value_of(condition.to_bool() ? a : b);
  return Error::Ok;
}
static Error sym_not(Context&, const Scalar& a, Value& out) {
  out = Value(!a.to_bool());
  return Error::Ok;
}
static Error sym_float(Context&, const Scalar& a, Value& out) {
  out = Value(a.to_double());
  return Error::Ok;
}
/// Integers with a non-negative exponent yield an integer, which wraps around on overflow like
/// multiplication.
static Error power(Context&, const Scalar& a, const Scalar& b, Value& out) {
  if (!is_integer(a) || !is_integer(b) || b.to_int() < 0) {
    out = Value(std::pow(a.to_double(), b.to_double()));
    return Error::Ok;
  }
  uint64_t result = 1, base = bits(a);
  for (uint64_t left = bits(b); left != 0; left >>= 1, base *= base)
    if ((left & 1) != 0) result *= base;
  out = int_value(result);
  return Error::Ok;
}
/// Bitwise operators on integers, and on booleans, which return a boolean.
#define TORCHETTE_BITWISE(name, sign)                                                                        \
  static Error name(Context&, const Scalar& a, const Scalar& b, Value& out) {                                \
    TORCHETTE_CHECK(is_integer(a) && is_integer(b), InvalidArgument,                                         \
                    "bitwise operators require integers or booleans");                                       \
    out = a.is_bool() && b.is_bool() ? Value((bits(a) sign bits(b)) != 0) : int_value(bits(a) sign bits(b)); \
    return Error::Ok;                                                                                        \
  }
TORCHETTE_BITWISE(bit_and, &)
TORCHETTE_BITWISE(bit_or, |)
TORCHETTE_BITWISE(bit_xor, ^)
#undef TORCHETTE_BITWISE
static Error shift(const Scalar& a, const Scalar& b, bool left, Value& out) {
  TORCHETTE_CHECK(is_integer(a) && is_integer(b) && b.to_int() >= 0, InvalidArgument,
                  "a shift requires integers and a shift count of at least 0");
  const int64_t x = a.to_int(), by = b.to_int();
  if (left)
    out = int_value(by > 63 ? 0 : bits(a) << by);
  else
    out = Value(by > 63 ? (x < 0 ? int64_t{-1} : int64_t{0}) : x >> by);
  return Error::Ok;
}
static Error lshift(Context&, const Scalar& a, const Scalar& b, Value& out) { return shift(a, b, true, out); }
static Error rshift(Context&, const Scalar& a, const Scalar& b, Value& out) {
  return shift(a, b, false, out);
}
static Error sym_sqrt(Context&, const Scalar& a, Value& out) {
  TORCHETTE_CHECK(a.to_double() >= 0, InvalidArgument, "the square root of %g is not real", a.to_double());
  out = Value(std::sqrt(a.to_double()));
  return Error::Ok;
}
static Error absolute(Context&, const Scalar& a, Value& out) {
  out = !is_integer(a)   ? Value(std::fabs(a.to_double()))
        : a.to_int() < 0 ? int_value(0 - bits(a))
                         : Value(a.to_int());
  return Error::Ok;
}
/// Converts a rounded float to int64. Errors: InvalidArgument if it is out of range.
static Error to_int64(double value, Value& out) {
  TORCHETTE_CHECK(value >= -9223372036854775808.0 && value < 9223372036854775808.0, InvalidArgument,
                  "%g is out of the range of int64", value);
  out = Value(static_cast<int64_t>(value));
  return Error::Ok;
}
#define TORCHETTE_ROUNDING(name, function)                   \
  static Error name(Context&, const Scalar& a, Value& out) { \
    if (is_integer(a)) {                                     \
      out = Value(a.to_int());                               \
      return Error::Ok;                                      \
    }                                                        \
    return to_int64(function(a.to_double()), out);           \
  }
TORCHETTE_ROUNDING(ceil, std::ceil)
TORCHETTE_ROUNDING(floor, std::floor)
TORCHETTE_ROUNDING(round, std::nearbyint)
TORCHETTE_ROUNDING(trunc, std::trunc)
#undef TORCHETTE_ROUNDING

static Error sym_size(Context&, const Tensor& x, int64_t dim, Value& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self is a 0-d tensor, which has no sizes");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  out = Value(static_cast<int64_t>(x.sizes()[static_cast<size_t>(dim)]));
  return Error::Ok;
}
static Error sym_numel(Context&, const Tensor& x, Value& out) {
  out = Value(static_cast<int64_t>(x.numel()));
  return Error::Ok;
}
static Error sym_stride(Context&, const Tensor& x, int64_t dim, Value& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self is a 0-d tensor, which has no strides");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  out = Value(static_cast<int64_t>(x.strides()[static_cast<size_t>(dim)]));
  return Error::Ok;
}
/// Tensors always begin at the start of their storage.
static Error sym_storage_offset(Context&, const Tensor&, Value& out) {
  out = Value(int64_t{0});
  return Error::Ok;
}
/// `format` is torch's memory format: 0 contiguous, 2 channels_last, 3 channels_last_3d.
static Error sym_is_contiguous(Context&, const Tensor& x, int64_t format, Value& out) {
  if (format != 2 && format != 3) {
    out = Value(is_contiguous(x));
    return Error::Ok;
  }
  bool found = x.dim() == (format == 2 ? 4 : 5);
  int64_t step = 1;
  // In channels-last order of N C D H W, C has stride 1, followed by the other dimensions from the last.
  for (ptrdiff_t i = 0; found && i < x.dim(); ++i) {
    const auto d = static_cast<size_t>(i == 0 ? 1 : i == x.dim() - 1 ? 0 : x.dim() - i);
    found = x.sizes()[d] == 1 || x.strides()[d] == step;
    step *= x.sizes()[d];
  }
  out = Value(found);
  return Error::Ok;
}
static Error local_scalar_dense(Context&, const Tensor& x, Value& out) {
  TORCHETTE_CHECK(x.numel() == 1, InvalidArgument, "self has %d elements, expected 1",
                  static_cast<int>(x.numel()));
  switch (x.scalar_type()) {
    case ScalarType::Byte:
      out = Value(static_cast<int64_t>(*x.const_data_ptr<uint8_t>()));
      return Error::Ok;
    case ScalarType::Char:
      out = Value(static_cast<int64_t>(*x.const_data_ptr<int8_t>()));
      return Error::Ok;
    case ScalarType::Short:
      out = Value(static_cast<int64_t>(*x.const_data_ptr<int16_t>()));
      return Error::Ok;
    case ScalarType::Int:
      out = Value(static_cast<int64_t>(*x.const_data_ptr<int32_t>()));
      return Error::Ok;
    case ScalarType::UInt16:
      out = Value(static_cast<int64_t>(*x.const_data_ptr<uint16_t>()));
      return Error::Ok;
    case ScalarType::UInt32:
      out = Value(static_cast<int64_t>(*x.const_data_ptr<uint32_t>()));
      return Error::Ok;
    case ScalarType::Long:
      out = Value(*x.const_data_ptr<int64_t>());
      return Error::Ok;
    case ScalarType::Half:
      out = Value(static_cast<double>(*x.const_data_ptr<Half>()));
      return Error::Ok;
    case ScalarType::BFloat16:
      out = Value(static_cast<double>(*x.const_data_ptr<BFloat16>()));
      return Error::Ok;
    case ScalarType::Float:
      out = Value(static_cast<double>(*x.const_data_ptr<float>()));
      return Error::Ok;
    case ScalarType::Double:
      out = Value(*x.const_data_ptr<double>());
      return Error::Ok;
    case ScalarType::Bool:
      out = Value(*x.const_data_ptr<uint8_t>() != 0);
      return Error::Ok;
    default:
      TORCHETTE_LOG(Error, "self is of type %d, which cannot become a scalar",
                    static_cast<int>(x.scalar_type()));
      return Error::InvalidType;
  }
}

/// Makes `out` a view of the bytes of x. If `out` has its own memory, copies the bytes to it.
static Error et_view(Context&, const Tensor& x, Span<const int64_t> requested, Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "the view and its tensor"));
  TORCHETTE_CHECK(requested.size() <= kMaxDim, InvalidArgument, "a view has more than 16 dimensions");
  SizesType sizes[kMaxDim];
  int64_t known = 1;
  size_t open = kMaxDim;
  for (size_t d = 0; d < requested.size(); ++d) {
    TORCHETTE_CHECK(
        (requested[d] >= 0 && requested[d] <= INT32_MAX) || (requested[d] == -1 && open == kMaxDim),
        InvalidArgument, "sizes of a view must be at least 0, except for a single -1");
    sizes[d] = static_cast<SizesType>(requested[d]);
    if (requested[d] == -1)
      open = d;
    else
      known *= requested[d];
    TORCHETTE_CHECK(known <= INT32_MAX, InvalidArgument, "a view has more than 2^31 - 1 elements");
  }
  if (open != kMaxDim) {
    TORCHETTE_CHECK(known > 0 && x.numel() % known == 0, InvalidArgument,
                    "%d elements cannot be viewed: not divisible by %d", static_cast<int>(x.numel()),
                    static_cast<int>(known));
    sizes[open] = static_cast<SizesType>(x.numel() / known);
    known *= sizes[open];
  }
  TORCHETTE_CHECK(known == x.numel(), InvalidArgument, "%d elements cannot be viewed as %d elements",
                  static_cast<int>(x.numel()), static_cast<int>(known));
  TORCHETTE_TRY(resize_tensor(out, {sizes, requested.size()}));
  bool same_layout = same_dim_order(x, out);
  for (ptrdiff_t d = 0; same_layout && d < x.dim(); ++d) same_layout = x.size(d) == out.size(d);
  TORCHETTE_CHECK(same_layout || (is_contiguous(x) && is_contiguous(out)), NotSupported,
                  "a view of a tensor that is not in row-major order is not supported");
  if (out.const_data_ptr() == nullptr && out.shape_dynamism() != TensorShapeDynamism::OWNED)
    out.unsafe_impl()->data = x.mutable_data_ptr();
  else if (out.const_data_ptr() != x.const_data_ptr() && x.numel() > 0)
    memmove(out.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());
  return Error::Ok;
}

/// Resizes `to` to index + 1 slices if its shape is dynamic, then copies `from` to slice `index`.
static Error et_copy_index(Context&, Tensor& to, const Tensor& from, int64_t index) {
  TORCHETTE_TRY(same_type(from, to, "the slice and the tensor"));
  TORCHETTE_CHECK(index >= 0 && index < INT32_MAX && to.dim() == from.dim() + 1, InvalidArgument,
                  "slice %lld with %d dimensions does not fit a tensor with %d dimensions",
                  static_cast<long long>(index), static_cast<int>(from.dim()), static_cast<int>(to.dim()));
  SizesType sizes[kMaxDim];
  sizes[0] = static_cast<SizesType>(index + 1);
  for (size_t d = 0; d < static_cast<size_t>(from.dim()); ++d) {
    TORCHETTE_CHECK(from.sizes()[d] == to.sizes()[d + 1], InvalidArgument,
                    "a slice differs from the tensor in size");
    sizes[d + 1] = from.sizes()[d];
  }
  if (to.shape_dynamism() == TensorShapeDynamism::STATIC)
    TORCHETTE_CHECK(index < to.sizes()[0], InvalidArgument, "index %lld is out of range for size %lld",
                    static_cast<long long>(index), static_cast<long long>(to.sizes()[0]));
  else
    TORCHETTE_TRY(resize_tensor(to, {sizes, static_cast<size_t>(to.dim())}));
  TORCHETTE_CHECK(is_contiguous(from) && is_contiguous(to), NotSupported, "a slice is not contiguous");
  if (from.numel() > 0)
    memmove(static_cast<char*>(to.mutable_data_ptr()) + static_cast<size_t>(index) * from.nbytes(),
            from.const_data_ptr(), from.nbytes());
  return Error::Ok;
}

TORCHETTE_KERNELS_ONCE(prim_ops,                                                                  //
                       TORCHETTE_KERNEL("executorch_prim::add.Scalar", add),                      //
                       TORCHETTE_KERNEL("executorch_prim::sub.Scalar", sub),                      //
                       TORCHETTE_KERNEL("executorch_prim::mul.Scalar", mul),                      //
                       TORCHETTE_KERNEL("executorch_prim::truediv.Scalar", truediv),              //
                       TORCHETTE_KERNEL("executorch_prim::floordiv.Scalar", floordiv),            //
                       TORCHETTE_KERNEL("executorch_prim::floordiv.int", floordiv),               //
                       TORCHETTE_KERNEL("executorch_prim::mod.Scalar", mod),                      //
                       TORCHETTE_KERNEL("executorch_prim::mod.int", mod),                         //
                       TORCHETTE_KERNEL("executorch_prim::neg.Scalar", neg),                      //
                       TORCHETTE_KERNEL("executorch_prim::pow.Scalar", power),                    //
                       TORCHETTE_KERNEL("executorch_prim::abs.Scalar", absolute),                 //
                       TORCHETTE_KERNEL("executorch_prim::and.Scalar", bit_and),                  //
                       TORCHETTE_KERNEL("executorch_prim::or.Scalar", bit_or),                    //
                       TORCHETTE_KERNEL("executorch_prim::xor.Scalar", bit_xor),                  //
                       TORCHETTE_KERNEL("executorch_prim::lshift.Scalar", lshift),                //
                       TORCHETTE_KERNEL("executorch_prim::rshift.Scalar", rshift),                //
                       TORCHETTE_KERNEL("executorch_prim::sym_sqrt.Scalar", sym_sqrt),            //
                       TORCHETTE_KERNEL("executorch_prim::eq.Scalar", eq),                        //
                       TORCHETTE_KERNEL("executorch_prim::ne.Scalar", ne),                        //
                       TORCHETTE_KERNEL("executorch_prim::lt.Scalar", lt),                        //
                       TORCHETTE_KERNEL("executorch_prim::le.Scalar", le),                        //
                       TORCHETTE_KERNEL("executorch_prim::gt.Scalar", gt),                        //
                       TORCHETTE_KERNEL("executorch_prim::ge.Scalar", ge),                        //
                       TORCHETTE_KERNEL("executorch_prim::ceil.Scalar", ceil),                    //
                       TORCHETTE_KERNEL("executorch_prim::floor.Scalar", floor),                  //
                       TORCHETTE_KERNEL("executorch_prim::round.Scalar", round),                  //
                       TORCHETTE_KERNEL("executorch_prim::trunc.Scalar", trunc),                  //
                       TORCHETTE_KERNEL("executorch_prim::sym_int.Scalar", trunc),                //
                       TORCHETTE_KERNEL("executorch_prim::sym_float.Scalar", sym_float),          //
                       TORCHETTE_KERNEL("executorch_prim::sym_ite.Scalar", sym_ite),              //
                       TORCHETTE_KERNEL("executorch_prim::sym_max.Scalar", sym_max),              //
                       TORCHETTE_KERNEL("executorch_prim::sym_min.Scalar", sym_min),              //
                       TORCHETTE_KERNEL("executorch_prim::sym_not.Scalar", sym_not),              //
                       TORCHETTE_KERNEL("executorch_prim::et_view.default", et_view),             //
                       TORCHETTE_KERNEL("executorch_prim::et_copy_index.tensor", et_copy_index),  //
                       TORCHETTE_KERNEL("aten::sym_size.int", sym_size),                          //
                       TORCHETTE_KERNEL("aten::sym_stride.int", sym_stride),
                       TORCHETTE_KERNEL("aten::sym_storage_offset", sym_storage_offset),
                       TORCHETTE_KERNEL("aten::sym_is_contiguous", sym_is_contiguous),
                       TORCHETTE_KERNEL("aten::sym_numel", sym_numel),  //
                       TORCHETTE_KERNEL("aten::_local_scalar_dense", local_scalar_dense))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
