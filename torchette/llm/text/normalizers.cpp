// SPDX-License-Identifier: BSD-3-Clause
// Normalizers: change a text before it is divided into pieces.
#include <algorithm>
#include <cstring>

#include "torchette/llm/text/pipeline.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

Result<Regex> make_pattern(const Json& json) {
  const Json &literal = json["String"], &regex = json["Regex"];
  if (regex.is_string()) return Regex::compile(regex.text);
  TORCHETTE_CHECK(literal.is_string() || json.is_string(), InvalidExternalData,
                  "a pattern must be a String or a Regex");
  Result<Text> text = to_text(json.is_string() ? json.text : literal.text);
  if (!text.ok()) return text.error();
  return Regex::literal(*text);
}

Error find_matches(const Regex& regex, const Text& text, std::vector<Range>* out) {
  size_t behind = 0;
  for (size_t from = 0; from <= text.size();) {
    size_t begin = 0, end = 0;
    TORCHETTE_TRY(regex.search(text, from, &begin, &end));
    if (begin == Text::npos) break;
    if (begin > behind) out->push_back({behind, begin, false});
    if (end > begin) out->push_back({begin, end, true});
    behind = end;
    from = end > begin ? end : end + 1;
  }
  if (behind < text.size()) out->push_back({behind, text.size(), false});
  return Error::Ok;
}

Error replace(const Regex& regex, const Text& content, Text* text) {
  std::vector<Range> ranges;
  TORCHETTE_TRY(find_matches(regex, *text, &ranges));
  Text out;
  for (const Range& range : ranges)
    out += range.match ? content : text->substr(range.begin, range.end - range.begin);
  *text = std::move(out);
  return Error::Ok;
}

char32_t letter_of_byte(uint8_t byte) {
  // printable Latin-1 bytes map to themselves, the others to the code points after U+00FF
  if ((byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD)) return byte;
  return byte <= 0x20 ? 0x100u + byte : byte == 0xAD ? 0x143u : 0x121u + (byte - 0x7Fu);
}

int byte_of_letter(char32_t c) {
  if ((c >= '!' && c <= '~') || (c >= 0xA1 && c <= 0xFF && c != 0xAD)) return static_cast<int>(c);
  if (c >= 0x100 && c <= 0x120) return static_cast<int>(c - 0x100);
  if (c >= 0x121 && c <= 0x142) return static_cast<int>(c - 0x121 + 0x7F);
  return c == 0x143 ? 0xAD : -1;
}

Result<std::string> from_base64(std::string_view text) {
  std::string out;
  uint32_t bits = 0, count = 0;
  while (!text.empty() && text.back() == '=') text.remove_suffix(1);
  for (char c : text) {
    const int value = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
    TORCHETTE_CHECK(value >= 0, InvalidExternalData, "byte %d is not base64", c);
    bits = bits << 6 | static_cast<uint32_t>(value);
    count += 6;
    if (count >= 8) {
      count -= 8;
      out += static_cast<char>(bits >> count & 0xFF);
    }
  }
  return out;
}

// --- The table of SentencePiece: a double-array trie, and the replacement strings
// -------------------------------
Result<CharsMap> CharsMap::from(std::string bytes) {
  CharsMap map;
  uint32_t size = 0;
  if (bytes.size() >= 4) std::memcpy(&size, bytes.data(), 4);
  TORCHETTE_CHECK(bytes.size() >= 4 && size % 4 == 0 && size <= bytes.size() - 4 && size > 0,
                  InvalidExternalData, "a charsmap of %zu bytes has a trie of %u bytes", bytes.size(), size);
  map.units_ = size / 4;
  map.bytes_ = std::move(bytes);
  return map;
}

