// SPDX-License-Identifier: BSD-3-Clause
// The driver of elementwise operators: type promotion, broadcasting, conversion, and loops over chunks.
#include "torchette/kernels/elementwise.h"

#include <limits>
#include <type_traits>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise_operator.h"
#include "torchette/kernels/strided.h"

#ifdef __F16C__
#include <immintrin.h>
#endif

namespace torchette {
namespace TORCHETTE_ISA {

// --- Conversion between the types of tensors and the three compute types

/// A bool of a tensor. In a hostile file its byte may have any value, and reading that as bool is undefined.
struct BoolByte {
  uint8_t byte;
};

template <typename To, typename From>
static TORCHETTE_INLINE To convert(From x) {
  if constexpr (std::is_same_v<From, BoolByte>) {
    return static_cast<To>(x.byte != 0);
  } else if constexpr (std::is_same_v<From, Half> || std::is_same_v<From, BFloat16>) {
    return convert<To>(static_cast<float>(x));
  } else if constexpr (std::is_same_v<To, bool>) {
    return x != 0;
  } else if constexpr (std::is_same_v<To, Half> || std::is_same_v<To, BFloat16>) {
    return To(static_cast<float>(x));
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To> && sizeof(To) < 4) {
    return static_cast<To>(convert<int32_t>(x));  // wraps around as in eager
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    // A value that does not fit, or NaN, becomes the minimum, as in eager on x86-64.
    constexpr From kBound = sizeof(To) == 4 ? static_cast<From>(0x1p31) : static_cast<From>(0x1p63);
    return x >= -kBound && x < kBound ? static_cast<To>(x) : std::numeric_limits<To>::min();
  } else {
    return static_cast<To>(x);
  }
}

template <typename From, typename To>
static void convert_run(const void* src, ptrdiff_t stride, void* dst, size_t n) {
  const From* from = static_cast<const From*>(src);
  To* to = static_cast<To*>(dst);
  if (stride == 1) {
#ifdef __F16C__
    for (; std::is_same_v<From, Half> && std::is_same_v<To, float> && n >= 8; from += 8, to += 8, n -= 8)
      _mm256_storeu_ps(reinterpret_cast<float*>(to),
                       _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))));
    for (; std::is_same_v<From, float> && std::is_same_v<To, Half> && n >= 8; from += 8, to += 8, n -= 8)
      _mm_storeu_si128(
          reinterpret_cast<__m128i*>(to),
          _mm256_cvtps_ph(_mm256_loadu_ps(reinterpret_cast<const float*>(from)), _MM_FROUND_TO_NEAREST_INT));
#endif
    TORCHETTE_IVDEP
    for (size_t i = 0; i < n; ++i) to[i] = convert<To>(from[i]);
  } else if (stride == 0) {
    const To value = convert<To>(*from);
    for (size_t i = 0; i < n; ++i) {
      vectorize_float_only<From, To>();
      to[i] = value;
    }
  } else {
    for (size_t i = 0; i < n; ++i) {
      vectorize_float_only<>();
      to[i] = convert<To>(from[static_cast<ptrdiff_t>(i) * stride]);
    }
  }
}
/// Whether a build has conversions of T. Every build has the compute types.
template <typename T>
static constexpr bool kBuilt = has_dtype(kScalarType<T>) || std::is_same_v<T, float> ||
                               std::is_same_v<T, double> || std::is_same_v<T, int64_t>;
template <>
constexpr bool kBuilt<BoolByte> = kBuilt<bool>;

template <typename From, typename To>
static constexpr Convert conversion() {
  if constexpr (kBuilt<From> && kBuilt<To>)
    return &convert_run<From, To>;
  else
    return nullptr;
}
#define TORCHETTE_REAL_TYPES(X, Bool) \
  X(uint8_t) X(int8_t) X(int16_t) X(int32_t) X(int64_t) X(Half) X(float) X(double) X(Bool) X(BFloat16)
