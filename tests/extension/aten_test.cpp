// SPDX-License-Identifier: BSD-3-Clause
// Converts torch tensors to Torchette tensors and back with shared memory, and calls the kernel of kernel.cpp
// as a function on torch tensors.
#include "torchette/extension/aten.h"

#include "kernel.cpp"
#include "tests/runtime/check.h"
#include "torchette/extension/compat/aten_bridge.h"

using namespace torchette::extension;

int main() {
  const at::Tensor a = at::arange(6, at::kFloat).reshape({2, 3});
  const TensorPtr ours = from_aten(a);
  CHECK(ours && ours->const_data_ptr() == a.data_ptr() && ours->size(1) == 3 && ours->strides()[0] == 3);
  const at::Tensor again = to_aten(*ours);
  CHECK(again.data_ptr() == a.data_ptr() && at::equal(again, a));
  again.fill_(7);
  CHECK(a[1][2].item<float>() == 7 && ours->const_data_ptr<float>()[0] == 7);
  const TensorPtr turned = from_aten(a.t());
  CHECK(turned && turned->dim_order()[0] == 1 && to_aten(*turned).strides() == a.t().strides());
  TensorPtr shared;
  {
    shared = from_aten(at::full({4}, 3, at::kHalf));
  }
  CHECK(shared->const_data_ptr<torchette::Half>()[3] == 3.0f && shared.use_count() == 1);
  CHECK(!from_aten(at::Tensor()) && !from_aten(a.slice(1, 0, 2)));

  // ExecuTorch's names of the conversions.
  const TensorPtr aliased = zeros({2, 3});
  at::Tensor source = at::rand({2, 3});
  torch::util::alias_etensor_to_attensor(source, *aliased);
  CHECK(aliased->const_data_ptr() == source.data_ptr());
  CHECK(torch::util::alias_attensor_to_etensor(*aliased).data_ptr() == source.data_ptr());
  CHECK(torch::util::torchToExecuTorchScalarType(source.dtype()) == torchette::ScalarType::Float);
  CHECK(torch::util::execuTorchtoTorchScalarType(torchette::ScalarType::Half) == c10::kHalf);
  CHECK(executorch::extension::alias_tensor_ptr_to_attensor(source)->const_data_ptr() == source.data_ptr());
  bool refused = false;
  try {
    at::Tensor other = at::rand({3, 2});
    torch::util::alias_etensor_to_attensor(other, *aliased);
  } catch (const c10::Error&) {
    refused = true;
  }
  CHECK(refused);

  constexpr auto scale = WRAP_TO_ATEN(torch::executor::native::scale_out, 3);
  const at::Tensor x = at::randn({2, 3}), b = at::randn({2, 3});
  at::Tensor out = at::empty({2, 3});
  CHECK(&scale(x, b, 1.5, out) == &out && at::allclose(out, (x + 1.5) * b));
  scale(x.slice(1, 0, 2), std::nullopt, 2, out);
  CHECK(out.sizes() == at::IntArrayRef({2, 2}) && at::allclose(out, x.slice(1, 0, 2) + 2));
  bool thrown = false;
  try {
    at::Tensor small = at::empty({1, 1});
    scale(x, b, 1, small);
  } catch (const c10::Error&) {
    thrown = true;
  }
  CHECK(thrown);
  std::printf("%d checks, %d failures\n", checks, failures);
  return failures == 0 ? 0 : 1;
}
