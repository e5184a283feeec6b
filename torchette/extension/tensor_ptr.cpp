// SPDX-License-Identifier: BSD-3-Clause
// All overloads create a Storage: one allocation with the tensor, its sizes, strides and dim order.
#include "torchette/extension/tensor_ptr.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "torchette/extension/element.h"
#include "torchette/runtime/platform.h"

namespace torchette::extension {
namespace {

struct Storage {
  std::vector<SizesType> sizes;
  std::vector<StridesType> strides;
  std::vector<DimOrderType> dim_order;
  Deleter deleter;
  TensorImpl impl{};
  Tensor tensor{&impl};

  Storage() = default;
  Storage(const Storage&) = delete;
  ~Storage() {
    if (deleter) deleter(impl.data);
  }
};

bool is_permutation(const std::vector<DimOrderType>& order) {
  std::vector<bool> seen(order.size());
  for (DimOrderType d : order) {
    if (d >= order.size() || seen[d]) return false;
    seen[d] = true;
  }
  return true;
}

template <typename Generator>
TensorPtr fill(std::vector<SizesType> sizes, std::vector<StridesType> strides, ScalarType type,
               TensorShapeDynamism dynamism, Generator generate) {
  int64_t count = 1;
  for (SizesType size : sizes) count = size < 0 || count > INT32_MAX ? 0 : count * size;
  if (count > INT32_MAX) count = 0;
  std::vector<uint8_t> bytes(static_cast<size_t>(count) * element_size(type));
  if (!has_elements(type)) bytes.clear();
  for (size_t i = 0; i < bytes.size() / std::max<size_t>(element_size(type), 1); ++i)
    set_element(bytes.data(), type, i, generate());
  return make_tensor_ptr(std::move(sizes), std::move(bytes), {}, std::move(strides), type, dynamism);
}

std::mt19937_64& generator() {
  static thread_local std::mt19937_64 state{std::random_device{}()};
  return state;
}

}  // namespace

TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, void* data, std::vector<DimOrderType> dim_order,
                          std::vector<StridesType> strides, ScalarType type, TensorShapeDynamism dynamism,
                          Deleter deleter) {
  auto storage = std::make_shared<Storage>();
  storage->impl.data = data;
  storage->deleter = std::move(deleter);
  const size_t n = sizes.size();
  if (n > kMaxDim || element_size(type) == 0) {
    TORCHETTE_LOG(Error, "invalid tensor: %zu dimensions (at most %zu), dtype %s", n, size_t{kMaxDim},
                  dtype_name(type));
    return nullptr;
  }
  if ((!strides.empty() && strides.size() != n) || (!dim_order.empty() && dim_order.size() != n)) {
    TORCHETTE_LOG(Error, "a tensor has %zu sizes, %zu strides and a dim order of %zu: the counts must match",
                  n, strides.size(), dim_order.size());
    return nullptr;
  }
  if (dim_order.empty()) {
    dim_order.resize(n);
    std::iota(dim_order.begin(), dim_order.end(), DimOrderType{0});
    if (!strides.empty())
      std::stable_sort(dim_order.begin(), dim_order.end(),
                       [&](DimOrderType a, DimOrderType b) { return strides[a] > strides[b]; });
  }
  std::vector<StridesType> dense(n);
  const bool is_permuted = is_permutation(dim_order);
  const Result<int32_t> numel =
      is_permuted ? dense_strides(sizes, dim_order.data(), dense.data()) : Error::InvalidArgument;
  bool is_dense = numel.ok();
  for (size_t d = 0; is_dense && d < strides.size(); ++d)
    is_dense = strides[d] == dense[d] || sizes[d] <= 1 || *numel == 0;
  if (!is_dense) {
    TORCHETTE_LOG(Error, "the sizes, strides and dim order do not describe a dense tensor");
    return nullptr;
  }
  storage->sizes = std::move(sizes);
  storage->strides = std::move(dense);
  storage->dim_order = std::move(dim_order);
  storage->impl = {data,
                   storage->sizes.data(),
                   storage->strides.data(),
                   storage->dim_order.data(),
                   static_cast<size_t>(*numel),
                   *numel,
                   static_cast<uint8_t>(n),
                   type,
                   dynamism};
  return {storage, &storage->tensor};
}

TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, void* data, std::vector<DimOrderType> dim_order,
                          std::vector<StridesType> strides, ScalarType type, Device device,
                          TensorShapeDynamism dynamism, Deleter deleter) {
  if (!device.is_cpu()) {
    TORCHETTE_LOG(Error, "device type %d is not supported: tensors must be on the CPU (0)",
                  static_cast<int>(device.type()));
    if (deleter) deleter(data);
    return nullptr;
  }
  return make_tensor_ptr(std::move(sizes), data, std::move(dim_order), std::move(strides), type, dynamism,
                         std::move(deleter));
}

