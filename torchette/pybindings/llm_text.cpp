// SPDX-License-Identifier: BSD-3-Clause
// torchette.runtime._native.llm: tokenizers, streams of text, chat templates, messages and tools. JSON values
// are passed as text.
#include "torchette/pybindings/llm_text.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/llm/engine/chat.h"
#include "torchette/llm/engine/tools.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/values.h"

namespace torchette::pybindings {
namespace {

using namespace extension::llm;

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }
nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

Json json_of(const std::string& text) {
  take_log();
  return unwrap(Json::parse(text, Json::kMaxSchemaDepth));
}

// --- Tokenizers ---

void bind_tokenizer(nb::module_& m) {
  nb::class_<TokenizerHolder>(m, "Tokenizer")
      .def("__init__",
           [](TokenizerHolder* self, const nb::bytes& data) {
             new (self) TokenizerHolder{called([&] { return make_tokenizer(view_of(data)); })};
           })
      .def("encode",
           [](const TokenizerHolder& self, const std::string& text, bool add_special_tokens) {
             return called([&] {
               return add_special_tokens ? self.tokenizer->encode_with_special_tokens(text)
                                         : self.tokenizer->encode(text);
             });
           })
      .def("bytes_of",
           [](const TokenizerHolder& self, uint64_t size) {
             nb::list tokens;
             for (uint64_t token = 0; token < size; ++token)
               tokens.append(bytes_of(self.tokenizer->bytes_of(token)));
             return tokens;
           })
      .def("piece_of", [](const TokenizerHolder& self, uint64_t token) {
        const Result<std::string> piece =
            self.tokenizer->has(token) ? self.tokenizer->id_to_piece(token) : std::string();
        return text_of(piece.ok() ? std::string_view(*piece) : std::string_view());
      });
}

// --- Chats ---

using Files = std::map<std::string, std::string>;

ChatFormat format_of_files(const std::map<std::string, nb::bytes>& contents, const TokenizerHolder* tokenizer,
                           int64_t begin, int64_t end) {
  Files files;  // copies, which are read without the GIL
  for (const auto& [name, data] : contents) files.emplace(name, view_of(data));
  const auto file = [&](const char* name) -> std::optional<std::string> {
    const auto found = files.find(name);
    if (found == files.end()) return std::nullopt;
    return found->second;
  };
  return called([&] {
    return ChatFormat::of_program(file, tokenizer != nullptr ? tokenizer->tokenizer.get() : nullptr,
                                  static_cast<uint64_t>(begin), static_cast<uint64_t>(end));
  });
}

void bind_chat(nb::module_& m) {
  nb::class_<ChatFormat>(m, "ChatFormat")
      .def("__init__",
           [](ChatFormat* self, const std::string& source, const std::string& tool_source,
              const std::string& names) {
             const Json variables = json_of(names);
             new (self) ChatFormat(called([&] { return ChatFormat::make(source, tool_source, variables); }));
           })
      .def_static("of_files", &format_of_files, nb::arg("files"), nb::arg("tokenizer").none(),
                  nb::arg("begin"), nb::arg("end"))
      .def("contents",
           [](const ChatFormat& self, bool has_tools) {
             const ChatContents contents = self.contents(has_tools);
             return std::pair(contents.texts, contents.parts);
           })
      .def("render",
           [](const ChatFormat& self, const std::string& messages, const std::string& variables,
              const std::string& image) {
             const Json message_list = json_of(messages), extra_variables = json_of(variables);
             return called([&] { return self.render(message_list, extra_variables, image); });
           })
      .def("prompt",
           [](const ChatFormat& self, const std::string& messages, const std::string& options,
              const std::string& image) {
             const Json message_list = json_of(messages), option_values = json_of(options);
             return called([&] { return self.prompt(message_list, option_values, image); });
           })
      .def("grammar", [](const ChatFormat& self, const std::string& options) {
        const Json option_values = json_of(options);
        return called([&] { return self.grammar(option_values); });
      });
}

// --- Tools ---

void bind_tools(nb::module_& m) {
  m.def("functions_of", [](const std::string& tools) {
    const Json tool_list = json_of(tools);
    std::vector<std::pair<std::string, std::string>> functions;
    for (const ToolFunction& item : called([&] { return functions_of(tool_list); }))
      functions.emplace_back(item.name, to_json(item.parameters));
    return functions;
  });
  m.def("calls_in", [](const std::string& answer, const std::vector<std::string>& names) {
    CalledText called_text = calls_in(answer, names);
    std::vector<std::pair<std::string, std::string>> calls;
    for (const ToolCall& item : called_text.calls) calls.emplace_back(item.name, to_json(item.arguments));
    return std::pair(std::move(called_text.text), std::move(calls));
  });
}

}  // namespace

void bind_llm_text(nb::module_& m) {
  bind_tokenizer(m);
  bind_chat(m);
  bind_tools(m);
}

}  // namespace torchette::pybindings
