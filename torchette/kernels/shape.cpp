// SPDX-License-Identifier: BSD-3-Clause
// Operators that rearrange elements without computing: each describes where its elements come from and go to
// as strided views, and copies.
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

constexpr ptrdiff_t kMax = kMaxDim;

Error resize(const Tensor& out, const Strided& like) {
  SizesType sizes[kMaxDim];
  TORCHETTE_CHECK(like.dim <= kMax, InvalidArgument, "a result of %td dimensions; at most %td are supported",
                  like.dim, kMax);
  for (ptrdiff_t d = 0; d < like.dim; ++d) sizes[d] = static_cast<SizesType>(like.size[d]);
  return resize_tensor(out, {sizes, static_cast<size_t>(like.dim)});
}

Error check_same_type(const char* op, const Tensor& in, const Tensor& out) {
  TORCHETTE_CHECK(in.dtype() == out.dtype(), InvalidType, "%s: the input has dtype %d, the output %d", op,
                  static_cast<int>(in.dtype()), static_cast<int>(out.dtype()));
  return Error::Ok;
}

/// Gives `out` the sizes of `from` and copies.
Error write(const char* op, const Tensor& in, const Strided& from, const Tensor& out) {
  TORCHETTE_TRY(check_same_type(op, in, out));
  TORCHETTE_TRY(resize(out, from));
  copy_strided(from, Strided(out));
  return Error::Ok;
}

Error check_dim(const char* op, int64_t dim, ptrdiff_t dims, ptrdiff_t* wrapped) {
  *wrapped = wrap_dim(dim, dims);
  TORCHETTE_CHECK(*wrapped >= 0, InvalidArgument, "%s: dim %lld of a tensor of %td dimensions", op,
                  static_cast<long long>(dim), dims);
  return Error::Ok;
}

/// Start and length of start:end:step in a dimension of `n`, as Python's slices clamp them.
Error check_slice(const char* op, Optional<int64_t> first, Optional<int64_t> last, int64_t step, ptrdiff_t n,
                  ptrdiff_t* start, ptrdiff_t* length) {
  TORCHETTE_CHECK(step > 0, InvalidArgument, "%s: step %lld, must be positive", op,
                  static_cast<long long>(step));
  const auto clamp = [n](int64_t x) { return x < 0 ? (x + n < 0 ? 0 : x + n) : x > n ? n : x; };
  const int64_t a = clamp(first.value_or(0)), b = clamp(last.value_or(n));
  *start = a;
  *length = b <= a ? 0 : (b - a - 1) / step + 1;
  return Error::Ok;
}

/// `out` as a run of elements with the sizes of `like`, in row-major order.
Strided as_run(const Tensor& out, const Strided& like) {
  Strided run = like;
  run.data = static_cast<char*>(out.mutable_data_ptr());
  ptrdiff_t step = 1;
  for (ptrdiff_t d = like.dim - 1; d >= 0; --d) {
    run.stride[d] = step;
    step *= like.size[d];
  }
  return run;
}

}  // namespace

static Error alias_copy_out(Context&, const Tensor& in, Tensor& out) {
  return write("alias_copy", in, Strided(in), out);
}

static Error permute_copy_out(Context&, const Tensor& in, Span<const int64_t> dims, Tensor& out) {
  const ptrdiff_t n = in.dim();
  TORCHETTE_CHECK(static_cast<ptrdiff_t>(dims.size()) == n, InvalidArgument,
                  "permute_copy: %zu dims for a tensor of %td dimensions", dims.size(), n);
  const Strided all(in);
  Strided from = all;
  uint32_t seen = 0;
  for (ptrdiff_t d = 0; d < n; ++d) {
    ptrdiff_t source;
    TORCHETTE_TRY(check_dim("permute_copy", dims[static_cast<size_t>(d)], n, &source));
    TORCHETTE_CHECK((seen >> source & 1) == 0, InvalidArgument, "permute_copy: dim %td stands twice", source);
    seen |= 1u << source;
    from.size[d] = all.size[source];
    from.stride[d] = all.stride[source];
  }
  return write("permute_copy", in, from, out);
}

static Error transpose_copy_out(Context&, const Tensor& in, int64_t dim0, int64_t dim1, Tensor& out) {
  ptrdiff_t a, b;
  TORCHETTE_TRY(check_dim("transpose_copy", dim0, in.dim(), &a));
  TORCHETTE_TRY(check_dim("transpose_copy", dim1, in.dim(), &b));
  const Strided all(in);
  Strided from = all;
  if (in.dim() > 0) {
    from.size[a] = all.size[b];
    from.stride[a] = all.stride[b];
    from.size[b] = all.size[a];
    from.stride[b] = all.stride[a];
  }
  return write("transpose_copy", in, from, out);
}

