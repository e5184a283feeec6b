// SPDX-License-Identifier: BSD-3-Clause
// Operators that only move elements: permutes, views, slices, concatenations, padding. Each describes the
// move as a loop nest with strides for source and destination; strided.cpp executes it.
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

/// The sizes of an output while they are computed.
struct Sizes {
  SizesType size[kMaxDim];
  size_t dim = 0;

  TORCHETTE_INLINE Sizes() {}
  TORCHETTE_INLINE explicit Sizes(const Tensor& t) : dim(static_cast<size_t>(t.dim())) {
    for (size_t d = 0; d < dim; ++d) size[d] = t.sizes()[d];
  }
  Error push(int64_t n) {
    TORCHETTE_CHECK(dim < kMaxDim && n >= 0 && n <= INT32_MAX, InvalidArgument,
                    "out has more than 16 dimensions, or a size that is negative or too large");
    size[dim++] = static_cast<SizesType>(n);
    return Error::Ok;
  }
};
static Error resize(const Tensor& out, const Sizes& sizes) {
  return resize_result(out, {sizes.size, sizes.dim});
}

static TORCHETTE_INLINE size_t size_of(const Tensor& t, size_t d) {
  return static_cast<size_t>(t.sizes()[d]);
}

static void move_elements(Context& context, const Move& nest, const Tensor& to, ptrdiff_t to_offset,
                          const Tensor& from, ptrdiff_t from_offset) {
  const auto element = to.element_size();
  move(context, nest, static_cast<char*>(to.mutable_data_ptr()) + to_offset * element,
       static_cast<const char*>(from.const_data_ptr()) + from_offset * element, static_cast<size_t>(element));
}

// --- Permutations and views ----------------------------------------------------------------------

static Error permute_copy_out(Context& context, const Tensor& x, Span<const int64_t> dims, Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_CHECK(dims.size() == rank, InvalidArgument, "dims has %zu elements, self has %zu dimensions",
                  dims.size(), rank);
  uint32_t named;
  TORCHETTE_TRY(wrap_dims(dims, rank, named, "dims"));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  Sizes sizes;
  for (int64_t d : dims) TORCHETTE_TRY(sizes.push(x.sizes()[static_cast<size_t>(d < 0 ? d + x.dim() : d)]));
  TORCHETTE_TRY(resize(out, sizes));
  Move nest;
  for (size_t i = 0; i < rank; ++i)
    nest.add(size_of(out, i), out.strides()[i],
             x.strides()[static_cast<size_t>(dims[i] < 0 ? dims[i] + x.dim() : dims[i])]);
  move_elements(context, nest, out, 0, x, 0);
  return Error::Ok;
}
static Error transpose_copy_out(Context& context, const Tensor& x, int64_t dim0, int64_t dim1, Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim0, static_cast<size_t>(x.dim()), "dim0"));
  TORCHETTE_TRY(wrap_dim(dim1, static_cast<size_t>(x.dim()), "dim1"));
  int64_t dims[kMaxDim];
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d) dims[d] = static_cast<int64_t>(d);
  dims[dim0] = dim1;
  dims[dim1] = dim0;
  return permute_copy_out(context, x, {dims, static_cast<size_t>(x.dim())}, out);
}
static Error t_copy_out(Context& context, const Tensor& x, Tensor& out) {
  TORCHETTE_CHECK(x.dim() <= 2, InvalidArgument, "self has %d dimensions, t() requires at most 2",
                  static_cast<int>(x.dim()));
  return transpose_copy_out(context, x, 0, x.dim() == 2 ? 1 : 0, out);
}

