// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/tools.h"

#include <algorithm>
#include <optional>

#include "torchette/llm/grammar/schema.h"
#include "torchette/llm/grammar/schema_json.h"
#include "torchette/llm/text/jinja/strings.h"
#include "torchette/llm/text/unicode.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

using Kind = Json::Kind;

constexpr size_t kMaxName = 256;
constexpr char kToolForm[] =
    "tools are a list of functions with different names: {'type': 'function', 'function': {'name': 'add', "
    "'parameters': {a JSON schema}}}";

/// OpenAI's characters, and those in the names of MCP servers.
bool is_name(std::string_view name) {
  const Result<Text> text = to_text(name);
  if (!text.ok() || text->empty() || text->size() > kMaxName) return false;
  return std::all_of(text->begin(), text->end(),
                     [](char32_t c) { return is_word(c) || c == '.' || c == '-' || c == ':' || c == '/'; });
}

Json object(std::initializer_list<std::pair<const char*, Json>> members) {
  Json made = schema::empty(Kind::Object);
  for (const auto& [key, value] : members) schema::set(&made, key, value);
  return made;
}

Json text_value(std::string_view text) {
  Json value = schema::empty(Kind::String);
  value.text = text;
  return value;
}

std::string list_of_names(const std::vector<ToolFunction>& functions) {
  std::string names;
  for (const ToolFunction& one : functions) names += (names.empty() ? "" : ", ") + one.name;
  return names;
}

Result<ToolFunction> function_of(const Json& tool, size_t number) {
  const Json& function = tool["function"];
  const std::string_view type = tool.string("type");
  TORCHETTE_CHECK(
      type.empty() || type == "function", InvalidArgument,
      "tools are a list of functions: tools[%zu] has the type '%.60s'; only 'function' is supported", number,
      std::string(type).c_str());
  TORCHETTE_CHECK(type == "function" && function["name"].is_string(), InvalidArgument,
                  "%s; tools[%zu] is not one", kToolForm, number);
  TORCHETTE_CHECK(
      is_name(function["name"].text), InvalidArgument,
      "tools are a list of functions with names of 1 to %zu letters, digits, or any of _ . - : /; the "
      "name of tools[%zu] is '%.80s'",
      kMaxName, number, function["name"].text.c_str());
  const Json& given = function["parameters"];
  const bool is_given = !given.is(Kind::Null) && !(given.is(Kind::Object) && given.items.empty());
  const Json no_parameters =
      object({{"type", text_value("object")}, {"properties", schema::empty(Kind::Object)}});
  return ToolFunction{function["name"].text, is_given ? given : no_parameters};
}

}  // namespace

Result<std::vector<ToolFunction>> functions_of(const Json& tools) {
  std::vector<ToolFunction> functions;
  TORCHETTE_CHECK(tools.is(Kind::Array), InvalidArgument, "%s", kToolForm);
  for (size_t i = 0; i < tools.items.size(); ++i) {
    Result<ToolFunction> one = function_of(tools.items[i], i);
    if (!one.ok()) return one.error();
    for (const ToolFunction& other : functions)
      TORCHETTE_CHECK(other.name != one->name, InvalidArgument,
                      "tools are a list of functions with different names; two have the name %s",
                      one->name.c_str());
    functions.push_back(std::move(*one));
  }
  return functions;
}

// --- Required calls ---

namespace {

/// The index of the function that a choice names. Error: InvalidArgument.
Result<size_t> index_of_chosen(const Json& choice, const std::vector<ToolFunction>& functions) {
  const Json& function = choice["function"];
  const std::string name(function.is(Kind::Object) ? function.string("name") : choice.string("name"));
  for (size_t i = 0; i < functions.size(); ++i)
    if (functions[i].name == name) return i;
  TORCHETTE_LOG(Error, "tool_choice names '%.80s', tools have %s", name.c_str(),
                list_of_names(functions).c_str());
  return Error::InvalidArgument;
}

/// The member allowed_tools of a choice, which the Responses API writes without the member; null without it.
const Json* allowed_tools_of(const Json& choice) {
  if (choice["allowed_tools"].is(Kind::Object)) return &choice["allowed_tools"];
  return choice.string("type") == "allowed_tools" ? &choice : nullptr;
}

/// Keeps the function that `choice` names. `*must_call`: whether the answer must be a call.
Error apply_choice(const Json& choice, std::vector<ToolFunction>* functions, bool* must_call) {
  const std::string_view word = choice.is_string() ? std::string_view(choice.text) : std::string_view();
  const Json* const allowed = allowed_tools_of(choice);
  *must_call = word != "auto" && word != "none" && (!allowed || allowed->string("mode") == "required");
  if (!*must_call || word == "required" || allowed != nullptr) return Error::Ok;
  TORCHETTE_CHECK(choice.is(Kind::Object), InvalidArgument,
                  "tool_choice must be auto, none, required or a function, got %.100s",
                  to_json(choice).c_str());
  const Result<size_t> chosen = index_of_chosen(choice, *functions);
  if (!chosen.ok()) return chosen.error();
  *functions = {(*functions)[*chosen]};
  return Error::Ok;
}

/// The JSON schema of a call of one of the functions. `key` is the name of its arguments.
Json schema_of_calls(std::vector<ToolFunction> functions, const char* key) {
  Json calls = schema::empty(Kind::Array);
  for (size_t i = 0; i < functions.size(); ++i) {
    Json parameters = std::move(functions[i].parameters), required = schema::empty(Kind::Array);
    // references such as #/$defs/x lead into the parameters: they are a resource
    if (parameters.is(Kind::Object) && schema::find(parameters, "$id") == nullptr)
      schema::set(&parameters, "$id", text_value("urn:tool:" + std::to_string(i)));
    required.items = {text_value("name"), text_value(key)};
    const Json properties =
        object({{"name", object({{"const", text_value(functions[i].name)}})}, {key, std::move(parameters)}});
    calls.items.push_back(
        object({{"type", text_value("object")}, {"properties", properties}, {"required", required}}));
  }
  return object({{"anyOf", std::move(calls)}});
}

}  // namespace

