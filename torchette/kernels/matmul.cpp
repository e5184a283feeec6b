// SPDX-License-Identifier: BSD-3-Clause
// Matrix multiplications: mm, bmm, addmm, baddbmm, linear, with operands of any strides. Floats use gemm.h;
// integer types use a plain loop.
#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"
#include "torchette/kernels/gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// A matrix in the memory of a tensor, with row and column strides in elements.
struct MatrixView {
  void* data;
  ptrdiff_t row;
  ptrdiff_t col;
};

/// Returns the matrix of the last two dimensions of `t`, starting at element `offset`.
static MatrixView view(const Tensor& t, ptrdiff_t offset = 0) {
  const ptrdiff_t d = t.dim();
  return {static_cast<char*>(t.mutable_data_ptr()) + offset * t.element_size(), t.strides()[d - 2],
          t.strides()[d - 1]};
}

/// The addend of addmm and baddbmm: self, broadcast with strides of 0. Its data is null if there is none.
struct Summand {
  MatrixView self;
  Scalar beta;
  Scalar alpha;
};

/// Matrix multiplication of elements of type T with accumulators of type Sum.
template <typename T, typename Sum>
[[gnu::cold]] static void product(size_t m, size_t n, size_t k, MatrixView a, MatrixView b, MatrixView c,
                                  const Summand& extra) {
  const auto convert = [](const Scalar& s) {
    if constexpr (static_cast<Sum>(0.5) != 0)
      return static_cast<Sum>(s.to_double());
    else
      return static_cast<Sum>(s.to_int());
  };
  const Sum alpha = convert(extra.alpha), beta = convert(extra.beta);
  for (size_t i = 0; i < m; ++i) {
    for (size_t j = 0; j < n; ++j) {
      const T* left = static_cast<const T*>(a.data) + static_cast<ptrdiff_t>(i) * a.row;
      const T* right = static_cast<const T*>(b.data) + static_cast<ptrdiff_t>(j) * b.col;
      Sum sum = 0;
      for (size_t p = 0; p < k; ++p)
        sum += static_cast<Sum>(left[static_cast<ptrdiff_t>(p) * a.col]) *
               static_cast<Sum>(right[static_cast<ptrdiff_t>(p) * b.row]);
      sum *= alpha;
      if (extra.self.data != nullptr && beta != 0)
        sum += beta * static_cast<Sum>(
                          static_cast<const T*>(extra.self.data)[static_cast<ptrdiff_t>(i) * extra.self.row +
                                                                 static_cast<ptrdiff_t>(j) * extra.self.col]);
      static_cast<T*>(c.data)[static_cast<ptrdiff_t>(i) * c.row + static_cast<ptrdiff_t>(j) * c.col] =
          static_cast<T>(sum);
    }
  }
}

static Error float_product(GemmScratch& scratch, size_t m, size_t n, size_t k, MatrixView a, MatrixView b,
                           MatrixView c, const Summand& extra) {
  if (c.col != 1 && n > 1) {
    if (c.row != 1 && m > 1) {
      product<float, float>(m, n, k, a, b, c, extra);
      return Error::Ok;
    }
    // The result is transposed in memory, so computes the transposed multiplication.
    const MatrixView self = {extra.self.data, extra.self.col, extra.self.row};
    return float_product(scratch, n, m, k, {b.data, b.col, b.row}, {a.data, a.col, a.row},
                         {c.data, c.col, c.row}, {self, extra.beta, extra.alpha});
  }
  const auto alpha = static_cast<float>(extra.alpha.to_double());
  const float beta = extra.self.data == nullptr ? 0.0f : static_cast<float>(extra.beta.to_double());
  const auto* self = static_cast<const float*>(extra.self.data);
  auto* out = static_cast<float*>(c.data);
  const bool is_bias = alpha == 1 && beta == 1;
  const float* col_bias = is_bias && extra.self.row == 0 && extra.self.col == 1 ? self : nullptr;
  const float* row_bias =
      is_bias && col_bias == nullptr && extra.self.col == 0 && extra.self.row == 1 ? self : nullptr;
  TORCHETTE_TRY(gemm(scratch, m, n, k, {static_cast<const float*>(a.data), a.row, a.col},
                     {static_cast<const float*>(b.data), b.row, b.col}, out, c.row, row_bias, col_bias));
  if (col_bias != nullptr || row_bias != nullptr || (alpha == 1 && beta == 0)) return Error::Ok;
  for (size_t i = 0; i < m; ++i) {
    float* row = out + static_cast<ptrdiff_t>(i) * c.row;
    if (beta == 0) {
      for (size_t j = 0; j < n; ++j) row[j] *= alpha;
      continue;
    }
    const float* add = self + static_cast<ptrdiff_t>(i) * extra.self.row;
    for (size_t j = 0; j < n; ++j)
      row[j] = alpha * row[j] + beta * add[static_cast<ptrdiff_t>(j) * extra.self.col];
  }
  return Error::Ok;
}