static Error t_copy_out(Context& context, const Tensor& in, Tensor& out) {
  TORCHETTE_CHECK(in.dim() <= 2, InvalidArgument, "t_copy: a tensor of %td dimensions; at most 2", in.dim());
  return in.dim() < 2 ? alias_copy_out(context, in, out) : transpose_copy_out(context, in, 0, 1, out);
}

static Error view_copy_out(Context&, const Tensor& in, Span<const int64_t> size, Tensor& out) {
  TORCHETTE_TRY(check_same_type("view_copy", in, out));
  TORCHETTE_CHECK(size.size() <= kMaxDim, InvalidArgument, "view_copy: %zu dimensions", size.size());
  Strided to;
  int64_t known = 1;
  ptrdiff_t open = -1;
  for (size_t d = 0; d < size.size(); ++d) {
    if (size[d] == -1 && open < 0) {
      open = static_cast<ptrdiff_t>(d);
    } else {
      TORCHETTE_CHECK(size[d] >= 0, InvalidArgument, "view_copy: size %lld of dimension %zu",
                      static_cast<long long>(size[d]), d);
      TORCHETTE_CHECK(!__builtin_mul_overflow(known, size[d], &known), InvalidArgument,
                      "view_copy: sizes overflow");
    }
    to.append(static_cast<ptrdiff_t>(size[d]), 0);
  }
  if (open >= 0) to.size[open] = known == 0 ? 0 : in.numel() / static_cast<ptrdiff_t>(known);
  TORCHETTE_CHECK(to.numel() == in.numel(), InvalidArgument, "view_copy: %td elements do not fit %td",
                  in.numel(), to.numel());
  TORCHETTE_TRY(resize(out, to));
  TORCHETTE_CHECK(is_contiguous(out), InvalidArgument, "view_copy: the output is not contiguous");
  copy_strided(Strided(in), as_run(out, Strided(in)));
  return Error::Ok;
}

static Error expand_copy_out(Context&, const Tensor& in, Span<const int64_t> size, bool, Tensor& out) {
  const ptrdiff_t n = static_cast<ptrdiff_t>(size.size()), added = n - in.dim();
  TORCHETTE_CHECK(added >= 0 && n <= kMax, InvalidArgument,
                  "expand_copy: %td sizes for a tensor of %td dimensions", n, in.dim());
  Strided from(in);
  from.dim = 0;
  for (ptrdiff_t d = 0; d < n; ++d) {
    const int64_t wanted = size[static_cast<size_t>(d)];
    const ptrdiff_t have = d < added ? 1 : in.size(d - added);
    const ptrdiff_t get = wanted == -1 && d >= added ? have : static_cast<ptrdiff_t>(wanted);
    TORCHETTE_CHECK(get >= 0 && (have == 1 || have == get), InvalidArgument,
                    "expand_copy: dimension %td of size %td cannot become %lld", d, have,
                    static_cast<long long>(wanted));
    from.append(get, have == 1 ? 0 : in.strides()[static_cast<size_t>(d - added)]);
  }
  return write("expand_copy", in, from, out);
}

static Error slice_copy_out(Context&, const Tensor& in, int64_t dim, Optional<int64_t> first,
                            Optional<int64_t> last, int64_t step, Tensor& out) {
  TORCHETTE_CHECK(in.dim() > 0, InvalidArgument, "slice_copy: a tensor without dimensions");
  ptrdiff_t d, start, length;
  TORCHETTE_TRY(check_dim("slice_copy", dim, in.dim(), &d));
  TORCHETTE_TRY(check_slice("slice_copy", first, last, step, in.size(d), &start, &length));
  Strided from(in);
  from.slice(d, start, length, static_cast<ptrdiff_t>(step));
  return write("slice_copy", in, from, out);
}

static Error narrow_copy_out(Context& context, const Tensor& in, int64_t dim, int64_t start, int64_t length,
                             Tensor& out) {
  ptrdiff_t d;
  TORCHETTE_TRY(check_dim("narrow_copy", dim, in.dim(), &d));
  const int64_t n = in.dim() == 0 ? 0 : in.size(d), first = start < 0 ? start + n : start;
  TORCHETTE_CHECK(length >= 0 && first >= 0 && first <= n && length <= n - first, InvalidArgument,
                  "narrow_copy: %lld elements from %lld on of a dimension of %lld",
                  static_cast<long long>(length), static_cast<long long>(start), static_cast<long long>(n));
  return slice_copy_out(context, in, dim, first, first + length, 1, out);
}

static Error check_index(const char* op, int64_t index, ptrdiff_t n, ptrdiff_t* wrapped) {
  *wrapped = static_cast<ptrdiff_t>(index < 0 ? index + n : index);
  TORCHETTE_CHECK(index >= -n && index < n, InvalidArgument, "%s: index %lld of a dimension of %td", op,
                  static_cast<long long>(index), n);
  return Error::Ok;
}

