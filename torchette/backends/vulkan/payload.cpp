// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/payload.h"

namespace torchette {
namespace vulkan {
namespace {

using flat::Reader;
using flat::Table;

constexpr char kHeaderMagic[] = {'V', 'H', '0', '0'};
constexpr size_t kHeaderSize = 30;
constexpr uint64_t kNamed = UINT64_MAX;  // the offset of a constant in named data

}  // namespace

Error Payload::open(const void* data, size_t length, const NamedDataMap* named) {
  const auto* const bytes = static_cast<const uint8_t*>(data);
  named_ = named;
  TORCHETTE_CHECK(length >= kHeaderSize && memcmp(bytes + 4, kHeaderMagic, 4) == 0 &&
                      Reader::load<uint16_t>(bytes + 8) >= kHeaderSize,
                  DelegateInvalidCompatibility, "these %zu bytes have no Vulkan payload header", length);
  const size_t at = Reader::load<uint32_t>(bytes + 10);
  const size_t size = Reader::load<uint32_t>(bytes + 14);
  const size_t data_at = Reader::load<uint32_t>(bytes + 18);
  const uint64_t data_size = Reader::load<uint64_t>(bytes + 22);
  TORCHETTE_CHECK(
      at <= length && size <= length - at && size >= 8 && data_at <= length && data_size <= length - data_at,
      DelegateInvalidCompatibility, "a Vulkan payload of %zu bytes is truncated", length);
  data_ = bytes + data_at;
  data_size_ = static_cast<size_t>(data_size);
  TORCHETTE_CHECK(memcmp(bytes + at + 4, fb::kFileIdentifier, 4) == 0, DelegateInvalidCompatibility,
                  "this Vulkan payload has another version: it lacks the identifier %s", fb::kFileIdentifier);
  reader_ = Reader(bytes + at, size);
  const Table root = Table::root(&reader_);
  values_ = root.tables(fb::VkGraph::kValues);
  calls_ = root.tables(fb::VkGraph::kChain);
  constants_ = root.tables(fb::VkGraph::kConstants);
  inputs_ = root.vector<uint32_t>(fb::VkGraph::kInputIds);
  outputs_ = root.vector<uint32_t>(fb::VkGraph::kOutputIds);
  TORCHETTE_CHECK(reader_.ok() && root.present(), DelegateInvalidCompatibility,
                  "a Vulkan payload is damaged");
  for (const Span<const uint32_t>& ids : {inputs_, outputs_})
    for (const uint32_t id : ids)
      TORCHETTE_CHECK(id < values_.size(), DelegateInvalidCompatibility,
                      "a Vulkan payload has value %u of %zu as an argument", id, values_.size());
  return Error::Ok;
}

Error Payload::constant(uint32_t index, size_t size, const void** data, FreeableBuffer* named) const {
  TORCHETTE_CHECK(index < constants_.size(), DelegateInvalidCompatibility,
                  "constant %u of %zu does not exist", index, constants_.size());
  const Table record = constants_[index];
  const uint64_t offset = record.get<uint64_t>(fb::VkBytes::kOffset);
  if (offset != kNamed) {
    TORCHETTE_CHECK(offset <= data_size_ && size <= data_size_ - offset, DelegateInvalidCompatibility,
                    "constant %u is outside of the payload", index);
    *data = data_ + offset;
    return Error::Ok;
  }
  const Span<const char> key = record.string(fb::VkBytes::kNamedKey);
  TORCHETTE_CHECK(reader_.ok() && named_ != nullptr && !key.empty(), DelegateInvalidCompatibility,
                  "constant %u has no data", index);
  Result<FreeableBuffer> buffer = named_->get_data(key.data());
  if (!buffer.ok()) return buffer.error();
  TORCHETTE_CHECK(buffer->size() >= size, DelegateInvalidCompatibility, "%s has %zu bytes, expected %zu",
                  key.data(), buffer->size(), size);
  *data = buffer->data();
  *named = std::move(*buffer);
  return Error::Ok;
}

}  // namespace vulkan
}  // namespace torchette
