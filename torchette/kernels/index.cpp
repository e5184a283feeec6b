// SPDX-License-Identifier: BSD-3-Clause
// Operators that read or write at positions stored in index tensors. Indices are data, so each index is
// checked against the size of its dimension when it is used.
#include <cstring>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"
#include "torchette/kernels/selection.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

static Error check_index_type(const Tensor& index, const char* name = "index or indices") {
  // torch accepts an empty index of any type.
  TORCHETTE_CHECK(
      index.scalar_type() == ScalarType::Long || index.scalar_type() == ScalarType::Int || index.numel() == 0,
      InvalidType, "%s: elements of type %d, expected integers", name, static_cast<int>(index.scalar_type()));
  return Error::Ok;
}
static TORCHETTE_INLINE int64_t index_at(const Tensor& index, ptrdiff_t offset) {
  return index.scalar_type() == ScalarType::Long ? index.const_data_ptr<int64_t>()[offset]
                                                 : index.const_data_ptr<int32_t>()[offset];
}
static TORCHETTE_INLINE Error check_index(int64_t i, int64_t size, const char* name = "index") {
  TORCHETTE_CHECK(i >= 0 && i < size, InvalidArgument, "%s: %lld is out of range for size %lld", name,
                  static_cast<long long>(i), static_cast<long long>(size));
  return Error::Ok;
}

// --- Rows ----------------------------------------------------------------------------------------

/// Copies or adds `n` elements: from[of[i]] to to[at[i]].
using Apply = void (*)(void* to, const ptrdiff_t* at, const void* from, const ptrdiff_t* of, size_t n);

template <typename T>
static void copy_elements(void* to, const ptrdiff_t* at, const void* from, const ptrdiff_t* of, size_t n) {
  for (size_t i = 0; i < n; ++i) static_cast<T*>(to)[at[i]] = static_cast<const T*>(from)[of[i]];
}
static Error copy_of_type(ScalarType type, Apply& apply) {
  switch (element_size(type)) {
    case 1:
      apply = &copy_elements<uint8_t>;
      return Error::Ok;
    case 2:
      apply = &copy_elements<uint16_t>;
      return Error::Ok;
    case 4:
      apply = &copy_elements<uint32_t>;
      return Error::Ok;
    case 8:
      apply = &copy_elements<uint64_t>;
      return Error::Ok;
    default:
      TORCHETTE_LOG(Error, "self or weight is of type %d, which cannot be indexed", static_cast<int>(type));
      return Error::InvalidType;
  }
}
/// select_rows() for elements that are not contiguous: for each position in the other dimensions (`nest`),
/// copies the elements of all indices.
static Error select_elements(const Tensor& x, size_t dim, const Tensor& index, const char* name,
                             const Tensor& out, size_t out_dim, const Move& nest) {
  Apply copy;
  TORCHETTE_TRY(copy_of_type(x.scalar_type(), copy));
  const ptrdiff_t element = x.element_size();
  constexpr size_t kBatch = 64;
  ptrdiff_t at[kBatch], of[kBatch];
  const auto count = static_cast<size_t>(index.numel());
  for (size_t j = 0, n; j < count; j += n) {
    n = count - j < kBatch ? count - j : kBatch;
    for (size_t k = 0; k < n; ++k) {
      const auto position = static_cast<ptrdiff_t>(j + k);
      const int64_t i = index_at(index, position * index.strides()[0]);
      TORCHETTE_TRY(check_index(i, x.sizes()[dim], name));
      at[k] = position * out.strides()[out_dim];
      of[k] = static_cast<ptrdiff_t>(i) * x.strides()[dim];
    }
    Walk<2> walk;
    walk.rank = nest.dim;
    for (size_t d = 0; d < nest.dim; ++d) {
      walk.size[d] = nest.size[d];
      walk.stride[0][d] = nest.to[d];
      walk.stride[1][d] = nest.from[d];
    }
    do
      copy(static_cast<char*>(out.mutable_data_ptr()) + walk.offset[0] * element, at,
           static_cast<const char*>(x.const_data_ptr()) + walk.offset[1] * element, of, n);
    while (walk.next());
  }
  return Error::Ok;
}

