// SPDX-License-Identifier: BSD-3-Clause
// A template becomes pieces (text, {{ }}, {% %}), these a tree, which render() walks. Every function that may
// fail returns a Result or an Error; whatever text a template makes of itself counts against its work.
#include "torchette/extension/llm/chat_template.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>

#include "torchette/extension/llm/config_json.h"
#include "torchette/extension/llm/unicode.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr int kMostDepth = 100;
constexpr int64_t kMostWork = 20'000'000;
constexpr size_t kMostText = 1 << 20;

// --- Values ---

struct Node;

struct Value {
  enum class Kind : uint8_t { Undefined, None, Bool, Int, Float, String, List, Dict, Macro };
  using List = std::vector<Value>;
  using Dict = std::vector<std::pair<std::string, Value>>;

  Kind kind = Kind::Undefined;
  int64_t integer = 0;  // of a truth value, too
  double real = 0;
  std::string text;  // of an undefined one, its name
  std::shared_ptr<List> list;
  std::shared_ptr<Dict> dict;
  const Node* macro = nullptr;

  Value() = default;
  static Value undefined(std::string name) {
    Value value;
    value.text = std::move(name);
    return value;
  }
  static Value none() { return of_kind(Kind::None); }
  static Value of(bool given) {
    Value value = of_kind(Kind::Bool);
    value.integer = given ? 1 : 0;
    return value;
  }
  static Value of(int64_t given) {
    Value value = of_kind(Kind::Int);
    value.integer = given;
    return value;
  }
  static Value of(size_t given) { return of(static_cast<int64_t>(given)); }
  static Value of(double given) {
    Value value = of_kind(Kind::Float);
    value.real = given;
    return value;
  }
  static Value of(std::string given) {
    Value value = of_kind(Kind::String);
    value.text = std::move(given);
    return value;
  }
  static Value of(List given) {
    Value value = of_kind(Kind::List);
    value.list = std::make_shared<List>(std::move(given));
    return value;
  }
  static Value of(Dict given) {
    Value value = of_kind(Kind::Dict);
    value.dict = std::make_shared<Dict>(std::move(given));
    return value;
  }

  bool is(Kind k) const { return kind == k; }
  bool is_number() const { return kind == Kind::Bool || kind == Kind::Int || kind == Kind::Float; }
  bool is_whole() const { return kind == Kind::Bool || kind == Kind::Int; }
  double number() const { return kind == Kind::Float ? real : static_cast<double>(integer); }
  bool truth() const {
    switch (kind) {
      case Kind::Bool:
      case Kind::Int:
        return integer != 0;
      case Kind::Float:
        return real != 0;
      case Kind::String:
        return !text.empty();
      case Kind::List:
        return !list->empty();
      case Kind::Dict:
        return !dict->empty();
      default:
        return kind == Kind::Macro;
    }
  }
  const Value* member(std::string_view name) const {
    if (kind == Kind::Dict)
      for (const auto& [key, value] : *dict)
        if (key == name) return &value;
    return nullptr;
  }

 private:
  static Value of_kind(Kind kind) {
    Value value;
    value.kind = kind;
    return value;
  }
};
using Kind = Value::Kind;

Value of_json(const Json& json) {
  switch (json.kind) {
    case Json::Kind::False:
    case Json::Kind::True:
      return Value::of(json.is(Json::Kind::True));
    case Json::Kind::Number:
      if (json.number == std::floor(json.number) && std::fabs(json.number) < 0x1p53)
        return Value::of(static_cast<int64_t>(json.number));
      return Value::of(json.number);
    case Json::Kind::String:
      return Value::of(json.text);
    case Json::Kind::Array: {
      Value::List list;
      for (const Json& item : json.items) list.push_back(of_json(item));
      return Value::of(std::move(list));
    }
    case Json::Kind::Object: {
      Value::Dict dict;
      for (size_t i = 0; i < json.items.size(); ++i) dict.emplace_back(json.keys[i], of_json(json.items[i]));
      return Value::of(std::move(dict));
    }
    default:
      return Value::none();
  }
}

std::string real_text(double value) {
  char text[40];
  for (int digits = 1; digits <= 17; ++digits) {
    std::snprintf(text, sizeof(text), "%.*g", digits, value);
    if (std::strtod(text, nullptr) == value) break;
  }
  const std::string found = text;
  return found.find_first_of(".eni") == std::string::npos ? found + ".0" : found;
}

/// As Python's str(), and repr() inside of lists.
std::string to_string(const Value& value, bool quoted = false, int depth = 0) {
  switch (value.kind) {
    case Kind::None:
      return "None";
    case Kind::Bool:
      return value.integer != 0 ? "True" : "False";
    case Kind::Int:
      return std::to_string(value.integer);
    case Kind::Float:
      return real_text(value.real);
    case Kind::String: {
      if (!quoted) return value.text;
      const char quote =
          value.text.find('\'') != std::string::npos && value.text.find('"') == std::string::npos ? '"'
                                                                                                  : '\'';
      std::string out(1, quote);
      for (char c : value.text) {
        if (c == quote || c == '\\') out += '\\';
        if (c == '\n')
          out += "\\n";
        else if (c == '\t')
          out += "\\t";
        else if (c == '\r')
          out += "\\r";
        else
          out += c;
      }
      return out + quote;
    }
    case Kind::List:
    case Kind::Dict: {
      if (depth > kMostDepth) return "...";
      std::string out;
      if (value.is(Kind::List))
        for (const Value& item : *value.list)
          out += (out.empty() ? "" : ", ") + to_string(item, true, depth + 1);
      else
        for (const auto& [key, item] : *value.dict)
          out += (out.empty() ? "" : ", ") + to_string(Value::of(key), true) + ": " +
                 to_string(item, true, depth + 1);
      return value.is(Kind::List) ? "[" + out + "]" : "{" + out + "}";
    }
    default:
      return quoted && value.is(Kind::Undefined) ? "Undefined" : "";
  }
}

std::string to_json(const Value& value, int indent, int depth = 0) {
  if (value.is(Kind::String)) {
    std::string out = json_string(value.text);
    for (const auto& [escaped, shorter] : {std::pair{"\\u000a", "\\n"},
                                           {"\\u000d", "\\r"},
                                           {"\\u0009", "\\t"},
                                           {"\\u0008", "\\b"},
                                           {"\\u000c", "\\f"}})
      for (size_t at = 0; (at = out.find(escaped, at)) != std::string::npos; at += 2)
        out.replace(at, 6, shorter);
    return out;
  }
  if (value.is(Kind::Bool)) return value.integer != 0 ? "true" : "false";
  if (!value.is(Kind::List) && !value.is(Kind::Dict)) return value.is_number() ? to_string(value) : "null";
  if (depth > kMostDepth) return "null";
  const bool is_list = value.is(Kind::List);
  const size_t count = is_list ? value.list->size() : value.dict->size();
  if (count == 0) return is_list ? "[]" : "{}";
  const auto line = [&](int deep) {
    return indent < 0 ? std::string()
                      : "\n" + std::string(static_cast<size_t>(indent) * static_cast<size_t>(deep), ' ');
  };
  std::string out = is_list ? "[" : "{";
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out += indent < 0 ? ", " : ",";
    out += line(depth + 1);
    if (is_list)
      out += to_json((*value.list)[i], indent, depth + 1);
    else
      out += to_json(Value::of((*value.dict)[i].first), -1) + ": " +
             to_json((*value.dict)[i].second, indent, depth + 1);
  }
  return out + line(depth) + (is_list ? "]" : "}");
}

bool equal(const Value& a, const Value& b, int depth = 0) {
  if (a.is_number() && b.is_number()) return a.number() == b.number();
  if (a.kind != b.kind || depth > kMostDepth) return false;
  if (a.is(Kind::String)) return a.text == b.text;
  if (a.is(Kind::List))
    return std::equal(a.list->begin(), a.list->end(), b.list->begin(), b.list->end(),
                      [&](const Value& x, const Value& y) { return equal(x, y, depth + 1); });
  if (a.is(Kind::Dict)) {
    if (a.dict->size() != b.dict->size()) return false;
    for (const auto& [key, value] : *a.dict) {
      const Value* other = b.member(key);
      if (other == nullptr || !equal(value, *other, depth + 1)) return false;
    }
  }
  return true;
}

Text characters(const std::string& text) {
  Result<Text> found = to_text(text);
  return found.ok() ? std::move(*found) : Text();
}

enum class Side : uint8_t { Both = 3, Left = 1, Right = 2 };

