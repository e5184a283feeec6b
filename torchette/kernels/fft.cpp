// SPDX-License-Identifier: BSD-3-Clause
// Complex numbers: discrete Fourier transforms, conjugates, and complex tensors as pairs of real numbers and
// back. A transform's length is split into its prime factors; the cost is its length times their sum.
#include <cmath>
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
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

/// to[k] = sum over j of from[j * step] e^(sign 2 pi i j k / n), for k < n. `root` has the first `whole`
/// powers of e^(sign 2 pi i / whole), of which n is a divisor; `spare` has room for n numbers.
template <typename T>
void transform(const Complex<T>* from, size_t step, Complex<T>* to, size_t n, const Complex<T>* root,
               size_t whole, Complex<T>* spare) {
  if (n == 1) {
    to[0] = from[0];
    return;
  }
  size_t factor = 2;
  while (factor * factor <= n && n % factor != 0) ++factor;
  if (n % factor != 0) factor = n;
  // The elements whose places leave the same rest when divided by the factor are transforms of their own.
  const size_t m = n / factor;
  for (size_t r = 0; r < factor; ++r)
    transform(from + r * step, step * factor, spare + r * m, m, root, whole, to + r * m);
  const size_t turn = whole / n;
  if (factor == 2) {
    for (size_t k = 0; k < m; ++k) {
      const Complex<T> w = root[k * turn], a = spare[k], x = spare[m + k];
      const Complex<T> b = {x.real * w.real - x.imag * w.imag, x.real * w.imag + x.imag * w.real};
      to[k] = {a.real + b.real, a.imag + b.imag};
      to[m + k] = {a.real - b.real, a.imag - b.imag};
    }
    return;
  }
  for (size_t k = 0; k < n; k += m)
    for (size_t i = 0; i < m; ++i) {
      T real = 0, imag = 0;
      size_t power = 0;
      for (size_t r = 0; r < factor; ++r) {
        const Complex<T> x = spare[r * m + i], w = root[power * turn];
        real += x.real * w.real - x.imag * w.imag;
        imag += x.real * w.imag + x.imag * w.real;
        power += k + i;
        if (power >= n) power -= n;
      }
      to[k + i] = {real, imag};
    }
}

/// Scratch of transforms of length n.
template <typename T>
struct Workspace {
  Complex<T>*line, *result, *root, *spare;

  Error make(Context& context, size_t n, bool forward) {
    line = static_cast<Complex<T>*>(context.allocate_temp(4 * n * sizeof(Complex<T>)));
    TORCHETTE_CHECK(line != nullptr, MemoryAllocationFailed, "no scratch memory for a transform of %zu", n);
    result = line + n;
    root = result + n;
    spare = root + n;
    for (size_t k = 0; k < n; ++k) {
      const double angle = (forward ? -2 : 2) * M_PI * static_cast<double>(k) / static_cast<double>(n);
      root[k] = {static_cast<T>(std::cos(angle)), static_cast<T>(std::sin(angle))};
    }
    return Error::Ok;
  }
};

/// What a transform over `count` elements is multiplied by.
Error scale_of(int64_t normalization, double count, double& scale) {
  TORCHETTE_CHECK(normalization >= 0 && normalization <= 2, InvalidArgument, "fft: normalization is %lld",
                  static_cast<long long>(normalization));
  scale = normalization == 0 ? 1 : normalization == 1 ? 1 / std::sqrt(count) : 1 / count;
  return Error::Ok;
}

/// All lines along `dim` of `sizes`.
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

