// SPDX-License-Identifier: BSD-3-Clause
// The parts of a tokenizer and their order: added tokens are cut out of the text, what is between them is
// normalized, divided into pieces, and each piece becomes tokens by a model. The readers of files put them
// together.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "torchette/llm/text/json.h"
#include "torchette/llm/text/regex.h"

namespace torchette::extension::llm {

/// Strings by their beginnings.
class Trie {
 public:
  void add(const Text& text, int32_t value);
  /// The node behind `node` and `c`, or 0; the root is 0.
  uint32_t step(uint32_t node, char32_t c) const {
    const auto found = edges_.find(uint64_t{node} << 21 | c);
    return found == edges_.end() ? 0 : found->second;
  }
  int32_t value(uint32_t node) const { return values_[node]; }  // -1: no string ends here
  /// The longest string that begins at `at`: its value and size, or -1.
  int32_t longest(const Text& text, size_t at, size_t* size) const;

 private:
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> values_ = {-1};
};

class Vocabulary {
 public:
  /// Error: InvalidExternalData (a number that is too large).
  Error add(std::string piece, int64_t id);
  /// -1: none.
  int64_t find(const std::string& piece) const {
    const auto found = ids_.find(piece);
    return found == ids_.end() ? -1 : static_cast<int64_t>(found->second);
  }
  bool has(uint64_t id) const { return id < pieces_.size() && known_[id]; }
  const std::string& piece(uint64_t id) const { return pieces_[id]; }
  size_t size() const { return pieces_.size(); }

 private:
  std::unordered_map<std::string, uint32_t> ids_;
  std::vector<std::string> pieces_;
  std::vector<bool> known_;
};

struct Normalizer {
  virtual ~Normalizer() = default;
  virtual Error normalize(Text* text) const = 0;
};

/// A part of a text; `first` where the text begins with it.
struct Piece {
  Text text;
  bool first;
};

struct PreTokenizer {
  virtual ~PreTokenizer() = default;
  virtual Error split(std::vector<Piece>* pieces) const = 0;
};

struct Model {
  virtual ~Model() = default;
  virtual Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const = 0;
  Vocabulary vocabulary;
};

/// Tokens as the file has them to parts of a text.
struct TokenDecoder {
  virtual ~TokenDecoder() = default;
  virtual Error decode(std::vector<std::string>* tokens) const = 0;
  /// The bytes that a token adds inside of a text.
  virtual std::string bytes(std::string token) const { return token; }
};

struct AddedToken {
  Text content;
  uint64_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false, special = false;
};

struct Pipeline {
  std::vector<AddedToken> added;
  std::vector<bool> special;                               // by number of a token
  Trie raw_added;                                          // cut out before normalizing: indices of `added`
  Trie normalized_added;                                   // and behind it
  std::unordered_map<uint64_t, std::string> added_pieces;  // whose numbers the model may have otherwise
  std::unordered_map<std::string, uint64_t> added_ids;
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  std::unique_ptr<Model> model;
  std::vector<uint64_t> before, behind;  // what a text gets with special tokens
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t bos = kNone, eos = kNone;  // the tokens that begin and end a text
  std::vector<std::unique_ptr<TokenDecoder>> decoders;
  bool joins_with_spaces = false;  // tokens of a file without a decoder

  /// Once normalizers stand. Error: InvalidExternalData.
  Error add(AddedToken token, bool normalized);
  Error normalize(Text* text) const;
  Error encode(const Text& text, std::vector<uint64_t>* tokens) const;
};

// --- A pattern and its matches
// ----------------------------------------------------------------------------------
struct Range {
  size_t begin, end;
  bool match;
};
/// All of the text, as matches and what is between them; empty ones are left out.
Error find_matches(const Regex& regex, const Text& text, std::vector<Range>* out);
/// {"String": ...} or {"Regex": ...}. Errors: those of Regex::compile().
Result<Regex> make_pattern(const Json& json);
/// What `pattern` matches becomes `content`. Errors: those of Regex::search().
Error replace(const Regex& regex, const Text& content, Text* text);

/// The letter that stands for a byte in files of byte level, and back: -1 where there is none.
char32_t letter_of_byte(uint8_t byte);
int byte_of_letter(char32_t c);
std::string byte_token(uint8_t byte);  // <0x0A>

// --- What files name
// ------------------------------------------------------------------------------------------
/// SentencePiece's table of replacements. Error: InvalidExternalData (no such table).
class CharsMap {
 public:
  static Result<CharsMap> from(std::string bytes);
  /// The shortest, or the longest, of the strings at `at` that are replaced: the size, 0 where there is none.
  size_t find(std::string_view text, bool longest, std::string_view* replacement) const;

