// SPDX-License-Identifier: BSD-3-Clause
// Operators on ranks, unique elements and counts: median, kthvalue, mode, unique, searchsorted, histc,
// bincount, nonzero_static.
#include <cmath>
#include <cstring>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/keys.h"
#include "torchette/kernels/selection.h"
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

constexpr uint64_t kNanKey = ~uint64_t{0};

/// The elements of a line, `step` bytes apart.
struct Line {
  const char* from;
  ptrdiff_t step;
  size_t count;
  ScalarType type;
  uint64_t key(size_t i) const { return key_at(from + static_cast<ptrdiff_t>(i) * step, type); }
};

/// Returns the index of the element with rank `k`: 1 is the smallest, and the earlier of equal elements ranks
/// first. `heap` has room for k entries.
int64_t index_of_rank(const Line& line, size_t k, Entry* heap) {
  size_t count = 0;
  for (size_t i = 0; i < line.count; ++i) {
    const Entry entry = {~line.key(i), static_cast<int64_t>(i)};
    if (count < k)
      sift_up(heap, count++, entry);
    else if (entry.before(heap[0]))
      sift_down(heap, count, entry);
  }
  return heap[0].index;
}

enum class Rank : uint8_t { Given, Median, NanMedian, Mode };

/// Returns the index of the requested element. The median of a line with NaN is NaN, unless NaN is ignored.
int64_t index_of(const Line& line, Rank rank, size_t k, Entry* heap) {
  if (rank == Rank::Given) return index_of_rank(line, k, heap);
  if (rank == Rank::Mode) {
    index_of_rank(line, line.count, heap);
    // Pops from largest to smallest and selects the smallest of the most frequent elements, at its last
    // index.
    int64_t best = -1, position = -1;
    uint64_t key = 0;
    size_t run = 0, longest = 0;
    for (size_t left = line.count; left > 0; --left) {
      const Entry entry = heap[0];
      if (left > 1) sift_down(heap, left - 1, heap[left - 1]);
      run = run > 0 && entry.key == key ? run + 1 : 1;
      if (run == 1) position = entry.index;
      key = entry.key;
      if (run >= longest) {
        longest = run;
        best = position;
      }
    }
    return best;
  }
  size_t valid_count = line.count;
  if (is_floating(line.type)) {
    for (size_t i = 0; i < line.count; ++i) {
      if (line.key(i) != kNanKey) continue;
      if (rank == Rank::Median) return static_cast<int64_t>(i);
      --valid_count;
    }
  }
  return valid_count == 0 ? 0 : index_of_rank(line, (valid_count + 1) / 2, heap);
}

Error check_types(const char* name, const Tensor& x, const Tensor& values) {
  TORCHETTE_CHECK(is_real(x.scalar_type()) && values.scalar_type() == x.scalar_type(), InvalidType,
                  "%s: self is of type %d and the result of type %d, expected one real type", name,
                  static_cast<int>(x.scalar_type()), static_cast<int>(values.scalar_type()));
  return Error::Ok;
}

