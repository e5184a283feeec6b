// SPDX-License-Identifier: BSD-3-Clause
// Reductions. reduce.def defines how two values are folded. This file iterates over tensors, either along
// runs of reduced elements or along runs of kept elements, and accumulates in blocks, which limits rounding
// errors.
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>

#include "torchette/kernels/dense.h"
#include "torchette/kernels/dims.h"
#include "torchette/kernels/elementwise.h"

namespace torchette {
namespace TORCHETTE_ISA {

// --- Folding

/// Folds `n` values into *acc, which is a double for float and double, and an int64_t for int64_t.
using FoldRun = void (*)(void* acc, const void* x, size_t n);
/// acc[i] = fold(acc[i], x[i]), both of the compute type.
using FoldRows = void (*)(void* acc, const void* x, size_t n);
/// Folds the narrow accumulators into the wide ones and resets the narrow ones.
using Flush = void (*)(void* wide, void* narrow, size_t n);
/// Initializes both.
using Start = void (*)(void* wide, void* narrow, size_t n);

struct Fold {
  FoldRun run[3];
  FoldRows rows[3];
  Flush flush[3];
  Start start[3];
};

template <typename T>
static TORCHETTE_INLINE T lowest() {
  return std::is_floating_point_v<T> ? static_cast<T>(-INFINITY) : std::numeric_limits<T>::lowest();
}
template <typename T>
static TORCHETTE_INLINE T highest() {
  return std::is_floating_point_v<T> ? static_cast<T>(INFINITY) : std::numeric_limits<T>::max();
}
template <typename T>
static TORCHETTE_INLINE T one() {
  return static_cast<T>(1);
}
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, float>, double, T>;

/// Number of values that are folded in the compute type before they are added to a wide accumulator.
constexpr size_t kBlock = 1024;
constexpr size_t kBlockRows = 64;

template <typename Op, typename T>
static void fold_run(void* acc, const void* data, size_t n) {
  const T* x = static_cast<const T*>(data);
  Wide<T> total = *static_cast<Wide<T>*>(acc);
  // Independent accumulators, which the compiler vectorizes.
  constexpr size_t kWays = std::is_same_v<T, float> ? 32 : 4;
  while (n >= kWays) {
    const size_t m = n < kBlock ? n / kWays * kWays : kBlock;
    T way[kWays];
    TORCHETTE_UNROLL(32)
    for (size_t k = 0; k < kWays; ++k) way[k] = x[k];
    for (size_t i = kWays; i < m; i += kWays) TORCHETTE_UNROLL(32)
    for (size_t k = 0; k < kWays; ++k) way[k] = Op::of(way[k], x[i + k]);
    for (size_t half = kWays / 2; half > 0; half /= 2)
      for (size_t k = 0; k < half; ++k) way[k] = Op::of(way[k], way[k + half]);
    total = Op::of(total, static_cast<Wide<T>>(way[0]));
    x += m;
    n -= m;
  }
  constexpr size_t kFew = 8;
  if (std::is_same_v<T, float> && n >= kFew) {
    T way[kFew];
    TORCHETTE_UNROLL(8)
    for (size_t k = 0; k < kFew; ++k) way[k] = x[k];
    size_t i = kFew;
    for (; i + kFew <= n; i += kFew) TORCHETTE_UNROLL(8)
    for (size_t k = 0; k < kFew; ++k) way[k] = Op::of(way[k], x[i + k]);
    for (size_t k = 1; k < kFew; ++k) way[0] = Op::of(way[0], way[k]);
    total = Op::of(total, static_cast<Wide<T>>(way[0]));
    x += i;
    n -= i;
  }
  for (size_t i = 0; i < n; ++i) total = Op::of(total, static_cast<Wide<T>>(x[i]));
  *static_cast<Wide<T>*>(acc) = total;
}
template <typename Op, typename T>
static void fold_rows(void* acc, const void* data, size_t n) {
  T* __restrict a = static_cast<T*>(acc);
  const T* __restrict x = static_cast<const T*>(data);
  for (size_t i = 0; i < n; ++i) a[i] = Op::of(a[i], x[i]);
}
template <typename Op, typename T>
static void flush(void* wide, void* narrow, size_t n) {
  Wide<T>* w = static_cast<Wide<T>*>(wide);
  T* a = static_cast<T*>(narrow);
  for (size_t i = 0; i < n; ++i) {
    vectorize_float_only<>();
    w[i] = Op::of(w[i], static_cast<Wide<T>>(a[i]));
    a[i] = Op::template start<T>();
  }
}
template <typename Op, typename T>
static void start(void* wide, void* narrow, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    vectorize_float_only<>();
    static_cast<Wide<T>*>(wide)[i] = Op::template start<Wide<T>>();
    static_cast<T*>(narrow)[i] = Op::template start<T>();
  }
}

template <typename Op, typename T>
static constexpr void put([[maybe_unused]] Fold& fold, [[maybe_unused]] Compute compute) {
  if constexpr (computes_in<T>()) {
    fold.run[compute] = &fold_run<Op, T>;
    fold.rows[compute] = &fold_rows<Op, T>;
    fold.flush[compute] = &flush<Op, T>;
    fold.start[compute] = &start<Op, T>;
  }
}
template <typename Op>
static constexpr Fold fold_of() {
  Fold fold{};
  put<Op, float>(fold, kF32);
  put<Op, double>(fold, kF64);
  put<Op, int64_t>(fold, kI64);
  return fold;
}
#define REDUCE(name, first, expression)      \
  struct name##_op {                         \
    template <typename T>                    \
    static TORCHETTE_INLINE T start() {      \
      return static_cast<T>(first);          \
    }                                        \
    template <typename T>                    \
    static TORCHETTE_INLINE T of(T a, T x) { \
      return expression;                     \
    }                                        \
  };                                         \
  static constexpr Fold name##_fold = fold_of<name##_op>();
