// SPDX-License-Identifier: BSD-3-Clause
// In: a count, and files of tokenizers. Reads this count of damaged copies of each file; copies that load
// encode texts and decode tokens. Out: nothing. test_hostile.py runs this program under sanitizers.
#include <cstdio>
#include <cstdlib>

#include "tests/llm/text/mutations.h"
#include "torchette/extension/file_data_loader.h"
#include "torchette/llm/text/regex.h"
#include "torchette/llm/text/tokenizer.h"
#include "torchette/runtime/platform.h"

using namespace torchette;
using namespace torchette::extension::llm;

namespace {

void use(const Tokenizer& tokenizer) {
  for (const char* text : {"", "Hello, w\xC3\xB6rld 12345!\n\n  ",
                           "\xE2\x96\x81\xEC\x95\x88\xEB\x85\x95 e\xCC\x81 \xF0\x9F\x98\x80",
                           "not \xFF UTF-8 \xE2\x96", "                                  x",
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", "<s> word [MASK] <|end|> word's"}) {
    const Result<std::vector<uint64_t>> tokens = tokenizer.encode_with_special_tokens(text);
    if (!tokens.ok()) continue;
    static_cast<void>(tokenizer.decode(*tokens).ok());
    DecodeStream stream(tokenizer);
    for (uint64_t token : *tokens) static_cast<void>(stream.push(token).ok());
    static_cast<void>(stream.flush().ok());
  }
  std::vector<uint64_t> tokens;
  for (int i = 0; i < 20; ++i) tokens.push_back(chance(tokenizer.vocab_size() + 2));
  static_cast<void>(tokenizer.decode(tokens).ok());
  static_cast<void>(tokenizer.decode(UINT64_MAX, tokens[0]).ok());
}

/// Returns a pattern of valid parts in random order.
void try_pattern() {
  constexpr const char* kParts[] = {"a",    "[^\\s]", "\\p{L}", "(",   ")",   "(?:",  "|", "*",      "+",
                                    "?",    "{2}",    "{0,3}",  "(?!", "(?=", "(?>",  "^", "$",      "\\b",
                                    "[a-z", "]",      "&&",     "\\",  "++",  "(?i:", ".", "(?<!x)", "{9}"};
  std::string pattern;
  for (uint64_t i = chance(14); i > 0; --i) pattern += kParts[chance(std::size(kParts))];
  const Result<Regex> regex =
      Regex::compile(pattern, chance(2) == 0 ? Regex::Dialect::Rust : Regex::Dialect::Oniguruma);
  if (!regex.ok()) return;
  const Text text = U"a a  ab\n\u00E9xx aaaaaaaaaaaa  x";
  size_t start = 0, end = 0;
  static_cast<void>(regex->search(text, 0, &start, &end));
}

}  // namespace

int main(int count, char** words) {
  silence();
  const long rounds = std::atol(words[1]);
  std::vector<std::string> files;
  for (int i = 2; i < count; ++i) {
    const Result<extension::FileDataLoader> file = extension::FileDataLoader::from(words[i]);
    if (!file.ok()) return 2;
    const Result<FreeableBuffer> bytes = file->load(0, *file->size(), DataLoader::SegmentInfo());
    if (!bytes.ok()) return 2;
    files.emplace_back(static_cast<const char*>(bytes->data()), bytes->size());
    const Result<std::unique_ptr<Tokenizer>> whole = make_tokenizer(files.back());
    if (!whole.ok()) return 3;
    use(**whole);
  }
  long loaded = 0;
  for (long i = 0; i < rounds; ++i) {
    state = static_cast<uint64_t>(i);
    const Result<std::unique_ptr<Tokenizer>> made =
        make_tokenizer(mutated(files[static_cast<size_t>(i) % files.size()]));
    if (made.ok()) {
      ++loaded;
      use(**made);
    }
    for (int k = 0; k < 5; ++k) try_pattern();
  }
  std::printf("%ld of %ld load\n", loaded, rounds);
}
