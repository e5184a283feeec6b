// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/text/chat_template.h"

#include "torchette/llm/text/jinja/evaluator.h"
#include "torchette/llm/text/jinja/lexer.h"
#include "torchette/llm/text/jinja/parser.h"
#include "torchette/llm/text/unicode.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

struct ChatTemplate::Tree {
  jinja::NodePtr root;
};

ChatTemplate::ChatTemplate(std::unique_ptr<Tree> tree) : tree_(std::move(tree)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  TORCHETTE_CHECK(source.size() <= jinja::kMaxSource, InvalidExternalData,
                  "the chat template cannot be read: it has %zu bytes; the limit is %zu", source.size(),
                  jinja::kMaxSource);
  TORCHETTE_CHECK(is_utf8(source), InvalidExternalData, "the chat template cannot be read: it is not UTF-8");
  Result<std::vector<jinja::Token>> tokens = jinja::tokenize(source);
  if (!tokens.ok()) return tokens.error();
  Result<jinja::NodePtr> root = jinja::parse(std::move(*tokens));
  if (!root.ok()) return root.error();
  return ChatTemplate(std::make_unique<Tree>(Tree{std::move(*root)}));
}

Result<std::string> ChatTemplate::render(const Names& names, std::string* reason) const {
  jinja::Value::Dict variables;
  for (const auto& [name, value] : names) jinja::set_key(&variables, name, jinja::Value::of_json(value));
  std::string out;
  jinja::Evaluator evaluator(std::move(variables));
  const Error error = evaluator.render(*tree_->root, &out);
  if (error == Error::Ok) return out;
  if (reason != nullptr)
    *reason = evaluator.message();
  else
    TORCHETTE_LOG(Error, "the chat template refuses the messages: %s", evaluator.message().c_str());
  return error;
}

}  // namespace torchette::extension::llm
