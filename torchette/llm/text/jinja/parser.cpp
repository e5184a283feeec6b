// SPDX-License-Identifier: BSD-3-Clause
// A recursive descent parser: one function per level of precedence, one row of a table per block.
#include "torchette/llm/text/jinja/parser.h"

#include <algorithm>
#include <cstdlib>
#include <initializer_list>

#include "torchette/llm/text/jinja/errors.h"
#include "torchette/llm/text/jinja/limits.h"

namespace torchette::extension::llm::jinja {
namespace {

class Parser {
 public:
  explicit Parser(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  Result<NodePtr> run();

 private:
  struct Block;
  struct BinaryOperator {
    std::string_view sign;
    Op op;
  };
  using Level = Result<NodePtr> (Parser::*)();

  const Token& here() const { return tokens_[at_]; }
  bool is_kind(Token::Kind kind) const { return here().kind == kind; }
  bool is_sign(std::string_view sign) const { return is_kind(Token::Kind::Sign) && here().text == sign; }
  bool is_name(std::string_view name) const { return is_kind(Token::Kind::Name) && here().text == name; }
  bool skip_sign(std::string_view sign) { return is_sign(sign) && ++at_ != 0; }
  bool skip_name(std::string_view name) { return is_name(name) && ++at_ != 0; }
  /// The word after the {% at the current position.
  const std::string& block_word() const { return tokens_[at_ + 1].text; }

  NodePtr make(Op op) const;
  Error expected(const std::string& token) const { return syntax_error(here().line, "expected " + token); }
  Error too_deep() const { return syntax_error(here().line, "an expression is nested too deeply"); }
  Error read_name(std::string* out);
  Error append(Node* parent, Result<NodePtr> child);
  Error replace(NodePtr* child, Result<NodePtr> made);
  NodePtr negated(NodePtr operand) const;

  // statements
  Result<NodePtr> statements(std::initializer_list<std::string_view> ends, int depth);
  Result<NodePtr> text();
  Result<NodePtr> output();
  Result<NodePtr> block(int depth);
  Result<NodePtr> for_block(int depth);
  Result<NodePtr> if_block(int depth);
  Result<NodePtr> set_block(int depth);
  Result<NodePtr> macro_block(int depth);
  Result<NodePtr> call_block(int depth);
  Result<NodePtr> filter_block(int depth);
  Result<NodePtr> with_block(int depth);
  Result<NodePtr> generation_block(int depth);
  Result<NodePtr> break_block(int) { return leave(Op::Break); }
  Result<NodePtr> continue_block(int) { return leave(Op::Continue); }
  Result<NodePtr> leave(Op op);
  Error parameters(Node* macro);
  Error body(Node* parent, size_t child, std::string_view end, int depth);
  Error end_block();
  Error end_block(std::string_view word);

  // expressions, from the lowest precedence to the highest
  Result<NodePtr> expressions();
  Result<NodePtr> expression();
  Result<NodePtr> conditional();
  Result<NodePtr> binary(Level operand, std::initializer_list<BinaryOperator> operators);
  Result<NodePtr> disjunction();
  Result<NodePtr> conjunction();
  Result<NodePtr> negation();
  Result<NodePtr> comparison();
  Result<NodePtr> sum();
  Result<NodePtr> concatenation();
  Result<NodePtr> term();
  Result<NodePtr> power();
  Result<NodePtr> filtered();
  Result<NodePtr> filter(NodePtr value);
  Result<NodePtr> filters(NodePtr value);
  Result<NodePtr> test(NodePtr value);
  bool begins_test_argument() const;
  Result<NodePtr> unary();
  Result<NodePtr> postfix();
  Result<NodePtr> attribute(NodePtr object);
  Result<NodePtr> subscript(NodePtr object);
  Result<NodePtr> call(NodePtr callee);
  Error arguments(Node* node);
  Result<NodePtr> primary();
  Result<NodePtr> string_literal();
  Result<NodePtr> number_literal();
  Result<NodePtr> name_or_constant();
  Result<NodePtr> parenthesized();
  Result<NodePtr> list_literal();
  Result<NodePtr> dict_literal();

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;  // of the current expression
};

Result<NodePtr> Parser::run() {
  Result<NodePtr> root = statements({}, 0);
  if (root.ok() && !is_kind(Token::Kind::Last))
    return syntax_error(here().line, "the end of a block has no begin");
  return root;
}

NodePtr Parser::make(Op op) const {
  auto node = std::make_unique<Node>();
  node->op = op;
  node->line = here().line;
  return node;
}

Error Parser::read_name(std::string* out) {
  if (!is_kind(Token::Kind::Name)) return expected("a name");
  *out = tokens_[at_++].text;
  return Error::Ok;
}

Error Parser::append(Node* parent, Result<NodePtr> child) {
  if (!child.ok()) return child.error();
  parent->children.push_back(std::move(*child));
  return Error::Ok;
}

Error Parser::replace(NodePtr* child, Result<NodePtr> made) {
  if (!made.ok()) return made.error();
  *child = std::move(*made);
  return Error::Ok;
}

NodePtr Parser::negated(NodePtr operand) const {
  NodePtr node = make(Op::Not);
  node->children.push_back(std::move(operand));
  return node;
}

// --- Statements ---

/// Statements up to the {% of a block end in `ends`.
Result<NodePtr> Parser::statements(std::initializer_list<std::string_view> ends, int depth) {
  if (depth > kMaxDepth) return syntax_error(here().line, "blocks are nested too deeply");
  NodePtr body = make(Op::Block);
  while (!is_kind(Token::Kind::Last)) {
    if (is_kind(Token::Kind::Text)) {
      TORCHETTE_TRY(append(body.get(), text()));
    } else if (is_kind(Token::Kind::OutputBegin)) {
      TORCHETTE_TRY(append(body.get(), output()));
    } else {
      const Token& word = tokens_[at_ + 1];
      if (word.kind == Token::Kind::Name && std::find(ends.begin(), ends.end(), word.text) != ends.end())
        return body;
      ++at_;
      TORCHETTE_TRY(append(body.get(), block(depth + 1)));
    }
  }
  if (ends.size() > 0) return syntax_error(here().line, "the template ends inside a block");
  return body;
}

Result<NodePtr> Parser::text() {
  NodePtr node = make(Op::Text);
  node->name = tokens_[at_++].text;
  return node;
}

Result<NodePtr> Parser::output() {
  NodePtr node = make(Op::Output);
  ++at_;
  TORCHETTE_TRY(append(node.get(), expression()));
  if (!is_kind(Token::Kind::OutputEnd)) return expected("}}");
  ++at_;
  return node;
}

struct Parser::Block {
  std::string_view word;
  Result<NodePtr> (Parser::*parse)(int depth);
};

/// The block after a {%.
Result<NodePtr> Parser::block(int depth) {
  static constexpr Block kBlocks[] = {
      {"for", &Parser::for_block},     {"if", &Parser::if_block},
      {"set", &Parser::set_block},     {"macro", &Parser::macro_block},
      {"call", &Parser::call_block},   {"filter", &Parser::filter_block},
      {"with", &Parser::with_block},   {"generation", &Parser::generation_block},
      {"break", &Parser::break_block}, {"continue", &Parser::continue_block},
  };
  std::string word;
  TORCHETTE_TRY(read_name(&word));
  for (const Block& one : kBlocks)
    if (one.word == word) return (this->*one.parse)(depth);
  if (word.compare(0, 3, "end") == 0 || word == "else" || word == "elif")
    return syntax_error(here().line, "unexpected " + word);
  return unsupported_error(here().line, "the block " + word);
}

Result<NodePtr> Parser::for_block(int depth) {
  NodePtr loop = make(Op::For);
  do {
    skip_sign("(");
    loop->names.emplace_back();
    TORCHETTE_TRY(read_name(&loop->names.back()));
    skip_sign(")");
  } while (skip_sign(","));
  if (!skip_name("in")) return expected("in");
  TORCHETTE_TRY(append(loop.get(), disjunction()));  // a conditional would consume the `if` of the loop
  loop->children.push_back(nullptr);
  if (skip_name("if")) TORCHETTE_TRY(replace(&loop->children[1], expression()));
  loop->value = Value::of(skip_name("recursive"));
  TORCHETTE_TRY(end_block());
  TORCHETTE_TRY(append(loop.get(), statements({"endfor", "else"}, depth)));
  if (block_word() == "else") {
    TORCHETTE_TRY(end_block("else"));
    TORCHETTE_TRY(append(loop.get(), statements({"endfor"}, depth)));
  }
  TORCHETTE_TRY(end_block("endfor"));
  return loop;
}

Result<NodePtr> Parser::if_block(int depth) {
  NodePtr node = make(Op::If);
  TORCHETTE_TRY(append(node.get(), expression()));
  TORCHETTE_TRY(end_block());
  for (;;) {
    TORCHETTE_TRY(append(node.get(), statements({"elif", "else", "endif"}, depth)));
    if (block_word() != "elif") break;
    at_ += 2;
    TORCHETTE_TRY(append(node.get(), expression()));
    TORCHETTE_TRY(end_block());
  }
  if (block_word() == "else") {
    TORCHETTE_TRY(end_block("else"));
    TORCHETTE_TRY(append(node.get(), statements({"endif"}, depth)));
  }
  TORCHETTE_TRY(end_block("endif"));
  return node;
}

Result<NodePtr> Parser::set_block(int depth) {
  NodePtr node = make(Op::Set);
  TORCHETTE_TRY(read_name(&node->name));
  if (skip_sign(".")) {
    node->names.emplace_back();
    TORCHETTE_TRY(read_name(&node->names[0]));
  }
  while (node->names.empty() ? is_sign(",") : node->op == Op::SetAll && is_sign(",")) {
    if (node->names.empty()) node->names.push_back(node->name);
    node->op = Op::SetAll;
    ++at_;
    node->names.emplace_back();
    TORCHETTE_TRY(read_name(&node->names.back()));
  }
  if (skip_sign("=")) {
    TORCHETTE_TRY(append(node.get(), expressions()));
    TORCHETTE_TRY(end_block());
    return node;
  }
  if (node->op == Op::SetAll) return expected("=");
  NodePtr text = make(Op::Capture);
  Node* const capture = text.get();
  TORCHETTE_TRY(append(node.get(), skip_sign("|") ? filters(std::move(text)) : std::move(text)));
  TORCHETTE_TRY(body(capture, 0, "endset", depth));
  return node;
}

/// The rest of the begin of a block, its statements, which become a child, and its end.
Error Parser::body(Node* parent, size_t child, std::string_view end, int depth) {
  TORCHETTE_TRY(end_block());
  if (parent->children.size() == child) parent->children.emplace_back();
  TORCHETTE_TRY(replace(&parent->children[child], statements({end}, depth)));
  return end_block(end);
}

Result<NodePtr> Parser::macro_block(int depth) {
  NodePtr macro = make(Op::Macro);
  TORCHETTE_TRY(read_name(&macro->name));
  macro->children.push_back(nullptr);
  TORCHETTE_TRY(parameters(macro.get()));
  const size_t begin = at_;
  TORCHETTE_TRY(body(macro.get(), 0, "endmacro", depth));
  macro->value = Value::of(std::any_of(tokens_.data() + begin, tokens_.data() + at_, [](const Token& token) {
    return token.kind == Token::Kind::Name && token.text == "caller";
  }));
  return macro;
}

/// Calls a macro that has the block as its macro `caller`.
Result<NodePtr> Parser::call_block(int depth) {
  NodePtr caller = make(Op::Caller), output = make(Op::Output);
  caller->name = "caller";
  caller->value = Value::of(false);
  caller->children.push_back(nullptr);
  if (is_sign("(")) TORCHETTE_TRY(parameters(caller.get()));
  TORCHETTE_TRY(append(output.get(), expression()));
  Node& call = *output->children[0];
  if (call.op != Op::Call && call.op != Op::Method) return expected("a call");
  TORCHETTE_TRY(body(caller.get(), 0, "endcall", depth));
  call.names.push_back(caller->name);
  call.children.push_back(std::move(caller));
  return output;
}

Result<NodePtr> Parser::filter_block(int depth) {
  NodePtr text = make(Op::Capture), output = make(Op::Output);
  Node* const capture = text.get();
  TORCHETTE_TRY(append(output.get(), filters(std::move(text))));
  TORCHETTE_TRY(body(capture, 0, "endfilter", depth));
  return output;
}

Result<NodePtr> Parser::with_block(int depth) {
  NodePtr node = make(Op::With);
  while (!is_kind(Token::Kind::BlockEnd)) {
    if (!node->names.empty() && !skip_sign(",")) return expected(",");
    node->names.emplace_back();
    TORCHETTE_TRY(read_name(&node->names.back()));
    if (!skip_sign("=")) return expected("=");
    TORCHETTE_TRY(append(node.get(), expression()));
  }
  TORCHETTE_TRY(body(node.get(), node->names.size(), "endwith", depth));
  return node;
}

Error Parser::parameters(Node* macro) {
  if (!skip_sign("(")) return expected("(");
  while (!skip_sign(")")) {
    macro->names.emplace_back();
    TORCHETTE_TRY(read_name(&macro->names.back()));
    macro->children.push_back(nullptr);
    if (skip_sign("=")) TORCHETTE_TRY(replace(&macro->children.back(), expression()));
    if (!skip_sign(",") && !is_sign(")")) return expected(")");
  }
  return Error::Ok;
}

/// The block marks text of the assistant for training. It is rendered as its body.
Result<NodePtr> Parser::generation_block(int depth) {
  TORCHETTE_TRY(end_block());
  Result<NodePtr> body = statements({"endgeneration"}, depth);
  if (body.ok()) TORCHETTE_TRY(end_block("endgeneration"));
  return body;
}

Result<NodePtr> Parser::leave(Op op) {
  NodePtr node = make(op);
  TORCHETTE_TRY(end_block());
  return node;
}

/// Consumes a %}.
Error Parser::end_block() {
  if (!is_kind(Token::Kind::BlockEnd)) return expected("%}");
  ++at_;
  return Error::Ok;
}

/// Consumes a block that is only a word, such as {% endif %}.
Error Parser::end_block(std::string_view word) {
  if (!is_kind(Token::Kind::BlockBegin)) return expected("{%");
  ++at_;
  if (!skip_name(word)) return expected(std::string(word));
  return end_block();
}

// --- Operators ---

Result<NodePtr> Parser::expression() {
  if (++depth_ > kMaxDepth) return too_deep();
  Result<NodePtr> found = conditional();
  --depth_;
  return found;
}

/// An expression, or a tuple of expressions without parentheses.
Result<NodePtr> Parser::expressions() {
  Result<NodePtr> first = expression();
  if (!first.ok() || !is_sign(",")) return first;
  NodePtr tuple = make(Op::Tuple);
  tuple->children.push_back(std::move(*first));
  while (skip_sign(",") && !is_kind(Token::Kind::BlockEnd)) TORCHETTE_TRY(append(tuple.get(), expression()));
  return tuple;
}

Result<NodePtr> Parser::conditional() {
  Result<NodePtr> value = disjunction();
  while (value.ok() && is_name("if")) {
    NodePtr node = make(Op::Conditional);
    ++at_;
    TORCHETTE_TRY(append(node.get(), disjunction()));
    node->children.push_back(std::move(*value));
    if (skip_name("else")) TORCHETTE_TRY(append(node.get(), expression()));
    *value = std::move(node);
  }
  return value;
}

/// Operators of one level of precedence, from left to right.
Result<NodePtr> Parser::binary(Level operand, std::initializer_list<BinaryOperator> operators) {
  Result<NodePtr> left = (this->*operand)();
  while (left.ok()) {
    const auto* found = std::find_if(operators.begin(), operators.end(), [this](const BinaryOperator& one) {
      return is_sign(one.sign) || is_name(one.sign);
    });
    if (found == operators.end()) break;
    NodePtr node = make(found->op);
    ++at_;
    node->children.push_back(std::move(*left));
    TORCHETTE_TRY(append(node.get(), (this->*operand)()));
    *left = std::move(node);
  }
  return left;
}

Result<NodePtr> Parser::disjunction() { return binary(&Parser::conjunction, {{"or", Op::Or}}); }
Result<NodePtr> Parser::conjunction() { return binary(&Parser::negation, {{"and", Op::And}}); }

Result<NodePtr> Parser::negation() {
  if (!is_name("not")) return comparison();
  if (++depth_ > kMaxDepth) return too_deep();
  NodePtr node = make(Op::Not);
  ++at_;
  TORCHETTE_TRY(append(node.get(), negation()));
  --depth_;
  return node;
}

Result<NodePtr> Parser::comparison() {
  static constexpr BinaryOperator kSigns[] = {{"==", Op::Equal},     {"!=", Op::NotEqual},
                                              {"<=", Op::LessEqual}, {">=", Op::GreaterEqual},
                                              {"<", Op::Less},       {">", Op::Greater}};
  Result<NodePtr> left = sum();
  while (left.ok()) {
    NodePtr node;
    for (const BinaryOperator& one : kSigns)
      if (is_sign(one.sign)) node = make(one.op);
    const bool is_negated = is_name("not") && tokens_[at_ + 1].text == "in";
    if (is_negated) ++at_;
    if (is_name("in")) node = make(Op::In);
    if (!node) break;
    ++at_;
    node->children.push_back(std::move(*left));
    TORCHETTE_TRY(append(node.get(), sum()));
    *left = is_negated ? negated(std::move(node)) : std::move(node);
  }
  return left;
}

Result<NodePtr> Parser::sum() {
  return binary(&Parser::concatenation, {{"+", Op::Add}, {"-", Op::Subtract}});
}

Result<NodePtr> Parser::concatenation() { return binary(&Parser::term, {{"~", Op::Concat}}); }

Result<NodePtr> Parser::term() {
  return binary(&Parser::power,
                {{"*", Op::Multiply}, {"//", Op::FloorDivide}, {"/", Op::Divide}, {"%", Op::Modulo}});
}

Result<NodePtr> Parser::filtered() {
  Result<NodePtr> value = unary();
  while (value.ok() && (is_sign("|") || is_name("is"))) {
    const bool is_filter = is_sign("|");
    ++at_;
    Result<NodePtr> node = is_filter ? filter(std::move(*value)) : test(std::move(*value));
    if (!node.ok()) return node;
    *value = std::move(*node);
  }
  return value;
}

/// Names of filters between | signs.
Result<NodePtr> Parser::filters(NodePtr value) {
  do {
    TORCHETTE_TRY(replace(&value, filter(std::move(value))));
  } while (skip_sign("|"));
  return value;
}

Result<NodePtr> Parser::filter(NodePtr value) {
  NodePtr node = make(Op::Filter);
  TORCHETTE_TRY(read_name(&node->name));
  node->children.push_back(std::move(value));
  if (skip_sign("(")) TORCHETTE_TRY(arguments(node.get()));
  return node;
}

Result<NodePtr> Parser::test(NodePtr value) {
  NodePtr node = make(Op::Test);
  const bool is_negated = skip_name("not");
  TORCHETTE_TRY(read_name(&node->name));
  node->children.push_back(std::move(value));
  if (skip_sign("("))
    TORCHETTE_TRY(arguments(node.get()));
  else if (begins_test_argument())
    TORCHETTE_TRY(append(node.get(), postfix()));
  return is_negated ? negated(std::move(node)) : std::move(node);
}

/// Whether a test has an argument without parentheses, as in `x is divisibleby 3`.
bool Parser::begins_test_argument() const {
  static constexpr std::string_view kOperators[] = {"and", "or", "if", "else", "is", "in", "not"};
  if (is_kind(Token::Kind::String) || is_kind(Token::Kind::Number) || is_sign("[")) return true;
  return is_kind(Token::Kind::Name) &&
         std::find(std::begin(kOperators), std::end(kOperators), here().text) == std::end(kOperators);
}

Result<NodePtr> Parser::power() { return binary(&Parser::filtered, {{"**", Op::Power}}); }

Result<NodePtr> Parser::unary() {
  if (!is_sign("-") && !is_sign("+")) return postfix();
  if (++depth_ > kMaxDepth) return too_deep();
  const bool is_negative = is_sign("-");
  NodePtr node = make(Op::Negate);
  ++at_;
  Result<NodePtr> operand = unary();
  --depth_;
  if (!operand.ok() || !is_negative) return operand;
  node->children.push_back(std::move(*operand));
  return node;
}

// --- Attributes, items and calls ---

Result<NodePtr> Parser::postfix() {
  Result<NodePtr> node = primary();
  for (int depth = 0; node.ok(); ++depth) {
    if (depth > kMaxDepth) return too_deep();
    Result<NodePtr> outer = skip_sign(".")   ? attribute(std::move(*node))
                            : skip_sign("[") ? subscript(std::move(*node))
                            : skip_sign("(") ? call(std::move(*node))
                                             : Result<NodePtr>(NodePtr());
    if (!outer.ok()) return outer;
    if (!*outer) break;
    *node = std::move(*outer);
  }
  return node;
}

Result<NodePtr> Parser::attribute(NodePtr object) {
  NodePtr node = make(Op::Attribute);
  TORCHETTE_TRY(read_name(&node->name));
  node->children.push_back(std::move(object));
  if (skip_sign("(")) {
    node->op = Op::Method;
    TORCHETTE_TRY(arguments(node.get()));
  }
  return node;
}

Result<NodePtr> Parser::subscript(NodePtr object) {
  NodePtr node = make(Op::Item);
  node->children.push_back(std::move(object));
  NodePtr parts[3];
  for (int part = 0; !skip_sign("]");) {
    if (skip_sign(":")) {
      node->op = Op::Slice;
      if (++part > 2) return expected("]");
      continue;
    }
    if (parts[part]) return expected("]");
    TORCHETTE_TRY(replace(&parts[part], expression()));
  }
  if (node->op == Op::Item && !parts[0]) return expected("an index");
  for (NodePtr& part : parts) node->children.push_back(std::move(part));
  return node;
}

Result<NodePtr> Parser::call(NodePtr callee) {
  NodePtr node = make(Op::Call);
  node->children.push_back(std::move(callee));
  TORCHETTE_TRY(arguments(node.get()));
  return node;
}

/// Arguments up to the closing parenthesis; keyword arguments are last.
Error Parser::arguments(Node* node) {
  while (!skip_sign(")")) {
    if (is_kind(Token::Kind::Name) && tokens_[at_ + 1].kind == Token::Kind::Sign &&
        tokens_[at_ + 1].text == "=") {
      node->names.push_back(here().text);
      at_ += 2;
    } else if (!node->names.empty()) {
      return expected("a keyword argument");
    }
    TORCHETTE_TRY(append(node, expression()));
    if (!skip_sign(",") && !is_sign(")")) return expected(")");
  }
  return Error::Ok;
}

// --- Literals and names ---

Result<NodePtr> Parser::primary() {
  if (is_kind(Token::Kind::String)) return string_literal();
  if (is_kind(Token::Kind::Number)) return number_literal();
  if (is_kind(Token::Kind::Name)) return name_or_constant();
  if (skip_sign("(")) return parenthesized();
  if (skip_sign("[")) return list_literal();
  if (skip_sign("{")) return dict_literal();
  return expected("a value");
}

Result<NodePtr> Parser::string_literal() {
  NodePtr node = make(Op::Constant);
  std::string text;
  while (is_kind(Token::Kind::String)) text += tokens_[at_++].text;  // adjacent literals are one string
  node->value = Value::of(std::move(text));
  return node;
}

Result<NodePtr> Parser::number_literal() {
  NodePtr node = make(Op::Constant);
  const std::string& digits = tokens_[at_++].text;
  node->value = digits.find_first_of(".eE") != std::string::npos
                    ? Value::of(std::strtod(digits.c_str(), nullptr))
                    : Value::of(static_cast<int64_t>(std::strtoll(digits.c_str(), nullptr, 10)));
  return node;
}

Result<NodePtr> Parser::name_or_constant() {
  NodePtr node = make(Op::Constant);
  const std::string& word = tokens_[at_++].text;
  if (word == "true" || word == "True") {
    node->value = Value::of(true);
  } else if (word == "false" || word == "False") {
    node->value = Value::of(false);
  } else if (word == "none" || word == "None") {
    node->value = Value::none();
  } else {
    node->op = Op::Name;
    node->name = word;
  }
  return node;
}

/// An expression or a tuple after its opening parenthesis.
Result<NodePtr> Parser::parenthesized() {
  if (skip_sign(")")) return make(Op::Tuple);
  Result<NodePtr> node = expression();
  if (node.ok() && is_sign(",")) {
    NodePtr list = make(Op::Tuple);
    list->children.push_back(std::move(*node));
    while (skip_sign(",") && !is_sign(")")) TORCHETTE_TRY(append(list.get(), expression()));
    *node = std::move(list);
  }
  if (node.ok() && !skip_sign(")")) return expected(")");
  return node;
}

Result<NodePtr> Parser::list_literal() {
  NodePtr node = make(Op::List);
  while (!skip_sign("]")) {
    TORCHETTE_TRY(append(node.get(), expression()));
    if (!skip_sign(",") && !is_sign("]")) return expected("]");
  }
  return node;
}

Result<NodePtr> Parser::dict_literal() {
  NodePtr node = make(Op::Dict);
  while (!skip_sign("}")) {
    TORCHETTE_TRY(append(node.get(), expression()));
    if (!skip_sign(":")) return expected(":");
    TORCHETTE_TRY(append(node.get(), expression()));
    if (!skip_sign(",") && !is_sign("}")) return expected("}");
  }
  return node;
}

}  // namespace

Result<NodePtr> parse(std::vector<Token> tokens) { return Parser(std::move(tokens)).run(); }

}  // namespace torchette::extension::llm::jinja