// Conversions from a type to float, double and int64_t, and back. Wide vectors speed up those of floats and
// indices.
#ifndef TORCHETTE_LOWEST
#define TORCHETTE_LOAD(T) {conversion<T, float>(), conversion<T, double>(), conversion<T, int64_t>()},
#define TORCHETTE_STORE(T) {conversion<float, T>(), conversion<double, T>(), conversion<int64_t, T>()},
#else
#define TORCHETTE_LOAD(T) {conversion<T, float>()},
#define TORCHETTE_STORE(T) {conversion<float, T>()},
#endif
static constexpr Convert kLoad[][3] = {TORCHETTE_REAL_TYPES(TORCHETTE_LOAD, BoolByte)};
static constexpr Convert kStore[][3] = {TORCHETTE_REAL_TYPES(TORCHETTE_STORE, bool)};
#undef TORCHETTE_LOAD
#undef TORCHETTE_STORE

TORCHETTE_INLINE static size_t row_of(ScalarType t) {
  return t == ScalarType::Bool ? 8 : t == ScalarType::BFloat16 ? 9 : static_cast<size_t>(t);
}

#ifdef TORCHETTE_LOWEST
}
namespace TORCHETTE_LOWEST {
Convert load_as(ScalarType from, Compute to);
Convert store_as(Compute from, ScalarType to);
}  // namespace TORCHETTE_LOWEST
namespace TORCHETTE_ISA {
Convert load_as(ScalarType from, Compute to) {
  if (to == kI64 && from == ScalarType::Int) return conversion<int32_t, int64_t>();
  return to == kF32 ? kLoad[row_of(from)][kF32] : TORCHETTE_LOWEST::load_as(from, to);
}
Convert store_as(Compute from, ScalarType to) {
  if (from == kI64 && to == ScalarType::Int) return conversion<int64_t, int32_t>();
  if (from == kF64 && to == ScalarType::Float) return conversion<double, float>();
  return from == kF32 ? kStore[row_of(to)][kF32] : TORCHETTE_LOWEST::store_as(from, to);
}
#else
Convert load_as(ScalarType from, Compute to) { return kLoad[row_of(from)][to]; }
Convert store_as(Compute from, ScalarType to) { return kStore[row_of(to)][from]; }
#endif

// --- Types

/// Undefined is the neutral element.
static ScalarType promote(ScalarType a, ScalarType b) {
  if (a == b || b == ScalarType::Undefined) return a;
  if (a == ScalarType::Undefined) return b;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (a == ScalarType::Double || b == ScalarType::Double) return ScalarType::Double;
    return ScalarType::Float;  // also for Half and BFloat16
  }
  if (a == ScalarType::Bool) return b;
  if (b == ScalarType::Bool) return a;
  if (a == ScalarType::Byte || b == ScalarType::Byte) {
    const ScalarType other = a == ScalarType::Byte ? b : a;
    return other == ScalarType::Char ? ScalarType::Short : other;
  }
  return static_cast<int8_t>(a) > static_cast<int8_t>(b) ? a : b;
}

ScalarType promote_operands(const Operand* in, size_t count) {
  ScalarType scalars = ScalarType::Undefined, points = ScalarType::Undefined, tensors = ScalarType::Undefined;
  for (size_t i = 0; i < count; ++i) {
    if (!in[i].is_tensor) {
      scalars = promote(scalars, in[i].scalar.is_floating() ? ScalarType::Float
                                 : in[i].scalar.is_bool()   ? ScalarType::Bool
                                                            : ScalarType::Long);
    } else {
      ScalarType& category = in[i].tensor.dim() == 0 ? points : tensors;
      category = promote(category, in[i].tensor.scalar_type());
    }
  }
  const auto ranked = [](ScalarType higher, ScalarType lower) {
    if (higher == ScalarType::Undefined) return lower;
    if (is_floating(higher)) return higher;
    if (higher == ScalarType::Bool || is_floating(lower)) return promote(higher, lower);
    return higher;
  };
  return ranked(ranked(tensors, points), scalars);
}

// --- The driver

