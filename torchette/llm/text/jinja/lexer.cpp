// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/jinja/lexer.h"

#include <algorithm>
#include <cstdlib>

#include "torchette/llm/text/jinja/errors.h"
#include "torchette/llm/text/unicode.h"

namespace torchette::extension::llm::jinja {
namespace {

constexpr std::string_view kSpaces = " \t\r\n\v\f";
constexpr std::string_view kOperatorCharacters = "+-*/%~=!<>()[]{}.,:|";
constexpr std::string_view kSignPairs[] = {"==", "!=", "<=", ">=", "//", "**"};

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(source) {
    if (!source_.empty() && source_.back() == '\n') source_.remove_suffix(1);
  }

  Result<std::vector<Token>> run();

 private:
  bool at_end() const { return at_ >= source_.size(); }
  void emit(Token::Kind kind, std::string text = {}) { tokens_.push_back({kind, std::move(text), line_}); }
  size_t next_tag() const;
  void text(size_t tag);
  bool is_first_of_line(size_t tag, size_t* num_blanks) const;
  Error comment();
  size_t after_word_block(std::string_view word, size_t tag);
  Error raw();
  Error tag(bool is_block);
  bool close_tag(bool is_block);
  Error token();
  void number();
  Error string();
  Error escape(std::string* value);
  Error sign();

