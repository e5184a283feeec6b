// SPDX-License-Identifier: BSD-3-Clause
// Random tensors: rand, randn, randint, randperm, native_dropout. A process has one sequence with a fixed
// seed, so its random values are reproducible.
#include <atomic>
#include <cmath>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

std::atomic<uint64_t> drawn{0};

/// 64-bit random integers: a counter with the finalizer of SplitMix (Steele, Lea and Flood).
class Sequence {
 public:
  explicit Sequence(size_t count) : next_(drawn.fetch_add(count, std::memory_order_relaxed)) {}
  uint64_t bits() {
    uint64_t z = ++next_ * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
  }
  /// Returns a uniform value in [0, 1). `width` must not exceed the mantissa, so that no value is rounded up
  /// to 1.
  double uniform(int width) { return std::ldexp(static_cast<double>(bits() >> (64 - width)), -width); }

 private:
  uint64_t next_;
};

int significant_bits(ScalarType type) {
  return type == ScalarType::Double ? 53 : type == ScalarType::Float ? 24 : type == ScalarType::Half ? 11 : 8;
}

Error resize(const char* name, const Tensor& out, Span<const int64_t> sizes) {
  SizesType narrow[kMaxDim];
  TORCHETTE_CHECK(sizes.size() <= kMaxDim, InvalidArgument, "%s: size has more than 16 dimensions", name);
  for (size_t d = 0; d < sizes.size(); ++d) {
    TORCHETTE_CHECK(sizes[d] >= 0 && sizes[d] <= INT32_MAX, InvalidArgument, "%s: size %lld is out of range",
                    name, static_cast<long long>(sizes[d]));
    narrow[d] = static_cast<SizesType>(sizes[d]);
  }
  return resize_result(out, {narrow, sizes.size()});
}

Error draw_uniform(Context& context, const Tensor& out) {
  return for_compute<false>(out.scalar_type(), "rand", "out", [&](auto t) {
    using T = decltype(t);
    Dense to;
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const int width = significant_bits(out.scalar_type());
    Sequence sequence(static_cast<size_t>(out.numel()));
    for (ptrdiff_t i = 0; i < out.numel(); ++i) to.data<T>()[i] = static_cast<T>(sequence.uniform(width));
    return to.finish();
  });
}

/// Box-Muller transform: converts pairs of uniform values to pairs of normal values.
Error draw_normal(Context& context, const Tensor& out) {
  return for_compute<false>(out.scalar_type(), "randn", "out", [&](auto t) {
    using T = decltype(t);
    Dense to;
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    Sequence sequence(static_cast<size_t>(out.numel()) + 1);
    for (ptrdiff_t i = 0; i < out.numel(); i += 2) {
      const double radius = std::sqrt(-2 * std::log(1 - sequence.uniform(53)));
      const double angle = 2 * M_PI * sequence.uniform(53);
      to.data<T>()[i] = static_cast<T>(radius * std::cos(angle));
      if (i + 1 < out.numel()) to.data<T>()[i + 1] = static_cast<T>(radius * std::sin(angle));
    }
    return to.finish();
  });
}

Error draw_integers(Context& context, const Tensor& out, int64_t low, int64_t high) {
  TORCHETTE_CHECK(low < high, InvalidArgument, "randint: low %lld must be less than high %lld",
                  static_cast<long long>(low), static_cast<long long>(high));
  Dense to;
  TORCHETTE_TRY(to.open(context, out, ScalarType::Long));
  const uint64_t range = static_cast<uint64_t>(high) - static_cast<uint64_t>(low);
  Sequence sequence(static_cast<size_t>(out.numel()));
  for (ptrdiff_t i = 0; i < out.numel(); ++i)
    to.data<int64_t>()[i] = static_cast<int64_t>(static_cast<uint64_t>(low) + sequence.bits() % range);
  return to.finish();
}

