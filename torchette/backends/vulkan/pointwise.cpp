// SPDX-License-Identifier: BSD-3-Clause
// Operators of pointwise.def, and operators that fill and copy elements.
#include <algorithm>
#include <cmath>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

enum class Computes { k_same, k_float, k_int, k_bool };
struct Row {
  const char* name;
  const char* arguments;  // as in pointwise.def
  Computes computes;
};
constexpr Row kRows[] = {
#include "torchette/backends/vulkan/pointwise_table.inc"
};
constexpr int kMaxPointwiseDims = 6;

/// An argument of a row: a letter, and the required text or the value that replaces None.
struct Argument {
  char letter = 0;
  Span<const char> detail;
};

/// Reads the next word and moves `at` behind it. Returns false at the end.
bool next(const char*& at, Argument* out) {
  while (*at == ' ') ++at;
  if (*at == 0) return false;
  const char* end = at;
  while (*end != 0 && *end != ' ') ++end;
  out->letter = *at;
  const ptrdiff_t skip = *at == '\'' ? 1 : 2;  // 'text' or p=value
  out->detail = end - at > skip ? Span<const char>(at + skip, static_cast<size_t>(end - at - skip))
                                : Span<const char>();
  if (*at == '\'') out->detail = {at + 1, static_cast<size_t>(end - at - 2)};
  at = end;
  return true;
}

double parse_number(Span<const char> text) {
  const bool negative = !text.empty() && text[0] == '-';
  double value = 0, scale = 0;
  for (size_t i = negative; i < text.size(); ++i) {
    if (text[i] == 'i') return negative ? -INFINITY : INFINITY;
    if (text[i] == '.') {
      scale = 1;
      continue;
    }
    value = value * 10 + (text[i] - '0');
    scale *= 10;
  }
  value = scale > 0 ? value / scale : value;
  return negative ? -value : value;
}

bool is_text(const Call& call, int i, Span<const char> text) {
  char expected[16];
  if (text.size() >= sizeof(expected)) return false;
  memcpy(expected, text.data(), text.size());
  expected[text.size()] = 0;
  return call.is_text(i, expected);
}

/// The row with the name and the text arguments of the call, or null.
const Row* row_of(const Call& call) {
  for (const Row& row : kRows) {
    if (strcmp(row.name, call.name()) != 0) continue;
    bool fits = true;
    const char* at = row.arguments;
    Argument argument;
    for (int i = 0; next(at, &argument); ++i)
      if (argument.letter == '\'') fits = fits && is_text(call, i, argument.detail);
    if (fits) return &row;
  }
  return nullptr;
}

uint32_t word_of(double number, bool is_integer) {
  if (is_integer)
    return static_cast<uint32_t>(static_cast<int32_t>(std::min(std::max(number, -0x1p31), 0x1.fffffffcp30)));
  const auto real = static_cast<float>(std::fabs(number) > 3.4028234663852886e38 && !std::isinf(number)
                                           ? std::copysign(3.4028234663852886e38, number)
                                           : number);
  uint32_t bits;
  memcpy(&bits, &real, 4);
  return bits;
}

