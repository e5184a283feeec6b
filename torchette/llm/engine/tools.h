// SPDX-License-Identifier: BSD-3-Clause
// The functions that an answer may call, in OpenAI's form: their names, the grammar of calls, and the calls
// in an answer.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "torchette/llm/text/json.h"
#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

/// The marks of a call in the templates of Qwen, Hermes and others.
constexpr std::string_view kCallOpen = "<tool_call>", kCallClose = "</tool_call>";

/// A function and the JSON schema of its arguments.
struct ToolFunction {
  std::string name;
  Json parameters;
};
/// Returns the functions of `tools`. Error: InvalidArgument (not a list of functions with different names;
/// the log names the tool).
Result<std::vector<ToolFunction>> functions_of(const Json& tools);

/// Returns the tools that an answer may call: the allowed_tools of `choice`, the tool_choice of a request, or
/// all tools. Errors: those of functions_of(); InvalidArgument (allowed_tools is malformed or names no tool).
Result<Json> permitted_tools(const Json& tools, const Json& choice);

/// Returns the grammar of an answer that must call a function, in the form of calls in `source`, the chat
/// template. Returns an empty text if `choice` requires no call. Errors: those of permitted_tools();
/// InvalidArgument (an unknown choice), NotSupported (GBNF cannot express the parameters of a function).
Result<std::string> grammar_of_calls(const Json& tools, const Json& choice, std::string_view source);

struct ToolCall {
  std::string name;
  Json arguments;
};
struct CalledText {
  std::string text;
  std::vector<ToolCall> calls;
};
/// Returns the text of an answer before its calls, and the calls: JSON between kCallOpen and kCallClose, or
/// an answer that is only JSON. An answer with a call of a function that is not in `names` is only text.
CalledText calls_in(std::string_view answer, const std::vector<std::string>& names);

}  // namespace torchette::extension::llm
