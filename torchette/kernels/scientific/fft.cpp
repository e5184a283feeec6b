// SPDX-License-Identifier: BSD-3-Clause
// Discrete Fourier transforms, conjugation, and views of complex tensors as pairs of real values and back. A
// transform of length n with prime factors p costs O(n * sum of p).
#include <cmath>
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/simd.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

template <typename T>
struct Complex {
  T real, imag;
};

bool is_complex(ScalarType t) { return t == ScalarType::ComplexFloat || t == ScalarType::ComplexDouble; }
ScalarType real_of(ScalarType t) {
  return t == ScalarType::ComplexDouble ? ScalarType::Double : ScalarType::Float;
}

/// A vector with one element of each of several lines, which are transformed together.
template <typename T>
struct Lines {
  TORCHETTE_LANES(type, T, kLanes * sizeof(float) / sizeof(T));
};

/// to[k] = sum over j of from[j * step] e^(sign 2 pi i j k / n), for k < n. `root` contains the powers
/// 0 .. whole - 1 of e^(sign 2 pi i / whole); n divides `order`. `spare` has room for n elements. V is T or a
/// vector of T.
template <typename V, typename T>
void transform(const Complex<V>* from, size_t step, Complex<V>* to, size_t n, const Complex<T>* root,
               size_t order, Complex<V>* spare) {
  if (n == 1) {
    to[0] = from[0];
    return;
  }
  size_t factor = n % 4 == 0 ? 4 : 2;
  while (factor * factor <= n && n % factor != 0) ++factor;
  if (n % factor != 0) factor = n;
  // The elements with the same index modulo `factor` form a transform of length m.
  const size_t m = n / factor, turn = order / n;
  for (size_t r = 0; r < factor; ++r)
    if (m == 1)
      spare[r] = from[r * step];
    else
      transform(from + r * step, step * factor, spare + r * m, m, root, order, to + r * m);
  if (factor == 4) {
    const T sign = root[order / 4].imag;
    for (size_t k = 0; k < m; ++k) {
      const auto twiddled = [&](size_t r) -> Complex<V> {
        const Complex<T> w = root[r * k * turn];
        const Complex<V> x = spare[r * m + k];
        return {x.real * w.real - x.imag * w.imag, x.real * w.imag + x.imag * w.real};
      };
      const Complex<V> a = spare[k], b = twiddled(1), c = twiddled(2), d = twiddled(3);
      const Complex<V> even = {a.real + c.real, a.imag + c.imag}, odd = {b.real + d.real, b.imag + d.imag};
      const Complex<V> left = {a.real - c.real, a.imag - c.imag};
      const Complex<V> right = {(d.imag - b.imag) * sign, (b.real - d.real) * sign};
      to[k] = {even.real + odd.real, even.imag + odd.imag};
      to[m + k] = {left.real + right.real, left.imag + right.imag};
      to[2 * m + k] = {even.real - odd.real, even.imag - odd.imag};
      to[3 * m + k] = {left.real - right.real, left.imag - right.imag};
    }
    return;
  }
  for (size_t k = 0; k < n; k += m)
    for (size_t i = 0; i < m; ++i) {
      V real = {}, imag = {};
      size_t power = 0;
      for (size_t r = 0; r < factor; ++r) {
        const Complex<V> x = spare[r * m + i];
        const Complex<T> w = root[power * turn];
        real += x.real * w.real - x.imag * w.imag;
        imag += x.real * w.imag + x.imag * w.real;
        power += k + i;
        if (power >= n) power -= n;
      }
      to[k + i] = {real, imag};
    }
}

