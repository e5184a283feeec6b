// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/chat.h"

#include <algorithm>
#include <iterator>

#include "torchette/llm/engine/tools.h"
#include "torchette/llm/grammar/schema_json.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

using Kind = Json::Kind;

Json text_value(std::string text) {
  Json value = schema::empty(Kind::String);
  value.text = std::move(text);
  return value;
}

// --- Messages ---

bool is_part(const Json& part) {
  const std::string_view kind = part.string("type");
  return kind == "image" || (kind == "text" && part["text"].is_string());
}

Json parts_of(const Json& pieces) {
  Json parts = schema::empty(Kind::Array);
  for (const Json& piece : pieces.items)
    parts.items.push_back(
        schema::only_keys(piece, [](std::string_view key) { return key == "type" || key == "text"; }));
  return parts;
}

/// A content in the form that a template accepts, from a list of parts.
Json content_of(const Json& pieces, ChatContents contents, std::string_view image) {
  const bool are_texts = std::all_of(pieces.items.begin(), pieces.items.end(),
                                     [](const Json& piece) { return piece.string("type") == "text"; });
  if (contents.parts && !(contents.texts && are_texts)) return parts_of(pieces);
  std::string text;
  for (const Json& piece : pieces.items)
    text += piece.string("type") == "text" ? piece.string("text") : image;
  return text_value(std::move(text));
}

/// The content of a message as a list of parts.
Result<Json> pieces_of(const Json& message, size_t number) {
  const bool has_calls = !message["tool_calls"].items.empty();
  const bool is_silent = message["content"].is(Kind::Null) && schema::find(message, "content") != nullptr &&
                         message.string("role") == "assistant";
  const Json content =
      message["content"].is(Kind::Null) && (has_calls || is_silent) ? text_value("") : message["content"];
  TORCHETTE_CHECK(message["role"].is_string() && !content.is(Kind::Null), InvalidArgument,
                  "messages[%zu] needs a role and a content, both text", number);
  if (content.is(Kind::Array)) {
    TORCHETTE_CHECK(std::all_of(content.items.begin(), content.items.end(), is_part), InvalidArgument,
                    "messages[%zu]: a part of a content must be {'type': 'text', 'text': 'Hello'} or "
                    "{'type': 'image', 'image': array}",
                    number);
    return content;
  }
  TORCHETTE_CHECK(content.is_string(), InvalidArgument,
                  "messages[%zu]: a content must be text, or a list of parts of type text or image", number);
  Json piece = schema::empty(Kind::Object), pieces = schema::empty(Kind::Array);
  schema::set(&piece, "type", text_value("text"));
  schema::set(&piece, "text", content);
  pieces.items.push_back(std::move(piece));
  return pieces;
}

/// A call with its arguments as a value, which templates write.
Result<Json> call_with_values(const Json& call, size_t message, size_t number) {
  TORCHETTE_CHECK(call["function"].is(Kind::Object), InvalidArgument,
                  "messages[%zu].tool_calls[%zu] must be {'function': {'name': ..., 'arguments': JSON}}",
                  message, number);
  Json function = call["function"], made = call;
  if (function["arguments"].is_string()) {
    const std::string& text = function["arguments"].text;
    Json arguments = schema::empty(Kind::Object);
    size_t at = 0;
    const bool is_read = text.empty() || (Json::read(text, &at, &arguments, Json::kMaxSchemaDepth) &&
                                          text.find_first_not_of(" \t\r\n", at) == std::string::npos);
    TORCHETTE_CHECK(is_read, InvalidArgument,
                    "messages[%zu].tool_calls[%zu].function.arguments is not JSON: %.200s", message, number,
                    text.c_str());
    schema::set(&function, "arguments", std::move(arguments));
  }
  schema::set(&made, "function", std::move(function));
  return made;
}

}  // namespace

