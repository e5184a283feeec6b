// SPDX-License-Identifier: BSD-3-Clause
// Reads a .ptd file. verify() checks all offsets and sizes once, so later reads need no checks.
#include "torchette/extension/flat_tensor.h"

#include <cstring>

#include "torchette/runtime/kernel.h"
#include "torchette/schema/flat_tensor.h"

namespace torchette::extension {
namespace {

namespace schema = torchette::schema::flat_tensor;
using flat::Reader;
using flat::Table;
using flat::Tables;

// At the start of the file: the offset of the root table, the identifier, the header.
constexpr size_t kIdentifierAt = 4;
constexpr size_t kHeaderAt = 8;
constexpr size_t kHeaderSize = 40;
constexpr char kHeaderMagic[] = {'F', 'H', '0', '1'};
constexpr size_t kAlignment = 8;  // of the file's contents
constexpr uint32_t kVersion = 0;

TensorLayout layout_of(const Table& record) {
  const Table layout = record.table(schema::NamedData::kTensorLayout);
  const auto sizes = layout.vector<SizesType>(schema::TensorLayout::kSizes);
  const auto type = layout.get<ScalarType>(schema::TensorLayout::kScalarType);
  size_t nbytes = element_size(type);
  for (SizesType size : sizes) nbytes *= static_cast<size_t>(size);
  return {type, sizes, layout.vector<DimOrderType>(schema::TensorLayout::kDimOrder), nbytes};
}

/// Returns whether the layout is valid and has `nbytes` bytes.
bool is_valid(const TensorLayout& layout, size_t nbytes) {
  const size_t rank = layout.sizes().size();
  if (element_size(layout.scalar_type()) == 0 || rank > kMaxDim || layout.dim_order().size() != rank)
    return false;
  uint32_t seen = 0;
  for (DimOrderType d : layout.dim_order()) seen |= d < rank ? 1u << d : 0;
  if (seen != (1u << rank) - 1) return false;
  StridesType strides[kMaxDim];
  const Result<int32_t> numel = dense_strides(layout.sizes(), layout.dim_order().data(), strides);
  // The multiplication does not overflow: there are at most 2^31 - 1 elements.
  return numel.ok() && uint64_t{element_size(layout.scalar_type())} * static_cast<uint64_t>(*numel) == nbytes;
}

}  // namespace

Result<FlatTensorDataMap> FlatTensorDataMap::load(DataLoader* loader) {
  const Result<size_t> size = loader->size();
  if (!size.ok()) return size.error();
  Result<FreeableBuffer> bytes = loader->load(0, *size, {DataLoader::SegmentInfo::Type::External});
  if (!bytes.ok()) return bytes.error();
  FlatTensorDataMap map(std::move(*bytes));
  const Error error = map.verify();
  if (error != Error::Ok) return error;
  return map;
}

Error FlatTensorDataMap::verify() {
  const auto* head = static_cast<const uint8_t*>(bytes_.data());
  const size_t file_size = bytes_.size();
  TORCHETTE_CHECK(
      file_size >= kHeaderAt + kHeaderSize && memcmp(head + kIdentifierAt, schema::kFileIdentifier, 4) == 0 &&
          memcmp(head + kHeaderAt, kHeaderMagic, sizeof(kHeaderMagic)) == 0,
      InvalidExternalData, "the file of %zu bytes is not a data file: it lacks the identifiers %s and %.4s",
      file_size, schema::kFileIdentifier, kHeaderMagic);
  TORCHETTE_CHECK(reinterpret_cast<uintptr_t>(head) % kAlignment == 0, InvalidArgument,
                  "the bytes of a data file must be aligned to %zu bytes", kAlignment);
  const auto length = Reader::load<uint32_t>(head + kHeaderAt + 4);
  const auto offset = Reader::load<uint64_t>(head + kHeaderAt + 8);
  const auto flatbuffer = Reader::load<uint64_t>(head + kHeaderAt + 16);
  const auto base = Reader::load<uint64_t>(head + kHeaderAt + 24);
  const auto data = Reader::load<uint64_t>(head + kHeaderAt + 32);
  TORCHETTE_CHECK(length >= kHeaderSize && offset <= file_size && flatbuffer <= file_size - offset &&
                      base <= file_size && data <= file_size - base,
                  InvalidExternalData,
                  "the data file is truncated: it has %zu bytes, its header requires more", file_size);
  flatbuffer_size_ = static_cast<size_t>(offset + flatbuffer);
  base_ = static_cast<size_t>(base);

  Reader reader = this->reader();
  const Table root = Table::root(&reader);
  TORCHETTE_CHECK(root.get<uint32_t>(schema::FlatTensor::kVersion) <= kVersion, NotSupported,
                  "the data file has version %u, this runtime supports up to %u",
                  static_cast<unsigned>(root.get<uint32_t>(schema::FlatTensor::kVersion)),
                  static_cast<unsigned>(kVersion));
  const Tables segments = root.tables(schema::FlatTensor::kSegments);
  for (size_t i = 0; i < segments.size(); ++i) {
    const Table segment = segments[i];
    const auto start = segment.get<uint64_t>(schema::DataSegment::kOffset);
    const auto size = segment.get<uint64_t>(schema::DataSegment::kSize);
    TORCHETTE_CHECK(reader.ok() && start <= data && size <= data - start, InvalidExternalData,
                    "the data file is damaged: segment %zu is outside the file", i);
  }
  const Tables named = root.tables(schema::FlatTensor::kNamedData);
  for (size_t i = 0; i < named.size(); ++i) {
    const Table record = named[i];
    const char* key = record.string(schema::NamedData::kKey).data();
    const size_t segment = record.get<uint32_t>(schema::NamedData::kSegmentIndex);
    TORCHETTE_CHECK(reader.ok() && segment < segments.size(), InvalidExternalData,
                    "the data file is damaged: the data of entry %zu is outside the file", i);
    if (!record.table(schema::NamedData::kTensorLayout).present()) continue;
    TORCHETTE_CHECK(is_valid(layout_of(record), bytes_of(reader, record).size()), InvalidExternalData,
                    "the data file is damaged: the data of %s does not match its tensor layout", key);
  }
  TORCHETTE_CHECK(root.present() && reader.ok(), InvalidExternalData,
                  "the data file is damaged: its records are outside the file");
  return Error::Ok;
}

Table FlatTensorDataMap::find(Reader& reader, const char* key) const {
  const Tables named = Table::root(&reader).tables(schema::FlatTensor::kNamedData);
  const size_t count = named.size(), first = next_index_.load(std::memory_order_relaxed);
  for (size_t k = 0; k < count; ++k) {
    const size_t i = (first + k) % count;
    const Table record = named[i];
    if (strcmp(record.string(schema::NamedData::kKey).data(), key) != 0) continue;
    next_index_.store(i + 1, std::memory_order_relaxed);
    return record;
  }
  return Table::at(&reader, 0);
}

Span<const uint8_t> FlatTensorDataMap::bytes_of(Reader& reader, const Table& record) const {
  const size_t index = record.get<uint32_t>(schema::NamedData::kSegmentIndex);
  const Table segment = Table::root(&reader).tables(schema::FlatTensor::kSegments)[index];
  const auto start = static_cast<size_t>(segment.get<uint64_t>(schema::DataSegment::kOffset));
  return {static_cast<const uint8_t*>(bytes_.data()) + base_ + start,
          static_cast<size_t>(segment.get<uint64_t>(schema::DataSegment::kSize))};
}

Result<const TensorLayout> FlatTensorDataMap::get_tensor_layout(const char* key) const {
  Reader reader = this->reader();
  const Table record = find(reader, key);
  if (!record.present()) return Error::NotFound;
  if (!record.table(schema::NamedData::kTensorLayout).present()) return Error::NotImplemented;
  return layout_of(record);
}

Result<FreeableBuffer> FlatTensorDataMap::get_data(const char* key) const {
  Reader reader = this->reader();
  const Table record = find(reader, key);
  if (!record.present()) return Error::NotFound;
  const Span<const uint8_t> bytes = bytes_of(reader, record);
  return FreeableBuffer(bytes.data(), bytes.size(), nullptr);
}

Error FlatTensorDataMap::load_data_into(const char* key, void* buffer, size_t size) const {
  const Result<FreeableBuffer> bytes = get_data(key);
  if (!bytes.ok()) return bytes.error();
  TORCHETTE_CHECK(size == bytes->size(), InvalidArgument, "%s has %zu bytes, the buffer has %zu", key,
                  bytes->size(), size);
  if (size != 0) memcpy(buffer, bytes->data(), size);
  return Error::Ok;
}

Result<uint32_t> FlatTensorDataMap::get_num_keys() const {
  Reader reader = this->reader();
  return static_cast<uint32_t>(Table::root(&reader).tables(schema::FlatTensor::kNamedData).size());
}

Result<const char*> FlatTensorDataMap::get_key(uint32_t index) const {
  Reader reader = this->reader();
  const Tables named = Table::root(&reader).tables(schema::FlatTensor::kNamedData);
  TORCHETTE_CHECK(index < named.size(), InvalidArgument,
                  "key index %u is out of range: the data file has %zu keys", static_cast<unsigned>(index),
                  named.size());
  return named[index].string(schema::NamedData::kKey).data();
}

Error FlatTensorDataMap::get_tensor(const char* key, const TensorImpl& tensor, void** data) const {
  Reader reader = this->reader();
  const Table record = find(reader, key);
  TORCHETTE_CHECK(record.present(), NotFound, "the data file does not contain the tensor %s", key);
  TORCHETTE_CHECK(record.table(schema::NamedData::kTensorLayout).present(), InvalidExternalData,
                  "%s is not a tensor in the data file", key);
  const TensorLayout layout = layout_of(record);
  bool same = layout.scalar_type() == tensor.type && layout.sizes().size() == tensor.dim;
  for (size_t d = 0; same && d < tensor.dim; ++d)
    same = layout.sizes()[d] == tensor.sizes[d] && layout.dim_order()[d] == tensor.dim_order[d];
  TORCHETTE_CHECK(same, InvalidExternalData,
                  "%s has another dtype, shape or dim order in the data file than in the program", key);
  *data = const_cast<uint8_t*>(bytes_of(reader, record).data());
  return Error::Ok;
}

Result<FreeableBuffer> MergedDataMap::get_data(const char* key) const {
  for (const FlatTensorDataMap& map : maps_) {
    Result<FreeableBuffer> found = map.get_data(key);
    if (found.error() != Error::NotFound) return found;
  }
  TORCHETTE_LOG(Error, "neither the program nor its %zu data files contain data named %s", maps_.size(), key);
  return Error::NotFound;
}

Result<uint32_t> MergedDataMap::get_num_keys() const {
  uint32_t count = 0;
  for (const FlatTensorDataMap& map : maps_) count += *map.get_num_keys();
  return count;
}

Result<const char*> MergedDataMap::get_key(uint32_t index) const {
  for (const FlatTensorDataMap& map : maps_) {
    const uint32_t count = *map.get_num_keys();
    if (index < count) return map.get_key(index);
    index -= count;
  }
  return Error::InvalidArgument;
}

Error MergedDataMap::get_tensor(const char* key, const TensorImpl& tensor, void** data) const {
  for (const FlatTensorDataMap& map : maps_)
    if (map.get_data(key).ok()) return map.get_tensor(key, tensor, data);
  TORCHETTE_LOG(Error, "none of the %zu data files contains the tensor %s", maps_.size(), key);
  return Error::NotFound;
}

}  // namespace torchette::extension