/// Transforms lines of n elements, one per step of `walk`, or as many at a time as V has lanes. `read(offset,
/// i)` returns an element of a line; `write(offset, i, value)` stores an element of the result. `room` is
/// scratch memory of the size that room_for() returns.
template <typename V, typename T, typename Read, typename Write>
void transform_lines(void* room, size_t n, bool forward, double scale, Walk<2> walk, Read read, Write write) {
  constexpr size_t kAtOnce = sizeof(V) / sizeof(T);
  auto* const line = static_cast<Complex<V>*>(room);
  Complex<V>*const result = line + n, *const spare = result + n;
  auto* const root = reinterpret_cast<Complex<T>*>(spare + n);
  for (size_t k = 0; k < n; ++k) {
    const double angle = (forward ? -2 : 2) * M_PI * static_cast<double>(k) / static_cast<double>(n);
    root[k] = {static_cast<T>(std::cos(angle)), static_cast<T>(std::sin(angle))};
  }
  const T* const found = reinterpret_cast<const T*>(result);
  for (bool more = true; more;) {
    ptrdiff_t to[kAtOnce];
    size_t count = 0;
    for (; more && count < kAtOnce; ++count) {
      T* const lane = reinterpret_cast<T*>(line) + count;
      for (size_t i = 0; i < n; ++i) {
        const Complex<T> value = read(walk.offset[0], i);
        lane[2 * i * kAtOnce] = value.real;
        lane[(2 * i + 1) * kAtOnce] = value.imag;
      }
      to[count] = walk.offset[1];
      more = walk.next();
    }
    transform(line, 1, result, n, root, n, spare);
    for (size_t c = 0; c < count; ++c)
      for (size_t i = 0; i < n; ++i)
        write(to[c], i,
              Complex<T>{static_cast<T>(found[2 * i * kAtOnce + c] * scale),
                         static_cast<T>(found[(2 * i + 1) * kAtOnce + c] * scale)});
  }
}

/// Scratch memory of all transforms of a call. Several lines are transformed at a time if there are several
/// lines, the lines are short, the target has vectors, and the memory suffices. Targets with short vectors
/// have less memory and benefit less.
template <typename T>
class Workspace {
 public:
  /// Allocates memory for transforms along the dimensions `dims` of a tensor with the sizes of `x`.
  Error make(Context& context, const Tensor& x, uint32_t dims) {
    size_t max_length = 0;
    for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
      if ((dims >> d & 1u) != 0 && static_cast<size_t>(x.sizes()[d]) > max_length)
        max_length = static_cast<size_t>(x.sizes()[d]);
    constexpr size_t kMaxLength = 2048;
    together_ = kLanes >= 8 && static_cast<size_t>(x.numel()) > 2 * max_length && max_length <= kMaxLength;
    if (together_) room_ = context.allocate_temp(bytes<V>(max_length));
    together_ = room_ != nullptr;
    if (!together_) room_ = context.allocate_temp(bytes<T>(max_length));
    TORCHETTE_CHECK(room_ != nullptr, MemoryAllocationFailed,
                    "no scratch memory for a transform of length %zu", max_length);
    return Error::Ok;
  }
  /// See transform_lines.
  template <typename Read, typename Write>
  void each_line(size_t n, bool forward, double scale, const Walk<2>& walk, Read read, Write write) {
    if (together_)
      transform_lines<V, T>(room_, n, forward, scale, walk, read, write);
    else
      transform_lines<T, T>(room_, n, forward, scale, walk, read, write);
  }

 private:
  using V = typename Lines<T>::type;
  template <typename Number>
  static size_t bytes(size_t n) {
    return n * (3 * sizeof(Complex<Number>) + sizeof(Complex<T>));
  }
  void* room_ = nullptr;
  bool together_ = false;
};

/// Returns the scale factor of a transform over `count` elements.
Error scale_of(int64_t normalization, double count, double& scale) {
  TORCHETTE_CHECK(normalization >= 0 && normalization <= 2, InvalidArgument,
                  "fft: normalization is %lld, expected 0, 1 or 2", static_cast<long long>(normalization));
  scale = normalization == 0 ? 1 : normalization == 1 ? 1 / std::sqrt(count) : 1 / count;
  return Error::Ok;
}

