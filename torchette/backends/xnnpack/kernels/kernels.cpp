// SPDX-License-Identifier: BSD-3-Clause
// Kernels of this backend: matrix multiplications that broadcast, and the quantization of rows that XNNPACK
// uses.
#include <cmath>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"

namespace torchette {
namespace xnnpack {
namespace {

/// A batch of matrices. The caller checks the memory.
struct Matrices {
  SizesType sizes[3];
  StridesType strides[3];
  TensorImpl impl;

  /// [count, rows, columns]; transposed: the memory is [count, columns, rows].
  void set(float* data, size_t count, size_t rows, size_t columns, bool transposed) {
    static constexpr DimOrderType kRowMajor[] = {0, 1, 2}, kTransposed[] = {0, 2, 1};
    sizes[0] = static_cast<SizesType>(count);
    sizes[1] = static_cast<SizesType>(rows);
    sizes[2] = static_cast<SizesType>(columns);
    strides[0] = static_cast<StridesType>(rows * columns);
    strides[1] = static_cast<StridesType>(transposed ? 1 : columns);
    strides[2] = static_cast<StridesType>(transposed ? rows : 1);
    const size_t numel = count * rows * columns;
    impl = {data,
            sizes,
            strides,
            transposed ? kTransposed : kRowMajor,
            numel,
            static_cast<int32_t>(numel),
            3,
            ScalarType::Float,
            TensorShapeDynamism::STATIC};
  }
};

constexpr size_t kMinElementsPerThread = 1 << 14;  // per thread, so that a thread is worth its cost

/// Rounds a value between -2^22 and 2^22 to the nearest integer, ties to even.
float nearest(float x) {
  constexpr float kRounds = 12582912.0f;  // 1.5 * 2^23: floats of this magnitude are integers
  return (x + kRounds) - kRounds;
}

/// Quantizes a row like XNNPACK: integers from -128 to 127, one of which represents 0. A row with NaN or
/// infinity becomes NaN.
void round_row(const float* from, size_t length, float* to) {
  float low = 0.0f, high = 0.0f;
  bool finite = true;
  for (size_t i = 0; i < length; ++i) {
    low = from[i] < low ? from[i] : low;
    high = from[i] > high ? from[i] : high;
    finite &= from[i] - from[i] == 0.0f;
  }
  const float steps = low == high ? 1.0f : 255.0f / (high - low), step = 1.0f / steps;
  const float first = low * steps, last = high * steps;
  const float zero_point = (first - 128.0f) + (last + 127.0f) > 0.0f ? -128.0f - first : 127.0f - last;
  const float zero = nearest(zero_point < -128.0f ? -128.0f : zero_point > 127.0f ? 127.0f : zero_point);
  const float least = -128.0f - zero, most = 127.0f - zero;
  const float bad = finite ? 0.0f : NAN;
  for (size_t i = 0; i < length; ++i) {
    const float x = from[i] * steps;
    to[i] = nearest(x < least ? least : x > most ? most : x) * step + bad;
  }
}

/// Copies nothing if both tensors have the same memory, as the memory plan usually arranges.
Error same_elements(Context&, const Tensor& x, Tensor& out) {
  TORCHETTE_CHECK(x.dim() == out.dim(), InvalidArgument,
                  "a tensor of %td dimensions cannot become a tensor of %td", x.dim(), out.dim());
  SizesType sizes[delegate::kMaxRank];
  const auto rank = static_cast<size_t>(x.dim());
  for (size_t d = 0; d < rank; ++d) sizes[out.dim_order()[d]] = x.sizes()[x.dim_order()[d]];
  TORCHETTE_TRY(resize_tensor(out, {sizes, rank}));
  if (out.const_data_ptr() != x.const_data_ptr() && x.numel() != 0)
    memcpy(out.mutable_data_ptr(), x.const_data_ptr(), x.nbytes());
  return Error::Ok;
}

Error multiply(Context& context, const Tensor& first, const Tensor& second, bool transposed, Tensor& result) {
  const TensorImpl &a = *first.unsafe_impl(), &b = *second.unsafe_impl(), &out = *result.unsafe_impl();
  TORCHETTE_CHECK(a.dim >= 2 && b.dim >= 2, InvalidArgument, "a matmul has operands of %u and %u dimensions",
                  a.dim, b.dim);
  const auto from_end = [](const TensorImpl& t, size_t d) { return d < t.dim ? t.sizes[t.dim - 1 - d] : 1; };
  const auto rows = static_cast<size_t>(from_end(a, 1)), depth = static_cast<size_t>(from_end(a, 0)),
             columns = static_cast<size_t>(from_end(b, transposed ? 1 : 0));
  TORCHETTE_CHECK(from_end(a, 0) == from_end(b, transposed ? 0 : 1), InvalidArgument,
                  "a matmul has a left matrix of %d columns and a right matrix of %d rows",
                  static_cast<int>(from_end(a, 0)), static_cast<int>(from_end(b, transposed ? 0 : 1)));
  const size_t rank = a.dim > b.dim ? a.dim : b.dim;
  SizesType sizes[delegate::kMaxRank];
  size_t batches = 1;
  bool a_repeats = false, b_repeats = false;
  sizes[rank - 1] = static_cast<SizesType>(columns);
  sizes[rank - 2] = static_cast<SizesType>(rows);
  for (size_t d = 2; d < rank; ++d) {
    const SizesType x = from_end(a, d), y = from_end(b, d);
    TORCHETTE_CHECK(x == y || x == 1 || y == 1, InvalidArgument, "a matmul has batches of %d and %d matrices",
                    static_cast<int>(x), static_cast<int>(y));
    sizes[rank - 1 - d] = x == 1 ? y : x;
    a_repeats |= x != sizes[rank - 1 - d];
    b_repeats |= y != sizes[rank - 1 - d];
    batches *= static_cast<size_t>(sizes[rank - 1 - d]);
  }
  TORCHETTE_TRY(resize_tensor(result, {sizes, rank}));
  auto* const x = static_cast<float*>(a.data);
  auto* const y = static_cast<float*>(b.data);
  auto* const z = static_cast<float*>(out.data);
  const Kernel* const bmm = find_kernel("aten::bmm.out");
  TORCHETTE_CHECK(bmm != nullptr, OperatorMissing, "there is no kernel for aten::bmm.out");
  const auto product = [&](size_t count, float* left, size_t m, float* right, float* to) {
    static constexpr int32_t kIndices[] = {0, 1, 2};
    Matrices of[3];
    of[0].set(left, count, m, depth, false);
    of[1].set(right, count, depth, columns, transposed);
    of[2].set(to, count, m, columns, false);
    Value arguments[] = {Tensor(&of[0].impl), Tensor(&of[1].impl), Tensor(&of[2].impl)};
    return bmm->function(context, {arguments, kIndices});
  };
  if (!a_repeats && !b_repeats) return product(batches, x, rows, y, z);
  if (!a_repeats && b.numel == static_cast<int32_t>(depth * columns))
    return product(1, x, batches * rows, y, z);
  for (size_t batch = 0; batch < batches; ++batch) {
    size_t remaining = batch, i = 0, j = 0, i_step = 1, j_step = 1;
    for (size_t d = 2; d < rank; ++d) {  // from the last dimension to the first
      const auto count = static_cast<size_t>(sizes[rank - 1 - d]);
      const size_t at = remaining % count;
      remaining /= count;
      if (from_end(a, d) != 1) i += at * i_step;
      if (from_end(b, d) != 1) j += at * j_step;
      i_step *= static_cast<size_t>(from_end(a, d));
      j_step *= static_cast<size_t>(from_end(b, d));
    }
    TORCHETTE_TRY(
        product(1, x + i * rows * depth, rows, y + j * depth * columns, z + batch * rows * columns));
    context.reset_temp();
  }
  return Error::Ok;
}

/// Whether a weight is +0.0. A weight of -0.0 is not skipped, so NaN and infinity become NaN.
bool is_skipped(float weight) {
  uint32_t bits;
  memcpy(&bits, &weight, sizeof(bits));
  return bits == 0;
}

Error combine_rows(Context& context, const Tensor& first, const Tensor& second, Tensor& result) {
  const TensorImpl &w = *first.unsafe_impl(), &in = *second.unsafe_impl();
  TORCHETTE_CHECK(w.dim == 2 && in.dim >= 2 && w.sizes[1] == in.sizes[in.dim - 2], InvalidArgument,
                  "weights of %u dimensions do not match an input of %u dimensions", w.dim, in.dim);
  SizesType sizes[delegate::kMaxRank];
  for (size_t d = 0; d < in.dim; ++d) sizes[d] = in.sizes[d];
  sizes[in.dim - 2] = w.sizes[0];
  TORCHETTE_TRY(resize_tensor(result, {sizes, in.dim}));
  const auto rows = static_cast<size_t>(w.sizes[0]), depth = static_cast<size_t>(w.sizes[1]),
             columns = static_cast<size_t>(in.sizes[in.dim - 1]);
  const TensorImpl& out = *result.unsafe_impl();
  const auto* const weights = static_cast<const float*>(w.data);
  const auto* const x = static_cast<const float*>(in.data);
  auto* const y = static_cast<float*>(out.data);
  const size_t count = columns == 0 ? 0 : static_cast<size_t>(out.numel) / columns;
  context.parallel_for(count, kMinElementsPerThread / (columns + 1) + 1,
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t row = begin; row < end; ++row) {
                           const float* const from = x + row / rows * depth * columns;
                           float* const to = y + row * columns;
                           memset(to, 0, columns * sizeof(float));
                           for (size_t k = 0; k < depth; ++k) {
                             const float weight = weights[row % rows * depth + k];
                             if (is_skipped(weight)) continue;
                             for (size_t i = 0; i < columns; ++i) to[i] += weight * from[k * columns + i];
                           }
                         }
                       });
  return Error::Ok;
}

Error round_rows(Context& context, const Tensor& x, int64_t row_dims, Tensor& result) {
  const TensorImpl &in = *x.unsafe_impl(), &out = *result.unsafe_impl();
  TORCHETTE_TRY(resize_tensor(result, x.sizes()));
  const auto inner =
      static_cast<size_t>(row_dims);  // at most the rank of `x`: GraphReader::read_quantization
  size_t length = 1;
  for (size_t d = in.dim - inner; d < in.dim; ++d) length *= static_cast<size_t>(in.sizes[d]);
  const auto count = static_cast<size_t>(in.numel);
  context.parallel_for(length == 0 ? 0 : count / length, kMinElementsPerThread / (length + 1) + 1,
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t row = begin; row < end; ++row)
                           round_row(static_cast<const float*>(in.data) + row * length, length,
                                     static_cast<float*>(out.data) + row * length);
                       });
  return Error::Ok;
}

constexpr Kernel kEntries[] = {
    kernel_entry<true, same_elements>(kSameElements), kernel_entry<true, multiply>(kMultiply),
    kernel_entry<true, combine_rows>(kCombineRows), kernel_entry<true, round_rows>(kRoundRows)};

}  // namespace

Kernels payload_kernels() { return kEntries; }

}  // namespace xnnpack
}  // namespace torchette