/// Copies the elements in row-major order to a tensor of other sizes.
static Error reshape(Context& context, const Tensor& x, const Sizes& sizes, const Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize(out, sizes));
  TORCHETTE_CHECK(x.numel() == out.numel(), InvalidArgument, "self has %d elements, out %d",
                  static_cast<int>(x.numel()), static_cast<int>(out.numel()));
  if (is_contiguous(x) && is_contiguous(out)) {
    Move bytes;
    bytes.add(x.nbytes(), 1, 1);
    if (x.const_data_ptr() != out.const_data_ptr())
      move(context, bytes, out.mutable_data_ptr(), x.const_data_ptr(), 1);
    return Error::Ok;
  }
  // One of them has another dim order: traverses both in row-major order, element by element.
  const auto element = static_cast<size_t>(x.element_size());
  char* to = static_cast<char*>(out.mutable_data_ptr());
  const char* from = static_cast<const char*>(x.const_data_ptr());
  for (ptrdiff_t i = 0; i < x.numel(); ++i) {
    const auto offset = [i](const Tensor& t) {
      ptrdiff_t remaining = i, at = 0;
      for (size_t d = static_cast<size_t>(t.dim()); d-- > 0; remaining /= t.sizes()[d])
        at += remaining % t.sizes()[d] * t.strides()[d];
      return at * t.element_size();
    };
    memmove(to + offset(out), from + offset(x), element);
  }
  return Error::Ok;
}
static Error view_copy_out(Context& context, const Tensor& x, Span<const int64_t> requested, Tensor& out) {
  Sizes sizes;
  int64_t known = 1;
  size_t open = kMaxDim;
  for (size_t d = 0; d < requested.size(); ++d) {
    TORCHETTE_CHECK(requested[d] >= 0 || (requested[d] == -1 && open == kMaxDim), InvalidArgument,
                    "size is negative and not a single -1");
    if (requested[d] == -1) open = d;
    TORCHETTE_TRY(sizes.push(requested[d] == -1 ? 0 : requested[d]));
    if (requested[d] != -1) known *= requested[d];
    TORCHETTE_CHECK(known <= INT32_MAX, InvalidArgument, "size is too large");
  }
  if (open != kMaxDim) {
    TORCHETTE_CHECK(known > 0 && x.numel() % known == 0, InvalidArgument,
                    "size: %d elements cannot be viewed: not divisible by %d", static_cast<int>(x.numel()),
                    static_cast<int>(known));
    sizes.size[open] = static_cast<SizesType>(x.numel() / known);
  }
  return reshape(context, x, sizes, out);
}
static Error unsqueeze_copy_out(Context& context, const Tensor& x, int64_t dim, Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim()) + 1));
  Sizes sizes;
  for (size_t d = 0; d <= static_cast<size_t>(x.dim()); ++d) {
    if (d == static_cast<size_t>(dim)) TORCHETTE_TRY(sizes.push(1));
    if (d < static_cast<size_t>(x.dim())) TORCHETTE_TRY(sizes.push(x.sizes()[d]));
  }
  return reshape(context, x, sizes, out);
}
static Error squeeze(Context& context, const Tensor& x, uint32_t dims, const Tensor& out) {
  Sizes sizes;
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
    if (x.sizes()[d] != 1 || (dims >> d & 1u) == 0) TORCHETTE_TRY(sizes.push(x.sizes()[d]));
  return reshape(context, x, sizes, out);
}
static Error squeeze_copy_out(Context& context, const Tensor& x, Tensor& out) {
  return squeeze(context, x, ~0u, out);
}
static Error squeeze_copy_dim_out(Context& context, const Tensor& x, int64_t dim, Tensor& out) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  return squeeze(context, x, 1u << dim, out);
}
static Error squeeze_copy_dims_out(Context& context, const Tensor& x, Span<const int64_t> dims, Tensor& out) {
  uint32_t named;
  TORCHETTE_TRY(wrap_dims(dims, static_cast<size_t>(x.dim()), named));
  return squeeze(context, x, named, out);
}

static Error expand_copy_out(Context&, const Tensor& x, Span<const int64_t> requested, bool, Tensor& out) {
  TORCHETTE_CHECK(requested.size() >= static_cast<size_t>(x.dim()), InvalidArgument,
                  "size has fewer dimensions than self");
  const size_t added = requested.size() - static_cast<size_t>(x.dim());
  Sizes sizes;
  for (size_t d = 0; d < requested.size(); ++d) {
    const bool keeps = requested[d] == -1 && d >= added;
    TORCHETTE_CHECK(keeps || d < added || x.sizes()[d - added] == 1 || x.sizes()[d - added] == requested[d],
                    InvalidArgument, "size: dimension %zu of size %d cannot expand to %d", d,
                    static_cast<int>(x.sizes()[d - added]), static_cast<int>(requested[d]));
    TORCHETTE_TRY(sizes.push(keeps ? x.sizes()[d - added] : requested[d]));
  }
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize(out, sizes));
  return assign(x, out);
}

// --- Slices --------------------------------------------------------------------------------------

/// Normalizes slice bounds as Python does: negative bounds count from the end, and bounds are clamped to the
/// size.
static Error slice_bounds(int64_t size, Optional<int64_t> start, Optional<int64_t> end, int64_t step,
                          int64_t& first, int64_t& count) {
  TORCHETTE_CHECK(step > 0, InvalidArgument, "step is not positive");
  const auto within = [size](int64_t i) {
    if (i < 0) i = i < -size ? 0 : i + size;
    return i > size ? size : i;
  };
  first = within(start.value_or(0));
  const int64_t last = within(end.value_or(size));
  count = last > first ? (last - first - 1) / step + 1 : 0;
  return Error::Ok;
}

