// SPDX-License-Identifier: BSD-3-Clause
// TensorPtr: a tensor that owns its sizes and, if it was created from elements, its data. Requires a heap. If
// the arguments do not describe a tensor, the functions return null and log the reason.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <utility>
#include <vector>

#include "torchette/runtime/tensor.h"
#include "torchette/runtime/value.h"

namespace torchette::extension {

using TensorPtr = std::shared_ptr<Tensor>;
using Deleter = std::function<void(void*)>;

/// Returns a tensor that uses the caller's `data`. When the last pointer is destroyed, `deleter` is called
/// with `data`. An empty `dim_order` means the order of the strides or, without strides, row-major. Empty
/// `strides` mean a dense tensor.
TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, void* data, std::vector<DimOrderType> dim_order,
                          std::vector<StridesType> strides, ScalarType type = ScalarType::Float,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND,
                          Deleter deleter = nullptr);
inline TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, void* data,
                                 ScalarType type = ScalarType::Float,
                                 TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND,
                                 Deleter deleter = nullptr) {
  return make_tensor_ptr(std::move(sizes), data, {}, {}, type, dynamism, std::move(deleter));
}

/// The devices of ExecuTorch. Only the CPU is supported: functions with a Device parameter return null for
/// another device.
enum class DeviceType : int8_t { CPU = 0, CUDA = 1 };
using DeviceIndex = int8_t;
class Device {
 public:
  Device(DeviceType type, DeviceIndex index = 0) : type_(type), index_(index) {}
  DeviceType type() const { return type_; }
  DeviceIndex index() const { return index_; }
  bool is_cpu() const { return type_ == DeviceType::CPU; }
  bool operator==(const Device& other) const { return type_ == other.type_ && index_ == other.index_; }
  bool operator!=(const Device& other) const { return !(*this == other); }

 private:
  DeviceType type_;
  DeviceIndex index_;
};
TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, void* data, std::vector<DimOrderType> dim_order,
                          std::vector<StridesType> strides, ScalarType type, Device device,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND,
                          Deleter deleter = nullptr);
inline TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, void* data, ScalarType type, Device device,
                                 TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND,
                                 Deleter deleter = nullptr) {
  return make_tensor_ptr(std::move(sizes), data, {}, {}, type, device, dynamism, std::move(deleter));
}

/// Returns a tensor that owns `bytes`, the bytes of elements of `type`.
TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, std::vector<uint8_t> bytes,
                          std::vector<DimOrderType> dim_order, std::vector<StridesType> strides,
                          ScalarType type = ScalarType::Float,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND);
inline TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, std::vector<uint8_t> bytes,
                                 ScalarType type = ScalarType::Float,
                                 TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), std::move(bytes), {}, {}, type, dynamism);
}

/// Returns a tensor with a copy of the `count` elements of dtype `from` at `data`, converted to `type`.
TensorPtr copy_tensor_ptr(std::vector<SizesType> sizes, const void* data, size_t count, ScalarType from,
                          std::vector<DimOrderType> dim_order, std::vector<StridesType> strides,
                          ScalarType type, TensorShapeDynamism dynamism);

/// Returns a tensor with a copy of `data`, converted to `type`. Another overload accepts bytes.
template <typename T, typename = std::enable_if_t<kScalarType<T> != ScalarType::Undefined &&
                                                  !std::is_same_v<T, uint8_t> && !std::is_same_v<T, bool>>>
TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, const std::vector<T>& data,
                          std::vector<DimOrderType> dim_order = {}, std::vector<StridesType> strides = {},
                          ScalarType type = kScalarType<T>,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return copy_tensor_ptr(std::move(sizes), data.data(), data.size(), kScalarType<T>, std::move(dim_order),
                         std::move(strides), type, dynamism);
}
template <typename T = float, typename = std::enable_if_t<kScalarType<T> != ScalarType::Undefined>>
TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, std::initializer_list<T> data,
                          std::vector<DimOrderType> dim_order = {}, std::vector<StridesType> strides = {},
                          ScalarType type = kScalarType<T>,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return copy_tensor_ptr(std::move(sizes), data.begin(), data.size(), kScalarType<T>, std::move(dim_order),
                         std::move(strides), type, dynamism);
}
/// Returns a dense tensor with a copy of `data`. Another overload accepts a list of bytes.
template <typename T = float,
          typename = std::enable_if_t<kScalarType<T> != ScalarType::Undefined && !std::is_same_v<T, uint8_t>>>
TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, std::initializer_list<T> data, ScalarType type,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, {}, {}, type, dynamism);
}
/// Returns a tensor of one dimension with a copy of `data`.
template <typename T,
          typename = std::enable_if_t<kScalarType<T> != ScalarType::Undefined && !std::is_same_v<T, bool>>>
