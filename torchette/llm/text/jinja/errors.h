// SPDX-License-Identifier: BSD-3-Clause
// The errors of templates that cannot be read. Each function logs the line and the message and returns the
// code.
#pragma once

#include <string>

#include "torchette/runtime/error.h"

namespace torchette::extension::llm::jinja {

/// The template is not valid: InvalidExternalData.
Error syntax_error(int line, const std::string& message);
/// The template uses a part of Jinja that is not implemented: NotSupported.
Error unsupported_error(int line, const std::string& feature);

}  // namespace torchette::extension::llm::jinja