/// Moves elements between `part` and every `step`th element of `full` along `dim`, starting at `first`. The
/// other dimensions have the sizes of `part`.
static void move_part(Context& context, const Tensor& to, const Tensor& from, bool from_full, size_t dim,
                      int64_t first, int64_t step) {
  const Tensor& part = from_full ? to : from;
  const Tensor& full = from_full ? from : to;
  Move nest;
  for (size_t d = 0; d < static_cast<size_t>(part.dim()); ++d) {
    // With a single element, the step may exceed any stride.
    const bool steps = d == dim && part.sizes()[d] > 1;
    const ptrdiff_t stride = full.strides()[d] * (steps ? static_cast<ptrdiff_t>(step) : 1);
    nest.add(size_of(part, d), from_full ? to.strides()[d] : stride, from_full ? stride : from.strides()[d]);
  }
  const ptrdiff_t offset = part.numel() == 0 ? 0 : static_cast<ptrdiff_t>(first) * full.strides()[dim];
  move_elements(context, nest, to, from_full ? 0 : offset, from, from_full ? offset : 0);
}
static Error take(Context& context, const Tensor& x, size_t dim, int64_t first, int64_t count, int64_t step,
                  const Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  Sizes sizes(x);
  sizes.size[dim] = static_cast<SizesType>(count);
  TORCHETTE_TRY(resize(out, sizes));
  move_part(context, out, x, true, dim, first, step);
  return Error::Ok;
}
static Error slice_copy_out(Context& context, const Tensor& x, int64_t dim, Optional<int64_t> start,
                            Optional<int64_t> end, int64_t step, Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self has no dimension to be sliced");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  int64_t first, count;
  TORCHETTE_TRY(slice_bounds(x.sizes()[static_cast<size_t>(dim)], start, end, step, first, count));
  return take(context, x, static_cast<size_t>(dim), first, count, step, out);
}
static Error narrow_copy_out(Context& context, const Tensor& x, int64_t dim, int64_t start, int64_t length,
                             Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self has no dimension to be narrowed");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  const int64_t size = x.sizes()[static_cast<size_t>(dim)];
  if (start < 0) start += size;
  TORCHETTE_CHECK(start >= 0 && length >= 0 && start <= size && length <= size - start, InvalidArgument,
                  "start %d and length %d exceed size %d", static_cast<int>(start), static_cast<int>(length),
                  static_cast<int>(size));
  return take(context, x, static_cast<size_t>(dim), start, length, 1, out);
}
/// Copies element `index` along `dim` and removes the dimension.
static Error select(const Tensor& x, size_t dim, int64_t index, const Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  View part(x);
  part.advance(dim, index);
  part.drop(dim);
  TORCHETTE_TRY(resize_result(out, part.tensor().sizes()));
  return assign(part.tensor(), out);
}
static Error wrap_index(int64_t& index, int64_t size) {
  TORCHETTE_CHECK(index >= -size && index < size, InvalidArgument, "index %lld is out of range for size %lld",
                  static_cast<long long>(index), static_cast<long long>(size));
  if (index < 0) index += size;
  return Error::Ok;
}
static Error select_copy_out(Context&, const Tensor& x, int64_t dim, int64_t index, Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self has no dimension to select from");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(wrap_index(index, x.sizes()[static_cast<size_t>(dim)]));
  return select(x, static_cast<size_t>(dim), index, out);
}
static Error unbind_copy_out(Context&, const Tensor& x, int64_t dim, Span<const Tensor> out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self has no dimension to be unbound");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_CHECK(out.size() == size_of(x, static_cast<size_t>(dim)), InvalidArgument,
                  "self unbinds into %d tensors, out has %zu",
                  static_cast<int>(x.sizes()[static_cast<size_t>(dim)]), out.size());
  for (size_t i = 0; i < out.size(); ++i)
    TORCHETTE_TRY(select(x, static_cast<size_t>(dim), static_cast<int64_t>(i), out[i]));
  return Error::Ok;
}
static Error split_with_sizes_copy_out(Context& context, const Tensor& x, Span<const int64_t> sizes,
                                       int64_t dim, Span<const Tensor> out) {
  TORCHETTE_CHECK(x.dim() > 0 && sizes.size() == out.size(), InvalidArgument,
                  "split_sizes has %zu elements, out has %zu", sizes.size(), out.size());
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  int64_t left = x.sizes()[static_cast<size_t>(dim)], first = 0;
  for (int64_t size : sizes) {
    TORCHETTE_CHECK(size >= 0 && size <= left, InvalidArgument,
                    "split_sizes is negative, or its sum exceeds the size of self");
    left -= size;
  }
  TORCHETTE_CHECK(left == 0, InvalidArgument, "split_sizes does not cover the last %d elements",
                  static_cast<int>(left));
  for (size_t i = 0; i < out.size(); ++i) {
    TORCHETTE_TRY(take(context, x, static_cast<size_t>(dim), first, sizes[i], 1, out[i]));
    first += sizes[i];
  }
  return Error::Ok;
}
static Error split_copy_out(Context& context, const Tensor& x, int64_t size, int64_t dim,
                            Span<const Tensor> out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self has no dimension to be split");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  const int64_t total = x.sizes()[static_cast<size_t>(dim)];
  TORCHETTE_CHECK(size > 0 || (size == 0 && total == 0), InvalidArgument,
                  "split_size is %d, expected a positive value", static_cast<int>(size));
  if (size > total) size = total;
  const int64_t parts = size == 0 ? 1 : (total + size - 1) / size;
  TORCHETTE_CHECK(out.size() == static_cast<size_t>(parts), InvalidArgument,
                  "split_size yields %d tensors, out has %zu", static_cast<int>(parts), out.size());
  for (int64_t i = 0; i < parts; ++i) {
    const int64_t first = i * size, left = total - first;
    TORCHETTE_TRY(take(context, x, static_cast<size_t>(dim), first, left < size ? left : size, 1,
                       out[static_cast<size_t>(i)]));
  }
  return Error::Ok;
}
static Error slice_scatter_out(Context& context, const Tensor& x, const Tensor& part, int64_t dim,
                               Optional<int64_t> start, Optional<int64_t> end, int64_t step, Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0 && part.dim() == x.dim(), InvalidArgument,
                  "self and src have %d and %d dimensions", static_cast<int>(x.dim()),
                  static_cast<int>(part.dim()));
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(same_type(part, out, "src and out"));
  int64_t first, count;
  TORCHETTE_TRY(slice_bounds(x.sizes()[static_cast<size_t>(dim)], start, end, step, first, count));
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
    TORCHETTE_CHECK(part.sizes()[d] == (d == static_cast<size_t>(dim) ? count : x.sizes()[d]),
                    InvalidArgument, "src does not fit the slice in dimension %zu", d);
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  TORCHETTE_TRY(assign(x, out));
  move_part(context, out, part, false, static_cast<size_t>(dim), first, step);
  return Error::Ok;
}
static Error select_scatter_out(Context&, const Tensor& x, const Tensor& part, int64_t dim, int64_t index,
                                Tensor& out) {
  TORCHETTE_CHECK(x.dim() > 0, InvalidArgument, "self has no dimension to select from");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  TORCHETTE_TRY(wrap_index(index, x.sizes()[static_cast<size_t>(dim)]));
  TORCHETTE_TRY(same_type(part, out, "src and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  View position(out);
  position.advance(static_cast<size_t>(dim), index);
  position.drop(static_cast<size_t>(dim));
  bool fits = part.dim() == position.tensor().dim();
  for (size_t d = 0; fits && d < static_cast<size_t>(part.dim()); ++d)
    fits = part.sizes()[d] == position.sizes[d];
  TORCHETTE_CHECK(fits, InvalidArgument, "src does not have the sizes of the selected slice");
  TORCHETTE_TRY(assign(x, out));
  return assign(part, position.tensor());
}

// --- Concatenation and repetition ----------------------------------------------------------------

/// Converts parts of other types to the type of the output if torch.can_cast permits.
static Error joins(const Tensor& part, const Tensor& out) {
  const bool fits =
      part.scalar_type() == out.scalar_type() || (is_real(part.scalar_type()) && is_real(out.scalar_type()) &&
                                                  can_cast(part.scalar_type(), out.scalar_type()));
  TORCHETTE_CHECK(fits, InvalidType, "tensors of type %d cannot be joined to type %d",
                  static_cast<int>(part.scalar_type()), static_cast<int>(out.scalar_type()));
  return Error::Ok;
}
static Error cat_out(Context& context, Span<const Tensor> parts, int64_t dim, Tensor& out) {
  // Concatenation ignores one-dimensional tensors without elements.
  const auto skips = [](const Tensor& t) { return t.dim() == 1 && t.numel() == 0; };
  const Tensor* first = nullptr;
  for (const Tensor& part : parts)
    if (first == nullptr || (skips(*first) && !skips(part))) first = &part;
  TORCHETTE_CHECK(first != nullptr && first->dim() > 0, InvalidArgument,
                  "tensors has no tensor with dimensions");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(first->dim())));
  const auto along = static_cast<size_t>(dim);
  Sizes sizes(*first);
  int64_t total = 0;
  for (const Tensor& part : parts) {
    if (skips(part)) continue;
    TORCHETTE_TRY(joins(part, out));
    TORCHETTE_CHECK(part.dim() == first->dim(), InvalidArgument,
                    "tensors of %d and %d dimensions cannot be concatenated", static_cast<int>(first->dim()),
                    static_cast<int>(part.dim()));
    for (size_t d = 0; d < sizes.dim; ++d)
      TORCHETTE_CHECK(d == along || part.sizes()[d] == sizes.size[d], InvalidArgument,
                      "tensors of sizes %d and %d in dimension %zu cannot be concatenated", sizes.size[d],
                      part.sizes()[d], d);
    total += part.sizes()[along];
  }
  TORCHETTE_CHECK(total <= INT32_MAX, InvalidArgument, "tensors have a total size above 2^31 - 1");
  sizes.size[along] = static_cast<SizesType>(total);
  TORCHETTE_TRY(resize(out, sizes));
  int64_t position = 0;
  for (const Tensor& part : parts) {
    if (skips(part)) continue;
    Dense converted;
    if (part.scalar_type() != out.scalar_type())
      TORCHETTE_TRY(converted.read(context, part, out.scalar_type()));
    move_part(context, out, part.scalar_type() != out.scalar_type() ? converted.tensor() : part, false, along,
              position, 1);
    position += part.sizes()[along];
  }
  return Error::Ok;
}
static Error stack_out(Context& context, Span<const Tensor> parts, int64_t dim, Tensor& out) {
  TORCHETTE_CHECK(parts.size() > 0, InvalidArgument, "tensors is empty");
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(parts[0].dim()) + 1));
  Sizes sizes;
  for (size_t d = 0; d <= static_cast<size_t>(parts[0].dim()); ++d) {
    if (d == static_cast<size_t>(dim)) TORCHETTE_TRY(sizes.push(static_cast<int64_t>(parts.size())));
    if (d < static_cast<size_t>(parts[0].dim())) TORCHETTE_TRY(sizes.push(parts[0].sizes()[d]));
  }
  for (const Tensor& part : parts) {
    TORCHETTE_TRY(joins(part, out));
    bool fits = part.dim() == parts[0].dim();
    for (size_t d = 0; fits && d < static_cast<size_t>(part.dim()); ++d)
      fits = part.sizes()[d] == parts[0].sizes()[d];
    TORCHETTE_CHECK(fits, InvalidArgument, "tensors of different sizes cannot be stacked");
  }
  TORCHETTE_TRY(resize(out, sizes));
  for (size_t i = 0; i < parts.size(); ++i) {
    View position(out);
    position.advance(static_cast<size_t>(dim), static_cast<int64_t>(i));
    position.drop(static_cast<size_t>(dim));
    Dense converted;
    if (parts[i].scalar_type() != out.scalar_type())
      TORCHETTE_TRY(converted.read(context, parts[i], out.scalar_type()));
    TORCHETTE_TRY(assign(parts[i].scalar_type() != out.scalar_type() ? converted.tensor() : parts[i],
                         position.tensor()));
  }
  return Error::Ok;
}
static Error repeat_out(Context& context, const Tensor& x, Span<const int64_t> repeats, Tensor& out) {
  TORCHETTE_CHECK(repeats.size() >= static_cast<size_t>(x.dim()), InvalidArgument,
                  "repeats has fewer elements than self has dimensions");
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  const size_t added = repeats.size() - static_cast<size_t>(x.dim());
  Sizes sizes;
  for (size_t d = 0; d < repeats.size(); ++d) {
    TORCHETTE_CHECK(repeats[d] >= 0 && repeats[d] <= INT32_MAX, InvalidArgument,
                    "repeats has a value that is negative or too large");
    TORCHETTE_TRY(sizes.push(repeats[d] * (d < added ? 1 : x.sizes()[d - added])));
  }
  TORCHETTE_TRY(resize(out, sizes));
  Move nest;
  for (size_t d = 0; d < repeats.size(); ++d) {
    const size_t size = d < added ? 1 : size_of(x, d - added);
    nest.add(static_cast<size_t>(repeats[d]), out.strides()[d] * static_cast<ptrdiff_t>(size), 0);
    nest.add(size, out.strides()[d], d < added ? 0 : x.strides()[d - added]);
  }
  move_elements(context, nest, out, 0, x, 0);
  return Error::Ok;
}