/// Rows and columns of a block of narrow_product(), and the floats that it holds.
struct NarrowBlock {
  size_t rows, columns, floats;
};
static NarrowBlock narrow_block(size_t m, size_t n, size_t k) {
  constexpr size_t kBlock = size_t{1} << 17;  // floats
  const auto part = [&](size_t total, size_t min_count) {
    size_t count = k == 0 ? total : kBlock / k;
    if (count < min_count) count = min_count;
    return next_part(total, count);
  };
  const size_t rows = part(m, kMaxRows), columns = part(n, kLanes);
  return {rows, columns, (rows + columns) * k + (rows + 1) * columns};
}

/// 16-bit floats, converted to float in blocks and accumulated in float.
static Error narrow_product(GemmScratch& scratch, ScalarType type, size_t m, size_t n, size_t k, MatrixView a,
                            MatrixView b, MatrixView c, const Summand& extra) {
  if (c.col != 1 && c.row == 1 && n > 1) {
    const MatrixView self = {extra.self.data, extra.self.col, extra.self.row};
    return narrow_product(scratch, type, n, m, k, {b.data, b.col, b.row}, {a.data, a.col, a.row},
                          {c.data, c.col, c.row}, {self, extra.beta, extra.alpha});
  }
  if (m == 0 || n == 0) return Error::Ok;
  const auto [rows, columns, floats] = narrow_block(m, n, k);
  float* const left = scratch.blocks(floats);
  TORCHETTE_CHECK(left != nullptr, MemoryAllocationFailed, "no scratch memory for a matrix multiplication");
  float* const right = left + rows * k;
  float* const result = right + columns * k;
  float* const added = result + rows * columns;
  const Convert load = load_as(type, kF32), store = store_as(kF32, type);
  const auto position = [](const MatrixView& v, size_t i, size_t j) {
    return static_cast<uint16_t*>(v.data) + static_cast<ptrdiff_t>(i) * v.row +
           static_cast<ptrdiff_t>(j) * v.col;
  };
  const auto alpha = static_cast<float>(extra.alpha.to_double());
  const float beta = extra.self.data == nullptr ? 0.0f : static_cast<float>(extra.beta.to_double());
  for (size_t n0 = 0; n0 < n; n0 += columns) {
    const size_t width = n - n0 < columns ? n - n0 : columns;
    // The right side keeps its memory layout.
    const bool by_columns = b.row == 1 && b.col != 1;
    for (size_t j = 0; by_columns && j < width; ++j) load(position(b, 0, n0 + j), 1, right + j * k, k);
    for (size_t p = 0; !by_columns && p < k; ++p) load(position(b, p, n0), b.col, right + p * width, width);
    const Matrix converted = {right, by_columns ? ptrdiff_t{1} : static_cast<ptrdiff_t>(width),
                              by_columns ? static_cast<ptrdiff_t>(k) : ptrdiff_t{1}};
    for (size_t m0 = 0; m0 < m; m0 += rows) {
      const size_t height = m - m0 < rows ? m - m0 : rows;
      for (size_t i = 0; i < height; ++i) load(position(a, m0 + i, 0), a.col, left + i * k, k);
      TORCHETTE_TRY(gemm(scratch, height, width, k, {left, static_cast<ptrdiff_t>(k), 1}, converted, result,
                         static_cast<ptrdiff_t>(width), nullptr, nullptr));
      for (size_t i = 0; i < height; ++i) {
        float* row = result + i * width;
        if (beta != 0) {
          load(position(extra.self, m0 + i, n0), extra.self.col, added, width);
          for (size_t j = 0; j < width; ++j) row[j] = alpha * row[j] + beta * added[j];
        } else if (alpha != 1) {
          for (size_t j = 0; j < width; ++j) row[j] *= alpha;
        }
        if (c.col == 1)
          store(row, 1, position(c, m0 + i, n0), width);
        else
          for (size_t j = 0; j < width; ++j) store(row + j, 1, position(c, m0 + i, n0 + j), 1);
      }
    }
  }
  return Error::Ok;
}