/// Copies the elements `index` of x along `dim` to `out`, which is already resized.
static Error select_rows(const Tensor& x, size_t dim, const Tensor& index, const char* name,
                         const Tensor& out, size_t out_dim, size_t out_dims) {
  const int64_t count = x.sizes()[dim];
  if (out.numel() == 0) return Error::Ok;
  // The dimensions other than `dim` form one loop nest, the same for each index.
  Move nest;
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
    if (d != dim)
      nest.add(static_cast<size_t>(x.sizes()[d]), out.strides()[d < dim ? d : d + out_dims - 1],
               x.strides()[d]);
  if (!simplify(nest)) return Error::Ok;
  const auto element = static_cast<size_t>(x.element_size());
  if (index.dim() == 1 && (nest.to[nest.dim - 1] != 1 || nest.from[nest.dim - 1] != 1))
    return select_elements(x, dim, index, name, out, out_dim, nest);
  const bool one_run = nest.dim == 1 && nest.to[0] == 1 && nest.from[0] == 1;
  const size_t run = nest.size[0] * element;
  Walk<2> walk;
  walk.rank = static_cast<size_t>(index.dim());
  for (size_t d = 0; d < walk.rank; ++d) {
    walk.size[d] = static_cast<size_t>(index.sizes()[d]);
    walk.stride[0][d] = index.strides()[d];
    walk.stride[1][d] = out.strides()[out_dim + d];
  }
  do {
    const int64_t i = index_at(index, walk.offset[0]);
    TORCHETTE_TRY(check_index(i, count, name));
    char* to = static_cast<char*>(out.mutable_data_ptr()) + walk.offset[1] * static_cast<ptrdiff_t>(element);
    const char* from = static_cast<const char*>(x.const_data_ptr()) +
                       static_cast<ptrdiff_t>(i) * x.strides()[dim] * static_cast<ptrdiff_t>(element);
    if (one_run)
      memmove(to, from, run);
    else
      move_simplified(nest, to, from, element);
  } while (walk.next());
  return Error::Ok;
}
static Error embedding_out(Context&, const Tensor& weight, const Tensor& index, int64_t, bool, bool,
                           Tensor& out) {
  TORCHETTE_CHECK(weight.dim() == 2 && static_cast<size_t>(index.dim()) < kMaxDim, InvalidArgument,
                  "embedding: weight has %d dimensions, expected 2, or indices has 16 dimensions",
                  static_cast<int>(weight.dim()));
  TORCHETTE_TRY(check_index_type(index, "indices"));
  TORCHETTE_TRY(same_type(weight, out, "weight and out"));
  const auto rank = static_cast<size_t>(index.dim());
  SizesType sizes[kMaxDim];
  for (size_t d = 0; d < rank; ++d) sizes[d] = index.sizes()[d];
  sizes[rank] = weight.sizes()[1];
  TORCHETTE_TRY(resize_result(out, {sizes, rank + 1}));
  return select_rows(weight, 0, index, "indices", out, 0, rank);
}
static Error index_select_out(Context&, const Tensor& x, int64_t dim, const Tensor& index, Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_CHECK(index.dim() <= 1, InvalidArgument, "index has %d dimensions, expected at most 1",
                  static_cast<int>(index.dim()));
  TORCHETTE_TRY(check_index_type(index));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  if (x.dim() == 0) {
    TORCHETTE_CHECK(index.numel() == 1, InvalidArgument, "index has %d elements, expected 1 for 0-d self",
                    static_cast<int>(index.numel()));
    TORCHETTE_TRY(check_index(index_at(index, 0), 1));
    TORCHETTE_TRY(resize_result(out, x.sizes()));
    return assign(x, out);
  }
  SizesType sizes[kMaxDim];
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d) sizes[d] = x.sizes()[d];
  sizes[dim] = static_cast<SizesType>(index.numel());
  TORCHETTE_TRY(resize_result(out, {sizes, static_cast<size_t>(x.dim())}));
  return select_rows(x, static_cast<size_t>(dim), index, "index", out, static_cast<size_t>(dim), 1);
}