#include "torchette/kernels/reduce.def"
#undef REDUCE

// --- Walking

/// Up to kMaxDim loops, sorted from the largest to the smallest stride, with adjacent loops merged.
struct Nest {
  size_t dim = 0;
  size_t size[kMaxDim];
  ptrdiff_t from[kMaxDim];
  ptrdiff_t to[kMaxDim];

  void add(size_t n, ptrdiff_t from_stride, ptrdiff_t to_stride) {
    size_t index = dim++;
    for (; index > 0 && from[index - 1] < from_stride; --index) {
      size[index] = size[index - 1];
      from[index] = from[index - 1];
      to[index] = to[index - 1];
    }
    size[index] = n;
    from[index] = from_stride;
    to[index] = to_stride;
  }
  void merge() {
    size_t kept = 0;
    for (size_t d = 0; d < dim; ++d) {
      if (size[d] == 1) continue;
      const auto n = static_cast<ptrdiff_t>(size[d]);
      if (kept > 0 && from[kept - 1] == from[d] * n && to[kept - 1] == to[d] * n) {
        size[kept - 1] *= size[d];
      } else {
        size[kept++] = size[d];
      }
      from[kept - 1] = from[d];
      to[kept - 1] = to[d];
    }
    dim = kept;
    if (dim == 0) {
      size[0] = 1;
      from[0] = to[0] = 1;
      dim = 1;
    }
  }
};

/// Iterates over all loops of `nest` except the innermost.
struct Rows {
  explicit Rows(const Nest& n) : nest(n) {
    for (size_t d = 0; d + 1 < n.dim; ++d) at[d] = 0;
  }
  bool next() {
    for (size_t d = nest.dim - 1; d-- > 0;) {
      from += nest.from[d];
      to += nest.to[d];
      if (++at[d] < nest.size[d]) return true;
      from -= static_cast<ptrdiff_t>(at[d]) * nest.from[d];
      to -= static_cast<ptrdiff_t>(at[d]) * nest.to[d];
      at[d] = 0;
    }
    return false;
  }
  const Nest& nest;
  size_t at[kMaxDim];
  ptrdiff_t from = 0;
  ptrdiff_t to = 0;
};

/// The loops over kept and over reduced elements. `count` is the number of reduced elements per result.
struct Plan {
  Nest kept;
  Nest reduced;
  int64_t count = 1;
};

