// SPDX-License-Identifier: BSD-3-Clause
// StopStrings: ends an answer at a stop string. It holds back text that may be the beginning of one.
// TextStream: the same for the bytes of tokens.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm {

class StopStrings {
 public:
  /// Empty stop strings have no effect.
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Adds text of the answer and returns the text that can be emitted now. Sets `*found` if a stop string is
  /// complete; the answer ends before it.
  std::string push(const std::string& text, bool* found);
  /// Returns the text that was held back.
  std::string rest() { return std::exchange(held_, {}); }

 private:
  std::vector<std::string> stops_;
  std::string held_;
};

/// Converts the bytes of tokens to the text of an answer: complete characters, up to the first stop string.
class TextStream {
 public:
  explicit TextStream(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  /// Like StopStrings::push(). With `is_last`, returns all text that was held back.
  std::string push(std::string_view bytes, bool is_last, bool* found);

 private:
  Utf8Stream characters_;
  StopStrings stops_;
};

}  // namespace torchette::extension::llm