Error ranked(Context& context, const char* name, const Tensor& x, Rank rank, int64_t k, int64_t dim,
             bool keeps, const Tensor& values, const Tensor& indices) {
  TORCHETTE_TRY(check_types(name, x, values));
  TORCHETTE_CHECK(indices.scalar_type() == ScalarType::Long, InvalidType,
                  "%s: indices are of type %d, expected int64", name,
                  static_cast<int>(indices.scalar_type()));
  const auto dims = static_cast<size_t>(x.dim());
  TORCHETTE_TRY(wrap_dim(dim, dims));
  const auto along = static_cast<size_t>(dim);
  SizesType sizes[kMaxDim];
  size_t kept = 0;
  for (size_t d = 0; d < dims; ++d)
    if (d != along || keeps) sizes[kept++] = d == along ? 1 : x.sizes()[d];
  TORCHETTE_TRY(resize_result(values, {sizes, kept}, "values"));
  TORCHETTE_TRY(resize_result(indices, {sizes, kept}, "indices"));
  if (values.numel() == 0) return Error::Ok;
  const ptrdiff_t element = x.element_size();
  Line line = {nullptr, dims == 0 ? 0 : x.strides()[along] * element,
               dims == 0 ? 1 : static_cast<size_t>(x.sizes()[along]), x.scalar_type()};
  TORCHETTE_CHECK(line.count > 0, InvalidArgument, "%s: self has no elements along dim", name);
  TORCHETTE_CHECK(rank != Rank::Given || (k >= 1 && k <= static_cast<int64_t>(line.count)), InvalidArgument,
                  "%s: k %lld is out of range for %zu elements", name, static_cast<long long>(k), line.count);
  auto* heap = static_cast<Entry*>(context.allocate_temp(line.count * sizeof(Entry), alignof(Entry)));
  TORCHETTE_CHECK(heap != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %zu elements", name,
                  line.count);
  Walk<3> walk;
  walk.rank = dims;
  for (size_t d = 0, to = 0; d < dims; ++d) {
    const bool stands = d != along || keeps;
    walk.size[d] = d == along ? 1 : static_cast<size_t>(x.sizes()[d]);
    walk.stride[0][d] = x.strides()[d];
    walk.stride[1][d] = stands ? values.strides()[to] : 0;
    walk.stride[2][d] = stands ? indices.strides()[to] : 0;
    if (stands) ++to;
  }
  do {
    line.from = static_cast<const char*>(x.const_data_ptr()) + walk.offset[0] * element;
    const int64_t position = index_of(line, rank, static_cast<size_t>(k), heap);
    memmove(static_cast<char*>(values.mutable_data_ptr()) + walk.offset[1] * element,
            line.from + static_cast<ptrdiff_t>(position) * line.step, static_cast<size_t>(element));
    indices.mutable_data_ptr<int64_t>()[walk.offset[2]] = position;
  } while (walk.next());
  return Error::Ok;
}
/// Median of all elements, in memory order.
Error ranked_all(Context& context, const char* name, const Tensor& x, Rank rank, const Tensor& out) {
  TORCHETTE_TRY(check_types(name, x, out));
  TORCHETTE_TRY(resize_result(out, {}));
  const auto element = static_cast<size_t>(x.element_size());
  if (x.numel() == 0)
    return fill(out, is_floating(x.scalar_type()) ? Scalar(std::nan("")) : Scalar(INT64_MIN));
  const Line line = {static_cast<const char*>(x.const_data_ptr()), x.element_size(),
                     static_cast<size_t>(x.numel()), x.scalar_type()};
  auto* heap = static_cast<Entry*>(context.allocate_temp(line.count * sizeof(Entry), alignof(Entry)));
  TORCHETTE_CHECK(heap != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %zu elements", name,
                  line.count);
  const int64_t position = index_of(line, rank, 0, heap);
  memmove(out.mutable_data_ptr(), line.from + static_cast<ptrdiff_t>(position) * line.step, element);
  return Error::Ok;
}

Error kthvalue_out(Context& context, const Tensor& x, int64_t k, int64_t dim, bool keeps, Tensor& values,
                   Tensor& indices) {
  return ranked(context, "kthvalue", x, Rank::Given, k, dim, keeps, values, indices);
}
Error mode_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Tensor& values, Tensor& indices) {
  return ranked(context, "mode", x, Rank::Mode, 0, dim, keeps, values, indices);
}
Error median_dim_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Tensor& values,
                     Tensor& indices) {
  return ranked(context, "median", x, Rank::Median, 0, dim, keeps, values, indices);
}
Error nanmedian_dim_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Tensor& values,
                        Tensor& indices) {
  return ranked(context, "nanmedian", x, Rank::NanMedian, 0, dim, keeps, values, indices);
}
Error median_out(Context& context, const Tensor& x, Tensor& out) {
  return ranked_all(context, "median", x, Rank::Median, out);
}
Error nanmedian_out(Context& context, const Tensor& x, Tensor& out) {
  return ranked_all(context, "nanmedian", x, Rank::NanMedian, out);
}