// --- Elements along one dimension ----------------------------------------------------------------

template <typename T>
static void add_elements(void* to, const ptrdiff_t* at, const void* from, const ptrdiff_t* of, size_t n) {
  for (size_t i = 0; i < n; ++i)
    static_cast<T*>(to)[at[i]] =
        static_cast<T>(static_cast<T*>(to)[at[i]] + static_cast<const T*>(from)[of[i]]);
}
static void add_bools(void* to, const ptrdiff_t* at, const void* from, const ptrdiff_t* of, size_t n) {
  for (size_t i = 0; i < n; ++i)  // any nonzero byte means true
    static_cast<uint8_t*>(to)[at[i]] =
        (static_cast<uint8_t*>(to)[at[i]] | static_cast<const uint8_t*>(from)[of[i]]) != 0;
}
static Error addition_of_type(ScalarType type, Apply& apply) {
  const auto built = [&](auto t) {
    if constexpr (has_dtype(kScalarType<decltype(t)>)) apply = &add_elements<decltype(t)>;
    return Error::Ok;
  };
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Char:
      apply = &add_elements<uint8_t>;  // addition wraps around, so signedness does not matter
      return Error::Ok;
    case ScalarType::Short:
      apply = &add_elements<uint16_t>;
      return Error::Ok;
    case ScalarType::Int:
      apply = &add_elements<uint32_t>;
      return Error::Ok;
    case ScalarType::Long:
      apply = &add_elements<uint64_t>;
      return Error::Ok;
    case ScalarType::Half:
      return built(Half(0.0f));
    case ScalarType::BFloat16:
      return built(BFloat16(0.0f));
    case ScalarType::Float:
      return built(float());
    case ScalarType::Double:
      return built(double());
    case ScalarType::Bool:
      apply = &add_bools;
      return Error::Ok;
    default:
      TORCHETTE_LOG(Error, "self is of type %d, which does not support accumulation", static_cast<int>(type));
      return Error::InvalidType;
  }
}

/// For each element of `index`, moves between `indexed` at the index's coordinates, with the value of the
/// index in dimension `dim`, and the tensor with strides `along` at the index's coordinates (at its first
/// element if null).
static Error apply_indexed(const Tensor& index, const Tensor& indexed, size_t dim, const StridesType* along,
                           bool reads_indexed, Apply apply, void* to, const void* from) {
  if (index.numel() == 0) return Error::Ok;
  Walk<3> walk;
  walk.rank = static_cast<size_t>(index.dim());
  for (size_t d = 0; d < walk.rank; ++d) {
    walk.size[d] = static_cast<size_t>(index.sizes()[d]);
    walk.stride[0][d] = index.strides()[d];
    walk.stride[1][d] = along == nullptr ? 0 : along[d];
    walk.stride[2][d] = d == dim ? 0 : indexed.strides()[d];
  }
  const int64_t size = walk.rank > 0 ? indexed.sizes()[dim] : 1;
  const ptrdiff_t stride = walk.rank > 0 ? indexed.strides()[dim] : 0;
  // The last dimension is an inner loop.
  size_t row = 1;
  ptrdiff_t step[3] = {};
  if (walk.rank > 0) {
    row = walk.size[--walk.rank];
    for (size_t t = 0; t < 3; ++t) step[t] = walk.stride[t][walk.rank];
  }
  constexpr size_t kBatch = 64;
  ptrdiff_t own[kBatch], at[kBatch];
  do {
    for (size_t j = 0, n; j < row; j += n) {
      n = row - j < kBatch ? row - j : kBatch;
      for (size_t k = 0; k < n; ++k) {
        const auto position = static_cast<ptrdiff_t>(j + k);
        const int64_t i = index_at(index, walk.offset[0] + position * step[0]);
        TORCHETTE_TRY(check_index(i, size));
        own[k] = walk.offset[1] + position * step[1];
        at[k] = walk.offset[2] + position * step[2] + static_cast<ptrdiff_t>(i) * stride;
      }
      apply(to, reads_indexed ? own : at, from, reads_indexed ? at : own, n);
    }
  } while (walk.next());
  return Error::Ok;
}
static Error check_within(const Tensor& index, const Tensor& t, size_t except) {
  TORCHETTE_CHECK(index.dim() == t.dim(), InvalidArgument, "index has %d dimensions, self or src %d",
                  static_cast<int>(index.dim()), static_cast<int>(t.dim()));
  for (size_t d = 0; d < static_cast<size_t>(index.dim()); ++d)
    TORCHETTE_CHECK(d == except || index.sizes()[d] <= t.sizes()[d], InvalidArgument,
                    "index is larger than self or src in dimension %zu", d);
  return Error::Ok;
}