static Error constant_pad_nd_out(Context& context, const Tensor& x, Span<const int64_t> pad,
                                 const Scalar& value, Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_CHECK(pad.size() % 2 == 0 && pad.size() / 2 <= rank, InvalidArgument,
                  "pad has %zu elements for %zu dimensions", pad.size(), rank);
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  Sizes sizes;
  int64_t before[kMaxDim], after[kMaxDim];
  bool pads = false;
  for (size_t d = 0; d < rank; ++d) {
    const size_t i = 2 * (rank - 1 - d);  // pads are ordered from the last dimension to the first
    before[d] = i < pad.size() ? pad[i] : 0;
    after[d] = i < pad.size() ? pad[i + 1] : 0;
    TORCHETTE_CHECK(
        before[d] >= -INT32_MAX && before[d] <= INT32_MAX && after[d] >= -INT32_MAX && after[d] <= INT32_MAX,
        InvalidArgument, "pad is too large");
    TORCHETTE_TRY(sizes.push(x.sizes()[d] + before[d] + after[d]));
    pads = pads || before[d] > 0 || after[d] > 0;
  }
  TORCHETTE_TRY(resize(out, sizes));
  if (pads) TORCHETTE_TRY(fill(out, value));
  Move nest;
  ptrdiff_t to = 0, from = 0;
  for (size_t d = 0; d < rank; ++d) {
    // Negative pads crop.
    const int64_t first = before[d] < 0 ? -before[d] : 0;
    const int64_t last = x.sizes()[d] + (after[d] < 0 ? after[d] : 0);
    nest.add(last > first ? static_cast<size_t>(last - first) : 0, out.strides()[d], x.strides()[d]);
    to += static_cast<ptrdiff_t>(before[d] > 0 ? before[d] : 0) * out.strides()[d];
    from += static_cast<ptrdiff_t>(first) * x.strides()[d];
  }
  move_elements(context, nest, out, to, x, from);
  return Error::Ok;
}

