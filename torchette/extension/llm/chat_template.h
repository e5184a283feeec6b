// SPDX-License-Identifier: BSD-3-Clause
// ChatTemplate: messages to the prompt that a model was trained on, by the template that its file has.
// Templates are Jinja's; of that language there is what templates of language models use: for, if, set,
// macro, filters, tests, methods of texts and mappings. Any bytes may come in: what is not known is refused
// by name, work is bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/extension/llm/json.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

class ChatTemplate {
 public:
  /// Names beside `messages`, with their values.
  using Names = std::vector<std::pair<std::string, Json>>;

  ChatTemplate(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Errors: InvalidExternalData (no template; the log says what and in which line), NotSupported.
  static Result<ChatTemplate> parse(std::string_view source);
  /// Errors: InvalidArgument (the template refuses the messages; the log has its words), NotSupported,
  /// OutOfResources (it takes too long).
  Result<std::string> render(const Names& names) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<Tree> tree);

  std::unique_ptr<Tree> tree_;
};

}  // namespace torchette::extension::llm