static Error gather_out(Context&, const Tensor& x, int64_t dim, const Tensor& index, bool, Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(check_index_type(index));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(check_within(index, x, static_cast<size_t>(dim)));
  TORCHETTE_TRY(resize_result(out, index.sizes()));
  Apply apply;
  TORCHETTE_TRY(copy_of_type(x.scalar_type(), apply));
  return apply_indexed(index, x, static_cast<size_t>(dim), out.strides().data(), true, apply,
                       out.mutable_data_ptr(), x.const_data_ptr());
}

static Error prepare_scatter(const Tensor& x, int64_t& dim, const Tensor& index, const Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(check_index_type(index));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(check_within(index, x, static_cast<size_t>(dim)));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  return assign(x, out);
}
static Error scatter(const Tensor& x, int64_t dim, const Tensor& index, const Tensor& source, bool adds,
                     const Tensor& out) {
  Apply apply;
  TORCHETTE_TRY(adds ? addition_of_type(out.scalar_type(), apply) : copy_of_type(out.scalar_type(), apply));
  TORCHETTE_TRY(same_type(source, out, "src and out"));
  TORCHETTE_TRY(prepare_scatter(x, dim, index, out));
  TORCHETTE_TRY(check_within(index, source, kMaxDim));
  return apply_indexed(index, out, static_cast<size_t>(dim), source.strides().data(), false, apply,
                       out.mutable_data_ptr(), source.const_data_ptr());
}
static Error scatter_src_out(Context&, const Tensor& x, int64_t dim, const Tensor& index,
                             const Tensor& source, Tensor& out) {
  return scatter(x, dim, index, source, false, out);
}
static Error scatter_add_out(Context&, const Tensor& x, int64_t dim, const Tensor& index,
                             const Tensor& source, Tensor& out) {
  return scatter(x, dim, index, source, true, out);
}
static Error scatter_value_out(Context&, const Tensor& x, int64_t dim, const Tensor& index,
                               const Scalar& value, Tensor& out) {
  Apply apply;
  TORCHETTE_TRY(copy_of_type(out.scalar_type(), apply));
  TORCHETTE_TRY(prepare_scatter(x, dim, index, out));
  uint64_t bits = 0;
  TensorImpl point = *out.unsafe_impl();
  point.dim = 0;
  point.numel = 1;
  point.data = &bits;
  TORCHETTE_TRY(fill(Tensor(&point), value));
  return apply_indexed(index, out, static_cast<size_t>(dim), nullptr, false, apply, out.mutable_data_ptr(),
                       &bits);
}

// --- index and index_put -------------------------------------------------------------------------

