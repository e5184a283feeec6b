// SPDX-License-Identifier: BSD-3-Clause
// FlatTensorDataMap: a .ptd file, which contains weights by name for one or more programs. load() checks the
// file, which is untrusted. Nothing is copied or allocated.
#pragma once

#include <atomic>

#include "torchette/runtime/data_map.h"
#include "torchette/runtime/flat.h"

namespace torchette::extension {

class FlatTensorDataMap final : public NamedDataMap {
 public:
  /// Reads and checks the file, in time linear in its size. The loader must outlive the map. Errors:
  /// InvalidExternalData (not a .ptd file, or damaged), NotSupported (a later version), those of the loader.
  static Result<FlatTensorDataMap> load(DataLoader* loader);
  FlatTensorDataMap(FlatTensorDataMap&& other) noexcept
      : bytes_(std::move(other.bytes_)), flatbuffer_size_(other.flatbuffer_size_), base_(other.base_) {}

  /// Returns the layout of a tensor. Errors: NotFound, NotImplemented (the data is not a tensor).
  Result<const TensorLayout> get_tensor_layout(const char* key) const;
  /// Copies the data of `key` to `buffer`. `size` must be the size of the data. Errors: NotFound,
  /// InvalidArgument.
  Error load_data_into(const char* key, void* buffer, size_t size) const;

  /// Returns a view of the data of `key`, which is valid as long as the map. Error: NotFound.
  Result<FreeableBuffer> get_data(const char* key) const override;
  Result<uint32_t> get_num_keys() const override;
  Result<const char*> get_key(uint32_t index) const override;
  Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const override;

 private:
  explicit FlatTensorDataMap(FreeableBuffer&& bytes) : bytes_(std::move(bytes)) {}

  flat::Reader reader() const { return {bytes_.data(), flatbuffer_size_}; }
  Error verify();
  /// Returns the record of a name, or an absent table if the name does not exist.
  flat::Table find(flat::Reader& reader, const char* key) const;
  Span<const uint8_t> bytes_of(flat::Reader& reader, const flat::Table& record) const;

  FreeableBuffer bytes_;  // of the file
  size_t flatbuffer_size_ = 0;
  size_t base_ = 0;  // of the segments
  // Index where find() starts its search: programs request entries in the order of the file.
  mutable std::atomic<size_t> next_index_{0};
};

/// Combines several maps, which must outlive the object. If two maps contain the same name, the first one is
/// used.
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