/// Doubles: register tiles of four or eight rows and two vectors, with copied panels of B.
static Error double_product(GemmScratch& scratch, size_t m, size_t n, size_t k, MatrixView a, MatrixView b,
                            MatrixView c, const Summand& extra) {
  TORCHETTE_LANES_IN_MEMORY(Wide, double, kLanes / 2);
  constexpr size_t kWide = kLanes / 2, kWidth = 2 * kWide, kDepth = 256;
  constexpr size_t kRows = kVectorRegisters == 32 ? 8 : 4;
  auto* const panel = reinterpret_cast<double*>(scratch.blocks(2 * next_part(k, kDepth) * kWidth));
  TORCHETTE_CHECK(panel != nullptr, MemoryAllocationFailed, "no scratch memory for a matrix multiplication");
  const auto at = [](const MatrixView& v, size_t i, size_t j) {
    return static_cast<double*>(v.data) + static_cast<ptrdiff_t>(i) * v.row +
           static_cast<ptrdiff_t>(j) * v.col;
  };
  const double alpha = extra.alpha.to_double();
  const double beta = extra.self.data == nullptr ? 0 : extra.beta.to_double();
  for (size_t n0 = 0; n0 < n; n0 += kWidth) {
    const size_t width = n - n0 < kWidth ? n - n0 : kWidth;
    size_t k0 = 0;
    do {  // at least once, even if k is 0
      const size_t depth = next_part(k - k0, kDepth);
      for (size_t p = 0; p < depth; ++p)
        for (size_t j = 0; j < kWidth; ++j) panel[p * kWidth + j] = j < width ? *at(b, k0 + p, n0 + j) : 0;
      const bool last = k0 + depth >= k;
      for (size_t i0 = 0; i0 < m; i0 += kRows) {
        const size_t rows = m - i0 < kRows ? m - i0 : kRows;
        Wide sum[kRows][2] = {};
        const double* left[kRows];
        TORCHETTE_UNROLL(8)
        for (size_t i = 0; i < kRows; ++i) left[i] = at(a, i0 + (i < rows ? i : 0), k0);
        for (size_t p = 0; p < depth; ++p) {
          const Wide first = *reinterpret_cast<const Wide*>(panel + p * kWidth);
          const Wide second = *reinterpret_cast<const Wide*>(panel + p * kWidth + kWide);
          TORCHETTE_UNROLL(8)
          for (size_t i = 0; i < kRows; ++i) {
            const double x = left[i][static_cast<ptrdiff_t>(p) * a.col];
            sum[i][0] += x * first;
            sum[i][1] += x * second;
          }
        }
        double stored[kRows][kWidth];
        TORCHETTE_UNROLL(8)
        for (size_t i = 0; i < kRows; ++i) memcpy(stored[i], sum[i], sizeof(stored[i]));
        for (size_t i = 0; i < rows; ++i) {
          for (size_t j = 0; j < width; ++j) {
            double* to = at(c, i0 + i, n0 + j);
            double value = stored[i][j] + (k0 > 0 ? *to : 0);
            if (last && alpha != 1) value *= alpha;
            if (last && beta != 0) value += beta * *at(extra.self, i0 + i, n0 + j);
            *to = value;
          }
        }
      }
      k0 += depth;
    } while (k0 < k);
  }
  return Error::Ok;
}