/// out = the transform of `x` along `dim`; both are complex and may be the same memory.
template <typename T>
Error transform_along(Context& context, const Tensor& x, size_t dim, bool forward, double scale,
                      const Tensor& out) {
  const auto n = static_cast<size_t>(x.sizes()[dim]);
  if (out.numel() == 0) return Error::Ok;
  Workspace<T> work;
  TORCHETTE_TRY(work.make(context, n, forward));
  Walk<2> walk = lines(x.sizes(), dim, x, out);
  do {
    const Complex<T>* from = x.const_data_ptr<Complex<T>>() + walk.offset[0];
    Complex<T>* to = out.mutable_data_ptr<Complex<T>>() + walk.offset[1];
    for (size_t i = 0; i < n; ++i) work.line[i] = from[static_cast<ptrdiff_t>(i) * x.strides()[dim]];
    transform(work.line, 1, work.result, n, work.root, n, work.spare);
    for (size_t i = 0; i < n; ++i)
      to[static_cast<ptrdiff_t>(i) * out.strides()[dim]] = {static_cast<T>(work.result[i].real * scale),
                                                            static_cast<T>(work.result[i].imag * scale)};
  } while (walk.next());
  return Error::Ok;
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
  TORCHETTE_CHECK(!dims.empty() && x.dim() > 0, InvalidArgument, "fft: dim names no dimension of self");
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
  const Tensor* from = &x;
  for (int64_t dim : dims) {
    const size_t d = wrapped(dim, x);
    TORCHETTE_TRY(x.scalar_type() == ScalarType::ComplexFloat
                      ? transform_along<float>(context, *from, d, forward, scale, out)
                      : transform_along<double>(context, *from, d, forward, scale, out));
    from = &out;
    scale = 1;
  }
  return Error::Ok;
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
  TORCHETTE_CHECK(x.sizes()[last] > 0, InvalidArgument, "_fft_r2c: the last of dim has no elements");
  TORCHETTE_TRY(scale_of(normalization, count, scale));
  TORCHETTE_TRY(resize_result(out, {sizes, static_cast<size_t>(x.dim())}));
  if (out.numel() == 0) return Error::Ok;
  const auto body = [&](auto t) {
    using T = decltype(t);
    const auto n = static_cast<size_t>(x.sizes()[last]), kept = static_cast<size_t>(sizes[last]);
    Workspace<T> work;
    TORCHETTE_TRY(work.make(context, n, true));
    Walk<2> walk = lines(x.sizes(), last, x, out);
    do {
      for (size_t i = 0; i < n; ++i)
        work.line[i] = {x.const_data_ptr<T>()[walk.offset[0] + static_cast<ptrdiff_t>(i) * x.strides()[last]],
                        0};
      transform(work.line, 1, work.result, n, work.root, n, work.spare);
      Complex<T>* to = out.mutable_data_ptr<Complex<T>>() + walk.offset[1];
      for (size_t i = 0; i < kept; ++i)
        to[static_cast<ptrdiff_t>(i) * out.strides()[last]] = {static_cast<T>(work.result[i].real * scale),
                                                               static_cast<T>(work.result[i].imag * scale)};
    } while (walk.next());
    for (size_t i = 0; i + 1 < dims.size(); ++i)
      TORCHETTE_TRY(transform_along<T>(context, out, wrapped(dims[i], x), true, 1, out));
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
                  "_fft_c2r: last_dim_size is %lld, which %d complex numbers do not make",
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
      // The other dimensions first, in a copy.
      copy.impl.data = context.allocate_temp(x.nbytes());
      TORCHETTE_CHECK(copy.impl.data != nullptr, MemoryAllocationFailed, "_fft_c2r: no scratch memory");
      from = copy.tensor();
      TORCHETTE_TRY(copy_elements(x, from));
      for (size_t i = 0; i + 1 < dims.size(); ++i)
        TORCHETTE_TRY(transform_along<T>(context, from, wrapped(dims[i], x), false, 1, from));
    }
    const auto n = static_cast<size_t>(size);
    Workspace<T> work;
    TORCHETTE_TRY(work.make(context, n, false));
    Walk<2> walk = lines(out.sizes(), last, from, out);
    do {
      // The second half is the first one's mirror image.
      for (size_t i = 0; i < n; ++i) {
        const bool mirrored = i > n / 2;
        const Complex<T> value =
            from.const_data_ptr<Complex<T>>()[walk.offset[0] + static_cast<ptrdiff_t>(mirrored ? n - i : i) *
                                                                   from.strides()[last]];
        const bool is_real = i == 0 || 2 * i == n;
        work.line[i] = {value.real, is_real ? T(0) : mirrored ? -value.imag : value.imag};
      }
      transform(work.line, 1, work.result, n, work.root, n, work.spare);
      for (size_t i = 0; i < n; ++i)
        out.mutable_data_ptr<T>()[walk.offset[1] + static_cast<ptrdiff_t>(i) * out.strides()[last]] =
            static_cast<T>(work.result[i].real * scale);
    } while (walk.next());
    return Error::Ok;
  };
  return x.scalar_type() == ScalarType::ComplexDouble ? body(double()) : body(float());
}

// --- Parts of complex numbers

Error conj_physical_out(Context&, const Tensor& x, Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  if (!is_complex(x.scalar_type())) return assign(x, out);
  TORCHETTE_CHECK(same_dim_order(x, out), NotSupported,
                  "_conj_physical: self and out lie in different orders");
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

/// Between n complex numbers and n pairs of real ones: the same bytes.
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
  TORCHETTE_CHECK(rank < kMaxDim, InvalidArgument, "view_as_real_copy: self has 16 dimensions already");
  SizesType sizes[kMaxDim];
  for (size_t d = 0; d < rank; ++d) sizes[d] = x.sizes()[d];
  sizes[rank] = 2;
  TORCHETTE_TRY(resize_result(out, {sizes, rank + 1}));
  return same_bytes("view_as_real_copy", x, out, x, out);
}
Error view_as_complex_copy_out(Context&, const Tensor& x, Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_CHECK(rank > 0 && x.sizes()[rank - 1] == 2, InvalidArgument,
                  "view_as_complex_copy: self's last size is not 2");
  TORCHETTE_TRY(resize_result(out, {x.sizes().data(), rank - 1}));
  return same_bytes("view_as_complex_copy", out, x, x, out);
}

}  // namespace

TORCHETTE_KERNELS(transforms,                                                              //
                  TORCHETTE_KERNEL("aten::_fft_c2c.out", fft_c2c_out),                     //
                  TORCHETTE_KERNEL("aten::_fft_r2c.out", fft_r2c_out),                     //
                  TORCHETTE_KERNEL("aten::_fft_c2r.out", fft_c2r_out),                     //
                  TORCHETTE_KERNEL("aten::_conj_physical.out", conj_physical_out),         //
                  TORCHETTE_KERNEL("aten::view_as_real_copy.out", view_as_real_copy_out),  //
                  TORCHETTE_KERNEL("aten::view_as_complex_copy.out", view_as_complex_copy_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