/// Computes the loops and resizes `out`. An empty `dims` selects all dimensions.
static Error plan_reduction(const Tensor& x, uint32_t dims, bool keeps, const Tensor& out, Plan& plan,
                            const char* name = "out") {
  const auto rank = static_cast<size_t>(x.dim());
  SizesType sizes[kMaxDim];
  size_t dim = 0;
  for (size_t d = 0; d < rank; ++d) {
    const bool reduced = (dims >> d & 1u) != 0;
    if (!reduced || keeps) sizes[dim++] = reduced ? 1 : x.sizes()[d];
  }
  TORCHETTE_TRY(resize_result(out, {sizes, dim}, name));
  size_t index = 0;
  for (size_t d = 0; d < rank; ++d) {
    const auto size = static_cast<size_t>(x.sizes()[d]);
    if ((dims >> d & 1u) != 0) {
      plan.reduced.add(size, x.strides()[d], 0);
      plan.count *= x.sizes()[d];
      if (keeps) ++index;
    } else {
      plan.kept.add(size, x.strides()[d], out.strides()[index++]);
    }
  }
  plan.kept.merge();
  plan.reduced.merge();
  return Error::Ok;
}
/// Converts a list of dimensions to a bit set. An absent or empty list selects all dimensions of `x`.
static Error named_dims(const Tensor& x, const Optional<Span<const int64_t>>& dims, uint32_t& set) {
  const auto rank = static_cast<size_t>(x.dim());
  if (!dims.has_value() || dims->empty()) {
    set = ~0u;
    return Error::Ok;
  }
  return wrap_dims(*dims, rank, set);
}
static Error check_types(const Tensor& x, const Tensor& out) {
  TORCHETTE_CHECK(is_real(x.scalar_type()) && is_real(out.scalar_type()), InvalidType,
                  "self is of type %d and out of type %d, expected real types",
                  static_cast<int>(x.scalar_type()), static_cast<int>(out.scalar_type()));
  return Error::Ok;
}

/// Reduces the elements of every result of the plan in compute type `compute`. A floating-point result is
/// multiplied by `scale`. `by_rows` states whether adjacent results are computed together; it determines the
/// order of additions, so it is the same for all parts.
static void reduce_part(const Plan& plan, bool by_rows, const Fold& fold, Compute compute, double scale,
                        const Tensor& x, const char* data, const Tensor& out, char* target) {
  alignas(64) char loaded[kChunk * 8], narrow[kChunk * 8], wide[kChunk * 8];
  const Compute result = compute == kI64 ? kI64 : kF64;
  const Convert load = load_as(x.scalar_type(), compute), store = store_as(result, out.scalar_type());
  const bool same = x.scalar_type() == scalar_type_of(compute);
  const auto element = x.element_size(), out_element = out.element_size();
  const auto finish = [=](void* values, size_t n, char* to, ptrdiff_t stride) {
    if (result == kF64 && scale != 1)
      for (size_t i = 0; i < n; ++i) static_cast<double*>(values)[i] *= scale;
    if (stride == 1) return store(values, 1, to, n);
    for (size_t i = 0; i < n; ++i)
      store(static_cast<char*>(values) + 8 * i, 1, to + static_cast<ptrdiff_t>(i) * stride * out_element, 1);
  };
  const size_t reduced_last = plan.reduced.dim - 1, kept_last = plan.kept.dim - 1;
  const size_t run = plan.reduced.size[reduced_last], kept_run = plan.kept.size[kept_last];
  const ptrdiff_t step = plan.reduced.from[reduced_last], kept_step = plan.kept.from[kept_last];
  const ptrdiff_t to_step = plan.kept.to[kept_last];
  Rows kept(plan.kept);
  if (by_rows) {  // kChunk results at a time
    do {
      for (size_t j = 0, n; j < kept_run; j += n) {
        n = kept_run - j < kChunk ? kept_run - j : kChunk;
        fold.start[compute](wide, narrow, n);
        size_t rows = 0;
        Rows reduced(plan.reduced);
        do {
          for (size_t i = 0; i < run; ++i) {
            const char* row = data + (kept.from + reduced.from + static_cast<ptrdiff_t>(i) * step +
                                      static_cast<ptrdiff_t>(j)) *
                                         element;
            if (!same) load(row, 1, loaded, n);
            fold.rows[compute](narrow, same ? row : loaded, n);
            if (++rows % kBlockRows == 0) fold.flush[compute](wide, narrow, n);
          }
        } while (reduced.next());
        fold.flush[compute](wide, narrow, n);
        finish(wide, n, target + (kept.to + static_cast<ptrdiff_t>(j) * to_step) * out_element, to_step);
      }
    } while (kept.next());
    return;
  }
  do {
    for (size_t j = 0, n; j < kept_run; j += n) {
      n = kept_run - j < kChunk ? kept_run - j : kChunk;
      fold.start[compute](wide, narrow, n);
      for (size_t k = 0; k < n && plan.count > 0; ++k) {
        void* const acc = wide + 8 * k;
        Rows reduced(plan.reduced);
        do {
          const char* row =
              data + (kept.from + static_cast<ptrdiff_t>(j + k) * kept_step + reduced.from) * element;
          if (same && step == 1) {
            fold.run[compute](acc, row, run);
            continue;
          }
          for (size_t i = 0, m; i < run; i += m) {
            m = run - i < kChunk ? run - i : kChunk;
            load(row + static_cast<ptrdiff_t>(i) * step * element, step, loaded, m);
            fold.run[compute](acc, loaded, m);
          }
        } while (reduced.next());
      }
      finish(wide, n, target + (kept.to + static_cast<ptrdiff_t>(j) * to_step) * out_element, to_step);
    }
  } while (kept.next());
}

