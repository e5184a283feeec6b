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
                  "the chat template has %zu bytes; the limit is %zu", source.size(), jinja::kMaxSource);
  if (!to_text(source).ok()) return Error::InvalidExternalData;
  Result<std::vector<jinja::Token>> tokens = jinja::tokenize(source);
  if (!tokens.ok()) return tokens.error();
  Result<jinja::NodePtr> root = jinja::parse(std::move(*tokens));
  if (!root.ok()) return root.error();
  return ChatTemplate(std::make_unique<Tree>(Tree{std::move(*root)}));
}

Result<std::string> ChatTemplate::render(const Names& names) const {
  jinja::Value::Dict variables;
  for (const auto& [name, value] : names) variables.emplace_back(name, jinja::Value::of_json(value));
  std::string out;
  TORCHETTE_TRY(jinja::Evaluator(std::move(variables)).render(*tree_->root, &out));
  return out;
}

}  // namespace torchette::extension::llm
