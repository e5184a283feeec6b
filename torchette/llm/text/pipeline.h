// SPDX-License-Identifier: BSD-3-Clause
// The parts of a tokenizer, in the order in which they run. Added tokens are cut out of the text. The text
// between them is normalized and divided into pieces. A model divides each piece into tokens. The readers of
// tokenizer files create the parts.
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

/// A prefix tree of strings, each with a value.
class Trie {
 public:
  void add(const Text& text, int32_t value);
  /// Returns the child of `node` for the character `c`, or 0 if there is none. The root is 0.
  uint32_t step(uint32_t node, char32_t c) const {
    const auto found = edges_.find(uint64_t{node} << 21 | c);
    return found == edges_.end() ? 0 : found->second;
  }
  /// Returns the value of the string that ends at `node`, or -1.
  int32_t value(uint32_t node) const { return values_[node]; }
  /// Finds the longest string at the position `at` of `text`. Returns its value and sets `*size`, or returns
  /// -1.
  int32_t longest(const Text& text, size_t at, size_t* size) const;

 private:
  std::unordered_map<uint64_t, uint32_t> edges_;
  std::vector<int32_t> values_ = {-1};
};

class Vocabulary {
 public:
  /// Error: InvalidExternalData (the id is too large).
  Error add(std::string piece, int64_t id);
  /// Returns the id of a piece, or -1.
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

/// A part of a text. `first` is true for the part at the beginning of the text.
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

/// Converts the strings of tokens in a tokenizer file to text.
struct TokenDecoder {
  virtual ~TokenDecoder() = default;
  virtual Error decode(std::vector<std::string>* tokens) const = 0;
  /// Returns the bytes that a token adds within a text.
  virtual std::string bytes(std::string token) const { return token; }
};

struct AddedToken {
  Text content;
  uint64_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false, special = false;
};

struct Pipeline {
  std::vector<AddedToken> added;
  std::vector<bool> special;  // by token id
  Trie raw_added;             // indices of `added` that are cut out before normalization
  Trie normalized_added;      // indices of `added` that are cut out after it
  std::unordered_map<uint64_t, std::string> added_pieces;  // by token id; take precedence over the model
  std::unordered_map<std::string, uint64_t> added_ids;
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  std::unique_ptr<Model> model;
  std::vector<uint64_t> before, behind;  // special tokens before and after a text
  static constexpr uint64_t kNone = UINT64_MAX;
  uint64_t bos = kNone, eos = kNone;  // the tokens that begin and end a text
  std::vector<std::unique_ptr<TokenDecoder>> decoders;
  bool joins_with_spaces = false;  // for a file without a decoder: spaces separate the tokens

  /// Adds a token. `normalizers` must be complete. Error: InvalidExternalData.
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
/// Divides the text into matches and the ranges between them, without empty ranges.
Error find_matches(const Regex& regex, const Text& text, std::vector<Range>* out);
/// Reads {"String": ...} or {"Regex": ...}. Errors: those of Regex::compile().
Result<Regex> make_pattern(const Json& json);
/// Replaces each match of `regex` by `content`. Errors: those of Regex::search().
Error replace(const Regex& regex, const Text& content, Text* text);

/// Byte-level tokenizers write each byte as a letter. byte_of_letter() returns -1 for other characters.
char32_t letter_of_byte(uint8_t byte);
int byte_of_letter(char32_t c);
std::string byte_token(uint8_t byte);  // <0x0A>

// --- Parts of tokenizer files
// ------------------------------------------------------------------------------------------
/// The replacement table of SentencePiece. Error: InvalidExternalData (the table is damaged).
class CharsMap {
 public:
  static Result<CharsMap> from(std::string bytes);
  /// Finds the shortest or the longest string at the beginning of `text` that the table replaces. Returns its
  /// size, or 0 if there is none.
  size_t find(std::string_view text, bool longest, std::string_view* replacement) const;

 private:
  std::string bytes_;
  size_t units_ = 0;
};
/// Decodes base64. Error: InvalidExternalData.
Result<std::string> from_base64(std::string_view text);

/// Reads a SentencePiece model. `numbers` is null, or an object with `vocab`, the ids of pieces, and
/// `unk_token`, the piece that replaces pieces without an id. Errors: InvalidExternalData (not such a model,
/// or damaged), NotSupported (an unknown type of model).
Error read_sentencepiece(std::string_view file, const Json& numbers, Pipeline* out);
/// Reads a tiktoken file, which has no special tokens. `pattern` divides texts. Errors: InvalidExternalData,
/// those of Regex::compile().
Error read_tiktoken(std::string_view file, const std::string& pattern, Pipeline* out);
/// Adds the special tokens of Llama 3 if the vocabulary has its size.
Error add_llama3_tokens(Pipeline* out);
/// Returns whether a file that is not a tokenizer.json is a SentencePiece model; otherwise it is a tiktoken
/// file.
bool is_sentencepiece(std::string_view file);

Error add_normalizers(const Json& json, std::vector<std::unique_ptr<Normalizer>>* out);
Error add_pre_tokenizers(const Json& json, std::vector<std::unique_ptr<PreTokenizer>>* out);
Error add_decoders(const Json& json, std::vector<std::unique_ptr<TokenDecoder>>* out);
Result<std::unique_ptr<Model>> make_model(const Json& json);

std::unique_ptr<PreTokenizer> make_split(Regex regex);  // each match is a separate piece

class Bpe final : public Model {
 public:
  struct Merge {
    uint32_t rank, id;
  };
  std::unordered_map<uint64_t, Merge> merges;  // key: two token ids of 32 bits each
  // If `merges` is empty, two tokens merge if their concatenation is a token. The merge with the lowest of
  // `ranks` is first. A token with the rank kNever is not the result of a merge.
  static constexpr uint32_t kNever = 0xFFFFFFFF;
  std::vector<uint32_t> ranks;
  std::string prefix, suffix;  // added to all characters of a piece but the first, and to the last
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
  bool single_precision = false;  // float32 sums of scores, as in SentencePiece

  /// Adds a token with its text. `scores` must have the score of `id`.
  void add(const Text& piece, uint32_t id) { trie_.add(piece, static_cast<int32_t>(id)); }
  void set_unknown_score(double score) { unknown_score_ = score; }
  struct Part {
    size_t begin, end;
    int32_t id;  // -1 for unknown characters
  };
  /// Returns the division of a piece with the highest score.
  std::vector<Part> divide(const Text& piece) const;
  Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const override;

 private:
  Trie trie_;
  double unknown_score_ = 0;
};

/// Returns a Unigram model with the ids of another vocabulary, json["vocab"]. Error: InvalidExternalData.
Result<std::unique_ptr<Model>> make_remapped(std::unique_ptr<Unigram> model, const Json& json);

}  // namespace torchette::extension::llm
