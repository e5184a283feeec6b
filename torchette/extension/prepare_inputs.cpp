// SPDX-License-Identifier: BSD-3-Clause
// Creates inputs with the sizes and dtypes in the metadata of a method.
#include "torchette/extension/prepare_inputs.h"

namespace torchette::extension {

Result<PreparedInputs> prepare_input_tensors(Method& method) {
  PreparedInputs inputs;
  const MethodMeta meta = method.method_meta();
  for (size_t i = 0; i < method.inputs_size(); ++i) {
    const Result<Tag> tag = meta.input_tag(i);
    if (!tag.ok()) return tag.error();
    if (*tag != Tag::Tensor) continue;
    const Result<TensorInfo> info = meta.input_tensor_meta(i);
    if (!info.ok()) return info.error();
    const TensorPtr plain =
        ones({info->sizes().begin(), info->sizes().end()}, info->scalar_type(), TensorShapeDynamism::STATIC);
    if (!plain) return Error::NotSupported;
    // All elements are equal, so a view has the right elements in every dim order.
    inputs.push_back(make_tensor_ptr(plain, {info->sizes().begin(), info->sizes().end()},
                                     {info->dim_order().begin(), info->dim_order().end()}));
    TORCHETTE_TRY(method.set_input(inputs.back(), i));
  }
  return inputs;
}

}  // namespace torchette::extension