static Error any_product(GemmScratch& scratch, ScalarType type, size_t m, size_t n, size_t k, MatrixView a,
                         MatrixView b, MatrixView c, const Summand& extra) {
  // 64-bit accumulators wrap around, so truncating them equals arithmetic in the narrower type.
  const auto integers = [&](auto t) {
    using T = decltype(t);
    if constexpr (has_dtype(kScalarType<T>)) product<T, uint64_t>(m, n, k, a, b, c, extra);
    return Error::Ok;
  };
  switch (type) {
    case ScalarType::Float:
      return float_product(scratch, m, n, k, a, b, c, extra);
    case ScalarType::Double:
      if constexpr (has_dtype(ScalarType::Double)) return double_product(scratch, m, n, k, a, b, c, extra);
      return Error::InvalidType;
    case ScalarType::Half:
    case ScalarType::BFloat16:
      if constexpr (has_dtype(ScalarType::Half) || has_dtype(ScalarType::BFloat16))
        return narrow_product(scratch, type, m, n, k, a, b, c, extra);
      return Error::InvalidType;
    case ScalarType::Byte:
      return integers(uint8_t());
    case ScalarType::Char:
      return integers(int8_t());
    case ScalarType::Short:
      return integers(int16_t());
    case ScalarType::Int:
      return integers(int32_t());
    case ScalarType::Long:
      return integers(int64_t());
    default:
      TORCHETTE_CHECK(false, InvalidType,
                      "argument 1 is of type %d, which does not support matrix multiplication",
                      static_cast<int>(type));
  }
}

/// Computes the strides with which the last two dimensions of `self` broadcast to [rows, cols].
static Error broadcast_view(const Tensor& self, SizesType rows, SizesType cols, MatrixView& out) {
  const ptrdiff_t d = self.dim();
  out = {self.mutable_data_ptr(), 0, 0};
  if (d >= 1) {
    const ptrdiff_t size = self.size(d - 1);
    TORCHETTE_CHECK(size == cols || size == 1, InvalidArgument, "self has %d columns, the result has %d",
                    static_cast<int>(size), static_cast<int>(cols));
    out.col = size == 1 && cols != 1 ? 0 : static_cast<ptrdiff_t>(self.strides()[d - 1]);
  }
  if (d >= 2) {
    const ptrdiff_t size = self.size(d - 2);
    TORCHETTE_CHECK(size == rows || size == 1, InvalidArgument, "self has %d rows, the result has %d",
                    static_cast<int>(size), static_cast<int>(rows));
    out.row = size == 1 ? 0 : static_cast<ptrdiff_t>(self.strides()[d - 2]);
  }
  return Error::Ok;
}

static Error check_types(const Tensor& a, const Tensor& b, const Tensor& out, const char* names) {
  TORCHETTE_CHECK(a.scalar_type() == b.scalar_type() && a.scalar_type() == out.scalar_type(), InvalidType,
                  "%s and out are of types %d, %d and %d, expected one type", names,
                  static_cast<int>(a.scalar_type()), static_cast<int>(b.scalar_type()),
                  static_cast<int>(out.scalar_type()));
  return Error::Ok;
}

