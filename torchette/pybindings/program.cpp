// SPDX-License-Identifier: BSD-3-Clause
// What MethodMeta tells, in dicts and tuples.
#include "torchette/pybindings/program.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <cstring>

#include "torchette/extension/module.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/values.h"

namespace torchette::pybindings {
namespace {

/// (sizes, dim order, dtype number, dynamic, planned, bytes, name, least and greatest size of each dimension)
nb::tuple describe(const TensorInfo& info) {
  return nb::make_tuple(tuple_of(info.sizes()), tuple_of(info.dim_order()),
                        static_cast<int>(info.scalar_type()),
                        info.shape_dynamism() != TensorShapeDynamism::STATIC, info.is_memory_planned(),
                        info.nbytes(), text_of(info.name()), tuple_of(info.ranges()));
}

/// A dict of all that MethodMeta tells.
nb::dict describe_method(const SharedProgram& shared, const char* name) {
  const MethodMeta meta = unwrap(shared->program().method_meta(name));
  nb::list inputs, outputs, attributes, buffers, backends;
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const Tag tag = unwrap(meta.input_tag(i));
    nb::object info = nb::none();
    if (tag == Tag::Tensor) info = describe(unwrap(meta.input_tensor_meta(i)));
    inputs.append(nb::make_tuple(static_cast<int>(tag), info));
  }
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    const Tag tag = unwrap(meta.output_tag(i));
    nb::object info = nb::none();
    if (tag == Tag::Tensor) info = describe(unwrap(meta.output_tensor_meta(i)));
    outputs.append(nb::make_tuple(static_cast<int>(tag), info));
  }
  for (size_t i = 0, count = meta.num_attributes(); i < count; ++i)
    attributes.append(describe(unwrap(meta.attribute_tensor_meta(i))));
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i)
    buffers.append(unwrap(meta.memory_planned_buffer_size(i)));
  for (size_t i = 0; i < meta.num_backends(); ++i) backends.append(text_of(unwrap(meta.get_backend_name(i))));
  nb::dict result;
  result["name"] = text_of(meta.name());
  result["inputs"] = inputs;
  result["outputs"] = outputs;
  result["attributes"] = attributes;
  result["planned"] = buffers;
  result["backends"] = backends;
  result["instructions"] = meta.num_instructions();
  result["encoded_inputs"] = text_of(meta.encoded_inputs());
  result["encoded_outputs"] = text_of(meta.encoded_outputs());
  return result;
}

nb::list method_names(const SharedProgram& shared) {
  nb::list names;
  for (size_t i = 0; i < shared->program().num_methods(); ++i)
    names.append(text_of(unwrap(shared->program().get_method_name(i))));
  return names;
}

Program::Verification verification(bool verify) {
  return verify ? Program::Verification::InternalConsistency : Program::Verification::Minimal;
}

}  // namespace

nb::class_<LoadedProgram> bind_programs(nb::module_& m) {
  m.attr("PORTABLE") = extension::Module::kPortable;
  m.def(
      "xxh64",
      [](nb::handle bytes) {
        const View view(bytes);
        const Py_buffer& it = view.get();
        nb::gil_scoped_release others_run;
        return extension::xxh64(it.buf, static_cast<size_t>(it.len));
      },
      nb::arg("bytes"));
  return nb::class_<LoadedProgram>(m, "Program")
      .def_static(
          "from_path",
          [](const std::string& path, bool verify) {
            take_log();
            return std::make_shared<LoadedProgram>(path, verification(verify));
          },
          nb::arg("path"), nb::arg("verify"))
      .def_static(
          "from_bytes",
          [](nb::handle bytes, bool verify) {
            take_log();
            return std::make_shared<LoadedProgram>(bytes, verification(verify));
          },
          nb::arg("bytes"), nb::arg("verify"))
      .def(
          "add_data_file",
          [](LoadedProgram& program, const std::string& path) {
            take_log();
            program.add_data_file(path);
          },
          nb::arg("path"))
      .def("enable_etdump", &LoadedProgram::enable_etdump, nb::arg("debug_buffer_size"))
      .def("take_etdump", &LoadedProgram::take_etdump)
      .def(
          "set_bundled_input_index",
          [](LoadedProgram& program, int index) {
            const std::lock_guard<std::mutex> lock(program.etdump_mutex());
            program.etdump()->set_bundled_input_index(index);
          },
          nb::arg("index"))
      .def("verify_integrity",
           [](const LoadedProgram& program) {
             take_log();
             program.verify_integrity();
           })
      .def_prop_ro("method_names", &method_names)
      .def("describe", &describe_method, nb::arg("method"));
}

}  // namespace torchette::pybindings