// --- Unique elements

/// `count` items of `width` elements each, in row-major order.
struct Items {
  const char* data;
  size_t count, width, element;
  ScalarType type;

  /// Returns -1, 0 or 1. If `nan_differs`, NaN differs from every value, including NaN.
  int compare(int64_t a, int64_t b, bool nan_differs) const {
    const size_t bytes = width * element;
    const char *x = data + static_cast<size_t>(a) * bytes, *y = data + static_cast<size_t>(b) * bytes;
    for (size_t i = 0; i < bytes; i += element) {
      const uint64_t p = key_at(x + i, type), q = key_at(y + i, type);
      if (p != q) return p < q ? -1 : 1;
      if (nan_differs && p == kNanKey && is_floating(type)) return 1;
    }
    return 0;
  }
  /// Whether two items are equal. NaN is not equal to NaN.
  bool same(int64_t a, int64_t b) const { return compare(a, b, true) == 0; }
  bool before(int64_t a, int64_t b) const {
    const int order = compare(a, b, false);
    return order != 0 ? order < 0 : a < b;
  }
};

/// Heap sort of item indices. If the items are single elements, `heap` has room for all of them; otherwise
/// null.
void sort_items(const Items& items, int64_t* order, Entry* heap) {
  if (heap != nullptr) {
    for (size_t i = 0; i < items.count; ++i)
      sift_up(heap, i, {~key_at(items.data + i * items.element, items.type), static_cast<int64_t>(i)});
    for (size_t left = items.count; left-- > 0;) {
      order[left] = heap[0].index;
      if (left > 0) sift_down(heap, left, heap[left]);
    }
    return;
  }
  const auto sink = [&](size_t at, size_t count) {
    const int64_t item = order[at];
    for (size_t child; (child = 2 * at + 1) < count; at = child) {
      if (child + 1 < count && items.before(order[child], order[child + 1])) ++child;
      if (!items.before(item, order[child])) break;
      order[at] = order[child];
    }
    order[at] = item;
  };
  for (size_t i = items.count / 2; i-- > 0;) sink(i, items.count);
  for (size_t left = items.count; left-- > 1;) {
    const int64_t last = order[left];
    order[left] = order[0];
    order[0] = last;
    sink(0, left);
  }
}

/// The items of a tensor: its slices along a dimension, or its elements.
struct Slicing {
  bool slices;
  size_t along;             // the dimension of the slices
  ptrdiff_t step[kMaxDim];  // strides of a contiguous copy with the slices first
};

/// Computes the layout of the items of `x` and copies them to `copy` in sequence.
void copy_items(const Tensor& x, const Items& items, char* copy, Slicing& how) {
  const auto rank = static_cast<size_t>(x.dim());
  ptrdiff_t run = 1;
  for (size_t d = rank; d-- > 0;) {
    if (how.slices && d == how.along) continue;
    how.step[d] = run;
    run *= x.sizes()[d];
  }
  if (how.slices) how.step[how.along] = run;
  if (x.numel() == 0) return;
  Move nest;
  for (size_t d = 0; d < rank; ++d) nest.add(static_cast<size_t>(x.sizes()[d]), how.step[d], x.strides()[d]);
  move(nest, copy, x.const_data_ptr(), items.element);
}

/// Writes for each item the index of its group, a run of equal items in `order`. Returns the number of
/// groups.
size_t find_groups(const Items& items, const int64_t* order, int64_t* group) {
  size_t groups = 0;
  for (size_t i = 0; i < items.count; ++i) {
    if (i == 0 || !items.same(order[i - 1], order[i])) ++groups;
    group[order[i]] = static_cast<int64_t>(groups) - 1;
  }
  return groups;
}