static Error matrix_product(Context& context, const Tensor* self, const Tensor& a, const Tensor& b,
                            const Scalar& beta, const Scalar& alpha, Tensor& out) {
  TORCHETTE_CHECK(a.dim() == 2 && b.dim() == 2 && a.size(1) == b.size(0), InvalidArgument,
                  "mm: %s and mat2 have %d and %d dimensions, expected 2 with equal inner sizes",
                  self == nullptr ? "self" : "mat1", static_cast<int>(a.dim()), static_cast<int>(b.dim()));
  TORCHETTE_TRY(check_types(a, b, out, self == nullptr ? "self, mat2" : "mat1, mat2"));
  const SizesType sizes[] = {static_cast<SizesType>(a.size(0)), static_cast<SizesType>(b.size(1))};
  TORCHETTE_TRY(resize_result(out, {sizes, 2}));
  Summand extra = {{nullptr, 0, 0}, beta, alpha};
  if (self != nullptr) {
    TORCHETTE_CHECK(self->scalar_type() == out.scalar_type() && self->dim() <= 2, InvalidArgument,
                    "addmm: self has %d dimensions and type %d, which does not fit out",
                    static_cast<int>(self->dim()), static_cast<int>(self->scalar_type()));
    TORCHETTE_TRY(broadcast_view(*self, sizes[0], sizes[1], extra.self));
  }
  GemmScratch scratch(context);
  return any_product(scratch, out.scalar_type(), static_cast<size_t>(a.size(0)),
                     static_cast<size_t>(b.size(1)), static_cast<size_t>(a.size(1)), view(a), view(b),
                     view(out), extra);
}

static Error mm_out(Context& context, const Tensor& self, const Tensor& mat2, Tensor& out) {
  return matrix_product(context, nullptr, self, mat2, int64_t{0}, int64_t{1}, out);
}

static Error addmm_out(Context& context, const Tensor& self, const Tensor& mat1, const Tensor& mat2,
                       Scalar beta, Scalar alpha, Tensor& out) {
  return matrix_product(context, &self, mat1, mat2, beta, alpha, out);
}

static Error batched_product(Context& context, const Tensor* self, const Tensor& a, const Tensor& b,
                             const Scalar& beta, const Scalar& alpha, Tensor& out) {
  const char* const names = self == nullptr ? "self, mat2" : "batch1, batch2";
  TORCHETTE_CHECK(a.dim() == 3 && b.dim() == 3 && a.size(0) == b.size(0) && a.size(2) == b.size(1),
                  InvalidArgument, "bmm: %s must have 3 dimensions, equal batches and inner sizes", names);
  TORCHETTE_TRY(check_types(a, b, out, names));
  const SizesType sizes[] = {static_cast<SizesType>(a.size(0)), static_cast<SizesType>(a.size(1)),
                             static_cast<SizesType>(b.size(2))};
  TORCHETTE_TRY(resize_result(out, {sizes, 3}));
  Summand extra = {{nullptr, 0, 0}, beta, alpha};
  ptrdiff_t self_step = 0;
  if (self != nullptr) {
    TORCHETTE_CHECK(self->scalar_type() == out.scalar_type() && self->dim() <= 3, InvalidArgument,
                    "baddbmm: self has %d dimensions and type %d, which does not fit out",
                    static_cast<int>(self->dim()), static_cast<int>(self->scalar_type()));
    TORCHETTE_TRY(broadcast_view(*self, sizes[1], sizes[2], extra.self));
    if (self->dim() == 3) {
      TORCHETTE_CHECK(self->size(0) == sizes[0] || self->size(0) == 1, InvalidArgument,
                      "baddbmm: self has batch size %d, the result has %d", static_cast<int>(self->size(0)),
                      static_cast<int>(sizes[0]));
      if (self->size(0) != 1) self_step = self->strides()[0];
    }
  }
  GemmScratch scratch(context);
  for (ptrdiff_t i = 0; i < sizes[0]; ++i) {
    if (self != nullptr)
      extra.self.data = static_cast<char*>(self->mutable_data_ptr()) + i * self_step * self->element_size();
    TORCHETTE_TRY(any_product(scratch, out.scalar_type(), static_cast<size_t>(sizes[1]),
                              static_cast<size_t>(sizes[2]), static_cast<size_t>(a.size(2)),
                              view(a, i * a.strides()[0]), view(b, i * b.strides()[0]),
                              view(out, i * out.strides()[0]), extra));
  }
  return Error::Ok;
}

