// SPDX-License-Identifier: BSD-3-Clause
// In: a tokenizer's file, optionally "tiktoken" with a pattern and special tokens, and texts on the standard
// input, each behind its size in four bytes. Out, for each: the tokens, those with special tokens, the text
// of these in hexadecimal without and with special tokens, and the text of a stream of them.
#include <cstdio>
#include <cstring>

#include "torchette/llm/text/tokenizer.h"

using namespace torchette;
using namespace torchette::extension::llm;

namespace {

void print(const Result<std::vector<uint64_t>>& tokens) {
  if (!tokens.ok()) {
    std::printf("error 0x%02x\n", static_cast<unsigned>(tokens.error()));
    return;
  }
  for (uint64_t token : *tokens) std::printf("%llu ", static_cast<unsigned long long>(token));
  std::printf("\n");
}

void print_hex(const Result<std::string>& text) {
  if (!text.ok()) {
    std::printf("error 0x%02x\n", static_cast<unsigned>(text.error()));
    return;
  }
  for (char c : *text) std::printf("%02x", static_cast<uint8_t>(c));
  std::printf("\n");
}

}  // namespace

int main(int count, char** words) {
  std::unique_ptr<Tokenizer> tokenizer;
  if (count > 2 && std::strcmp(words[2], "tiktoken") == 0) {
    Tiktoken::SpecialTokens special;
    for (int i = 4; i + 1 < count; i += 2)
      special.emplace_back(words[i], std::strtoull(words[i + 1], nullptr, 10));
    tokenizer = std::make_unique<Tiktoken>(count > 3 ? words[3] : Tiktoken::default_pattern(), special);
    if (tokenizer->load(words[1]) != Error::Ok) return 3;
  } else {
    tokenizer = load_tokenizer(words[1]);
    if (!tokenizer) return 3;
  }
  std::printf("%zu\n", tokenizer->vocab_size());
  uint32_t size = 0;
  while (std::fread(&size, 1, 4, stdin) == 4) {
    std::string text(size, '\0');
    if (std::fread(text.data(), 1, size, stdin) != size) return 2;
    print(tokenizer->encode(text));
    const Result<std::vector<uint64_t>> tokens = tokenizer->encode_with_special_tokens(text);
    print(tokens);
    if (!tokens.ok()) continue;
    print_hex(tokenizer->decode(*tokens, true));
    print_hex(tokenizer->decode(*tokens, false));
    DecodeStream stream(*tokenizer);
    std::string streamed;
    for (uint64_t token : *tokens) {
      const Result<std::string> piece = stream.push(token);
      if (!piece.ok()) return 4;
      streamed += *piece;
    }
    const Result<std::string> rest = stream.flush();
    if (!rest.ok()) return 4;
    print_hex(streamed + *rest);
  }
}
