// SPDX-License-Identifier: BSD-3-Clause
// Operators with a result size or order that depends on the data: nonzero, masked_select, masked_scatter,
// repeat_interleave.
#include "torchette/kernels/selection.h"

#include <cstring>

#include "torchette/kernels/dims.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Returns a walk over one tensor in row-major order.
Walk<1> walk_over(const Tensor& t) {
  Walk<1> walk;
  walk.rank = static_cast<size_t>(t.dim());
  for (size_t d = 0; d < walk.rank; ++d) {
    walk.size[d] = static_cast<size_t>(t.sizes()[d]);
    walk.stride[0][d] = t.strides()[d];
  }
  return walk;
}

/// Tests whether element `i` of `t` is not zero. Both floating-point zeros count as zero.
template <size_t kWidth>
struct NotZero {
  explicit NotZero(const Tensor& t)
      : data(static_cast<const char*>(t.const_data_ptr())),
        // In little-endian order, the sign is the highest bit of the last byte.
        sign(is_floating(t.scalar_type()) ? uint64_t{1} << (8 * (kWidth < 8 ? kWidth : 8) - 1) : 0) {}
  TORCHETTE_INLINE bool operator()(ptrdiff_t i) const {
    uint64_t bits[2] = {};
    memcpy(bits, data + i * static_cast<ptrdiff_t>(kWidth), kWidth);
    return ((bits[0] & ~sign) | bits[1]) != 0;
  }
  const char* data;
  uint64_t sign;
};
template <typename Body>
void with_test_of(const Tensor& t, const Body& body) {
  switch (t.element_size()) {
    case 1:
      return body(NotZero<1>(t));
    case 2:
      return body(NotZero<2>(t));
    case 4:
      return body(NotZero<4>(t));
    case 8:
      return body(NotZero<8>(t));
    default:
      return body(NotZero<16>(t));
  }
}

}  // namespace

ptrdiff_t count_nonzero(const Tensor& t) {
  ptrdiff_t count = 0;
  with_test_of(t, [&](const auto& not_zero) {
    for (ptrdiff_t i = 0; i < t.numel(); ++i) count += not_zero(i) ? 1 : 0;
  });
  return count;
}

// A program may plan an output into the memory of its input, so values written there must not cause more
// writes.
void list_nonzero(const Tensor& t, ptrdiff_t count, int64_t* out, ptrdiff_t item_step, ptrdiff_t dim_step) {
  if (count == 0) return;
  Walk<1> walk = walk_over(t);
  with_test_of(t, [&](const auto& not_zero) {
    // Writes every position, and overwrites it with the next one unless it is a hit. Hits are hard to
    // predict.
    do {
      const bool hit = not_zero(walk.offset[0]);
      for (size_t d = 0; d < walk.rank; ++d)
        out[static_cast<ptrdiff_t>(d) * dim_step] = static_cast<int64_t>(walk.at[d]);
      out += hit ? item_step : 0;
      count -= hit ? 1 : 0;
    } while (count > 0 && walk.next());
  });
}

static Error nonzero_out(Context&, const Tensor& x, Tensor& out) {
  TORCHETTE_CHECK(out.scalar_type() == ScalarType::Long, InvalidType, "out is of type %d, expected int64",
                  static_cast<int>(out.scalar_type()));
  const ptrdiff_t count = count_nonzero(x);
  const SizesType sizes[] = {static_cast<SizesType>(count), static_cast<SizesType>(x.dim())};
  TORCHETTE_TRY(resize_result(out, sizes));
  if (out.numel() > 0)
    list_nonzero(x, count, out.mutable_data_ptr<int64_t>(), out.strides()[0], out.strides()[1]);
  return Error::Ok;
}

namespace {

/// Computes the broadcast sizes of two tensors, and the strides of each in bytes.
Error broadcast(const Tensor& a, const Tensor& b, Walk<2>& walk, SizesType* sizes) {
  const auto rank_a = static_cast<size_t>(a.dim()), rank_b = static_cast<size_t>(b.dim());
  walk.rank = rank_a > rank_b ? rank_a : rank_b;
  for (size_t d = 0; d < walk.rank; ++d) {
    const auto of = [&](const Tensor& t, size_t rank, ptrdiff_t& stride) {
      const size_t missing = walk.rank - rank;
      const SizesType n = d < missing ? 1 : t.sizes()[d - missing];
      stride = n == 1 ? 0 : t.strides()[d - missing] * t.element_size();
      return n;
    };
    const SizesType n = of(a, rank_a, walk.stride[0][d]), m = of(b, rank_b, walk.stride[1][d]);
    TORCHETTE_CHECK(n == m || n == 1 || m == 1, InvalidArgument,
                    "self and mask: sizes %d and %d do not broadcast", n, m);
    sizes[d] = n == 1 ? m : n;
    walk.size[d] = static_cast<size_t>(sizes[d]);
  }
  return Error::Ok;
}

bool has_elements(const Walk<2>& walk) {
  for (size_t d = 0; d < walk.rank; ++d)
    if (walk.size[d] == 0) return false;
  return true;
}

Error check_mask(const Tensor& mask) {
  TORCHETTE_CHECK(mask.scalar_type() == ScalarType::Bool || mask.scalar_type() == ScalarType::Byte,
                  InvalidType, "mask is of type %d, expected bool", static_cast<int>(mask.scalar_type()));
  return Error::Ok;
}

}  // namespace