/// Writes the first item of each group to `out`.
void write_groups(const Tensor& x, const Items& items, const Slicing& how, const int64_t* order,
                  const int64_t* group, const Tensor& out) {
  char* const to = static_cast<char*>(out.mutable_data_ptr());
  int64_t last = -1;
  for (size_t i = 0; i < items.count; ++i) {
    const int64_t g = group[order[i]];
    if (g == last) continue;
    last = g;
    const char* from = items.data + static_cast<size_t>(order[i]) * items.width * items.element;
    if (!how.slices) {
      memcpy(to + static_cast<size_t>(g) * items.element, from, items.element);
      continue;
    }
    Move nest;
    for (size_t d = 0; d < static_cast<size_t>(x.dim()); ++d)
      if (d != how.along) nest.add(static_cast<size_t>(x.sizes()[d]), out.strides()[d], how.step[d]);
    move(nest, to + static_cast<ptrdiff_t>(g) * out.strides()[how.along] * out.element_size(), from,
         items.element);
  }
}

/// Resizes the results. Results that are not requested become empty.
Error resize_distinct(const char* name, const Tensor& x, const Slicing& how, size_t count, size_t groups,
                      bool wants_inverse, bool wants_counts, const Tensor& out, const Tensor& inverse,
                      const Tensor& counts) {
  const auto found = static_cast<SizesType>(groups), size = static_cast<SizesType>(count);
  static constexpr SizesType kNone[] = {0};
  SizesType sizes[kMaxDim];
  const auto rank = static_cast<size_t>(x.dim());
  for (size_t d = 0; d < rank; ++d) sizes[d] = how.slices && d == how.along ? found : x.sizes()[d];
  TORCHETTE_TRY(how.slices ? resize_result(out, {sizes, rank}, "out0")
                           : resize_result(out, {&found, 1}, "out0"));
  TORCHETTE_CHECK(how.slices || out.strides()[0] == 1, NotSupported, "%s: out0 is not contiguous", name);
  TORCHETTE_TRY(!wants_inverse ? resize_result(inverse, {kNone, 1}, "out1")
                : how.slices   ? resize_result(inverse, {&size, 1}, "out1")
                               : resize_result(inverse, x.sizes(), "out1"));
  TORCHETTE_TRY(wants_counts ? resize_result(counts, {&found, 1}, "out2")
                             : resize_result(counts, {kNone, 1}, "out2"));
  TORCHETTE_CHECK(!wants_inverse || is_contiguous(inverse), NotSupported, "%s: out1 is not contiguous", name);
  return Error::Ok;
}

