// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/runtime/tensor.h"

#include "check.h"
#include "torchette/runtime/value.h"

using namespace torchette;

namespace {

struct TestTensor {
  SizesType sizes[4];
  StridesType strides[4];
  DimOrderType order[4];
  TensorImpl impl;
  Tensor tensor;

  TestTensor(std::initializer_list<int> s, std::initializer_list<int> o, TensorShapeDynamism dynamism)
      : tensor(&impl) {
    size_t i = 0;
    for (int n : s) sizes[i++] = n;
    i = 0;
    for (int n : o) order[i++] = static_cast<DimOrderType>(n);
    const Result<int32_t> numel = dense_strides({sizes, s.size()}, order, strides);
    impl = {nullptr,
            sizes,
            strides,
            order,
            static_cast<size_t>(*numel),
            *numel,
            static_cast<uint8_t>(s.size()),
            ScalarType::Float,
            dynamism};
  }
};

constexpr auto kStatic = TensorShapeDynamism::STATIC;
constexpr auto kBound = TensorShapeDynamism::DYNAMIC_BOUND;

void strides() {
  const SizesType sizes[] = {2, 3, 4, 5};
  const DimOrderType contiguous[] = {0, 1, 2, 3}, channels_last[] = {0, 2, 3, 1};
  StridesType s[4];
  CHECK(*dense_strides(sizes, contiguous, s) == 120);
  CHECK(s[0] == 60 && s[1] == 20 && s[2] == 5 && s[3] == 1);
  CHECK(*dense_strides(sizes, channels_last, s) == 120);
  CHECK(s[0] == 60 && s[1] == 1 && s[2] == 15 && s[3] == 3);
  const SizesType empty[] = {2, 0, 4, 5};
  CHECK(*dense_strides(empty, contiguous, s) == 0);
  const SizesType large[] = {65536, 65536, 1, 1}, negative[] = {2, -1, 1, 1};
  CHECK(!dense_strides(large, contiguous, s).ok());
  CHECK(!dense_strides(negative, contiguous, s).ok());
  const SizesType larger[] = {INT32_MAX, INT32_MAX, INT32_MAX, INT32_MAX},
                  hidden[] = {0, INT32_MAX, INT32_MAX, 2};
  CHECK(!dense_strides(larger, contiguous, s).ok());
  CHECK(!dense_strides(hidden, contiguous, s).ok());
  CHECK(*dense_strides({}, contiguous, s) == 1);
}

void layout() {
  TestTensor a({2, 3, 4}, {0, 1, 2}, kStatic), b({2, 3, 4}, {0, 2, 1}, kStatic),
      c({2, 1, 4}, {0, 2, 1}, kStatic);
  CHECK(is_contiguous(a.tensor));
  CHECK(!is_contiguous(b.tensor));
  CHECK(is_contiguous(c.tensor));  // a dimension of size 1 does not affect the layout
  TestTensor d({2, 1, 4}, {0, 1, 2}, kStatic);
  CHECK(same_dim_order(c.tensor, d.tensor));
  CHECK(!same_dim_order(a.tensor, b.tensor));
  TestTensor e({2, 3}, {0, 1}, kStatic);
  CHECK(!same_dim_order(a.tensor, e.tensor));
}

void resize() {
  TestTensor a({4, 3}, {1, 0}, kBound);
  const SizesType smaller[] = {2, 3}, larger[] = {5, 3}, other[] = {12}, negative[] = {-1, 3},
                  wide[] = {1, 12};
  CHECK(resize_tensor(a.tensor, smaller) == Error::Ok);
  CHECK(a.tensor.numel() == 6 && a.strides[0] == 1 && a.strides[1] == 2);
  CHECK(resize_tensor(a.tensor, larger) == Error::MemoryAllocationFailed);
  CHECK(resize_tensor(a.tensor, other) == Error::NotSupported);
  CHECK(resize_tensor(a.tensor, negative) == Error::InvalidArgument);
  CHECK(a.tensor.size(0) == 2);
  CHECK(resize_tensor(a.tensor, wide) == Error::Ok);
  CHECK(a.tensor.nbytes() == 48);
  TestTensor fixed({4, 3}, {0, 1}, kStatic);
  const SizesType same[] = {4, 3};
  CHECK(resize_tensor(fixed.tensor, same) == Error::Ok);
  CHECK(resize_tensor(fixed.tensor, smaller) == Error::NotSupported);
}

void halves() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const float f = Half::to_float(static_cast<uint16_t>(bits));
    if (f == f) CHECK(Half::from_float(f) == bits);
  }
  CHECK(float(Half(65504.0f)) == 65504.0f);
  CHECK(float(Half(65520.0f)) > 1e30f);
  CHECK(float(BFloat16(1.0f + 1.0f / 256)) == 1.0f);  // rounds a tie to even
}

void values() {
  CHECK(Value().is_none());
  CHECK(Value(int64_t{3}).to_double() == 3.0);
  CHECK(Value(2.5).to_scalar().is_floating());
  CHECK(Value(true).to_scalar().is_bool());
  CHECK(!Value(true).is_int());
}

}  // namespace

void tensor_tests() {
  strides();
  layout();
  resize();
  halves();
  values();
}
