// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/json.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "torchette/llm/text/unicode.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

/// Every function returns whether the input is valid so far. Parsing stops at the first error.
class Parser {
 public:
  Parser(std::string_view text, int max_depth, size_t at = 0) : text_(text), max_depth_(max_depth), at_(at) {}

  size_t at() const { return at_; }
  bool first(Json* out) { return value(out, 0); }
  bool parse_document(Json* out) {
    if (!value(out, 0)) return false;
    skip();
    return at_ == text_.size();
  }

 private:
  void skip() {
    while (at_ < text_.size() &&
           (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\t' || text_[at_] == '\r'))
      ++at_;
  }
  bool take(char c) {
    skip();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool word(std::string_view expected, Json::Kind kind, Json* out) {
    if (text_.substr(at_, expected.size()) != expected) return false;
    at_ += expected.size();
    out->kind = kind;
    return true;
  }
  bool value(Json* out, int depth) {
    skip();
    if (at_ == text_.size() || depth > max_depth_) return false;
    switch (text_[at_]) {
      case '{':
        return members(out, depth);
      case '[':
        return elements(out, depth);
      case '"':
        out->kind = Json::Kind::String;
        return string(&out->text);
      case 't':
        return word("true", Json::Kind::True, out);
      case 'f':
        return word("false", Json::Kind::False, out);
      case 'n':
        return word("null", Json::Kind::Null, out);
      default:
        return number(out);
    }
  }
  bool elements(Json* out, int depth) {
    out->kind = Json::Kind::Array;
    ++at_;
    if (take(']')) return true;
    do {
      out->items.emplace_back();
      if (!value(&out->items.back(), depth + 1)) return false;
    } while (take(','));
    return take(']');
  }
  bool members(Json* out, int depth) {
    out->kind = Json::Kind::Object;
    ++at_;
    if (take('}')) return true;
    do {
      skip();
      out->keys.emplace_back();
      out->items.emplace_back();
      if (!string(&out->keys.back()) || !take(':') || !value(&out->items.back(), depth + 1)) return false;
    } while (take(','));
    return take('}');
  }
  /// At least one digit.
  bool digits() {
    const size_t start = at_;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') ++at_;
    return at_ > start;
  }
  bool number(Json* out) {
    const size_t start = at_;
    const auto has = [&](std::string_view any) {
      return at_ < text_.size() && any.find(text_[at_]) != std::string_view::npos;
    };
    at_ += has("-");
    const bool is_zero = has("0");
    if (!digits() || (is_zero && at_ - start > 1u + (text_[start] == '-'))) return false;
    if (has(".") && (++at_, !digits())) return false;
    if (has("eE")) {
      ++at_;
      at_ += has("+-");
      if (!digits()) return false;
    }
    out->kind = Json::Kind::Number;
    out->text = text_.substr(start, at_ - start);
    out->number = std::strtod(out->text.c_str(), nullptr);
    return true;
  }
  bool four_digits(uint32_t* out) {
    *out = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      if (at_ == text_.size()) return false;
      const char c = text_[at_];
      const int digit = c >= '0' && c <= '9'   ? c - '0'
                        : c >= 'a' && c <= 'f' ? c - 'a' + 10
                        : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                               : -1;
      if (digit < 0) return false;
      *out = *out * 16 + static_cast<uint32_t>(digit);
    }
    return true;
  }
  bool escape(std::string* out) {
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    if (at_ == text_.size()) return false;
    const char c = text_[at_++];
    if (c != 'u') {
      const size_t i = kFrom.find(c);
      if (i == std::string_view::npos) return false;
      *out += kTo[i];
      return true;
    }
    uint32_t point = 0, low = 0;
    if (!four_digits(&point)) return false;
    if (point >= 0xD800 && point < 0xE000) {  // the first half of a pair
      if (point >= 0xDC00 || text_.substr(at_, 2) != "\\u") return false;
      at_ += 2;
      if (!four_digits(&low) || low < 0xDC00 || low > 0xDFFF) return false;
      point = 0x10000 + ((point - 0xD800) << 10) + (low - 0xDC00);
    }
    append_utf8(point, out);
    return true;
  }
  bool string(std::string* out) {
    if (at_ == text_.size() || text_[at_] != '"') return false;
    ++at_;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      bool cut;
      size_t wrong;
      const size_t size = character_size(text_, at_, &cut, &wrong);
      if (size == 0) return false;
      if (c == '"') return ++at_, true;
      if (c == '\\') {
        ++at_;
        if (!escape(out)) return false;
        continue;
      }
      out->append(text_.substr(at_, size));
      at_ += size;
    }
    return false;
  }

  std::string_view text_;
  int max_depth_;
  size_t at_;
};

const Json kNull;

}  // namespace