/// Computes the unique slices along `dim`, or the unique elements without `dim`. Unless `sorted`, only
/// adjacent items are compared. With `dim`, all results are computed, as in eager mode; otherwise results
/// that are not requested are empty.
Error distinct(Context& context, const char* name, const Tensor& x, const Optional<int64_t>& dim, bool sorted,
               bool wants_inverse, bool wants_counts, const Tensor& out, const Tensor& inverse,
               const Tensor& counts) {
  TORCHETTE_TRY(check_types(name, x, out));
  TORCHETTE_CHECK(inverse.scalar_type() == ScalarType::Long && counts.scalar_type() == ScalarType::Long,
                  InvalidType, "%s: out1 and out2 are of types %d and %d, expected int64", name,
                  static_cast<int>(inverse.scalar_type()), static_cast<int>(counts.scalar_type()));
  const auto rank = static_cast<size_t>(x.dim());
  int64_t along = dim.value_or(0);
  TORCHETTE_TRY(wrap_dim(along, rank));
  Slicing how = {dim.has_value() && rank > 0, static_cast<size_t>(along), {}};
  wants_inverse = wants_inverse || how.slices;
  wants_counts = wants_counts || how.slices;
  const auto total = static_cast<size_t>(x.numel());
  Items items = {nullptr, how.slices ? static_cast<size_t>(x.sizes()[how.along]) : total, 1,
                 static_cast<size_t>(x.element_size()), x.scalar_type()};
  TORCHETTE_CHECK(!how.slices || total > 0 || items.count == 0, InvalidArgument,
                  "%s: self has slices without elements", name);
  if (how.slices && items.count > 0) items.width = total / items.count;
  char* copy = static_cast<char*>(context.allocate_temp(total * items.element + 1));
  auto* order = static_cast<int64_t*>(context.allocate_temp((items.count + 1) * sizeof(int64_t)));
  auto* group = static_cast<int64_t*>(context.allocate_temp((items.count + 1) * sizeof(int64_t)));
  TORCHETTE_CHECK(copy != nullptr && order != nullptr && group != nullptr, MemoryAllocationFailed,
                  "%s: no scratch memory for %zu elements", name, total);
  items.data = copy;
  copy_items(x, items, copy, how);
  for (size_t i = 0; i < items.count; ++i) order[i] = static_cast<int64_t>(i);
  if (sorted) {
    Entry* heap = nullptr;
    if (items.width == 1)
      heap = static_cast<Entry*>(context.allocate_temp((items.count + 1) * sizeof(Entry), alignof(Entry)));
    sort_items(items, order, heap);
  }
  const size_t groups = find_groups(items, order, group);
  TORCHETTE_TRY(
      resize_distinct(name, x, how, items.count, groups, wants_inverse, wants_counts, out, inverse, counts));
  if (wants_inverse)
    for (size_t i = 0; i < items.count; ++i) inverse.mutable_data_ptr<int64_t>()[i] = group[i];
  if (wants_counts) {
    int64_t* n = counts.mutable_data_ptr<int64_t>();
    for (size_t g = 0; g < groups; ++g) n[g] = 0;
    for (size_t i = 0; i < items.count; ++i) ++n[group[i]];
  }
  write_groups(x, items, how, order, group, out);
  return Error::Ok;
}

Error unique2_out(Context& context, const Tensor& x, bool, bool wants_inverse, bool wants_counts, Tensor& out,
                  Tensor& inverse, Tensor& counts) {
  return distinct(context, "_unique2", x, {}, true, wants_inverse, wants_counts, out, inverse, counts);
}
Error unique_dim_out(Context& context, const Tensor& x, int64_t dim, bool, bool wants_inverse,
                     bool wants_counts, Tensor& out, Tensor& inverse, Tensor& counts) {
  return distinct(context, "unique_dim", x, Optional<int64_t>(dim), true, wants_inverse, wants_counts, out,
                  inverse, counts);
}
Error unique_consecutive_out(Context& context, const Tensor& x, bool wants_inverse, bool wants_counts,
                             Optional<int64_t> dim, Tensor& out, Tensor& inverse, Tensor& counts) {
  return distinct(context, "unique_consecutive", x, dim, false, wants_inverse, wants_counts, out, inverse,
                  counts);
}

// --- Positions in sorted sequences

