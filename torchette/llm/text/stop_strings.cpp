// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/stop_strings.h"

#include <algorithm>

namespace torchette::extension::llm {

std::string StopStrings::push(const std::string& text, bool* found) {
  held_ += text;
  size_t first = std::string::npos;
  for (const std::string& stop : stops_)
    if (!stop.empty()) first = std::min(first, held_.find(stop));
  *found = first != std::string::npos;
  size_t num_held = 0;  // the longest end of the text that begins a stop string
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size(), held_.size()); n > num_held && !*found; --n)
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) num_held = n;
  const size_t num_emitted = *found ? first : held_.size() - num_held;
  std::string out = held_.substr(0, num_emitted);
  held_.erase(0, num_emitted);
  return out;
}

std::string TextStream::push(std::string_view bytes, bool is_last, bool* found) {
  std::string text = stops_.push(characters_.push(bytes, is_last), found);
  if (is_last && !*found) text += stops_.rest();
  return text;
}

}  // namespace torchette::extension::llm
