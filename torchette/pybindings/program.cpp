// SPDX-License-Identifier: BSD-3-Clause
// Binds a program: opening, data files, signatures of its methods.
#include "torchette/pybindings/program.h"

#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include "torchette/extension/receipt.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/signature.h"
#include "torchette/pybindings/values.h"

namespace torchette::pybindings {
namespace {

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
        const Py_buffer& buffer = view.get();
        nb::gil_scoped_release release;
        return extension::xxh64(buffer.buf, static_cast<size_t>(buffer.len));
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
            const std::unique_lock<std::recursive_mutex> lock = program.lock();
            program.etdump()->set_bundled_input_index(index);
          },
          nb::arg("index"))
      .def("verify_integrity",
           [](LoadedProgram& program) {
             take_log();
             program.verify_integrity();
           })
      .def_prop_ro("method_names", &method_names)
      .def(
          "signature",
          [](const SharedProgram& shared, const std::string& method) {
            return signature_of(unwrap(shared->program().method_meta(method.c_str())));
          },
          nb::arg("method"));
}

}  // namespace torchette::pybindings
