// SPDX-License-Identifier: BSD-3-Clause
// Tokenizers of torchette.runtime._native.llm, for the files that take one.
#pragma once

#include <memory>

#include "torchette/llm/text/tokenizer.h"

namespace torchette::pybindings {

/// The library has no RTTI, which nanobind requires of a class with virtual functions.
struct TokenizerHolder {
  std::shared_ptr<extension::llm::Tokenizer> tokenizer;
};

}  // namespace torchette::pybindings