/// Computes the insertion index of each of `values` in the sorted `bounds`, before or after equal elements.
Error search(Context& context, const char* name, const Tensor& bounds, const Operand& values, bool upper,
             const Optional<Tensor>& sorter, const Tensor& out, const char* bounds_name) {
  TORCHETTE_CHECK(out.scalar_type() == ScalarType::Long || out.scalar_type() == ScalarType::Int, InvalidType,
                  "%s: out is of type %d, expected int64 or int32", name,
                  static_cast<int>(out.scalar_type()));
  const Operand both[] = {bounds, values};
  TORCHETTE_CHECK(
      is_real(bounds.scalar_type()) && (!values.is_tensor || is_real(values.tensor.scalar_type())),
      InvalidType, "%s: %s of type %d or self is not real", name, bounds_name,
      static_cast<int>(bounds.scalar_type()));
  TORCHETTE_CHECK(bounds.dim() >= 1, InvalidArgument, "%s: %s has no dimensions", name, bounds_name);
  const auto rank = static_cast<size_t>(bounds.dim());
  const auto count = static_cast<size_t>(bounds.sizes()[rank - 1]);
  TORCHETTE_TRY(values.is_tensor ? resize_result(out, values.tensor.sizes()) : resize_result(out, {}));
  bool fits = rank == 1 || (values.is_tensor && values.tensor.dim() == bounds.dim());
  for (size_t d = 0; fits && rank > 1 && d + 1 < rank; ++d)
    fits = values.tensor.sizes()[d] == bounds.sizes()[d];
  bool sorter_fits =
      !sorter.has_value() || (sorter->scalar_type() == ScalarType::Long && sorter->dim() == bounds.dim());
  for (size_t d = 0; sorter_fits && sorter.has_value() && d < rank; ++d)
    sorter_fits = sorter->sizes()[d] == bounds.sizes()[d];
  TORCHETTE_CHECK(fits && sorter_fits, InvalidArgument, "%s: %s, self and sorter differ in sizes", name,
                  bounds_name);
  if (out.numel() == 0) return Error::Ok;
  return for_compute<true>(promote_operands(both, 2), name, "self", [&](auto t) {
    using T = decltype(t);
    Dense sequence, sought, order, to;
    TORCHETTE_TRY(sequence.read(context, bounds, kScalarType<T>));
    T scalar{};
    if (values.is_tensor)
      TORCHETTE_TRY(sought.read(context, values.tensor, kScalarType<T>));
    else
      scalar = std::is_integral_v<T> ? static_cast<T>(values.scalar.to_int())
                                     : static_cast<T>(values.scalar.to_double());
    if (sorter.has_value()) TORCHETTE_TRY(order.read(context, *sorter, ScalarType::Long));
    TORCHETTE_TRY(to.open(context, out, ScalarType::Long));
    const auto total = static_cast<size_t>(out.numel());
    const size_t per_row = rank == 1 ? total : static_cast<size_t>(values.tensor.sizes()[rank - 1]);
    for (size_t i = 0; i < total; ++i) {
      const size_t row = rank == 1 ? 0 : i / per_row * count;
      const T value = values.is_tensor ? sought.data<T>()[i] : scalar;
      size_t low = 0, high = count;
      while (low < high) {
        const size_t middle = low + (high - low) / 2;
        size_t at = middle;
        if (sorter.has_value()) {
          const int64_t given = order.data<int64_t>()[row + middle];
          TORCHETTE_CHECK(given >= 0 && given < static_cast<int64_t>(count), InvalidArgument,
                          "%s: sorter contains %lld, which is out of range for size %zu", name,
                          static_cast<long long>(given), count);
          at = static_cast<size_t>(given);
        }
        const T bound = sequence.data<T>()[row + at];
        if (upper ? bound > value : bound >= value)
          high = middle;
        else
          low = middle + 1;
      }
      to.data<int64_t>()[i] = static_cast<int64_t>(low);
    }
    return to.finish();
  });
}