static Error select_copy_out(Context&, const Tensor& in, int64_t dim, int64_t index, Tensor& out) {
  TORCHETTE_CHECK(in.dim() > 0, InvalidArgument, "select_copy: a tensor without dimensions");
  ptrdiff_t d, i;
  TORCHETTE_TRY(check_dim("select_copy", dim, in.dim(), &d));
  TORCHETTE_TRY(check_index("select_copy", index, in.size(d), &i));
  Strided from(in);
  from.select(d, i);
  return write("select_copy", in, from, out);
}

static Error unsqueeze_copy_out(Context&, const Tensor& in, int64_t dim, Tensor& out) {
  ptrdiff_t at;
  TORCHETTE_TRY(check_dim("unsqueeze_copy", dim, in.dim() + 1, &at));
  const Strided all(in);
  Strided from = all;
  from.dim = 0;
  for (ptrdiff_t d = 0; d <= all.dim; ++d) {
    if (d == at) from.append(1, 0);
    if (d < all.dim) from.append(all.size[d], all.stride[d]);
  }
  return write("unsqueeze_copy", in, from, out);
}

static Error squeeze_copy_dims_out(Context&, const Tensor& in, Span<const int64_t> dims, Tensor& out) {
  uint32_t named = 0;
  for (const int64_t dim : dims) {
    ptrdiff_t d;
    TORCHETTE_TRY(check_dim("squeeze_copy", dim, in.dim(), &d));
    named |= 1u << d;
  }
  const Strided all(in);
  Strided from = all;
  from.dim = 0;
  for (ptrdiff_t d = 0; d < all.dim; ++d)
    if (all.size[d] != 1 || (named >> d & 1) == 0) from.append(all.size[d], all.stride[d]);
  return write("squeeze_copy", in, from, out);
}

static Error squeeze_copy_dim_out(Context& context, const Tensor& in, int64_t dim, Tensor& out) {
  return squeeze_copy_dims_out(context, in, {&dim, 1}, out);
}

/// Copies each tensor of `in` behind the one before it along dimension `d` of `out`, which has its sizes
/// already.
static Error put_side_by_side(const char* op, Span<const Tensor> in, ptrdiff_t d, const Tensor& out) {
  const Strided all(out);
  ptrdiff_t at = 0;
  for (size_t i = 0; i < in.size(); ++i) {
    if (in[i].dim() == 1 && in[i].numel() == 0 && all.dim != 1) continue;  // torch.cat skips these
    TORCHETTE_TRY(check_same_type(op, in[i], out));
    Strided to = all;
    to.slice(d, at, in[i].size(d));
    copy_strided(Strided(in[i]), to);
    at += in[i].size(d);
  }
  return Error::Ok;
}

static Error cat_out(Context&, Span<const Tensor> in, int64_t dim, Tensor& out) {
  TORCHETTE_CHECK(!in.empty(), InvalidArgument, "cat: no tensors");
  size_t first = 0;
  while (first + 1 < in.size() && in[first].dim() == 1 && in[first].numel() == 0) ++first;
  Strided sum(in[first]);
  TORCHETTE_CHECK(sum.dim > 0, InvalidArgument, "cat: tensors without dimensions");
  ptrdiff_t d;
  TORCHETTE_TRY(check_dim("cat", dim, sum.dim, &d));
  for (size_t i = first + 1; i < in.size(); ++i) {
    if (in[i].dim() == 1 && in[i].numel() == 0 && sum.dim != 1) continue;
    TORCHETTE_CHECK(in[i].dim() == sum.dim, InvalidArgument,
                    "cat: tensor %zu has %td dimensions, tensor %zu has %td", i, in[i].dim(), first, sum.dim);
    for (ptrdiff_t e = 0; e < sum.dim; ++e)
      TORCHETTE_CHECK(e == d || in[i].size(e) == sum.size[e], InvalidArgument,
                      "cat: tensor %zu has size %td in dimension %td, tensor %zu has %td", i, in[i].size(e),
                      e, first, sum.size[e]);
    sum.size[d] += in[i].size(d);
  }
  TORCHETTE_TRY(resize(out, sum));
  return put_side_by_side("cat", in, d, out);
}