std::string stripped(const std::string& text, Side side, const std::string* given) {
  const Text whole = characters(text), set = given != nullptr ? characters(*given) : Text();
  const auto goes = [&](char32_t c) {
    return given != nullptr ? set.find(c) != Text::npos : is_space(c) || (c >= 0x1C && c <= 0x1F);
  };
  size_t first = 0, last = whole.size();
  if ((static_cast<int>(side) & 1) != 0)
    while (first < last && goes(whole[first])) ++first;
  if ((static_cast<int>(side) & 2) != 0)
    while (last > first && goes(whole[last - 1])) --last;
  return to_utf8(whole.data() + first, last - first);
}

std::string replaced(const std::string& text, const std::string& from, const std::string& to) {
  if (from.empty()) return text;
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size())
    out += text.substr(at, found - at) + to;
  return out + text.substr(at);
}

// --- The tree ---

enum class Op : uint8_t {
  // expressions
  Constant,
  Name,
  Attribute,
  Item,
  Slice,
  List,
  Dict,
  Call,
  Method,
  Filter,
  Test,
  Not,
  Negative,
  And,
  Or,
  Choice,
  Add,
  Subtract,
  Multiply,
  Divide,
  Floor,
  Modulo,
  Concat,
  Equal,
  Unequal,
  Less,
  LessEqual,
  Greater,
  GreaterEqual,
  In,
  // statements
  Text,
  Output,
  For,
  If,
  Set,
  Block,
  Macro,
  Break,
  Continue,
  SetBlock
};

struct Node {
  Op op = Op::Constant;
  int line = 0;
  Value value;                     // Constant
  std::string name;                // what it reads, calls or sets
  std::vector<std::string> names;  // For: the loop's; Call, Filter: of the last arguments; Macro: parameters
  std::vector<std::unique_ptr<Node>> kids;  // null: not given
};
using NodePtr = std::unique_ptr<Node>;

struct Token {
  enum class Kind : uint8_t { Text, Name, String, Number, Sign, Begin, End, OutputBegin, OutputEnd, Last };
  Kind kind;
  std::string text;
  int line;
};
using TokenKind = Token::Kind;

Error bad(int line, const std::string& what) {
  TORCHETTE_LOG(Error, "the chat template, line %d: %s", line, what.c_str());
  return Error::InvalidExternalData;
}
Error unknown(int line, const std::string& what) {
  TORCHETTE_LOG(Error, "the chat template, line %d: %s is not supported", line, what.c_str());
  return Error::NotSupported;
}

bool is_name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }

