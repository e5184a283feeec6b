// SPDX-License-Identifier: BSD-3-Clause
// Shared code of torchette.runtime._native.llm: calls of the library, and tokenizers.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "torchette/llm/text/tokenizer.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"

namespace torchette::pybindings {

/// Holds a tokenizer. nanobind requires RTTI for classes with virtual functions, and the library has none.
struct TokenizerHolder {
  std::shared_ptr<extension::llm::Tokenizer> tokenizer;
};

/// Calls a function of the library without the GIL. Discards older log lines, so that an error has only its
/// own.
template <typename Work>
auto called(Work work) {
  take_log();
  const nb::gil_scoped_release release;
  return unwrap(work());
}

}  // namespace torchette::pybindings
