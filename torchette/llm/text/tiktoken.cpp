// SPDX-License-Identifier: BSD-3-Clause
// Files of tiktoken: each line has a token's bytes in base64 and its rank, which is its number.
#include <algorithm>

#include "torchette/llm/text/pipeline.h"
#include "torchette/llm/text/tokenizer.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

struct Bytes final : TokenDecoder {
  Error decode(std::vector<std::string>* tokens) const override {
    std::string whole;
    for (const std::string& token : *tokens) whole += token;
    *tokens = {to_valid_utf8(whole)};
    return Error::Ok;
  }
};

}  // namespace

const char* Tiktoken::default_pattern() {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
         R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

Tiktoken::Tiktoken(std::string pattern, SpecialTokens special_tokens)
    : pattern_(std::move(pattern)), special_tokens_(std::move(special_tokens)) {}

Error Tiktoken::load_bytes(std::string_view bytes) {
  auto made = std::make_shared<Pipeline>();
  auto model = std::make_unique<Bpe>();
  model->of_bytes = model->ignore_merges = true;
  size_t line = 0;
  for (size_t at = 0; at < bytes.size();) {
    const size_t end = std::min(bytes.find('\n', at), bytes.size());
    std::string_view text = bytes.substr(at, end - at);
    at = end + 1;
    ++line;
    if (!text.empty() && text.back() == '\r') text.remove_suffix(1);
    if (text.empty()) continue;
    const size_t space = text.find(' ');
    int64_t rank = space == std::string_view::npos || space + 1 == text.size() ? -1 : 0;
    for (size_t i = space + 1; rank >= 0 && i < text.size(); ++i)
      rank = text[i] >= '0' && text[i] <= '9' && rank < (1 << 24) ? rank * 10 + (text[i] - '0') : -1;
    TORCHETTE_CHECK(rank >= 0, InvalidExternalData, "line %zu of a tiktoken file is not a token and its rank",
                    line);
    Result<std::string> token = from_base64(text.substr(0, space));
    if (!token.ok()) return token.error();
    TORCHETTE_TRY(model->vocabulary.add(std::move(*token), rank));
  }
  model->ranks.assign(model->vocabulary.size(), Bpe::kNever);
  for (size_t i = 0; i < model->ranks.size(); ++i)
    if (model->vocabulary.has(i)) model->ranks[i] = static_cast<uint32_t>(i);
  for (int byte = 0; byte < 256; ++byte)
    TORCHETTE_CHECK(model->vocabulary.find(std::string(1, static_cast<char>(byte))) >= 0, InvalidExternalData,
                    "the tiktoken file has no token for byte %d", byte);
  made->model = std::move(model);
  Result<Regex> regex = Regex::compile(pattern_, Regex::Dialect::Rust);
  if (!regex.ok()) return regex.error();
  made->pre_tokenizers.push_back(make_split(std::move(*regex)));
  made->decoders.push_back(std::make_unique<Bytes>());
  for (const auto& [content, id] : special_tokens_) {
    Result<Text> text = to_text(content);
    if (!text.ok()) return text.error();
    AddedToken token;
    token.content = std::move(*text);
    token.id = id;
    token.special = true;
    TORCHETTE_TRY(made->add(std::move(token), false));
  }
  bos_ = special_tokens_.empty() ? kNone : special_tokens_[0].second;
  eos_ = special_tokens_.size() < 2 ? kNone : special_tokens_[1].second;
  pipeline_ = std::move(made);
  return Error::Ok;
}

}  // namespace torchette::extension::llm
