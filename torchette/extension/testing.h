// SPDX-License-Identifier: BSD-3-Clause
// Support for tests of kernels: creates tensors from lists of elements, compares tensors, and creates
// temporary files. Works with any test framework. If GoogleTest is included before, also defines
// EXPECT_TENSOR_EQ and EXPECT_TENSOR_CLOSE.
#pragma once

#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>
#include <vector>

#include "torchette/extension/element.h"
#include "torchette/extension/malloc_dynamic_allocator.h"
#include "torchette/extension/tensor_ptr.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension {

/// Creates tensors of one dtype, which are valid as long as the factory. Aborts if the arguments do not
/// describe a tensor.
template <ScalarType kType>
class TensorFactory {
  template <typename T>
  struct Is {
    using type = T;
  };
  template <typename T, typename... Others>
  struct Find : std::conditional_t<kScalarType<T> == kType, Is<T>, Find<Others...>> {};
  template <typename T>
  struct Find<T> : Is<T> {};

 public:
  /// The C++ type of an element. A bool is a byte, because std::vector<bool> has no array of elements.
  using Element = typename Find<uint8_t, int8_t, int16_t, int32_t, int64_t, Half, float, double, BFloat16,
                                uint16_t, uint32_t, uint64_t, uint8_t>::type;

  /// Creates a tensor from elements in memory order: row-major, or the order of `dim_order` or `strides`.
  Tensor make(const std::vector<SizesType>& sizes, const std::vector<Element>& data,
              const std::vector<StridesType>& strides = {},
              TensorShapeDynamism dynamism = TensorShapeDynamism::STATIC) {
    return add(sizes, data, {}, strides, dynamism);
  }
  Tensor make_with_dimorder(const std::vector<SizesType>& sizes, const std::vector<Element>& data,
                            const std::vector<DimOrderType>& dim_order,
                            TensorShapeDynamism dynamism = TensorShapeDynamism::STATIC) {
    return add(sizes, data, dim_order, {}, dynamism);
  }
  Tensor full(const std::vector<SizesType>& sizes, Element value,
              TensorShapeDynamism dynamism = TensorShapeDynamism::STATIC) {
    size_t count = 1;
    for (SizesType size : sizes) count *= static_cast<size_t>(size);
    return add(sizes, std::vector<Element>(count, value), {}, {}, dynamism);
  }
  Tensor zeros(const std::vector<SizesType>& sizes,
               TensorShapeDynamism dynamism = TensorShapeDynamism::STATIC) {
    return full(sizes, Element(0), dynamism);
  }
  Tensor ones(const std::vector<SizesType>& sizes,
              TensorShapeDynamism dynamism = TensorShapeDynamism::STATIC) {
    return full(sizes, Element(1), dynamism);
  }
  /// Creates a tensor with the sizes and dim order of `other`.
  Tensor full_like(const Tensor& other, Element value) {
    const std::vector<Element> data(static_cast<size_t>(other.numel()), value);
    return add({other.sizes().begin(), other.sizes().end()}, data,
               {other.dim_order().begin(), other.dim_order().end()}, {}, TensorShapeDynamism::STATIC);
  }
  Tensor zeros_like(const Tensor& other) { return full_like(other, Element(0)); }
  Tensor ones_like(const Tensor& other) { return full_like(other, Element(1)); }
  /// Creates an output like that of a method with unbounded sizes: `dim` dimensions, row-major, no elements,
  /// and no memory until resize_tensor() allocates exactly the required bytes. A kernel that writes before
  /// the resize ends the process. The address sanitizer reports the line of such a write and of a write
  /// beyond the size.
  Tensor unsized(size_t dim) {
    if (dim == 0 || dim > kMaxDim) runtime_abort();
    Unsized& tensor = unsized_.emplace_back();
    for (size_t d = 0; d < dim; ++d) tensor.order[d] = static_cast<DimOrderType>(d);
    static_cast<TensorImpl&>(tensor.impl) = {nullptr,
                                             tensor.sizes,
                                             tensor.strides,
                                             tensor.order,
                                             0,
                                             0,
                                             static_cast<uint8_t>(dim),
                                             kType,
                                             TensorShapeDynamism::OWNED};
    tensor.impl.memory = &tensor.memory;
    return Tensor(&tensor.impl);
  }

