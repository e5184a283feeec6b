// SPDX-License-Identifier: BSD-3-Clause
// Files of tiktoken: each line has a token's bytes in base64 and its rank, which is its number.
#include <algorithm>
#include <iterator>

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

/// The special tokens of Llama 3, which its file does not have.
Tiktoken::SpecialTokens llama3_tokens(uint64_t first) {
  constexpr const char* kNamed[] = {
      "begin_of_text", "end_of_text",     nullptr,         nullptr,  "finetune_right_pad_id",
      "step_id",       "start_header_id", "end_header_id", "eom_id", "eot_id",
      "python_tag"};
  constexpr uint64_t kCount = 256;
  Tiktoken::SpecialTokens tokens;
  int num_reserved = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const char* const named = i < std::size(kNamed) ? kNamed[i] : nullptr;
    const std::string name =
        named != nullptr ? named : "reserved_special_token_" + std::to_string(num_reserved++);
    tokens.emplace_back("<|" + name + "|>", first + i);
  }
  return tokens;
}

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
  constexpr size_t kLlama3Size = 128'000;
  const SpecialTokens special_tokens =
      special_tokens_.empty() && made->model->vocabulary.size() == kLlama3Size ? llama3_tokens(kLlama3Size)
                                                                               : special_tokens_;
  for (const auto& [content, id] : special_tokens) {
    Result<Text> text = to_text(content);
    if (!text.ok()) return text.error();
    AddedToken token;
    token.content = std::move(*text);
    token.id = id;
    token.special = true;
    TORCHETTE_TRY(made->add(std::move(token), false));
  }
  if (special_tokens_.empty() && !special_tokens.empty()) made->before = {special_tokens[0].second};
  bos_ = special_tokens.empty() ? kNone : special_tokens[0].second;
  eos_ = special_tokens.size() < 2 ? kNone : special_tokens[1].second;
  pipeline_ = std::move(made);
  return Error::Ok;
}

}  // namespace torchette::extension::llm
