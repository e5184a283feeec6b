// SPDX-License-Identifier: BSD-3-Clause
// NamedDataMap: bytes by name that stand outside of a program, such as weights in a .ptd file. The runtime
// asks it while a method loads; extension/flat_tensor.h reads files into one.
#pragma once

#include "torchette/runtime/loader.h"
#include "torchette/runtime/tensor.h"

namespace torchette {

/// What bytes by a name are where they are a tensor's.
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

/// Must outlive the methods that are loaded with it. Used from several threads at once when methods are
/// loaded in them.
class NamedDataMap {
 public:
  /// Errors: NotFound.
  virtual Result<FreeableBuffer> get_data(const char* key) const = 0;
  virtual Result<uint32_t> get_num_keys() const = 0;
  /// Valid as long as the map. Error: InvalidArgument.
  virtual Result<const char*> get_key(uint32_t index) const = 0;
  /// The bytes of the tensor of that name, which stay as long as the map. Its dtype, sizes and dim order must
  /// be those of `tensor`, for whom nobody asks again. Errors: NotFound, InvalidExternalData.
  virtual Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const = 0;

 protected:
  ~NamedDataMap() = default;
};

}  // namespace torchette
