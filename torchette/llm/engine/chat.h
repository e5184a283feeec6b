// SPDX-License-Identifier: BSD-3-Clause
// ChatFormat: renders conversations with the chat templates of a program. tools.h has the functions that a
// conversation may call. Requests have OpenAI's form.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "torchette/llm/text/chat_template.h"
#include "torchette/llm/text/json.h"
#include "torchette/llm/text/tokenizer.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// The forms of contents that a template accepts: texts, and lists of parts.
struct ChatContents {
  bool texts = true, parts = false;
};

/// Converts messages to the form that a template accepts. Contents become a text, or a list of parts with
/// their type and text. In a text, `image` replaces an image. Arguments of calls become values. Error:
/// InvalidArgument (not messages; the log names the message).
Result<Json> prepare_messages(const Json& messages, ChatContents contents, std::string_view image);

class ChatFormat {
 public:
  ChatFormat(ChatFormat&&) noexcept = default;

  /// `tool_source` is the template of conversations with tools; empty: the same template. `names` is an
  /// object with variables of all prompts, such as bos_token. Errors: those of ChatTemplate::parse().
  static Result<ChatFormat> make(std::string source, std::string tool_source, Json names);
  /// Reads named data of a program: `file` returns the contents of an entry. Without an entry for special
  /// tokens, `begin` and `end` are bos_token and eos_token if `tokenizer` has them. Errors: NotFound (no
  /// template), InvalidExternalData, NotSupported.
  using ReadFile = std::function<std::optional<std::string>(const char* name)>;
  static Result<ChatFormat> of_program(const ReadFile& file, const Tokenizer* tokenizer, uint64_t begin,
                                       uint64_t end);

  /// The template of conversations with or without tools.
  const std::string& source(bool has_tools = false) const { return form(has_tools).source; }
  ChatContents contents(bool has_tools = false) const { return form(has_tools).contents; }

  /// Returns the prompt of a conversation. `variables` is an object of further variables of the template,
  /// such as tools, or null. Errors: InvalidArgument (not messages, or the template rejects them),
  /// NotSupported, OutOfResources.
  Result<std::string> render(const Json& messages, const Json& variables, std::string_view image = {}) const;
  /// Returns the prompt of a request. `options` is an object with `tools`, `tool_choice`, and `template`, the
  /// further variables of the template; all are optional. The template receives the tools that `tool_choice`
  /// permits. Errors: as above; InvalidArgument (the template uses no tools, or an option is unknown), those
  /// of permitted_tools().
  Result<std::string> prompt(const Json& messages, const Json& options, std::string_view image) const;
  /// Returns the grammar of the answer to such a request if the answer must be a call, or an empty text.
  /// Errors: as above; those of grammar_of_calls().
  Result<std::string> grammar(const Json& options) const;

 private:
  struct Form {
    std::string source;
    ChatTemplate parsed;
    ChatContents contents;
  };
  ChatFormat() = default;
  Error add(std::string source);
  Result<Json> tools_of(const Json& options) const;
  const Form& form(bool has_tools) const { return has_tools ? forms_.back() : forms_.front(); }
  ChatTemplate::Names variables(Json messages, const Json& more) const;
  ChatContents probe(const ChatTemplate& parsed) const;

  std::vector<Form> forms_;
  Json names_;
};

}  // namespace torchette::extension::llm
