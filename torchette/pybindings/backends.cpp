// SPDX-License-Identifier: BSD-3-Clause
// Binds backends: those of this build, those of libraries, and their options.
#include "torchette/extension/backends.h"

#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/backend_options.h"

namespace torchette::pybindings {
void bind_backends(nb::module_& m) {
  if (const Error error = register_all_backends(); error != Error::Ok) throw runtime_fault(error);
  m.def(
      "load_backend",
      [](const std::string& path) {
        take_log();
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) throw Fault{Fault::Kind::Runtime, Error::AccessFailed, dlerror(), 0};
        using Entry = Backend* (*)();
        const auto entry = reinterpret_cast<Entry>(dlsym(library, "torchette_backend"));
        if (entry == nullptr)
          throw Fault{Fault::Kind::Runtime, Error::NotFound, path + " has no function torchette_backend", 0};
        Backend* backend = entry();
        // The library is never closed: methods may use its code.
        if (const Error error = register_backend(*backend); error != Error::Ok) throw runtime_fault(error);
        return text_of(backend->name);
      },
      nb::arg("path"));
  m.def("is_backend_available", [](const std::string& name) {
    const BackendInterface* backend = get_backend_class(name.c_str());
    return backend != nullptr && backend->is_available();
  });
  m.def("set_backend_option", [](const std::string& name, const std::string& key, nb::object value) {
    take_log();
    BackendOptions<1> options;
    Error error = Error::InvalidArgument;
    if (nb::isinstance<nb::bool_>(value)) {
      error = options.set_option(key.c_str(), nb::cast<bool>(value));
    } else if (nb::isinstance<nb::int_>(value)) {
      int number = 0;
      if (nb::try_cast(value, number)) error = options.set_option(key.c_str(), number);
    } else if (nb::isinstance<nb::str>(value)) {
      error = options.set_option(key.c_str(), nb::cast<std::string>(value).c_str());
    }
    if (error == Error::Ok) error = set_option(name.c_str(), options.view());
    if (error != Error::Ok) throw runtime_fault(error);
  });
  m.def("get_backend_option", [](const std::string& name, const std::string& key) -> nb::object {
    take_log();
    BackendOptions<1> options;
    Error error = options.set_option(key.c_str(), 0);
    if (error == Error::Ok) error = get_option(name.c_str(), options.view());
    if (error != Error::Ok) throw runtime_fault(error);
    const OptionValue& value = options.view()[0].value;
    if (const bool* truth = std::get_if<bool>(&value)) return nb::cast(*truth);
    if (const int* number = std::get_if<int>(&value)) return nb::cast(*number);
    return nb::cast(std::string(std::get<2>(value).data()));
  });
  m.def("backends", [] {
    nb::list names;
    for (size_t i = 0; i < get_num_registered_backends(); ++i)
      names.append(text_of(unwrap(get_backend_name(i))));
    return names;
  });
}

}  // namespace torchette::pybindings