/// Whether tensors of equal rank have the same sizes and strides.
static TORCHETTE_INLINE bool same_geometry(const Tensor& a, const Tensor& b) {
  for (size_t d = 0; d < static_cast<size_t>(a.dim()); ++d)
    if (a.sizes()[d] != b.sizes()[d] || a.strides()[d] != b.strides()[d]) return false;
  return true;
}
/// Whether the elements are consecutive in memory, in any order.
static TORCHETTE_INLINE bool is_one_run(const Tensor& t) {
  int64_t last = 0;
  for (size_t d = 0; d < static_cast<size_t>(t.dim()); ++d) {
    vectorize_float_only<>();
    last += static_cast<int64_t>(t.sizes()[d] - 1) * t.strides()[d];
  }
  return last == t.numel() - 1 || t.numel() == 0;
}

/// The index of an operand among the arguments of the operator.
static size_t argument_of(const Operand* in, size_t k) {
  return in[k].argument >= 0 ? static_cast<size_t>(in[k].argument) : k;
}

static Error broadcast_sizes(const Operand* in, size_t count, SizesType* sizes, size_t& dim) {
  dim = 0;
  for (size_t k = 0; k < count; ++k)
    if (in[k].is_tensor && static_cast<size_t>(in[k].tensor.dim()) > dim)
      dim = static_cast<size_t>(in[k].tensor.dim());
  for (size_t d = 0; d < dim; ++d) sizes[d] = 1;
  for (size_t k = 0; k < count; ++k) {
    if (!in[k].is_tensor) continue;
    const Span<const SizesType> from = in[k].tensor.sizes();
    SizesType* to = sizes + (dim - from.size());
    for (size_t d = 0; d < from.size(); ++d) {
      if (from[d] == to[d] || from[d] == 1) continue;
      TORCHETTE_CHECK(to[d] == 1, InvalidArgument,
                      "argument %zu has size %d in dimension %zu, which does not broadcast to %d",
                      argument_of(in, k), from[d], d, to[d]);
      to[d] = from[d];
    }
  }
  return Error::Ok;
}

/// One operand of the loops.
struct Stream {
  const char* data;
  size_t element;  // bytes
  Convert load;
  bool same_type;  // has the compute type
  bool constant;   // one value for all elements, already in the buffer
  bool linear;     // element i of the loops is element i of the memory
  char* buffer;
  const char* spread;  // the element that fills the buffer, if the innermost stride is 0
  ptrdiff_t stride[kMaxDim];
};

/// Fills the buffer of `s` with elements i to i + n of the loops.
static void gather(const Stream& s, const Loops& loops, size_t compute_bytes, size_t i, size_t n) {
  size_t at[kMaxDim];
  ptrdiff_t offset = 0;
  size_t remaining = i;
  for (size_t d = loops.dim; d-- > 0;) {
    at[d] = remaining % loops.size[d];
    remaining /= loops.size[d];
    offset += static_cast<ptrdiff_t>(at[d]) * s.stride[d];
  }
  const size_t inner = loops.dim - 1;
  char* to = s.buffer;
  for (;;) {
    const size_t run = n < loops.size[inner] - at[inner] ? n : loops.size[inner] - at[inner];
    s.load(s.data + offset * static_cast<ptrdiff_t>(s.element), s.stride[inner], to, run);
    n -= run;
    if (n == 0) return;
    to += run * compute_bytes;
    offset -= static_cast<ptrdiff_t>(at[inner]) * s.stride[inner];
    at[inner] = 0;
    for (size_t d = inner; d-- > 0;) {
      offset += s.stride[d];
      if (++at[d] < loops.size[d]) break;
      offset -= static_cast<ptrdiff_t>(at[d]) * s.stride[d];
      at[d] = 0;
    }
  }
}

/// The minimum work of a thread: about 10 microseconds of an addition.
constexpr size_t kMinElements = size_t{1} << 16;

