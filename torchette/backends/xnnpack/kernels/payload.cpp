// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/kernels/payload.h"

#include <cmath>

namespace torchette {
namespace xnnpack {
namespace {

constexpr char kHeaderMagic[] = {'X', 'H', '0', '0'};
constexpr size_t kHeaderSize = 30;
constexpr uint64_t kNamed = UINT64_MAX;  // the offset of a constant in named data

}  // namespace

Error Payload::open(const void* data, size_t length, const NamedDataMap* named) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  size_t at = 0, size = length;
  named_ = named;
  TORCHETTE_CHECK(length >= 8, DelegateInvalidCompatibility, "an XNNPACK payload has only %zu bytes", length);
  if (memcmp(bytes + 4, kHeaderMagic, 4) == 0) {
    TORCHETTE_CHECK(length >= kHeaderSize && Reader::load<uint16_t>(bytes + 8) >= kHeaderSize,
                    DelegateInvalidCompatibility, "the header of an XNNPACK payload is truncated");
    at = Reader::load<uint32_t>(bytes + 10);
    size = Reader::load<uint32_t>(bytes + 14);
    const size_t data_at = Reader::load<uint32_t>(bytes + 18);
    const uint64_t data_size = Reader::load<uint64_t>(bytes + 22);
    TORCHETTE_CHECK(at <= length && size <= length - at && size >= 8 && data_at <= length &&
                        data_size <= length - data_at,
                    DelegateInvalidCompatibility, "an XNNPACK payload of %zu bytes is truncated", length);
    data_ = bytes + data_at;
    data_size_ = static_cast<size_t>(data_size);
  }
  // The last character is the version of the format; versions 0 and 1 have the same layout.
  const auto* identifier = reinterpret_cast<const char*>(bytes + at + 4);
  TORCHETTE_CHECK(
      memcmp(identifier, fb::kFileIdentifier, 3) == 0 && (identifier[3] == '0' || identifier[3] == '1'),
      DelegateInvalidCompatibility,
      "an XNNPACK payload of this version has the identifier %s, which these bytes lack",
      fb::kFileIdentifier);
  reader_ = Reader(bytes + at, size);
  root_ = Table::root(&reader_);
  constants_ = root_.tables(fb::XNNGraph::kConstantData);
  buffers_ = root_.tables(fb::XNNGraph::kConstantBuffer);
  values_ = root_.tables(fb::XNNGraph::kXvalues);
  nodes_ = root_.tables(fb::XNNGraph::kXnodes);
  externs_ = root_.get<uint32_t>(fb::XNNGraph::kNumExterns);
  TORCHETTE_CHECK(reader_.ok() && root_.present() && externs_ <= values_.size(), DelegateInvalidCompatibility,
                  "an XNNPACK payload is damaged");
  return Error::Ok;
}

Error Payload::read_value(const Table& entry, ValueRecord* out) const {
  const auto kind = entry.get<fb::XValueUnion>(fb::XValue::kXvalueUnionType);
  out->quantized = kind == fb::XValueUnion::XNNQuantizedTensorValue;
  TORCHETTE_CHECK(out->quantized || kind == fb::XValueUnion::XNNTensorValue, NotSupported,
                  "an XNNPACK payload has a value of an unknown kind");
  const Table t = out->quantized ? out->outer.table(fb::XNNQuantizedTensorValue::kTensorValue) : out->outer;
  using T = fb::XNNTensorValue;
  out->type = t.get<fb::XNNDatatype>(T::kDatatype);
  out->dims = t.vector<uint32_t>(T::kDims);
  out->id = t.get<uint32_t>(T::kIdOut);
  out->argument = t.get<uint32_t>(T::kExternalId);
  out->constant = t.get<uint32_t>(T::kConstantBufferIdx);
  const uint32_t flags = t.get<uint32_t>(T::kFlags);
  TORCHETTE_CHECK(out->dims.size() <= kMaxDims && out->dims.size() == t.get<uint32_t>(T::kNumDims),
                  DelegateInvalidCompatibility, "a value of an XNNPACK payload has %zu dimensions",
                  out->dims.size());
  TORCHETTE_CHECK(out->id < values_.size(), DelegateInvalidCompatibility, "value %u of %zu is defined",
                  out->id, values_.size());
  constexpr uint64_t kMaxElements = uint64_t{1} << 40;
  out->count = 1;
  for (uint32_t d : out->dims)
    out->count = d != 0 && out->count > kMaxElements / d ? 2 * kMaxElements : out->count * d;
  TORCHETTE_CHECK(out->count <= kMaxElements, DelegateInvalidCompatibility, "value %u is too large", out->id);
  out->is_result = flags == 2;
  TORCHETTE_CHECK(
      !out->is_argument() || (out->argument < externs_ && (flags == 1 || flags == 2) && out->constant == 0),
      DelegateInvalidCompatibility, "value %u is argument %u of %u", out->id, out->argument, externs_);
  return Error::Ok;
}

Error Payload::constant(uint32_t index, size_t size, const void** data, FreeableBuffer* named,
                        Span<const char>* key) {
  *key = {};
  if (buffers_.size() != 0) {
    const Span<const uint8_t> bytes = index < buffers_.size()
                                          ? buffers_[index].vector<uint8_t>(fb::Buffer::kStorage)
                                          : Span<const uint8_t>();
    TORCHETTE_CHECK(bytes.size() >= size, DelegateInvalidCompatibility,
                    "constant %u has %zu bytes, expected %zu", index, bytes.size(), size);
    *data = bytes.data();
    return Error::Ok;
  }
  TORCHETTE_CHECK(index < constants_.size(), DelegateInvalidCompatibility,
                  "constant %u of %zu does not exist", index, constants_.size());
  const Table record = constants_[index];
  const uint64_t offset = record.get<uint64_t>(fb::ConstantDataOffset::kOffset);
  *key = record.string(fb::ConstantDataOffset::kNamedKey);
  if (offset != kNamed) {
    TORCHETTE_CHECK(key->empty() && offset <= data_size_ && size <= data_size_ - offset,
                    DelegateInvalidCompatibility, "constant %u is outside of the payload", index);
    *data = data_ + offset;
    return Error::Ok;
  }
  TORCHETTE_CHECK(named_ != nullptr && !key->empty(), DelegateInvalidCompatibility, "constant %u has no data",
                  index);
  Result<FreeableBuffer> buffer = named_->get_data(key->data());
  if (!buffer.ok()) return buffer.error();
  TORCHETTE_CHECK(buffer->size() >= size, DelegateInvalidCompatibility, "%s has %zu bytes, expected %zu",
                  key->data(), buffer->size(), size);
  *data = buffer->data();
  *named = std::move(*buffer);
  return Error::Ok;
}

Limits limits_of(const Table& node) {
  const Table range = node.table(fb::XNode::kOutputMinMax);
  if (!range.present()) return {-INFINITY, INFINITY};
  return {range.get<float>(fb::OutputMinMax::kOutputMin), range.get<float>(fb::OutputMinMax::kOutputMax)};
}

}  // namespace xnnpack
}  // namespace torchette
