// SPDX-License-Identifier: BSD-3-Clause
// The native module of torchette.runtime: Python bindings of the C++ runtime. Arrays are used without a copy
// if their layout allows it. The module prints nothing; log lines become messages of exceptions.
#include <nanobind/nanobind.h>

#include "torchette/extension/shared_log.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/log.h"
#include "torchette/pybindings/program.h"

NB_MODULE(_native, m) {
  using namespace torchette;
  using namespace torchette::pybindings;
  // Objects that a script still holds at exit are not leaks, and the module prints nothing.
  nb::set_leak_warnings(false);
  extension::register_log(capture_log_line);

  bind_faults(m);
  bind_signatures(m);
  nb::class_<LoadedProgram> programs = bind_programs(m);
  bind_methods(m, programs);
  bind_load_check(m);
  bind_backends(m);
  bind_kernels(m);
  bind_kernel_calls(m);
  bind_limits(m);

  nb::module_ llm = m.def_submodule("llm");
  bind_llm_text(llm);
  bind_llm_grammar(llm);
  bind_llm_engine(llm);
}