TensorPtr make_tensor_ptr(std::vector<SizesType> sizes, std::vector<uint8_t> bytes,
                          std::vector<DimOrderType> dim_order, std::vector<StridesType> strides,
                          ScalarType type, TensorShapeDynamism dynamism) {
  auto owned = std::make_shared<std::vector<uint8_t>>(std::move(bytes));
  TensorPtr result = make_tensor_ptr(std::move(sizes), owned->data(), std::move(dim_order),
                                     std::move(strides), type, dynamism, [owned](void*) {});
  if (result && result->nbytes() != owned->size()) {
    TORCHETTE_LOG(Error, "got %zu bytes for a tensor of %zu bytes", owned->size(), result->nbytes());
    return nullptr;
  }
  return result;
}

TensorPtr copy_tensor_ptr(std::vector<SizesType> sizes, const void* data, size_t count, ScalarType from,
                          std::vector<DimOrderType> dim_order, std::vector<StridesType> strides,
                          ScalarType type, TensorShapeDynamism dynamism) {
  std::vector<uint8_t> bytes(count * element_size(type));
  if (from == type) {
    if (count != 0) memcpy(bytes.data(), data, bytes.size());
  } else if (has_elements(from) && has_elements(type)) {
    for (size_t i = 0; i < count; ++i) set_element(bytes.data(), type, i, get_element(data, from, i));
  } else {
    TORCHETTE_LOG(Error, "cannot convert %s to %s", dtype_name(from), dtype_name(type));
    return nullptr;
  }
  return make_tensor_ptr(std::move(sizes), std::move(bytes), std::move(dim_order), std::move(strides), type,
                         dynamism);
}

TensorPtr make_tensor_ptr(const Tensor& tensor, std::vector<SizesType> sizes,
                          std::vector<DimOrderType> dim_order, std::vector<StridesType> strides,
                          Deleter deleter) {
  if (sizes.empty()) sizes.assign(tensor.sizes().begin(), tensor.sizes().end());
  if (dim_order.empty() && strides.empty() && sizes.size() == tensor.dim_order().size())
    dim_order.assign(tensor.dim_order().begin(), tensor.dim_order().end());
  TensorPtr result =
      make_tensor_ptr(std::move(sizes), tensor.mutable_data_ptr(), std::move(dim_order), std::move(strides),
                      tensor.scalar_type(), tensor.shape_dynamism(), std::move(deleter));
  if (result && result->numel() > tensor.numel()) {
    TORCHETTE_LOG(Error, "a view of %zd elements exceeds its tensor of %zd elements", result->numel(),
                  tensor.numel());
    return nullptr;
  }
  return result;
}

TensorPtr make_tensor_ptr(const TensorPtr& tensor, std::vector<SizesType> sizes,
                          std::vector<DimOrderType> dim_order, std::vector<StridesType> strides) {
  return make_tensor_ptr(*tensor, std::move(sizes), std::move(dim_order), std::move(strides),
                         [tensor](void*) {});
}

TensorPtr clone_tensor_ptr(const Tensor& tensor, ScalarType type) {
  return copy_tensor_ptr({tensor.sizes().begin(), tensor.sizes().end()}, tensor.const_data_ptr(),
                         static_cast<size_t>(tensor.numel()), tensor.scalar_type(),
                         {tensor.dim_order().begin(), tensor.dim_order().end()}, {}, type,
                         tensor.shape_dynamism());
}

Error resize_tensor_ptr(TensorPtr& tensor, const std::vector<SizesType>& sizes) {
  return resize_tensor(*tensor, sizes);
}

TensorPtr full_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides, Scalar value,
                       ScalarType type, TensorShapeDynamism dynamism) {
  return fill(std::move(sizes), std::move(strides), type, dynamism, [&] { return value; });
}

TensorPtr empty_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides, ScalarType type,
                        TensorShapeDynamism dynamism) {
  return full_strided(std::move(sizes), std::move(strides), Scalar(int64_t{0}), type, dynamism);
}

TensorPtr rand_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides, ScalarType type,
                       TensorShapeDynamism dynamism) {
  std::uniform_real_distribution<double> uniform;
  return fill(std::move(sizes), std::move(strides), type, dynamism,
              [&] { return Scalar(uniform(generator())); });
}

TensorPtr randn_strided(std::vector<SizesType> sizes, std::vector<StridesType> strides, ScalarType type,
                        TensorShapeDynamism dynamism) {
  std::normal_distribution<double> normal;
  return fill(std::move(sizes), std::move(strides), type, dynamism,
              [&] { return Scalar(normal(generator())); });
}

TensorPtr randint_strided(int64_t low, int64_t high, std::vector<SizesType> sizes,
                          std::vector<StridesType> strides, ScalarType type, TensorShapeDynamism dynamism) {
  if (low >= high) {
    TORCHETTE_LOG(Error, "the range [%lld, %lld) contains no integer", static_cast<long long>(low),
                  static_cast<long long>(high));
    return nullptr;
  }
  std::uniform_int_distribution<int64_t> uniform(low, high - 1);
  return fill(std::move(sizes), std::move(strides), type, dynamism,
              [&] { return Scalar(uniform(generator())); });
}

}  // namespace torchette::extension