static Error stack_out(Context&, Span<const Tensor> in, int64_t dim, Tensor& out) {
  TORCHETTE_CHECK(!in.empty(), InvalidArgument, "stack: no tensors");
  const Strided one(in[0]);
  ptrdiff_t at;
  TORCHETTE_TRY(check_dim("stack", dim, one.dim + 1, &at));
  Strided sizes;
  for (ptrdiff_t d = 0; d <= one.dim; ++d) {
    if (d == at) sizes.append(static_cast<ptrdiff_t>(in.size()), 0);
    if (d < one.dim) sizes.append(one.size[d], 0);
  }
  TORCHETTE_TRY(resize(out, sizes));
  for (size_t i = 0; i < in.size(); ++i) {
    TORCHETTE_TRY(check_same_type("stack", in[i], out));
    const Strided from(in[i]);
    TORCHETTE_CHECK(from.dim == one.dim && memcmp(from.size, one.size, sizeof(ptrdiff_t) * one.dim) == 0,
                    InvalidArgument, "stack: tensor %zu has other sizes than tensor 0", i);
    Strided to(out);
    to.select(at, static_cast<ptrdiff_t>(i));
    copy_strided(from, to);
  }
  return Error::Ok;
}

/// Output `i` becomes `length(i)` elements of dimension `dim`, one behind the other; all of it is used up.
template <typename Length>
static Error split(const char* op, const Tensor& in, int64_t dim, Span<const Tensor> out, size_t count,
                   Length length) {
  TORCHETTE_CHECK(in.dim() > 0, InvalidArgument, "%s: a tensor without dimensions", op);
  ptrdiff_t d;
  TORCHETTE_TRY(check_dim(op, dim, in.dim(), &d));
  TORCHETTE_CHECK(out.size() == count, InvalidArgument, "%s: %zu outputs for %zu pieces", op, out.size(),
                  count);
  ptrdiff_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    const ptrdiff_t n = length(i);
    TORCHETTE_CHECK(n >= 0 && n <= in.size(d) - at, InvalidArgument,
                    "%s: piece %zu of %td elements of %td left", op, i, n, in.size(d) - at);
    Strided from(in);
    from.slice(d, at, n);
    TORCHETTE_TRY(write(op, in, from, out[i]));
    at += n;
  }
  TORCHETTE_CHECK(at == in.size(d), InvalidArgument, "%s: %td of %td elements are left over", op,
                  in.size(d) - at, in.size(d));
  return Error::Ok;
}

static Error split_with_sizes_copy_out(Context&, const Tensor& in, Span<const int64_t> sizes, int64_t dim,
                                       Span<const Tensor> out) {
  return split("split_with_sizes_copy", in, dim, out, sizes.size(),
               [&](size_t i) { return static_cast<ptrdiff_t>(sizes[i]); });
}

static Error split_copy_out(Context&, const Tensor& in, int64_t size, int64_t dim, Span<const Tensor> out) {
  ptrdiff_t d;
  TORCHETTE_TRY(check_dim("split_copy", dim, in.dim(), &d));
  const ptrdiff_t n = in.dim() == 0 ? 0 : in.size(d);
  TORCHETTE_CHECK(size > 0 || (size == 0 && n == 0), InvalidArgument, "split_copy: pieces of %lld elements",
                  static_cast<long long>(size));
  const ptrdiff_t piece = size > n ? n : static_cast<ptrdiff_t>(size);
  const size_t count = piece == 0 ? 1 : static_cast<size_t>((n + piece - 1) / piece);
  return split("split_copy", in, dim, out, count, [&](size_t i) {
    const ptrdiff_t left = n - static_cast<ptrdiff_t>(i) * piece;
    return left < piece ? left : piece;
  });
}

static Error unbind_copy_out(Context&, const Tensor& in, int64_t dim, Span<const Tensor> out) {
  TORCHETTE_CHECK(in.dim() > 0, InvalidArgument, "unbind_copy: a tensor without dimensions");
  ptrdiff_t d;
  TORCHETTE_TRY(check_dim("unbind_copy", dim, in.dim(), &d));
  TORCHETTE_CHECK(static_cast<ptrdiff_t>(out.size()) == in.size(d), InvalidArgument,
                  "unbind_copy: %zu outputs for a dimension of %td", out.size(), in.size(d));
  for (size_t i = 0; i < out.size(); ++i) {
    Strided from(in);
    from.select(d, static_cast<ptrdiff_t>(i));
    TORCHETTE_TRY(write("unbind_copy", in, from, out[i]));
  }
  return Error::Ok;
}