/// x[indices]: the source of each dimension of the result.
struct Indexing {
  Tensor index[kMaxDim];  // per dimension of x
  bool has_index[kMaxDim] = {};
  TensorImpl from_mask[kMaxDim];  // coordinates that a mask was converted to
  SizesType count[kMaxDim];
  StridesType one = 1;
  size_t rank = 0;                 // rank of x
  size_t indexed = 0;              // number of dimensions with an index
  SizesType index_sizes[kMaxDim];  // the sizes that the indices broadcast to
  size_t index_dims = 0;
  SizesType size[kMaxDim];  // sizes of the result
  size_t dim = 0;
  size_t first_index_dim = 0;  // position of the dimensions of the indices in the result
};

/// Converts a mask over dimension `d` and the following ones to one list of coordinates per dimension.
static Error index_by_mask(Context& context, const Tensor& x, const Tensor& mask, size_t d, Indexing& plan) {
  static constexpr DimOrderType kOrder[] = {0};
  const auto rank = static_cast<size_t>(mask.dim());
  TORCHETTE_CHECK(rank > 0 && rank <= plan.rank - d, InvalidArgument,
                  "indices: a mask of %zu dimensions does not fit self with %zu dimensions at dimension %zu",
                  rank, plan.rank, d);
  for (size_t i = 0; i < rank; ++i)
    TORCHETTE_CHECK(mask.sizes()[i] == x.sizes()[d + i], InvalidArgument,
                    "indices: a mask of size %d does not fit dimension %zu of size %d", mask.sizes()[i],
                    d + i, x.sizes()[d + i]);
  const ptrdiff_t count = count_nonzero(mask);
  int64_t* coordinates = nullptr;
  if (count > 0) {
    coordinates = static_cast<int64_t*>(
        context.allocate_temp(rank * static_cast<size_t>(count) * sizeof(int64_t), alignof(int64_t)));
    TORCHETTE_CHECK(coordinates != nullptr, MemoryAllocationFailed,
                    "no scratch memory for %td positions of a mask", count);
    list_nonzero(mask, count, coordinates, 1, count);
  }
  for (size_t i = 0; i < rank; ++i) {
    plan.count[d + i] = static_cast<SizesType>(count);
    plan.from_mask[d + i] = {
        coordinates == nullptr ? nullptr : coordinates + static_cast<ptrdiff_t>(i) * count,
        &plan.count[d + i],
        &plan.one,
        kOrder,
        static_cast<size_t>(count),
        static_cast<int32_t>(count),
        1,
        ScalarType::Long,
        TensorShapeDynamism::STATIC};
    plan.index[d + i] = Tensor(&plan.from_mask[d + i]);
    plan.has_index[d + i] = true;
  }
  return Error::Ok;
}