/// Calls `body(begin, end)` for parts of [0, total) that begin at multiples of `unit`. Some operators choose
/// their algorithm for each chunk, so the chunks must not depend on the number of threads.
template <typename Body>
static void in_parts(Context& context, size_t total, size_t unit, const Body& body) {
  context.parallel_for(
      (total + unit - 1) / unit, (kMinElements + unit - 1) / unit,
      [&](size_t begin, size_t end, size_t) { body(begin * unit, end * unit < total ? end * unit : total); });
}

/// The loops over the elements of `out`.
struct ElementLoops {
  const Elementwise& op;
  Chunk chunk;
  Compute compute;
  const Operand* in;
  Loops loops;
  Stream streams[kMaxOperands];  // without buffers
  size_t total;
  bool chunked, by_rows, long_rows;
  Convert store;  // if the type of `out` is not that of the results; bools are stored as int64
  char* to;
  size_t element;  // bytes of an element of `out`

  /// Computes elements [begin, end). Returns false if an integer is divided by zero.
  bool part(size_t begin, size_t end) const;
  /// Elements [i, i + n) of an operand in the compute type: in place, or in the buffer of `s`.
  const void* fetch(Stream& s, size_t i, size_t n) const;
};

/// Merges the dimensions of `out`, from the outermost to the innermost, so that `out` is written in order of
/// memory.
static void merge_dims(ElementLoops& w, const Tensor& out) {
  Loops& loops = w.loops;
  Stream* const streams = w.streams;
  loops.dim = 0;
  const auto rank = static_cast<size_t>(out.dim());
  for (size_t i = 0; i < rank; ++i) {
    const size_t d = out.dim_order()[i];
    const auto size = static_cast<size_t>(out.size(static_cast<ptrdiff_t>(d)));
    if (size == 1) continue;
    ptrdiff_t stride[kMaxOperands];
    bool merges = loops.dim > 0;
    for (size_t k = 0; k < w.op.arity; ++k) {
      stride[k] = 0;
      if (w.in[k].is_tensor) {
        const Tensor& operand = w.in[k].tensor;
        const size_t missing = rank - static_cast<size_t>(operand.dim());
        if (d >= missing && operand.sizes()[d - missing] != 1) stride[k] = operand.strides()[d - missing];
      }
      if (merges && streams[k].stride[loops.dim - 1] != stride[k] * static_cast<ptrdiff_t>(size))
        merges = false;
    }
    if (merges) {
      loops.size[loops.dim - 1] *= size;
    } else {
      loops.size[loops.dim++] = size;
    }
    for (size_t k = 0; k < w.op.arity; ++k) streams[k].stride[loops.dim - 1] = stride[k];
  }
  if (loops.dim == 0) {
    loops.size[loops.dim++] = 1;
    for (size_t k = 0; k < w.op.arity; ++k) streams[k].stride[0] = 0;
  }
}

/// Computes `out`, which has the broadcast sizes, from operands that are read in type `compute`. Without a
/// context, on the calling thread.
static Error walk(Context* context, const Elementwise& op, Chunk chunk, Compute compute, const Operand* in,
                  const Tensor& out) {
  if (out.numel() == 0) return Error::Ok;
  ElementLoops w = {op,
                    chunk,
                    compute,
                    in,
                    {},
                    {},
                    static_cast<size_t>(out.numel()),
                    false,
                    false,
                    false,
                    nullptr,
                    static_cast<char*>(out.mutable_data_ptr()),
                    element_size(out.scalar_type())};
  const ScalarType result = op.result == Result::Bool ? ScalarType::Bool : scalar_type_of(compute);
  w.chunked = out.scalar_type() != result;
  if (w.chunked) w.store = store_as(op.result == Result::Bool ? kI64 : compute, out.scalar_type());
  TORCHETTE_CHECK(is_one_run(out), NotSupported, "out has gaps between its elements");
  merge_dims(w, out);

  const Loops& loops = w.loops;
  for (size_t k = 0; k < op.arity; ++k) {
    Stream& s = w.streams[k];
    s.constant = true;
    s.linear = true;
    ptrdiff_t dense = 1;
    for (size_t d = loops.dim; d-- > 0;) {
      if (s.stride[d] != 0) s.constant = false;
      if (s.stride[d] != dense) s.linear = false;
      dense *= static_cast<ptrdiff_t>(loops.size[d]);
    }
    if (in[k].is_tensor) {
      const ScalarType type = in[k].tensor.scalar_type();
      s.data = static_cast<const char*>(in[k].tensor.const_data_ptr());
      s.element = element_size(type);
      s.load = load_as(type, compute);
      s.same_type = type == scalar_type_of(compute);
    }
    if (s.constant || !s.same_type) w.chunked = true;
    if (!s.constant && !s.linear) w.by_rows = true;
  }
  w.long_rows = loops.size[loops.dim - 1] >= kChunk / 4;

  bool divided = true;
  if (context == nullptr || w.total < 2 * kMinElements)
    divided = w.part(0, w.total);
  else
    in_parts(*context, w.total, w.by_rows && w.long_rows ? loops.size[loops.dim - 1] : kChunk,
             [&](size_t begin, size_t end) {
               if (!w.part(begin, end)) __atomic_store_n(&divided, false, __ATOMIC_RELAXED);
             });
  TORCHETTE_CHECK(divided, InvalidArgument, "other: an integer is divided by zero");
  return Error::Ok;
}

