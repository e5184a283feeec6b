// SPDX-License-Identifier: BSD-3-Clause
// What each file of this folder adds to the module.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace torchette::pybindings {

class LoadedProgram;

void bind_faults(nb::module_& m);
void bind_signatures(nb::module_& m);
nb::class_<LoadedProgram> bind_programs(nb::module_& m);
/// Loading a method is a method of programs.
void bind_methods(nb::module_& m, nb::class_<LoadedProgram>& programs);
void bind_backends(nb::module_& m);
void bind_kernels(nb::module_& m);
void bind_kernel_calls(nb::module_& m);
void bind_limits(nb::module_& m);
/// Language models, each in the submodule `llm`.
void bind_llm_engine(nb::module_& m);
void bind_llm_text(nb::module_& m);
void bind_llm_grammar(nb::module_& m);

}  // namespace torchette::pybindings
