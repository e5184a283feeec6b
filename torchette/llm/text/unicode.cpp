// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/unicode.h"

#include <algorithm>
#include <iterator>

#include "torchette/llm/text/unicode_tables.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

/// Returns the value of the run that contains `c`.
template <size_t n>
uint32_t of_run(const uint32_t (&runs)[n], unsigned bits, char32_t c) {
  const uint32_t* after =
      std::upper_bound(runs, runs + n, static_cast<uint32_t>(c) << bits | ((1u << bits) - 1));
  return after[-1] & ((1u << bits) - 1);
}

unsigned combining(char32_t c) { return c < 0x300 ? 0 : of_run(kCombining, 8, c); }

/// Returns the first entry for a key, or null. The low 21 bits of an entry are its key, the others its value.
template <size_t n>
const uint32_t* find_pair(const uint32_t (&pairs)[n], char32_t c) {
  size_t low = 0, high = n / 2;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if ((pairs[2 * middle] & 0x1FFFFF) < c)
      low = middle + 1;
    else
      high = middle;
  }
  return low < n / 2 && (pairs[2 * low] & 0x1FFFFF) == c ? pairs + 2 * low : nullptr;
}

constexpr char32_t kS = 0xAC00, kL = 0x1100, kV = 0x1161, kT = 0x11A7;  // Hangul, which is arithmetic
constexpr uint32_t kVs = 21, kTs = 28, kSs = 19 * kVs * kTs;

void append_decomposed(char32_t c, bool compatible, Text* out) {
  if (c < 0xA0) {
    *out += c;
    return;
  }
  if (c - kS < kSs) {
    const uint32_t s = c - kS;
    *out += kL + s / (kVs * kTs);
    *out += kV + s % (kVs * kTs) / kTs;
    if (s % kTs != 0) *out += kT + s % kTs;
    return;
  }
  const uint32_t* entry = find_pair(kDecompositions, c);
  if (entry == nullptr || ((entry[0] >> 21 & 1) != 0 && !compatible)) {
    *out += c;
    return;
  }
  for (uint32_t i = 0; i < (entry[1] & 31); ++i)
    append_decomposed(kParts[(entry[1] >> 5) + i], compatible, out);
}

char32_t composed(char32_t a, char32_t b) {
  if (a - kL < 19 && b - kV < kVs) return kS + ((a - kL) * kVs + (b - kV)) * kTs;
  if (a - kS < kSs && (a - kS) % kTs == 0 && b - kT - 1 < kTs - 1) return a + (b - kT);
  size_t low = 0, high = std::size(kPairs) / 3;
  while (low < high) {
    const size_t middle = (low + high) / 2;
    const uint32_t* pair = kPairs + 3 * middle;
    if (pair[0] < a || (pair[0] == a && pair[1] < b))
      low = middle + 1;
    else
      high = middle;
  }
  const uint32_t* pair = kPairs + 3 * low;
  return low < std::size(kPairs) / 3 && pair[0] == a && pair[1] == b ? pair[2] : 0;
}

}  // namespace

Category category(char32_t c) {
  return c > 0x10FFFF ? Category::Cn : static_cast<Category>(of_run(kCategories, 5, c));
}

bool is_space(char32_t c) {
  return (c >= 9 && c <= 13) || c == 0x85 ||
         is_in(c, mask(Category::Zs) | mask(Category::Zl) | mask(Category::Zp));
}

bool is_word(char32_t c) {
  constexpr uint32_t kWord = kLetters | kMarks | mask(Category::Nd) | mask(Category::Nl) | mask(Category::Pc);
  // also the joiners, and letters in circles and squares, which are symbols
  return is_in(c, kWord) || c == 0x200C || c == 0x200D || (c >= 0x24B6 && c <= 0x24E9) ||
         (c >= 0x1F130 && c <= 0x1F149) || (c >= 0x1F150 && c <= 0x1F169) || (c >= 0x1F170 && c <= 0x1F189);
}

void append_lower(char32_t c, Text* out) {
  const uint32_t* pair = c < 0x80 ? nullptr : find_pair(kLower, c);
  *out += pair != nullptr ? pair[1] : c >= 'A' && c <= 'Z' ? c + 32 : c;
  if (c == 0x130) *out += 0x307;
}

void append_upper(char32_t c, Text* out) {
  if (c < 0x80) {
    *out += c >= 'a' && c <= 'z' ? c - 32 : c;
    return;
  }
  for (size_t i = 0; i < std::size(kOtherUppers); i += 4) {
    if (kOtherUppers[i] != c) continue;
    for (size_t k = i + 1; k < i + 4 && kOtherUppers[k] != 0; ++k) *out += kOtherUppers[k];
    return;
  }
  const uint32_t* const end = std::end(kLower);
  const uint32_t* pair = std::begin(kLower);
  while (pair != end && pair[1] != c) pair += 2;
  *out += pair != end ? static_cast<char32_t>(pair[0] & 0x1FFFFF) : c;
}