/// Returns a walk over all lines along `dim` of a tensor of `sizes`.
Walk<2> lines(Span<const SizesType> sizes, size_t dim, const Tensor& a, const Tensor& b) {
  Walk<2> walk;
  walk.rank = sizes.size();
  for (size_t d = 0; d < walk.rank; ++d) {
    walk.size[d] = d == dim ? 1 : static_cast<size_t>(sizes[d]);
    walk.stride[0][d] = a.strides()[d];
    walk.stride[1][d] = b.strides()[d];
  }
  return walk;
}

/// Transforms `x` along `dim` into `out`. Both are complex and may share memory.
template <typename T>
void transform_along(Workspace<T>& work, const Tensor& x, size_t dim, bool forward, double scale,
                     const Tensor& out) {
  const auto n = static_cast<size_t>(x.sizes()[dim]);
  const ptrdiff_t from_step = x.strides()[dim], to_step = out.strides()[dim];
  work.each_line(
      n, forward, scale, lines(x.sizes(), dim, x, out),
      [&](ptrdiff_t line, size_t i) {
        return x.const_data_ptr<Complex<T>>()[line + static_cast<ptrdiff_t>(i) * from_step];
      },
      [&](ptrdiff_t line, size_t i, Complex<T> value) {
        out.mutable_data_ptr<Complex<T>>()[line + static_cast<ptrdiff_t>(i) * to_step] = value;
      });
}

Error copy_elements(const Tensor& from, const Tensor& to) {
  Move nest;
  for (size_t d = 0; d < static_cast<size_t>(to.dim()); ++d)
    nest.add(static_cast<size_t>(to.sizes()[d]), to.strides()[d], from.strides()[d]);
  if (from.const_data_ptr() != to.const_data_ptr())
    move(nest, to.mutable_data_ptr(), from.const_data_ptr(), element_size(to.scalar_type()));
  return Error::Ok;
}

Error check_dims(const Tensor& x, Span<const int64_t> dims, uint32_t& set) {
  TORCHETTE_TRY(wrap_dims(dims, static_cast<size_t>(x.dim()), set));
  TORCHETTE_CHECK(!dims.empty() && x.dim() > 0, InvalidArgument,
                  "fft: dim is empty or self has no dimensions");
  return Error::Ok;
}
size_t wrapped(int64_t dim, const Tensor& x) { return static_cast<size_t>(dim < 0 ? dim + x.dim() : dim); }