void run(Graph& graph, const Row& row, const View* operands, int count, const View& out, bool is_integer,
         double p, double q, const Epilogue& then = Epilogue()) {
  if (!graph.ok()) return;
  View given[3], views[3], target = out;
  bool is_elementwise = true, is_half = out.kind == Kind::kHalf;
  for (int i = 0; i < 3; ++i) {  // absent operands are bound to the first operand
    given[i] = i < count ? operands[i] : i == 2 && then.has_other ? then.other : operands[0];
    views[i] = broadcast(graph, given[i], out);
    is_elementwise = is_elementwise && given[i].numel() == out.numel() && views[i].is_contiguous();
    is_half = is_half || given[i].kind == Kind::kHalf;
  }
  if (!graph.ok()) return;
  int rank = 0;
  if (!is_elementwise) {
    if (!collapse({&target, &views[0], &views[1], &views[2]}, kMaxPointwiseDims)) {
      for (int i = 0; i < 3; ++i) given[i] = views[i] = contiguous(graph, broadcast(graph, given[i], out));
      target = out;
      if (!collapse({&target, &views[0], &views[1], &views[2]}, kMaxPointwiseDims))
        return graph.fail(Error::NotSupported);
    }
    rank = std::max(target.rank, 1);
    if (target.rank == 0)
      for (View* view : {&target, &views[0], &views[1], &views[2]}) view->sizes[0] = 1, view->strides[0] = 0;
  }
  Push push;
  push << out.numel();
  for (int d = 0; d < kMaxPointwiseDims; ++d) push << (d < rank ? target.sizes[d] : 1);
  for (const View& view : views)
    for (int d = 0; d < kMaxPointwiseDims; ++d) push << (d < rank ? view.strides[d] : 0);
  for (const View& view : views) push << view.offset;
  push << word_of(p, is_integer) << word_of(q, is_integer) << then.p << then.q;
  const auto kind = [](const View& view) { return static_cast<uint32_t>(view.kind); };
  graph.dispatch(is_half ? pointwise_half_shader : pointwise_shader,
                 {static_cast<uint32_t>(&row - kRows) + 1, is_integer, kind(given[0]), kind(given[1]),
                  kind(given[2]), kind(out), static_cast<uint32_t>(rank), then.operation, then.swapped},
                 push, {&given[0], &given[1], &given[2], &out}, 8, groups_for(out.numel()));
}

Numbers broadcast_sizes(Call& call, const View* views, int count) {
  Numbers sizes;
  for (int i = 0; i < count; ++i) sizes.count = std::max(sizes.count, views[i].rank);
  for (int d = 0; d < sizes.count; ++d) {
    int64_t size = 1;
    for (int i = 0; i < count; ++i) {
      const int own_dim = d - (sizes.count - views[i].rank);
      if (own_dim < 0 || views[i].sizes[own_dim] == 1) continue;
      if (size != 1 && size != views[i].sizes[own_dim]) call.refuse("the sizes do not broadcast");
      size = views[i].sizes[own_dim];
    }
    sizes.items[d] = size;
  }
  return sizes;
}

/// The scalar arguments of a call, and the indices of its tensors.
struct Arguments {
  const Row* row = nullptr;
  int tensors[3]{}, count = 0;
  double p = 0, q = 0;
  bool has_integer_scalars = true;  // all scalar arguments are integers
};

/// Returns the reason why the backend cannot run the call, or null.
const char* read_arguments(Call& call, Arguments* out) {
  out->row = row_of(call);
  if (out->row == nullptr) return "the mode is not supported";
  const char* at = out->row->arguments;
  Argument argument;
  for (int i = 0; next(at, &argument); ++i) {
    switch (argument.letter) {
      case 'p':
      case 'q':
        if (call.is_tensor(i)) return "a scalar argument is a tensor";
        (argument.letter == 'p' ? out->p : out->q) =
            argument.detail.empty() ? call.real(i) : call.real(i, parse_number(argument.detail));
        out->has_integer_scalars = out->has_integer_scalars && !call.is_real(i);
        break;
      case 'c':
      case 'x':
      case 'y':
      case 'z':
        if (!call.is_tensor(i)) return "an operand is not a tensor";
        out->tensors[out->count++] = i;
        break;
      default:
        break;
    }
  }
  return nullptr;
}

void pointwise_call(Call& call) {
  Arguments it;
  if (const char* why = read_arguments(call, &it)) return call.refuse(why);
  View operands[3];
  bool is_integer = it.row->computes != Computes::k_float && it.has_integer_scalars;
  for (int i = 0; i < it.count; ++i) {
    operands[i] = call.tensor(it.tensors[i]);
    const bool is_condition = i == 0 && it.row->arguments[0] == 'c';
    is_integer = is_integer && (is_condition || !is_float(operands[i].kind));
  }
  if (it.row->computes == Computes::k_int && !is_integer) return call.refuse("the operands must be integers");
  const Numbers sizes = broadcast_sizes(call, operands, it.count);
  Epilogue then;
  const View out = is_integer
                       ? call.result(0, sizes)
                       : call.result_with_epilogue(
                             sizes, it.count < 3 ? EpilogueOperand::kStrided : EpilogueOperand::kNone, &then);
  if (!call.ok()) return;
  if (it.row->computes == Computes::k_same && is_float(out.kind) && is_integer)
    is_integer = false;  // the payload declares a float result
  run(call.graph, *it.row, operands, it.count, out, is_integer, it.p, it.q, then);
}