static Error bmm_out(Context& context, const Tensor& self, const Tensor& mat2, Tensor& out) {
  return batched_product(context, nullptr, self, mat2, int64_t{0}, int64_t{1}, out);
}

static Error baddbmm_out(Context& context, const Tensor& self, const Tensor& batch1, const Tensor& batch2,
                         Scalar beta, Scalar alpha, Tensor& out) {
  return batched_product(context, &self, batch1, batch2, beta, alpha, out);
}

/// input [*, in], weight [out, in], bias [out] -> [*, out].
/// Multiplies rows ends[g - 1] to ends[g] of `self` by matrix g of `mat2`. The rows after the last end become
/// 0.
static Error grouped_mm_out(Context& context, const Tensor& self, const Tensor& mat2, const Tensor& offs,
                            Tensor& out) {
  TORCHETTE_CHECK(
      self.dim() == 2 && mat2.dim() == 3 && self.size(1) == mat2.size(1), InvalidArgument,
      "grouped_mm: self and mat2 have %d and %d dimensions, expected 2 and 3 with equal inner sizes",
      static_cast<int>(self.dim()), static_cast<int>(mat2.dim()));
  const bool is_long = offs.scalar_type() == ScalarType::Long;
  TORCHETTE_CHECK(
      offs.dim() == 1 && offs.size(0) == mat2.size(0) && (is_long || offs.scalar_type() == ScalarType::Int),
      InvalidArgument, "grouped_mm: offs must be %d integers of 32 or 64 bits",
      static_cast<int>(mat2.size(0)));
  TORCHETTE_TRY(check_types(self, mat2, out, "self, mat2"));
  const SizesType sizes[] = {static_cast<SizesType>(self.size(0)), static_cast<SizesType>(mat2.size(2))};
  TORCHETTE_TRY(resize_result(out, {sizes, 2}));
  const auto rows = static_cast<size_t>(sizes[0]), columns = static_cast<size_t>(sizes[1]);
  const auto depth = static_cast<size_t>(self.size(1));
  GemmScratch scratch(context);
  // Scratch memory for a group with all rows: its size must not depend on the data.
  if (out.scalar_type() == ScalarType::Half || out.scalar_type() == ScalarType::BFloat16) {
    const NarrowBlock block = narrow_block(rows, columns, depth);
    (void)scratch.blocks(block.floats);
    (void)scratch.panels(block.columns, depth);
    (void)scratch.rows(block.rows, depth);
  } else if (out.scalar_type() == ScalarType::Float) {
    (void)scratch.panels(columns, depth);
    (void)scratch.rows(rows, depth);
  } else if (out.scalar_type() == ScalarType::Double) {
    TORCHETTE_TRY(any_product(scratch, out.scalar_type(), 0, 0, depth, view(self), view(mat2), view(out),
                              {{nullptr, 0, 0}, int64_t{0}, int64_t{1}}));
  }
  size_t start = 0;
  for (ptrdiff_t group = 0; group < mat2.size(0); ++group) {
    const int64_t end = is_long ? offs.const_data_ptr<int64_t>()[group * offs.strides()[0]]
                                : offs.const_data_ptr<int32_t>()[group * offs.strides()[0]];
    TORCHETTE_CHECK(end >= static_cast<int64_t>(start) && end <= sizes[0], InvalidArgument,
                    "grouped_mm: group %d ends at row %d, expected %zu to %d", static_cast<int>(group),
                    static_cast<int>(end), start, static_cast<int>(sizes[0]));
    const size_t count = static_cast<size_t>(end) - start;
    if (count != 0) {
      const auto first = static_cast<ptrdiff_t>(start);
      TORCHETTE_TRY(any_product(scratch, out.scalar_type(), count, columns, depth,
                                view(self, first * self.strides()[0]), view(mat2, group * mat2.strides()[0]),
                                view(out, first * out.strides()[0]),
                                {{nullptr, 0, 0}, int64_t{0}, int64_t{1}}));
    }
    start = static_cast<size_t>(end);
  }
  for (; start < rows; ++start)
    memset(static_cast<char*>(out.mutable_data_ptr()) + start * columns * out.element_size(), 0,
           columns * static_cast<size_t>(out.element_size()));
  return Error::Ok;
}

