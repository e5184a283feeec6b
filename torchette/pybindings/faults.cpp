// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/pybindings/faults.h"

#include <nanobind/nanobind.h>

#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/values.h"

namespace torchette::pybindings {
namespace {

PyObject* fault_type = nullptr;

}  // namespace

void bind_faults(nb::module_& m) {
  fault_type = PyErr_NewException("torchette.runtime._native.Fault", nullptr, nullptr);
  m.attr("Fault") = nb::steal(fault_type);
  Py_INCREF(fault_type);
  // Arguments of the exception: kind, error code, text, index of the input.
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Fault& fault) {
      static constexpr const char* kKinds[] = {"runtime", "input", "input-type"};
      const nb::tuple arguments =
          nb::make_tuple(kKinds[static_cast<int>(fault.kind)], static_cast<uint32_t>(fault.error),
                         text_of({fault.text.data(), fault.text.size()}), fault.input);
      PyErr_SetObject(fault_type, arguments.ptr());
    }
  });
}

}  // namespace torchette::pybindings
