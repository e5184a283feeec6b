// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/jinja/strings.h"

namespace torchette::extension::llm::jinja {

Text characters(const std::string& text) {
  Result<Text> found = to_text(text);
  return found.ok() ? std::move(*found) : Text();
}

std::string strip(const std::string& text, const std::string* set, bool left, bool right) {
  const Text all = characters(text), removed = set != nullptr ? characters(*set) : Text();
  const auto is_removed = [&](char32_t c) {
    if (set != nullptr) return removed.find(c) != Text::npos;
    return is_space(c) || (c >= 0x1C && c <= 0x1F);  // Python also strips the separators of ASCII
  };
  size_t first = 0, last = all.size();
  if (left)
    while (first < last && is_removed(all[first])) ++first;
  if (right)
    while (last > first && is_removed(all[last - 1])) --last;
  return to_utf8(all.data() + first, last - first);
}

std::string replace(const std::string& text, const std::string& from, const std::string& to, int64_t count) {
  std::string out;
  size_t at = 0;
  if (from.empty()) {
    for (char32_t c : characters(text)) {
      if (count != 0) out += to, --count;
      append_utf8(c, &out);
    }
    return count != 0 ? out + to : out;
  }
  for (size_t found; count != 0 && (found = text.find(from, at)) != std::string::npos; --count) {
    out += text.substr(at, found - at) + to;
    at = found + from.size();
  }
  return out + text.substr(at);
}

std::string padded(const std::string& text, int64_t width, char fill, int left, int right) {
  const int64_t missing = width - static_cast<int64_t>(characters(text).size());
  if (missing <= 0) return text;
  const int64_t before = left == 0 ? 0 : right == 0 ? missing : missing / 2 + (missing & width & 1);
  return std::string(static_cast<size_t>(before), fill) + text +
         std::string(static_cast<size_t>(missing - before), fill);
}

std::string change_case(const std::string& text, Case to) {
  Text out;
  bool is_inside = false;  // of a word, or of the text for Capitalize
  for (char32_t c : characters(text)) {
    if (to == Case::Upper || (!is_inside && to != Case::Lower))
      append_upper(c, &out);
    else
      append_lower(c, &out);
    is_inside = to == Case::Capitalize || (to == Case::Title && is_in(c, kLetters));
  }
  return to_utf8(out);
}

}  // namespace torchette::extension::llm::jinja
