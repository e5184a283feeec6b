// SPDX-License-Identifier: BSD-3-Clause
// Decoders: convert the strings of tokens in a tokenizer file to text.
#include <algorithm>
#include <cstdlib>

#include "torchette/llm/text/pipeline.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

using Tokens = std::vector<std::string>;

void replace_all(std::string* text, std::string_view from, std::string_view to) {
  for (size_t at = text->find(from); at != std::string::npos; at = text->find(from, at + to.size()))
    text->replace(at, from.size(), to);
}

struct Fuse final : TokenDecoder {
  Error decode(Tokens* tokens) const override {
    std::string merged;
    for (const std::string& token : *tokens) merged += token;
    *tokens = {std::move(merged)};
    return Error::Ok;
  }
};

struct ByteLevel final : TokenDecoder {
  Error decode(Tokens* tokens) const override {
    std::string merged;
    for (const std::string& token : *tokens) merged += bytes(token);
    *tokens = {to_valid_utf8(merged)};
    return Error::Ok;
  }
  std::string bytes(std::string token) const override {
    const Result<Text> text = to_text(token);
    const bool letters = text.ok() && std::all_of(text->begin(), text->end(),
                                                  [](char32_t c) { return byte_of_letter(c) >= 0; });
    if (!letters) return token;  // such as an added token
    std::string found;
    for (char32_t c : *text) found += static_cast<char>(byte_of_letter(c));
    return found;
  }
};

struct WordPiece final : TokenDecoder {
  Error decode(Tokens* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i) {
      std::string& token = (*tokens)[i];
      if (i > 0) token = token.rfind(prefix, 0) == 0 ? token.substr(prefix.size()) : " " + token;
      if (!cleanup) continue;
      constexpr std::string_view kMarks[][2] = {{" .", "."},     {" ?", "?"},           {" !", "!"},
                                                {" ,", ","},     {" ' ", "'"},          {" n't", "n't"},
                                                {" 'm", "'m"},   {" do not", " don't"}, {" 's", "'s"},
                                                {" 've", "'ve"}, {" 're", "'re"}};
      for (const auto& mark : kMarks) replace_all(&token, mark[0], mark[1]);
    }
    return Error::Ok;
  }
  std::string bytes(std::string token) const override {
    return token.rfind(prefix, 0) == 0 ? token.substr(prefix.size()) : " " + token;
  }
  std::string prefix;
  bool cleanup = true;
};

struct Metaspace final : TokenDecoder {
  Error decode(Tokens* tokens) const override {
    for (size_t i = 0; i < tokens->size(); ++i)
      replace_all(&(*tokens)[i], mark, i == 0 && prefixed ? "" : " ");
    return Error::Ok;
  }
  std::string bytes(std::string token) const override {
    replace_all(&token, mark, " ");
    return token;
  }
  std::string mark;
  bool prefixed = true;
};

struct ByteFallback final : TokenDecoder {
  /// Returns the byte of a token such as <0xFF>, or -1 for other tokens.
  static int byte_of(const std::string& token) {
    char* end = nullptr;
    const bool framed = token.size() == 6 && token.rfind("<0x", 0) == 0 && token[5] == '>' &&
                        token[3] != ' ' && token[3] != '+' && token[3] != '-';
    const unsigned long byte = framed ? std::strtoul(token.c_str() + 3, &end, 16) : 0;
    return framed && end == token.c_str() + 5 ? static_cast<int>(byte) : -1;
  }
  std::string bytes(std::string token) const override {
    const int byte = byte_of(token);
    return byte >= 0 ? std::string(1, static_cast<char>(byte)) : token;
  }
  Error decode(Tokens* tokens) const override {
    Tokens out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      if (to_valid_utf8(bytes) == bytes)
        out.push_back(bytes);
      else
        for (size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
      bytes.clear();
    };
    for (std::string& token : *tokens) {
      const int byte = byte_of(token);
      if (byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(token));
      }
    }
    flush();
    *tokens = std::move(out);
    return Error::Ok;
  }
};