/// Reduces all elements. Threads compute parts of the results.
static void reduce(Context& context, const Plan& plan, const Fold& fold, Compute compute, double scale,
                   const Tensor& x, const Tensor& out) {
  constexpr size_t kMinElements = size_t{1} << 16;  // of a thread: about 10 microseconds
  if (out.numel() == 0) return;
  const auto* const data = static_cast<const char*>(x.const_data_ptr());
  auto* const target = static_cast<char*>(out.mutable_data_ptr());
  size_t d = 0;  // the longest loop over results
  for (size_t i = 1; i < plan.kept.dim; ++i)
    if (plan.kept.size[i] > plan.kept.size[d]) d = i;
  const size_t last = plan.kept.dim - 1;
  const bool by_rows = plan.reduced.from[plan.reduced.dim - 1] != 1 && plan.kept.from[last] == 1 &&
                       plan.kept.size[last] > 1 && plan.count > 0;
  const size_t size = plan.kept.size[d], elements = static_cast<size_t>(x.numel());
  context.parallel_for(size, kMinElements / (elements / size + 1) + 1, [&](size_t begin, size_t end, size_t) {
    if (end - begin == size) return reduce_part(plan, by_rows, fold, compute, scale, x, data, out, target);
    Plan part = plan;
    part.kept.size[d] = end - begin;
    const auto first = static_cast<ptrdiff_t>(begin);
    reduce_part(part, by_rows, fold, compute, scale, x, data + first * plan.kept.from[d] * x.element_size(),
                out, target + first * plan.kept.to[d] * out.element_size());
  });
}

// --- Sum, mean and product

using Dims = Optional<Span<const int64_t>>;

/// Casts elements to the type of the result first, as torch does.
static Error sum_dims(Context& context, const Tensor& x, const Dims& dims, bool keeps, const Fold& fold,
                      bool divides, const Tensor& out) {
  TORCHETTE_TRY(check_types(x, out));
  uint32_t set;
  TORCHETTE_TRY(named_dims(x, dims, set));
  Plan plan;
  TORCHETTE_TRY(plan_reduction(x, set, keeps, out, plan));
  TORCHETTE_CHECK(!divides || is_floating(out.scalar_type()), InvalidType,
                  "out is of type %d, expected a floating type for a mean",
                  static_cast<int>(out.scalar_type()));
  const double scale = divides ? 1.0 / static_cast<double>(plan.count) : 1.0;
  reduce(context, plan, fold, compute_type(out.scalar_type()), scale, x, out);
  return Error::Ok;
}
static Error sum_out(Context& context, const Tensor& x, Dims dims, bool keeps, Optional<int64_t>,
                     Tensor& out) {
  return sum_dims(context, x, dims, keeps, sum_fold, false, out);
}
static Error mean_out(Context& context, const Tensor& x, Dims dims, bool keeps, Optional<int64_t>,
                      Tensor& out) {
  return sum_dims(context, x, dims, keeps, sum_fold, true, out);
}
static Error mean_all_out(Context& context, const Tensor& x, Optional<int64_t>, Tensor& out) {
  return sum_dims(context, x, {}, false, sum_fold, true, out);
}
static Error prod_out(Context& context, const Tensor& x, Optional<int64_t>, Tensor& out) {
  return sum_dims(context, x, {}, false, prod_fold, false, out);
}
static Error prod_dim_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Optional<int64_t>,
                          Tensor& out) {
  return sum_dims(context, x, Dims(Span<const int64_t>(&dim, 1)), keeps, prod_fold, false, out);
}

// --- Maximum and minimum

