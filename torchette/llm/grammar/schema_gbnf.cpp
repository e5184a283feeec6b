// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/schema_gbnf.h"

#include "torchette/llm/grammar/schema_json.h"

namespace torchette::extension::llm::schema {

std::string quoted(std::string_view text) {
  std::string out = "\"";
  for (char c : text)
    if (static_cast<uint8_t>(c) < ' ' || c == '"' || c == '\\')
      out += format("\\x%02x", static_cast<unsigned>(static_cast<uint8_t>(c)));
    else
      out += c;
  return out + "\"";
}

std::string class_member(char32_t c) { return format("\\U%08x", static_cast<unsigned>(c)); }

std::string join(const std::vector<std::string>& parts, const char* separator) {
  std::string out;
  for (const std::string& part : parts) out += (&part == parts.data() ? "" : separator) + part;
  return out;
}

namespace {

/// Integers from `low` to `high`, which have the same number of digits.
std::string digits_between(const std::string& low, const std::string& high) {
  if (low.empty()) return "\"\"";
  const size_t rest = low.size() - 1;
  const std::string more = " [0-9]{" + std::to_string(rest) + "}", first(1, low[0]), last(1, high[0]);
  if (low.find_first_not_of('0', 1) == std::string::npos &&
      high.find_first_not_of('9', 1) == std::string::npos)
    return "[" + first + "-" + last + "]" + more;
  if (low[0] == high[0]) return "\"" + first + "\" (" + digits_between(low.substr(1), high.substr(1)) + ")";
  std::string out = "\"" + first + "\" (" + digits_between(low.substr(1), std::string(rest, '9')) + ")";
  if (high[0] - low[0] > 1)
    out += std::string(" | [") + static_cast<char>(low[0] + 1) + "-" + static_cast<char>(high[0] - 1) + "]" +
           more;
  return out + " | \"" + last + "\" (" + digits_between(std::string(rest, '0'), high.substr(1)) + ")";
}

}  // namespace

std::string unsigned_range(const std::string& low, const std::string& high) {
  std::vector<std::string> parts;
  for (size_t size = low.size(); size <= high.size(); ++size)
    parts.push_back(digits_between(size == low.size() ? low : "1" + std::string(size - 1, '0'),
                                   size == high.size() ? high : std::string(size, '9')));
  return join(parts, " | ");
}

}  // namespace torchette::extension::llm::schema
