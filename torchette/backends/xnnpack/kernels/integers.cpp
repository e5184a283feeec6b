// SPDX-License-Identifier: BSD-3-Clause
// Quantized values: reads their scales, converts them for nodes that compute in float32, and packs integer
// weights.
#include <cmath>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"

namespace torchette {
namespace xnnpack {
namespace {

using Type = fb::XNNDatatype;

constexpr size_t kNumByteValues = 256;  // the number of 8-bit values

/// Whether XNNPACK accepts a scale: its inverse, and its product with an 8-bit integer, must be finite.
bool is_scale(float scale) { return scale >= 1.17549435e-38f && scale <= 3.4e36f; }

bool is_signed(const Slot& slot) { return slot.quantization.type != Type::xnn_datatype_quint8; }

}  // namespace

Error GraphReader::read_quantization(const ValueRecord& record, Slot* slot) {
  using Q = fb::XNNQuantParams;
  Quantization& quantization = slot->quantization;
  const Table q = record.outer.table(fb::XNNQuantizedTensorValue::kQuantParams);
  const auto kind = record.outer.get<Q>(fb::XNNQuantizedTensorValue::kQuantParamsType);
  const bool has_one_scale = slot->is_8_bit() || quantization.type == Type::xnn_datatype_qint32;
  const bool is_dynamic = quantization.type == Type::xnn_datatype_qdint8,
             is_grouped = quantization.type == Type::xnn_datatype_qbint4;
  const Q expected = has_one_scale ? Q::PerTensorQuant
                     : is_dynamic  ? Q::PerTokenDynamicQuant
                     : is_grouped  ? Q::PerChannelGroupQuant
                                   : Q::PerChannelQuant;
  TORCHETTE_CHECK(kind == expected, DelegateInvalidCompatibility,
                  "value %u has scales of kind %u, its type requires %u", record.id,
                  static_cast<unsigned>(kind), static_cast<unsigned>(expected));
  const bool is_constant = record.constant != 0;
  TORCHETTE_CHECK(slot->is_8_bit() || is_constant != is_dynamic, NotSupported,
                  "value %u of XNNPACK's graph has a type for constants but is computed, or reversely",
                  record.id);
  const size_t rank = slot->rank;
  if (has_one_scale) {
    quantization.scale = q.get<float>(fb::PerTensorQuant::kScale);
    quantization.zero_point = q.get<int32_t>(fb::PerTensorQuant::kZeroPoint);
    const int32_t low = slot->is_8_bit() && is_signed(*slot) ? INT8_MIN : 0;
    const int32_t high = slot->is_8_bit() ? low + UINT8_MAX : 0;
    TORCHETTE_CHECK(
        is_scale(quantization.scale) && quantization.zero_point >= low && quantization.zero_point <= high,
        DelegateInvalidCompatibility, "value %u has the scale %g and the zero point %d", record.id,
        static_cast<double>(quantization.scale), static_cast<int>(quantization.zero_point));
    return Error::Ok;
  }
  if (is_dynamic) {
    quantization.row_dims = q.get<int32_t>(fb::PerTokenDynamicQuant::kNumNonbatchDims);
    TORCHETTE_CHECK(quantization.row_dims > 0 && static_cast<size_t>(quantization.row_dims) <= rank &&
                        !record.is_argument(),
                    DelegateInvalidCompatibility, "value %u is quantized over its last %d dimensions of %zu",
                    record.id, static_cast<int>(quantization.row_dims), rank);
    return Error::Ok;
  }
  using C = fb::PerChannelQuant;
  using G = fb::PerChannelGroupQuant;
  const auto dim = q.get<int32_t>(is_grouped ? G::kChannelDim : C::kChannelDim);
  const auto group = is_grouped ? q.get<int32_t>(G::kGroupSize) : 0;
  TORCHETTE_CHECK(dim >= 0 && static_cast<size_t>(dim) < rank, DelegateInvalidCompatibility,
                  "value %u has channels in dimension %d of %zu", record.id, static_cast<int>(dim), rank);
  TORCHETTE_CHECK(!is_grouped || (rank == 2 && group > 0 && slot->sizes[1 - dim] % group == 0),
                  DelegateInvalidCompatibility, "value %u has groups of %d elements", record.id,
                  static_cast<int>(group));
  quantization.channel_dim = static_cast<uint32_t>(dim);
  quantization.group = static_cast<uint32_t>(group);
  const size_t groups = is_grouped ? size(slot, static_cast<size_t>(1 - dim)) / quantization.group : 1;
  const size_t count = size(slot, quantization.channel_dim) * groups;  // at most the number of elements
  const size_t item = is_grouped ? sizeof(uint16_t) : sizeof(float);
  const Span<const float> here = is_grouped ? Span<const float>() : q.vector<float>(C::kScale);
  if (here.size() != 0) {
    TORCHETTE_CHECK(here.size() >= count, DelegateInvalidCompatibility,
                    "value %u has %zu scales, expected %zu", record.id, here.size(), count);
    quantization.scales = here.data();
  } else {
    Span<const char> key;
    const auto index = q.get<uint32_t>(is_grouped ? G::kScaleBufferIdx : C::kScaleBufferIdx);
    TORCHETTE_TRY(payload_.constant(index, count * item, &quantization.scales, &slot->scale_bytes, &key));
  }
  TORCHETTE_CHECK(reinterpret_cast<uintptr_t>(quantization.scales) % item == 0, DelegateInvalidCompatibility,
                  "the scales of value %u are misaligned", record.id);
  for (size_t i = 0; i < count; ++i) {
    const float scale = scale_at(*slot, i / groups, i % groups);
    TORCHETTE_CHECK(is_scale(scale), DelegateInvalidCompatibility, "value %u has the scale %g at index %zu",
                    record.id, static_cast<double>(scale), i);
  }
  return Error::Ok;
}

float scale_at(const Slot& slot, size_t channel, size_t group) {
  const Quantization& quantization = slot.quantization;
  if (quantization.scales == nullptr) return quantization.scale;
  if (quantization.group == 0) return static_cast<const float*>(quantization.scales)[channel];
  const auto groups = static_cast<size_t>(slot.sizes[1 - quantization.channel_dim]) / quantization.group;
  return static_cast<const BFloat16*>(quantization.scales)[channel * groups + group];
}

int32_t integer_at(const Slot& slot, size_t i) {
  switch (slot.type) {
    case ScalarType::Char:
      return static_cast<const int8_t*>(slot.data)[i];
    case ScalarType::Byte:
      return static_cast<const uint8_t*>(slot.data)[i];
    case ScalarType::Int:
      return static_cast<const int32_t*>(slot.data)[i];
    default: {
      // Two elements in a byte, the first in the low bits, each with an offset of 8. A row starts at a byte.
      const auto last = static_cast<uint32_t>(slot.sizes[slot.rank - 1]);
      const auto row = last % 2 == 0 ? 0 : static_cast<uint32_t>(i) / last;
      const auto at = static_cast<uint32_t>(i) + row;  // one element of padding for each row before
      return (static_cast<const uint8_t*>(slot.data)[at / 2] >> (at % 2 * 4) & 15) - 8;
    }
  }
}

int64_t quantize_value(const Slot& slot, double real) {
  const int64_t low = is_signed(slot) ? INT8_MIN : 0, high = low + UINT8_MAX;
  const double whole =
      std::rint(real / static_cast<double>(slot.quantization.scale)) + slot.quantization.zero_point;
  return whole >= static_cast<double>(high) ? high
         : whole > static_cast<double>(low) ? static_cast<int64_t>(whole)
                                            : low;
}

int64_t quantized_min(const Slot& slot, const Limits& limits) {
  return quantize_value(slot, double{limits.low});
}

int64_t quantized_max(const Slot& slot, const Limits& limits) {
  const double high = limits.high;
  return quantize_value(slot, high == high ? high : INFINITY);
}

bool has_integer_kernel(const Slot& in, const Slot& weights, const Slot* bias, const Slot& out,
                        uint32_t outputs_dim, uint64_t inputs) {
  const bool is_of_channels = weights.quantization.type == Type::xnn_datatype_qcint8;
  return in.is_8_bit() && out.is_8_bit() && weights.is_constant() && weights.type == ScalarType::Char &&
         weights.quantization.zero_point == 0 &&
         (!is_of_channels || weights.quantization.channel_dim == outputs_dim) &&
         (bias == nullptr || (bias->is_constant() && bias->type == ScalarType::Int)) &&
         inputs <= kMaxIntegerDepth;
}

Error GraphReader::to_float(Slot** slot) {
  Slot* const from = *slot;
  if (from == nullptr || from->is_float()) return Error::Ok;
  if (from->source != nullptr) {
    *slot = from->float_value;
    if (*slot != nullptr) return Error::Ok;
    *slot = from->float_value =
        temporary(sizes_of(from->source));  // quantized like the library: an image of ExecuTorch is one row
    return call(kRoundRows, {from->source, int64_t{from->quantization.row_dims}, *slot});
  }
  if (from->type == ScalarType::Half) return half_to_float(slot);
  if (!from->is_constant()) {
    *slot = temporary(sizes_of(from));
    return call("cpu::dequantize.out",
                {from, double{from->quantization.scale}, int64_t{from->quantization.zero_point}, *slot});
  }
  *slot = new_constant(sizes_of(from));
  TORCHETTE_CHECK(*slot != nullptr, MemoryAllocationFailed, "cannot allocate a constant of XNNPACK's graph");
  auto* const to = static_cast<float*>((*slot)->data);
  size_t inner = 1;  // stride of the channel dimension
  for (size_t d = from->quantization.channel_dim + size_t{1}; d < from->rank; ++d) inner *= size(from, d);
  const size_t channels =
      from->quantization.scales == nullptr ? 1 : size(from, from->quantization.channel_dim);
  const size_t group_size = from->quantization.group == 0 ? SIZE_MAX : from->quantization.group;
  for (size_t i = 0; i < from->numel; ++i) {
    const size_t channel = i / inner % channels;
    const size_t other = from->quantization.channel_dim == 0 ? i % inner : i / inner / channels;
    to[i] = static_cast<float>(integer_at(*from, i) - from->quantization.zero_point) *
            scale_at(*from, channel, other / group_size);
  }
  return Error::Ok;
}

Error GraphReader::half_to_float(Slot** slot) {
  Slot* const from = *slot;
  *slot = from->float_value;
  if (*slot != nullptr) return Error::Ok;
  if (!from->is_constant()) {
    *slot = temporary(sizes_of(from));
    return call(kConvert, {from, false, Argument(), *slot});
  }
  *slot = from->float_value = new_constant(sizes_of(from));
  TORCHETTE_CHECK(*slot != nullptr, MemoryAllocationFailed, "cannot allocate a constant of XNNPACK's graph");
  const auto* const halves = static_cast<const Half*>(from->data);
  for (size_t i = 0; i < from->numel; ++i)
    static_cast<float*>((*slot)->data)[i] = static_cast<float>(halves[i]);
  return Error::Ok;
}

Error GraphReader::quantize_rows(const char* kernel, Slot* slot, Slot** quantized, Slot** row_scales) {
  constexpr double kSteps = 255.0, kMinScale = 1e-37;  // the minimum scale is that of a row of zeros
  if (slot->quantized == nullptr) {
    uint32_t sizes[kMaxDims];
    for (size_t d = 0; d < slot->rank; ++d) sizes[d] = size(slot, d);
    sizes[slot->rank - 1] = 2;
    slot->quantized = temporary(sizes_of(slot), ScalarType::Char);
    slot->row_scales = temporary({sizes, slot->rank});
    TORCHETTE_TRY(call(kernel, {slot->source, int64_t{INT8_MIN}, int64_t{INT8_MAX}, kSteps, kMinScale, false,
                                false, slot->quantized, slot->row_scales}));
  }
  *quantized = slot->quantized;
  *row_scales = slot->row_scales;
  return Error::Ok;
}

Error GraphReader::float_result(Slot** slot) {
  if ((*slot)->is_float()) return Error::Ok;
  converted_result_ = *slot;
  *slot = float_result_ = temporary(sizes_of(converted_result_));
  return Error::Ok;
}

Error GraphReader::float_input(const Table& n, uint16_t slot, Slot** out, bool optional) {
  TORCHETTE_TRY(input(n, slot, out, optional));
  return to_float(out);
}

Error GraphReader::float_output(const Table& n, uint16_t slot, Slot** out) {
  TORCHETTE_TRY(output(n, slot, out));
  return float_result(out);
}

Error GraphReader::unary_operands(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out) {
  TORCHETTE_TRY(input(n, from, in));
  TORCHETTE_TRY(output(n, to, out));
  return use_table(in, out);
}

Error GraphReader::use_table(Slot** in, Slot** out) {
  static constexpr uint32_t kAll[] = {kNumByteValues};
  const Slot& read = **in;
  if (!read.is_8_bit() || !(*out)->is_8_bit() || read.numel <= kNumByteValues) {
    TORCHETTE_TRY(to_float(in));
    return float_result(out);
  }
  table_indices_ = *in;
  converted_result_ = *out;
  *out = float_result_ = temporary(kAll);
  *in = new_constant(kAll);
  TORCHETTE_CHECK(*in != nullptr, MemoryAllocationFailed, "cannot allocate a table of XNNPACK's graph");
  for (size_t i = 0; i < kNumByteValues; ++i) {
    const auto whole = is_signed(read) ? static_cast<int8_t>(i) : static_cast<int32_t>(i);
    static_cast<float*>((*in)->data)[i] =
        static_cast<float>(whole - read.quantization.zero_point) * read.quantization.scale;
  }
  return Error::Ok;
}

bool has_equal_quantization(const Slot& a, const Slot& b) {
  return (a.is_float() && b.is_float()) || (a.is_8_bit() && a.quantization.type == b.quantization.type &&
                                            a.quantization.zero_point == b.quantization.zero_point &&
                                            a.quantization.scale == b.quantization.scale);
}

Error GraphReader::moved_operands(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out) {
  TORCHETTE_TRY(input(n, from, in));
  TORCHETTE_TRY(output(n, to, out));
  if (has_equal_quantization(**in, **out)) return Error::Ok;
  TORCHETTE_TRY(to_float(in));
  return float_result(out);
}

Error GraphReader::quantize_result() {
  if (converted_result_ == nullptr) return Error::Ok;
  if (converted_result_->type == ScalarType::Half) {
    TORCHETTE_TRY(call(kConvert, {float_result_, false, Argument(), converted_result_}));
    converted_result_ = float_result_ = nullptr;
    return Error::Ok;
  }
  Slot* const table = table_indices_ == nullptr ? converted_result_
                                                : temporary(sizes_of(float_result_), converted_result_->type);
  const Limits all = {-INFINITY, INFINITY};
  TORCHETTE_TRY(call("cpu::quantize.out", {float_result_, double{converted_result_->quantization.scale},
                                           int64_t{converted_result_->quantization.zero_point},
                                           quantized_min(*converted_result_, all),
                                           quantized_max(*converted_result_, all), table}));
  if (table_indices_ != nullptr)
    TORCHETTE_TRY(call("cpu::lookup.out", {table_indices_, table, converted_result_}));
  converted_result_ = float_result_ = table_indices_ = nullptr;
  return Error::Ok;
}

Slot* GraphReader::packed_integers(Slot* weights, size_t groups, size_t outputs, size_t inputs,
                                   const size_t (&steps)[3], size_t unit, Span<const uint32_t> sizes,
                                   float* sums, size_t line) {
  const bool is_4_bit = unit == kOctet;
  const size_t bytes = is_4_bit ? unit / 2 : unit;
  Slot* const slot = new_constant(sizes, is_4_bit ? ScalarType::Byte : ScalarType::Char);
  if (slot == nullptr) return nullptr;
  packed_ = weights;
  auto* to = static_cast<uint8_t*>(slot->data);
  for (size_t group = 0; group < groups; ++group)
    for (size_t panel = 0; panel < outputs; panel += kPanelWidth)
      for (size_t first = 0; first < inputs; first += unit)
        for (size_t row = panel; row < panel + kPanelWidth; ++row) {
          const size_t from = group * steps[0] + row * steps[1];
          for (size_t t = 0, i = first; t < unit; ++t, ++i) {
            const int32_t whole = row < outputs && i < inputs ? integer_at(*weights, from + i * steps[2]) : 0;
            if (sums != nullptr) sums[group * line + row] += static_cast<float>(whole);
            if (!is_4_bit)
              to[t] = static_cast<uint8_t>(whole);
            else if (t < bytes)
              to[t] = whole & 15;
            else
              to[t - bytes] |= static_cast<uint8_t>(static_cast<uint32_t>(whole) << 4);
          }
          to += bytes;
        }
  return slot;
}

Error GraphReader::integer_weights(const Slot* in, Slot* weights, const Slot* bias, const Slot* out,
                                   size_t groups, size_t outputs, size_t inputs, const size_t (&steps)[3],
                                   size_t unit, Span<const uint32_t> sizes, Slot** packed, Slot** terms) {
  const size_t width = (outputs + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  const uint32_t terms_sizes[] = {static_cast<uint32_t>(groups), 3, static_cast<uint32_t>(width)};
  *terms = new_constant(terms_sizes);
  TORCHETTE_CHECK(*terms != nullptr, MemoryAllocationFailed, "cannot allocate a layer of XNNPACK's graph");
  auto* const sums = static_cast<float*>((*terms)->data);
  memset(sums, 0, groups * 3 * width * sizeof(float));
  for (size_t group = 0; group < groups; ++group)
    for (size_t row = 0; row < outputs; ++row) {
      const size_t output = group * outputs + row;
      float* const at = sums + group * 3 * width + row;
      const double scale = double{in->quantization.scale} * double{scale_at(*weights, output, 0)};
      if (bias != nullptr) at[width] = static_cast<float>(integer_at(*bias, output));
      at[2 * width] = static_cast<float>(scale / double{out->quantization.scale});
    }
  *packed = packed_integers(weights, groups, outputs, inputs, steps, unit, sizes, sums, 3 * width);
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