static Error repeat_out(Context&, const Tensor& in, Span<const int64_t> repeats, Tensor& out) {
  TORCHETTE_TRY(check_same_type("repeat", in, out));
  const ptrdiff_t n = static_cast<ptrdiff_t>(repeats.size()), added = n - in.dim();
  TORCHETTE_CHECK(added >= 0 && n <= kMax, InvalidArgument,
                  "repeat: %td repeats for a tensor of %td dimensions", n, in.dim());
  Strided sizes;
  for (ptrdiff_t d = 0; d < n; ++d) {
    const int64_t times = repeats[static_cast<size_t>(d)];
    TORCHETTE_CHECK(times >= 0, InvalidArgument, "repeat: %lld times in dimension %td",
                    static_cast<long long>(times), d);
    sizes.append(static_cast<ptrdiff_t>(times) * (d < added ? 1 : in.size(d - added)), 0);
  }
  TORCHETTE_TRY(resize(out, sizes));
  Strided from(in), to(out);
  from.dim = to.dim = 0;
  for (ptrdiff_t d = 0; d < n; ++d) {
    const ptrdiff_t size = d < added ? 1 : in.size(d - added), times = repeats[static_cast<size_t>(d)];
    const ptrdiff_t step = out.strides()[static_cast<size_t>(d)];
    from.append(times, 0);
    to.append(times, step * size);
    from.append(size, d < added ? 0 : in.strides()[static_cast<size_t>(d - added)]);
    to.append(size, step);
  }
  copy_strided(from, to);
  return Error::Ok;
}

static Error flip_out(Context&, const Tensor& in, Span<const int64_t> dims, Tensor& out) {
  Strided from(in);
  uint32_t seen = 0;
  for (const int64_t dim : dims) {
    ptrdiff_t d;
    TORCHETTE_TRY(check_dim("flip", dim, in.dim(), &d));
    TORCHETTE_CHECK((seen >> d & 1) == 0, InvalidArgument, "flip: dim %td stands twice", d);
    seen |= 1u << d;
    if (in.dim() > 0 && from.size[d] > 0) from.slice(d, from.size[d] - 1, from.size[d], -1);
  }
  return write("flip", in, from, out);
}

static Error roll_out(Context&, const Tensor& in, Span<const int64_t> shifts, Span<const int64_t> dims,
                      Tensor& out) {
  TORCHETTE_TRY(check_same_type("roll", in, out));
  const bool flat = dims.empty();
  TORCHETTE_CHECK(flat ? shifts.size() == 1 : shifts.size() == dims.size() && dims.size() <= kMaxDim,
                  InvalidArgument, "roll: %zu shifts for %zu dims", shifts.size(), dims.size());
  TORCHETTE_TRY(resize(out, Strided(in)));
  if (in.numel() == 0) return Error::Ok;
  Strided from(in), to(out);
  ptrdiff_t shift[kMaxDim] = {};
  if (flat) {
    TORCHETTE_CHECK(is_contiguous(in) && is_contiguous(out), InvalidArgument, "roll: not contiguous");
    from.dim = to.dim = 0;
    from.append(in.numel(), 1);
    to.append(in.numel(), 1);
  }
  for (size_t i = 0; i < shifts.size(); ++i) {
    ptrdiff_t d = 0;
    if (!flat) TORCHETTE_TRY(check_dim("roll", dims[i], in.dim(), &d));
    if (from.dim == 0) continue;
    const ptrdiff_t n = from.size[d];
    shift[d] = ((shift[d] + static_cast<ptrdiff_t>(shifts[i] % n)) % n + n) % n;
  }
  // Each rolled dimension is two pieces; every combination of pieces is one copy.
  for (uint32_t pieces = 0; pieces < 1u << from.dim; ++pieces) {
    Strided part = from, place = to;
    bool empty = false;
    for (ptrdiff_t d = 0; d < from.dim; ++d) {
      const bool wrapped = pieces >> d & 1;
      const ptrdiff_t n = from.size[d], length = wrapped ? shift[d] : n - shift[d];
      empty |= length == 0;
      part.slice(d, wrapped ? n - shift[d] : 0, length);
      place.slice(d, wrapped ? 0 : shift[d], length);
    }
    if (!empty) copy_strided(part, place);
  }
  return Error::Ok;
}

static Error constant_pad_nd_out(Context&, const Tensor& in, Span<const int64_t> pad, const Scalar& value,
                                 Tensor& out) {
  TORCHETTE_TRY(check_same_type("constant_pad_nd", in, out));
  TORCHETTE_CHECK(pad.size() % 2 == 0 && pad.size() / 2 <= static_cast<size_t>(in.dim()), InvalidArgument,
                  "constant_pad_nd: %zu paddings for a tensor of %td dimensions", pad.size(), in.dim());
  Strided from(in), sizes(in);
  ptrdiff_t before[kMaxDim] = {};
  for (size_t i = 0; i < pad.size(); i += 2) {
    const ptrdiff_t d = in.dim() - 1 - static_cast<ptrdiff_t>(i / 2);
    const int64_t left = pad[i], right = pad[i + 1];
    const bool sane = left > INT32_MIN && left < INT32_MAX && right > INT32_MIN && right < INT32_MAX;
    TORCHETTE_CHECK(sane && in.size(d) + left + right >= 0, InvalidArgument,
                    "constant_pad_nd: dimension %td of size %td padded by %lld and %lld", d, in.size(d),
                    static_cast<long long>(left), static_cast<long long>(right));
    sizes.size[d] += static_cast<ptrdiff_t>(left + right);
    before[d] = static_cast<ptrdiff_t>(left);
  }
  TORCHETTE_TRY(resize(out, sizes));
  unsigned char element[16];
  TORCHETTE_CHECK(store_scalar(value, out.dtype(), element), InvalidType, "constant_pad_nd: dtype %d",
                  static_cast<int>(out.dtype()));
  Strided to(out);
  fill_strided(element, to);
  for (ptrdiff_t d = 0; d < in.dim(); ++d) {
    // The part of the input that remains, and where it begins in the output.
    const ptrdiff_t skip = before[d] < 0 ? -before[d] : 0, at = before[d] > 0 ? before[d] : 0;
    const ptrdiff_t have = in.size(d) - skip, room = sizes.size[d] - at;
    const ptrdiff_t n = have < room ? have : room;
    if (n <= 0) return Error::Ok;
    from.slice(d, skip, n);
    to.slice(d, at, n);
  }
  copy_strided(from, to);
  return Error::Ok;
}