/// As Jinja with trim_blocks and lstrip_blocks: the line of a block leaves nothing behind.
Error lex(std::string_view source, std::vector<Token>* out) {
  if (!source.empty() && source.back() == '\n') source.remove_suffix(1);
  size_t at = 0;
  int line = 1;
  const auto emit = [&](TokenKind kind, std::string text) { out->push_back({kind, std::move(text), line}); };
  bool strips = false, trims = false;  // what the tag before does to the text behind it
  while (at < source.size()) {
    size_t tag = at;
    while ((tag = source.find('{', tag)) != std::string_view::npos && tag + 1 < source.size() &&
           source[tag + 1] != '{' && source[tag + 1] != '%' && source[tag + 1] != '#')
      ++tag;
    if (tag == std::string_view::npos || tag + 1 >= source.size()) tag = source.size();
    std::string text(source.substr(at, tag - at));
    const char kind = tag < source.size() ? source[tag + 1] : 0;
    const char sign = tag + 2 < source.size() ? source[tag + 2] : 0;
    const auto lines = std::count(text.begin(), text.end(), '\n');
    if (trims && !text.empty() && text[0] == '\n') text.erase(0, 1);
    if (strips) text.erase(0, std::min(text.size(), text.find_first_not_of(" \t\r\n\v\f")));
    if (kind != 0 && sign == '-') {
      const size_t last = text.find_last_not_of(" \t\r\n\v\f");
      text.erase(last == std::string::npos ? 0 : last + 1);
    } else if (kind != 0 && kind != '{' && sign != '+') {
      size_t blanks = tag;
      while (blanks > at && (source[blanks - 1] == ' ' || source[blanks - 1] == '\t')) --blanks;
      if (blanks == 0 || source[blanks - 1] == '\n')
        text.erase(text.size() - std::min(text.size(), tag - blanks));
    }
    if (!text.empty()) emit(TokenKind::Text, std::move(text));
    line += static_cast<int>(lines);
    if (kind == 0) break;
    at = tag + 2 + (sign == '-' || sign == '+' ? 1 : 0);
    strips = trims = false;
    if (kind == '#') {
      const size_t end = source.find("#}", at);
      if (end == std::string_view::npos) return bad(line, "a comment has no end");
      line += static_cast<int>(std::count(source.begin() + static_cast<std::ptrdiff_t>(at),
                                          source.begin() + static_cast<std::ptrdiff_t>(end), '\n'));
      strips = end > at && source[end - 1] == '-';
      trims = !(end > at && source[end - 1] == '+');
      at = end + 2;
      continue;
    }
    const bool is_block = kind == '%';
    emit(is_block ? TokenKind::Begin : TokenKind::OutputBegin, "");
    const std::string_view close = is_block ? "%}" : "}}";
    int open = 0;  // brackets inside of the tag
    for (bool ended = false; !ended;) {
      while (at < source.size() && is_blank(source[at])) line += source[at++] == '\n' ? 1 : 0;
      if (at >= source.size()) return bad(line, is_block ? "a {% has no %}" : "a {{ has no }}");
      const char c = source[at];
      const bool minus = (c == '-' || c == '+') && source.substr(at + 1, 2) == close;
      if (open == 0 && (minus || source.substr(at, 2) == close)) {
        strips = minus && c == '-';
        trims = is_block && !minus;
        at += minus ? 3 : 2;
        emit(is_block ? TokenKind::End : TokenKind::OutputEnd, "");
        ended = true;
      } else if (is_name_start(c)) {
        size_t end = at;
        while (end < source.size() && (is_name_start(source[end]) || is_digit(source[end]))) ++end;
        emit(TokenKind::Name, std::string(source.substr(at, end - at)));
        at = end;
      } else if (is_digit(c)) {
        size_t end = at;
        while (end < source.size() && is_digit(source[end])) ++end;
        if (end + 1 < source.size() && source[end] == '.' && is_digit(source[end + 1])) {
          ++end;
          while (end < source.size() && is_digit(source[end])) ++end;
        }
        emit(TokenKind::Number, std::string(source.substr(at, end - at)));
        at = end;
      } else if (c == '"' || c == '\'') {
        std::string value;
        for (++at; at < source.size() && source[at] != c; ++at) {
          if (source[at] == '\n') ++line;
          if (source[at] != '\\' || at + 1 >= source.size()) {
            value += source[at];
            continue;
          }
          const char e = source[++at];
          const size_t width = e == 'x' ? 2 : e == 'u' ? 4 : e == 'U' ? 8 : 0;
          if (width > 0) {
            const std::string digits(source.substr(at + 1, width));
            char* end = nullptr;
            const unsigned long number = std::strtoul(digits.c_str(), &end, 16);
            if (digits.size() != width || *end != 0 || number > 0x10FFFF)
              return bad(line, "a wrong escape in a text");
            append_utf8(static_cast<char32_t>(number), &value);
            at += width;
          } else if (e == 'n' || e == 't' || e == 'r') {
            value += e == 'n' ? '\n' : e == 't' ? '\t' : '\r';
          } else {
            if (e != '\\' && e != '\'' && e != '"') value += '\\';
            value += e;
          }
        }
        if (at >= source.size()) return bad(line, "a text has no end");
        ++at;
        emit(TokenKind::String, std::move(value));
      } else {
        static constexpr std::string_view kPairs[] = {"==", "!=", "<=", ">=", "//", "**"};
        std::string sign_text(1, c);
        for (std::string_view pair : kPairs)
          if (source.substr(at, 2) == pair) sign_text = pair;
        if (std::string_view("+-*/%~=!<>()[]{}.,:|").find(c) == std::string_view::npos || sign_text == "!")
          return bad(line, std::string("a ") + c + " inside of a tag");
        if (c == '(' || c == '[' || c == '{') ++open;
        if (c == ')' || c == ']' || c == '}') open = std::max(0, open - 1);
        at += sign_text.size();
        emit(TokenKind::Sign, std::move(sign_text));
      }
    }
  }
  emit(TokenKind::Last, "");
  return Error::Ok;
}

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<NodePtr> whole() {
    Result<NodePtr> block = statements({}, 0);
    if (block.ok() && here().kind != TokenKind::Last)
      return bad(here().line, "a block ends that has not begun");
    return block;
  }

 private:
  const Token& here() const { return tokens_[at_]; }
  bool sees(std::string_view sign) const { return here().kind == TokenKind::Sign && here().text == sign; }
  bool names(std::string_view word) const { return here().kind == TokenKind::Name && here().text == word; }
  bool take(std::string_view sign) { return sees(sign) && ++at_ != 0; }
  bool take_name(std::string_view word) { return names(word) && ++at_ != 0; }
  NodePtr make(Op op) {
    auto node = std::make_unique<Node>();
    node->op = op;
    node->line = here().line;
    return node;
  }
  Error expected(const std::string& what) { return bad(here().line, what + " is expected"); }
  Error close() {
    if (here().kind != TokenKind::End) return expected("%}");
    ++at_;
    return Error::Ok;
  }
  Error name(std::string* out) {
    if (here().kind != TokenKind::Name) return expected("a name");
    *out = tokens_[at_++].text;
    return Error::Ok;
  }
  /// A kid, or the error.
  static Error adopt(Node* node, Result<NodePtr> kid) {
    if (!kid.ok()) return kid.error();
    node->kids.push_back(std::move(*kid));
    return Error::Ok;
  }

  /// Up to a block whose word is one of `ends`, whose {% stays.
  Result<NodePtr> statements(std::initializer_list<std::string_view> ends, int depth) {
    if (depth > kMostDepth) return bad(here().line, "blocks are nested too deeply");
    NodePtr block = make(Op::Block);
    while (here().kind != TokenKind::Last) {
      if (here().kind == TokenKind::Text) {
        NodePtr text = make(Op::Text);
        text->name = tokens_[at_++].text;
        block->kids.push_back(std::move(text));
      } else if (here().kind == TokenKind::OutputBegin) {
        NodePtr output = make(Op::Output);
        ++at_;
        TORCHETTE_TRY(adopt(output.get(), expression()));
        if (here().kind != TokenKind::OutputEnd) return expected("}}");
        ++at_;
        block->kids.push_back(std::move(output));
      } else {
        const Token& word = tokens_[at_ + 1];
        if (word.kind == TokenKind::Name && std::find(ends.begin(), ends.end(), word.text) != ends.end())
          return block;
        ++at_;
        TORCHETTE_TRY(adopt(block.get(), statement(depth + 1)));
      }
    }
    if (ends.size() > 0) return bad(here().line, "the template ends inside of a block");
    return block;
  }

  Error end_of(std::string_view word) {
    if (here().kind != TokenKind::Begin) return expected("{%");
    ++at_;
    if (!take_name(word)) return expected(std::string(word));
    return close();
  }

  Result<NodePtr> statement(int depth) {
    std::string word;
    TORCHETTE_TRY(name(&word));
    if (word == "for") {
      NodePtr loop = make(Op::For);
      do {
        take("(");
        std::string one;
        TORCHETTE_TRY(name(&one));
        loop->names.push_back(one);
        take(")");
      } while (take(","));
      if (!take_name("in")) return expected("in");
      TORCHETTE_TRY(adopt(loop.get(), either()));
      loop->kids.push_back(nullptr);
      if (take_name("if")) {
        Result<NodePtr> condition = expression();
        if (!condition.ok()) return condition.error();
        loop->kids[1] = std::move(*condition);
      }
      TORCHETTE_TRY(close());
      TORCHETTE_TRY(adopt(loop.get(), statements({"endfor", "else"}, depth)));
      if (tokens_[at_ + 1].text == "else") {
        TORCHETTE_TRY(end_of("else"));
        TORCHETTE_TRY(adopt(loop.get(), statements({"endfor"}, depth)));
      }
      TORCHETTE_TRY(end_of("endfor"));
      return loop;
    }
    if (word == "if") {  // condition, block, condition, block..., block
      NodePtr choice = make(Op::If);
      TORCHETTE_TRY(adopt(choice.get(), expression()));
      TORCHETTE_TRY(close());
      for (;;) {
        TORCHETTE_TRY(adopt(choice.get(), statements({"elif", "else", "endif"}, depth)));
        const std::string next = tokens_[at_ + 1].text;
        if (next != "elif") break;
        at_ += 2;
        TORCHETTE_TRY(adopt(choice.get(), expression()));
        TORCHETTE_TRY(close());
      }
      if (tokens_[at_ + 1].text == "else") {
        TORCHETTE_TRY(end_of("else"));
        TORCHETTE_TRY(adopt(choice.get(), statements({"endif"}, depth)));
      }
      TORCHETTE_TRY(end_of("endif"));
      return choice;
    }
    if (word == "set") {
      NodePtr set = make(Op::Set);
      TORCHETTE_TRY(name(&set->name));
      if (take(".")) {
        set->names.emplace_back();
        TORCHETTE_TRY(name(&set->names[0]));
      }
      if (take("=")) {
        TORCHETTE_TRY(adopt(set.get(), expression()));
        TORCHETTE_TRY(close());
        return set;
      }
      set->op = Op::SetBlock;
      TORCHETTE_TRY(close());
      TORCHETTE_TRY(adopt(set.get(), statements({"endset"}, depth)));
      TORCHETTE_TRY(end_of("endset"));
      return set;
    }
    if (word == "macro") {
      NodePtr macro = make(Op::Macro);
      TORCHETTE_TRY(name(&macro->name));
      if (!take("(")) return expected("(");
      macro->kids.push_back(nullptr);
      while (!take(")")) {
        std::string one;
        TORCHETTE_TRY(name(&one));
        macro->names.push_back(one);
        macro->kids.push_back(nullptr);
        if (take("=")) {
          Result<NodePtr> otherwise = expression();
          if (!otherwise.ok()) return otherwise.error();
          macro->kids.back() = std::move(*otherwise);
        }
        if (!take(",") && !sees(")")) return expected(")");
      }
      TORCHETTE_TRY(close());
      Result<NodePtr> body = statements({"endmacro"}, depth);
      if (!body.ok()) return body.error();
      macro->kids[0] = std::move(*body);
      TORCHETTE_TRY(end_of("endmacro"));
      return macro;
    }
    if (word == "generation") {  // marks what is the assistant's
      TORCHETTE_TRY(close());
      Result<NodePtr> body = statements({"endgeneration"}, depth);
      if (!body.ok()) return body.error();
      TORCHETTE_TRY(end_of("endgeneration"));
      return body;
    }
    if (word == "break" || word == "continue") {
      NodePtr leave = make(word == "break" ? Op::Break : Op::Continue);
      TORCHETTE_TRY(close());
      return leave;
    }
    if (word.compare(0, 3, "end") == 0 || word == "else" || word == "elif")
      return bad(here().line, word + " stands where nothing has begun");
    return unknown(here().line, "the block " + word);
  }

  // --- expressions, from the weakest
  Result<NodePtr> expression() {
    if (++depth_ > kMostDepth) return bad(here().line, "an expression is nested too deeply");
    Result<NodePtr> found = ternary();
    --depth_;
    return found;
  }
  Result<NodePtr> ternary() {
    Result<NodePtr> first = either();
    while (first.ok() && names("if")) {
      NodePtr choice = make(Op::Choice);
      ++at_;
      TORCHETTE_TRY(adopt(choice.get(), either()));
      choice->kids.push_back(std::move(*first));
      if (take_name("else")) TORCHETTE_TRY(adopt(choice.get(), expression()));
      *first = std::move(choice);
    }
    return first;
  }
  using Level = Result<NodePtr> (Parser::*)();
  struct Sign {
    std::string_view text;
    Op op;
  };
  Result<NodePtr> binary(Level below, std::initializer_list<Sign> signs, bool words = false) {
    Result<NodePtr> left = (this->*below)();
    for (bool goes_on = true; left.ok() && goes_on;) {
      goes_on = false;
      for (const Sign& sign : signs) {
        if (!(words ? names(sign.text) : sees(sign.text))) continue;
        NodePtr node = make(sign.op);
        ++at_;
        node->kids.push_back(std::move(*left));
        TORCHETTE_TRY(adopt(node.get(), (this->*below)()));
        *left = std::move(node);
        goes_on = true;
        break;
      }
    }
    return left;
  }
  Result<NodePtr> either() { return binary(&Parser::both, {{"or", Op::Or}}, true); }
  Result<NodePtr> both() { return binary(&Parser::negation, {{"and", Op::And}}, true); }
  Result<NodePtr> negation() {
    if (!names("not")) return comparison();
    if (++depth_ > kMostDepth) return bad(here().line, "an expression is nested too deeply");
    NodePtr node = make(Op::Not);
    ++at_;
    TORCHETTE_TRY(adopt(node.get(), negation()));
    --depth_;
    return node;
  }
  Result<NodePtr> comparison() {
    Result<NodePtr> left = sum();
    while (left.ok()) {
      NodePtr node;
      for (const Sign& sign : {Sign{"==", Op::Equal}, Sign{"!=", Op::Unequal}, Sign{"<=", Op::LessEqual},
                               Sign{">=", Op::GreaterEqual}, Sign{"<", Op::Less}, Sign{">", Op::Greater}})
        if (!node && sees(sign.text)) node = make(sign.op);
      bool negated = false;
      if (!node && names("not") && tokens_[at_ + 1].text == "in") {
        negated = true;
        ++at_;
      }
      if (!node && names("in")) node = make(Op::In);
      if (!node) break;
      ++at_;
      node->kids.push_back(std::move(*left));
      TORCHETTE_TRY(adopt(node.get(), sum()));
      if (negated) {
        NodePtr opposite = make(Op::Not);
        opposite->kids.push_back(std::move(node));
        node = std::move(opposite);
      }
      *left = std::move(node);
    }
    return left;
  }
  Result<NodePtr> sum() { return binary(&Parser::joined, {{"+", Op::Add}, {"-", Op::Subtract}}); }
  Result<NodePtr> joined() { return binary(&Parser::product, {{"~", Op::Concat}}); }
  Result<NodePtr> product() {
    return binary(&Parser::filtered,
                  {{"*", Op::Multiply}, {"//", Op::Floor}, {"/", Op::Divide}, {"%", Op::Modulo}});
  }
  Result<NodePtr> filtered() {
    Result<NodePtr> left = unary();
    while (left.ok()) {
      if (take("|")) {
        NodePtr node = make(Op::Filter);
        TORCHETTE_TRY(name(&node->name));
        node->kids.push_back(std::move(*left));
        if (take("(")) TORCHETTE_TRY(arguments(node.get()));
        *left = std::move(node);
      } else if (take_name("is")) {
        NodePtr node = make(Op::Test);
        const bool negated = take_name("not");
        TORCHETTE_TRY(name(&node->name));
        node->kids.push_back(std::move(*left));
        if (take("("))
          TORCHETTE_TRY(arguments(node.get()));
        else if (here().kind == TokenKind::String || here().kind == TokenKind::Number || sees("[") ||
                 (here().kind == TokenKind::Name && !names("and") && !names("or") && !names("if") &&
                  !names("else") && !names("is") && !names("in") && !names("not")))
          TORCHETTE_TRY(adopt(node.get(), primary()));
        if (negated) {
          NodePtr opposite = make(Op::Not);
          opposite->kids.push_back(std::move(node));
          node = std::move(opposite);
        }
        *left = std::move(node);
      } else {
        break;
      }
    }
    return left;
  }
  Result<NodePtr> unary() {
    if (!sees("-") && !sees("+")) return primary();
    if (++depth_ > kMostDepth) return bad(here().line, "an expression is nested too deeply");
    const bool is_negative = sees("-");
    NodePtr node = make(Op::Negative);
    ++at_;
    Result<NodePtr> inner = unary();
    --depth_;
    if (!inner.ok() || !is_negative) return inner;
    node->kids.push_back(std::move(*inner));
    return node;
  }

  Error arguments(Node* node) {
    while (!take(")")) {
      if (here().kind == TokenKind::Name && tokens_[at_ + 1].kind == TokenKind::Sign &&
          tokens_[at_ + 1].text == "=") {
        node->names.push_back(here().text);
        at_ += 2;
      } else if (!node->names.empty()) {
        return expected("a named argument");
      }
      TORCHETTE_TRY(adopt(node, expression()));
      if (!take(",") && !sees(")")) return expected(")");
    }
    return Error::Ok;
  }

  Result<NodePtr> primary() {
    NodePtr node = make(Op::Constant);
    const Token& token = here();
    if (token.kind == TokenKind::String) {
      std::string text;
      while (here().kind == TokenKind::String) text += tokens_[at_++].text;
      node->value = Value::of(std::move(text));
    } else if (token.kind == TokenKind::Number) {
      node->value = token.text.find('.') != std::string::npos
                        ? Value::of(std::strtod(token.text.c_str(), nullptr))
                        : Value::of(static_cast<int64_t>(std::strtoll(token.text.c_str(), nullptr, 10)));
      ++at_;
    } else if (token.kind == TokenKind::Name) {
      const std::string& word = token.text;
      ++at_;
      if (word == "true" || word == "True" || word == "false" || word == "False") {
        node->value = Value::of(word == "true" || word == "True");
      } else if (word == "none" || word == "None") {
        node->value = Value::none();
      } else {
        node->op = Op::Name;
        node->name = word;
      }
    } else if (take("(")) {
      if (sees(")")) return unknown(token.line, "an empty tuple");
      Result<NodePtr> inner = expression();
      if (!inner.ok()) return inner.error();
      node = std::move(*inner);
      if (sees(",")) {
        NodePtr list = make(Op::List);
        list->kids.push_back(std::move(node));
        while (take(",") && !sees(")")) TORCHETTE_TRY(adopt(list.get(), expression()));
        node = std::move(list);
      }
      if (!take(")")) return expected(")");
    } else if (take("[")) {
      node->op = Op::List;
      while (!take("]")) {
        TORCHETTE_TRY(adopt(node.get(), expression()));
        if (!take(",") && !sees("]")) return expected("]");
      }
    } else if (take("{")) {
      node->op = Op::Dict;
      while (!take("}")) {
        TORCHETTE_TRY(adopt(node.get(), expression()));
        if (!take(":")) return expected(":");
        TORCHETTE_TRY(adopt(node.get(), expression()));
        if (!take(",") && !sees("}")) return expected("}");
      }
    } else {
      return expected("a value");
    }
    for (int hops = 0;; ++hops) {
      if (hops > kMostDepth) return bad(here().line, "an expression is nested too deeply");
      NodePtr outer;
      if (take(".")) {
        outer = make(Op::Attribute);
        TORCHETTE_TRY(name(&outer->name));
        outer->kids.push_back(std::move(node));
        if (take("(")) {
          outer->op = Op::Method;
          TORCHETTE_TRY(arguments(outer.get()));
        }
      } else if (take("[")) {
        outer = make(Op::Item);
        outer->kids.push_back(std::move(node));
        NodePtr parts[3];
        int part = 0;
        while (!take("]")) {
          if (take(":")) {
            outer->op = Op::Slice;
            if (++part > 2) return expected("]");
            continue;
          }
          if (parts[part]) return expected("]");
          Result<NodePtr> one = expression();
          if (!one.ok()) return one.error();
          parts[part] = std::move(*one);
        }
        if (outer->op == Op::Item && !parts[0]) return expected("an index");
        for (NodePtr& one : parts) outer->kids.push_back(std::move(one));
      } else if (take("(")) {
        outer = make(Op::Call);
        outer->kids.push_back(std::move(node));
        TORCHETTE_TRY(arguments(outer.get()));
      } else {
        return node;
      }
      node = std::move(outer);
    }
  }

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

