// SPDX-License-Identifier: BSD-3-Clause
// Matrix multiplications, linear layers, attention.
#include <cmath>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr int64_t kTile = 32;    // size of a tile of matmul.comp
constexpr int64_t kFewRows = 4;  // maximum rows for matvec.comp

/// Collapses the dimensions before the last two to at most two.
bool batches(std::initializer_list<View*> views, int64_t* outer, int64_t* inner) {
  for (View* view : views) view->rank -= 2;
  const bool fits = collapse(views, 2);
  const View& first = **views.begin();
  *outer = first.rank == 2 ? first.sizes[0] : 1;
  *inner = first.rank == 0 ? 1 : first.sizes[first.rank - 1];
  return fits;
}

Numbers product_sizes(Call& call, const View& a, const View& b) {
  Numbers sizes = sizes_of(a);
  if (a.rank < 2 || b.rank != a.rank || a.size(-1) != b.size(-2)) {
    call.refuse("the sizes of the matrices do not match");
    return Numbers();
  }
  sizes.items[sizes.count - 1] = b.size(-1);
  return sizes;
}

void product(Call& call) {
  const View a = call.tensor(0), b = call.tensor(1);
  const Numbers sizes = product_sizes(call, a, b);
  Epilogue then;
  const View out = call.result_with_epilogue(sizes, EpilogueOperand::kSameLayout, &then);
  matmul(call.graph, a, b, nullptr, out, 1, 1, Limits(), then);
}

void addmm(Call& call) {
  const View bias = call.tensor(0), a = call.tensor(1), b = call.tensor(2);
  const Numbers sizes = product_sizes(call, a, b);
  Epilogue then;
  const View out = call.result_with_epilogue(sizes, EpilogueOperand::kSameLayout, &then);
  matmul(call.graph, a, b, &bias, out, call.real(4, 1), call.real(3, 1), Limits(), then);
}

void linear(Call& call) {
  const View in = call.tensor(0), weight = call.tensor(1);
  if (in.rank < 1 || weight.rank != 2 || in.size(-1) != weight.sizes[1])
    return call.refuse("the sizes of the matrices do not match");
  Numbers sizes = sizes_of(in);
  sizes.items[sizes.count - 1] = weight.sizes[0];
  Epilogue then;
  const View out = call.result_with_epilogue(sizes, EpilogueOperand::kSameLayout, &then);
  // the rows of all matrices form one matrix
  Numbers flat, flat_out;
  flat.count = flat_out.count = 2;
  flat.items[1] = in.size(-1);
  flat_out.items[1] = weight.sizes[0];
  flat.items[0] = flat_out.items[0] = 1;
  for (int d = 0; d + 1 < in.rank; ++d) flat.items[0] *= in.sizes[d];
  flat_out.items[0] = flat.items[0];
  if (!call.ok()) return;
  View bias;
  if (call.has(2)) bias = call.tensor(2);
  matmul(call.graph, reshaped(call.graph, in, flat), transposed(weight, 0, 1), call.has(2) ? &bias : nullptr,
         reshaped(call.graph, out, flat_out), 1, 1, Limits(), then);
}