/// out = in, with `part` of out then taken from src, which has the part's sizes.
static Error scatter_part(const char* op, const Tensor& src, const Strided& part) {
  const Strided from(src);
  TORCHETTE_CHECK(from.dim == part.dim && memcmp(from.size, part.size, sizeof(ptrdiff_t) * part.dim) == 0,
                  InvalidArgument, "%s: src does not have the sizes of the part that it replaces", op);
  copy_strided(from, part);
  return Error::Ok;
}

static Error slice_scatter_out(Context&, const Tensor& in, const Tensor& src, int64_t dim,
                               Optional<int64_t> first, Optional<int64_t> last, int64_t step, Tensor& out) {
  TORCHETTE_CHECK(in.dim() > 0, InvalidArgument, "slice_scatter: a tensor without dimensions");
  ptrdiff_t d, start, length;
  TORCHETTE_TRY(check_dim("slice_scatter", dim, in.dim(), &d));
  TORCHETTE_TRY(check_slice("slice_scatter", first, last, step, in.size(d), &start, &length));
  TORCHETTE_TRY(check_same_type("slice_scatter", src, out));
  TORCHETTE_TRY(write("slice_scatter", in, Strided(in), out));
  Strided part(out);
  part.slice(d, start, length, static_cast<ptrdiff_t>(step));
  return scatter_part("slice_scatter", src, part);
}

static Error select_scatter_out(Context&, const Tensor& in, const Tensor& src, int64_t dim, int64_t index,
                                Tensor& out) {
  TORCHETTE_CHECK(in.dim() > 0, InvalidArgument, "select_scatter: a tensor without dimensions");
  ptrdiff_t d, i;
  TORCHETTE_TRY(check_dim("select_scatter", dim, in.dim(), &d));
  TORCHETTE_TRY(check_index("select_scatter", index, in.size(d), &i));
  TORCHETTE_TRY(check_same_type("select_scatter", src, out));
  TORCHETTE_TRY(write("select_scatter", in, Strided(in), out));
  Strided part(out);
  part.select(d, i);
  return scatter_part("select_scatter", src, part);
}

static Error as_strided_copy_out(Context&, const Tensor& in, Span<const int64_t> size,
                                 Span<const int64_t> stride, Optional<int64_t> offset, Tensor& out) {
  TORCHETTE_CHECK(size.size() == stride.size() && size.size() <= kMaxDim, InvalidArgument,
                  "as_strided_copy: %zu sizes, %zu strides", size.size(), stride.size());
  Strided from(in);
  from.dim = 0;
  int64_t last = offset.value_or(0);
  TORCHETTE_CHECK(last >= 0, InvalidArgument, "as_strided_copy: offset %lld", static_cast<long long>(last));
  bool empty = false;
  for (size_t d = 0; d < size.size(); ++d) {
    int64_t reach;
    TORCHETTE_CHECK(size[d] >= 0 && stride[d] >= 0, InvalidArgument,
                    "as_strided_copy: negative size or stride");
    empty |= size[d] == 0;
    TORCHETTE_CHECK(size[d] == 0 || (!__builtin_mul_overflow(size[d] - 1, stride[d], &reach) &&
                                     !__builtin_add_overflow(last, reach, &last)),
                    InvalidArgument, "as_strided_copy: sizes and strides overflow");
    from.append(static_cast<ptrdiff_t>(size[d]), static_cast<ptrdiff_t>(stride[d]));
  }
  TORCHETTE_CHECK(empty || last < in.numel(), InvalidArgument,
                  "as_strided_copy: element %lld of a tensor of %td", static_cast<long long>(last),
                  in.numel());
  from.data += offset.value_or(0) * from.width;
  return write("as_strided_copy", in, from, out);
}