// Copies elements between views of equal sizes and any strides.
void copy_shader_call(Graph& graph, View from, View to) {
  if (!graph.ok()) return;
  const View from_view = from, to_view = to;
  collapse({&to, &from}, kMaxDims);
  Push push;
  push << to_view.numel();
  for (int d = 0; d < kMaxDims; ++d) push << (d < to.rank ? to.sizes[d] : 1);
  for (int d = 0; d < kMaxDims; ++d) push << (d < to.rank ? from.strides[d] : 0);
  for (int d = 0; d < kMaxDims; ++d) push << (d < to.rank ? to.strides[d] : 0);
  push << from.offset << to.offset;
  const bool is_half = from.kind == Kind::kHalf || to.kind == Kind::kHalf;
  graph.dispatch(
      is_half ? copy_half_shader : copy_shader,
      {static_cast<uint32_t>(from.kind), static_cast<uint32_t>(to.kind), static_cast<uint32_t>(to.rank)},
      push, {&from_view, &to_view}, 2, groups_for(to_view.numel()));
}

// aten.clone, aten._to_copy, dim_order_ops: the same elements, possibly converted to another type
void same(Call& call) { call.alias(0, call.tensor(0)); }

void full(Call& call) { fill(call.graph, call.result(0, call.numbers(0)), call.real(1)); }
void full_like(Call& call) { fill(call.graph, call.result_like(0, call.tensor(0)), call.real(1)); }
void scalar_tensor(Call& call) { fill(call.graph, call.result(0, Numbers()), call.real(0)); }
void zeros(Call& call) { fill(call.graph, call.result(0, call.numbers(0)), 0); }
void ones(Call& call) { fill(call.graph, call.result(0, call.numbers(0)), 1); }
void zeros_like(Call& call) { fill(call.graph, call.result_like(0, call.tensor(0)), 0); }
void ones_like(Call& call) { fill(call.graph, call.result_like(0, call.tensor(0)), 1); }

void arange(Call& call) {
  const double start = call.real(0), end = call.real(1), step = call.real(2, 1);
  const double count = std::ceil((end - start) / step);
  if (!(count >= 0 && count < 0x1p31)) return call.refuse("the number of elements is negative or too large");
  Numbers sizes;
  sizes.count = 1;
  sizes.items[0] = static_cast<int64_t>(count);
  fill(call.graph, call.result(0, sizes), start, step);
}

void bitwise_not(Call& call) {
  const View in = call.tensor(0), out = call.result_like(0, in);
  if (!call.ok()) return;
  if (is_float(in.kind) || out.kind != in.kind) return call.refuse("the operands must be integers");
  if (in.kind == Kind::kBool) return pointwise(call.graph, "aten.logical_not.default", {&in}, out);
  View ones = in;
  ones.rank = 0;
  ones = call.graph.scratch(ones);
  fill(call.graph, ones, -1);
  pointwise(call.graph, "aten.bitwise_xor.Tensor", {&in, &ones}, out);
}

constexpr NamedOperator kOthers[] = {
    {"aten.bitwise_not.default", bitwise_not},
    {"aten.clone.default", same},
    {"aten.alias_copy.default", same},
    {"aten._to_copy.default", same},
    {"aten.detach.default", same},
    {"aten.detach_copy.default", same},
    {"dim_order_ops._to_dim_order_copy.default", same},
    {"dim_order_ops._clone_dim_order.default", same},
    {"et_vk.prepack.default", same},
    {"aten.full.default", full},
    {"aten.full_like.default", full_like},
    {"aten.scalar_tensor.default", scalar_tensor},
    {"aten.zeros.default", zeros},
    {"aten.ones.default", ones},
    {"aten.zeros_like.default", zeros_like},
    {"aten.ones_like.default", ones_like},
    {"aten.arange.start_step", arange},
};

constexpr size_t kRowCount = sizeof(kRows) / sizeof(kRows[0]),
                 kOtherCount = sizeof(kOthers) / sizeof(kOthers[0]);