static Error masked_select_out(Context&, const Tensor& x, const Tensor& mask, Tensor& out) {
  TORCHETTE_TRY(check_mask(mask));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  Walk<2> walk;
  SizesType sizes[kMaxDim];
  TORCHETTE_TRY(broadcast(x, mask, walk, sizes));
  const char* from = static_cast<const char*>(x.const_data_ptr());
  const auto* chosen = mask.const_data_ptr<uint8_t>();
  const auto element = static_cast<size_t>(x.element_size());
  // Passes over the mask twice: the first pass counts.
  int64_t count = 0;
  if (has_elements(walk)) {
    Walk<2> counting = walk;
    do count += chosen[counting.offset[1]] != 0;
    while (counting.next());
  }
  TORCHETTE_CHECK(count <= INT32_MAX, InvalidArgument, "mask selects %lld elements, which is too many",
                  static_cast<long long>(count));
  const SizesType size[] = {static_cast<SizesType>(count)};
  TORCHETTE_TRY(resize_result(out, size));
  if (count == 0) return Error::Ok;
  char* to = static_cast<char*>(out.mutable_data_ptr());
  do {
    if (chosen[walk.offset[1]] == 0) continue;
    memmove(to, from + walk.offset[0], element);
    to += element;
    --count;
  } while (count > 0 && walk.next());
  return Error::Ok;
}

static Error masked_scatter_out(Context&, const Tensor& x, const Tensor& mask, const Tensor& source,
                                Tensor& out) {
  TORCHETTE_TRY(check_mask(mask));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  TORCHETTE_TRY(same_type(source, out, "source and out"));
  Walk<2> walk;
  SizesType sizes[kMaxDim];
  TORCHETTE_TRY(broadcast(x, mask, walk, sizes));
  TORCHETTE_TRY(resize_result(out, {sizes, walk.rank}));
  if (out.numel() == 0) return Error::Ok;
  Walk<1> position = walk_over(out), next = walk_over(source);
  ptrdiff_t used = 0;
  const auto element = static_cast<size_t>(x.element_size());
  const auto* chosen = mask.const_data_ptr<uint8_t>();
  char* to = static_cast<char*>(out.mutable_data_ptr());
  do {
    const char* from = static_cast<const char*>(x.const_data_ptr()) + walk.offset[0];
    if (chosen[walk.offset[1]] != 0) {
      TORCHETTE_CHECK(used < source.numel(), InvalidArgument,
                      "mask selects more elements than source has (%d)", static_cast<int>(source.numel()));
      from = static_cast<const char*>(source.const_data_ptr()) +
             next.offset[0] * static_cast<ptrdiff_t>(element);
      ++used;
      next.next();
    }
    memmove(to + position.offset[0] * static_cast<ptrdiff_t>(element), from, element);
    position.next();
  } while (walk.next());
  return Error::Ok;
}

static Error repeat_interleave_out(Context&, const Tensor& repeats, Optional<int64_t> size, Tensor& out) {
  const bool wide = repeats.scalar_type() == ScalarType::Long;
  TORCHETTE_CHECK(repeats.dim() == 1 && (wide || repeats.scalar_type() == ScalarType::Int), InvalidArgument,
                  "repeats is of type %d with %d dimensions, expected a 1-d int64 or int32 tensor",
                  static_cast<int>(repeats.scalar_type()), static_cast<int>(repeats.dim()));
  TORCHETTE_TRY(same_type(repeats, out, "repeats and out"));
  const auto at = [&](ptrdiff_t i) {
    return wide ? repeats.const_data_ptr<int64_t>()[i] : repeats.const_data_ptr<int32_t>()[i];
  };
  int64_t total = 0;
  for (ptrdiff_t i = 0; i < repeats.numel(); ++i) {
    TORCHETTE_CHECK(at(i) >= 0 && at(i) <= INT32_MAX - total, InvalidArgument,
                    "repeats: element %td is %lld, which is out of range", i, static_cast<long long>(at(i)));
    total += at(i);
  }
  TORCHETTE_CHECK(size.value_or(total) == total, InvalidArgument, "repeats has sum %lld, output_size is %lld",
                  static_cast<long long>(total), static_cast<long long>(*size));
  const SizesType sizes[] = {static_cast<SizesType>(total)};
  TORCHETTE_TRY(resize_result(out, sizes));
  ptrdiff_t position = 0;
  for (ptrdiff_t i = 0; i < repeats.numel(); ++i)
    for (int64_t k = at(i); k > 0 && position < total; --k, ++position) {
      if (wide)
        out.mutable_data_ptr<int64_t>()[position] = i;
      else
        out.mutable_data_ptr<int32_t>()[position] = static_cast<int32_t>(i);
    }
  return Error::Ok;
}

TORCHETTE_KERNELS_ONCE(selection,                                                         //
                       TORCHETTE_KERNEL("aten::nonzero.out", nonzero_out),                //
                       TORCHETTE_KERNEL("aten::masked_select.out", masked_select_out),    //
                       TORCHETTE_KERNEL("aten::masked_scatter.out", masked_scatter_out),  //
                       TORCHETTE_KERNEL("aten::repeat_interleave.Tensor_out", repeat_interleave_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
