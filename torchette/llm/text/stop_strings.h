// SPDX-License-Identifier: BSD-3-Clause
// StopStrings: ends an answer at a stop string. It holds back text that may be the beginning of one.
#pragma once

#include <string>
#include <vector>

namespace torchette::extension::llm {

class StopStrings {
 public:
  /// The strings must outlive this object.
  explicit StopStrings(const std::vector<std::string>& stops) : stops_(stops) {}

  /// Adds text of the answer and returns the text that can be emitted now. Sets `*found` if a stop string is
  /// complete; the answer ends before it.
  std::string push(const std::string& text, bool* found);
  /// The text that was held back.
  std::string rest() { return std::move(held_); }

 private:
  const std::vector<std::string>& stops_;
  std::string held_;
};

}  // namespace torchette::extension::llm