Error fft_c2c_out(Context& context, const Tensor& x, Span<const int64_t> dims, int64_t normalization,
                  bool forward, Tensor& out) {
  uint32_t set;
  TORCHETTE_TRY(check_dims(x, dims, set));
  TORCHETTE_CHECK(is_complex(x.scalar_type()) && out.scalar_type() == x.scalar_type(), InvalidType,
                  "_fft_c2c: self is of type %d, out of type %d", static_cast<int>(x.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  double count = 1, scale;
  for (int64_t dim : dims) count *= x.sizes()[wrapped(dim, x)];
  TORCHETTE_TRY(scale_of(normalization, count, scale));
  if (out.numel() == 0) return Error::Ok;
  const auto body = [&](auto t) {
    Workspace<decltype(t)> work;
    TORCHETTE_TRY(work.make(context, x, set));
    const Tensor* from = &x;
    for (int64_t dim : dims) {
      transform_along(work, *from, wrapped(dim, x), forward, scale, out);
      from = &out;
      scale = 1;
    }
    return Error::Ok;
  };
  return x.scalar_type() == ScalarType::ComplexDouble ? body(double()) : body(float());
}

Error fft_r2c_out(Context& context, const Tensor& x, Span<const int64_t> dims, int64_t normalization,
                  bool onesided, Tensor& out) {
  uint32_t set;
  TORCHETTE_TRY(check_dims(x, dims, set));
  TORCHETTE_CHECK(is_complex(out.scalar_type()) && x.scalar_type() == real_of(out.scalar_type()), InvalidType,
                  "_fft_r2c: self is of type %d, out of type %d", static_cast<int>(x.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  const size_t last = wrapped(dims[dims.size() - 1], x);
  SizesType sizes[kMaxDim];
  double count = 1, scale;
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d) {
    sizes[d] = x.sizes()[d];
    if ((set >> d & 1u) != 0) count *= sizes[d];
  }
  if (onesided) sizes[last] = x.sizes()[last] / 2 + 1;
  TORCHETTE_CHECK(x.sizes()[last] > 0, InvalidArgument, "_fft_r2c: self has size 0 in the last of dim");
  TORCHETTE_TRY(scale_of(normalization, count, scale));
  TORCHETTE_TRY(resize_result(out, {sizes, static_cast<size_t>(x.dim())}));
  if (out.numel() == 0) return Error::Ok;
  const auto body = [&](auto t) {
    using T = decltype(t);
    const auto n = static_cast<size_t>(x.sizes()[last]), kept = static_cast<size_t>(sizes[last]);
    const ptrdiff_t from_step = x.strides()[last], to_step = out.strides()[last];
    Workspace<T> work;
    TORCHETTE_TRY(work.make(context, x, set));
    work.each_line(
        n, true, scale, lines(x.sizes(), last, x, out),
        [&](ptrdiff_t line, size_t i) {
          return Complex<T>{x.const_data_ptr<T>()[line + static_cast<ptrdiff_t>(i) * from_step], 0};
        },
        [&](ptrdiff_t line, size_t i, Complex<T> value) {
          if (i < kept)
            out.mutable_data_ptr<Complex<T>>()[line + static_cast<ptrdiff_t>(i) * to_step] = value;
        });
    for (size_t i = 0; i + 1 < dims.size(); ++i)
      transform_along(work, out, wrapped(dims[i], x), true, 1, out);
    return Error::Ok;
  };
  return x.scalar_type() == ScalarType::Double ? body(double()) : body(float());
}

Error fft_c2r_out(Context& context, const Tensor& x, Span<const int64_t> dims, int64_t normalization,
                  int64_t size, Tensor& out) {
  uint32_t set;
  TORCHETTE_TRY(check_dims(x, dims, set));
  TORCHETTE_CHECK(is_complex(x.scalar_type()) && out.scalar_type() == real_of(x.scalar_type()), InvalidType,
                  "_fft_c2r: self is of type %d, out of type %d", static_cast<int>(x.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  const size_t last = wrapped(dims[dims.size() - 1], x);
  TORCHETTE_CHECK(size >= 1 && size <= INT32_MAX && x.sizes()[last] >= size / 2 + 1, InvalidArgument,
                  "_fft_c2r: last_dim_size is %lld, which does not fit %d complex elements of self",
                  static_cast<long long>(size), x.sizes()[last]);
  SizesType sizes[kMaxDim];
  double count = 1, scale;
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d) {
    sizes[d] = d == last ? static_cast<SizesType>(size) : x.sizes()[d];
    if ((set >> d & 1u) != 0) count *= sizes[d];
  }
  TORCHETTE_TRY(scale_of(normalization, count, scale));
  TORCHETTE_TRY(resize_result(out, {sizes, static_cast<size_t>(x.dim())}));
  if (out.numel() == 0) return Error::Ok;
  const auto body = [&](auto t) {
    using T = decltype(t);
    Tensor from = x;
    View copy(x);
    if (dims.size() > 1) {
      // Transforms the other dimensions first, in a copy.
      copy.impl.data = context.allocate_temp(x.nbytes());
      TORCHETTE_CHECK(copy.impl.data != nullptr, MemoryAllocationFailed, "_fft_c2r: no scratch memory");
      from = copy.tensor();
      TORCHETTE_TRY(copy_elements(x, from));
    }
    Workspace<T> work;
    TORCHETTE_TRY(work.make(context, out, set));
    for (size_t i = 0; i + 1 < dims.size(); ++i)
      transform_along(work, from, wrapped(dims[i], x), false, 1, from);
    const auto n = static_cast<size_t>(size);
    const ptrdiff_t from_step = from.strides()[last], to_step = out.strides()[last];
    work.each_line(
        n, false, scale, lines(out.sizes(), last, from, out),
        [&](ptrdiff_t line, size_t i) {
          // The second half of a line is the conjugate mirror image of the first half.
          const bool mirrored = i > n / 2, is_real = i == 0 || 2 * i == n;
          const auto position = static_cast<ptrdiff_t>(mirrored ? n - i : i);
          const Complex<T> value = from.const_data_ptr<Complex<T>>()[line + position * from_step];
          return Complex<T>{value.real, is_real ? T(0) : mirrored ? -value.imag : value.imag};
        },
        [&](ptrdiff_t line, size_t i, Complex<T> value) {
          out.mutable_data_ptr<T>()[line + static_cast<ptrdiff_t>(i) * to_step] = value.real;
        });
    return Error::Ok;
  };
  return x.scalar_type() == ScalarType::ComplexDouble ? body(double()) : body(float());
}

// --- Conjugation and views of complex tensors

Error conj_physical_out(Context&, const Tensor& x, Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  if (!is_complex(x.scalar_type())) return assign(x, out);
  TORCHETTE_CHECK(same_dim_order(x, out), NotSupported,
                  "_conj_physical: self and out have different dim orders");
  const auto negate = [&](auto t) {
    using T = decltype(t);
    for (ptrdiff_t i = 0; i < x.numel(); ++i) {
      const Complex<T> value = x.const_data_ptr<Complex<T>>()[i];
      out.mutable_data_ptr<Complex<T>>()[i] = {value.real, -value.imag};
    }
  };
  x.scalar_type() == ScalarType::ComplexDouble ? negate(double()) : negate(float());
  return Error::Ok;
}

/// Copies the bytes between n complex elements and n pairs of real elements.
Error same_bytes(const char* name, const Tensor& complex, const Tensor& real, const Tensor& x,
                 const Tensor& out) {
  TORCHETTE_CHECK(is_complex(complex.scalar_type()) && real.scalar_type() == real_of(complex.scalar_type()),
                  InvalidType, "%s: self is of type %d, out of type %d", name,
                  static_cast<int>(x.scalar_type()), static_cast<int>(out.scalar_type()));
  TORCHETTE_CHECK(is_contiguous(x) && is_contiguous(out), NotSupported, "%s: self or out is not contiguous",
                  name);
  if (x.const_data_ptr() != out.const_data_ptr() && x.numel() > 0)
    memmove(out.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());
  return Error::Ok;
}
Error view_as_real_copy_out(Context&, const Tensor& x, Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_CHECK(rank < kMaxDim, InvalidArgument, "view_as_real_copy: self has 16 dimensions, the maximum");
  SizesType sizes[kMaxDim];
  for (size_t d = 0; d < rank; ++d) sizes[d] = x.sizes()[d];
  sizes[rank] = 2;
  TORCHETTE_TRY(resize_result(out, {sizes, rank + 1}));
  return same_bytes("view_as_real_copy", x, out, x, out);
}
Error view_as_complex_copy_out(Context&, const Tensor& x, Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_CHECK(rank > 0 && x.sizes()[rank - 1] == 2, InvalidArgument,
                  "view_as_complex_copy: the last size of self is not 2");
  TORCHETTE_TRY(resize_result(out, {x.sizes().data(), rank - 1}));
  return same_bytes("view_as_complex_copy", out, x, x, out);
}

}  // namespace

TORCHETTE_KERNELS_NARROW(fft,                                                                     //
                         TORCHETTE_KERNEL("aten::_fft_c2c.out", fft_c2c_out),                     //
                         TORCHETTE_KERNEL("aten::_fft_r2c.out", fft_r2c_out),                     //
                         TORCHETTE_KERNEL("aten::_fft_c2r.out", fft_c2r_out),                     //
                         TORCHETTE_KERNEL("aten::_conj_physical.out", conj_physical_out),         //
                         TORCHETTE_KERNEL("aten::view_as_real_copy.out", view_as_real_copy_out),  //
                         TORCHETTE_KERNEL("aten::view_as_complex_copy.out", view_as_complex_copy_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
