// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/signature.h"

#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/values.h"

namespace torchette::pybindings {
namespace {

nb::tuple pairs_of(Span<const SizesType> ranges) {
  nb::list pairs;
  for (size_t i = 0; i + 1 < ranges.size(); i += 2)
    pairs.append(nb::make_tuple(static_cast<int64_t>(ranges[i]), static_cast<int64_t>(ranges[i + 1])));
  return nb::tuple(pairs);
}

nb::object tensor_of(const TensorInfo& info) {
  return nb::cast(TensorSignature{
      tuple_of(info.sizes()), tuple_of(info.dim_order()), static_cast<int>(info.scalar_type()),
      info.shape_dynamism() != TensorShapeDynamism::STATIC, info.is_memory_planned(), info.nbytes(),
      text_of(info.name()), pairs_of(info.ranges())});
}

using TagOf = Result<Tag> (MethodMeta::*)(size_t) const;
using TensorOf = Result<TensorInfo> (MethodMeta::*)(size_t) const;

nb::list ports_of(const MethodMeta& meta, size_t count, TagOf tag_of, TensorOf info_of) {
  nb::list ports;
  for (size_t i = 0; i < count; ++i) {
    const Tag tag = unwrap((meta.*tag_of)(i));
    const nb::object tensor = tag == Tag::Tensor ? tensor_of(unwrap((meta.*info_of)(i))) : nb::none();
    ports.append(PortSignature{static_cast<int>(tag), tensor});
  }
  return ports;
}

}  // namespace

MethodSignature signature_of(const MethodMeta& meta) {
  MethodSignature signature;
  signature.name = text_of(meta.name());
  signature.inputs =
      ports_of(meta, meta.num_inputs(), &MethodMeta::input_tag, &MethodMeta::input_tensor_meta);
  signature.outputs =
      ports_of(meta, meta.num_outputs(), &MethodMeta::output_tag, &MethodMeta::output_tensor_meta);
  for (size_t i = 0, count = meta.num_attributes(); i < count; ++i)
    signature.attributes.append(tensor_of(unwrap(meta.attribute_tensor_meta(i))));
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i)
    signature.planned_sizes.append(unwrap(meta.memory_planned_buffer_size(i)));
  for (size_t i = 0; i < meta.num_backends(); ++i)
    signature.backend_names.append(text_of(unwrap(meta.get_backend_name(i))));
  signature.num_instructions = meta.num_instructions();
  signature.encoded_inputs = text_of(meta.encoded_inputs());
  signature.encoded_outputs = text_of(meta.encoded_outputs());
  return signature;
}

void bind_signatures(nb::module_& m) {
  nb::class_<TensorSignature>(m, "TensorSignature")
      .def_ro("sizes", &TensorSignature::sizes)
      .def_ro("dim_order", &TensorSignature::dim_order)
      .def_ro("dtype", &TensorSignature::dtype)
      .def_ro("is_dynamic", &TensorSignature::is_dynamic)
      .def_ro("is_memory_planned", &TensorSignature::is_memory_planned)
      .def_ro("nbytes", &TensorSignature::nbytes)
      .def_ro("name", &TensorSignature::name)
      .def_ro("ranges", &TensorSignature::ranges);
  nb::class_<PortSignature>(m, "PortSignature")
      .def_ro("tag", &PortSignature::tag)
      .def_ro("tensor", &PortSignature::tensor);
  nb::class_<MethodSignature>(m, "MethodSignature")
      .def_ro("name", &MethodSignature::name)
      .def_ro("inputs", &MethodSignature::inputs)
      .def_ro("outputs", &MethodSignature::outputs)
      .def_ro("attributes", &MethodSignature::attributes)
      .def_ro("planned_sizes", &MethodSignature::planned_sizes)
      .def_ro("backend_names", &MethodSignature::backend_names)
      .def_ro("num_instructions", &MethodSignature::num_instructions)
      .def_ro("encoded_inputs", &MethodSignature::encoded_inputs)
      .def_ro("encoded_outputs", &MethodSignature::encoded_outputs);
}

}  // namespace torchette::pybindings
