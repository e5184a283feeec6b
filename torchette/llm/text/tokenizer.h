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

/// Constant once it is loaded: threads may share one.
class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  /// Errors: AccessFailed, those of load_bytes().
  Error load(const std::string& path);
  /// Errors: InvalidExternalData (not such a file, or damaged), NotSupported (it has an unknown part).
  virtual Error load_bytes(std::string_view bytes) = 0;
  bool is_loaded() const { return pipeline_ != nullptr; }

  /// The tokens of a text, with `bos` tokens for its beginning before them and `eos` for its end behind.
  /// Errors: InvalidArgument (not UTF-8, or no bos or eos is known), InvalidState (not loaded),
  /// OutOfResources (a pattern takes too long).
  Result<std::vector<uint64_t>> encode(const std::string& input, int8_t bos = 0, int8_t eos = 0) const;
  /// With the special tokens that the file adds to a text, such as [CLS]. Errors: as above.
  Result<std::vector<uint64_t>> encode_with_special_tokens(const std::string& input) const;
  /// Error: OutOfResources (no such token), InvalidState.
  Result<std::string> decode(const std::vector<uint64_t>& tokens, bool skip_special_tokens = true) const;
  /// The text that `token` adds to a text that ends with `previous`. Incomplete characters become U+FFFD; for
  /// a stream of tokens see DecodeStream.
  Result<std::string> decode(uint64_t previous, uint64_t token, bool skip_special_tokens = false) const;

  /// Token IDs are smaller.
  size_t vocab_size() const;
  bool has(uint64_t token) const;
  uint64_t bos_tok() const { return bos_; }
  uint64_t eos_tok() const { return eos_; }
  /// Where files do not say which tokens begin and end a text.
  void set_bos_tok(uint64_t token) { bos_ = token; }
  void set_eos_tok(uint64_t token) { eos_ = token; }
  /// The token of exactly this text. Error: NotFound.
  Result<uint64_t> piece_to_id(std::string_view piece) const;
  /// The text of a token as the file has it. Error: OutOfResources.
  Result<std::string> id_to_piece(uint64_t token) const;
  /// The bytes that a token adds inside a text, which may be a part of a character; none for special tokens
  /// and IDs without a token.
  std::string bytes_of(uint64_t token) const;
  /// Whether it controls the model and is not text.
  bool is_special(uint64_t token) const;

 protected:
  static constexpr uint64_t kNone = UINT64_MAX;
  void hold(std::shared_ptr<const Pipeline> pipeline);
  Error check(int count, uint64_t token, const char* name) const;

  std::shared_ptr<const Pipeline> pipeline_;
  uint64_t bos_ = kNone;
  uint64_t eos_ = kNone;
};

/// Of tokenizer.json. A model of the type "File" has a file of another format as `bytes`, in base64; see
/// docs/llm-media.md.
class HFTokenizer final : public Tokenizer {
 public:
  Error load_bytes(std::string_view bytes) override;
};

/// Of tiktoken: lines of a token in base64 and its rank.
class Tiktoken final : public Tokenizer {
 public:
  using SpecialTokens = std::vector<std::pair<std::string, uint64_t>>;
  /// Llama 3's.
  static const char* default_pattern();

  /// `pattern` divides texts, in Rust's dialect. The first and the second special token begin and end a text.
  /// Without `special_tokens`, a file of 128,000 tokens has those of Llama 3.
  explicit Tiktoken(std::string pattern = default_pattern(), SpecialTokens special_tokens = {});
  Error load_bytes(std::string_view bytes) override;

 private:
  std::string pattern_;
  SpecialTokens special_tokens_;
};

/// Of SentencePiece: BPE and unigram models (.model).
class SPTokenizer final : public Tokenizer {
 public:
  Error load_bytes(std::string_view bytes) override;
};

/// Tokens to text as they come: whole characters only.
class DecodeStream {
 public:
  explicit DecodeStream(const Tokenizer& tokenizer, bool skip_special_tokens = true)
      : tokenizer_(tokenizer), skip_(skip_special_tokens) {}

  /// The text that is certain with this token; often empty. Errors: those of Tokenizer::decode().
  Result<std::string> push(uint64_t token);
  /// The rest: characters that never became whole, as U+FFFD.
  Result<std::string> flush();

 private:
  static constexpr size_t kMostOpen = 32;  // tokens that are kept for a character that may never be whole

  const Tokenizer& tokenizer_;
  bool skip_;
  std::vector<uint64_t> tokens_;  // those that the next piece depends on
  size_t num_given_ = 0;          // of them, those whose text was given
  size_t given_ = 0;              // and its bytes
};

/// The tokenizer of a file, by what it contains: of tokenizer.json, tiktoken or SentencePiece. Errors: those
/// of Tokenizer::load().
Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view bytes);
/// ExecuTorch's name; null where make_tokenizer() of the file's bytes fails.
std::unique_ptr<Tokenizer> load_tokenizer(const std::string& tokenizer_path);

}  // namespace torchette::extension::llm
