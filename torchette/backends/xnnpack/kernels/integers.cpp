// SPDX-License-Identifier: BSD-3-Clause
// Quantized values: reads their scales, converts them for nodes that compute in float32, and packs integer
// weights.
#include <cmath>

#include "torchette/backends/xnnpack/kernels/graph_reader.h"

namespace torchette {
namespace xnnpack {
namespace {

using Type = fb::XNNDatatype;

constexpr size_t kBytes = 256;  // the number of 8-bit values

/// Whether XNNPACK accepts a scale: its inverse, and its product with an 8-bit integer, must be finite.
bool is_scale(float scale) { return scale >= 1.17549435e-38f && scale <= 3.4e36f; }

bool is_signed(const Slot& slot) { return slot.how.type != Type::xnn_datatype_quint8; }

}  // namespace

Error GraphReader::quantization(const ValueRecord& record, Slot* slot) {
  using Q = fb::XNNQuantParams;
  Quantization& how = slot->how;
  const Table q = record.outer.table(fb::XNNQuantizedTensorValue::kQuantParams);
  const auto kind = record.outer.get<Q>(fb::XNNQuantizedTensorValue::kQuantParamsType);
  const bool is_one = slot->is_bytes() || how.type == Type::xnn_datatype_qint32;
  const bool is_dynamic = how.type == Type::xnn_datatype_qdint8,
             is_grouped = how.type == Type::xnn_datatype_qbint4;
  const Q expected = is_one       ? Q::PerTensorQuant
                     : is_dynamic ? Q::PerTokenDynamicQuant
                     : is_grouped ? Q::PerChannelGroupQuant
                                  : Q::PerChannelQuant;
  TORCHETTE_CHECK(kind == expected, DelegateInvalidCompatibility,
                  "value %u has scales of kind %u, its type requires %u", record.id,
                  static_cast<unsigned>(kind), static_cast<unsigned>(expected));
  const bool is_constant = record.constant != 0;
  TORCHETTE_CHECK(slot->is_bytes() || is_constant != is_dynamic, NotSupported,
                  "value %u of XNNPACK's graph has a type for constants but is computed, or reversely",
                  record.id);
  const size_t rank = slot->rank;
  if (is_one) {
    how.scale = q.get<float>(fb::PerTensorQuant::kScale);
    how.zero = q.get<int32_t>(fb::PerTensorQuant::kZeroPoint);
    const int32_t low = slot->is_bytes() && is_signed(*slot) ? INT8_MIN : 0;
    const int32_t high = slot->is_bytes() ? low + UINT8_MAX : 0;
    TORCHETTE_CHECK(is_scale(how.scale) && how.zero >= low && how.zero <= high, DelegateInvalidCompatibility,
                    "value %u has the scale %g and the zero point %d", record.id,
                    static_cast<double>(how.scale), static_cast<int>(how.zero));
    return Error::Ok;
  }
  if (is_dynamic) {
    how.zero = q.get<int32_t>(fb::PerTokenDynamicQuant::kNumNonbatchDims);
    TORCHETTE_CHECK(how.zero > 0 && static_cast<size_t>(how.zero) <= rank && !record.is_argument(),
                    DelegateInvalidCompatibility, "value %u is quantized over its last %d dimensions of %zu",
                    record.id, static_cast<int>(how.zero), rank);
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
  how.channel_dim = static_cast<uint32_t>(dim);
  how.group = static_cast<uint32_t>(group);
  const size_t groups = is_grouped ? size(slot, static_cast<size_t>(1 - dim)) / how.group : 1;
  const size_t count = size(slot, how.channel_dim) * groups;  // at most the number of elements
  const size_t item = is_grouped ? sizeof(uint16_t) : sizeof(float);
  const Span<const float> here = is_grouped ? Span<const float>() : q.vector<float>(C::kScale);
  if (here.size() != 0) {
    TORCHETTE_CHECK(here.size() >= count, DelegateInvalidCompatibility,
                    "value %u has %zu scales, %zu are needed", record.id, here.size(), count);
    how.scales = here.data();
  } else {
    Span<const char> key;
    const auto index = q.get<uint32_t>(is_grouped ? G::kScaleBufferIdx : C::kScaleBufferIdx);
    TORCHETTE_TRY(payload_.constant(index, count * item, &how.scales, &slot->scale_bytes, &key));
  }
  TORCHETTE_CHECK(reinterpret_cast<uintptr_t>(how.scales) % item == 0, DelegateInvalidCompatibility,
                  "the scales of value %u are misaligned", record.id);
  for (size_t i = 0; i < count; ++i) {
    const float scale = scale_at(*slot, i / groups, i % groups);
    TORCHETTE_CHECK(is_scale(scale), DelegateInvalidCompatibility, "value %u has the scale %g at index %zu",
                    record.id, static_cast<double>(scale), i);
  }
  return Error::Ok;
}

float scale_at(const Slot& slot, size_t channel, size_t group) {
  const Quantization& how = slot.how;
  if (how.scales == nullptr) return how.scale;
  if (how.group == 0) return static_cast<const float*>(how.scales)[channel];
  const auto groups = static_cast<size_t>(slot.sizes[1 - how.channel_dim]) / how.group;
  return static_cast<const BFloat16*>(how.scales)[channel * groups + group];
}

int32_t whole_at(const Slot& slot, size_t i) {
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

int64_t whole_of(const Slot& slot, double real) {
  const int64_t low = is_signed(slot) ? INT8_MIN : 0, high = low + UINT8_MAX;
  const double whole = std::rint(real / static_cast<double>(slot.how.scale)) + slot.how.zero;
  return whole >= static_cast<double>(high) ? high
         : whole > static_cast<double>(low) ? static_cast<int64_t>(whole)
                                            : low;
}

int64_t low_of(const Slot& slot, const Limits& limits) { return whole_of(slot, double{limits.low}); }

int64_t high_of(const Slot& slot, const Limits& limits) {
  const double high = limits.high;
  return whole_of(slot, high == high ? high : INFINITY);
}

bool sums_are_whole(const Slot& in, const Slot& weights, const Slot* bias, const Slot& out,
                    uint32_t outputs_dim, uint64_t inputs) {
  const bool is_of_channels = weights.how.type == Type::xnn_datatype_qcint8;
  return in.is_bytes() && out.is_bytes() && weights.is_constant() && weights.type == ScalarType::Char &&
         weights.how.zero == 0 && (!is_of_channels || weights.how.channel_dim == outputs_dim) &&
         (bias == nullptr || (bias->is_constant() && bias->type == ScalarType::Int)) &&
         inputs <= kMaxIntegerDepth;
}

Error GraphReader::floats(Slot** slot) {
  Slot* const from = *slot;
  if (from == nullptr || from->is_float()) return Error::Ok;
  if (from->source != nullptr) {
    *slot = from->rounded;
    if (*slot != nullptr) return Error::Ok;
    *slot = from->rounded =
        temporary(sizes_of(from->source));  // quantized like the library: an image of ExecuTorch is one row
    return call(kRoundRows, {from->source, int64_t{from->how.zero}, *slot});
  }
  if (from->type == ScalarType::Half) return widen(slot);
  if (!from->is_constant()) {
    *slot = temporary(sizes_of(from));
    return call("cpu::dequantize.out", {from, double{from->how.scale}, int64_t{from->how.zero}, *slot});
  }
  *slot = stored(sizes_of(from));
  TORCHETTE_CHECK(*slot != nullptr, MemoryAllocationFailed, "no memory for a constant of XNNPACK's graph");
  auto* const to = static_cast<float*>((*slot)->data);
  size_t inner = 1;  // stride of the channel dimension
  for (size_t d = from->how.channel_dim + size_t{1}; d < from->rank; ++d) inner *= size(from, d);
  const size_t channels = from->how.scales == nullptr ? 1 : size(from, from->how.channel_dim);
  const size_t of_group = from->how.group == 0 ? SIZE_MAX : from->how.group;
  for (size_t i = 0; i < from->numel; ++i) {
    const size_t channel = i / inner % channels;
    const size_t other = from->how.channel_dim == 0 ? i % inner : i / inner / channels;
    to[i] =
        static_cast<float>(whole_at(*from, i) - from->how.zero) * scale_at(*from, channel, other / of_group);
  }
  return Error::Ok;
}

Error GraphReader::widen(Slot** slot) {
  Slot* const from = *slot;
  *slot = from->rounded;
  if (*slot != nullptr) return Error::Ok;
  if (!from->is_constant()) {
    *slot = temporary(sizes_of(from));
    return call(kConvert, {from, false, Argument(), *slot});
  }
  *slot = from->rounded = stored(sizes_of(from));
  TORCHETTE_CHECK(*slot != nullptr, MemoryAllocationFailed, "no memory for a constant of XNNPACK's graph");
  const auto* const halves = static_cast<const Half*>(from->data);
  for (size_t i = 0; i < from->numel; ++i)
    static_cast<float*>((*slot)->data)[i] = static_cast<float>(halves[i]);
  return Error::Ok;
}

Error GraphReader::quantize_rows(const char* kernel, Slot* slot, Slot** quantized, Slot** row_scales) {
  constexpr double kSteps = 255.0, kLeastScale = 1e-37;  // the minimum scale is that of a row of zeros
  if (slot->quantized == nullptr) {
    uint32_t sizes[kMostDims];
    for (size_t d = 0; d < slot->rank; ++d) sizes[d] = size(slot, d);
    sizes[slot->rank - 1] = 2;
    slot->quantized = temporary(sizes_of(slot), ScalarType::Char);
    slot->row_scales = temporary({sizes, slot->rank});
    TORCHETTE_TRY(call(kernel, {slot->source, int64_t{INT8_MIN}, int64_t{INT8_MAX}, kSteps, kLeastScale,
                                false, false, slot->quantized, slot->row_scales}));
  }
  *quantized = slot->quantized;
  *row_scales = slot->row_scales;
  return Error::Ok;
}

Error GraphReader::result(Slot** slot) {
  if ((*slot)->is_float()) return Error::Ok;
  whole_ = *slot;
  *slot = rounded_ = temporary(sizes_of(whole_));
  return Error::Ok;
}

Error GraphReader::find(const Table& n, uint16_t slot, Slot** out, bool optional) {
  TORCHETTE_TRY(look(n, slot, out, optional));
  return floats(out);
}

Error GraphReader::make(const Table& n, uint16_t slot, Slot** out) {
  TORCHETTE_TRY(claim(n, slot, out));
  return result(out);
}

Error GraphReader::one(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out) {
  TORCHETTE_TRY(look(n, from, in));
  TORCHETTE_TRY(claim(n, to, out));
  return tabulated(in, out);
}

Error GraphReader::tabulated(Slot** in, Slot** out) {
  static constexpr uint32_t kAll[] = {kBytes};
  const Slot& read = **in;
  if (!read.is_bytes() || !(*out)->is_bytes() || read.numel <= kBytes) {
    TORCHETTE_TRY(floats(in));
    return result(out);
  }
  looked_up_ = *in;
  whole_ = *out;
  *out = rounded_ = temporary(kAll);
  *in = stored(kAll);
  TORCHETTE_CHECK(*in != nullptr, MemoryAllocationFailed, "no memory for a table of XNNPACK's graph");
  for (size_t i = 0; i < kBytes; ++i) {
    const auto whole = is_signed(read) ? static_cast<int8_t>(i) : static_cast<int32_t>(i);
    static_cast<float*>((*in)->data)[i] = static_cast<float>(whole - read.how.zero) * read.how.scale;
  }
  return Error::Ok;
}

bool stand_for_the_same(const Slot& a, const Slot& b) {
  return (a.is_float() && b.is_float()) ||
         (a.is_bytes() && a.how.type == b.how.type && a.how.zero == b.how.zero && a.how.scale == b.how.scale);
}

Error GraphReader::moved(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out) {
  TORCHETTE_TRY(look(n, from, in));
  TORCHETTE_TRY(claim(n, to, out));
  if (stand_for_the_same(**in, **out)) return Error::Ok;
  TORCHETTE_TRY(floats(in));
  return result(out);
}

Error GraphReader::round() {
  if (whole_ == nullptr) return Error::Ok;
  if (whole_->type == ScalarType::Half) {
    TORCHETTE_TRY(call(kConvert, {rounded_, false, Argument(), whole_}));
    whole_ = rounded_ = nullptr;
    return Error::Ok;
  }
  Slot* const table = looked_up_ == nullptr ? whole_ : temporary(sizes_of(rounded_), whole_->type);
  const Limits all = {-INFINITY, INFINITY};
  TORCHETTE_TRY(call("cpu::quantize.out", {rounded_, double{whole_->how.scale}, int64_t{whole_->how.zero},
                                           low_of(*whole_, all), high_of(*whole_, all), table}));
  if (looked_up_ != nullptr) TORCHETTE_TRY(call("cpu::lookup.out", {looked_up_, table, whole_}));
  whole_ = rounded_ = looked_up_ = nullptr;
  return Error::Ok;
}

Slot* GraphReader::packed_integers(const Slot* weights, size_t groups, size_t outputs, size_t inputs,
                                   const size_t (&steps)[3], size_t unit, Span<const uint32_t> sizes,
                                   float* sums, size_t line) {
  const bool in_halves = unit == kOctet;
  const size_t bytes = in_halves ? unit / 2 : unit;
  Slot* const slot = stored(sizes, in_halves ? ScalarType::Byte : ScalarType::Char);
  if (slot == nullptr) return nullptr;
  auto* to = static_cast<uint8_t*>(slot->data);
  for (size_t group = 0; group < groups; ++group)
    for (size_t panel = 0; panel < outputs; panel += kPanelWidth)
      for (size_t first = 0; first < inputs; first += unit)
        for (size_t row = panel; row < panel + kPanelWidth; ++row) {
          const size_t from = group * steps[0] + row * steps[1];
          for (size_t t = 0, i = first; t < unit; ++t, ++i) {
            const int32_t whole = row < outputs && i < inputs ? whole_at(*weights, from + i * steps[2]) : 0;
            if (sums != nullptr) sums[group * line + row] += static_cast<float>(whole);
            if (!in_halves)
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

Error GraphReader::integer_weights(const Slot* in, const Slot* weights, const Slot* bias, const Slot* out,
                                   size_t groups, size_t outputs, size_t inputs, const size_t (&steps)[3],
                                   size_t unit, Span<const uint32_t> sizes, Slot** packed, Slot** terms) {
  const size_t width = (outputs + kPanelWidth - 1) / kPanelWidth * kPanelWidth;
  const uint32_t of_terms[] = {static_cast<uint32_t>(groups), 3, static_cast<uint32_t>(width)};
  *terms = stored(of_terms);
  TORCHETTE_CHECK(*terms != nullptr, MemoryAllocationFailed, "no memory for a layer of XNNPACK's graph");
  auto* const sums = static_cast<float*>((*terms)->data);
  memset(sums, 0, groups * 3 * width * sizeof(float));
  for (size_t group = 0; group < groups; ++group)
    for (size_t row = 0; row < outputs; ++row) {
      const size_t output = group * outputs + row;
      float* const at = sums + group * 3 * width + row;
      const double scale = double{in->how.scale} * double{scale_at(*weights, output, 0)};
      if (bias != nullptr) at[width] = static_cast<float>(whole_at(*bias, output));
      at[2 * width] = static_cast<float>(scale / double{out->how.scale});
    }
  *packed = packed_integers(weights, groups, outputs, inputs, steps, unit, sizes, sums, 3 * width);
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