TensorPtr make_tensor_ptr(const std::vector<T>& data, ScalarType type = kScalarType<T>,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return copy_tensor_ptr({static_cast<SizesType>(data.size())}, data.data(), data.size(), kScalarType<T>, {},
                         {}, type, dynamism);
}
template <typename T = float, typename = std::enable_if_t<kScalarType<T> != ScalarType::Undefined>>
TensorPtr make_tensor_ptr(std::initializer_list<T> data, ScalarType type = kScalarType<T>,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return copy_tensor_ptr({static_cast<SizesType>(data.size())}, data.begin(), data.size(), kScalarType<T>, {},
                         {}, type, dynamism);
}
/// Returns a tensor without dimensions.
template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
TensorPtr make_tensor_ptr(T value) {
  return copy_tensor_ptr({}, &value, 1, kScalarType<T>, {}, {}, kScalarType<T>, TensorShapeDynamism::STATIC);
}
template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
TensorPtr make_tensor_ptr(T value, ScalarType type) {
  return copy_tensor_ptr({}, &value, 1, kScalarType<T>, {}, {}, type, TensorShapeDynamism::STATIC);
}
/// Returns a tensor that shares the data of `tensor` and does not own it. `sizes` must not have more elements
/// than `tensor`.
TensorPtr make_tensor_ptr(const Tensor& tensor, std::vector<SizesType> sizes = {},
                          std::vector<DimOrderType> dim_order = {}, std::vector<StridesType> strides = {},
                          Deleter deleter = nullptr);
/// Returns a tensor that shares the data of `tensor` and keeps it alive.
TensorPtr make_tensor_ptr(const TensorPtr& tensor, std::vector<SizesType> sizes = {},
                          std::vector<DimOrderType> dim_order = {}, std::vector<StridesType> strides = {});

/// Returns a copy of `tensor` with separate data, converted to `type`.
TensorPtr clone_tensor_ptr(const Tensor& tensor, ScalarType type);
inline TensorPtr clone_tensor_ptr(const Tensor& tensor) {
  return clone_tensor_ptr(tensor, tensor.scalar_type());
}
inline TensorPtr clone_tensor_ptr(const TensorPtr& tensor) { return clone_tensor_ptr(*tensor); }
inline TensorPtr clone_tensor_ptr(const TensorPtr& tensor, ScalarType type) {
  return clone_tensor_ptr(*tensor, type);
}
/// Resizes a tensor, to at most the number of elements that it was created with. Errors: those of
/// resize_tensor().
Error resize_tensor_ptr(TensorPtr& tensor, const std::vector<SizesType>& sizes);

inline TensorPtr from_blob(void* data, std::vector<SizesType> sizes, ScalarType type = ScalarType::Float,
                           TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, type, dynamism);
}
inline TensorPtr from_blob(void* data, std::vector<SizesType> sizes, std::vector<StridesType> strides,
                           ScalarType type = ScalarType::Float,
                           TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, {}, std::move(strides), type, dynamism);
}
inline TensorPtr from_blob(void* data, std::vector<SizesType> sizes, ScalarType type, Deleter deleter,
                           TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, type, dynamism, std::move(deleter));
}

inline TensorPtr from_blob(void* data, std::vector<SizesType> sizes, ScalarType type, Device device,
                           TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, type, device, dynamism);
}
inline TensorPtr from_blob(void* data, std::vector<SizesType> sizes, std::vector<StridesType> strides,
                           ScalarType type, Device device,
                           TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, {}, std::move(strides), type, device, dynamism);
}
inline TensorPtr from_blob(void* data, std::vector<SizesType> sizes, ScalarType type, Device device,
                           Deleter deleter,
                           TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return make_tensor_ptr(std::move(sizes), data, type, device, dynamism, std::move(deleter));
}

/// Builder with named arguments of make_tensor_ptr(): for_blob(data, {2, 3}).strides({1, 2}).deleter(free).
class TensorPtrMaker {
 public:
  TensorPtrMaker(void* data, std::vector<SizesType> sizes, ScalarType type)
      : data_(data), sizes_(std::move(sizes)), type_(type) {}

  TensorPtrMaker&& type(ScalarType type) && { return type_ = type, std::move(*this); }
  TensorPtrMaker&& dim_order(std::vector<DimOrderType> order) && {
    return dim_order_ = std::move(order), std::move(*this);
  }
  TensorPtrMaker&& strides(std::vector<StridesType> strides) && {
    return strides_ = std::move(strides), std::move(*this);
  }
  TensorPtrMaker&& dynamism(TensorShapeDynamism dynamism) && {
    return dynamism_ = dynamism, std::move(*this);
  }
  TensorPtrMaker&& device(Device device) && { return device_ = device, std::move(*this); }
  TensorPtrMaker&& deleter(Deleter deleter) && { return deleter_ = std::move(deleter), std::move(*this); }
  TensorPtr make_tensor_ptr() && {
    return extension::make_tensor_ptr(std::move(sizes_), data_, std::move(dim_order_), std::move(strides_),
                                      type_, device_, dynamism_, std::move(deleter_));
  }
  operator TensorPtr() && { return std::move(*this).make_tensor_ptr(); }