Result<Json> permitted_tools(const Json& tools, const Json& choice) {
  const Result<std::vector<ToolFunction>> functions = functions_of(tools);
  if (!functions.ok()) return functions.error();
  const Json* const allowed = allowed_tools_of(choice);
  if (allowed == nullptr) return tools;
  const Json& listed = (*allowed)["tools"];
  const std::string_view mode = allowed->string("mode");
  TORCHETTE_CHECK((mode == "auto" || mode == "required") && listed.is(Kind::Array) && !listed.items.empty(),
                  InvalidArgument,
                  "tool_choice: allowed_tools needs the mode auto or required, and a list of tools");
  std::vector<bool> is_permitted(functions->size());
  for (const Json& one : listed.items) {
    const Result<size_t> index = index_of_chosen(one, *functions);
    if (!index.ok()) return index.error();
    is_permitted[*index] = true;
  }
  Json permitted = schema::empty(Kind::Array);
  for (size_t i = 0; i < is_permitted.size(); ++i)
    if (is_permitted[i]) permitted.items.push_back(tools.items[i]);
  return permitted;
}

Result<std::string> grammar_of_calls(const Json& tools, const Json& choice, std::string_view source) {
  const Result<Json> permitted = permitted_tools(tools, choice);
  if (!permitted.ok()) return permitted.error();
  Result<std::vector<ToolFunction>> functions = functions_of(*permitted);
  if (!functions.ok()) return functions.error();
  bool must_call = false;
  TORCHETTE_TRY(apply_choice(choice, &*functions, &must_call));
  if (!must_call) return std::string();
#ifdef __wasm__  // reduces the size of the program of a web page
  TORCHETTE_LOG(Error, "this build has no JSON schemas; tool_choice must be auto or none");
  return Error::NotSupported;
#else
  const bool is_marked = source.find(kCallOpen) != std::string_view::npos;
  const bool has_parameters = !is_marked && source.find("\"parameters\":") != std::string_view::npos;
  const Json calls = schema_of_calls(std::move(*functions), has_parameters ? "parameters" : "arguments");
  const Result<std::string> grammar = grammar_of(to_json(calls));
  if (!grammar.ok()) return Error::NotSupported;
  constexpr std::string_view kRoot = "root ::= ";
  const size_t root = grammar->find(kRoot);
  if (!is_marked || root == std::string::npos) return std::string(*grammar);
  std::string marked = *grammar;
  const std::string open(kCallOpen), close(kCallClose);
  return marked.replace(root, kRoot.size(),
                        "root ::= \"" + open + "\\n\" call \"\\n" + close + "\"\ncall ::= ");
#endif
}

// --- Calls in an answer ---

namespace {

/// Returns the JSON values of a text, or nothing if the text contains anything else.
std::optional<std::vector<Json>> values_in(std::string_view text) {
  constexpr std::string_view kBetween = " \n\r\t;";
  std::vector<Json> values;
  for (size_t at = 0; (at = text.find_first_not_of(kBetween, at)) != std::string_view::npos;) {
    Json value;
    if (!Json::read(text, &at, &value, Json::kMaxSchemaDepth)) return std::nullopt;
    if (value.is(Kind::Array))
      values.insert(values.end(), value.items.begin(), value.items.end());
    else
      values.push_back(std::move(value));
  }
  return values;
}

std::optional<ToolCall> call_of(const Json& value, const std::vector<std::string>& names) {
  const Json* const function = schema::find(value, "function");
  const Json& call = function != nullptr ? *function : value;
  const std::string name(call.string("name"));
  if (std::find(names.begin(), names.end(), name) == names.end()) return std::nullopt;
  const Json* arguments = schema::find(call, "arguments");
  if (arguments == nullptr) arguments = schema::find(call, "parameters");
  return ToolCall{name, arguments != nullptr ? *arguments : schema::empty(Kind::Object)};
}

}  // namespace

CalledText calls_in(std::string_view answer, const std::vector<std::string>& names) {
  const size_t mark = answer.find(kCallOpen);
  const bool is_marked = mark != std::string_view::npos;
  const CalledText only_text{std::string(answer), {}};
  CalledText found;
  if (is_marked) found.text = jinja::strip(std::string(answer.substr(0, mark)), nullptr, false, true);
  for (std::string_view rest = is_marked ? answer.substr(mark + kCallOpen.size()) : answer;;) {
    const size_t next = is_marked ? rest.find(kCallOpen) : std::string_view::npos;
    const std::string_view part = rest.substr(0, next);
    const std::optional<std::vector<Json>> values = values_in(part.substr(0, part.find(kCallClose)));
    if (!values) return only_text;
    for (const Json& value : *values) {
      std::optional<ToolCall> call = call_of(value, names);
      if (!call) return only_text;
      found.calls.push_back(std::move(*call));
    }
    if (next == std::string_view::npos) break;
    rest.remove_prefix(next + kCallOpen.size());
  }
  return found.calls.empty() ? only_text : found;
}

}  // namespace torchette::extension::llm
