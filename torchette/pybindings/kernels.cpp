// SPDX-License-Identifier: BSD-3-Clause
// Binds the lists of kernels, and loads kernels of libraries.
#include <nanobind/nanobind.h>

#include <vector>

#include "torchette/extension/custom_library.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/log.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/kernel_registry.h"

namespace torchette::pybindings {
namespace {

std::vector<Kernels> loaded_kernels;  // those of libraries

nb::list names_of(Span<const Kernels> families) {
  nb::list names;
  for (const Kernels& family : families)
    for (const Kernel& kernel : family) names.append(nb::make_tuple(kernel.name, kernel.signature));
  return names;
}

/// Registers the kernels of a library. Returns [(schema, result)] of its operators.
nb::list load_library(const char* path) {
  take_log();
  PalImpl platform;
  platform.emit_log_message = capture_log_line;
  const Result<const extension::CustomLibrary*> library =
      extension::load_custom_library(path, platform, &loaded_kernels);
  if (!library.ok()) throw runtime_fault(library.error());
  nb::list ops;
  for (const extension::CustomOp* op = *(*library)->ops; op != nullptr; op = op->next)
    ops.append(nb::make_tuple(op->schema, op->result));
  return ops;
}

nb::list kernel_levels() {
  Kernels buffer[64];
  nb::list levels;
  for (const char* level : {"v4", "v3", "v1", "baseline"})
    if (!kernel_table_of(level, {buffer, 64}).empty()) levels.append(level);
  return levels;
}

}  // namespace

void bind_kernels(nb::module_& m) {
  m.def("isa", &kernel_isa, "The instruction-set level of the kernels: v1, v3, v4 or baseline.");
  m.def("levels", &kernel_levels, "The levels that this build has and this CPU supports, the best first.");
  m.def("load_library", &load_library, nb::arg("path"));
  m.def(
      "operators", [] { return names_of(kernel_table()); },
      "(name, signature) of every kernel of the table.");
  m.def(
      "loaded_operators", [] { return names_of({loaded_kernels.data(), loaded_kernels.size()}); },
      "(name, signature) of every kernel of the loaded libraries.");
}

}  // namespace torchette::pybindings