Result<Json> prepare_messages(const Json& messages, ChatContents contents, std::string_view image) {
  TORCHETTE_CHECK(messages.is(Kind::Array) && !messages.items.empty(), InvalidArgument,
                  "messages must be a list: [{'role': 'user', 'content': 'Hello'}]");
  Json prepared = schema::empty(Kind::Array);
  for (size_t i = 0; i < messages.items.size(); ++i) {
    const Result<Json> pieces = pieces_of(messages.items[i], i);
    if (!pieces.ok()) return pieces.error();
    Json message = messages.items[i];
    schema::set(&message, "content", content_of(*pieces, contents, image));
    Json calls = message["tool_calls"];
    TORCHETTE_CHECK(calls.is(Kind::Array) || calls.is(Kind::Null), InvalidArgument,
                    "messages[%zu].tool_calls must be a list", i);
    for (size_t k = 0; k < calls.items.size(); ++k) {
      Result<Json> call = call_with_values(calls.items[k], i, k);
      if (!call.ok()) return call.error();
      calls.items[k] = std::move(*call);
    }
    if (!calls.items.empty()) schema::set(&message, "tool_calls", std::move(calls));
    prepared.items.push_back(std::move(message));
  }
  return prepared;
}

// --- Templates ---

Error ChatFormat::add(std::string source) {
  Result<ChatTemplate> parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return parsed.error();
  const ChatContents contents = probe(*parsed);
  forms_.push_back({std::move(source), std::move(*parsed), contents});
  return Error::Ok;
}

Result<ChatFormat> ChatFormat::make(std::string source, std::string tool_source, Json names) {
  ChatFormat made;
  made.names_ = std::move(names);
  TORCHETTE_TRY(made.add(std::move(source)));
  if (!tool_source.empty()) TORCHETTE_TRY(made.add(std::move(tool_source)));
  return made;
}

namespace {

/// Returns the texts of special tokens in a file with the form of docs/llm-program.md.
Result<Json> special_tokens(const std::string& file) {
  const Result<Json> map = Json::parse(file);
  if (!map.ok()) return map.error();
  TORCHETTE_CHECK(map->is(Kind::Object), InvalidExternalData,
                  "special_tokens_map.json must be a JSON object");
  Json names = schema::empty(Kind::Object);
  const auto text_of = [](const Json& token) -> const Json& {
    return token.is_string() ? token : token["content"];
  };
  for (size_t i = 0; i < map->items.size(); ++i) {
    Json value = map->items[i].is(Kind::Array) ? map->items[i] : text_of(map->items[i]);
    for (Json& item : value.items) item = Json(text_of(item));
    if (!value.is(Kind::Null)) schema::set(&names, map->keys[i], std::move(value));
  }
  return names;
}

}  // namespace

Result<ChatFormat> ChatFormat::of_program(const ReadFile& file, const Tokenizer* tokenizer, uint64_t begin,
                                          uint64_t end) {
  std::optional<std::string> source = file("chat_template.jinja");
  TORCHETTE_CHECK(source.has_value(), NotFound, "the file has no chat template");
  Json names = schema::empty(Kind::Object);
  if (const std::optional<std::string> map = file("special_tokens_map.json")) {
    Result<Json> found = special_tokens(*map);
    if (!found.ok()) return found.error();
    names = std::move(*found);
  } else {
    for (const auto& [name, token] : {std::pair{"bos_token", begin}, {"eos_token", end}}) {
      if (tokenizer == nullptr || !tokenizer->has(token)) continue;
      Result<std::string> piece = tokenizer->id_to_piece(token);
      if (piece.ok()) schema::set(&names, name, text_value(std::move(*piece)));
    }
  }
  return make(std::move(*source), file("chat_template.tool_use.jinja").value_or(""), std::move(names));
}

/// The variables of transformers: without tools and documents, both are None.
ChatTemplate::Names ChatFormat::variables(Json messages, const Json& more) const {
  ChatTemplate::Names names{{"messages", std::move(messages)},
                            {"tools", Json()},
                            {"documents", Json()},
                            {"add_generation_prompt", schema::empty(Kind::True)}};
  for (const Json* object : {&names_, &more})
    for (size_t i = 0; i < object->keys.size(); ++i) names.emplace_back(object->keys[i], object->items[i]);
  return names;
}