TORCHETTE_INLINE const void* ElementLoops::fetch(Stream& s, size_t i, size_t n) const {
  if (s.constant) return s.buffer;
  if (s.linear) {
    const char* p = s.data + i * s.element;
    if (s.same_type) return p;
    s.load(p, 1, s.buffer, n);
    return s.buffer;
  }
  const ptrdiff_t stride = s.stride[loops.dim - 1];
  if (!long_rows || (stride != 0 && (!s.same_type || stride != 1))) {
    gather(s, loops, compute_size(compute), i, n);
    return s.buffer;
  }
  ptrdiff_t offset = 0;
  size_t remaining = i;
  for (size_t d = loops.dim; d-- > 0; remaining /= loops.size[d])
    offset += static_cast<ptrdiff_t>(remaining % loops.size[d]) * s.stride[d];
  const char* p = s.data + offset * static_cast<ptrdiff_t>(s.element);
  if (stride == 1) return p;
  if (s.spread != p) {
    const size_t row = loops.size[loops.dim - 1];
    s.load(p, 0, s.buffer, kChunk < row ? kChunk : row);
    s.spread = p;
  }
  return s.buffer;
}

bool ElementLoops::part(size_t begin, size_t end) const {
  alignas(64) char buffers[kMaxOperands + 2][kChunk * 8];
  Stream own[kMaxOperands];
  const size_t spread = end - begin < kChunk ? end - begin : kChunk;  // copies of a constant operand
  for (size_t k = 0; k < op.arity; ++k) {
    Stream& s = own[k];
    s = streams[k];
    s.buffer = buffers[k];
    s.spread = nullptr;
    if (in[k].is_tensor) {
      if (s.constant) s.load(s.data, 0, s.buffer, spread);
    } else {
      const double wide = in[k].scalar.to_double();
      const int64_t integer = in[k].scalar.to_int();
      if (compute == kI64)
        convert_run<int64_t, int64_t>(&integer, 0, s.buffer, spread);
      else
        load_as(ScalarType::Double, compute)(&wide, 0, s.buffer, spread);
    }
  }

  const size_t row = loops.size[loops.dim - 1];
  for (size_t i = begin, n; i < end; i += n) {
    n = end - i;
    if (by_rows) {
      if (long_rows) {
        const size_t left = row - i % row;
        n = n < left ? n : left;
      }
      if (!chunked) {
        // a row that is not contiguous in an operand needs the buffer of the operand
        for (size_t k = 0; k < op.arity; ++k)
          if (!own[k].linear && (!long_rows || own[k].stride[loops.dim - 1] != 1) && n > kChunk) n = kChunk;
      }
    }
    if (chunked && n > kChunk) n = kChunk;
    const void* from[kMaxOperands];
    for (size_t k = 0; k < op.arity; ++k) from[k] = fetch(own[k], i, n);
    if (op.divides && compute == kI64) {
      const int64_t* divisor = static_cast<const int64_t*>(from[1]);
      bool zero = false;
      for (size_t j = 0; j < n; ++j) zero = zero || divisor[j] == 0;
      if (zero) return false;
    }
    if (store == nullptr) {
      chunk(from, to + i * element, n);
    } else {
      chunk(from, buffers[kMaxOperands], n);
      const char* results = buffers[kMaxOperands];
      if (op.result == Result::Bool) {
        convert_run<BoolByte, int64_t>(results, 1, buffers[kMaxOperands + 1], n);
        results = buffers[kMaxOperands + 1];
      }
      store(results, 1, to + i * element, n);
    }
  }
  return true;
}