 private:
  void* data_;
  std::vector<SizesType> sizes_;
  std::vector<DimOrderType> dim_order_;
  std::vector<StridesType> strides_;
  ScalarType type_;
  Device device_ = DeviceType::CPU;
  TensorShapeDynamism dynamism_ = TensorShapeDynamism::DYNAMIC_BOUND;
  Deleter deleter_;
};
inline TensorPtrMaker for_blob(void* data, std::vector<SizesType> sizes,
                               ScalarType type = ScalarType::Float) {
  return {data, std::move(sizes), type};
}

/// Returns a tensor of zeros. Uninitialized memory would not be faster.
TensorPtr empty_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides,
                        ScalarType type = ScalarType::Float,
                        TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND);
TensorPtr full_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides, Scalar value,
                       ScalarType type = ScalarType::Float,
                       TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND);
/// Tensors of random values: rand is uniform over [0, 1), randn is normal with mean 0 and standard deviation
/// 1, randint is uniform over the integers [low, high).
TensorPtr rand_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides,
                       ScalarType type = ScalarType::Float,
                       TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND);
TensorPtr randn_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides,
                        ScalarType type = ScalarType::Float,
                        TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND);
TensorPtr randint_strided(int64_t low, int64_t high, std::vector<SizesType> sizes,
                          std::vector<StridesType> strides, ScalarType type = ScalarType::Int,
                          TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND);
inline TensorPtr scalar_tensor(Scalar value, ScalarType type = ScalarType::Float) {
  return full_strided({}, {}, value, type);
}

// The same functions for dense tensors, and with the sizes of another tensor.
inline TensorPtr empty(std::vector<SizesType> sizes, ScalarType type = ScalarType::Float,
                       TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return empty_strided(std::move(sizes), {}, type, dynamism);
}
inline TensorPtr rand(std::vector<SizesType> sizes, ScalarType type = ScalarType::Float,
                      TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return rand_strided(std::move(sizes), {}, type, dynamism);
}
inline TensorPtr randn(std::vector<SizesType> sizes, ScalarType type = ScalarType::Float,
                       TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return randn_strided(std::move(sizes), {}, type, dynamism);
}
inline TensorPtr full(std::vector<SizesType> sizes, Scalar value, ScalarType type = ScalarType::Float,
                      TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return full_strided(std::move(sizes), {}, value, type, dynamism);
}
inline TensorPtr zeros(std::vector<SizesType> sizes, ScalarType type = ScalarType::Float,
                       TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return full(std::move(sizes), Scalar(int64_t{0}), type, dynamism);
}
inline TensorPtr ones(std::vector<SizesType> sizes, ScalarType type = ScalarType::Float,
                      TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return full(std::move(sizes), Scalar(int64_t{1}), type, dynamism);
}
inline TensorPtr randint(int64_t low, int64_t high, std::vector<SizesType> sizes,
                         ScalarType type = ScalarType::Int,
                         TensorShapeDynamism dynamism = TensorShapeDynamism::DYNAMIC_BOUND) {
  return randint_strided(low, high, std::move(sizes), {}, type, dynamism);
}
inline std::vector<SizesType> sizes_of(const TensorPtr& t) { return {t->sizes().begin(), t->sizes().end()}; }
inline std::vector<StridesType> strides_of(const TensorPtr& t) {
  return {t->strides().begin(), t->strides().end()};
}
/// The dtype Undefined means the dtype of `other`.
inline TensorPtr full_like(const TensorPtr& other, Scalar value, ScalarType type = ScalarType::Undefined) {
  return full_strided(sizes_of(other), strides_of(other), value,
                      type == ScalarType::Undefined ? other->scalar_type() : type);
}
inline TensorPtr empty_like(const TensorPtr& other, ScalarType type = ScalarType::Undefined) {
  return full_like(other, Scalar(int64_t{0}), type);
}
inline TensorPtr zeros_like(const TensorPtr& other, ScalarType type = ScalarType::Undefined) {
  return full_like(other, Scalar(int64_t{0}), type);
}
inline TensorPtr ones_like(const TensorPtr& other, ScalarType type = ScalarType::Undefined) {
  return full_like(other, Scalar(int64_t{1}), type);
}
inline TensorPtr rand_like(const TensorPtr& other, ScalarType type = ScalarType::Undefined) {
  return rand_strided(sizes_of(other), strides_of(other),
                      type == ScalarType::Undefined ? other->scalar_type() : type);
}
inline TensorPtr randn_like(const TensorPtr& other, ScalarType type = ScalarType::Undefined) {
  return randn_strided(sizes_of(other), strides_of(other),
                       type == ScalarType::Undefined ? other->scalar_type() : type);
}
inline TensorPtr randint_like(const TensorPtr& other, int64_t low, int64_t high,
                              ScalarType type = ScalarType::Undefined) {
  return randint_strided(low, high, sizes_of(other), strides_of(other),
                         type == ScalarType::Undefined ? other->scalar_type() : type);
}

}  // namespace torchette::extension