/// softmax(q @ k^T * scale + mask) @ v for (..., rows, width). k and v may have fewer heads than q.
void attend(Call& call, const View& q, View k, View v, const View* mask, bool causal, double scale,
            const View& out) {
  Graph& graph = call.graph;
  if (q.rank < 3 || k.rank != q.rank || v.rank != q.rank || k.size(-1) != q.size(-1) ||
      k.size(-2) != v.size(-2))
    return call.refuse("the sizes of queries, keys and values do not match");
  const int heads = q.rank - 3;
  for (View* it : {&k, &v}) {
    if (it->sizes[heads] == q.sizes[heads]) continue;
    if (it->sizes[heads] == 0 || q.sizes[heads] % it->sizes[heads] != 0)
      return call.refuse("the heads of the queries are not a multiple of those of the keys");
    if (it->rank == kMaxDims) return call.refuse("keys or values have eight dimensions");
    // Each key head serves several adjacent query heads: (heads, repetitions), then collapsed, without a copy
    // if possible.
    View spread = *it;
    for (int d = it->rank; d > heads + 1; --d)
      spread.sizes[d] = it->sizes[d - 1], spread.strides[d] = it->strides[d - 1];
    spread.rank = it->rank + 1;
    spread.sizes[heads + 1] = q.sizes[heads] / it->sizes[heads];
    spread.strides[heads + 1] = 0;
    Numbers sizes = sizes_of(*it);
    sizes.items[heads] = q.sizes[heads];
    *it = reshaped(graph, spread, sizes);
  }
  if (!graph.ok()) return;
  View scores = q;
  scores.kind = q.kind;
  scores.sizes[scores.rank - 1] = k.size(-2);
  scores = graph.scratch(scores);
  View added;
  if (mask != nullptr && mask->kind == Kind::kBool) {
    View numbers = *mask;
    numbers.kind = q.kind;
    numbers = graph.scratch(numbers);
    View zero = numbers, lowest = numbers;
    zero.rank = lowest.rank = 0;
    zero = graph.scratch(zero), lowest = graph.scratch(lowest);
    fill(graph, zero, 0);
    fill(graph, lowest, -INFINITY);
    pointwise(graph, "aten.where.self", {mask, &zero, &lowest}, numbers);
    added = numbers;
    mask = &added;
  }
  matmul(graph, q, transposed(k, k.rank - 2, k.rank - 1), mask, scores, scale, 1);
  if (causal) {
    Push push;
    push << scores.numel() << scores.size(-2) << scores.size(-1);
    // Torch's kernel for four dimensions ignores masked scores. It adds masks to scores of other ranks: NaN
    // remains.
    const bool adds = q.rank != 4;
    graph.dispatch(variant(scores.kind, causal_shader, causal_half_shader), {adds}, push, {&scores}, 1,
                   groups_for(scores.numel()));
  }
  const View weights = graph.scratch(scores);
  softmax(graph, scores, scores.rank - 1, SoftmaxMode::kSafe, weights);
  matmul(graph, weights, v, nullptr, out);
}

void attention_of(Call& call, bool causal, int scale_at) {
  const View q = call.tensor(0), k = call.tensor(1), v = call.tensor(2);
  View mask;
  if (call.has(3)) mask = call.tensor(3);
  Numbers sizes = sizes_of(q);
  if (sizes.count == 0) return call.refuse("queries have no dimensions");
  sizes.items[sizes.count - 1] = v.size(-1);
  const View out = call.result(0, sizes);
  attend(call, q, k, v, call.has(3) ? &mask : nullptr, causal,
         call.real(scale_at, 1 / std::sqrt(static_cast<double>(q.size(-1)))), out);
}
// (q, k, v, mask, dropout, causal, *, scale, enable_gqa)
void attention(Call& call) { attention_of(call, call.flag(5), 6); }
// (q, k, v, mask, scale)
void sdpa(Call& call) { attention_of(call, false, 4); }

/// x (..., inputs) with weights (outputs, inputs) or (outputs, inputs / 2), scales (groups, outputs) or
/// (outputs).
void linear_integer(Call& call, uint32_t bits, int64_t group, int bias_at) {
  Graph& graph = call.graph;
  const View given = call.tensor(0), weight = call.tensor(1), scale = call.tensor(2);
  const int64_t depth = given.size(-1), columns = weight.size(0);
  if (group == 0) group = depth;
  if (given.rank < 1 || weight.rank != 2 || (weight.kind != Kind::kInt && weight.kind != Kind::kByte) ||
      group < 1 || group > INT32_MAX || weight.sizes[1] != (bits == 4 ? (depth + 1) / 2 : depth) ||
      scale.numel() != (depth + group - 1) / group * columns)
    return call.refuse("the sizes of inputs, weights and scales do not match");
  Numbers sizes = sizes_of(given);
  sizes.items[sizes.count - 1] = columns;
  const View out = call.result(0, sizes);
  if (!call.ok() || out.numel() == 0) return;
  if (!is_float(out.kind)) return call.refuse("the result is not in floating point");
  const View none = out;
  // the shader ignores offsets
  const auto at_start = [&](const View& view, Kind kind) {
    const View same = converted(graph, view, kind);
    if (same.offset == 0 && same.is_contiguous()) return same;
    const View copied = graph.scratch(same);
    copy(graph, same, copied);
    return copied;
  };
  const View in = at_start(given, out.kind), weights = at_start(weight, weight.kind),
             scales = at_start(scale, out.kind);
  const bool has_bias = bias_at >= 0 && call.has(bias_at);
  const View bias = has_bias ? at_start(call.tensor(bias_at), out.kind) : none;
  if (has_bias && bias.numel() != columns)
    return call.refuse("the bias does not have one element for each output");
  Push push;
  push << out.numel() / columns << columns << depth << group;
  graph.dispatch(variant(out.kind, linear_integer_shader, linear_integer_half_shader),
                 {bits, has_bias, weight.kind == Kind::kByte}, push, {&in, &weights, &scales, &bias, &out},
                 16, out.numel());
}

