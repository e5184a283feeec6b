// SPDX-License-Identifier: BSD-3-Clause
// NamedDataMap: named bytes outside of a program file, such as weights in a .ptd file. The runtime reads them
// when it loads a method. extension/flat_tensor.h implements the map for files.
#pragma once

#include "torchette/runtime/loader.h"
#include "torchette/runtime/tensor.h"

namespace torchette {

/// Metadata of named bytes that are a tensor.
class TensorLayout {
 public:
  TensorLayout(ScalarType type, Span<const SizesType> sizes, Span<const DimOrderType> dim_order,
               size_t nbytes)
      : sizes_(sizes), dim_order_(dim_order), nbytes_(nbytes), type_(type) {}
  ScalarType scalar_type() const { return type_; }
  Span<const SizesType> sizes() const { return sizes_; }
  Span<const DimOrderType> dim_order() const { return dim_order_; }
  size_t nbytes() const { return nbytes_; }

 private:
  Span<const SizesType> sizes_;
  Span<const DimOrderType> dim_order_;
  size_t nbytes_;
  ScalarType type_;
};

/// Must outlive the methods that are loaded with it. Must be thread-safe if several threads load methods.
class NamedDataMap {
 public:
  /// Error: NotFound.
  virtual Result<FreeableBuffer> get_data(const char* key) const = 0;
  virtual Result<uint32_t> get_num_keys() const = 0;
  /// Valid as long as the map. Error: InvalidArgument.
  virtual Result<const char*> get_key(uint32_t index) const = 0;
  /// Stores the address of a tensor's bytes, which stay valid as long as the map. Its dtype, sizes and dim
  /// order must match `tensor`; the runtime does not check them again. Errors: NotFound, InvalidExternalData.
  virtual Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const = 0;

 protected:
  ~NamedDataMap() = default;
};

}  // namespace torchette