static Error plan_indexing(Context& context, const Tensor& x, Span<const Optional<Tensor>> indices,
                           Indexing& plan) {
  plan.rank = static_cast<size_t>(x.dim());
  size_t next = 0;
  for (const Optional<Tensor>& index : indices) {
    const bool masks = index.has_value() &&
                       (index->scalar_type() == ScalarType::Bool || index->scalar_type() == ScalarType::Byte);
    TORCHETTE_CHECK(next < plan.rank, InvalidArgument,
                    "indices has more elements than self has dimensions (%zu)", plan.rank);
    if (masks) {
      TORCHETTE_TRY(index_by_mask(context, x, *index, next, plan));
      next += static_cast<size_t>(index->dim());
      continue;
    }
    if (index.has_value()) {
      TORCHETTE_TRY(check_index_type(*index, "indices"));
      plan.index[next] = *index;
      plan.has_index[next] = true;
    }
    ++next;
  }
  bool adjacent = true;
  size_t first = plan.rank, last = plan.rank;
  for (size_t d = 0; d < plan.rank; ++d) {
    if (!plan.has_index[d]) continue;
    const Tensor& index = plan.index[d];
    if (plan.indexed++ == 0)
      first = d;
    else if (last + 1 != d)
      adjacent = false;
    last = d;
    // Broadcasts, aligned at the last dimension.
    const auto n = static_cast<size_t>(index.dim());
    if (n > plan.index_dims) {
      for (size_t i = plan.index_dims; i-- > 0;)
        plan.index_sizes[i + n - plan.index_dims] = plan.index_sizes[i];
      for (size_t i = 0; i < n - plan.index_dims; ++i) plan.index_sizes[i] = 1;
      plan.index_dims = n;
    }
    for (size_t i = 0; i < n; ++i) {
      SizesType& size = plan.index_sizes[plan.index_dims - n + i];
      const SizesType own = index.sizes()[i];
      if (own == 1 || own == size) continue;
      TORCHETTE_CHECK(size == 1, InvalidArgument, "indices of sizes %d and %d do not broadcast", size, own);
      size = own;
    }
  }
  TORCHETTE_CHECK(plan.indexed > 0, InvalidArgument, "indices has no index");
  TORCHETTE_CHECK(plan.index_dims + plan.rank - plan.indexed <= kMaxDim, InvalidArgument,
                  "indices yield a tensor with more than 16 dimensions");
  const auto add_index_dims = [&plan] {
    plan.first_index_dim = plan.dim;
    for (size_t i = 0; i < plan.index_dims; ++i) plan.size[plan.dim++] = plan.index_sizes[i];
  };
  if (!adjacent) add_index_dims();
  for (size_t d = 0; d < plan.rank; ++d) {
    if (adjacent && d == first) add_index_dims();
    if (!plan.has_index[d]) plan.size[plan.dim++] = x.sizes()[d];
  }
  return Error::Ok;
}

static void apply_nest(const Move& nest, Apply apply, void* to, const void* from) {
  Walk<2> walk;
  walk.rank = nest.dim;
  for (size_t d = 0; d < nest.dim; ++d) {
    walk.size[d] = nest.size[d];
    walk.stride[0][d] = nest.to[d];
    walk.stride[1][d] = nest.from[d];
  }
  do {
    apply(to, &walk.offset[0], from, &walk.offset[1], 1);
  } while (walk.next());
}

/// For each position of the broadcast indices, moves the elements of the dimensions without an index between
/// `x` and `values`, which has the dimensions of the result. `apply` is null for copies.
static Error apply_at_indices(const Indexing& plan, const Tensor& x, const StridesType* value_strides,
                              bool from_x, Apply apply, char* to, const char* from) {
  const auto element = static_cast<ptrdiff_t>(x.element_size());
  Move nest;
  size_t position = 0;
  for (size_t d = 0; d < plan.rank; ++d) {
    if (plan.has_index[d]) continue;
    if (position == plan.first_index_dim) position += plan.index_dims;
    const ptrdiff_t value = value_strides[position++], own = x.strides()[d];
    nest.add(static_cast<size_t>(x.sizes()[d]), from_x ? value : own, from_x ? own : value);
  }
  if (!simplify(nest)) return Error::Ok;
  Walk<1> walk;
  walk.rank = plan.index_dims;
  for (size_t i = 0; i < walk.rank; ++i) {
    if (plan.index_sizes[i] == 0) return Error::Ok;
    walk.size[i] = static_cast<size_t>(plan.index_sizes[i]);
    walk.stride[0][i] = value_strides[plan.first_index_dim + i];
  }
  do {
    ptrdiff_t at = 0;
    for (size_t d = 0; d < plan.rank; ++d) {
      if (!plan.has_index[d]) continue;
      const Tensor& index = plan.index[d];
      ptrdiff_t offset = 0;
      const auto n = static_cast<size_t>(index.dim());
      for (size_t i = 0; i < n; ++i)
        if (index.sizes()[i] != 1)
          offset += static_cast<ptrdiff_t>(walk.at[plan.index_dims - n + i]) * index.strides()[i];
      int64_t i = index_at(index, offset);
      const int64_t size = x.sizes()[d];
      if (i < 0 && i >= -size) i += size;
      TORCHETTE_TRY(check_index(i, size, "indices"));
      at += static_cast<ptrdiff_t>(i) * x.strides()[d];
    }
    char* const target = to + (from_x ? walk.offset[0] : at) * element;
    const char* const source = from + (from_x ? at : walk.offset[0]) * element;
    if (apply == nullptr)
      move_simplified(nest, target, source, static_cast<size_t>(element));
    else
      apply_nest(nest, apply, target, source);
  } while (walk.next());
  return Error::Ok;
}