 private:
  std::string bytes_;
  size_t units_ = 0;
};
/// Error: InvalidExternalData.
Result<std::string> from_base64(std::string_view text);

/// A SentencePiece model. `numbers` is null, or has the numbers of the pieces as `vocab` and the piece
/// `unk_token` for those without a number.
/// Errors: InvalidExternalData (not such a model, or damaged), NotSupported (an unknown kind of model).
Error read_sentencepiece(std::string_view file, const Json& numbers, Pipeline* out);
/// A tiktoken file, which has no special tokens. `pattern` divides texts. Errors: InvalidExternalData, those
/// of Regex::compile().
Error read_tiktoken(std::string_view file, const std::string& pattern, Pipeline* out);
/// Adds the special tokens of Llama 3 if the vocabulary has its size.
Error add_llama3_tokens(Pipeline* out);
/// Whether a file that is not a tokenizer.json is a SentencePiece model; else it is of tiktoken.
bool is_sentencepiece(std::string_view file);

Error add_normalizers(const Json& json, std::vector<std::unique_ptr<Normalizer>>* out);
Error add_pre_tokenizers(const Json& json, std::vector<std::unique_ptr<PreTokenizer>>* out);
Error add_decoders(const Json& json, std::vector<std::unique_ptr<TokenDecoder>>* out);
Result<std::unique_ptr<Model>> make_model(const Json& json);

std::unique_ptr<PreTokenizer> make_split(Regex regex);  // each match is a piece of its own

class Bpe final : public Model {
 public:
  struct Merge {
    uint32_t rank, id;
  };
  std::unordered_map<uint64_t, Merge> merges;  // by two tokens
  // Without `merges`: two tokens become the one of both their texts, the lowest of `ranks` first; tokens with
  // the rank kNever are not made.
  static constexpr uint32_t kNever = 0xFFFFFFFF;
  std::vector<uint32_t> ranks;
  std::string prefix, suffix;  // of the characters of a piece behind its first, and of its last
  int64_t unknown = -1;
  bool fuse_unknown = false, byte_fallback = false, ignore_merges = false;
  bool of_bytes = false;  // pieces are divided into bytes

  Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const override;

 private:
  struct Symbol;
  bool find(const Symbol& a, const Symbol& b, Merge* out) const;
  Error divide(const Text& piece, std::vector<Symbol>* symbols) const;
};

class Unigram final : public Model {
 public:
  std::vector<double> scores;  // by token
  int64_t unknown = -1;
  bool byte_fallback = false;
  bool single_precision = false;  // SentencePiece's own sums

  /// Once `scores` are there. Tokens without a text are left out.
  void add(const Text& piece, uint32_t id) { trie_.add(piece, static_cast<int32_t>(id)); }
  void set_unknown_score(double score) { unknown_score_ = score; }
  struct Part {
    size_t begin, end;
    int32_t id;  // -1: unknown characters
  };
  /// The likeliest tokens of a piece.
  std::vector<Part> divide(const Text& piece) const;
  Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const override;

 private:
  Trie trie_;
  double unknown_score_ = 0;
};

/// A Unigram model whose pieces have the numbers of another vocabulary, json["vocab"]. Error:
/// InvalidExternalData.
Result<std::unique_ptr<Model>> make_renumbered(std::unique_ptr<Unigram> model, const Json& json);

}  // namespace torchette::extension::llm