// --- The walk ---

class Walk {
 public:
  explicit Walk(Value::Dict names) { scopes_.push_back(std::move(names)); }

  Error run(const Node& node, std::string* out);

 private:
  enum class Leave : uint8_t { Not, Break, Continue };
  using Arguments = std::vector<Value>;
  using Answer = Result<Value>;

  Error fails(const Node& node, const std::string& what) {
    TORCHETTE_LOG(Error, "the chat template, line %d: %s", node.line, what.c_str());
    return Error::InvalidArgument;
  }
  Error spend(size_t work) {
    left_ -= static_cast<int64_t>(work) + 1;
    TORCHETTE_CHECK(left_ >= 0, OutOfResources, "the chat template takes too long");
    return Error::Ok;
  }
  Value* find(const std::string& name) {
    for (size_t i = scopes_.size(); i-- > 0;)
      for (auto& [key, value] : scopes_[i])
        if (key == name) return &value;
    return nullptr;
  }
  void set(const std::string& name, Value value) {
    for (auto& [key, old] : scopes_.back())
      if (key == name) {
        old = std::move(value);
        return;
      }
    scopes_.back().emplace_back(name, std::move(value));
  }

  Answer eval(const Node& node);
  Answer eval_deep(const Node& node);
  Answer operation(const Node& node, const Value& a, const Value& b);
  Answer slice(const Node& node);
  Answer item(const Node& node, const Value& of, const Value& index);
  Answer call(const Node& node, const Value& callee, const std::string& name, const Arguments& arguments);
  Answer method(const Node& node, const Value& self, const Arguments& arguments);
  Answer filter(const Node& node, const std::string& name, const Value& value, const Arguments& arguments,
                const std::vector<std::string>& names);
  Answer test(const Node& node, const std::string& name, const Value& value, const Arguments& arguments);
  Error loop(const Node& node, std::string* out);
  Result<Value::List> items(const Node& node, const Value& value);
  Result<Arguments> evaluated(const Node& node, size_t from) {
    Arguments found;
    for (size_t i = from; i < node.kids.size(); ++i) {
      Answer one = eval(*node.kids[i]);
      if (!one.ok()) return one.error();
      found.push_back(std::move(*one));
    }
    return found;
  }
  /// An argument by its place or its name; null where it is not given.
  static const Value* argument(const Node& node, const Arguments& given, size_t place,
                               std::string_view name) {
    const size_t positional = given.size() - node.names.size();
    for (size_t i = 0; i < node.names.size(); ++i)
      if (node.names[i] == name) return &given[positional + i];
    return place < positional ? &given[place] : nullptr;
  }