static Error index_tensor_out(Context& context, const Tensor& x, Span<const Optional<Tensor>> indices,
                              Tensor& out) {
  Indexing plan;
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(plan_indexing(context, x, indices, plan));
  TORCHETTE_TRY(resize_result(out, {plan.size, plan.dim}));
  return apply_at_indices(plan, x, out.strides().data(), true, nullptr,
                          static_cast<char*>(out.mutable_data_ptr()),
                          static_cast<const char*>(x.const_data_ptr()));
}

/// Writes values at the indices into `out`, which already contains the other values.
static Error put(Context& context, const Tensor& out, Span<const Optional<Tensor>> indices,
                 const Tensor& values, bool accumulate) {
  Indexing plan;
  TORCHETTE_TRY(same_type(values, out, "values and self"));
  TORCHETTE_TRY(plan_indexing(context, out, indices, plan));
  const auto rank = static_cast<size_t>(values.dim());
  TORCHETTE_CHECK(rank <= plan.dim, InvalidArgument, "values has %zu dimensions, expected at most %zu", rank,
                  plan.dim);
  StridesType strides[kMaxDim] = {};
  for (size_t d = 0; d < rank; ++d) {
    const size_t position = plan.dim - rank + d;
    const bool spreads = values.sizes()[d] == 1;
    TORCHETTE_CHECK(spreads || values.sizes()[d] == plan.size[position], InvalidArgument,
                    "values of size %d do not broadcast to size %d", values.sizes()[d], plan.size[position]);
    strides[position] = spreads ? 0 : values.strides()[d];
  }
  Apply apply = nullptr;
  if (accumulate) TORCHETTE_TRY(addition_of_type(out.scalar_type(), apply));
  return apply_at_indices(plan, out, strides, false, apply, static_cast<char*>(out.mutable_data_ptr()),
                          static_cast<const char*>(values.const_data_ptr()));
}
static Error index_put_out(Context& context, const Tensor& x, Span<const Optional<Tensor>> indices,
                           const Tensor& values, bool accumulate, Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  TORCHETTE_TRY(assign(x, out));  // no-op if the output aliases the input
  return put(context, out, indices, values, accumulate);
}
static Error index_put_(Context& context, Tensor& x, Span<const Optional<Tensor>> indices,
                        const Tensor& values, bool accumulate) {
  return put(context, x, indices, values, accumulate);
}

TORCHETTE_KERNELS_ONCE(index,                                                           //
                       TORCHETTE_KERNEL("aten::embedding.out", embedding_out),          //
                       TORCHETTE_KERNEL("aten::index_select.out", index_select_out),    //
                       TORCHETTE_KERNEL("aten::gather.out", gather_out),                //
                       TORCHETTE_KERNEL("aten::scatter.src_out", scatter_src_out),      //
                       TORCHETTE_KERNEL("aten::scatter.value_out", scatter_value_out),  //
                       TORCHETTE_KERNEL("aten::scatter_add.out", scatter_add_out),      //
                       TORCHETTE_KERNEL("aten::index.Tensor_out", index_tensor_out),    //
                       TORCHETTE_KERNEL("aten::index_put.out", index_put_out),          //
                       TORCHETTE_KERNEL("aten::index_put_", index_put_))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