struct Table {
  NamedOperator items[kRowCount + kOtherCount];
};
constexpr Table make_table() {
  Table table{};
  for (size_t i = 0; i < kRowCount; ++i) table.items[i] = {kRows[i].name, pointwise_call};
  for (size_t i = 0; i < kOtherCount; ++i) table.items[kRowCount + i] = kOthers[i];
  return table;
}
constexpr Table kTable = make_table();

}  // namespace

const Span<const NamedOperator> kPointwise{kTable.items, kRowCount + kOtherCount};

bool as_epilogue(Call& call, const View& result, int index, EpilogueOperand operand, Epilogue* out) {
  Arguments it;
  if (!call.ok() || read_arguments(call, &it) != nullptr || call.results() != 1 ||
      call.result_kind(0) != result.kind ||
      (it.row->computes != Computes::k_same && it.row->computes != Computes::k_float) ||
      it.row->arguments[0] == 'c' || it.count > 2)
    return false;
  out->swapped = it.count == 2 && call.value_index(it.tensors[0]) != index;
  if (call.value_index(it.tensors[out->swapped ? 1 : 0]) != index) return false;
  out->has_other = it.count == 2;
  if (out->has_other) {
    const int index_of_other = it.tensors[out->swapped ? 0 : 1];
    if (operand == EpilogueOperand::kNone || !call.is_computed(index_of_other)) return false;
    out->other = call.tensor(index_of_other);
    bool same = out->other.rank == result.rank;
    for (int i = 1; i <= out->other.rank; ++i) {
      if (i > result.rank) return false;
      const int64_t own_dim = out->other.sizes[out->other.rank - i], size = result.sizes[result.rank - i];
      if (own_dim != size && own_dim != 1) return false;
      same = same && own_dim == size;
    }
    if (operand == EpilogueOperand::kSameLayout &&
        (!same || !out->other.is_contiguous() || out->other.kind != result.kind))
      return false;
  }
  out->p = word_of(it.p, false);
  out->q = word_of(it.q, false);
  out->operation = static_cast<uint32_t>(it.row - kRows) + 1;
  return true;
}

void pointwise(Graph& graph, const char* name, std::initializer_list<const View*> operands, const View& out,
               double p, double q) {
  View views[3];
  int count = 0;
  bool is_integer = !is_float(out.kind);
  for (const View* view : operands) {
    is_integer = is_integer && !is_float(view->kind);
    views[count++] = *view;
  }
  for (const Row& row : kRows)
    if (strcmp(row.name, name) == 0)
      return run(graph, row, views, count, out, is_integer && row.computes != Computes::k_float, p, q);
  graph.fail(Error::Internal);
}

void fill(Graph& graph, const View& out, double p, double q) {
  const bool is_integer = !is_float(out.kind);
  Push push;
  push << out.numel() << word_of(p, is_integer) << word_of(q, is_integer);
  graph.dispatch(variant(out.kind, fill_shader, fill_half_shader), {static_cast<uint32_t>(out.kind)}, push,
                 {&out}, 1, groups_for(out.numel()));
}

void copy(Graph& graph, const View& from, const View& to) { copy_shader_call(graph, from, to); }

View broadcast(Graph& graph, const View& view, const View& to) {
  View out = to;
  out.storage = view.storage;
  out.kind = view.kind;
  out.offset = view.offset;
  const int more = to.rank - view.rank;
  for (int d = 0; d < to.rank; ++d) {
    const int own_dim = d - more;
    if (own_dim < 0) {
      out.strides[d] = 0;
    } else if (view.sizes[own_dim] == to.sizes[d]) {
      out.strides[d] = view.strides[own_dim];
    } else if (view.sizes[own_dim] == 1) {
      out.strides[d] = 0;
    } else {
      graph.fail(Error::DelegateInvalidCompatibility);
    }
  }
  if (more < 0) graph.fail(Error::DelegateInvalidCompatibility);
  return out;
}

View converted(Graph& graph, const View& view, Kind kind) {
  if (view.kind == kind) return view;
  View like = view;
  like.kind = kind;
  const View out = graph.scratch(like);
  copy(graph, view, out);
  return out;
}

}  // namespace vulkan
}  // namespace torchette