bool is_text(Span<const char> s, const char* text) {
  size_t i = 0;
  while (i < s.size() && text[i] != 0 && s[i] == text[i]) ++i;
  return i == s.size() && text[i] == 0;
}
Error search_side(bool right, const Optional<Span<const char>>& side, bool& upper) {
  upper = right || (side.has_value() && is_text(*side, "right"));
  TORCHETTE_CHECK(!side.has_value() || is_text(*side, "right") || (is_text(*side, "left") && !right),
                  InvalidArgument, "searchsorted: side must be left or right, and consistent with right");
  return Error::Ok;
}
Error searchsorted_tensor_out(Context& context, const Tensor& bounds, const Tensor& values, bool, bool right,
                              Optional<Span<const char>> side, Optional<Tensor> sorter, Tensor& out) {
  bool upper;
  TORCHETTE_TRY(search_side(right, side, upper));
  return search(context, "searchsorted", bounds, values, upper, sorter, out, "sorted_sequence");
}
Error searchsorted_scalar_out(Context& context, const Tensor& bounds, const Scalar& value, bool, bool right,
                              Optional<Span<const char>> side, Optional<Tensor> sorter, Tensor& out) {
  bool upper;
  TORCHETTE_TRY(search_side(right, side, upper));
  return search(context, "searchsorted", bounds, value, upper, sorter, out, "sorted_sequence");
}
Error bucketize_tensor_out(Context& context, const Tensor& values, const Tensor& bounds, bool, bool right,
                           Tensor& out) {
  return search(context, "bucketize", bounds, values, right, {}, out, "boundaries");
}
Error bucketize_scalar_out(Context& context, const Scalar& value, const Tensor& bounds, bool, bool right,
                           Tensor& out) {
  return search(context, "bucketize", bounds, value, right, {}, out, "boundaries");
}

// --- Counts

Error histc_out(Context& context, const Tensor& x, int64_t bins, const Scalar& min, const Scalar& max,
                Tensor& out) {
  TORCHETTE_CHECK(bins > 0 && bins <= INT32_MAX, InvalidArgument, "histc: bins %lld is out of range",
                  static_cast<long long>(bins));
  TORCHETTE_TRY(check_types("histc", x, out));
  const auto size = static_cast<SizesType>(bins);
  TORCHETTE_TRY(resize_result(out, {&size, 1}));
  return for_compute<false>(x.scalar_type(), "histc", "self", [&](auto t) {
    using T = decltype(t);
    Dense from, to;
    TORCHETTE_TRY(from.read(context, x, kScalarType<T>));
    TORCHETTE_TRY(to.open(context, out, kScalarType<T>));
    const T* value = from.data<T>();
    T low = static_cast<T>(min.to_double()), high = static_cast<T>(max.to_double());
    if (low == high && x.numel() > 0) {
      low = high = value[0];
      for (ptrdiff_t i = 1; i < x.numel(); ++i) {
        low = value[i] < low ? value[i] : low;
        high = value[i] > high ? value[i] : high;
      }
    }
    if (low == high) {
      low -= 1;
      high += 1;
    }
    TORCHETTE_CHECK(low < high && std::isfinite(low) && std::isfinite(high), InvalidArgument,
                    "histc: min %g and max %g do not form a finite range", static_cast<double>(low),
                    static_cast<double>(high));
    for (int64_t i = 0; i < bins; ++i) to.data<T>()[i] = 0;
    for (ptrdiff_t i = 0; i < x.numel(); ++i) {
      if (!(value[i] >= low && value[i] <= high)) continue;
      const T position = (value[i] - low) * static_cast<T>(bins) / (high - low);
      const int64_t bin =
          position > 0 ? (position < static_cast<T>(bins) ? static_cast<int64_t>(position) : bins - 1) : 0;
      to.data<T>()[bin] += 1;
    }
    return to.finish();
  });
}

