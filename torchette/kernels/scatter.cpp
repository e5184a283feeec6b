// SPDX-License-Identifier: BSD-3-Clause
// Operators that fold several values into one element, selected by an index tensor or a sliding window:
// scatter_reduce, index_reduce, embedding bags, the gradient of an embedding, col2im.
#include <limits>
#include <type_traits>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

enum class Folding : uint8_t { Sum, Product, Mean, Largest, Smallest };

bool equal(Span<const char> s, const char* text) {
  size_t i = 0;
  while (i < s.size() && text[i] != 0 && s[i] == text[i]) ++i;
  return i == s.size() && text[i] == 0;
}
Error folding_of(Span<const char> name, Folding& folding) {
  if (equal(name, "sum") || equal(name, "add"))
    folding = Folding::Sum;
  else if (equal(name, "prod") || equal(name, "multiply"))
    folding = Folding::Product;
  else if (equal(name, "mean"))
    folding = Folding::Mean;
  else if (equal(name, "amax"))
    folding = Folding::Largest;
  else if (equal(name, "amin"))
    folding = Folding::Smallest;
  else
    TORCHETTE_CHECK(false, InvalidArgument, "scatter: reduce must be sum, prod, mean, amax or amin");
  return Error::Ok;
}

/// Folds x into a. Integers wrap around.
template <typename T>
T folded(Folding folding, T a, T x) {
  using Sum = std::conditional_t<std::is_integral_v<T>, uint64_t, T>;
  switch (folding) {
    case Folding::Product:
      return static_cast<T>(static_cast<Sum>(a) * static_cast<Sum>(x));
    // The comparisons are combined without a branch, which would be unpredictable.
    case Folding::Largest:
      return static_cast<bool>(static_cast<int>(x > a) | static_cast<int>(x != x)) ? x : a;
    case Folding::Smallest:
      return static_cast<bool>(static_cast<int>(x < a) | static_cast<int>(x != x)) ? x : a;
    default:
      return static_cast<T>(static_cast<Sum>(a) + static_cast<Sum>(x));
  }
}
template <typename T>
T first_of(Folding folding) {
  constexpr bool kIntegers = std::is_integral_v<T>;
  switch (folding) {
    case Folding::Product:
      return 1;
    case Folding::Largest:
      return kIntegers ? std::numeric_limits<T>::lowest() : -std::numeric_limits<T>::infinity();
    case Folding::Smallest:
      return kIntegers ? std::numeric_limits<T>::max() : std::numeric_limits<T>::infinity();
    default:
      return 0;
  }
}

Error check_index_type(const Tensor& index, const char* name, const char* argument) {
  TORCHETTE_CHECK(index.scalar_type() == ScalarType::Long || index.scalar_type() == ScalarType::Int,
                  InvalidType, "%s: %s of type %d, expected integers", name, argument,
                  static_cast<int>(index.scalar_type()));
  return Error::Ok;
}

/// Loops of a fold: `rank` sizes, with the strides of the row-major indices and of the source.
struct FoldLoops {
  size_t rank;
  SizesType sizes[kMaxDim];
  ptrdiff_t index[kMaxDim], source[kMaxDim];
};