  std::vector<Value::Dict> scopes_;
  int64_t left_ = kMostWork;
  int depth_ = 0;
  Leave leave_ = Leave::Not;
};

Error Walk::run(const Node& node, std::string* out) {
  TORCHETTE_TRY(spend(0));
  switch (node.op) {
    case Op::Text:
      *out += node.name;
      break;
    case Op::Output: {
      const Answer value = eval(*node.kids[0]);
      if (!value.ok()) return value.error();
      *out += to_string(*value);
      break;
    }
    case Op::Block:
      for (const NodePtr& kid : node.kids) {
        TORCHETTE_TRY(run(*kid, out));
        if (leave_ != Leave::Not) break;
      }
      break;
    case Op::If:
      for (size_t i = 0; i < node.kids.size(); i += 2) {
        if (i + 1 == node.kids.size()) return run(*node.kids[i], out);
        const Answer condition = eval(*node.kids[i]);
        if (!condition.ok()) return condition.error();
        if (condition->truth()) return run(*node.kids[i + 1], out);
      }
      break;
    case Op::For:
      return loop(node, out);
    case Op::Set:
    case Op::SetBlock: {
      Value value;
      if (node.op == Op::SetBlock) {
        std::string text;
        scopes_.emplace_back();
        const Error error = run(*node.kids[0], &text);
        scopes_.pop_back();
        TORCHETTE_TRY(error);
        value = Value::of(std::move(text));
      } else {
        Answer found = eval(*node.kids[0]);
        if (!found.ok()) return found.error();
        value = std::move(*found);
      }
      if (node.names.empty()) {
        set(node.name, std::move(value));
        break;
      }
      Value* space = find(node.name);
      if (space == nullptr || !space->is(Kind::Dict)) return fails(node, node.name + " is no namespace");
      for (auto& [key, old] : *space->dict)
        if (key == node.names[0]) {
          old = std::move(value);
          return Error::Ok;
        }
      space->dict->emplace_back(node.names[0], std::move(value));
      break;
    }
    case Op::Macro: {
      Value macro;
      macro.kind = Kind::Macro;
      macro.macro = &node;
      set(node.name, std::move(macro));
      break;
    }
    default:
      leave_ = node.op == Op::Break ? Leave::Break : Leave::Continue;
  }
  TORCHETTE_CHECK(out->size() <= 64 * kMostText, OutOfResources, "the chat template writes too much");
  return Error::Ok;
}

Result<Value::List> Walk::items(const Node& node, const Value& value) {
  if (value.is(Kind::List)) return *value.list;
  Value::List found;
  if (value.is(Kind::Dict)) {
    for (const auto& [key, item] : *value.dict) found.push_back(Value::of(key));
  } else if (value.is(Kind::String)) {
    for (char32_t c : characters(value.text)) found.push_back(Value::of(to_utf8(&c, 1)));
  } else if (!value.is(Kind::Undefined)) {
    return fails(node, to_string(value, true) + " has no items");
  }
  TORCHETTE_TRY(spend(found.size()));
  return found;
}

Error Walk::loop(const Node& node, std::string* out) {
  const Answer over = eval(*node.kids[0]);
  if (!over.ok()) return over.error();
  Result<Value::List> list = items(node, *over);
  if (!list.ok()) return list.error();
  scopes_.emplace_back();
  const auto bind = [&](const Value& one) -> Error {
    if (node.names.size() == 1) {
      set(node.names[0], one);
      return Error::Ok;
    }
    if (!one.is(Kind::List) || one.list->size() != node.names.size())
      return fails(node, "an item has not " + std::to_string(node.names.size()) + " parts");
    for (size_t i = 0; i < node.names.size(); ++i) set(node.names[i], (*one.list)[i]);
    return Error::Ok;
  };
  Error error = Error::Ok;
  if (node.kids[1]) {
    Value::List kept;
    for (const Value& one : *list) {
      error = bind(one);
      if (error != Error::Ok) break;
      const Answer condition = eval(*node.kids[1]);
      error = condition.ok() ? Error::Ok : condition.error();
      if (error != Error::Ok) break;
      if (condition->truth()) kept.push_back(one);
    }
    *list = std::move(kept);
  }
  const size_t count = list->size();
  for (size_t i = 0; i < count && error == Error::Ok; ++i) {
    scopes_.back().clear();
    error = bind((*list)[i]);
    if (error != Error::Ok) break;
    set("loop",
        Value::of(Value::Dict{{"index", Value::of(i + 1)},
                              {"index0", Value::of(i)},
                              {"revindex", Value::of(count - i)},
                              {"revindex0", Value::of(count - i - 1)},
                              {"first", Value::of(i == 0)},
                              {"last", Value::of(i + 1 == count)},
                              {"length", Value::of(count)},
                              {"previtem", i > 0 ? (*list)[i - 1] : Value::undefined("previtem")},
                              {"nextitem", i + 1 < count ? (*list)[i + 1] : Value::undefined("nextitem")}}));
    error = run(*node.kids[2], out);
    if (leave_ == Leave::Break) {
      leave_ = Leave::Not;
      break;
    }
    leave_ = Leave::Not;
  }
  scopes_.pop_back();
  if (error == Error::Ok && count == 0 && node.kids.size() > 3) return run(*node.kids[3], out);
  return error;
}

Walk::Answer Walk::eval(const Node& node) {
  TORCHETTE_TRY(spend(0));
  if (++depth_ > 4 * kMostDepth) return fails(node, "values are nested too deeply");
  Answer found = eval_deep(node);
  --depth_;
  if (found.ok() && found->is(Kind::String)) {
    TORCHETTE_TRY(spend(found->text.size() / 16));
    if (found->text.size() > 16 * kMostText) return fails(node, "a text is too long");
  }
  return found;
}