// --- Reordering ----------------------------------------------------------------------------------

static Error flip_out(Context& context, const Tensor& x, Span<const int64_t> dims, Tensor& out) {
  uint32_t named;
  TORCHETTE_TRY(wrap_dims(dims, static_cast<size_t>(x.dim()), named, "dims"));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  if (x.numel() == 0) return Error::Ok;
  Move nest;
  ptrdiff_t from = 0;
  for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d) {
    const bool flips = (named >> d & 1u) != 0;
    nest.add(size_of(x, d), out.strides()[d], flips ? -x.strides()[d] : x.strides()[d]);
    if (flips) from += static_cast<ptrdiff_t>(x.sizes()[d] - 1) * x.strides()[d];
  }
  move_elements(context, nest, out, 0, x, from);
  return Error::Ok;
}
static Error roll_out(Context& context, const Tensor& x, Span<const int64_t> shifts, Span<const int64_t> dims,
                      Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  if (x.numel() == 0) return Error::Ok;
  const auto positive = [](int64_t shift, int64_t size) { return ((shift % size) + size) % size; };
  if (dims.empty()) {
    TORCHETTE_CHECK(shifts.size() == 1 && is_contiguous(x) && is_contiguous(out), InvalidArgument,
                    "shifts must have one element, and self must be contiguous, if dims is empty");
    const int64_t shift = positive(shifts[0], x.numel());
    Move head, tail;
    head.add(static_cast<size_t>(x.numel() - shift), 1, 1);
    tail.add(static_cast<size_t>(shift), 1, 1);
    move_elements(context, head, out, static_cast<ptrdiff_t>(shift), x, 0);
    move_elements(context, tail, out, 0, x, static_cast<ptrdiff_t>(x.numel() - shift));
    return Error::Ok;
  }
  TORCHETTE_CHECK(shifts.size() == dims.size(), InvalidArgument, "shifts has %zu elements, dims has %zu",
                  shifts.size(), dims.size());
  int64_t shift[kMaxDim] = {};
  for (size_t i = 0; i < dims.size(); ++i) {
    int64_t dim = dims[i];
    TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim()), "dims"));
    if (x.dim() > 0)
      shift[dim] = positive(shift[dim] + positive(shifts[i], x.sizes()[static_cast<size_t>(dim)]),
                            x.sizes()[static_cast<size_t>(dim)]);
  }
  // Each rolled dimension consists of two runs, so the tensor consists of up to 2^rank blocks.
  const auto rank = static_cast<size_t>(x.dim());
  for (uint32_t block = 0; block < 1u << rank; ++block) {
    Move nest;
    ptrdiff_t to = 0, from = 0;
    for (size_t d = 0; d < rank; ++d) {
      const bool wraps = (block >> d & 1u) != 0;  // the last `shift` elements go to the front
      const int64_t head = x.sizes()[d] - shift[d];
      nest.add(static_cast<size_t>(wraps ? shift[d] : head), out.strides()[d], x.strides()[d]);
      to += wraps ? 0 : static_cast<ptrdiff_t>(shift[d]) * out.strides()[d];
      from += wraps ? static_cast<ptrdiff_t>(head) * x.strides()[d] : 0;
    }
    move_elements(context, nest, out, to, x, from);
  }
  return Error::Ok;
}

