// SPDX-License-Identifier: BSD-3-Clause
// The functions that add the classes and functions of each file to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace torchette::pybindings {

class LoadedProgram;

void bind_faults(nb::module_& m);
void bind_signatures(nb::module_& m);
nb::class_<LoadedProgram> bind_programs(nb::module_& m);
/// Adds load_method() to the class of programs, too.
void bind_methods(nb::module_& m, nb::class_<LoadedProgram>& programs);
void bind_load_check(nb::module_& m);
void bind_backends(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_kernel_calls(nb::module_& m);
void bind_limits(nb::module_& m);
/// Language models. `m` is the submodule `llm`.
void bind_llm_engine(nb::module_& m);
void bind_llm_text(nb::module_& m);
void bind_llm_grammar(nb::module_& m);

}  // namespace torchette::pybindings