static Error extreme_dims(Context& context, const Tensor& x, const Dims& dims, bool keeps, const Fold& fold,
                          const Tensor& out) {
  TORCHETTE_TRY(check_types(x, out));
  TORCHETTE_TRY(same_type(x, out, "self and out"));
  uint32_t set;
  TORCHETTE_TRY(named_dims(x, dims, set));
  Plan plan;
  TORCHETTE_TRY(plan_reduction(x, set, keeps, out, plan));
  TORCHETTE_CHECK(plan.count > 0 || out.numel() == 0, InvalidArgument,
                  "self is empty, so it has no largest or smallest element");
  reduce(context, plan, fold, compute_type(x.scalar_type()), 1, x, out);
  return Error::Ok;
}
static Error amax_out(Context& context, const Tensor& x, Span<const int64_t> dims, bool keeps, Tensor& out) {
  return extreme_dims(context, x, dims, keeps, largest_fold, out);
}
static Error amin_out(Context& context, const Tensor& x, Span<const int64_t> dims, bool keeps, Tensor& out) {
  return extreme_dims(context, x, dims, keeps, smallest_fold, out);
}
static Error max_all_out(Context& context, const Tensor& x, Tensor& out) {
  return extreme_dims(context, x, {}, false, largest_fold, out);
}
static Error min_all_out(Context& context, const Tensor& x, Tensor& out) {
  return extreme_dims(context, x, {}, false, smallest_fold, out);
}

/// Finds the first maximum (`sign` 1) or minimum (-1) of `n` values; the first NaN takes precedence.
/// Continues from value `best` at index `index` if place is not negative.
template <typename T>
static void scan(const void* data, size_t n, int sign, int64_t first, T& best, int64_t& index) {
  const T* x = static_cast<const T*>(data);
  for (size_t i = 0; i < n; ++i) {
    if (index >= 0 && best != best) return;
    if (index < 0 || x[i] != x[i] || (sign > 0 ? x[i] > best : x[i] < best)) {
      best = x[i];
      index = first + static_cast<int64_t>(i);
    }
  }
}
/// `given_values` may be null. Both outputs have the same sizes. `dims` is a single dimension or all
/// dimensions.
static Error find_extremes(Context& context, const Tensor& input, uint32_t dims, bool keeps, int sign,
                           const Tensor* given_values, const Tensor& given_indices) {
  const char* const value_name = sign > 0 ? "max" : "min";
  const char* const index_name = given_values == nullptr ? "out" : sign > 0 ? "max_values" : "min_indices";
  TORCHETTE_TRY(check_types(input, given_indices));
  TORCHETTE_CHECK(given_indices.scalar_type() == ScalarType::Long, InvalidType,
                  "%s is of type %d, expected int64", index_name,
                  static_cast<int>(given_indices.scalar_type()));
  Dense source, index_array, value_array;
  {
    Plan sizes;
    TORCHETTE_TRY(plan_reduction(input, dims, keeps, given_indices, sizes, index_name));
  }
  TORCHETTE_TRY(source.read(context, input, input.scalar_type()));
  TORCHETTE_TRY(index_array.open(context, given_indices, ScalarType::Long));
  const Tensor x = source.tensor(), indices = index_array.tensor();
  Tensor value_tensor;
  if (given_values != nullptr) {
    TORCHETTE_TRY(same_type(input, *given_values, "self and its values"));
    TORCHETTE_TRY(resize_result(*given_values, given_indices.sizes(), value_name));
    TORCHETTE_TRY(value_array.open(context, *given_values, input.scalar_type()));
    value_tensor = value_array.tensor();
  }
  const Tensor* const values = given_values == nullptr ? nullptr : &value_tensor;
  Plan plan;
  TORCHETTE_TRY(plan_reduction(x, dims, keeps, indices, plan));
  if (indices.numel() == 0) return Error::Ok;
  TORCHETTE_CHECK(plan.count > 0, InvalidArgument, "self is empty, so it has no largest or smallest element");
  const Compute compute = compute_type(x.scalar_type());
  const Convert load = load_as(x.scalar_type(), compute);
  const auto element = x.element_size();
  alignas(64) char loaded[kChunk * 8];
  const size_t last = plan.kept.dim - 1;
  Rows kept(plan.kept);
  do {
    for (size_t j = 0; j < plan.kept.size[last]; ++j) {
      const char* row = static_cast<const char*>(x.const_data_ptr()) +
                        (kept.from + static_cast<ptrdiff_t>(j) * plan.kept.from[last]) * element;
      const ptrdiff_t to = kept.to + static_cast<ptrdiff_t>(j) * plan.kept.to[last];
      float f = 0;
      double d = 0;
      int64_t integer = 0, index = -1;
      const auto count = static_cast<size_t>(plan.count);
      for (size_t i = 0, n; i < count; i += n) {
        n = count - i < kChunk ? count - i : kChunk;
        load(row + static_cast<ptrdiff_t>(i) * plan.reduced.from[0] * element, plan.reduced.from[0], loaded,
             n);
        if (compute == kF32)
          scan(loaded, n, sign, static_cast<int64_t>(i), f, index);
        else if (compute == kF64)
          scan(loaded, n, sign, static_cast<int64_t>(i), d, index);
        else
          scan(loaded, n, sign, static_cast<int64_t>(i), integer, index);
      }
      indices.mutable_data_ptr<int64_t>()[to] = index;
      if (values != nullptr)
        memmove(static_cast<char*>(values->mutable_data_ptr()) + to * element,
                row + static_cast<ptrdiff_t>(index) * plan.reduced.from[0] * element,
                static_cast<size_t>(element));
    }
  } while (kept.next());
  if (given_values != nullptr) TORCHETTE_TRY(value_array.finish());
  return index_array.finish();
}
static Error max_dim_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Tensor& values,
                         Tensor& indices) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  return find_extremes(context, x, 1u << dim, keeps, 1, &values, indices);
}
static Error min_dim_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Tensor& values,
                         Tensor& indices) {
  TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));
  return find_extremes(context, x, 1u << dim, keeps, -1, &values, indices);
}
static Error arg_extreme(Context& context, const Tensor& x, const Optional<int64_t>& dim, bool keeps,
                         int sign, const Tensor& out) {
  int64_t d = dim.value_or(0);
  TORCHETTE_TRY(wrap_dim(d, static_cast<size_t>(x.dim())));
  return find_extremes(context, x, dim.has_value() ? 1u << d : ~0u, keeps, sign, nullptr, out);
}
static Error argmax_out(Context& context, const Tensor& x, Optional<int64_t> dim, bool keeps, Tensor& out) {
  return arg_extreme(context, x, dim, keeps, 1, out);
}
static Error argmin_out(Context& context, const Tensor& x, Optional<int64_t> dim, bool keeps, Tensor& out) {
  return arg_extreme(context, x, dim, keeps, -1, out);
}