Error run_elementwise(Context& context, const Elementwise& op, const Operand* in, const Tensor& out) {
  for (size_t k = 0; k < op.arity; ++k)
    TORCHETTE_CHECK(!in[k].is_tensor || is_real(in[k].tensor.scalar_type()), InvalidType,
                    "argument %zu is of type %d, which is not supported", argument_of(in, k),
                    static_cast<int>(in[k].tensor.scalar_type()));
  TORCHETTE_CHECK(is_real(out.scalar_type()), InvalidType, "out is of type %d, which is not supported",
                  static_cast<int>(out.scalar_type()));
  const size_t skipped = op.selects ? 1 : 0;
  ScalarType type = promote_operands(in + skipped, op.arity - skipped);
  if (op.result == Result::Float && !is_floating(type)) type = ScalarType::Float;
  const Compute compute = compute_type(type);
  const Chunk chunk = compute == kF32 ? op.f32 : compute == kF64 ? op.scalar->f64 : op.scalar->i64;
  TORCHETTE_CHECK(chunk != nullptr, InvalidType, "argument %zu: the operator has no meaning for type %d",
                  argument_of(in, skipped), static_cast<int>(type));
  const ScalarType result = op.result == Result::Bool ? ScalarType::Bool : type;
  TORCHETTE_CHECK(can_cast(result, out.scalar_type()), InvalidType,
                  "out: a result of type %d cannot be cast to type %d", static_cast<int>(result),
                  static_cast<int>(out.scalar_type()));

  SizesType sizes[kMaxDim];
  size_t dim;
  TORCHETTE_TRY(broadcast_sizes(in, op.arity, sizes, dim));
  TORCHETTE_TRY(resize_result(out, {sizes, dim}));
  return walk(&context, op, chunk, compute, in, out);
}

PART(copy, 1, Same, a)

Error assign(const Tensor& in, const Tensor& out) {
  TORCHETTE_CHECK(is_real(in.scalar_type()) && is_real(out.scalar_type()), InvalidType,
                  "self, input, A or out: elements of type %d cannot be copied to type %d",
                  static_cast<int>(in.scalar_type()), static_cast<int>(out.scalar_type()));
  const auto dim = static_cast<size_t>(out.dim());
  bool fits = in.dim() <= out.dim();
  for (size_t d = 0; fits && d < static_cast<size_t>(in.dim()); ++d) {
    const SizesType to = out.sizes()[dim - static_cast<size_t>(in.dim()) + d];
    fits = in.sizes()[d] == to || in.sizes()[d] == 1;
  }
  TORCHETTE_CHECK(fits, InvalidArgument, "src does not broadcast to the sizes of self");
  if (in.scalar_type() == out.scalar_type()) {
    if (in.const_data_ptr() == out.const_data_ptr()) return Error::Ok;  // an alias of itself
    Move nest;
    const size_t missing = dim - static_cast<size_t>(in.dim());
    for (size_t d = 0; d < dim; ++d) {
      const bool there = d >= missing && in.sizes()[d - missing] != 1;
      nest.add(static_cast<size_t>(out.sizes()[d]), out.strides()[d], there ? in.strides()[d - missing] : 0);
    }
    move(nest, out.mutable_data_ptr(), in.const_data_ptr(), element_size(in.scalar_type()));
    return Error::Ok;
  }
  // integers are converted to float16 through float32, as in torch
  const Compute compute = compute_type(out.scalar_type()) == kF32 && in.scalar_type() != ScalarType::Double
                              ? kF32
                              : compute_type(in.scalar_type());
  bool alike = in.dim() == out.dim() && is_one_run(out);
  for (size_t d = 0; alike && d < dim; ++d)
    alike = in.sizes()[d] == out.sizes()[d] && in.strides()[d] == out.strides()[d];
  const Convert convert_all =
      !alike                                         ? nullptr
      : scalar_type_of(compute) == in.scalar_type()  ? store_as(compute, out.scalar_type())
      : scalar_type_of(compute) == out.scalar_type() ? load_as(in.scalar_type(), compute)
                                                     : nullptr;
  if (convert_all != nullptr) {
    convert_all(in.const_data_ptr(), 1, out.mutable_data_ptr(), static_cast<size_t>(out.numel()));
    return Error::Ok;
  }
  const Operand operands[] = {in, out};
  return walk(nullptr, copy_parts,
              compute == kF32   ? copy_parts.f32
              : compute == kF64 ? copy_parts.scalar->f64
                                : copy_parts.scalar->i64,
              compute, operands, out);
}