Text normalize(const Text& text, Form form) {
  Text out;
  const bool compatible = form == Form::NFKD || form == Form::NFKC;
  for (char32_t c : text) append_decomposed(c, compatible, &out);
  for (size_t i = 0; i < out.size();) {  // marks in the order of their classes
    size_t end = i + 1;
    if (combining(out[i]) != 0) {
      while (end < out.size() && combining(out[end]) != 0) ++end;
      std::stable_sort(out.begin() + i, out.begin() + end,
                       [](char32_t a, char32_t b) { return combining(a) < combining(b); });
    }
    i = end;
  }
  if (form == Form::NFD || form == Form::NFKD) return out;
  size_t kept = 0, starter = Text::npos;
  unsigned last = 0;  // class of the last mark since the starter that was not composed; 0 without such a mark
  for (char32_t c : out) {
    const unsigned now = combining(c);
    const bool reaches = starter != Text::npos && (kept == starter + 1 || (last < now && last != 0));
    if (const char32_t composition = reaches ? composed(out[starter], c) : 0) {
      out[starter] = composition;
      continue;
    }
    if (now == 0) starter = kept;
    last = now;
    out[kept++] = c;
  }
  out.resize(kept);
  return out;
}

size_t character_size(std::string_view bytes, size_t at, bool* cut, size_t* wrong) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(bytes[at + i]); };
  const uint8_t first = byte(0);
  *cut = false;
  *wrong = 1;
  if (first < 0x80) return 1;
  const size_t size = first >= 0xC2 && first <= 0xDF   ? 2
                      : first >= 0xE0 && first <= 0xEF ? 3
                      : first >= 0xF0 && first <= 0xF4 ? 4
                                                       : 0;
  if (size == 0) return 0;
  for (size_t i = 1; i < size; ++i) {
    *wrong = i;
    if (at + i == bytes.size()) {
      *cut = true;
      return 0;
    }
    // not overlong, not a surrogate, not beyond the last code point
    const uint8_t low = i > 1 ? 0x80 : first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
    const uint8_t high = i > 1 ? 0xBF : first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
    if (byte(i) < low || byte(i) > high) return 0;
  }
  return size;
}

Result<Text> to_text(std::string_view utf8) {
  Text text;
  text.reserve(utf8.size());
  for (size_t at = 0; at < utf8.size();) {
    bool cut;
    size_t wrong;
    const size_t size = character_size(utf8, at, &cut, &wrong);
    TORCHETTE_CHECK(size != 0, InvalidArgument, "the text is not UTF-8 at byte %zu", at);
    char32_t c = static_cast<uint8_t>(utf8[at]) & (size == 1 ? 0x7F : 0xFF >> (size + 1));
    for (size_t i = 1; i < size; ++i) c = c << 6 | (static_cast<uint8_t>(utf8[at + i]) & 0x3F);
    text += c;
    at += size;
  }
  return text;
}

void append_utf8(char32_t c, std::string* out) {
  const auto put = [&](char32_t byte) { *out += static_cast<char>(byte); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6), put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18), put(0x80 | (c >> 12 & 0x3F)), put(0x80 | (c >> 6 & 0x3F)), put(0x80 | (c & 0x3F));
  }
}

std::string to_utf8(const char32_t* text, size_t size) {
  std::string out;
  for (size_t i = 0; i < size; ++i) append_utf8(text[i], &out);
  return out;
}

bool is_utf8(std::string_view bytes) {
  bool cut;
  size_t wrong, size = 0;
  for (size_t at = 0; at < bytes.size(); at += size)
    if ((size = character_size(bytes, at, &cut, &wrong)) == 0) return false;
  return true;
}

std::string to_valid_utf8(std::string_view bytes) { return Utf8Stream().push(bytes, true); }

std::string Utf8Stream::push(std::string_view bytes, bool is_last) {
  held_ += bytes;
  std::string out;
  size_t at = 0;
  while (at < held_.size()) {
    bool cut;
    size_t wrong;
    const size_t size = character_size(held_, at, &cut, &wrong);
    if (cut && !is_last) break;
    if (size == 0)
      append_utf8(0xFFFD, &out);
    else
      out.append(held_, at, size);
    at += size == 0 ? wrong : size;
  }
  held_.erase(0, at);
  return out;
}

}  // namespace torchette::extension::llm