// --- Explicit strides ----------------------------------------------------------------------------

/// Resizes `out` to the sizes of the nest and gathers its elements. `nest` contains sizes and source strides.
static Error gather_nest(Context& context, Move& nest, const Tensor& x, ptrdiff_t from, const Tensor& out) {
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  Sizes sizes;
  for (size_t d = 0; d < nest.dim; ++d) TORCHETTE_TRY(sizes.push(static_cast<int64_t>(nest.size[d])));
  TORCHETTE_TRY(resize(out, sizes));
  for (size_t d = 0; d < nest.dim; ++d) nest.to[d] = out.strides()[d];
  move_elements(context, nest, out, 0, x, out.numel() == 0 ? 0 : from);
  return Error::Ok;
}

static Error as_strided_copy_out(Context& context, const Tensor& x, Span<const int64_t> requested,
                                 Span<const int64_t> strides, Optional<int64_t> offset, Tensor& out) {
  TORCHETTE_CHECK(requested.size() == strides.size() && requested.size() <= kMaxDim, InvalidArgument,
                  "size has %zu elements, stride has %zu", requested.size(), strides.size());
  const int64_t first = offset.value_or(0);
  TORCHETTE_CHECK(first >= 0 && first <= INT32_MAX, InvalidArgument, "storage_offset %lld is out of range",
                  static_cast<long long>(first));
  int64_t last = first;
  bool empty = false;
  Move nest;
  for (size_t d = 0; d < requested.size(); ++d) {
    TORCHETTE_CHECK(
        requested[d] >= 0 && requested[d] <= INT32_MAX && strides[d] >= 0 && strides[d] <= INT32_MAX,
        InvalidArgument, "size or stride is negative or too large");
    nest.add(static_cast<size_t>(requested[d]), 0, static_cast<ptrdiff_t>(strides[d]));
    empty = empty || requested[d] == 0;
    // Values above INT32_MAX need not be exact, but must not overflow.
    if (last <= INT32_MAX && requested[d] > 0) last += (requested[d] - 1) * strides[d];
  }
  TORCHETTE_CHECK(empty || last < x.numel(), InvalidArgument,
                  "size, stride and storage_offset reach index %lld of %d elements",
                  static_cast<long long>(last), static_cast<int>(x.numel()));
  return gather_nest(context, nest, x, static_cast<ptrdiff_t>(first), out);
}