Error fill(const Tensor& out, const Scalar& value) {
  TORCHETTE_CHECK(is_real(out.scalar_type()) && is_one_run(out), InvalidType,
                  "out is of type %d or has gaps, it cannot be filled", static_cast<int>(out.scalar_type()));
  const double wide = value.to_double();
  const int64_t integer = value.is_floating() ? 0 : value.to_int();
  if (value.is_floating())
    store_as(kF64, out.scalar_type())(&wide, 0, out.mutable_data_ptr(), static_cast<size_t>(out.numel()));
  else
    store_as(kI64, out.scalar_type())(&integer, 0, out.mutable_data_ptr(), static_cast<size_t>(out.numel()));
  return Error::Ok;
}

/// The general case of two tensors, in a separate function because of its larger stack.
[[gnu::noinline]] static Error run_any(Context& context, const Elementwise& op, Tensor out, Tensor a,
                                       Tensor b) {
  const Operand operands[] = {a, b};
  return run_elementwise(context, op, operands, out);
}
/// Most calls are of floats or bools with equal sizes and strides, for which one chunk computes all elements.
/// The checks dominate calls of tiny tensors, so they do not read the sizes and strides of a single element.
Error run_tensors(Context& context, const Elementwise& op, Tensor out, Tensor a, Tensor b) {
  const ScalarType type = a.scalar_type();
  const Chunk direct = type == ScalarType::Float  ? op.f32
                       : type == ScalarType::Bool ? op.scalar->bools
                                                  : nullptr;
  if (direct == nullptr || b.scalar_type() != type ||
      out.scalar_type() != (op.result == Result::Bool ? ScalarType::Bool : type) || a.dim() != out.dim() ||
      b.dim() != out.dim())
    return run_any(context, op, out, a, b);
  const bool single = out.numel() == 1 && a.numel() == 1 && b.numel() == 1;
  if (!single && !(same_geometry(a, out) && same_geometry(b, out) && is_one_run(out)))
    return run_any(context, op, out, a, b);
  const auto total = static_cast<size_t>(out.numel());
  if (total >= 2 * kMinElements) {
    const size_t bytes = element_size(type), bytes_out = element_size(out.scalar_type());
    in_parts(context, total, kChunk, [&](size_t begin, size_t end) {
      const void* const from[] = {static_cast<const char*>(a.const_data_ptr()) + begin * bytes,
                                  static_cast<const char*>(b.const_data_ptr()) + begin * bytes};
      direct(from, static_cast<char*>(out.mutable_data_ptr()) + begin * bytes_out, end - begin);
    });
    return Error::Ok;
  }
  const void* const from[] = {a.const_data_ptr(), b.const_data_ptr()};
  direct(from, out.mutable_data_ptr(), total);
  return Error::Ok;
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