struct Strip final : TokenDecoder {
  Error decode(Tokens* tokens) const override {
    for (std::string& token : *tokens) {
      for (int64_t i = 0; i < start && token.rfind(content, 0) == 0 && !content.empty(); ++i)
        token.erase(0, content.size());
      for (int64_t i = 0; i < stop && token.size() >= content.size() && !content.empty() &&
                          token.compare(token.size() - content.size(), content.size(), content) == 0;
           ++i)
        token.resize(token.size() - content.size());
    }
    return Error::Ok;
  }
  std::string content;
  int64_t start = 0, stop = 0;
};

struct Replace final : TokenDecoder {
  Replace(Regex r, Text c) : regex(std::move(r)), content(std::move(c)) {}
  Error decode(Tokens* tokens) const override {
    for (std::string& token : *tokens) {
      Result<Text> text = to_text(token);
      if (!text.ok()) return text.error();
      TORCHETTE_TRY(replace(regex, content, &*text));
      token = to_utf8(*text);
    }
    return Error::Ok;
  }
  std::string bytes(std::string token) const override {
    Tokens one = {token};
    return decode(&one) == Error::Ok ? one[0] : token;
  }
  Regex regex;
  Text content;
};

/// Replaces the mark at the end of words by a space, and removes it at the end of the text.
struct BpeSuffix final : TokenDecoder {
  Error decode(Tokens* tokens) const override {
    for (size_t i = 0; i < tokens->size() && !suffix.empty(); ++i)
      replace_all(&(*tokens)[i], suffix, i + 1 == tokens->size() ? "" : " ");
    return Error::Ok;
  }
  std::string bytes(std::string token) const override {
    if (!suffix.empty()) replace_all(&token, suffix, " ");
    return token;
  }
  std::string suffix;
};

}  // namespace

Error add_decoders(const Json& json, std::vector<std::unique_ptr<TokenDecoder>>* out) {
  const std::string_view type = json.string("type");
  if (type == "Sequence") {
    for (const Json& member : json["decoders"].items) TORCHETTE_TRY(add_decoders(member, out));
  } else if (type == "Fuse") {
    out->push_back(std::make_unique<Fuse>());
  } else if (type == "ByteLevel") {
    out->push_back(std::make_unique<ByteLevel>());
  } else if (type == "ByteFallback") {
    out->push_back(std::make_unique<ByteFallback>());
  } else if (type == "WordPiece") {
    auto made = std::make_unique<WordPiece>();
    made->prefix = json.string("prefix", "##");
    made->cleanup = json.flag("cleanup", true);
    out->push_back(std::move(made));
  } else if (type == "Metaspace") {
    auto made = std::make_unique<Metaspace>();
    made->mark = json.string("replacement", "\xE2\x96\x81");
    TORCHETTE_CHECK(!made->mark.empty(), InvalidExternalData, "Metaspace's replacement is empty");
    made->prefixed =
        json.string("prepend_scheme", json.flag("add_prefix_space", true) ? "always" : "never") != "never";
    out->push_back(std::move(made));
  } else if (type == "Strip") {
    auto made = std::make_unique<Strip>();
    made->content = json.string("content");
    made->start = json["start"].index();
    made->stop = json["stop"].index();
    out->push_back(std::move(made));
  } else if (type == "Replace") {
    Result<Regex> regex = make_pattern(json["pattern"]);
    if (!regex.ok()) return regex.error();
    Result<Text> content = to_text(json.string("content"));
    if (!content.ok()) return content.error();
    out->push_back(std::make_unique<Replace>(std::move(*regex), std::move(*content)));
  } else if (type == "BPEDecoder") {
    auto made = std::make_unique<BpeSuffix>();
    made->suffix = json.string("suffix", "</w>");
    out->push_back(std::move(made));
  } else {
    TORCHETTE_LOG(Error, "the tokenizer's decoder %s is not supported", std::string(type).c_str());
    return Error::NotSupported;
  }
  return Error::Ok;
}

}  // namespace torchette::extension::llm
