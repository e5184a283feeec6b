// SPDX-License-Identifier: BSD-3-Clause
// The native half of torchette.runtime: objects of the C++ runtime for Python, arrays without copies where
// their layout allows it. Prints nothing; log lines become messages of exceptions.
#include <nanobind/nanobind.h>

#include "torchette/extension/shared_log.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/log.h"
#include "torchette/pybindings/program.h"

NB_MODULE(_native, m) {
  using namespace torchette;
  using namespace torchette::pybindings;
  // what a script's own variables still hold when Python ends is no fault, and nothing of ours prints
  nb::set_leak_warnings(false);
  extension::register_log(capture_log_line);

  bind_faults(m);
  bind_signatures(m);
  nb::class_<LoadedProgram> programs = bind_programs(m);
  bind_methods(m, programs);
  bind_backends(m);
  bind_kernels(m);
  bind_kernel_calls(m);
  bind_limits(m);

  nb::module_ llm = m.def_submodule("llm");
  bind_llm_text(llm);
  bind_llm_grammar(llm);
  bind_llm_engine(llm);
}