/// out = self, with each source element folded in at its own coordinates, except that its index replaces the
/// coordinate in `dim`. A null `source` stands for the scalar `value`.
Error fold_into(Context& context, const char* name, const Tensor& self, size_t dim, const Tensor& indices,
                const Tensor* source, const Scalar& value, const FoldLoops& loops, Folding folding,
                bool include_self, const Tensor& out) {
  TORCHETTE_CHECK(out.scalar_type() == self.scalar_type() &&
                      (source == nullptr || source->scalar_type() == self.scalar_type()),
                  InvalidType, "%s: self of type %d, src or source, and out must have the same type", name,
                  static_cast<int>(self.scalar_type()));
  TORCHETTE_TRY(check_index_type(indices, name, "index is"));
  TORCHETTE_TRY(resize_result(out, self.sizes()));
  return for_compute<true>(self.scalar_type(), "scatter", "self", [&](auto t) {
    using T = decltype(t);
    Dense at, from, to;
    TORCHETTE_TRY(at.read(context, indices, ScalarType::Long));
    if (source != nullptr) TORCHETTE_TRY(from.read(context, *source, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    Dense kept;
    TORCHETTE_TRY(kept.read(context, self, kScalarType<T>));
    T* const result = to.data<T>();
    const auto total = static_cast<size_t>(out.numel());
    if (kept.data<T>() != result)
      for (size_t i = 0; i < total; ++i) result[i] = kept.data<T>()[i];
    int32_t* counts = nullptr;
    if (folding == Folding::Mean && total > 0) {
      counts = static_cast<int32_t*>(context.allocate_temp(total * sizeof(int32_t)));
      TORCHETTE_CHECK(counts != nullptr, MemoryAllocationFailed, "%s: no scratch memory to count", name);
      for (size_t i = 0; i < total; ++i) counts[i] = include_self ? 1 : 0;
    }
    Walk<3> walk;
    walk.rank = loops.rank;
    ptrdiff_t step = 1, along = 0;
    for (size_t d = loops.rank; d-- > 0;) {
      if (loops.sizes[d] == 0) return to.finish();
      walk.size[d] = static_cast<size_t>(loops.sizes[d]);
      walk.stride[0][d] = loops.index[d];
      walk.stride[1][d] = loops.source[d];
      walk.stride[2][d] = d == dim ? 0 : step;
      if (d == dim) along = step;
      step *= self.sizes()[d];
    }
    const int64_t size = loops.rank > 0 ? self.sizes()[dim] : 1;
    // The last dimension is an inner loop.
    ptrdiff_t row = 1, next[3] = {};
    if (walk.rank > 0) {
      row = static_cast<ptrdiff_t>(walk.size[--walk.rank]);
      for (size_t k = 0; k < 3; ++k) next[k] = walk.stride[k][walk.rank];
    }
    const T scalar =
        std::is_integral_v<T> ? static_cast<T>(value.to_int()) : static_cast<T>(value.to_double());
    // Without include_self, a first pass resets the elements.
    for (int pass = include_self ? 1 : 0; pass < 2; ++pass) {
      Walk<3> w = walk;
      do {
        for (ptrdiff_t j = 0; j < row; ++j) {
          const int64_t i = at.data<int64_t>()[w.offset[0] + j * next[0]];
          TORCHETTE_CHECK(i >= 0 && i < size, InvalidArgument,
                          "%s: index contains %lld, which is out of range for size %lld", name,
                          static_cast<long long>(i), static_cast<long long>(size));
          const ptrdiff_t position = w.offset[2] + j * next[2] + static_cast<ptrdiff_t>(i) * along;
          if (pass == 0) {
            result[position] = first_of<T>(folding);
            continue;
          }
          result[position] = folded(folding, result[position],
                                    source == nullptr ? scalar : from.data<T>()[w.offset[1] + j * next[1]]);
          if (counts != nullptr) ++counts[position];
        }
      } while (w.next());
    }
    if (counts != nullptr) {
      for (size_t i = 0; i < total; ++i) {
        if (counts[i] < 2) continue;
        const T n = static_cast<T>(counts[i]);
        T mean = result[i] / n;
        if (std::is_integral_v<T> && mean * n > result[i]) mean -= 1;  // toward minus infinity
        result[i] = mean;
      }
    }
    return to.finish();
  });
}

/// Computes the row-major strides of `sizes`.
void row_major(Span<const SizesType> sizes, ptrdiff_t* strides) {
  ptrdiff_t step = 1;
  for (size_t d = sizes.size(); d-- > 0;) {
    strides[d] = step;
    step *= sizes[d];
  }
}

Error scatter_folding(Context& context, const char* name, const Tensor& self, int64_t dim,
                      const Tensor& index, const Tensor* source, const Scalar& value, Span<const char> reduce,
                      bool include_self, const Tensor& out) {
  const auto rank = static_cast<size_t>(self.dim());
  TORCHETTE_TRY(wrap_dim(dim, rank));
  Folding folding;
  TORCHETTE_TRY(folding_of(reduce, folding));
  FoldLoops loops;
  loops.rank = rank;
  // A 0-d tensor counts as one element.
  const bool points = rank == 0 && index.dim() <= 1 && index.numel() <= 1;
  TORCHETTE_CHECK(points || (index.dim() == self.dim() && (source == nullptr || source->dim() == self.dim())),
                  InvalidArgument, "%s: self has %zu dimensions, index has %d, src has %d", name, rank,
                  static_cast<int>(index.dim()),
                  static_cast<int>((source == nullptr ? self : *source).dim()));
  row_major(index.sizes(), loops.index);
  if (source != nullptr) row_major(source->sizes(), loops.source);
  if (points && index.numel() == 0) {
    loops.rank = 1;
    loops.sizes[0] = 0;
  }
  for (size_t d = 0; d < rank; ++d) {
    loops.sizes[d] = index.sizes()[d];
    if (source == nullptr) loops.source[d] = 0;
    TORCHETTE_CHECK((d == static_cast<size_t>(dim) || index.sizes()[d] <= self.sizes()[d]) &&
                        (source == nullptr || index.sizes()[d] <= source->sizes()[d]),
                    InvalidArgument, "%s: index is larger than self or src in dimension %zu", name, d);
  }
  return fold_into(context, name, self, static_cast<size_t>(dim), index, source, value, loops, folding,
                   include_self, out);
}

Error scatter_reduce_two_out(Context& context, const Tensor& self, int64_t dim, const Tensor& index,
                             const Tensor& source, Span<const char> reduce, bool include_self, Tensor& out) {
  return scatter_folding(context, "scatter_reduce", self, dim, index, &source, {}, reduce, include_self, out);
}
Error scatter_reduce_out(Context& context, const Tensor& self, int64_t dim, const Tensor& index,
                         const Tensor& source, Span<const char> reduce, Tensor& out) {
  return scatter_folding(context, "scatter", self, dim, index, &source, {}, reduce, true, out);
}
Error scatter_value_reduce_out(Context& context, const Tensor& self, int64_t dim, const Tensor& index,
                               const Scalar& value, Span<const char> reduce, Tensor& out) {
  return scatter_folding(context, "scatter", self, dim, index, nullptr, value, reduce, true, out);
}
Error index_reduce_out(Context& context, const Tensor& self, int64_t dim, const Tensor& index,
                       const Tensor& source, Span<const char> reduce, bool include_self, Tensor& out) {
  const auto rank = static_cast<size_t>(self.dim());
  TORCHETTE_TRY(wrap_dim(dim, rank));
  Folding folding;
  TORCHETTE_TRY(folding_of(reduce, folding));
  TORCHETTE_CHECK(index.dim() <= 1 && source.dim() == self.dim(), InvalidArgument,
                  "index_reduce: index has %d dimensions, source has %d, self has %zu",
                  static_cast<int>(index.dim()), static_cast<int>(source.dim()), rank);
  FoldLoops loops;
  loops.rank = rank;
  row_major(source.sizes(), loops.source);
  for (size_t d = 0; d < rank; ++d) {
    const bool along = d == static_cast<size_t>(dim);
    loops.sizes[d] = source.sizes()[d];
    loops.index[d] = along ? 1 : 0;
    TORCHETTE_CHECK(source.sizes()[d] == (along ? index.numel() : self.sizes()[d]), InvalidArgument,
                    "index_reduce: source of size %d in dimension %zu does not fit", source.sizes()[d], d);
  }
  TORCHETTE_CHECK(rank > 0 || index.numel() == 1, InvalidArgument,
                  "index_reduce: index has %d elements, expected 1 for 0-d self",
                  static_cast<int>(index.numel()));
  return fold_into(context, "index_reduce", self, static_cast<size_t>(dim), index, &source, {}, loops,
                   folding, include_self, out);
}

// --- Embeddings

Error embedding_dense_backward_out(Context& context, const Tensor& grad, const Tensor& indices,
                                   int64_t num_weights, int64_t padding_idx, bool scales, Tensor& out) {
  constexpr const char* kName = "embedding_dense_backward";
  TORCHETTE_TRY(check_index_type(indices, kName, "indices are"));
  const auto rank = static_cast<size_t>(indices.dim());
  TORCHETTE_CHECK(num_weights >= 0 && num_weights <= INT32_MAX, InvalidArgument,
                  "%s: num_weights %lld is out of range", kName, static_cast<long long>(num_weights));
  TORCHETTE_CHECK(static_cast<size_t>(grad.dim()) == rank + 1, InvalidArgument,
                  "%s: grad_output has %d dimensions, indices has %zu", kName, static_cast<int>(grad.dim()),
                  rank);
  for (size_t d = 0; d < rank; ++d)
    TORCHETTE_CHECK(grad.sizes()[d] == indices.sizes()[d], InvalidArgument,
                    "%s: grad_output has size %d in dimension %zu, indices has %d", kName, grad.sizes()[d], d,
                    indices.sizes()[d]);
  TORCHETTE_TRY(same_type(grad, out, "grad_output and out"));
  const auto width = static_cast<size_t>(grad.sizes()[rank]);
  const SizesType sizes[] = {static_cast<SizesType>(num_weights), grad.sizes()[rank]};
  TORCHETTE_TRY(resize_result(out, {sizes, 2}));
  return for_compute<false>(grad.scalar_type(), "embedding_dense_backward", "grad_output", [&](auto t) {
    using T = decltype(t);
    Dense from, at, to;
    TORCHETTE_TRY(from.read(context, grad, kScalarType<T>));
    TORCHETTE_TRY(at.read(context, indices, ScalarType::Long));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const int64_t* index = at.data<int64_t>();
    const auto count = static_cast<size_t>(indices.numel());
    for (ptrdiff_t i = 0; i < out.numel(); ++i) to.data<T>()[i] = 0;
    int32_t* uses = nullptr;
    if (scales) {
      uses = static_cast<int32_t*>(
          context.allocate_temp(static_cast<size_t>(num_weights) * sizeof(int32_t) + 1));
      TORCHETTE_CHECK(uses != nullptr, MemoryAllocationFailed, "%s: no scratch memory to count", kName);
      for (int64_t i = 0; i < num_weights; ++i) uses[i] = 0;
    }
    for (int pass = scales ? 0 : 1; pass < 2; ++pass)
      for (size_t i = 0; i < count; ++i) {
        if (index[i] == padding_idx) continue;
        TORCHETTE_CHECK(index[i] >= 0 && index[i] < num_weights, InvalidArgument,
                        "%s: indices contain %lld, which is out of range for num_weights %lld", kName,
                        static_cast<long long>(index[i]), static_cast<long long>(num_weights));
        if (pass == 0) {
          ++uses[index[i]];
          continue;
        }
        const T share = scales ? T(1) / static_cast<T>(uses[index[i]]) : T(1);
        T* row = to.data<T>() + static_cast<size_t>(index[i]) * width;
        const T* add = from.data<T>() + i * width;
        for (size_t j = 0; j < width; ++j) row[j] += add[j] * share;
      }
    return to.finish();
  });
}

/// Computes the sums, means or maxima (mode 0, 1, 2) of bags of rows of the weight. The other outputs serve
/// training; they are filled as far as their sizes permit.
Error embedding_bag_out(Context& context, const Tensor& weight, const Tensor& indices, const Tensor& offsets,
                        bool, int64_t mode, bool, Optional<Tensor> per_sample_weights,
                        bool include_last_offset, int64_t padding_idx, Tensor& out, Tensor& offset2bag,
                        Tensor& bag_size, Tensor& max_indices) {
  constexpr const char* kName = "_embedding_bag";
  TORCHETTE_TRY(check_index_type(indices, kName, "indices are"));
  TORCHETTE_TRY(check_index_type(offsets, kName, "offsets are"));
  TORCHETTE_TRY(same_type(weight, out, "weight and out0"));
  TORCHETTE_CHECK(weight.dim() == 2 && indices.dim() == 1 && offsets.dim() == 1 && mode >= 0 && mode <= 2,
                  InvalidArgument, "%s: rank of weight %d, indices %d, offsets %d or mode %lld is invalid",
                  kName, static_cast<int>(weight.dim()), static_cast<int>(indices.dim()),
                  static_cast<int>(offsets.dim()), static_cast<long long>(mode));
  TORCHETTE_CHECK(!include_last_offset || offsets.numel() > 0, InvalidArgument,
                  "%s: offsets is empty, but include_last_offset requires an element", kName);
  TORCHETTE_CHECK(
      !per_sample_weights.has_value() || (mode == 0 && per_sample_weights->numel() == indices.numel() &&
                                          per_sample_weights->scalar_type() == weight.scalar_type()),
      InvalidArgument, "%s: per_sample_weights requires mode sum, the size of indices and the type of weight",
      kName);
  const ptrdiff_t bags = offsets.numel() - (include_last_offset ? 1 : 0), count = indices.numel();
  const auto width = static_cast<size_t>(weight.sizes()[1]);
  const SizesType sizes[] = {static_cast<SizesType>(bags), weight.sizes()[1]};
  TORCHETTE_TRY(resize_result(out, {sizes, 2}, "out0"));
  for (const Tensor* extra : {&offset2bag, &bag_size, &max_indices}) {
    TORCHETTE_TRY(check_index_type(*extra, kName, "out1, out2 or out3 is"));
    TORCHETTE_TRY(fill(*extra, Scalar(int64_t{0})));
  }
  const auto put = [](const Tensor& t, ptrdiff_t i, ptrdiff_t value) {
    if (i >= t.numel()) return;
    if (t.scalar_type() == ScalarType::Long)
      t.mutable_data_ptr<int64_t>()[i] = value;
    else
      t.mutable_data_ptr<int32_t>()[i] = static_cast<int32_t>(value);
  };
  return for_compute<false>(weight.scalar_type(), "_embedding_bag", "weight", [&](auto t) {
    using T = decltype(t);
    Dense rows, at, starts, scales, to;
    TORCHETTE_TRY(rows.read(context, weight, kScalarType<T>));
    TORCHETTE_TRY(at.read(context, indices, ScalarType::Long));
    TORCHETTE_TRY(starts.read(context, offsets, ScalarType::Long));
    if (per_sample_weights.has_value())
      TORCHETTE_TRY(scales.read(context, *per_sample_weights, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const int64_t* start = starts.data<int64_t>();
    for (ptrdiff_t bag = 0; bag < bags; ++bag) {
      const int64_t begin = start[bag], end = bag + 1 < offsets.numel() ? start[bag + 1] : count;
      TORCHETTE_CHECK(begin >= 0 && begin <= end && end <= count, InvalidArgument,
                      "%s: offsets of bag %td select indices %lld to %lld of %td", kName, bag,
                      static_cast<long long>(begin), static_cast<long long>(end), count);
      T* y = to.data<T>() + static_cast<size_t>(bag) * width;
      for (size_t j = 0; j < width; ++j) y[j] = 0;
      ptrdiff_t used = 0;
      for (int64_t i = begin; i < end; ++i) {
        put(offset2bag, static_cast<ptrdiff_t>(i), bag);
        const int64_t index = at.data<int64_t>()[i];
        TORCHETTE_CHECK(index >= 0 && index < weight.sizes()[0], InvalidArgument,
                        "%s: indices contain %lld, which is out of range for size %d", kName,
                        static_cast<long long>(index), weight.sizes()[0]);
        if (index == padding_idx) continue;
        const T* x = rows.data<T>() + static_cast<size_t>(index) * width;
        const T scale = per_sample_weights.has_value() ? scales.data<T>()[i] : T(1);
        for (size_t j = 0; j < width; ++j) {
          if (mode != 2) {
            y[j] += x[j] * scale;
          } else if (used == 0 || x[j] > y[j]) {
            y[j] = x[j];
            put(max_indices, bag * static_cast<ptrdiff_t>(width) + static_cast<ptrdiff_t>(j),
                static_cast<ptrdiff_t>(index));
          }
        }
        ++used;
      }
      if (mode == 1 && used > 0)
        for (size_t j = 0; j < width; ++j) y[j] /= static_cast<T>(used);
      put(bag_size, bag, used);
      if (mode != 2) put(max_indices, bag, mode == 0 ? 0 : used);
    }
    return to.finish();
  });
}

// --- Windows

/// Inverse of im2col: adds the columns of an image's windows to the image. Overlapping windows are
/// accumulated.
Error col2im_out(Context& context, const Tensor& self, Span<const int64_t> output_size,
                 Span<const int64_t> kernel, Span<const int64_t> dilation, Span<const int64_t> padding,
                 Span<const int64_t> stride, Tensor& out) {
  const auto rank = static_cast<size_t>(self.dim());
  TORCHETTE_CHECK((rank == 2 || rank == 3) && output_size.size() == 2 && kernel.size() == 2 &&
                      dilation.size() == 2 && padding.size() == 2 && stride.size() == 2,
                  InvalidArgument,
                  "col2im: self has %zu dimensions, or output_size, kernel_size, dilation, padding or stride "
                  "do not have 2 elements",
                  rank);
  TORCHETTE_TRY(same_type(self, out, "self and out"));
  ptrdiff_t positions[2];
  for (size_t d = 0; d < 2; ++d) {
    constexpr int64_t kMax = INT32_MAX / 4;
    TORCHETTE_CHECK(kernel[d] > 0 && dilation[d] > 0 && stride[d] > 0 && padding[d] >= 0 &&
                        output_size[d] > 0 && kernel[d] < 32768 && dilation[d] < 32768 && stride[d] < kMax &&
                        padding[d] < kMax && output_size[d] < kMax,
                    InvalidArgument,
                    "col2im: kernel_size, stride, dilation, padding or output_size is out of range");
    const int64_t room = output_size[d] + 2 * padding[d] - dilation[d] * (kernel[d] - 1) - 1;
    TORCHETTE_CHECK(room >= 0, InvalidArgument, "col2im: kernel_size exceeds output_size");
    positions[d] = static_cast<ptrdiff_t>(room / stride[d] + 1);
  }
  const ptrdiff_t taps = static_cast<ptrdiff_t>(kernel[0] * kernel[1]);
  const ptrdiff_t rows = self.sizes()[rank - 2], columns = self.sizes()[rank - 1];
  TORCHETTE_CHECK(rows % taps == 0 && columns == positions[0] * positions[1], InvalidArgument,
                  "col2im: self has %td rows and %td columns, which does not fit %td taps at %td positions",
                  rows, columns, taps, positions[0] * positions[1]);
  SizesType sizes[4];
  size_t dim = 0;
  if (rank == 3) sizes[dim++] = self.sizes()[0];
  sizes[dim++] = static_cast<SizesType>(rows / taps);
  sizes[dim++] = static_cast<SizesType>(output_size[0]);
  sizes[dim++] = static_cast<SizesType>(output_size[1]);
  TORCHETTE_TRY(resize_result(out, {sizes, dim}));
  return for_compute<true>(self.scalar_type(), "col2im", "self", [&](auto t) {
    using T = decltype(t);
    Dense from, to;
    TORCHETTE_TRY(from.read(context, self, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    for (ptrdiff_t i = 0; i < out.numel(); ++i) to.data<T>()[i] = 0;
    const T* x = from.data<T>();
    const auto height = static_cast<ptrdiff_t>(output_size[0]),
               width = static_cast<ptrdiff_t>(output_size[1]);
    const ptrdiff_t planes = (rank == 3 ? self.sizes()[0] : 1) * (rows / taps);
    for (ptrdiff_t plane = 0; plane < planes; ++plane) {
      T* image = to.data<T>() + plane * height * width;
      for (int64_t ky = 0; ky < kernel[0]; ++ky)
        for (int64_t kx = 0; kx < kernel[1]; ++kx)
          for (ptrdiff_t oy = 0; oy < positions[0]; ++oy) {
            const auto y = oy * static_cast<ptrdiff_t>(stride[0]) +
                           static_cast<ptrdiff_t>(ky * dilation[0] - padding[0]);
            for (ptrdiff_t ox = 0; ox < positions[1]; ++ox, ++x) {
              const auto at = ox * static_cast<ptrdiff_t>(stride[1]) +
                              static_cast<ptrdiff_t>(kx * dilation[1] - padding[1]);
              if (y >= 0 && y < height && at >= 0 && at < width)
                image[y * width + at] = folded(Folding::Sum, image[y * width + at], *x);
            }
          }
    }
    return to.finish();
  });
}

}  // namespace

TORCHETTE_KERNELS_ONCE(scatter,                                                                       //
                       TORCHETTE_KERNEL("aten::scatter_reduce.two_out", scatter_reduce_two_out),      //
                       TORCHETTE_KERNEL("aten::scatter.reduce_out", scatter_reduce_out),              //
                       TORCHETTE_KERNEL("aten::scatter.value_reduce_out", scatter_value_reduce_out),  //
                       TORCHETTE_KERNEL("aten::index_reduce.out", index_reduce_out),                  //
                       TORCHETTE_KERNEL("aten::embedding_dense_backward.out",
                                        embedding_dense_backward_out),                                //
                       TORCHETTE_KERNEL("aten::_embedding_bag.out", embedding_bag_out),               //
                       TORCHETTE_KERNEL("aten::_embedding_bag_forward_only.out", embedding_bag_out),  //
                       TORCHETTE_KERNEL("aten::col2im.out", col2im_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
