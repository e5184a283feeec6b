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

/// A function: the JSON schema of its arguments.
struct ToolFunction {
  std::string name;
  Json parameters;
};
/// Error: InvalidArgument (not a list of functions with different names; the log names the tool).
Result<std::vector<ToolFunction>> functions_of(const Json& tools);

/// The tools that an answer may call: those that `choice`, the tool_choice of a request, lists as
/// allowed_tools, else all. Errors: those of functions_of(); InvalidArgument (allowed_tools is malformed or
/// names no tool).
Result<Json> permitted_tools(const Json& tools, const Json& choice);

/// The grammar of an answer that must call a function, as `source`, the chat template, writes calls; empty if
/// `choice` does not demand a call. Errors: those of permitted_tools(); InvalidArgument (an unknown choice),
/// NotSupported (GBNF cannot express the parameters of a function).
Result<std::string> grammar_of_calls(const Json& tools, const Json& choice, std::string_view source);

struct ToolCall {
  std::string name;
  Json arguments;
};
struct CalledText {
  std::string text;
  std::vector<ToolCall> calls;
};
/// The text of an answer before its calls, and the calls: between kCallOpen and kCallClose, or an answer that
/// is only JSON. An answer with a call of another function than `names` is only text.
CalledText calls_in(std::string_view answer, const std::vector<std::string>& names);

}  // namespace torchette::extension::llm