// (self, mat2, scales); our compiler adds bias and group_size
void linear_8(Call& call) { linear_integer(call, 8, call.integer(4, 0), 3); }
// (self, weights, scales, group_size, bias)
void linear_4(Call& call) { linear_integer(call, 4, call.integer(3), 4); }

constexpr NamedOperator kTable[] = {
    {"aten.mm.default", product},
    {"aten.bmm.default", product},
    {"aten.addmm.default", addmm},
    {"aten.baddbmm.default", addmm},
    {"aten.linear.default", linear},
    {"aten.scaled_dot_product_attention.default", attention},
    {"et_vk.sdpa.default", sdpa},
    {"aten._weight_int8pack_mm.default", linear_8},
    {"et_vk.linear_q4gsw.default", linear_4},
};

}  // namespace

bool reads_bytes(Operator run) { return run == linear_8 || run == linear_4 || reads_bytes_of_filters(run); }

const Span<const NamedOperator> kMatmuls{kTable, sizeof(kTable) / sizeof(kTable[0])};

void matmul(Graph& graph, View a, View b, const View* bias, const View& out, double alpha, double beta,
            const Limits& limits, const Epilogue& then) {
  if (!graph.ok()) return;
  const int rank = out.rank;
  if (a.rank != rank || b.rank != rank || !is_float(out.kind)) return graph.fail(Error::NotSupported);
  a = converted(graph, a, out.kind);
  b = converted(graph, b, out.kind);
  View c = out;
  if (bias != nullptr) c = broadcast(graph, converted(graph, *bias, out.kind), out);
  if (!graph.ok()) return;
  const int64_t rows = out.sizes[rank - 2], columns = out.sizes[rank - 1], depth = a.sizes[rank - 1];
  View batch_a = a, batch_b = b, batch_c = c, batch_out = out;
  for (int d = 0; d + 2 < rank; ++d) {
    if (a.sizes[d] == 1) batch_a.strides[d] = 0;
    if (b.sizes[d] == 1) batch_b.strides[d] = 0;
    if ((a.sizes[d] != 1 && a.sizes[d] != out.sizes[d]) || (b.sizes[d] != 1 && b.sizes[d] != out.sizes[d]))
      return graph.fail(Error::DelegateInvalidCompatibility);
  }
  int64_t outer = 1, inner = 1;
  if (!batches({&batch_out, &batch_a, &batch_b, &batch_c}, &outer, &inner)) {
    a = contiguous(graph, a), b = contiguous(graph, b);
    batch_a = a, batch_b = b, batch_out = out, batch_c = contiguous(graph, c);
    if (bias != nullptr) c = batch_c;
    if (!batches({&batch_out, &batch_a, &batch_b, &batch_c}, &outer, &inner))
      return graph.fail(Error::NotSupported);
  }
  const auto outer_stride = [](const View& view) { return view.rank == 2 ? view.strides[0] : 0; };
  const auto inner_stride = [](const View& view) { return view.rank == 0 ? 0 : view.strides[view.rank - 1]; };
  Push push;
  push << rows << columns << depth << inner;
  push << a.offset << outer_stride(batch_a) << inner_stride(batch_a) << a.strides[rank - 2]
       << a.strides[rank - 1];
  push << b.offset << outer_stride(batch_b) << inner_stride(batch_b) << b.strides[rank - 2]
       << b.strides[rank - 1];
  push << c.offset << outer_stride(batch_c) << inner_stride(batch_c) << c.strides[rank - 2]
       << c.strides[rank - 1];
  push << alpha << beta << limits.low << limits.high << then.other.offset << then.p << then.q;
  const bool few = rows <= kFewRows;
  const Shader& shader = few ? variant(out.kind, matvec_shader, matvec_half_shader)
                             : variant(out.kind, matmul_shader, matmul_half_shader);
  const int64_t groups = few ? rows * columns : (rows + kTile - 1) / kTile * ((columns + kTile - 1) / kTile);
  graph.dispatch(shader, {bias != nullptr, then.has_other, then.operation, then.swapped}, push,
                 {&a, &b, bias != nullptr ? &c : &a, &out, then.has_other ? &then.other : &a}, 8, groups,
                 outer * inner);
}

}  // namespace vulkan
}  // namespace torchette
