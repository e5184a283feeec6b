// SPDX-License-Identifier: BSD-3-Clause
// FlatTensorDataMap: a .ptd file, weights by name that programs share. The file is hostile until load() has
// passed; nothing is copied and nothing asks the heap.
#pragma once

#include <atomic>

#include "torchette/runtime/data_map.h"
#include "torchette/runtime/flat.h"

namespace torchette::extension {

class FlatTensorDataMap final : public NamedDataMap {
 public:
  /// Reads and checks the whole file, in time linear in its size. The loader must outlive
  /// the map. Errors: InvalidExternalData (not a .ptd file, or damaged), NotSupported (of a later version),
  /// those of the loader.
  static Result<FlatTensorDataMap> load(DataLoader* loader);
  FlatTensorDataMap(FlatTensorDataMap&& other) noexcept
      : bytes_(std::move(other.bytes_)), flatbuffer_size_(other.flatbuffer_size_), base_(other.base_) {}

  /// Errors: NotFound; NotImplemented (the bytes are not a tensor's).
  Result<const TensorLayout> get_tensor_layout(const char* key) const;
  /// `size` must be what the file has. Errors: NotFound, InvalidArgument.
  Error load_data_into(const char* key, void* buffer, size_t size) const;

  /// The bytes belong to the map and live as long as it.
  Result<FreeableBuffer> get_data(const char* key) const override;
  Result<uint32_t> get_num_keys() const override;
  Result<const char*> get_key(uint32_t index) const override;
  Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const override;

 private:
  explicit FlatTensorDataMap(FreeableBuffer&& bytes) : bytes_(std::move(bytes)) {}

  flat::Reader reader() const { return {bytes_.data(), flatbuffer_size_}; }
  Error verify();
  /// The record of that name; the absent table if there is none.
  flat::Table find(flat::Reader& reader, const char* key) const;
  Span<const uint8_t> bytes_of(flat::Reader& reader, const flat::Table& record) const;

  FreeableBuffer bytes_;  // the whole file
  size_t flatbuffer_size_ = 0;
  size_t base_ = 0;  // of the segments
  mutable std::atomic<size_t> expected_{
      0};  // programs ask in the order of the file: where the next one may be
};

/// Several maps as one; of equal names the first map's counts. They must outlive it.
class MergedDataMap final : public NamedDataMap {
 public:
  explicit MergedDataMap(Span<const FlatTensorDataMap> maps) : maps_(maps) {}

  Result<FreeableBuffer> get_data(const char* key) const override;
  Result<uint32_t> get_num_keys() const override;
  Result<const char*> get_key(uint32_t index) const override;
  Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const override;

 private:
  Span<const FlatTensorDataMap> maps_;
};

}  // namespace torchette::extension
