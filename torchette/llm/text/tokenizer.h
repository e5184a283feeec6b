// SPDX-License-Identifier: BSD-3-Clause
// Tokenizer: text to token IDs and back, from the files of models: tokenizer.json of Hugging Face
// (HFTokenizer), files of tiktoken (Tiktoken) and SentencePiece (SPTokenizer). The names are those of
// ExecuTorch's library. Files are untrusted: an unknown part of a file is an error that names it.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/runtime/result.h"

namespace torchette::extension::llm {

struct Pipeline;

/// A loaded tokenizer is constant, so threads may share it.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Errors: AccessFailed, those of load_bytes().
  Error load(const std::string& path);
  /// Errors: InvalidExternalData (another format, or damaged), NotSupported (an unknown part).
  virtual Error load_bytes(std::string_view bytes) = 0;
  bool is_loaded() const { return pipeline_ != nullptr; }

  /// Returns the tokens of a text, after `bos` copies of the BOS token and before `eos` copies of the EOS
  /// token. Errors: InvalidArgument (not UTF-8, or the tokenizer has no such token), InvalidState (not
  /// loaded), OutOfResources (a pattern needs too many steps).
  Result<std::vector<uint64_t>> encode(const std::string& input, int8_t bos = 0, int8_t eos = 0) const;
  /// Like encode(), with the special tokens that the file adds to a text, such as [CLS]. Errors: as above.
  Result<std::vector<uint64_t>> encode_with_special_tokens(const std::string& input) const;
  /// Returns the text of tokens. Errors: OutOfResources (an id is not a token), InvalidState (not loaded).
  Result<std::string> decode(const std::vector<uint64_t>& tokens, bool skip_special_tokens = true) const;
  /// Returns the text that `token` adds to a text that ends with `previous`. Incomplete characters become
  /// U+FFFD; for a stream of tokens see DecodeStream.
  Result<std::string> decode(uint64_t previous, uint64_t token, bool skip_special_tokens = false) const;

  /// Returns an upper bound of the token ids: every id is smaller.
  size_t vocab_size() const;
  bool has(uint64_t token) const;
  uint64_t bos_tok() const { return bos_; }
  uint64_t eos_tok() const { return eos_; }
  /// Set the tokens that begin and end a text, for files that do not define them.
  void set_bos_tok(uint64_t token) { bos_ = token; }
  void set_eos_tok(uint64_t token) { eos_ = token; }
  /// Returns the token with exactly this text. Error: NotFound.
  Result<uint64_t> piece_to_id(std::string_view piece) const;
  /// Returns the string of a token in the file. Error: OutOfResources (not a token).
  Result<std::string> id_to_piece(uint64_t token) const;
  /// Returns the bytes that a token adds within a text; they may be a part of a character. Returns no bytes
  /// for special tokens and ids without a token.
  std::string bytes_of(uint64_t token) const;
  /// Whether a token controls the model and is not text.
  bool is_special(uint64_t token) const;

 protected:
  static constexpr uint64_t kNone = UINT64_MAX;
  void set_pipeline(std::shared_ptr<const Pipeline> pipeline);
  Error check(int count, uint64_t token, const char* name) const;

  std::shared_ptr<const Pipeline> pipeline_;
  uint64_t bos_ = kNone;
  uint64_t eos_ = kNone;
};

/// Reads tokenizer.json. A model of the type "File" contains a file of another format in base64, as `bytes`;
/// see docs/llm-media.md.
class HFTokenizer final : public Tokenizer {
 public:
  Error load_bytes(std::string_view bytes) override;
};

/// Reads files of tiktoken. Each line contains a token in base64 and its rank.
class Tiktoken final : public Tokenizer {
 public:
  using SpecialTokens = std::vector<std::pair<std::string, uint64_t>>;
  /// Returns the pattern of Llama 3.
  static const char* default_pattern();

  /// `pattern` divides texts, in Rust's dialect. The first and the second special token begin and end a text.
  /// Without `special_tokens`, a file of 128,000 tokens has those of Llama 3.
  explicit Tiktoken(std::string pattern = default_pattern(), SpecialTokens special_tokens = {});
  Error load_bytes(std::string_view bytes) override;

 private:
  std::string pattern_;
  SpecialTokens special_tokens_;
};

/// Reads .model files of SentencePiece with a BPE or unigram model.
class SPTokenizer final : public Tokenizer {
 public:
  Error load_bytes(std::string_view bytes) override;
};

/// Converts a stream of tokens to text in complete characters.
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(tokenizer), skip_(skip_special_tokens) {}

  /// Adds a token and returns the text that later tokens cannot change; often empty. Errors: those of
  /// Tokenizer::decode().
  Result<std::string> push(uint64_t token);
  /// Ends the stream and returns the text that is left. An incomplete character becomes U+FFFD.
  Result<std::string> flush();

 private:
  static constexpr size_t kMaxIncompleteTokens = 32;  // maximum number of tokens of an incomplete character

  const Tokenizer& tokenizer_;
  bool skip_;
  std::vector<uint64_t> tokens_;   // tokens that the next text depends on
  size_t num_decoded_tokens_ = 0;  // how many of tokens_ have returned their text
  size_t num_decoded_bytes_ = 0;   // size of that text in bytes
};

/// Returns the tokenizer of a file. The contents decide whether it is a tokenizer.json, a tiktoken or a
/// SentencePiece file. Errors: those of Tokenizer::load().
Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view bytes);
/// Like make_tokenizer(), with ExecuTorch's name; returns null on an error.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& tokenizer_path);

}  // namespace torchette::extension::llm
