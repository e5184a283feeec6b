// SPDX-License-Identifier: BSD-3-Clause
// Operators that change shapes or move elements. Most return a strided view, which all other operators
// accept.
#include <algorithm>

#include "torchette/backends/vulkan/operators.h"

namespace torchette {
namespace vulkan {
namespace {

void view(Call& call) {
  const View in = call.tensor(0);
  Numbers sizes = call.numbers(1);
  int64_t count = 1;
  int open = -1;
  for (int d = 0; d < sizes.count; ++d) {
    if (sizes.items[d] == -1 && open < 0) {
      open = d;
    } else if (sizes.items[d] < 0 || (sizes.items[d] > 0 && count > INT32_MAX / sizes.items[d])) {
      return call.refuse("a size is negative or too large");
    } else {
      count *= sizes.items[d];
    }
  }
  if (open >= 0) sizes.items[open] = count == 0 ? 0 : in.numel() / count;
  if (count * (open >= 0 ? sizes.items[open] : 1) != in.numel())
    return call.refuse("the element counts differ");
  if (call.ok()) call.alias(0, reshaped(call.graph, in, sizes));
}

void permute(Call& call) {
  const View in = call.tensor(0);
  const Numbers order = call.numbers(1);
  if (order.count != in.rank) return call.refuse("the order does not have one index for each dimension");
  View out = in;
  uint32_t seen = 0;
  for (int d = 0; d < in.rank; ++d) {
    const int from = dim_of(call, order[d], in.rank);
    out.sizes[d] = in.sizes[from];
    out.strides[d] = in.strides[from];
    seen |= 1u << from;
  }
  if (seen != (1u << in.rank) - 1) return call.refuse("the order contains a dimension twice");
  call.alias(0, out);
}

void t(Call& call) {
  const View in = call.tensor(0);
  call.alias(0, in.rank < 2 ? in : transposed(in, 0, 1));
}

void transpose(Call& call) {
  const View in = call.tensor(0);
  const int a = dim_of(call, call.integer(1), in.rank), b = dim_of(call, call.integer(2), in.rank);
  call.alias(0, transposed(in, a, b));
}

void unsqueeze(Call& call) {
  const View in = call.tensor(0);
  if (in.rank == kMaxDims) return call.refuse("the result has more than eight dimensions");
  const int at = dim_of(call, call.integer(1), in.rank + 1);
  View out = in;
  out.rank = in.rank + 1;
  for (int d = out.rank - 1; d > at; --d) out.sizes[d] = in.sizes[d - 1], out.strides[d] = in.strides[d - 1];
  out.sizes[at] = 1;
  out.strides[at] = 0;
  call.alias(0, out);
}

void squeeze(Call& call) {
  const View in = call.tensor(0);
  uint32_t dropped = call.count() > 1 ? 0 : ~0u;
  if (call.count() > 1) {
    const Numbers dims = call.numbers(1);
    for (int i = 0; i < dims.count; ++i) dropped |= 1u << dim_of(call, dims[i], in.rank);
  }
  View out = in;
  out.rank = 0;
  for (int d = 0; d < in.rank; ++d) {
    if ((dropped >> d & 1) != 0 && in.sizes[d] == 1) continue;
    out.sizes[out.rank] = in.sizes[d];
    out.strides[out.rank++] = in.strides[d];
  }
  call.alias(0, out);
}

void expand(Call& call) {
  const View in = call.tensor(0);
  Numbers sizes = call.numbers(1);
  if (sizes.count < in.rank) return call.refuse("there are fewer sizes than dimensions");
  View to = in;
  to.rank = sizes.count;
  for (int d = 0; d < to.rank; ++d) {
    const int own = d - (to.rank - in.rank);
    to.sizes[d] = sizes[d] == -1 && own >= 0 ? in.sizes[own] : sizes[d];
    if (to.sizes[d] < 0) return call.refuse("a size is negative");
  }
  double count = 1;
  for (int d = 0; d < to.rank; ++d) count *= static_cast<double>(to.sizes[d]);
  if (count >= 0x1p31) return call.refuse("a result has 2^31 elements or more");
  const View out = broadcast(call.graph, in, to);
  if (call.ok()) call.alias(0, out);
}

void select(Call& call) {
  const View in = call.tensor(0);
  if (in.rank == 0) return call.refuse("the input is a scalar");
  const int dim = dim_of(call, call.integer(1), in.rank);
  int64_t index = call.integer(2);
  if (index < 0 && index >= -INT32_MAX) index += in.sizes[dim];
  if (index < 0 || index >= in.sizes[dim]) return call.refuse("the index is out of range");
  View out = in;
  out.offset += index * in.strides[dim];
  --out.rank;
  for (int d = dim; d < out.rank; ++d) out.sizes[d] = in.sizes[d + 1], out.strides[d] = in.strides[d + 1];
  call.alias(0, out);
}

View sliced(const View& in, int dim, int64_t start, int64_t end, int64_t step) {
  const int64_t size = in.sizes[dim];
  if (start < 0) start = start < -size ? 0 : start + size;
  if (end < 0) end = end < -size ? 0 : end + size;
  start = std::min(std::max<int64_t>(start, 0), size);
  end = std::min(std::max(end, start), size);
  View out = in;
  out.sizes[dim] = (end - start + step - 1) / step;
  out.offset += start * in.strides[dim];
  out.strides[dim] = in.strides[dim] * step;
  return out;
}

void slice(Call& call) {
  const View in = call.tensor(0);
  if (in.rank == 0) return call.refuse("the input is a scalar");
  const int dim = dim_of(call, call.integer(1, 0), in.rank);
  const int64_t step = call.integer(4, 1);
  if (step < 1 || step > INT32_MAX) return call.refuse("the step is out of range");
  call.alias(0, sliced(in, dim, call.integer(2, 0), call.integer(3, INT32_MAX), step));
}

/// Copies into a copy of the first operand, or into the state that it is.
void put_into(Call& call, const View& part, const View& source) {
  if (call.ok()) copy(call.graph, broadcast(call.graph, source, part), part);
}

// (self, src, dim, start, end, step)
void slice_scatter(Call& call) {
  const View given = call.tensor(0), source = call.tensor(1);
  if (given.rank == 0) return call.refuse("the input is a scalar");
  const int dim = dim_of(call, call.integer(2, 0), given.rank);
  const int64_t step = call.integer(5, 1);
  if (step < 1 || step > INT32_MAX) return call.refuse("the step is out of range");
  if (!call.ok()) return;
  put_into(call, sliced(call.changed(given), dim, call.integer(3, 0), call.integer(4, INT32_MAX), step),
           source);
}

// (self, src, dim, index)
void select_scatter(Call& call) {
  const View given = call.tensor(0), source = call.tensor(1);
  if (given.rank == 0) return call.refuse("the input is a scalar");
  const int dim = dim_of(call, call.integer(2), given.rank);
  int64_t index = call.integer(3);
  if (index < 0 && index >= -INT32_MAX) index += given.sizes[dim];
  if (index < 0 || index >= given.sizes[dim]) return call.refuse("the index is out of range");
  if (!call.ok()) return;
  View part = sliced(call.changed(given), dim, index, index + 1, 1);
  --part.rank;
  for (int d = dim; d < part.rank; ++d)
    part.sizes[d] = part.sizes[d + 1], part.strides[d] = part.strides[d + 1];
  put_into(call, part, source);
}

// (self, src): the elements of src, broadcast to the sizes of self
void copy_over(Call& call) {
  const View given = call.tensor(0), source = call.tensor(1);
  if (call.ok()) call.alias(0, broadcast(call.graph, source, given));
}

void split_sizes(Call& call) {
  const View in = call.tensor(0);
  const int dim = dim_of(call, call.integer(2, 0), in.rank);
  const Numbers sizes = call.numbers(1);
  if (in.rank == 0 || sizes.count != call.results())
    return call.refuse("the number of parts is not the number of results");
  int64_t at = 0;
  for (int i = 0; i < sizes.count; ++i) {
    if (sizes[i] < 0 || sizes[i] > in.sizes[dim] - at) return call.refuse("a part exceeds the dimension");
    call.alias(i, sliced(in, dim, at, at + sizes[i], 1));
    at += sizes[i];
  }
}

void split(Call& call) {
  const View in = call.tensor(0);
  const int dim = dim_of(call, call.integer(2, 0), in.rank);
  const int64_t size = call.integer(1);
  if (in.rank == 0 || size < 1 || size > INT32_MAX)
    return call.refuse("the size of the parts is not positive");
  for (int i = 0; i < call.results(); ++i)
    call.alias(
        i, sliced(in, dim, std::min(i * size, in.sizes[dim]), std::min((i + 1) * size, in.sizes[dim]), 1));
}

void unbind(Call& call) {
  const View in = call.tensor(0);
  const int dim = dim_of(call, call.integer(1, 0), in.rank);
  if (in.rank == 0 || in.sizes[dim] != call.results())
    return call.refuse("the number of parts is not the number of results");
  for (int i = 0; i < call.results(); ++i) {
    View out = in;
    out.offset += i * in.strides[dim];
    --out.rank;
    for (int d = dim; d < out.rank; ++d) out.sizes[d] = in.sizes[d + 1], out.strides[d] = in.strides[d + 1];
    call.alias(i, out);
  }
}

void flip(Call& call) {
  const View in = call.tensor(0);
  const Numbers dims = call.numbers(1);
  View out = in;
  for (int i = 0; i < dims.count; ++i) {
    const int d = dim_of(call, dims[i], in.rank);
    if (in.rank == 0 || in.sizes[d] == 0) continue;
    out.offset += (out.sizes[d] - 1) * out.strides[d];
    out.strides[d] = -out.strides[d];
  }
  call.alias(0, out);
}

void cat(Call& call) {
  std::vector<View> parts = call.tensors(0);
  // torch accepts empty vectors among tensors of any rank
  parts.erase(std::remove_if(parts.begin(), parts.end(),
                             [](const View& part) { return part.rank == 1 && part.sizes[0] == 0; }),
              parts.end());
  if (!call.ok() || parts.empty()) return call.refuse("there are no tensors to concatenate");
  const int dim = dim_of(call, call.integer(1, 0), parts[0].rank);
  if (!call.ok() || parts[0].rank == 0) return call.refuse("a concatenated tensor is a scalar");
  Numbers sizes = sizes_of(parts[0]);
  sizes.items[dim] = 0;
  for (const View& part : parts) {
    for (int d = 0; d < sizes.count; ++d)
      if (part.rank != sizes.count || (d != dim && part.sizes[d] != sizes[d]))
        return call.refuse("the sizes do not match");
    sizes.items[dim] += part.sizes[dim];
  }
  const View out = call.result(0, sizes);
  int64_t at = 0;
  for (const View& part : parts) {
    copy(call.graph, part, sliced(out, dim, at, at + part.sizes[dim], 1));
    at += part.sizes[dim];
  }
}

void stack(Call& call) {
  const std::vector<View> parts = call.tensors(0);
  if (!call.ok() || parts.empty()) return call.refuse("there are no tensors to concatenate");
  if (parts[0].rank == kMaxDims) return call.refuse("the result has more than eight dimensions");
  const int dim = dim_of(call, call.integer(1, 0), parts[0].rank + 1);
  Numbers sizes;
  sizes.count = parts[0].rank + 1;
  for (int d = 0; d < sizes.count; ++d)
    sizes.items[d] = d == dim ? static_cast<int64_t>(parts.size()) : parts[0].sizes[d < dim ? d : d - 1];
  const View out = call.result(0, sizes);
  View slot = out;
  --slot.rank;
  for (int d = dim; d < slot.rank; ++d)
    slot.sizes[d] = out.sizes[d + 1], slot.strides[d] = out.strides[d + 1];
  for (const View& part : parts) {
    for (int d = 0; d < slot.rank; ++d)
      if (part.rank != slot.rank || part.sizes[d] != slot.sizes[d])
        return call.refuse("the sizes do not match");
    copy(call.graph, part, slot);
    slot.offset += out.strides[dim];
  }
}

void repeat(Call& call) {
  const View in = call.tensor(0);
  const Numbers times = call.numbers(1);
  if (times.count < in.rank || 2 * times.count > kMaxDims + times.count)
    return call.refuse("the number of repetitions does not match the dimensions");
  Numbers sizes;
  sizes.count = times.count;
  const int more = times.count - in.rank;
  for (int d = 0; d < times.count; ++d) {
    if (times[d] < 0 || times[d] > INT32_MAX) return call.refuse("a repetition is out of range");
    sizes.items[d] = times[d] * (d < more ? 1 : in.sizes[d - more]);
  }
  const View out = call.result(0, sizes);
  if (!call.ok()) return;
  // input and output as (repetitions, size) for each dimension
  View from, to = out;
  from.storage = in.storage, from.kind = in.kind, from.offset = in.offset;
  from.rank = 0;
  for (int d = 0; d < times.count; ++d) {
    const int64_t size = d < more ? 1 : in.sizes[d - more], stride = d < more ? 0 : in.strides[d - more];
    for (const bool inner : {false, true}) {
      const int64_t length = inner ? size : times[d];
      if (length == 1) continue;
      if (from.rank == kMaxDims) return call.refuse("too many dimensions are repeated");
      from.sizes[from.rank] = to.sizes[from.rank] = length;
      from.strides[from.rank] = inner ? stride : 0;
      to.strides[from.rank++] = inner ? out.strides[d] : out.strides[d] * size;
    }
  }
  to.rank = from.rank;
  copy(call.graph, from, to);
}

void constant_pad(Call& call) {
  const View in = call.tensor(0);
  const Numbers pad = call.numbers(1);
  const double value = call.real(2, 0);
  if (pad.count % 2 != 0 || pad.count > 2 * in.rank)
    return call.refuse("the padding does not match the dimensions");
  Numbers sizes = sizes_of(in);
  View from = in;
  int64_t starts[kMaxDims]{};
  for (int i = 0; i < pad.count / 2; ++i) {
    const int d = in.rank - 1 - i;
    const int64_t before = pad[2 * i], after = pad[2 * i + 1];
    for (const int64_t it : {before, after})
      if (it < -INT32_MAX || it > INT32_MAX) return call.refuse("the padding is out of range");
    sizes.items[d] += before + after;
    if (sizes.items[d] < 0) return call.refuse("the result has a negative size");
    from = sliced(from, d, std::max<int64_t>(-before, 0), in.sizes[d] - std::max<int64_t>(-after, 0), 1);
    starts[d] = std::max<int64_t>(before, 0);
  }
  const View out = call.result(0, sizes);
  if (!call.ok()) return;
  fill(call.graph, out, value);
  View inside = out;
  for (int d = 0; d < in.rank; ++d) {
    inside.offset += starts[d] * out.strides[d];
    inside.sizes[d] = from.sizes[d];
  }
  copy(call.graph, from, inside);
}

void pixel_shuffle(Call& call) {
  const View in = contiguous(call.graph, call.tensor(0));
  const int64_t r = call.integer(1);
  if (in.rank < 3 || in.rank > 6 || r < 1 || r > 1024 || in.sizes[in.rank - 3] % (r * r) != 0)
    return call.refuse("the factor does not divide the sizes");
  Numbers sizes = sizes_of(in);
  const int c = in.rank - 3;
  sizes.items[c] /= r * r;
  sizes.items[c + 1] *= r;
  sizes.items[c + 2] *= r;
  const View out = call.result(0, sizes);
  View from = in, to = out;
  from.rank = to.rank = c + 5;
  const int64_t height = in.sizes[c + 1], width = in.sizes[c + 2];
  const int64_t from_sizes[] = {sizes[c], r, r, height, width};
  const int64_t from_strides[] = {r * r * height * width, r * height * width, height * width, width, 1};
  const int64_t to_strides[] = {height * r * width * r, width * r, 1, r * width * r, r};
  for (int i = 0; i < 5; ++i) {
    from.sizes[c + i] = to.sizes[c + i] = from_sizes[i];
    from.strides[c + i] = from_strides[i];
    to.strides[c + i] = to_strides[i];
  }
  copy(call.graph, from, to);
}

void unfold(Call& call) {
  View in = call.tensor(0);
  const bool is_number = in.rank == 0;
  if (is_number) in.rank = 1, in.sizes[0] = 1, in.strides[0] = 1;
  if (in.rank == kMaxDims) return call.refuse("the result has more than eight dimensions");
  const int dim = dim_of(call, call.integer(1), in.rank);
  const int64_t size = call.integer(2), step = call.integer(3);
  if (size < 0 || size > in.sizes[dim] || step < 1 || step > INT32_MAX)
    return call.refuse("the windows exceed the dimension");
  View out = in;
  out.sizes[dim] = (in.sizes[dim] - size) / step + 1;
  out.strides[dim] = in.strides[dim] * step;
  if (is_number) out.rank = 0;  // a scalar has one window, which is the result
  out.sizes[out.rank] = size;
  out.strides[out.rank++] = in.strides[dim];
  call.alias(0, out);
}

void sym_size(Call& call) {
  const View in = call.tensor(0);
  call.set_integer(in.size(dim_of(call, call.integer(1), in.rank)));
}
void nothing(Call&) {}
// arithmetic on sizes
void add(Call& call) {
  call.set_integer(int64_t{static_cast<int32_t>(call.integer(0))} + static_cast<int32_t>(call.integer(1)));
}
void sub(Call& call) {
  call.set_integer(int64_t{static_cast<int32_t>(call.integer(0))} - static_cast<int32_t>(call.integer(1)));
}
void mul(Call& call) {
  call.set_integer(int64_t{static_cast<int32_t>(call.integer(0))} * static_cast<int32_t>(call.integer(1)));
}
void floordiv(Call& call) {
  const int64_t a = call.integer(0), b = call.integer(1);
  if (b == 0 || b == -1) return call.refuse("it divides by zero or -1");
  call.set_integer(a / b - (a % b != 0 && (a < 0) != (b < 0)));
}

constexpr NamedOperator kTable[] = {
    {"aten.view.default", view},
    {"aten.view_copy.default", view},
    {"aten._unsafe_view.default", view},
    {"aten.reshape.default", view},
    {"aten.permute.default", permute},
    {"aten.permute_copy.default", permute},
    {"aten.t.default", t},
    {"aten.t_copy.default", t},
    {"aten.transpose.int", transpose},
    {"aten.transpose_copy.int", transpose},
    {"aten.unsqueeze.default", unsqueeze},
    {"aten.unsqueeze_copy.default", unsqueeze},
    {"aten.squeeze_copy.default", squeeze},
    {"aten.squeeze.dims", squeeze},
    {"aten.squeeze_copy.dim", squeeze},
    {"aten.squeeze_copy.dims", squeeze},
    {"aten.expand.default", expand},
    {"aten.expand_copy.default", expand},
    {"aten.select.int", select},
    {"aten.select_copy.int", select},
    {"aten.slice.Tensor", slice},
    {"aten.slice_copy.Tensor", slice},
    {"aten.split_with_sizes.default", split_sizes},
    {"aten.split_with_sizes_copy.default", split_sizes},
    {"aten.split.Tensor", split},
    {"aten.split_copy.Tensor", split},
    {"aten.unbind.int", unbind},
    {"aten.unbind_copy.int", unbind},
    {"aten.flip.default", flip},
    {"aten.slice_scatter.default", slice_scatter},
    {"aten.select_scatter.default", select_scatter},
    {"aten.copy.default", copy_over},
    {"aten.cat.default", cat},
    {"aten.stack.default", stack},
    {"aten.repeat.default", repeat},
    {"aten.constant_pad_nd.default", constant_pad},
    {"aten.pixel_shuffle.default", pixel_shuffle},
    {"aten.unfold.default", unfold},
    {"aten.unfold_copy.default", unfold},
    {"aten.sym_size.int", sym_size},
    {"sym_size.int", sym_size},
    {"aten._assert_scalar.default", nothing},
    {"_assert_scalar.default", nothing},
    {"aten.sym_constrain_range_for_size.default", nothing},
    {"sym_constrain_range_for_size.default", nothing},
    {"add", add},
    {"sub", sub},
    {"mul", mul},
    {"floordiv", floordiv},
};

}  // namespace

const Span<const NamedOperator> kShapes{kTable, sizeof(kTable) / sizeof(kTable[0])};

View transposed(const View& view, int a, int b) {
  View out = view;
  std::swap(out.sizes[a], out.sizes[b]);
  std::swap(out.strides[a], out.strides[b]);
  return out;
}

View reshaped(Graph& graph, const View& view, const Numbers& sizes) {
  View out = view;
  out.rank = sizes.count;
  memcpy(out.sizes, sizes.items, sizeof(out.sizes));
  if (view.numel() == 0) {
    out.make_contiguous_strides();
    return out;
  }
  // The dimensions are collapsed. The size of each collapsed dimension must be a product of new sizes.
  View joined = view;
  collapse({&joined}, kMaxDims);
  int d = sizes.count - 1;
  bool fits = true;
  for (int group = joined.rank - 1; group >= 0 && fits; --group) {
    int64_t left = joined.sizes[group], stride = joined.strides[group];
    while (left != 1 && fits) {
      fits = d >= 0 && out.sizes[d] != 0 && left % out.sizes[d] == 0;
      if (!fits) break;
      out.strides[d] = stride;
      stride *= out.sizes[d];
      left /= out.sizes[d];
      --d;
    }
  }
  for (; d >= 0 && fits; --d) out.strides[d] = 0, fits = out.sizes[d] == 1;
  if (fits) return out;
  const View dense = contiguous(graph, view);
  out.storage = dense.storage;
  out.offset = dense.offset;
  out.make_contiguous_strides();
  return out;
}

}  // namespace vulkan
}  // namespace torchette
