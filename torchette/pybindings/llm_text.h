// SPDX-License-Identifier: BSD-3-Clause
// Shared by the files of torchette.runtime._native.llm: calls of the library, and tokenizers.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "torchette/llm/text/tokenizer.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"

namespace torchette::pybindings {

/// The library has no RTTI, which nanobind requires of a class with virtual functions.
struct TokenizerHolder {
  std::shared_ptr<extension::llm::Tokenizer> tokenizer;
};

/// Calls a function of the library without the GIL. The text of its error has no older lines.
template <typename Work>
auto called(Work work) {
  take_log();
  const nb::gil_scoped_release others_run;
  return unwrap(work());
}

}  // namespace torchette::pybindings
