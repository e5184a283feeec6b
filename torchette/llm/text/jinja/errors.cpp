// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/jinja/errors.h"

#include "torchette/runtime/platform.h"

namespace torchette::extension::llm::jinja {

Error syntax_error(int line, const std::string& message) {
  TORCHETTE_LOG(Error, "the chat template cannot be read: line %d: %s", line, message.c_str());
  return Error::InvalidExternalData;
}

Error unsupported_error(int line, const std::string& feature) {
  TORCHETTE_LOG(Error, "the chat template cannot be read: line %d: %s is not supported", line,
                feature.c_str());
  return Error::NotSupported;
}

}  // namespace torchette::extension::llm::jinja