// --- any and all

static Error logic_dims(Context& context, const Tensor& x, uint32_t dims, bool keeps, const Fold& fold,
                        const Tensor& out) {
  TORCHETTE_TRY(check_types(x, out));
  Plan plan;
  TORCHETTE_TRY(plan_reduction(x, dims, keeps, out, plan));
  if (x.scalar_type() == ScalarType::Bool && out.scalar_type() == ScalarType::Bool && plan.reduced.dim == 1 &&
      plan.reduced.from[0] == 1 && plan.count > 0 && out.numel() > 0) {
    // Rows of bytes: searches for the byte that decides the result.
    const bool decisive = &fold == &any_fold;
    const size_t last = plan.kept.dim - 1;
    Rows kept(plan.kept);
    do {
      for (size_t j = 0; j < plan.kept.size[last]; ++j) {
        const char* row =
            x.const_data_ptr<char>() + kept.from + static_cast<ptrdiff_t>(j) * plan.kept.from[last];
        const bool found = memchr(row, decisive ? 1 : 0, static_cast<size_t>(plan.count)) != nullptr;
        out.mutable_data_ptr<bool>()[kept.to + static_cast<ptrdiff_t>(j) * plan.kept.to[last]] =
            found == decisive;
      }
    } while (kept.next());
    return Error::Ok;
  }
  reduce(context, plan, fold, compute_type(x.scalar_type()), 1, x, out);
  return Error::Ok;
}
#define TORCHETTE_LOGIC(name)                                                                            \
  static Error name##_dim_out(Context& context, const Tensor& x, int64_t dim, bool keeps, Tensor& out) { \
    TORCHETTE_TRY(wrap_dim(dim, static_cast<size_t>(x.dim())));                                          \
    return logic_dims(context, x, 1u << dim, keeps, name##_fold, out);                                   \
  }                                                                                                      \
  static Error name##_dims_out(Context& context, const Tensor& x, Dims dims, bool keeps, Tensor& out) {  \
    uint32_t set;                                                                                        \
    TORCHETTE_TRY(named_dims(x, dims, set));                                                             \
    return logic_dims(context, x, set, keeps, name##_fold, out);                                         \
  }                                                                                                      \
  static Error name##_all_out(Context& context, const Tensor& x, Tensor& out) {                          \
    return logic_dims(context, x, ~0u, false, name##_fold, out);                                         \
  }
TORCHETTE_LOGIC(any)
TORCHETTE_LOGIC(all)
#undef TORCHETTE_LOGIC

// --- Variance