static Error diagonal_copy_out(Context& context, const Tensor& x, int64_t offset, int64_t dim1, int64_t dim2,
                               Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_TRY(wrap_dim(dim1, rank, "dim1"));
  TORCHETTE_TRY(wrap_dim(dim2, rank, "dim2"));
  TORCHETTE_CHECK(dim1 != dim2 && rank > 1, InvalidArgument, "dim1 and dim2 are the same dimension");
  const auto a = static_cast<size_t>(dim1), b = static_cast<size_t>(dim2);
  const int64_t rows = x.sizes()[a], columns = x.sizes()[b];
  int64_t length = 0;
  ptrdiff_t from = 0;
  if (offset > -rows && offset < columns) {
    const int64_t row = offset < 0 ? -offset : 0, column = offset > 0 ? offset : 0;
    length = rows - row < columns - column ? rows - row : columns - column;
    from = static_cast<ptrdiff_t>(row) * x.strides()[a] + static_cast<ptrdiff_t>(column) * x.strides()[b];
  }
  Move nest;
  for (size_t d = 0; d < rank; ++d)
    if (d != a && d != b) nest.add(size_of(x, d), 0, x.strides()[d]);
  nest.add(static_cast<size_t>(length), 0, static_cast<ptrdiff_t>(x.strides()[a]) + x.strides()[b]);
  return gather_nest(context, nest, x, from, out);
}

static Error unfold_copy_out(Context& context, const Tensor& x, int64_t dim, int64_t size, int64_t step,
                             Tensor& out) {
  const auto rank = static_cast<size_t>(x.dim());
  TORCHETTE_TRY(wrap_dim(dim, rank, "dimension"));
  const int64_t n = rank == 0 ? 1 : x.sizes()[static_cast<size_t>(dim)];
  TORCHETTE_CHECK(size >= 0 && size <= n && step > 0, InvalidArgument,
                  "size %lld and step %lld do not fit a size of %lld", static_cast<long long>(size),
                  static_cast<long long>(step), static_cast<long long>(n));
  // Any step beyond the size yields only the first window.
  const auto stride = static_cast<ptrdiff_t>(step > n ? n + 1 : step);
  Move nest;
  for (size_t d = 0; d < rank; ++d) {
    if (d == static_cast<size_t>(dim))
      nest.add(static_cast<size_t>((n - size) / stride + 1), 0, x.strides()[d] * stride);
    else
      nest.add(size_of(x, d), 0, x.strides()[d]);
  }
  nest.add(static_cast<size_t>(size), 0, rank == 0 ? 0 : x.strides()[static_cast<size_t>(dim)]);
  return gather_nest(context, nest, x, 0, out);
}

/// Keeps the columns of each row on and above (`upper`) or below the diagonal shifted by `offset`.
static Error triangle(const Tensor& x, int64_t offset, bool upper, const Tensor& out) {
  TORCHETTE_CHECK(x.dim() >= 2, InvalidArgument, "self has %d dimensions, expected at least 2",
                  static_cast<int>(x.dim()));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(resize_result(out, x.sizes()));
  TORCHETTE_TRY(assign(x, out));
  if (out.numel() == 0) return Error::Ok;
  const auto r = static_cast<size_t>(x.dim()) - 2;
  const int64_t rows = x.sizes()[r], columns = x.sizes()[r + 1];
  offset = offset < -rows ? -rows - 1 : offset > columns ? columns + 1 : offset;
  static constexpr uint64_t kZero[2] = {};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t edge = row + offset + (upper ? 0 : 1);
    const int64_t middle = edge < 0 ? 0 : edge > columns ? columns : edge;
    const int64_t first = upper ? 0 : middle, last = upper ? middle : columns;
    Move nest;
    for (size_t d = 0; d < r; ++d) nest.add(size_of(out, d), out.strides()[d], 0);
    nest.add(static_cast<size_t>(last - first), out.strides()[r + 1], 0);
    const ptrdiff_t to = static_cast<ptrdiff_t>(row) * out.strides()[r] +
                         (first == last ? 0 : static_cast<ptrdiff_t>(first) * out.strides()[r + 1]);
    move(nest, static_cast<char*>(out.mutable_data_ptr()) + to * out.element_size(), kZero,
         static_cast<size_t>(out.element_size()));
  }
  return Error::Ok;
}
static Error tril_out(Context&, const Tensor& x, int64_t offset, Tensor& out) {
  return triangle(x, offset, false, out);
}
static Error triu_out(Context&, const Tensor& x, int64_t offset, Tensor& out) {
  return triangle(x, offset, true, out);
}