Error bincount_out(Context& context, const Tensor& x, Optional<Tensor> weights, int64_t minlength,
                   Tensor& out) {
  TORCHETTE_CHECK(
      x.dim() == 1 && compute_type(x.scalar_type()) == kI64 && minlength >= 0 && minlength <= INT32_MAX &&
          is_real(x.scalar_type()) && is_real(out.scalar_type()),
      InvalidArgument, "bincount: self of type %d with %d dimensions or minlength %lld is invalid",
      static_cast<int>(x.scalar_type()), static_cast<int>(x.dim()), static_cast<long long>(minlength));
  TORCHETTE_CHECK(!weights.has_value() || (weights->dim() == 1 && weights->numel() == x.numel() &&
                                           is_real(weights->scalar_type())),
                  InvalidArgument, "bincount: weights must have the size of self");
  Dense from, heavy, to;
  TORCHETTE_TRY(from.read(context, x, ScalarType::Long));
  const int64_t* value = from.data<int64_t>();
  int64_t bins = minlength;
  for (ptrdiff_t i = 0; i < x.numel(); ++i) {
    TORCHETTE_CHECK(value[i] >= 0 && value[i] < INT32_MAX, InvalidArgument,
                    "bincount: self contains %lld, which is out of range", static_cast<long long>(value[i]));
    if (value[i] >= bins) bins = value[i] + 1;
  }
  const auto size = static_cast<SizesType>(bins);
  TORCHETTE_TRY(resize_result(out, {&size, 1}));
  TORCHETTE_TRY(to.open(context, out, ScalarType::Double));
  if (weights.has_value()) TORCHETTE_TRY(heavy.read(context, *weights, ScalarType::Double));
  for (int64_t i = 0; i < bins; ++i) to.data<double>()[i] = 0;
  for (ptrdiff_t i = 0; i < x.numel(); ++i)
    to.data<double>()[value[i]] += weights.has_value() ? heavy.data<double>()[i] : 1;
  return to.finish();
}

/// Writes the coordinates of the first `size` nonzero elements, padded with `fill_value`.
Error nonzero_static_out(Context&, const Tensor& x, int64_t size, int64_t fill_value, Tensor& out) {
  TORCHETTE_CHECK(out.scalar_type() == ScalarType::Long && size >= 0 && size <= INT32_MAX, InvalidArgument,
                  "nonzero_static: size %lld is out of range or out is of type %d, expected int64",
                  static_cast<long long>(size), static_cast<int>(out.scalar_type()));
  const SizesType sizes[] = {static_cast<SizesType>(size), static_cast<SizesType>(x.dim())};
  TORCHETTE_TRY(resize_result(out, sizes));
  if (out.numel() == 0) return Error::Ok;
  TORCHETTE_TRY(fill(out, Scalar(fill_value)));
  const ptrdiff_t count = count_nonzero(x);
  list_nonzero(x, count < sizes[0] ? count : sizes[0], out.mutable_data_ptr<int64_t>(), out.strides()[0],
               out.strides()[1]);
  return Error::Ok;
}

}  // namespace

TORCHETTE_KERNELS_ONCE(ranks,                                                                       //
                       TORCHETTE_KERNEL("aten::kthvalue.values", kthvalue_out),                     //
                       TORCHETTE_KERNEL("aten::mode.values", mode_out),                             //
                       TORCHETTE_KERNEL("aten::median.dim_values", median_dim_out),                 //
                       TORCHETTE_KERNEL("aten::nanmedian.dim_values", nanmedian_dim_out),           //
                       TORCHETTE_KERNEL("aten::median.out", median_out),                            //
                       TORCHETTE_KERNEL("aten::nanmedian.out", nanmedian_out),                      //
                       TORCHETTE_KERNEL("aten::_unique2.out", unique2_out),                         //
                       TORCHETTE_KERNEL("aten::unique_dim.out", unique_dim_out),                    //
                       TORCHETTE_KERNEL("aten::unique_consecutive.out", unique_consecutive_out),    //
                       TORCHETTE_KERNEL("aten::searchsorted.Tensor_out", searchsorted_tensor_out),  //
                       TORCHETTE_KERNEL("aten::searchsorted.Scalar_out", searchsorted_scalar_out),  //
                       TORCHETTE_KERNEL("aten::bucketize.Tensor_out", bucketize_tensor_out),        //
                       TORCHETTE_KERNEL("aten::bucketize.Scalar_out", bucketize_scalar_out),        //
                       TORCHETTE_KERNEL("aten::histc.out", histc_out),                              //
                       TORCHETTE_KERNEL("aten::bincount.out", bincount_out),                        //
                       TORCHETTE_KERNEL("aten::nonzero_static.out", nonzero_static_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