/// Computes the variance, or its square root if `root`, in two passes in double precision. `mean` may be
/// null.
static Error variance(const Tensor& x, const Dims& dims, double correction, bool keeps, bool root,
                      const Tensor& out, const Tensor* mean) {
  TORCHETTE_TRY(check_types(x, out));
  TORCHETTE_CHECK(is_floating(x.scalar_type()) && is_floating(out.scalar_type()), InvalidType,
                  "self and out must be floating-point tensors");
  uint32_t set;
  TORCHETTE_TRY(named_dims(x, dims, set));
  Plan plan;
  TORCHETTE_TRY(plan_reduction(x, set, keeps, out, plan, mean != nullptr ? "out0" : "out"));
  if (mean != nullptr) {
    TORCHETTE_CHECK(is_floating(mean->scalar_type()), InvalidType,
                    "out1 is of type %d, expected a floating type", static_cast<int>(mean->scalar_type()));
    TORCHETTE_TRY(resize_result(*mean, out.sizes(), "out1"));
    TORCHETTE_CHECK(same_dim_order(*mean, out), NotSupported, "out0 and out1 have different dim orders");
  }
  if (out.numel() == 0) return Error::Ok;
  const Convert load = load_as(x.scalar_type(), kF64);
  const auto element = x.element_size();
  alignas(64) double loaded[kChunk];
  const size_t last = plan.kept.dim - 1, reduced_last = plan.reduced.dim - 1;
  const size_t run = plan.reduced.size[reduced_last];
  const ptrdiff_t step = plan.reduced.from[reduced_last];
  const auto count = static_cast<double>(plan.count);
  const double divisor = count - correction > 0 ? count - correction : 0;
  Rows kept(plan.kept);
  do {
    for (size_t j = 0; j < plan.kept.size[last]; ++j) {
      const ptrdiff_t from = kept.from + static_cast<ptrdiff_t>(j) * plan.kept.from[last];
      const ptrdiff_t to = kept.to + static_cast<ptrdiff_t>(j) * plan.kept.to[last];
      double center = 0, sum = 0;
      for (int pass = 0; pass < 2; ++pass) {
        sum = 0;
        if (plan.count > 0) {
          Rows reduced(plan.reduced);
          do {
            for (size_t i = 0, n; i < run; i += n) {
              n = run - i < kChunk ? run - i : kChunk;
              load(static_cast<const char*>(x.const_data_ptr()) +
                       (from + reduced.from + static_cast<ptrdiff_t>(i) * step) * element,
                   step, loaded, n);
              if (pass == 1)
                for (size_t k = 0; k < n; ++k) loaded[k] = (loaded[k] - center) * (loaded[k] - center);
              fold_run<sum_op, double>(&sum, loaded, n);
            }
          } while (reduced.next());
        }
        if (pass == 0) center = sum / count;
      }
      const double result = root ? std::sqrt(sum / divisor) : sum / divisor;
      store_as(kF64, out.scalar_type())(
          &result, 1, static_cast<char*>(out.mutable_data_ptr()) + to * out.element_size(), 1);
      if (mean != nullptr)
        store_as(kF64, mean->scalar_type())(
            &center, 1, static_cast<char*>(mean->mutable_data_ptr()) + to * mean->element_size(), 1);
    }
  } while (kept.next());
  return Error::Ok;
}
static double correction_of(const Optional<Scalar>& correction) {
  return correction.has_value() ? correction->to_double() : 1;
}
static Error var_correction_out(Context&, const Tensor& x, Dims dims, Optional<Scalar> correction, bool keeps,
                                Tensor& out) {
  return variance(x, dims, correction_of(correction), keeps, false, out, nullptr);
}
static Error var_out(Context&, const Tensor& x, Dims dims, bool unbiased, bool keeps, Tensor& out) {
  return variance(x, dims, unbiased ? 1 : 0, keeps, false, out, nullptr);
}
static Error std_correction_out(Context&, const Tensor& x, Dims dims, Optional<Scalar> correction, bool keeps,
                                Tensor& out) {
  return variance(x, dims, correction_of(correction), keeps, true, out, nullptr);
}
static Error var_mean_correction_out(Context&, const Tensor& x, Dims dims, Optional<Scalar> correction,
                                     bool keeps, Tensor& out, Tensor& mean) {
  return variance(x, dims, correction_of(correction), keeps, false, out, &mean);
}

// --- Hashes

