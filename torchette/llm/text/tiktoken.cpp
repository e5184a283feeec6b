// SPDX-License-Identifier: BSD-3-Clause
// Files of tiktoken: each line contains the bytes of a token in base64, and its rank, which is also its id.
#include <algorithm>
#include <iterator>

#include "torchette/llm/text/pipeline.h"
#include "torchette/llm/text/tokenizer.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

struct Bytes final : TokenDecoder {
  Error decode(std::vector<std::string>* tokens) const override {
    std::string merged;
    for (const std::string& token : *tokens) merged += token;
    *tokens = {to_valid_utf8(merged)};
    return Error::Ok;
  }
};

/// Adds special tokens. The first begins a text, the second ends it.
Error add_special_tokens(const Tiktoken::SpecialTokens& tokens, Pipeline* out) {
  for (const auto& [content, id] : tokens) {
    Result<Text> text = to_text(content);
    if (!text.ok()) return text.error();
    AddedToken token;
    token.content = std::move(*text);
    token.id = id;
    token.special = true;
    TORCHETTE_TRY(out->add(std::move(token), false));
  }
  if (!tokens.empty()) out->bos = tokens[0].second;
  if (tokens.size() > 1) out->eos = tokens[1].second;
  return Error::Ok;
}

}  // namespace

Error add_llama3_tokens(Pipeline* out) {
  constexpr const char* kNamed[] = {
      "begin_of_text", "end_of_text",     nullptr,         nullptr,  "finetune_right_pad_id",
      "step_id",       "start_header_id", "end_header_id", "eom_id", "eot_id",
      "python_tag"};
  constexpr uint64_t kFirst = 128'000, kCount = 256;
  if (out->model->vocabulary.size() != kFirst) return Error::Ok;
  Tiktoken::SpecialTokens tokens;
  int num_reserved = 0;
  for (uint64_t i = 0; i < kCount; ++i) {
    const char* const named = i < std::size(kNamed) ? kNamed[i] : nullptr;
    const std::string name =
        named != nullptr ? named : "reserved_special_token_" + std::to_string(num_reserved++);
    tokens.emplace_back("<|" + name + "|>", kFirst + i);
  }
  TORCHETTE_TRY(add_special_tokens(tokens, out));
  out->before = {out->bos};
  return Error::Ok;
}

const char* Tiktoken::default_pattern() {
  return R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
         R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";
}

Tiktoken::Tiktoken(std::string pattern, SpecialTokens special_tokens)
    : pattern_(std::move(pattern)), special_tokens_(std::move(special_tokens)) {}

Error read_tiktoken(std::string_view bytes, const std::string& pattern, Pipeline* out) {
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
  out->model = std::move(model);
  Result<Regex> regex = Regex::compile(pattern, Regex::Dialect::Rust);
  if (!regex.ok()) return regex.error();
  out->pre_tokenizers.push_back(make_split(std::move(*regex)));
  out->decoders.push_back(std::make_unique<Bytes>());
  return Error::Ok;
}

Error Tiktoken::load_bytes(std::string_view bytes) {
  auto made = std::make_shared<Pipeline>();
  TORCHETTE_TRY(read_tiktoken(bytes, pattern_, made.get()));
  TORCHETTE_TRY(special_tokens_.empty() ? add_llama3_tokens(made.get())
                                        : add_special_tokens(special_tokens_, made.get()));
  set_pipeline(std::move(made));
  return Error::Ok;
}

}  // namespace torchette::extension::llm
