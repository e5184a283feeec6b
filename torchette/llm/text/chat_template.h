// SPDX-License-Identifier: BSD-3-Clause
// ChatTemplate: renders the messages of a conversation as the prompt of a model, with the template of its
// file. Templates are written in Jinja. jinja/ implements the part of the language that templates of language
// models use. Templates are untrusted: unknown constructs are errors that name them, and work is bounded.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/text/json.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

class ChatTemplate {
 public:
  /// The variables of the template, such as `messages`. The last value of a name is used.
  using Names = std::vector<std::pair<std::string, Json>>;

  ChatTemplate(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  /// Parses a template. Errors: InvalidExternalData (invalid; the log names the line), NotSupported.
  static Result<ChatTemplate> parse(std::string_view source);
  /// Returns the rendered text. Errors: InvalidArgument (the template rejects the messages; the log has its
  /// message), NotSupported, OutOfResources (the work exceeds its limit). With `reason`, the error is stored
  /// there and not logged.
  Result<std::string> render(const Names& names, std::string* reason = nullptr) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::unique_ptr<Tree> tree);

  std::unique_ptr<Tree> tree_;
};

}  // namespace torchette::extension::llm