Walk::Answer Walk::eval_deep(const Node& node) {
  const auto kid = [&](size_t i) { return eval(*node.kids[i]); };
  switch (node.op) {
    case Op::Constant:
      return node.value;
    case Op::Name: {
      const Value* found = find(node.name);
      return found != nullptr ? *found : Value::undefined(node.name);
    }
    case Op::List: {
      Result<Arguments> list = evaluated(node, 0);
      if (!list.ok()) return list.error();
      return Value::of(std::move(*list));
    }
    case Op::Dict: {
      const Result<Arguments> list = evaluated(node, 0);
      if (!list.ok()) return list.error();
      Value::Dict dict;
      for (size_t i = 0; i + 1 < list->size(); i += 2)
        dict.emplace_back(to_string((*list)[i]), (*list)[i + 1]);
      return Value::of(std::move(dict));
    }
    case Op::And:
    case Op::Or: {
      Answer left = kid(0);
      if (!left.ok() || left->truth() == (node.op == Op::Or)) return left;
      return kid(1);
    }
    case Op::Choice: {
      const Answer condition = kid(0);
      if (!condition.ok()) return condition.error();
      if (condition->truth()) return kid(1);
      return node.kids.size() > 2 ? kid(2) : Answer(Value::undefined("the other choice"));
    }
    case Op::Slice:
      return slice(node);
    default:
      break;
  }
  const bool calls_name = node.op == Op::Call && node.kids[0]->op == Op::Name;
  const Answer first = kid(0);
  if (!first.ok()) return first.error();
  switch (node.op) {
    case Op::Not:
      return Value::of(!first->truth());
    case Op::Negative:
      if (first->is_whole())
        return Value::of(static_cast<int64_t>(0 - static_cast<uint64_t>(first->integer)));
      if (first->is_number()) return Value::of(-first->real);
      return fails(node, "- stands before what is no number");
    case Op::Attribute: {
      if (first->is(Kind::Undefined)) return fails(node, first->text + " is undefined");
      const Value* found = first->member(node.name);
      return found != nullptr ? *found : Value::undefined(node.name);
    }
    case Op::Item: {
      const Answer index = kid(1);
      if (!index.ok()) return index.error();
      return item(node, *first, *index);
    }
    case Op::Call:
    case Op::Method:
    case Op::Filter:
    case Op::Test: {
      const Result<Arguments> arguments = evaluated(node, 1);
      if (!arguments.ok()) return arguments.error();
      if (node.op == Op::Filter) return filter(node, node.name, *first, *arguments, node.names);
      if (node.op == Op::Test) return test(node, node.name, *first, *arguments);
      if (node.op == Op::Method) return method(node, *first, *arguments);
      return call(node, *first, calls_name ? node.kids[0]->name : "this", *arguments);
    }
    default: {
      const Answer second = kid(1);
      if (!second.ok()) return second.error();
      return operation(node, *first, *second);
    }
  }
}

Walk::Answer Walk::item(const Node& node, const Value& of, const Value& index) {
  if (of.is(Kind::Undefined)) return fails(node, of.text + " is undefined");
  if (of.is(Kind::Dict)) {
    const Value* found = of.member(to_string(index));
    return found != nullptr ? *found : Value::undefined(to_string(index));
  }
  if (!index.is_whole()) return Value::undefined(to_string(index));
  const Text text = of.is(Kind::String) ? characters(of.text) : Text();
  const auto size = static_cast<int64_t>(of.is(Kind::List) ? of.list->size() : text.size());
  const int64_t at = index.integer < 0 ? index.integer + size : index.integer;
  if (at < 0 || at >= size) return Value::undefined("an item at " + to_string(index));
  if (of.is(Kind::List)) return (*of.list)[static_cast<size_t>(at)];
  return Value::of(to_utf8(&text[static_cast<size_t>(at)], 1));
}

Walk::Answer Walk::slice(const Node& node) {
  const Answer of = eval(*node.kids[0]);
  if (!of.ok()) return of.error();
  int64_t given[3] = {};
  for (size_t i = 0; i < 3; ++i) {
    if (!node.kids[i + 1]) continue;
    const Answer bound = eval(*node.kids[i + 1]);
    if (!bound.ok()) return bound.error();
    if (!bound->is_whole()) return fails(node, "a slice has bounds that are no whole numbers");
    given[i] = bound->integer;
  }
  if (!of->is(Kind::String) && !of->is(Kind::List)) return fails(node, "a slice of what has no items");
  const Text text = of->is(Kind::String) ? characters(of->text) : Text();
  const auto size = static_cast<int64_t>(of->is(Kind::List) ? of->list->size() : text.size());
  const int64_t step = node.kids[3] ? std::max<int64_t>(std::min<int64_t>(given[2], 1 << 30), -(1 << 30)) : 1;
  if (step == 0) return fails(node, "a slice with the step 0");
  const auto bound = [&](size_t i, int64_t otherwise) {
    if (!node.kids[i + 1]) return otherwise;
    const int64_t at = given[i] < 0 ? given[i] + size : given[i];
    return step > 0 ? std::clamp<int64_t>(at, 0, size) : std::clamp<int64_t>(at, -1, size - 1);
  };
  const int64_t first = bound(0, step > 0 ? 0 : size - 1), last = bound(1, step > 0 ? size : -1);
  Value::List list;
  Text part;
  for (int64_t at = first; step > 0 ? at < last : at > last; at += step)
    if (of->is(Kind::List))
      list.push_back((*of->list)[static_cast<size_t>(at)]);
    else
      part += text[static_cast<size_t>(at)];
  if (of->is(Kind::List)) return Value::of(std::move(list));
  return Value::of(to_utf8(part));
}

Walk::Answer Walk::operation(const Node& node, const Value& a, const Value& b) {
  const bool whole = a.is_whole() && b.is_whole();
  const auto wrap = [](uint64_t value) { return Value::of(static_cast<int64_t>(value)); };
  const auto x = static_cast<uint64_t>(a.integer), y = static_cast<uint64_t>(b.integer);
  switch (node.op) {
    case Op::Concat:
      return Value::of(to_string(a) + to_string(b));
    case Op::Equal:
      return Value::of(equal(a, b));
    case Op::Unequal:
      return Value::of(!equal(a, b));
    case Op::In:
      if (b.is(Kind::Dict)) return Value::of(b.member(to_string(a)) != nullptr);
      if (b.is(Kind::String)) {
        if (!a.is(Kind::String)) return fails(node, "in asks a text for what is no text");
        return Value::of(b.text.find(a.text) != std::string::npos);
      }
      if (b.is(Kind::List)) {
        TORCHETTE_TRY(spend(b.list->size()));
        return Value::of(
            std::any_of(b.list->begin(), b.list->end(), [&](const Value& v) { return equal(a, v); }));
      }
      return fails(node, "in asks what has no items");
    case Op::Add:
      if (a.is(Kind::String) && b.is(Kind::String)) return Value::of(a.text + b.text);
      if (a.is(Kind::List) && b.is(Kind::List)) {
        Value::List list = *a.list;
        TORCHETTE_TRY(spend(list.size() + b.list->size()));
        list.insert(list.end(), b.list->begin(), b.list->end());
        return Value::of(std::move(list));
      }
      if (whole) return wrap(x + y);
      break;
    case Op::Subtract:
      if (whole) return wrap(x - y);
      break;
    case Op::Multiply:
      if (whole) return wrap(x * y);
      if (a.is_whole() && b.is(Kind::String)) return operation(node, b, a);
      if (a.is(Kind::String) && b.is_whole()) {
        std::string text;
        const int64_t count = std::max<int64_t>(b.integer, 0);
        if (static_cast<uint64_t>(count) * a.text.size() > kMostText || count > (1 << 20))
          return fails(node, "a text is too long");
        for (int64_t i = 0; i < count; ++i) text += a.text;
        return Value::of(std::move(text));
      }
      break;
    case Op::Less:
    case Op::LessEqual:
    case Op::Greater:
    case Op::GreaterEqual:
      if (a.is(Kind::String) && b.is(Kind::String)) {
        const int order = a.text.compare(b.text);
        return Value::of(node.op == Op::Less        ? order < 0
                         : node.op == Op::LessEqual ? order <= 0
                         : node.op == Op::Greater   ? order > 0
                                                    : order >= 0);
      }
      break;
    default:
      break;
  }
  if (!a.is_number() || !b.is_number())
    return fails(node, (a.is(Kind::Undefined) ? a.text + " is undefined" : to_string(a, true)) + " and " +
                           (b.is(Kind::Undefined) ? b.text + ", which is undefined," : to_string(b, true)) +
                           " do not go together");
  const double p = a.number(), q = b.number();
  switch (node.op) {
    case Op::Add:
      return Value::of(p + q);
    case Op::Subtract:
      return Value::of(p - q);
    case Op::Multiply:
      return Value::of(p * q);
    case Op::Less:
      return Value::of(p < q);
    case Op::LessEqual:
      return Value::of(p <= q);
    case Op::Greater:
      return Value::of(p > q);
    case Op::GreaterEqual:
      return Value::of(p >= q);
    default:
      break;
  }
  if (q == 0) return fails(node, "a division by 0");
  if (node.op == Op::Divide) return Value::of(p / q);
  if (whole && b.integer != -1) {  // rounded down, as Python does it
    int64_t quotient = a.integer / b.integer, rest = a.integer % b.integer;
    if (rest != 0 && (rest < 0) != (b.integer < 0)) --quotient, rest += b.integer;
    return Value::of(node.op == Op::Floor ? quotient : rest);
  }
  if (whole) return node.op == Op::Floor ? wrap(0 - x) : Value::of(int64_t{0});
  const double quotient = std::floor(p / q);
  return Value::of(node.op == Op::Floor ? quotient : p - quotient * q);
}

