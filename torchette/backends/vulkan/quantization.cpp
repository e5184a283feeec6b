// SPDX-License-Identifier: BSD-3-Clause
// Operators that quantize and dequantize.
#include <algorithm>

#include "torchette/backends/vulkan/operators.h"
#include "torchette/backends/vulkan/shaders.h"

namespace torchette {
namespace vulkan {
namespace {

/// Element i has the scale i / inner % channels.
struct Blocks {
  int64_t inner = 1, channels = 1;
};

/// Reads the sizes of the blocks that share a scale: the tensor, an index of a dimension, or a group of the
/// last dimension.
bool read_blocks(Call& call, const View& in, const Numbers& sizes, Blocks* out) {
  int single = -1, singles = 0;
  bool is_tensor = sizes.count == in.rank, is_row = is_tensor && in.rank > 0;
  for (int d = 0; d < sizes.count && sizes.count == in.rank; ++d) {
    const int64_t size = sizes[d] == -1 ? in.sizes[d] : sizes[d];
    if (size < 1 || in.sizes[d] % size != 0) is_tensor = is_row = false, singles = 2;
    if (d + 1 < in.rank) is_row = is_row && size == 1;
    if (size == in.sizes[d]) continue;
    is_tensor = false;
    if (size != 1) singles = 2;
    single = d;
    ++singles;
  }
  if (is_tensor) {
    out->inner = std::max<int64_t>(in.numel(), 1);
  } else if (is_row) {
    out->inner = sizes[in.rank - 1] == -1 ? in.sizes[in.rank - 1] : sizes[in.rank - 1];
    out->channels = in.numel() / out->inner;
  } else if (sizes.count == in.rank && singles == 1) {
    for (int d = single + 1; d < in.rank; ++d) out->inner *= in.sizes[d];
    out->channels = in.sizes[single];
  } else {
    call.refuse("the shape of the blocks is not supported");
  }
  return call.ok();
}

struct Scale {
  const View* scales = nullptr;
  const View* zeros = nullptr;
  double scale = 1, zero = 0, low = 0, high = 0;
};

void quantize(Call& call, bool back, const View& given, const Blocks& blocks, const Scale& by) {
  Graph& graph = call.graph;
  const View out = call.result_like(0, given);
  if (!call.ok() || given.numel() == 0) return;
  const View in = contiguous(graph, given);
  if (is_float(back ? in.kind : out.kind) || !is_float(back ? out.kind : in.kind))
    return call.refuse("it does not convert between floats and integers");
  const Kind real = back ? out.kind : in.kind;
  View scales = in, zeros = in;
  for (const bool zero : {false, true}) {
    const View* it = zero ? by.zeros : by.scales;
    if (it == nullptr) continue;
    if (it->numel() != blocks.channels)
      return call.refuse("the number of scales is not the number of blocks");
    (zero ? zeros : scales) = contiguous(graph, converted(graph, *it, zero ? Kind::kInt : real));
  }
  Push push;
  push << out.numel() << blocks.inner << blocks.channels << in.offset << scales.offset << zeros.offset
       << by.scale << by.zero << by.low << by.high;
  graph.dispatch(variant(real, quantize_shader, quantize_half_shader),
                 {back, static_cast<uint32_t>(in.kind), static_cast<uint32_t>(out.kind), by.scales != nullptr,
                  by.zeros != nullptr},
                 push, {&in, &scales, &zeros, &out}, 8, groups_for(out.numel()));
}

// (input, scale, zero_point, quant_min, quant_max, dtype). scale and zero_point are scalars or tensors.
template <bool kBack>
void per_tensor(Call& call) {
  const View in = call.tensor(0);
  const Blocks all{std::max<int64_t>(in.numel(), 1), 1};
  Scale by;
  View scales, zeros;
  by.low = call.real(3), by.high = call.real(4);
  if (call.is_tensor(1)) {
    scales = call.tensor(1), zeros = call.tensor(2);
    by.scales = &scales, by.zeros = &zeros;
  } else {
    by.scale = call.real(1), by.zero = call.real(2);
  }
  quantize(call, kBack, in, all, by);
}

// (input, scales, zero_points, axis, quant_min, quant_max, dtype)
template <bool kBack>
void per_channel(Call& call) {
  const View in = call.tensor(0), scales = call.tensor(1);
  const int axis = dim_of(call, call.integer(3), in.rank);
  if (!call.ok() || in.rank == 0) return call.refuse("the input is a scalar");
  Blocks blocks;
  for (int d = axis + 1; d < in.rank; ++d) blocks.inner *= in.sizes[d];
  blocks.channels = in.sizes[axis];
  View zeros;
  Scale by;
  by.scales = &scales, by.low = call.real(4), by.high = call.real(5);
  if (call.has(2)) zeros = call.tensor(2), by.zeros = &zeros;
  quantize(call, kBack, in, blocks, by);
}

// (input, block_size, scale, zero_point, dtype, quant_min, quant_max, ...)
template <bool kBack>
void affine(Call& call) {
  const View in = call.tensor(0), scales = call.tensor(2);
  Blocks blocks;
  if (!call.ok() || !read_blocks(call, in, call.numbers(1), &blocks)) return;
  View zeros;
  Scale by;
  by.scales = &scales, by.low = call.real(5, -128), by.high = call.real(6, 127);
  if (call.has(3)) zeros = call.tensor(3), by.zeros = &zeros;
  quantize(call, kBack, in, blocks, by);
}

// (input, mapping_type, block_size, target_dtype, quant_min, quant_max, eps, ...) -> scale, zero_point
void choose_qparams(Call& call) {
  Graph& graph = call.graph;
  const View given = call.tensor(0);
  Blocks blocks;
  if (!call.ok() || !read_blocks(call, given, call.numbers(2), &blocks)) return;
  const bool symmetric = call.is_text(1, "SYMMETRIC");
  if (blocks.inner * blocks.channels != given.numel() || (!symmetric && !call.is_text(1, "ASYMMETRIC")))
    return call.refuse("the blocks are not rows, or the mapping type is not supported");
  // A dimension that a block spans is dropped, or has size 1 if keepdim (argument 9) is true.
  Numbers sizes;
  for (int d = 0; d < given.rank; ++d) {
    const bool is_dropped = blocks.channels == 1 || (d == given.rank - 1 && given.size(-1) == blocks.inner);
    if (is_dropped && !call.flag(9)) continue;
    sizes.items[sizes.count++] = is_dropped            ? 1
                                 : d == given.rank - 1 ? given.size(-1) / blocks.inner
                                                       : given.sizes[d];
  }
  const View scales = call.result(0, sizes), zeros = call.result(1, sizes);
  if (!call.ok()) return;
  const View in = contiguous(graph, given);
  if (scales.kind != in.kind || !is_float(in.kind) || zeros.kind != Kind::kInt ||
      scales.numel() != blocks.channels)
    return call.refuse("the results have unsupported types or sizes");
  Push push;
  push << blocks.channels << blocks.inner << in.offset << call.real(4) << call.real(5)
       << call.real(6, 0x1p-23);
  graph.dispatch(variant(in.kind, choose_shader, choose_half_shader), {symmetric}, push,
                 {&in, &scales, &zeros}, 6, blocks.channels);
}

constexpr NamedOperator kTable[] = {
    {"quantized_decomposed.quantize_per_tensor.default", per_tensor<false>},
    {"quantized_decomposed.quantize_per_tensor.tensor", per_tensor<false>},
    {"quantized_decomposed.dequantize_per_tensor.default", per_tensor<true>},
    {"quantized_decomposed.dequantize_per_tensor.tensor", per_tensor<true>},
    {"quantized_decomposed.quantize_per_channel.default", per_channel<false>},
    {"quantized_decomposed.dequantize_per_channel.default", per_channel<true>},
    {"torchao.quantize_affine.default", affine<false>},
    {"torchao.dequantize_affine.default", affine<true>},
    {"torchao.choose_qparams_affine.default", choose_qparams},
};

}  // namespace

const Span<const NamedOperator> kQuantization{kTable, sizeof(kTable) / sizeof(kTable[0])};

}  // namespace vulkan
}  // namespace torchette