  std::string_view source_;
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int line_ = 1;
  int num_open_ = 0;  // brackets that are open in the current tag
  // how the last tag changes the text after it
  bool strips_text_ = false;      // the tag ends with "-": removes all leading whitespace
  bool removes_newline_ = false;  // a block or comment: removes one leading line break
};

Result<std::vector<Token>> Lexer::run() {
  while (!at_end()) {
    const size_t tag_begin = next_tag();
    text(tag_begin);
    if (tag_begin == source_.size()) break;
    const char kind = source_[tag_begin + 1];
    const char sign = tag_begin + 2 < source_.size() ? source_[tag_begin + 2] : 0;
    at_ = tag_begin + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    strips_text_ = removes_newline_ = false;
    const size_t raw_begin = kind == '%' ? after_word_block("raw", tag_begin) : std::string_view::npos;
    if (raw_begin != std::string_view::npos) {
      at_ = raw_begin;
      TORCHETTE_TRY(raw());
    } else {
      TORCHETTE_TRY(kind == '#' ? comment() : tag(kind == '%'));
    }
  }
  emit(Token::Kind::Last);
  return std::move(tokens_);
}

/// The position of the next {{, {% or {#, or the end of the source.
size_t Lexer::next_tag() const {
  for (size_t at = at_; (at = source_.find('{', at)) != std::string_view::npos && at + 1 < source_.size();
       ++at)
    if (source_[at + 1] == '{' || source_[at + 1] == '%' || source_[at + 1] == '#') return at;
  return source_.size();
}

/// Emits the text between the current position and a tag, without the whitespace that the tags remove.
void Lexer::text(size_t tag) {
  std::string text(source_.substr(at_, tag - at_));
  const auto num_lines = std::count(text.begin(), text.end(), '\n');
  if (removes_newline_ && !text.empty() && text[0] == '\n') text.erase(0, 1);
  if (strips_text_) text.erase(0, std::min(text.size(), text.find_first_not_of(kSpaces)));
  const char kind = tag < source_.size() ? source_[tag + 1] : 0;
  const char sign = tag + 2 < source_.size() ? source_[tag + 2] : 0;
  size_t num_blanks = 0;
  if (kind != 0 && sign == '-') {
    const size_t last = text.find_last_not_of(kSpaces);
    text.erase(last == std::string::npos ? 0 : last + 1);
  } else if (kind != 0 && kind != '{' && sign != '+' && is_first_of_line(tag, &num_blanks)) {
    text.erase(text.size() - std::min(text.size(), num_blanks));
  }
  if (!text.empty()) emit(Token::Kind::Text, std::move(text));
  line_ += static_cast<int>(num_lines);
}

/// Whether only blanks precede the tag in its line.
bool Lexer::is_first_of_line(size_t tag, size_t* num_blanks) const {
  size_t begin = tag;
  while (begin > at_ && (source_[begin - 1] == ' ' || source_[begin - 1] == '\t')) --begin;
  *num_blanks = tag - begin;
  return begin == 0 || source_[begin - 1] == '\n';
}

Error Lexer::comment() {
  const size_t end = source_.find("#}", at_);
  if (end == std::string_view::npos) return syntax_error(line_, "the comment has no #}");
  const std::string_view body = source_.substr(at_, end - at_);
  line_ += static_cast<int>(std::count(body.begin(), body.end(), '\n'));
  strips_text_ = !body.empty() && body.back() == '-';
  removes_newline_ = body.empty() || body.back() != '+';
  at_ = end + 2;
  return Error::Ok;
}

/// Returns the position after a block that contains only `word`, or npos if it is another block. Its {% is at
/// `tag`.
size_t Lexer::after_word_block(std::string_view word, size_t tag) {
  const auto skip_spaces = [&](size_t at) {
    return std::min(source_.find_first_not_of(kSpaces, at), source_.size());
  };
  const auto is_sign = [&](size_t at) {
    return at < source_.size() && (source_[at] == '-' || source_[at] == '+');
  };
  const size_t begin = skip_spaces(tag + 2 + (is_sign(tag + 2) ? 1 : 0));
  if (source_.substr(begin, word.size()) != word) return std::string_view::npos;
  const size_t sign = skip_spaces(begin + word.size());
  const size_t end = sign + (is_sign(sign) ? 1 : 0);
  if (source_.substr(end, 2) != "%}") return std::string_view::npos;
  strips_text_ = end > sign && source_[sign] == '-';
  removes_newline_ = end == sign;
  return end + 2;
}

/// Emits the text up to {% endraw %}.
Error Lexer::raw() {
  removes_newline_ = false;
  for (size_t at = at_; (at = source_.find("{%", at)) != std::string_view::npos; at += 2) {
    const bool strips = strips_text_;
    const size_t end = after_word_block("endraw", at);
    if (end == std::string_view::npos) continue;
    const bool strips_next = strips_text_, removes_next = removes_newline_;
    strips_text_ = strips;
    removes_newline_ = false;
    text(at);
    strips_text_ = strips_next;
    removes_newline_ = removes_next;
    at_ = end;
    return Error::Ok;
  }
  return syntax_error(line_, "the block raw has no endraw");
}

Error Lexer::tag(bool is_block) {
  emit(is_block ? Token::Kind::BlockBegin : Token::Kind::OutputBegin);
  num_open_ = 0;
  for (;;) {
    for (; !at_end() && is_blank(source_[at_]); ++at_) line_ += source_[at_] == '\n' ? 1 : 0;
    if (at_end()) return syntax_error(line_, is_block ? "the {% has no %}" : "the {{ has no }}");
    if (num_open_ == 0 && close_tag(is_block)) return Error::Ok;
    TORCHETTE_TRY(token());
  }
}

/// Emits the end of a tag if it is next.
bool Lexer::close_tag(bool is_block) {
  const std::string_view end = is_block ? "%}" : "}}";
  const bool has_sign = (source_[at_] == '-' || source_[at_] == '+') && source_.substr(at_ + 1, 2) == end;
  if (!has_sign && source_.substr(at_, 2) != end) return false;
  strips_text_ = has_sign && source_[at_] == '-';
  removes_newline_ = is_block && !has_sign;
  at_ += has_sign ? 3 : 2;
  emit(is_block ? Token::Kind::BlockEnd : Token::Kind::OutputEnd);
  return true;
}

Error Lexer::token() {
  const char c = source_[at_];
  if (is_digit(c)) return number(), Error::Ok;
  if (c == '"' || c == '\'') return string();
  if (!is_name_start(c)) return sign();
  const size_t begin = at_;
  while (!at_end() && (is_name_start(source_[at_]) || is_digit(source_[at_]))) ++at_;
  emit(Token::Kind::Name, std::string(source_.substr(begin, at_ - begin)));
  return Error::Ok;
}

void Lexer::number() {
  const size_t begin = at_;
  const auto skip_digits = [&] {
    while (!at_end() && is_digit(source_[at_])) ++at_;
  };
  skip_digits();
  if (at_ + 1 < source_.size() && source_[at_] == '.' && is_digit(source_[at_ + 1])) {
    ++at_;
    skip_digits();
  }
  const size_t exponent = std::min(source_.find_first_not_of("+-", at_ + 1), source_.size());
  const bool has_exponent = !at_end() && (source_[at_] == 'e' || source_[at_] == 'E');
  if (has_exponent && exponent <= at_ + 2 && exponent < source_.size() && is_digit(source_[exponent])) {
    at_ = exponent;
    skip_digits();
  }
  emit(Token::Kind::Number, std::string(source_.substr(begin, at_ - begin)));
}

Error Lexer::string() {
  const char quote = source_[at_];
  std::string value;
  for (++at_; !at_end() && source_[at_] != quote; ++at_) {
    if (source_[at_] == '\n') ++line_;
    if (source_[at_] == '\\' && at_ + 1 < source_.size())
      TORCHETTE_TRY(escape(&value));
    else
      value += source_[at_];
  }
  if (at_end()) return syntax_error(line_, "the string has no closing quote");
  ++at_;
  emit(Token::Kind::String, std::move(value));
  return Error::Ok;
}

/// Appends the escape at the current position and moves to its last byte.
Error Lexer::escape(std::string* value) {
  const char e = source_[++at_];
  const size_t width = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
  if (width > 0) {
    const std::string digits(source_.substr(at_ + 1, width));
    char* end = nullptr;
    const unsigned long code = std::strtoul(digits.c_str(), &end, 16);
    if (digits.size() != width || *end != 0 || code > 0x10FFFF)
      return syntax_error(line_, "a string has an invalid escape");
    append_utf8(static_cast<char32_t>(code), value);
    at_ += width;
  } else if (e == 'n' || e == 't' || e == 'r') {
    *value += e == 'n' ? '\n' : e == 't' ? '\t' : '\r';
  } else {
    if (e != '\\' && e != '\'' && e != '"') *value += '\\';
    *value += e;
  }
  return Error::Ok;
}

Error Lexer::sign() {
  const char c = source_[at_];
  std::string text(1, c);
  for (std::string_view pair : kSignPairs)
    if (source_.substr(at_, 2) == pair) text = pair;
  if (kOperatorCharacters.find(c) == std::string_view::npos || text == "!")
    return syntax_error(line_, std::string("unexpected ") + c + " in a tag");
  if (c == '(' || c == '[' || c == '{') ++num_open_;
  if (c == ')' || c == ']' || c == '}') num_open_ = std::max(0, num_open_ - 1);
  at_ += text.size();
  emit(Token::Kind::Sign, std::move(text));
  return Error::Ok;
}

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) { return Lexer(source).run(); }

}  // namespace torchette::extension::llm::jinja
