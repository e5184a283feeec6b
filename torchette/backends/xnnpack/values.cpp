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

Error Builder::value(const Table& entry) {
  ValueRecord record(entry);
  TORCHETTE_TRY(payload_.read_value(entry, &record));
  const Table outer = record.outer;
  const bool quantized = record.quantized;
  const xnn_datatype type = library_type(record.type);
  const uint32_t id_out = record.id, argument = record.argument, buffer = record.constant;
  TORCHETTE_CHECK(type != xnn_datatype_invalid, NotSupported,
                  "value %u of XNNPACK's graph has type number %d, which this build does not have", id_out,
                  static_cast<int>(record.type));
  TORCHETTE_CHECK(!known_[id_out].present, DelegateInvalidCompatibility, "value %u is defined twice", id_out);
  Defined& it = known_[id_out];
  it.dims.assign(record.dims.begin(), record.dims.end());
  it.type = type;
  const uint64_t count = record.count;
  const void* data = nullptr;
  if (buffer != 0) {
    const size_t last = it.dims.empty() ? 1 : it.dims.back();
    const uint64_t rows = last == 0 ? 0 : count / last;
    // four bits an element, each row padded to whole bytes
    const uint64_t nbytes = bits(type) == 4 ? rows * ((last + 1) / 2) : count * bits(type) / 8;
    const size_t held = out_.constants.size();
    TORCHETTE_TRY(constant(buffer, static_cast<size_t>(nbytes), &data, it.is_packed));
    TORCHETTE_CHECK(is_aligned(data, std::max<size_t>(bits(type) / 8, 1)), DelegateInvalidCompatibility,
                    "the elements of value %u lie across each other", id_out);
    it.constant = true;
    it.data = data;
    if (out_.constants.size() != held) it.buffer = held;
  }
  std::string identity = key_;
  if (it.constant && !identity.empty()) {
    identity += '/' + std::to_string(static_cast<int>(type));
    for (size_t d : it.dims) identity += ',' + std::to_string(d);
  }
  const bool is_external = record.is_argument();
  const uint32_t flags = record.is_result ? XNN_VALUE_FLAG_EXTERNAL_OUTPUT : XNN_VALUE_FLAG_EXTERNAL_INPUT;
  // the library writes a value that is tapped to memory of ours, as if it were a result
  const bool is_tap = it.tapped && !is_external && !it.constant && is_plain(type);
  const uint32_t external = is_tap ? payload_.externs() + out_.tapped++ : argument;
  const uint32_t kept_flags = is_tap ? XNN_VALUE_FLAG_EXTERNAL_OUTPUT : is_external ? flags : 0;
  it.external = external;
  const size_t* dims = it.dims.data();
  const size_t rank = it.dims.size();
  xnn_subgraph_t g = out_.subgraph;
  key_.clear();
  if (!quantized) {
    TORCHETTE_XNN(xnn_define_tensor_value(g, type, rank, dims, data, external, kept_flags, &it.id));
  } else {
    const Table q = outer.table(fb::XNNQuantizedTensorValue::kQuantParams);
    switch (outer.get<fb::XNNQuantParams>(fb::XNNQuantizedTensorValue::kQuantParamsType)) {
      case fb::XNNQuantParams::PerTensorQuant:
        TORCHETTE_XNN(xnn_define_quantized_tensor_value(
            g, type, q.get<int32_t>(fb::PerTensorQuant::kZeroPoint), q.get<float>(fb::PerTensorQuant::kScale),
            rank, dims, data, external, kept_flags, &it.id));
        break;
      case fb::XNNQuantParams::PerChannelQuant: {
        const auto dim = q.get<int32_t>(fb::PerChannelQuant::kChannelDim);
        TORCHETTE_CHECK(dim >= 0 && static_cast<size_t>(dim) < rank, DelegateInvalidCompatibility,
                        "channels in dimension %d", static_cast<int>(dim));
        it.channel_dim = static_cast<size_t>(dim);
        const void* scale = nullptr;
        TORCHETTE_TRY(scales(q, fb::PerChannelQuant::kScale, fb::PerChannelQuant::kScaleBufferIdx,
                             sizeof(float), it.dims[static_cast<size_t>(dim)], &scale));
        // two elements of four bits share a byte, with 8 added to each
        const int32_t zero = type == xnn_datatype_qcint4 ? 8 : 0;
        TORCHETTE_XNN(xnn_define_channelwise_quantized_tensor_value_v2(
            g, type, zero, static_cast<const float*>(scale), rank, static_cast<size_t>(dim), dims, data,
            external, kept_flags, &it.id));
        break;
      }
      case fb::XNNQuantParams::PerChannelGroupQuant: {
        const auto dim = q.get<int32_t>(fb::PerChannelGroupQuant::kChannelDim);
        const auto group = q.get<int32_t>(fb::PerChannelGroupQuant::kGroupSize);
        TORCHETTE_CHECK(rank == 2 && (dim == 0 || dim == 1) && group > 0 &&
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
            g, type, 8, static_cast<const uint16_t*>(scale), rank, static_cast<size_t>(dim),
            static_cast<size_t>(group), dims, data, external, kept_flags, &it.id));
        break;
      }
      case fb::XNNQuantParams::PerTokenDynamicQuant: {
        const auto inner = q.get<int32_t>(fb::PerTokenDynamicQuant::kNumNonbatchDims);
        it.inner_dims = static_cast<size_t>(inner);
        TORCHETTE_CHECK(inner > 0 && static_cast<size_t>(inner) <= rank && data == nullptr && !is_external,
                        DelegateInvalidCompatibility, "a value quantized over %d dimensions",
                        static_cast<int>(inner));
        TORCHETTE_XNN(xnn_define_dynamically_quantized_tensor_value(g, type, rank, static_cast<size_t>(inner),
                                                                    dims, external, kept_flags, &it.id));
        break;
      }
      default:
        TORCHETTE_LOG(Error, "a value that is quantized in an unknown way");
        return Error::NotSupported;
    }
  }
  if (it.constant) {
    // Those with scales of their own in the payload are not told apart.
    if (quantized && key_.empty()) identity.clear();
    if (!identity.empty()) identity += '/' + key_;
    const auto [known, is_new] = out_.identities.emplace(data, identity);
    if (!is_new && known->second != identity) known->second.clear();
  }
  it.present = true;
  it.ready = it.constant || (is_external && !record.is_result);
  it.result = is_external && record.is_result;
  if (is_external)
    (record.is_result ? out_.outputs : out_.inputs)
        .push_back({argument, id_out, argument_type(type), it.dims});
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
