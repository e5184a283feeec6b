// SPDX-License-Identifier: BSD-3-Clause
// Values of a payload: their types, dimensions, scales and elements.
#include <algorithm>
#include <string>

#include "torchette/backends/xnnpack/builder.h"

namespace torchette {
namespace xnnpack {
namespace {

// Named data of up to so many bytes that nodes read when the graph runs are copied.
constexpr size_t kCopied = kRegion / 2;

xnn_datatype library_type(fb::XNNDatatype type) {
  switch (type) {
    case fb::XNNDatatype::xnn_datatype_fp32:
      return xnn_datatype_fp32;
    case fb::XNNDatatype::xnn_datatype_fp16:
      return xnn_datatype_fp16;
    case fb::XNNDatatype::xnn_datatype_qint8:
      return xnn_datatype_qint8;
    case fb::XNNDatatype::xnn_datatype_quint8:
      return xnn_datatype_quint8;
    case fb::XNNDatatype::xnn_datatype_qint32:
      return xnn_datatype_qint32;
    case fb::XNNDatatype::xnn_datatype_qcint8:
      return xnn_datatype_qcint8;
    case fb::XNNDatatype::xnn_datatype_qcint32:
      return xnn_datatype_qcint32;
    case fb::XNNDatatype::xnn_datatype_qcint4:
      return xnn_datatype_qcint4;
    case fb::XNNDatatype::xnn_datatype_qdint8:
      return xnn_datatype_qdint8;
    case fb::XNNDatatype::xnn_datatype_qbint4:
      return xnn_datatype_qbint4;
    default:
      return xnn_datatype_invalid;
  }
}

}  // namespace

ScalarType argument_type(xnn_datatype type) {
  switch (type) {
    case xnn_datatype_fp16:
      return ScalarType::Half;
    case xnn_datatype_qint8:
      return ScalarType::Char;
    case xnn_datatype_quint8:
      return ScalarType::Byte;
    default:
      return ScalarType::Float;
  }
}

size_t bits(xnn_datatype type) {
  switch (type) {
    case xnn_datatype_fp16:
      return 16;
    case xnn_datatype_fp32:
    case xnn_datatype_qint32:
    case xnn_datatype_qcint32:
      return 32;
    case xnn_datatype_qcint4:
    case xnn_datatype_qbint4:
      return 4;
    default:
      return 8;
  }
}

Error Builder::constant(uint32_t index, size_t size, const void** data, bool is_packed) {
  out_.constant_bytes += size;
  FreeableBuffer buffer;
  Span<const char> key;
  TORCHETTE_TRY(payload_.constant(index, size, data, &buffer, &key));
  key_.assign(key.begin(), key.end());
  if (key.empty()) {
    out_.needs_bytes = true;
    return Error::Ok;
  }
  if (!is_packed && size <= kCopied) {
    std::vector<char>& copy = out_.copies.emplace_back(size + XNN_EXTRA_BYTES);
    memcpy(copy.data(), buffer.data(), size);
    *data = copy.data();
    return Error::Ok;
  }
  out_.constants.push_back({std::move(buffer)});
  return Error::Ok;
}

Error Builder::scales(const Table& quant, uint16_t inline_slot, uint16_t index_slot, size_t item,
                      size_t count, const void** data) {
  const Span<const float> given = quant.vector<float>(inline_slot);
  if (given.size() != 0 && item == sizeof(float)) {
    TORCHETTE_CHECK(given.size() >= count, DelegateInvalidCompatibility, "%zu scales of %zu", given.size(),
                    count);
    *data = given.data();
    out_.needs_bytes = true;
    return Error::Ok;
  }
  TORCHETTE_TRY(constant(quant.get<uint32_t>(index_slot), count * item, data));
  TORCHETTE_CHECK(is_aligned(*data, item), DelegateInvalidCompatibility, "scales lie across each other");
  return Error::Ok;
}

/// Defines a value with a scale for each channel.
Error Builder::define_per_channel(const Table& q, uint32_t flags, Defined& it) {
  const auto dim = q.get<int32_t>(fb::PerChannelQuant::kChannelDim);
  TORCHETTE_CHECK(dim >= 0 && static_cast<size_t>(dim) < it.dims.size(), DelegateInvalidCompatibility,
                  "channels in dimension %d", static_cast<int>(dim));
  it.channel_dim = static_cast<size_t>(dim);
  const void* scale = nullptr;
  TORCHETTE_TRY(scales(q, fb::PerChannelQuant::kScale, fb::PerChannelQuant::kScaleBufferIdx, sizeof(float),
                       it.dims[static_cast<size_t>(dim)], &scale));
  // two 4-bit elements share a byte, each with 8 added
  const int32_t zero = it.type == xnn_datatype_qcint4 ? 8 : 0;
  TORCHETTE_XNN(xnn_define_channelwise_quantized_tensor_value_v2(
      out_.subgraph, it.type, zero, static_cast<const float*>(scale), it.dims.size(),
      static_cast<size_t>(dim), it.dims.data(), it.data, it.external, flags, &it.id));
  return Error::Ok;
}

/// Defines a value with a scale for each group of elements of a channel.
Error Builder::define_per_group(const Table& q, uint32_t flags, Defined& it) {
  const auto dim = q.get<int32_t>(fb::PerChannelGroupQuant::kChannelDim);
  const auto group = q.get<int32_t>(fb::PerChannelGroupQuant::kGroupSize);
  TORCHETTE_CHECK(it.dims.size() == 2 && (dim == 0 || dim == 1) && group > 0 &&
                      it.dims[static_cast<size_t>(1 - dim)] % static_cast<size_t>(group) == 0,
                  DelegateInvalidCompatibility, "groups of %d in dimension %d", static_cast<int>(group),
                  static_cast<int>(dim));
  it.channel_dim = static_cast<size_t>(dim);
  const size_t channels = it.dims[static_cast<size_t>(dim)];
  const size_t groups = it.dims[static_cast<size_t>(1 - dim)] / static_cast<size_t>(group);
  const void* scale = nullptr;
  TORCHETTE_TRY(scales(q, fb::PerChannelGroupQuant::kScale, fb::PerChannelGroupQuant::kScaleBufferIdx,
                       sizeof(uint16_t), channels * groups, &scale));
  TORCHETTE_XNN(xnn_define_blockwise_quantized_tensor_value(
      out_.subgraph, it.type, 8, static_cast<const uint16_t*>(scale), it.dims.size(),
      static_cast<size_t>(dim), static_cast<size_t>(group), it.dims.data(), it.data, it.external, flags,
      &it.id));
  return Error::Ok;
}

/// Defines a value that is quantized when the graph runs.
Error Builder::define_dynamic(const Table& q, uint32_t flags, bool is_external, Defined& it) {
  const auto inner = q.get<int32_t>(fb::PerTokenDynamicQuant::kNumNonbatchDims);
  it.inner_dims = static_cast<size_t>(inner);
  TORCHETTE_CHECK(inner > 0 && static_cast<size_t>(inner) <= it.dims.size() && !it.constant && !is_external,
                  DelegateInvalidCompatibility, "a value quantized over %d dimensions",
                  static_cast<int>(inner));
  TORCHETTE_XNN(xnn_define_dynamically_quantized_tensor_value(out_.subgraph, it.type, it.dims.size(),
                                                              static_cast<size_t>(inner), it.dims.data(),
                                                              it.external, flags, &it.id));
  return Error::Ok;
}

Error Builder::define_quantized(const Table& outer, uint32_t flags, bool is_external, Defined& it) {
  const Table q = outer.table(fb::XNNQuantizedTensorValue::kQuantParams);
  switch (outer.get<fb::XNNQuantParams>(fb::XNNQuantizedTensorValue::kQuantParamsType)) {
    case fb::XNNQuantParams::PerTensorQuant:
      TORCHETTE_XNN(xnn_define_quantized_tensor_value(
          out_.subgraph, it.type, q.get<int32_t>(fb::PerTensorQuant::kZeroPoint),
          q.get<float>(fb::PerTensorQuant::kScale), it.dims.size(), it.dims.data(), it.data, it.external,
          flags, &it.id));
      return Error::Ok;
    case fb::XNNQuantParams::PerChannelQuant:
      return define_per_channel(q, flags, it);
    case fb::XNNQuantParams::PerChannelGroupQuant:
      return define_per_group(q, flags, it);
    case fb::XNNQuantParams::PerTokenDynamicQuant:
      return define_dynamic(q, flags, is_external, it);
    default:
      TORCHETTE_LOG(Error, "a value that is quantized in an unknown way");
      return Error::NotSupported;
  }
}

/// Finds the elements of a constant.
Error Builder::read_elements(const ValueRecord& record, Defined& it) {
  const size_t last = it.dims.empty() ? 1 : it.dims.back();
  const uint64_t rows = last == 0 ? 0 : record.count / last, width = bits(it.type);
  // four bits an element, each row padded to whole bytes
  const uint64_t nbytes = width == 4 ? rows * ((last + 1) / 2) : record.count * width / 8;
  const size_t held = out_.constants.size();
  TORCHETTE_TRY(constant(record.constant, static_cast<size_t>(nbytes), &it.data, it.is_packed));
  TORCHETTE_CHECK(is_aligned(it.data, std::max<size_t>(width / 8, 1)), DelegateInvalidCompatibility,
                  "the elements of value %u lie across each other", record.id);
  it.constant = true;
  if (out_.constants.size() != held) it.buffer = held;
  return Error::Ok;
}

Error Builder::value(const Table& entry) {
  ValueRecord record(entry);
  TORCHETTE_TRY(payload_.read_value(entry, &record));
  const xnn_datatype type = library_type(record.type);
  TORCHETTE_CHECK(type != xnn_datatype_invalid, NotSupported,
                  "value %u of XNNPACK's graph has type number %d, which this build does not have", record.id,
                  static_cast<int>(record.type));
  TORCHETTE_CHECK(!known_[record.id].present, DelegateInvalidCompatibility, "value %u is defined twice",
                  record.id);
  Defined& it = known_[record.id];
  it.dims.assign(record.dims.begin(), record.dims.end());
  it.type = type;
  if (record.constant != 0) TORCHETTE_TRY(read_elements(record, it));
  std::string identity = key_;
  if (it.constant && !identity.empty()) {
    identity += '/' + std::to_string(static_cast<int>(type));
    for (size_t d : it.dims) identity += ',' + std::to_string(d);
  }
  const bool is_external = record.is_argument();
  const uint32_t flags = record.is_result ? XNN_VALUE_FLAG_EXTERNAL_OUTPUT : XNN_VALUE_FLAG_EXTERNAL_INPUT;
  // The library writes a tapped value to our memory, as if it were a result.
  const bool is_tap = it.tapped && !is_external && !it.constant && is_plain(type);
  const uint32_t kept_flags = is_tap ? XNN_VALUE_FLAG_EXTERNAL_OUTPUT : is_external ? flags : 0;
  it.external = is_tap ? payload_.externs() + out_.tapped++ : record.argument;
  key_.clear();
  if (record.quantized)
    TORCHETTE_TRY(define_quantized(record.outer, kept_flags, is_external, it));
  else
    TORCHETTE_XNN(xnn_define_tensor_value(out_.subgraph, type, it.dims.size(), it.dims.data(), it.data,
                                          it.external, kept_flags, &it.id));
  if (it.constant) {
    // Constants with scales in the payload have no identity.
    if (record.quantized && key_.empty()) identity.clear();
    if (!identity.empty()) identity += '/' + key_;
    const auto [known, is_new] = out_.identities.emplace(it.data, identity);
    if (!is_new && known->second != identity) known->second.clear();
  }
  it.present = true;
  it.ready = it.constant || (is_external && !record.is_result);
  it.result = is_external && record.is_result;
  if (is_external)
    (record.is_result ? out_.outputs : out_.inputs)
        .push_back({record.argument, record.id, argument_type(type), it.dims});
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