/// Exclusive or of the bits of all elements, converted to float64 or int64.
static Error hash_tensor_out(Context&, const Tensor& x, Span<const int64_t> dims, bool keeps, int64_t mode,
                             Tensor& out) {
  TORCHETTE_CHECK(mode == 0, InvalidArgument, "mode is %lld, expected 0", static_cast<long long>(mode));
  TORCHETTE_CHECK(out.scalar_type() == ScalarType::UInt64, InvalidType, "out is of type %d, expected uint64",
                  static_cast<int>(out.scalar_type()));
  const ScalarType type = x.scalar_type();
  TORCHETTE_CHECK(is_floating(type) || type == ScalarType::Bool || type <= ScalarType::Long, InvalidType,
                  "self is of unsupported type %d", static_cast<int>(type));
  uint32_t set;
  TORCHETTE_TRY(named_dims(x, dims, set));
  Plan plan;
  TORCHETTE_TRY(plan_reduction(x, set, keeps, out, plan, "out"));
  if (out.numel() == 0) return Error::Ok;
  TORCHETTE_CHECK(plan.count > 0, InvalidArgument, "self has no elements along dim");
  const Convert load = load_as(type, is_floating(type) ? kF64 : kI64);
  const auto element = x.element_size();
  alignas(64) uint64_t loaded[kChunk];
  const size_t last = plan.kept.dim - 1, reduced_last = plan.reduced.dim - 1;
  const size_t run = plan.reduced.size[reduced_last];
  const ptrdiff_t step = plan.reduced.from[reduced_last];
  Rows kept(plan.kept);
  do {
    for (size_t j = 0; j < plan.kept.size[last]; ++j) {
      const ptrdiff_t from = kept.from + static_cast<ptrdiff_t>(j) * plan.kept.from[last];
      uint64_t hash = 0;
      Rows reduced(plan.reduced);
      do {
        for (size_t i = 0, n; i < run; i += n) {
          n = run - i < kChunk ? run - i : kChunk;
          load(static_cast<const char*>(x.const_data_ptr()) +
                   (from + reduced.from + static_cast<ptrdiff_t>(i) * step) * element,
               step, loaded, n);
          for (size_t k = 0; k < n; ++k) hash ^= loaded[k];
        }
      } while (reduced.next());
      out.mutable_data_ptr<uint64_t>()[kept.to + static_cast<ptrdiff_t>(j) * plan.kept.to[last]] = hash;
    }
  } while (kept.next());
  return Error::Ok;
}

TORCHETTE_KERNELS_NARROW(reduce,                                                            //
                         TORCHETTE_KERNEL("aten::sum.IntList_out", sum_out),                //
                         TORCHETTE_KERNEL("aten::mean.out", mean_out),                      //
                         TORCHETTE_KERNEL("aten::mean.dtype_out", mean_all_out),            //
                         TORCHETTE_KERNEL("aten::prod.out", prod_out),                      //
                         TORCHETTE_KERNEL("aten::prod.int_out", prod_dim_out),              //
                         TORCHETTE_KERNEL("aten::amax.out", amax_out),                      //
                         TORCHETTE_KERNEL("aten::amin.out", amin_out),                      //
                         TORCHETTE_KERNEL("aten::max.unary_out", max_all_out),              //
                         TORCHETTE_KERNEL("aten::min.unary_out", min_all_out),              //
                         TORCHETTE_KERNEL("aten::max.dim_max", max_dim_out),                //
                         TORCHETTE_KERNEL("aten::min.dim_min", min_dim_out),                //
                         TORCHETTE_KERNEL("aten::argmax.out", argmax_out),                  //
                         TORCHETTE_KERNEL("aten::argmin.out", argmin_out),                  //
                         TORCHETTE_KERNEL("aten::any.out", any_dim_out),                    //
                         TORCHETTE_KERNEL("aten::any.dims_out", any_dims_out),              //
                         TORCHETTE_KERNEL("aten::any.all_out", any_all_out),                //
                         TORCHETTE_KERNEL("aten::all.out", all_dim_out),                    //
                         TORCHETTE_KERNEL("aten::all.dims_out", all_dims_out),              //
                         TORCHETTE_KERNEL("aten::all.all_out", all_all_out),                //
                         TORCHETTE_KERNEL("aten::var.out", var_out),                        //
                         TORCHETTE_KERNEL("aten::var.correction_out", var_correction_out),  //
                         TORCHETTE_KERNEL("aten::std.correction_out", std_correction_out),  //
                         TORCHETTE_KERNEL("aten::var_mean.correction_out", var_mean_correction_out),
                         TORCHETTE_KERNEL("aten::hash_tensor.out", hash_tensor_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