static Error diagonal_copy_out(Context&, const Tensor& in, int64_t offset, int64_t dim1, int64_t dim2,
                               Tensor& out) {
  ptrdiff_t a, b;
  TORCHETTE_TRY(check_dim("diagonal_copy", dim1, in.dim(), &a));
  TORCHETTE_TRY(check_dim("diagonal_copy", dim2, in.dim(), &b));
  TORCHETTE_CHECK(a != b && in.dim() > 1, InvalidArgument, "diagonal_copy: dims %td and %td", a, b);
  const ptrdiff_t rows = in.size(a), cols = in.size(b);
  const bool inside = offset > -rows && offset < cols;
  const ptrdiff_t shift = inside ? static_cast<ptrdiff_t>(offset) : 0;
  const ptrdiff_t row = shift < 0 ? -shift : 0, col = shift > 0 ? shift : 0;
  const ptrdiff_t length = !inside ? 0 : rows - row < cols - col ? rows - row : cols - col;
  const Strided all(in);
  Strided from = all;
  from.data += (row * all.stride[a] + col * all.stride[b]) * all.width;
  from.dim = 0;
  for (ptrdiff_t d = 0; d < all.dim; ++d)
    if (d != a && d != b) from.append(all.size[d], all.stride[d]);
  from.append(length, all.stride[a] + all.stride[b]);
  return write("diagonal_copy", in, from, out);
}

static Error unfold_copy_out(Context&, const Tensor& in, int64_t dim, int64_t size, int64_t step,
                             Tensor& out) {
  ptrdiff_t d;
  TORCHETTE_TRY(check_dim("unfold_copy", dim, in.dim(), &d));
  Strided from(in);
  if (from.dim == 0) from.append(1, 0);
  TORCHETTE_CHECK(size >= 0 && size <= from.size[d] && step > 0, InvalidArgument,
                  "unfold_copy: windows of %lld every %lld in a dimension of %td",
                  static_cast<long long>(size), static_cast<long long>(step), from.size[d]);
  const ptrdiff_t unit = from.stride[d];
  from.slice(d, 0, (from.size[d] - static_cast<ptrdiff_t>(size)) / static_cast<ptrdiff_t>(step) + 1,
             static_cast<ptrdiff_t>(step));
  if (in.dim() == 0) from.dim = 0;
  from.append(static_cast<ptrdiff_t>(size), unit);
  return write("unfold_copy", in, from, out);
}

/// Zeroes the elements (row, col) of each matrix for which `clear(col - row)`.
template <typename Clear>
static Error triangle(const char* op, const Tensor& in, Tensor& out, Clear clear) {
  TORCHETTE_CHECK(in.dim() >= 2, InvalidArgument, "%s: a tensor of %td dimensions; at least 2", op, in.dim());
  TORCHETTE_TRY(write(op, in, Strided(in), out));
  const ptrdiff_t r = in.dim() - 2, rows = in.size(r), cols = in.size(r + 1);
  constexpr unsigned char kZero[16] = {};
  for (ptrdiff_t row = 0; row < rows; ++row) {
    // The cleared columns of a row are its first or its last ones.
    ptrdiff_t from = 0, to = cols;
    while (from < to && !clear(from - row)) ++from;
    while (to > from && !clear(to - 1 - row)) --to;
    if (from == to) continue;
    Strided part(out);
    part.slice(r + 1, from, to - from);
    part.select(r, row);
    fill_strided(kZero, part);
  }
  return Error::Ok;
}

static Error tril_out(Context&, const Tensor& in, int64_t diagonal, Tensor& out) {
  return triangle("tril", in, out, [diagonal](ptrdiff_t at) { return at > diagonal; });
}

static Error triu_out(Context&, const Tensor& in, int64_t diagonal, Tensor& out) {
  return triangle("triu", in, out, [diagonal](ptrdiff_t at) { return at < diagonal; });
}