size_t CharsMap::find(std::string_view text, bool longest, std::string_view* replacement) const {
  const auto unit = [&](size_t i) {
    uint32_t value = 0;
    if (i < units_) std::memcpy(&value, bytes_.data() + 4 + 4 * i, 4);
    return value;
  };
  const auto offset = [](uint32_t u) { return (u >> 10) << ((u & (1u << 9)) >> 6); };
  size_t found = 0;
  size_t node = offset(unit(0));
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<uint8_t>(text[i]);
    node ^= c;
    const uint32_t u = unit(node);
    if (c == 0 || (u & 0x800000FFu) != c) break;
    node ^= offset(u);
    if ((u >> 8 & 1) == 0) continue;
    const size_t at = 4 + 4 * units_ + (unit(node) & 0x7FFFFFFFu);
    if (at >= bytes_.size()) break;
    const size_t end = std::min(bytes_.find('\0', at), bytes_.size());
    *replacement = std::string_view(bytes_).substr(at, end - at);
    found = i + 1;
    if (!longest) break;
  }
  return found;
}

namespace {

using NormalizerList = std::vector<std::unique_ptr<Normalizer>>;

struct NormalForm final : Normalizer {
  explicit NormalForm(Form f) : form(f) {}
  Error normalize(Text* text) const override {
    *text = llm::normalize(*text, form);
    return Error::Ok;
  }
  Form form;
};

/// Replaces each character by the characters that `function` appends.
struct Each final : Normalizer {
  explicit Each(void (*f)(char32_t, Text*)) : function(f) {}
  Error normalize(Text* text) const override {
    Text out;
    for (char32_t c : *text) function(c, &out);
    *text = std::move(out);
    return Error::Ok;
  }
  void (*function)(char32_t, Text*);
};

void strip_mark(char32_t c, Text* out) {
  if (!is_in(c, kMarks)) *out += c;
}

void byte_letters(char32_t c, Text* out) {
  for (char byte : to_utf8(&c, 1)) *out += letter_of_byte(static_cast<uint8_t>(byte));
}

/// The rules of SentencePiece for machine translation: removes control characters, replaces rare spaces.
void translate(char32_t c, Text* out) {
  if ((c >= 1 && c <= 8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F)
    return;
  const bool space = c == 9 || c == 10 || c == 12 || c == 13 || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                     c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
  *out += space ? U' ' : c;
}

struct Bert final : Normalizer {
  explicit Bert(const Json& json)
      : clean(json.flag("clean_text", true)),
        chinese(json.flag("handle_chinese_chars", true)),
        lower(json.flag("lowercase", true)),
        strip(json.flag("strip_accents", lower)) {}

  static bool is_chinese(char32_t c) {
    return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) ||
           (c >= 0x2A700 && c <= 0x2B73F) || (c >= 0x2B740 && c <= 0x2B81F) ||
           (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
  }

  Error normalize(Text* text) const override {
    Text out;
    for (char32_t c : *text) {
      if (clean) {
        const bool blank = c == '\t' || c == '\n' || c == '\r';
        if (c == 0 || c == 0xFFFD || (!blank && is_in(c, mask(Category::Cc, Category::Co)))) continue;
        if (is_space(c)) c = ' ';
      }
      if (chinese && is_chinese(c))
        out += {U' ', c, U' '};
      else
        out += c;
    }
    if (strip) {
      out = llm::normalize(out, Form::NFD);
      out.erase(
          std::remove_if(out.begin(), out.end(), [](char32_t c) { return is_in(c, mask(Category::Mn)); }),
          out.end());
    }
    text->clear();
    for (char32_t c : out) lower ? append_lower(c, text) : text->push_back(c);
    return Error::Ok;
  }

  bool clean, chinese, lower, strip;
};

struct Strip final : Normalizer {
  explicit Strip(const Json& json)
      : left(json.flag("strip_left", true)), right(json.flag("strip_right", true)) {}
  Error normalize(Text* text) const override {
    size_t begin = 0, end = text->size();
    while (left && begin < end && is_space((*text)[begin])) ++begin;
    while (right && begin < end && is_space((*text)[end - 1])) --end;
    *text = text->substr(begin, end - begin);
    return Error::Ok;
  }
  bool left, right;
};

struct Prepend final : Normalizer {
  Error normalize(Text* text) const override {
    if (!text->empty()) text->insert(0, content);
    return Error::Ok;
  }
  Text content;
};

struct Replace final : Normalizer {
  explicit Replace(Regex r) : regex(std::move(r)) {}
  Error normalize(Text* text) const override { return replace(regex, content, text); }
  Regex regex;
  Text content;
};

struct Precompiled final : Normalizer {
  explicit Precompiled(CharsMap m) : map(std::move(m)) {}

  static bool continues(char32_t before, char32_t c) {
    if (before == '\r') return c == '\n';
    if (is_in(before, mask(Category::Cc, Category::Cf) | mask(Category::Zl) | mask(Category::Zp)) &&
        before != 0x200C && before != 0x200D)
      return false;
    return is_in(c, kMarks) || c == 0x200C || c == 0x200D || c == 0xFF9E || c == 0xFF9F ||
           (c >= 0x1F3FB && c <= 0x1F3FF) || (c >= 0xE0020 && c <= 0xE007F);
  }

  Error normalize(Text* text) const override {
    std::string out;
    // as in the library: a short cluster is replaced as a unit, by the first string of the table that it
    // begins with
    for (size_t at = 0; at < text->size();) {
      size_t end = at + 1;
      while (end < text->size() && continues((*text)[end - 1], (*text)[end])) ++end;
      const std::string cluster = to_utf8(text->data() + at, end - at);
      std::string_view replacement;
      if (cluster.size() < 6 && map.find(cluster, false, &replacement) != 0) {
        out += replacement;
      } else {
        for (size_t i = at; i < end; ++i) {
          const std::string one = to_utf8(text->data() + i, 1);
          out += map.find(one, false, &replacement) != 0 ? replacement : std::string_view(one);
        }
      }
      at = end;
    }
    Result<Text> made = to_text(out);
    if (!made.ok()) return made.error();
    *text = std::move(*made);
    return Error::Ok;
  }

  CharsMap map;
};

}  // namespace

Error add_normalizers(const Json& json, NormalizerList* out) {
  if (json.is(Json::Kind::Null)) return Error::Ok;
  const std::string_view type = json.string("type");
  if (type == "Sequence") {
    for (const Json& member : json["normalizers"].items) TORCHETTE_TRY(add_normalizers(member, out));
    return Error::Ok;
  }
  constexpr std::string_view kForms[] = {"NFD", "NFC", "NFKD", "NFKC"};
  for (size_t i = 0; i < 4; ++i)
    if (type == kForms[i]) {
      out->push_back(std::make_unique<NormalForm>(static_cast<Form>(i)));
      return Error::Ok;
    }
  constexpr struct {
    std::string_view type;
    void (*function)(char32_t, Text*);
  } kEach[] = {{"Lowercase", append_lower},
               {"StripAccents", strip_mark},
               {"ByteLevel", byte_letters},
               {"Nmt", translate}};
  for (const auto& each : kEach)
    if (type == each.type) {
      out->push_back(std::make_unique<Each>(each.function));
      return Error::Ok;
    }
  if (type == "BertNormalizer") {
    out->push_back(std::make_unique<Bert>(json));
  } else if (type == "Strip") {
    out->push_back(std::make_unique<Strip>(json));
  } else if (type == "Prepend" || type == "Replace") {
    Result<Text> content = to_text(json.string(type == "Prepend" ? "prepend" : "content"));
    if (!content.ok()) return content.error();
    if (type == "Prepend") {
      auto made = std::make_unique<Prepend>();
      made->content = std::move(*content);
      out->push_back(std::move(made));
    } else {
      Result<Regex> regex = make_pattern(json["pattern"]);
      if (!regex.ok()) return regex.error();
      auto made = std::make_unique<Replace>(std::move(*regex));
      made->content = std::move(*content);
      out->push_back(std::move(made));
    }
  } else if (type == "Precompiled") {
    Result<std::string> bytes = from_base64(json.string("precompiled_charsmap"));
    if (!bytes.ok()) return bytes.error();
    Result<CharsMap> map = CharsMap::from(std::move(*bytes));
    if (!map.ok()) return map.error();
    out->push_back(std::make_unique<Precompiled>(std::move(*map)));
  } else {
    TORCHETTE_LOG(Error, "the tokenizer's normalizer %s is not supported", std::string(type).c_str());
    return Error::NotSupported;
  }
  return Error::Ok;
}

}  // namespace torchette::extension::llm