Walk::Answer Walk::call(const Node& node, const Value& callee, const std::string& name,
                        const Arguments& arguments) {
  if (callee.is(Kind::Macro)) {
    const Node& macro = *callee.macro;
    Value::Dict scope;
    for (size_t i = 0; i < macro.names.size(); ++i) {
      const Value* given = argument(node, arguments, i, macro.names[i]);
      if (given == nullptr && macro.kids[i + 1]) {
        const Answer otherwise = eval(*macro.kids[i + 1]);
        if (!otherwise.ok()) return otherwise.error();
        scope.emplace_back(macro.names[i], *otherwise);
      } else {
        scope.emplace_back(macro.names[i], given != nullptr ? *given : Value::undefined(macro.names[i]));
      }
    }
    if (++depth_ > kMostDepth) return fails(node, "macros call each other too deeply");
    std::vector<Value::Dict> outer(std::make_move_iterator(scopes_.begin() + 1),
                                   std::make_move_iterator(scopes_.end()));
    scopes_.resize(1);
    scopes_.push_back(std::move(scope));
    std::string text;
    const Error error = run(*macro.kids[0], &text);
    scopes_.resize(1);
    for (Value::Dict& one : outer) scopes_.push_back(std::move(one));
    --depth_;
    TORCHETTE_TRY(error);
    return Value::of(std::move(text));
  }
  if (!callee.is(Kind::Undefined)) return fails(node, name + " cannot be called");
  if (name == "namespace" || name == "dict") {
    Value::Dict dict;
    const size_t positional = arguments.size() - node.names.size();
    for (size_t i = 0; i < node.names.size(); ++i)
      dict.emplace_back(node.names[i], arguments[positional + i]);
    return Value::of(std::move(dict));
  }
  if (name == "raise_exception")
    return fails(node, arguments.empty() ? "the messages are refused" : to_string(arguments[0]));
  if (name == "range") {
    int64_t bounds[3] = {0, 0, 1};
    if (arguments.empty() || arguments.size() > 3) return fails(node, "range takes 1 to 3 numbers");
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (!arguments[i].is_whole()) return fails(node, "range takes whole numbers");
      bounds[arguments.size() == 1 ? 1 : i] = arguments[i].integer;
    }
    Value::List list;
    if (bounds[2] == 0) return fails(node, "range with the step 0");
    const auto step = static_cast<uint64_t>(bounds[2]);  // wraps around beyond the last number only
    for (int64_t i = bounds[0]; bounds[2] > 0 ? i < bounds[1] : i > bounds[1];) {
      TORCHETTE_TRY(spend(4));
      list.push_back(Value::of(i));
      const auto next = static_cast<int64_t>(static_cast<uint64_t>(i) + step);
      if ((next > i) != (bounds[2] > 0)) break;
      i = next;
    }
    return Value::of(std::move(list));
  }
  if (name == "strftime_now") {
    const std::time_t now = std::time(nullptr);
    const std::tm* local = std::localtime(&now);
    char text[256] = "";
    if (arguments.size() != 1 || local == nullptr) return fails(node, "strftime_now takes a format");
    const size_t size = std::strftime(text, sizeof(text), to_string(arguments[0]).c_str(), local);
    return Value::of(std::string(text, size));
  }
  return unknown(node.line, "the function " + name);
}

Walk::Answer Walk::method(const Node& node, const Value& self, const Arguments& arguments) {
  const std::string& name = node.name;
  const auto text_at = [&](size_t i) -> const std::string* {
    return i < arguments.size() && arguments[i].is(Kind::String) ? &arguments[i].text : nullptr;
  };
  if (self.is(Kind::Undefined)) return fails(node, self.text + " is undefined");
  if (self.is(Kind::String)) {
    const std::string& text = self.text;
    const std::string *one = text_at(0), *two = text_at(1);
    if (name == "strip") return Value::of(stripped(text, Side::Both, one));
    if (name == "lstrip") return Value::of(stripped(text, Side::Left, one));
    if (name == "rstrip") return Value::of(stripped(text, Side::Right, one));
    if (name == "startswith" || name == "endswith") {
      std::vector<std::string> wanted;
      if (one != nullptr) wanted.push_back(*one);
      if (!arguments.empty() && arguments[0].is(Kind::List))
        for (const Value& each : *arguments[0].list) wanted.push_back(to_string(each));
      return Value::of(std::any_of(wanted.begin(), wanted.end(), [&](const std::string& part) {
        return text.size() >= part.size() &&
               text.compare(name == "startswith" ? 0 : text.size() - part.size(), part.size(), part) == 0;
      }));
    }
    if (name == "replace" && one != nullptr && two != nullptr) {
      TORCHETTE_TRY(spend(text.size() * (two->size() + 1)));
      return Value::of(replaced(text, *one, *two));
    }
    if (name == "split" || name == "rsplit") {
      int64_t most = arguments.size() > 1 && arguments[1].is_whole() ? arguments[1].integer : -1;
      if (name == "rsplit" && most >= 0) return unknown(node.line, "rsplit with a number");
      Value::List parts;
      TORCHETTE_TRY(spend(text.size()));
      if (one == nullptr) {
        std::string part;
        for (char32_t c : characters(text)) {
          if (!is_space(c)) {
            append_utf8(c, &part);
          } else if (!part.empty()) {
            parts.push_back(Value::of(part));
            part.clear();
          }
        }
        if (!part.empty()) parts.push_back(Value::of(part));
        return Value::of(std::move(parts));
      }
      if (one->empty()) return fails(node, "split at nothing");
      size_t at = 0;
      for (size_t found; most != 0 && (found = text.find(*one, at)) != std::string::npos;
           at = found + one->size()) {
        parts.push_back(Value::of(text.substr(at, found - at)));
        --most;
      }
      parts.push_back(Value::of(text.substr(at)));
      return Value::of(std::move(parts));
    }
    if (name == "find" && one != nullptr) {
      const size_t found = text.find(*one);
      return Value::of(found == std::string::npos
                           ? int64_t{-1}
                           : static_cast<int64_t>(characters(text.substr(0, found)).size()));
    }
    if (name == "upper" || name == "lower" || name == "title" || name == "capitalize")
      return filter(node, name, self, {}, {});
  }
  if (self.is(Kind::Dict)) {
    if (name == "get" && !arguments.empty()) {
      const Value* found = self.member(to_string(arguments[0]));
      return found != nullptr ? *found : arguments.size() > 1 ? arguments[1] : Value::none();
    }
    if (name == "items" || name == "keys" || name == "values") {
      Value::List list;
      for (const auto& [key, value] : *self.dict)
        list.push_back(name == "items"  ? Value::of(Value::List{Value::of(key), value})
                       : name == "keys" ? Value::of(key)
                                        : value);
      return Value::of(std::move(list));
    }
    if (const Value* found = self.member(name)) return call(node, *found, name, arguments);
  }
  return unknown(node.line, "the method " + name);
}