static Error linear_out(Context& context, const Tensor& input, const Tensor& weight, Optional<Tensor> bias,
                        Tensor& out) {
  const ptrdiff_t d = input.dim();
  TORCHETTE_CHECK(d >= 1 && weight.dim() == 2 && input.size(d - 1) == weight.size(1), InvalidArgument,
                  "linear: input and weight have %d and %d dimensions; their last sizes must be equal",
                  static_cast<int>(d), static_cast<int>(weight.dim()));
  TORCHETTE_TRY(check_types(input, weight, out, "input, weight"));
  SizesType sizes[kMaxDim];
  size_t rows = 1;
  for (ptrdiff_t i = 0; i + 1 < d; ++i) {
    sizes[i] = static_cast<SizesType>(input.size(i));
    rows *= static_cast<size_t>(sizes[i]);
  }
  sizes[d - 1] = static_cast<SizesType>(weight.size(0));
  TORCHETTE_TRY(resize_result(out, {sizes, static_cast<size_t>(d)}));
  const auto n = static_cast<size_t>(weight.size(0)), k = static_cast<size_t>(weight.size(1));
  Summand extra = {{nullptr, 0, 0}, int64_t{1}, int64_t{1}};
  if (bias.has_value()) {
    TORCHETTE_CHECK(
        bias->dim() == 1 && bias->size(0) == weight.size(0) && bias->scalar_type() == out.scalar_type(),
        InvalidArgument, "linear: bias must have %zu elements and the type of out", n);
    extra.self = {bias->mutable_data_ptr(), 0, 1};
  }
  const MatrixView transposed = {weight.mutable_data_ptr(), weight.strides()[1], weight.strides()[0]};
  GemmScratch scratch(context);
  if (is_contiguous(input) && is_contiguous(out))
    return any_product(scratch, out.scalar_type(), rows, n, k,
                       {input.mutable_data_ptr(), static_cast<ptrdiff_t>(k), 1}, transposed,
                       {out.mutable_data_ptr(), static_cast<ptrdiff_t>(n), 1}, extra);
  for (size_t r = 0; r < rows; ++r) {
    ptrdiff_t from = 0, to = 0;
    size_t remaining = r;
    for (ptrdiff_t i = d - 2; i >= 0; --i) {
      const auto at = static_cast<ptrdiff_t>(remaining % static_cast<size_t>(sizes[i]));
      remaining /= static_cast<size_t>(sizes[i]);
      from += at * input.strides()[i];
      to += at * out.strides()[i];
    }
    const ptrdiff_t bytes = input.element_size();
    TORCHETTE_TRY(any_product(
        scratch, out.scalar_type(), 1, n, k,
        {static_cast<char*>(input.mutable_data_ptr()) + from * bytes, 0, input.strides()[d - 1]}, transposed,
        {static_cast<char*>(out.mutable_data_ptr()) + to * bytes, 0, out.strides()[d - 1]}, extra));
  }
  return Error::Ok;
}

TORCHETTE_KERNELS(matmul, TORCHETTE_KERNEL("aten::mm.out", mm_out),
                  TORCHETTE_KERNEL("aten::bmm.out", bmm_out), TORCHETTE_KERNEL("aten::addmm.out", addmm_out),
                  TORCHETTE_KERNEL("aten::baddbmm.out", baddbmm_out),
                  TORCHETTE_KERNEL("aten::linear.out", linear_out),
                  TORCHETTE_KERNEL("torchette::grouped_mm.out", grouped_mm_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