Result<Json> Json::parse(std::string_view text, int max_depth) {
  Json out;
  Parser parser(text, max_depth);
  TORCHETTE_CHECK(parser.parse_document(&out), InvalidExternalData,
                  "no JSON at byte %zu of %zu (or it is nested deeper than %d)", parser.at(), text.size(),
                  max_depth);
  return out;
}

bool Json::read(std::string_view text, size_t* at, Json* out, int max_depth) {
  Parser parser(text, max_depth, *at);
  if (!parser.first(out)) return false;
  *at = parser.at();
  return true;
}

const Json& Json::operator[](std::string_view key) const {
  for (size_t i = 0; i < keys.size(); ++i)
    if (keys[i] == key) return items[i];
  return kNull;
}

bool Json::flag(std::string_view key, bool otherwise) const {
  const Json& member = (*this)[key];
  return member.kind == Kind::True || (member.kind != Kind::False && otherwise);
}

std::string_view Json::string(std::string_view key, std::string_view otherwise) const {
  const Json& member = (*this)[key];
  return member.is_string() ? std::string_view(member.text) : otherwise;
}

int64_t Json::index() const {
  const bool parse_document = kind == Kind::Number && number >= 0 && number < 2147483648.0 &&
                              number == static_cast<double>(static_cast<int64_t>(number));
  return parse_document ? static_cast<int64_t>(number) : -1;
}

std::string write_json(const Json& json, const JsonStyle& style) {
  std::string out;
  switch (json.kind) {
    case Json::Kind::Null:
      return "null";
    case Json::Kind::True:
      return "true";
    case Json::Kind::False:
      return "false";
    case Json::Kind::Number:
      return style.number(json);
    case Json::Kind::String:
      return style.string(json.text);
    case Json::Kind::Array:
      for (const Json& item : json.items) out += (out.empty() ? "" : style.comma) + write_json(item, style);
      return "[" + out + "]";
    default:
      for (size_t i = 0; i < json.items.size(); ++i)
        out += (i == 0 ? "" : style.comma) + style.string(json.keys[i]) + style.colon +
               write_json(json.items[i], style);
      return "{" + out + "}";
  }
}

std::string json_string(std::string_view text, bool ensure_ascii) {
  constexpr std::string_view kFrom = "\"\\\n\r\t\b\f", kTo = "\"\\nrtbf";
  std::string out = "\"";
  const auto unit = [&](uint32_t code) {
    char escaped[8];
    std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(code));
    out += escaped;
  };
  const auto ascii = [&](char c) {
    const size_t known = kFrom.find(c);
    if (known != std::string_view::npos)
      (out += '\\') += kTo[known];
    else if (static_cast<uint8_t>(c) < 0x20)
      unit(static_cast<uint8_t>(c));
    else
      out += c;
  };
  if (!ensure_ascii) {
    for (char c : text) ascii(c);
    return out + '"';
  }
  const Result<Text> characters = to_text(to_valid_utf8(text));
  for (char32_t c : characters.ok() ? *characters : Text()) {
    if (c >= 0x10000)
      unit(0xD800 + ((c - 0x10000) >> 10)), unit(0xDC00 + ((c - 0x10000) & 0x3FF));
    else if (c >= 0x7F)
      unit(c);
    else
      ascii(static_cast<char>(c));
  }
  return out + '"';
}

std::string float_repr(double value) {
  if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
  char text[40];
  int digits = 0;
  do {
    std::snprintf(text, sizeof(text), "%.*e", digits++, value);
  } while (digits < 17 && std::strtod(text, nullptr) != value);
  const std::string scientific = text;
  const size_t at = scientific.find('e');
  const int exponent = std::atoi(text + at + 1);
  if (exponent < -4 || exponent >= 16) return scientific;
  std::snprintf(text, sizeof(text), "%.*f", std::max(digits - 1 - exponent, 1), value);
  return text;
}

std::string to_json(const Json& json) {
  return write_json(json, {[](const Json& number) { return number.text; },
                           [](std::string_view text) { return json_string(text); }, ",", ":"});
}

}  // namespace torchette::extension::llm
