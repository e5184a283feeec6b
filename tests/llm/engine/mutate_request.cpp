// SPDX-License-Identifier: BSD-3-Clause
// In: a count. Out: how many of this count of damaged schemas, grammars, configurations and states the
// readers accept. Accepted input is used. test_hostile.py runs this program under sanitizers.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "tests/llm/text/mutations.h"
#include "torchette/llm/engine/config_json.h"
#include "torchette/llm/engine/session_state.h"
#include "torchette/llm/grammar/grammar.h"
#include "torchette/llm/grammar/schema.h"

using namespace torchette;
using namespace torchette::extension::llm;

namespace {

constexpr size_t kContext = 6;
constexpr const char* kSchemas[] = {
    R"({"type": "object", "properties": {"a": {"type": "integer", "minimum": -30, "maximum": 1234}, "b": {"$ref": "#/$defs/n"}},
        "required": ["a"], "additionalProperties": {"type": "null"}, "$defs": {"n": {"anyOf": [{"$ref": "#/$defs/n"}, {"type": "null"}]}}})",
    R"({"allOf": [{"type": "array", "minItems": 1}, {"prefixItems": [{"const": 1.5}, {"enum": ["x", null, true]}], "maxItems": 3}]})",
    R"({"type": "string", "pattern": "^(?:[a-f\\d]{2,3}|\\S+?[^\\w\"]*)$"})",
    R"({"oneOf": [{"format": "date-time"}, {"minLength": 2, "maxLength": 9}, {"type": ["number", "boolean"], "minimum": 0}], "title": "x"})"};
constexpr const char* kGrammars[] = {
    "root ::= item+ # all\nitem ::= \"- \" [\\x41-Z]{1,5} \"\\n\" | (\"a\" item \"b\")?",
    "root ::= [^a-c\\u00e9]{2,40} | .{3} root*"};
constexpr const char* kConfigs[] = {
    R"({"max_new_tokens": 20, "temperature": 0.7, "stop": ["a", "b"], "logit_bias": {"17": 2}, "schema": {"type": "null"}, "seed": 3})"};

/// Parses a grammar and, if it is valid, advances its state by bytes.
void use(const std::string& text) {
  const Result<std::unique_ptr<Grammar>> grammar = Grammar::parse(text);
  if (!grammar.ok()) return;
  Result<const Grammar::State*> start = (*grammar)->start();
  const Grammar::State* here = start.ok() ? *start : nullptr;
  const GrammarVocabulary vocabulary({"{", "\"", "a", "1", "{\"a\": ", "}", "\xC3", "\xA9"});
  for (int i = 0; i < 12 && here != nullptr; ++i) {
    if (!(*grammar)->mask(here, vocabulary).ok()) return;
    const Result<const Grammar::State*> following =
        (*grammar)->advance(here, vocabulary.tokens()[chance(vocabulary.tokens().size())], chance(2) == 0);
    if (!following.ok()) return;
    if (*following != nullptr) here = *following;
  }
}

bool takes(long round, std::string* state_bytes, const std::vector<Decoder::Part>& parts) {
  const auto pick = [&](const auto& all) { return mutated(all[chance(std::size(all))]); };
  switch (round % 4) {
    case 0: {
      const Result<std::string> grammar = grammar_of(pick(kSchemas));
      if (grammar.ok() && grammar->size() < 20000) use(*grammar);
      return grammar.ok();
    }
    case 1: {
      const std::string text = pick(kGrammars);
      use(text);
      return Grammar::parse(text).ok();
    }
    case 2: {
      GenerationConfig config;
      return read_config(pick(kConfigs), &config) == Error::Ok;
    }
    default: {
      const std::string bytes = mutated(*state_bytes);
      return read_state({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()}, "9-6-1", parts,
                        kContext, 9, chance(2) == 0)
          .ok();
    }
  }
}

}  // namespace

int main(int, char** words) {
  silence();
  std::vector<uint8_t> keys(kContext * 8), rows(16);
  const std::vector<Decoder::Part> parts = {
      {"keys", ScalarType::Half, {kContext, 4}, keys.data(), keys.size()},
      {"rows", ScalarType::Long, {2}, rows.data(), rows.size()}};
  const std::vector<uint8_t> whole = write_state("9-6-1", {1, 2, 8}, parts, kContext);
  std::string bytes(whole.begin(), whole.end());
  if (!read_state({whole.data(), whole.size()}, "9-6-1", parts, kContext, 9, false).ok()) return 2;
  const long rounds = std::atol(words[1]);
  long taken[4] = {};
  for (long i = 0; i < rounds; ++i) {
    state = static_cast<uint64_t>(i);
    taken[i % 4] += takes(i, &bytes, parts);
  }
  for (long count : taken) std::printf("%ld ", count);
}