Walk::Answer Walk::filter(const Node& node, const std::string& name, const Value& value,
                          const Arguments& arguments, const std::vector<std::string>& names) {
  const auto given = [&](size_t place, std::string_view key) {
    return names.empty() && !node.names.empty() ? nullptr : argument(node, arguments, place, key);
  };
  if (name == "default" || name == "d") {
    const Value* otherwise = given(0, "default_value");
    const Value* falsy = given(1, "boolean");
    if (value.is(Kind::Undefined) || (falsy != nullptr && falsy->truth() && !value.truth()))
      return otherwise != nullptr ? *otherwise : Value::of(std::string());
    return value;
  }
  if (name == "tojson") {
    const Value* indent = given(0, "indent");
    if (value.is(Kind::Undefined)) return fails(node, value.text + " is undefined");
    const int by = indent != nullptr && indent->is_whole() && indent->integer >= 0 && indent->integer < 32
                       ? static_cast<int>(indent->integer)
                       : -1;
    return Value::of(to_json(value, by));
  }
  if (name == "string") return Value::of(to_string(value));
  if (name == "safe" || name == "e" || name == "escape") {
    if (name == "safe") return value;
    return unknown(node.line, "the filter " + name);
  }
  if (name == "int") {
    if (value.is(Kind::String))
      return Value::of(static_cast<int64_t>(std::strtoll(value.text.c_str(), nullptr, 10)));
    if (!value.is_number() || std::fabs(value.number()) >= 0x1p62) return Value::of(int64_t{0});
    return Value::of(value.is_whole() ? value.integer : static_cast<int64_t>(value.real));
  }
  if (name == "float") {
    return Value::of(value.is(Kind::String) ? std::strtod(value.text.c_str(), nullptr) : value.number());
  }
  if (name == "abs" && value.is_number())
    return value.is_whole()
               ? Value::of(std::max(value.integer, -std::max<int64_t>(value.integer, -INT64_MAX)))
               : Value::of(std::fabs(value.real));
  if (name == "length" || name == "count") {
    if (value.is(Kind::String)) return Value::of(characters(value.text).size());
    if (value.is(Kind::List)) return Value::of(value.list->size());
    if (value.is(Kind::Dict)) return Value::of(value.dict->size());
    if (value.is(Kind::Undefined)) return Value::of(int64_t{0});
    return fails(node, "length of what has no items");
  }
  if (name == "trim" || name == "upper" || name == "lower" || name == "capitalize" || name == "title" ||
      name == "replace") {
    const std::string text = to_string(value);
    if (name == "trim") {
      const Value* set = given(0, "chars");
      return Value::of(
          stripped(text, Side::Both, set != nullptr && set->is(Kind::String) ? &set->text : nullptr));
    }
    if (name == "replace") {
      const Value *from = given(0, "old"), *to = given(1, "new");
      if (from == nullptr || to == nullptr) return fails(node, "replace takes two texts");
      const std::string with = to_string(*to);
      TORCHETTE_TRY(spend(text.size() * (with.size() + 1)));
      return Value::of(replaced(text, to_string(*from), with));
    }
    // upper case of ASCII alone: the tables are for lower case
    std::string out;
    bool inside = false;
    for (char32_t c : characters(text)) {
      const bool raise = name == "upper" || (!inside && name != "lower");
      Text lowered;
      append_lower(c, &lowered);
      if (raise && lowered.size() == 1 && lowered[0] >= 'a' && lowered[0] <= 'z')
        out += static_cast<char>(lowered[0] - 32);
      else
        out += raise ? to_utf8(&c, 1) : to_utf8(lowered);
      inside = name == "capitalize" || (name == "title" && is_in(c, kLetters));
    }
    return Value::of(std::move(out));
  }
  if (name == "items") {
    if (value.is(Kind::Undefined)) return Value::of(Value::List());
    if (!value.is(Kind::Dict)) return fails(node, "items of what is no mapping");
    Value::List list;
    for (const auto& [key, one] : *value.dict) list.push_back(Value::of(Value::List{Value::of(key), one}));
    return Value::of(std::move(list));
  }
  static constexpr std::string_view kOfLists[] = {"list",       "first",      "last",   "reverse", "join",
                                                  "selectattr", "rejectattr", "select", "reject",  "map"};
  if (std::find(std::begin(kOfLists), std::end(kOfLists), name) == std::end(kOfLists))
    return unknown(node.line, "the filter " + name);
  Result<Value::List> list = items(node, value);
  if (!list.ok()) return list.error();
  if (name == "list") return Value::of(std::move(*list));
  if (name == "first") return list->empty() ? Value::undefined("a first item") : list->front();
  if (name == "last") return list->empty() ? Value::undefined("a last item") : list->back();
  if (name == "reverse") {
    std::reverse(list->begin(), list->end());
    if (!value.is(Kind::String)) return Value::of(std::move(*list));
    std::string text;
    for (const Value& one : *list) text += one.text;
    return Value::of(std::move(text));
  }
  if (name == "join") {
    const Value *between = given(0, "d"), *attribute = given(1, "attribute");
    std::string out;
    for (size_t i = 0; i < list->size(); ++i) {
      const Value* part = attribute != nullptr ? (*list)[i].member(to_string(*attribute)) : &(*list)[i];
      if (i > 0 && between != nullptr) out += to_string(*between);
      if (part != nullptr) out += to_string(*part);
    }
    return Value::of(std::move(out));
  }
  const bool by_attribute = name == "selectattr" || name == "rejectattr";
  Value::List kept;
  const Value* attribute = name == "map" ? given(1000, "attribute") : nullptr;
  for (const Value& one : *list) {
    if (attribute != nullptr) {
      const Value* found = one.member(to_string(*attribute));
      kept.push_back(found != nullptr ? *found : Value::undefined(to_string(*attribute)));
      continue;
    }
    if (name == "map") {
      if (arguments.empty()) return fails(node, "map takes a filter or an attribute");
      Answer mapped = filter(node, to_string(arguments[0]), one, {}, {});
      if (!mapped.ok()) return mapped.error();
      kept.push_back(std::move(*mapped));
      continue;
    }
    const size_t place = by_attribute ? 1 : 0;
    if (by_attribute && arguments.empty()) return fails(node, name + " takes an attribute");
    const Value* judged = by_attribute ? one.member(to_string(arguments[0])) : &one;
    const Value missing = Value::undefined(by_attribute ? to_string(arguments[0]) : "");
    if (judged == nullptr) judged = &missing;
    bool holds = judged->truth();
    if (arguments.size() > place) {
      const Arguments rest(arguments.begin() + static_cast<std::ptrdiff_t>(place) + 1, arguments.end());
      const Answer found = test(node, to_string(arguments[place]), *judged, rest);
      if (!found.ok()) return found.error();
      holds = found->truth();
    }
    if (holds == (name[0] == 's')) kept.push_back(one);
  }
  return Value::of(std::move(kept));
}

Walk::Answer Walk::test(const Node& node, const std::string& name, const Value& value,
                        const Arguments& arguments) {
  if (name == "defined") return Value::of(!value.is(Kind::Undefined));
  if (name == "undefined") return Value::of(value.is(Kind::Undefined));
  if (name == "none") return Value::of(value.is(Kind::None));
  if (name == "string") return Value::of(value.is(Kind::String));
  if (name == "number") return Value::of(value.is_number());
  if (name == "integer") return Value::of(value.is(Kind::Int));
  if (name == "float") return Value::of(value.is(Kind::Float));
  if (name == "boolean") return Value::of(value.is(Kind::Bool));
  if (name == "true") return Value::of(value.is(Kind::Bool) && value.integer != 0);
  if (name == "false") return Value::of(value.is(Kind::Bool) && value.integer == 0);
  if (name == "mapping") return Value::of(value.is(Kind::Dict));
  if (name == "callable") return Value::of(value.is(Kind::Macro));
  if (name == "iterable" || name == "sequence")
    return Value::of(value.is(Kind::List) || value.is(Kind::Dict) || value.is(Kind::String) ||
                     (name == "iterable" && value.is(Kind::Undefined)));
  if ((name == "even" || name == "odd") && value.is_whole())
    return Value::of((value.integer % 2 != 0) == (name == "odd"));
  if (arguments.size() == 1) {
    Node sign;
    sign.line = node.line;
    sign.op = name == "equalto" || name == "eq" || name == "=="      ? Op::Equal
              : name == "ne" || name == "!="                         ? Op::Unequal
              : name == "in"                                         ? Op::In
              : name == "gt" || name == "greaterthan" || name == ">" ? Op::Greater
              : name == "lt" || name == "lessthan" || name == "<"    ? Op::Less
                                                                     : Op::Constant;
    if (sign.op != Op::Constant) return operation(sign, value, arguments[0]);
    if (name == "divisibleby" && value.is_whole() && arguments[0].is_whole() && arguments[0].integer > 0)
      return Value::of(value.integer % arguments[0].integer == 0);
  }
  return unknown(node.line, "the test " + name);
}

}  // namespace

struct ChatTemplate::Tree {
  NodePtr root;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Tree> tree) : tree_(std::move(tree)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  TORCHETTE_CHECK(source.size() <= kMostText, InvalidExternalData, "a chat template of %zu bytes",
                  source.size());
  const Result<Text> valid = to_text(source);
  if (!valid.ok()) return Error::InvalidExternalData;
  std::vector<Token> tokens;
  TORCHETTE_TRY(lex(source, &tokens));
  Result<NodePtr> root = Parser(std::move(tokens)).whole();
  if (!root.ok()) return root.error();
  return ChatTemplate(std::make_unique<Tree>(Tree{std::move(*root)}));
}

Result<std::string> ChatTemplate::render(const Names& names) const {
  Value::Dict given;
  for (const auto& [name, value] : names) given.emplace_back(name, of_json(value));
  std::string out;
  const Error error = Walk(std::move(given)).run(*tree_->root, &out);
  if (error != Error::Ok) return error;
  return out;
}

}  // namespace torchette::extension::llm