/// Renders a probe in both forms. A template accepts a form if the prompt contains the probe, and not the
/// keys of a part.
ChatContents ChatFormat::probe(const ChatTemplate& parsed) const {
  const auto accepts = [&](const char* messages) {
    const Result<Json> json = Json::parse(messages);
    std::string reason;
    const Result<std::string> prompt = parsed.render(variables(*json, Json()), &reason);
    const auto has = [&](const char* part) { return prompt->find(part) != std::string::npos; };
    return prompt.ok() && has("torchette") && !has("'type'") && !has("\"type\"");
  };
  const bool texts = accepts(R"([{"role": "user", "content": "torchette"}])");
  const bool parts = accepts(R"([{"role": "user", "content": [{"type": "text", "text": "torchette"}]}])");
  return {texts || !parts, parts};
}

Result<std::string> ChatFormat::render(const Json& messages, const Json& more, std::string_view image) const {
  const Form& used = form(!more["tools"].items.empty());
  Result<Json> prepared = prepare_messages(messages, used.contents, image);
  if (!prepared.ok()) return prepared.error();
  return used.parsed.render(variables(std::move(*prepared), more));
}

namespace {

Error check_options(const Json& options) {
  constexpr std::string_view kKnown[] = {"tools", "tool_choice", "template"};
  TORCHETTE_CHECK(options.is(Kind::Object), InvalidArgument,
                  "the options of a chat must be an object: {\"template\": {\"enable_thinking\": false}}");
  for (const std::string& key : options.keys)
    TORCHETTE_CHECK(std::find(std::begin(kKnown), std::end(kKnown), key) != std::end(kKnown), InvalidArgument,
                    "a chat has no option %.60s; it has tools, tool_choice and template", key.c_str());
  const Json& variables = options["template"];
  TORCHETTE_CHECK(variables.is(Kind::Object) || variables.is(Kind::Null), InvalidArgument,
                  "template must be an object: {\"enable_thinking\": false}");
  TORCHETTE_CHECK(schema::find(variables, "messages") == nullptr, InvalidArgument,
                  "messages is not a variable of the template that a caller can set");
  return Error::Ok;
}

}  // namespace

/// The tools of a request that its answer may call; null without tools.
Result<Json> ChatFormat::tools_of(const Json& options) const {
  TORCHETTE_TRY(check_options(options));
  const Json &tools = options["tools"], &choice = options["tool_choice"];
  if (tools.is(Kind::Null) || (tools.is(Kind::Array) && tools.items.empty())) {
    const bool is_free = choice.is(Kind::Null) || choice.text == "auto" || choice.text == "none";
    TORCHETTE_CHECK(is_free, InvalidArgument, "tool_choice is %.100s, but the request has no tools",
                    to_json(choice).c_str());
    return Json();
  }
  TORCHETTE_CHECK(source(true).find("tools") != std::string::npos, InvalidArgument,
                  "the chat template of this model does not support tools");
  return permitted_tools(tools, choice);
}

Result<std::string> ChatFormat::prompt(const Json& messages, const Json& options,
                                       std::string_view image) const {
  Result<Json> tools = tools_of(options);
  if (!tools.ok()) return tools.error();
  Json variables = options["template"];
  variables.kind = Kind::Object;
  if (!tools->is(Kind::Null)) schema::set(&variables, "tools", std::move(*tools));
  return render(messages, variables, image);
}

Result<std::string> ChatFormat::grammar(const Json& options) const {
  const Result<Json> tools = tools_of(options);
  if (!tools.ok()) return tools.error();
  if (tools->is(Kind::Null)) return std::string();
  const Json& choice = options["tool_choice"];
  return grammar_of_calls(*tools, choice.is(Kind::Null) ? text_value("auto") : choice, source(true));
}

}  // namespace torchette::extension::llm