/// Both pixel operators pair (c, i, j, y, x) of the deep side with (c, y, i, x, j) of the wide side.
static Error shuffle_pixels(const char* op, const Tensor& in, int64_t factor, bool widen, Tensor& out) {
  TORCHETTE_TRY(check_same_type(op, in, out));
  const ptrdiff_t d = in.dim() - 3;
  TORCHETTE_CHECK(d >= 0 && factor > 0 && factor < 1 << 15, InvalidArgument,
                  "%s: %td dimensions, factor %lld", op, in.dim(), static_cast<long long>(factor));
  const ptrdiff_t f = static_cast<ptrdiff_t>(factor);
  Strided sizes(in);
  if (widen) {
    TORCHETTE_CHECK(sizes.size[d] % (f * f) == 0, InvalidArgument, "%s: %td channels, factor %td", op,
                    sizes.size[d], f);
    sizes.size[d] /= f * f;
    sizes.size[d + 1] *= f;
    sizes.size[d + 2] *= f;
  } else {
    TORCHETTE_CHECK(sizes.size[d + 1] % f == 0 && sizes.size[d + 2] % f == 0, InvalidArgument,
                    "%s: an image of %td by %td, factor %td", op, sizes.size[d + 1], sizes.size[d + 2], f);
    sizes.size[d] *= f * f;
    sizes.size[d + 1] /= f;
    sizes.size[d + 2] /= f;
  }
  TORCHETTE_TRY(resize(out, sizes));
  const Strided deep(widen ? in : out), wide(widen ? out : in);
  Strided a = deep, b = wide;
  a.dim = b.dim = d;
  const auto pair = [&](ptrdiff_t n, ptrdiff_t deep_step, ptrdiff_t wide_step) {
    a.append(n, deep_step);
    b.append(n, wide_step);
  };
  pair(wide.size[d], deep.stride[d] * f * f, wide.stride[d]);
  pair(deep.size[d + 1], deep.stride[d + 1], wide.stride[d + 1] * f);
  pair(f, deep.stride[d] * f, wide.stride[d + 1]);
  pair(deep.size[d + 2], deep.stride[d + 2], wide.stride[d + 2] * f);
  pair(f, deep.stride[d], wide.stride[d + 2]);
  widen ? copy_strided(a, b) : copy_strided(b, a);
  return Error::Ok;
}

static Error pixel_shuffle_out(Context&, const Tensor& in, int64_t factor, Tensor& out) {
  return shuffle_pixels("pixel_shuffle", in, factor, true, out);
}

static Error pixel_unshuffle_out(Context&, const Tensor& in, int64_t factor, Tensor& out) {
  return shuffle_pixels("pixel_unshuffle", in, factor, false, out);
}

TORCHETTE_KERNELS(shape, TORCHETTE_KERNEL("aten::alias_copy.out", alias_copy_out),
                  TORCHETTE_KERNEL("aten::as_strided_copy.out", as_strided_copy_out),
                  TORCHETTE_KERNEL("aten::cat.out", cat_out),
                  TORCHETTE_KERNEL("aten::constant_pad_nd.out", constant_pad_nd_out),
                  TORCHETTE_KERNEL("aten::detach_copy.out", alias_copy_out),
                  TORCHETTE_KERNEL("aten::diagonal_copy.out", diagonal_copy_out),
                  TORCHETTE_KERNEL("aten::expand_copy.out", expand_copy_out),
                  TORCHETTE_KERNEL("aten::flip.out", flip_out),
                  TORCHETTE_KERNEL("aten::lift_fresh_copy.out", alias_copy_out),
                  TORCHETTE_KERNEL("aten::narrow_copy.out", narrow_copy_out),
                  TORCHETTE_KERNEL("aten::permute_copy.out", permute_copy_out),
                  TORCHETTE_KERNEL("aten::pixel_shuffle.out", pixel_shuffle_out),
                  TORCHETTE_KERNEL("aten::pixel_unshuffle.out", pixel_unshuffle_out),
                  TORCHETTE_KERNEL("aten::repeat.out", repeat_out),
                  TORCHETTE_KERNEL("aten::roll.out", roll_out),
                  TORCHETTE_KERNEL("aten::select_copy.int_out", select_copy_out),
                  TORCHETTE_KERNEL("aten::select_scatter.out", select_scatter_out),
                  TORCHETTE_KERNEL("aten::slice_copy.Tensor_out", slice_copy_out),
                  TORCHETTE_KERNEL("aten::slice_scatter.out", slice_scatter_out),
                  TORCHETTE_KERNEL("aten::split_copy.Tensor_out", split_copy_out),
                  TORCHETTE_KERNEL("aten::split_with_sizes_copy.out", split_with_sizes_copy_out),
                  TORCHETTE_KERNEL("aten::squeeze_copy.dim_out", squeeze_copy_dim_out),
                  TORCHETTE_KERNEL("aten::squeeze_copy.dims_out", squeeze_copy_dims_out),
                  TORCHETTE_KERNEL("aten::stack.out", stack_out),
                  TORCHETTE_KERNEL("aten::t_copy.out", t_copy_out),
                  TORCHETTE_KERNEL("aten::transpose_copy.int_out", transpose_copy_out),
                  TORCHETTE_KERNEL("aten::tril.out", tril_out), TORCHETTE_KERNEL("aten::triu.out", triu_out),
                  TORCHETTE_KERNEL("aten::unbind_copy.int_out", unbind_copy_out),
                  TORCHETTE_KERNEL("aten::unfold_copy.out", unfold_copy_out),
                  TORCHETTE_KERNEL("aten::unsqueeze_copy.out", unsqueeze_copy_out),
                  TORCHETTE_KERNEL("aten::view_copy.out", view_copy_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
