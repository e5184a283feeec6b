// SPDX-License-Identifier: BSD-3-Clause
// Unicode for tokenizers: UTF-8 to code points and back, general categories, lower case, normal forms. The
// tables are made by the build (unicode_tables.py).
#pragma once

#include <string>
#include <string_view>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// Code points.
using Text = std::u32string;

/// In the order of unicode_tables.py.
enum class Category : uint8_t {
  Cn,
  Lu,
  Ll,
  Lt,
  Lm,
  Lo,
  Mn,
  Mc,
  Me,
  Nd,
  Nl,
  No,
  Pc,
  Pd,
  Ps,
  Pe,
  Pi,
  Pf,
  Po,
  Sm,
  Sc,
  Sk,
  So,
  Zs,
  Zl,
  Zp,
  Cc,
  Cf,
  Cs,
  Co
};

constexpr uint32_t mask(Category category) { return 1u << static_cast<unsigned>(category); }
/// The categories from `first` to `last`, as bits.
constexpr uint32_t mask(Category first, Category last) { return mask(last) * 2 - mask(first); }
constexpr uint32_t kLetters = mask(Category::Lu, Category::Lo);
constexpr uint32_t kMarks = mask(Category::Mn, Category::Me);
constexpr uint32_t kNumbers = mask(Category::Nd, Category::No);
constexpr uint32_t kPunctuation = mask(Category::Pc, Category::Po);
constexpr uint32_t kSymbols = mask(Category::Sm, Category::So);

Category category(char32_t c);
inline bool is_in(char32_t c, uint32_t categories) { return (mask(category(c)) & categories) != 0; }
/// Unicode's White_Space.
bool is_space(char32_t c);
/// Whether \w matches it in Unicode's recommendation for regular expressions.
bool is_word(char32_t c);
/// Appends the lower case of a character, independent of adjacent characters.
void append_lower(char32_t c, Text* out);
/// Appends the upper case of a character, like str.upper() of Python. Beyond ASCII it searches the lower-case
/// table in about 1,400 steps.
void append_upper(char32_t c, Text* out);

enum class Form : uint8_t { NFD, NFC, NFKD, NFKC };
Text normalize(const Text& text, Form form);

/// Error: InvalidArgument (not UTF-8; the log says where).
Result<Text> to_text(std::string_view utf8);
void append_utf8(char32_t c, std::string* out);
std::string to_utf8(const char32_t* text, size_t size);
inline std::string to_utf8(const Text& text) { return to_utf8(text.data(), text.size()); }
/// Returns the size of the character at `at` in bytes, or 0 if the bytes there are not a character. Sets
/// `*cut` if the bytes end inside a character, and `*wrong` to the number of bytes that become one U+FFFD.
size_t character_size(std::string_view bytes, size_t at, bool* cut, size_t* wrong);
bool is_utf8(std::string_view bytes);
/// Replaces bytes that are not UTF-8 by U+FFFD.
std::string to_valid_utf8(std::string_view bytes);

/// The characters of bytes that come in parts.
class Utf8Stream {
 public:
  /// Returns the characters that are complete. Bytes that are not UTF-8 become U+FFFD. Keeps the first bytes
  /// of a character until the others come; with `is_last`, they become U+FFFD.
  std::string push(std::string_view bytes, bool is_last = false);

 private:
  std::string held_;
};

}  // namespace torchette::extension::llm
