// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/outcomes.h"

#include <nanobind/ndarray.h>

#include <cstring>
#include <utility>

#include "torchette/runtime/kernel.h"
#include "torchette/runtime/tensor.h"

namespace torchette::pybindings {
namespace {

template <typename Framework>
nb::object array_of(void* data, const std::vector<size_t>& sizes, const std::vector<int64_t>& strides,
                    ScalarType type, nb::handle owner) {
  return nb::cast(
      nb::ndarray<Framework>(data, sizes.size(), sizes.data(), owner, strides.data(), dlpack_type_of(type)));
}

}  // namespace

void detach(const Tensor& tensor, Memory memory, Outcome& outcome) {
  const size_t size = tensor.nbytes();
  if (memory == nullptr || memory.get() != tensor.const_data_ptr()) {
    memory = allocate_memory(size);
    if (size != 0) memcpy(memory.get(), tensor.const_data_ptr(), size);
  }
  outcome.tag = Tag::Tensor;
  outcome.memory = std::move(memory);
  outcome.type = tensor.scalar_type();
  for (SizesType n : tensor.sizes()) outcome.sizes.push_back(static_cast<size_t>(n));
  for (StridesType n : tensor.strides()) outcome.strides.push_back(n);
}

Error detach(const Value& output, Memory memory, Outcome& outcome) {
  const auto add = [&](const Value& item) {
    outcome.is_list = true;
    return detach(item, nullptr, outcome.items.emplace_back());
  };
  outcome.tag = output.tag();
  switch (output.tag()) {
    case Tag::Tensor:
      detach(output.to_tensor(), std::move(memory), outcome);
      break;
    case Tag::String:
      outcome.text.assign(output.to_string().data(), output.to_string().size());
      break;
    case Tag::ListTensor:
      for (const Tensor& item : output.to_tensor_list()) TORCHETTE_TRY(add(item));
      break;
    case Tag::ListOptionalTensor:
      for (const Optional<Tensor>& item : output.to_optional_tensor_list())
        TORCHETTE_TRY(add(item.has_value() ? Value(item.value()) : Value()));
      break;
    case Tag::ListInt:
      for (int64_t item : output.to_int_list()) TORCHETTE_TRY(add(item));
      break;
    case Tag::ListDouble:
      for (double item : output.to_double_list()) TORCHETTE_TRY(add(item));
      break;
    case Tag::ListBool:
      for (bool item : output.to_bool_list()) TORCHETTE_TRY(add(item));
      break;
    default:
      outcome.value = output;
  }
  // Also for an empty list.
  outcome.is_list = output.tag() >= Tag::ListBool;
  return Error::Ok;
}

nb::object array_over(const Tensor& tensor, nb::handle owner) {
  const std::vector<size_t> sizes(tensor.sizes().begin(), tensor.sizes().end());
  const std::vector<int64_t> strides(tensor.strides().begin(), tensor.strides().end());
  return array_of<nb::numpy>(tensor.mutable_data_ptr(), sizes, strides, tensor.scalar_type(), owner);
}

bool is_torch_tensor(nb::handle object) {
  static PyTypeObject* cached_type = nullptr;  // guarded by the GIL
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type == cached_type) return true;
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(type, "__module__")) return false;
  const nb::object module_name = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__module__");
  if (!nb::isinstance<nb::str>(module_name)) return false;
  const char* name = nb::borrow<nb::str>(module_name).c_str();
  if (strncmp(name, "torch", 5) != 0 || (name[5] != 0 && name[5] != '.')) return false;
  cached_type = type;
  return true;
}

nb::object to_python(Outcome& outcome, bool torch) {
  if (outcome.is_list) {
    nb::list items;
    for (Outcome& item : outcome.items) items.append(to_python(item, torch));
    return items;
  }
  switch (outcome.tag) {
    case Tag::Tensor:
      break;
    case Tag::String:
      return text_of({outcome.text.data(), outcome.text.size()});
    default:
      return value_to_python(outcome.value);
  }
  if (outcome.type == ScalarType::BFloat16 && !torch) {
    // numpy has no bfloat16; float32 represents all its values exactly.
    size_t count = 1;
    for (size_t size : outcome.sizes) count *= size;
    Memory wide = allocate_memory(count * sizeof(float));
    for (size_t i = 0; i < count; ++i)
      static_cast<float*>(wide.get())[i] = static_cast<const BFloat16*>(outcome.memory.get())[i];
    outcome.memory = std::move(wide);
    outcome.type = ScalarType::Float;
  }
  void* data = outcome.memory.release();
  const nb::capsule owner(data, [](void* p) noexcept { free(p); });
  return torch ? array_of<nb::pytorch>(data, outcome.sizes, outcome.strides, outcome.type, owner)
               : array_of<nb::numpy>(data, outcome.sizes, outcome.strides, outcome.type, owner);
}

}  // namespace torchette::pybindings