Error rand_out(Context& context, Span<const int64_t> sizes, Tensor& out) {
  TORCHETTE_TRY(resize("rand", out, sizes));
  return draw_uniform(context, out);
}
Error randn_out(Context& context, Span<const int64_t> sizes, Tensor& out) {
  TORCHETTE_TRY(resize("randn", out, sizes));
  return draw_normal(context, out);
}
Error rand_like_out(Context& context, const Tensor& like, Optional<int64_t>, Tensor& out) {
  TORCHETTE_TRY(resize_result(out, like.sizes()));
  return draw_uniform(context, out);
}
Error randn_like_out(Context& context, const Tensor& like, Optional<int64_t>, Tensor& out) {
  TORCHETTE_TRY(resize_result(out, like.sizes()));
  return draw_normal(context, out);
}
Error randint_low_out(Context& context, int64_t low, int64_t high, Span<const int64_t> sizes, Tensor& out) {
  TORCHETTE_TRY(resize("randint", out, sizes));
  return draw_integers(context, out, low, high);
}
Error randint_out(Context& context, int64_t high, Span<const int64_t> sizes, Tensor& out) {
  return randint_low_out(context, 0, high, sizes, out);
}
Error randperm_out(Context& context, int64_t n, Tensor& out) {
  TORCHETTE_TRY(resize("randperm: n", out, {&n, 1}));
  Dense to;
  TORCHETTE_TRY(to.open(context, out, ScalarType::Long));
  int64_t* position = to.data<int64_t>();
  Sequence sequence(static_cast<size_t>(n));
  for (int64_t i = 0; i < n; ++i) {
    const auto other = static_cast<int64_t>(sequence.bits() % static_cast<uint64_t>(i + 1));
    position[i] = position[other];
    position[other] = i;
  }
  return to.finish();
}

Error native_dropout_out(Context& context, const Tensor& x, double p, Optional<bool> train, Tensor& out,
                         Tensor& mask) {
  TORCHETTE_CHECK(p >= 0 && p <= 1, InvalidArgument, "native_dropout: p is %g, expected 0 to 1", p);
  TORCHETTE_CHECK(
      mask.scalar_type() == ScalarType::Bool && out.scalar_type() == x.scalar_type(), InvalidType,
      "native_dropout: out0 is of type %d and out1 of type %d, expected the type of input and bool",
      static_cast<int>(out.scalar_type()), static_cast<int>(mask.scalar_type()));
  TORCHETTE_TRY(resize_result(out, x.sizes(), "out0"));
  TORCHETTE_TRY(resize_result(mask, x.sizes(), "out1"));
  return for_compute<false>(x.scalar_type(), "native_dropout", "input", [&](auto t) {
    using T = decltype(t);
    Dense from, to, kept;
    TORCHETTE_TRY(from.read(context, x, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    TORCHETTE_TRY(kept.open(context, mask, ScalarType::Bool));
    const bool drops = train.value_or(true);
    const T scale = !drops ? T(1) : p == 1 ? T(0) : static_cast<T>(1 / (1 - p));
    Sequence sequence(static_cast<size_t>(x.numel()));
    for (ptrdiff_t i = 0; i < x.numel(); ++i) {
      const bool keeps = !drops || sequence.uniform(53) >= p;
      kept.data<bool>()[i] = keeps;
      to.data<T>()[i] = keeps ? from.data<T>()[i] * scale : T(0);
    }
    TORCHETTE_TRY(kept.finish());
    return to.finish();
  });
}

}  // namespace

TORCHETTE_KERNELS_ONCE(random,                                                      //
                       TORCHETTE_KERNEL("aten::rand.out", rand_out),                //
                       TORCHETTE_KERNEL("aten::randn.out", randn_out),              //
                       TORCHETTE_KERNEL("aten::rand_like.out", rand_like_out),      //
                       TORCHETTE_KERNEL("aten::randn_like.out", randn_like_out),    //
                       TORCHETTE_KERNEL("aten::randint.out", randint_out),          //
                       TORCHETTE_KERNEL("aten::randint.low_out", randint_low_out),  //
                       TORCHETTE_KERNEL("aten::randperm.out", randperm_out),        //
                       TORCHETTE_KERNEL("aten::native_dropout.out", native_dropout_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