 private:
  struct Unsized {
    OwnedTensorImpl impl{};
    SizesType sizes[kMaxDim] = {};
    StridesType strides[kMaxDim] = {};
    DimOrderType order[kMaxDim] = {};
    MallocDynamicAllocator memory;
  };

  Tensor add(const std::vector<SizesType>& sizes, const std::vector<Element>& data,
             const std::vector<DimOrderType>& dim_order, const std::vector<StridesType>& strides,
             TensorShapeDynamism dynamism) {
    TensorPtr tensor =
        copy_tensor_ptr(sizes, data.data(), data.size(), kType, dim_order, strides, kType, dynamism);
    if (!tensor) runtime_abort();  // the log has the reason
    tensors_.push_back(std::move(tensor));
    return *tensors_.back();
  }

  std::vector<TensorPtr> tensors_;
  std::deque<Unsized> unsized_;
};

/// Returns whether both tensors have the same dtype and sizes and all elements satisfy |a - b| <= atol + rtol
/// * |b|. The dim orders may differ. NaN matches NaN.
inline bool tensors_are_close(const Tensor& a, const Tensor& b, double rtol = 1e-5, double atol = 1e-8) {
  if (a.scalar_type() != b.scalar_type() || a.dim() != b.dim() || !has_elements(a.scalar_type()))
    return false;
  for (ptrdiff_t d = 0; d < a.dim(); ++d)
    if (a.size(d) != b.size(d)) return false;
  for (ptrdiff_t i = 0; i < a.numel(); ++i) {
    size_t at[2] = {};
    ptrdiff_t remaining = i;
    for (ptrdiff_t d = a.dim() - 1; d >= 0; --d) {
      const auto coordinate = static_cast<size_t>(remaining % a.size(d));
      remaining /= a.size(d);
      at[0] += coordinate * static_cast<size_t>(a.strides()[static_cast<size_t>(d)]);
      at[1] += coordinate * static_cast<size_t>(b.strides()[static_cast<size_t>(d)]);
    }
    const Scalar x = get_element(a.const_data_ptr(), a.scalar_type(), at[0]);
    const Scalar y = get_element(b.const_data_ptr(), b.scalar_type(), at[1]);
    if (!x.is_floating() && x.to_int() == y.to_int()) continue;
    if (!x.is_floating() && rtol == 0 && atol == 0) return false;
    const double p = x.to_double(), q = y.to_double();
    if (p == q || (std::isnan(p) && std::isnan(q))) continue;
    if (!(std::fabs(p - q) <= atol + rtol * std::fabs(q)) || std::isinf(q)) return false;
  }
  return true;
}
inline bool tensors_are_equal(const Tensor& a, const Tensor& b) { return tensors_are_close(a, b, 0, 0); }

/// A file with these bytes, which the destructor deletes.
class TempFile {
 public:
  explicit TempFile(const void* data = nullptr, size_t size = 0) {
    const char* const folder = getenv("TMPDIR");
    path_ = std::string(folder != nullptr ? folder : "/tmp") + "/torchette-XXXXXX";
    const int file = mkstemp(path_.data());
    if (file < 0 || write(file, data, size) != static_cast<ssize_t>(size) || close(file) != 0)
      runtime_abort();
  }
  explicit TempFile(const std::string& contents) : TempFile(contents.data(), contents.size()) {}
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  ~TempFile() { std::remove(path_.c_str()); }

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace torchette::extension

#ifdef EXPECT_TRUE
#define EXPECT_TENSOR_EQ(a, b) EXPECT_TRUE(::torchette::extension::tensors_are_equal(a, b))
#define EXPECT_TENSOR_CLOSE(a, b) EXPECT_TRUE(::torchette::extension::tensors_are_close(a, b))
#define EXPECT_TENSOR_CLOSE_WITH_TOL(a, b, rtol, atol) \
  EXPECT_TRUE(::torchette::extension::tensors_are_close(a, b, rtol, atol))
#define ASSERT_TENSOR_EQ(a, b) ASSERT_TRUE(::torchette::extension::tensors_are_equal(a, b))
#define ASSERT_TENSOR_CLOSE(a, b) ASSERT_TRUE(::torchette::extension::tensors_are_close(a, b))
#endif

// The same names in ExecuTorch's namespaces.
namespace executorch::runtime::testing {
using ::torchette::extension::TensorFactory;
}
namespace torch::executor::testing {
using ::torchette::extension::TensorFactory;
}
namespace torchette::extension::testing {
using ::torchette::extension::TempFile;
}