/// Channel (c * f * f + i * f + j) at (y, x) of the deep image is channel c at (y * f + i, x * f + j) of the
/// wide image.
static Error shuffle_pixels(Context& context, const Tensor& x, int64_t factor, bool widens,
                            const Tensor& out) {
  TORCHETTE_CHECK(x.dim() >= 3 && factor > 0 && factor < 1 << 15, InvalidArgument,
                  "self has %d dimensions or upscale_factor or downscale_factor %lld is out of range",
                  static_cast<int>(x.dim()), static_cast<long long>(factor));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  const size_t c = static_cast<size_t>(x.dim()) - 3;
  const auto f = static_cast<SizesType>(factor);
  const SizesType deep_channels = x.sizes()[c], height = x.sizes()[c + 1], width = x.sizes()[c + 2];
  TORCHETTE_CHECK(widens ? deep_channels % (f * f) == 0 : height % f == 0 && width % f == 0, InvalidArgument,
                  "self: %d channels of %d by %d cannot be shuffled by %d", deep_channels, height, width, f);
  Sizes sizes(x);
  sizes.dim = c;
  const auto scaled = [&](int64_t n, int64_t by, bool up) { return sizes.push(up ? n * by : n / by); };
  TORCHETTE_TRY(scaled(deep_channels, factor * factor, !widens));
  TORCHETTE_TRY(scaled(height, factor, widens));
  TORCHETTE_TRY(scaled(width, factor, widens));
  TORCHETTE_TRY(resize(out, sizes));
  const Tensor& deep = widens ? x : out;
  const Tensor& wide = widens ? out : x;
  Move nest;
  const auto add = [&](size_t n, ptrdiff_t deep_stride, ptrdiff_t wide_stride) {
    nest.add(n, widens ? wide_stride : deep_stride, widens ? deep_stride : wide_stride);
  };
  for (size_t d = 0; d < c; ++d) add(size_of(x, d), deep.strides()[d], wide.strides()[d]);
  const ptrdiff_t step = deep.strides()[c];
  add(size_of(wide, c), step * f * f, wide.strides()[c]);
  add(size_of(deep, c + 1), deep.strides()[c + 1], static_cast<ptrdiff_t>(wide.strides()[c + 1]) * f);
  add(static_cast<size_t>(f), step * f, wide.strides()[c + 1]);
  add(size_of(deep, c + 2), deep.strides()[c + 2], static_cast<ptrdiff_t>(wide.strides()[c + 2]) * f);
  add(static_cast<size_t>(f), step, wide.strides()[c + 2]);
  move_elements(context, nest, out, 0, x, 0);
  return Error::Ok;
}
static Error pixel_shuffle_out(Context& context, const Tensor& x, int64_t factor, Tensor& out) {
  return shuffle_pixels(context, x, factor, true, out);
}
static Error pixel_unshuffle_out(Context& context, const Tensor& x, int64_t factor, Tensor& out) {
  return shuffle_pixels(context, x, factor, false, out);
}

TORCHETTE_KERNELS_NARROW(shape,                                                                           //
                         TORCHETTE_KERNEL("aten::permute_copy.out", permute_copy_out),                    //
                         TORCHETTE_KERNEL("aten::transpose_copy.int_out", transpose_copy_out),            //
                         TORCHETTE_KERNEL("aten::t_copy.out", t_copy_out),                                //
                         TORCHETTE_KERNEL("aten::view_copy.out", view_copy_out),                          //
                         TORCHETTE_KERNEL("aten::unsqueeze_copy.out", unsqueeze_copy_out),                //
                         TORCHETTE_KERNEL("aten::squeeze_copy.out", squeeze_copy_out),                    //
                         TORCHETTE_KERNEL("aten::squeeze_copy.dim_out", squeeze_copy_dim_out),            //
                         TORCHETTE_KERNEL("aten::squeeze_copy.dims_out", squeeze_copy_dims_out),          //
                         TORCHETTE_KERNEL("aten::expand_copy.out", expand_copy_out),                      //
                         TORCHETTE_KERNEL("aten::slice_copy.Tensor_out", slice_copy_out),                 //
                         TORCHETTE_KERNEL("aten::narrow_copy.out", narrow_copy_out),                      //
                         TORCHETTE_KERNEL("aten::select_copy.int_out", select_copy_out),                  //
                         TORCHETTE_KERNEL("aten::unbind_copy.int_out", unbind_copy_out),                  //
                         TORCHETTE_KERNEL("aten::split_with_sizes_copy.out", split_with_sizes_copy_out),  //
                         TORCHETTE_KERNEL("aten::split_copy.Tensor_out", split_copy_out),                 //
                         TORCHETTE_KERNEL("aten::slice_scatter.out", slice_scatter_out),                  //
                         TORCHETTE_KERNEL("aten::select_scatter.out", select_scatter_out),                //
                         TORCHETTE_KERNEL("aten::cat.out", cat_out),                                      //
                         TORCHETTE_KERNEL("aten::stack.out", stack_out),                                  //
                         TORCHETTE_KERNEL("aten::repeat.out", repeat_out),                                //
                         TORCHETTE_KERNEL("aten::constant_pad_nd.out", constant_pad_nd_out),              //
                         TORCHETTE_KERNEL("aten::flip.out", flip_out),                                    //
                         TORCHETTE_KERNEL("aten::roll.out", roll_out),                                    //
                         TORCHETTE_KERNEL("aten::as_strided_copy.out", as_strided_copy_out),              //
                         TORCHETTE_KERNEL("aten::diagonal_copy.out", diagonal_copy_out),                  //
                         TORCHETTE_KERNEL("aten::unfold_copy.out", unfold_copy_out),                      //
                         TORCHETTE_KERNEL("aten::tril.out", tril_out),                                    //
                         TORCHETTE_KERNEL("aten::triu.out", triu_out),                                    //
                         TORCHETTE_KERNEL("aten::pixel_shuffle.out", pixel_shuffle_out),                  //
                         TORCHETTE_KERNEL("aten::pixel_unshuffle.out", pixel_unshuffle_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
