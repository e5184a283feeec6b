// SPDX-License-Identifier: BSD-3-Clause
// The code that all tokenizers share: runs a pipeline on a text, and converts tokens to text.
#include "torchette/llm/text/tokenizer.h"

#include <algorithm>

#include "torchette/extension/file_data_loader.h"
#include "torchette/llm/text/pipeline.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

Error Pipeline::add(AddedToken token, bool normalized) {
  const std::string piece = to_utf8(token.content);
  TORCHETTE_CHECK(token.id < 2 * model->vocabulary.size() + (1u << 20), InvalidExternalData,
                  "the added token %s has the id %llu, which is out of range", piece.c_str(),
                  static_cast<unsigned long long>(token.id));
  added_ids[piece] = token.id;
  if (token.special) {
    if (special.size() <= token.id) special.resize(token.id + 1);
    special[token.id] = true;
  }
  Text key = token.content;
  if (normalized) TORCHETTE_TRY(normalize(&key));
  added_pieces[token.id] = to_utf8(key);  // as the package `tokenizers` decodes it
  (normalized ? normalized_added : raw_added).add(key, static_cast<int32_t>(added.size()));
  added.push_back(std::move(token));
  return Error::Ok;
}

Error Pipeline::normalize(Text* text) const {
  for (const auto& normalizer : normalizers) TORCHETTE_TRY(normalizer->normalize(text));
  return Error::Ok;
}

namespace {

struct Cut {
  Text text;
  int64_t token;  // -1 for text that is not an added token
  bool first;
};

/// Divides a text into added tokens and the text between them.
std::vector<Cut> cut(const Pipeline& pipeline, const Trie& trie, const Text& text, bool first) {
  std::vector<Cut> out;
  size_t behind = 0;
  const auto put = [&](size_t begin, size_t end, int64_t token) {
    out.push_back({text.substr(begin, end - begin), token, first && begin == 0});
  };
  for (size_t at = 0; at < text.size();) {
    size_t size = 0;
    const int32_t i = trie.longest(text, at, &size);
    if (i < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = pipeline.added[static_cast<size_t>(i)];
    size_t begin = at, end = at + size;
    at = end;
    if (token.single_word &&
        ((begin > 0 && is_word(text[begin - 1])) || (end < text.size() && is_word(text[end]))))
      continue;
    while (token.lstrip && begin > behind && is_space(text[begin - 1])) --begin;
    while (token.rstrip && end < text.size() && is_space(text[end])) ++end;
    begin = std::max(begin, behind);
    if (begin > behind) put(behind, begin, -1);
    put(begin, end, static_cast<int64_t>(token.id));
    behind = end;
    at = std::max(at, behind);
  }
  if (behind < text.size()) put(behind, text.size(), -1);
  return out;
}

}  // namespace

Error Pipeline::encode(const Text& text, std::vector<uint64_t>* tokens) const {
  for (Cut& outer : cut(*this, raw_added, text, true)) {
    if (outer.token >= 0) {
      tokens->push_back(static_cast<uint64_t>(outer.token));
      continue;
    }
    TORCHETTE_TRY(normalize(&outer.text));
    for (Cut& inner : cut(*this, normalized_added, outer.text, outer.first)) {
      if (inner.token >= 0) {
        tokens->push_back(static_cast<uint64_t>(inner.token));
        continue;
      }
      std::vector<Piece> pieces;
      pieces.push_back({std::move(inner.text), inner.first});
      for (const auto& pre_tokenizer : pre_tokenizers) TORCHETTE_TRY(pre_tokenizer->split(&pieces));
      for (const Piece& piece : pieces)
        if (!piece.text.empty()) TORCHETTE_TRY(model->tokenize(piece.text, tokens));
    }
  }
  return Error::Ok;
}

Error Tokenizer::load(const std::string& path) {
  Result<FileDataLoader> file = FileDataLoader::from(path.c_str());
  if (!file.ok()) return file.error();
  const Result<size_t> size = file->size();
  if (!size.ok()) return size.error();
  const Result<FreeableBuffer> bytes = file->load(0, *size, DataLoader::SegmentInfo());
  if (!bytes.ok()) return bytes.error();
  return load_bytes({static_cast<const char*>(bytes->data()), *size});
}

void Tokenizer::set_pipeline(std::shared_ptr<const Pipeline> pipeline) {
  pipeline_ = std::move(pipeline);
  bos_ = pipeline_->bos;
  eos_ = pipeline_->eos;
}

Error Tokenizer::check(int count, uint64_t token, const char* name) const {
  TORCHETTE_CHECK(is_loaded(), InvalidState, "the tokenizer is not loaded");
  TORCHETTE_CHECK(count == 0 || (count > 0 && token != kNone), InvalidArgument,
                  "%d %s tokens are requested, but the tokenizer has no such token", count, name);
  return Error::Ok;
}

Result<std::vector<uint64_t>> Tokenizer::encode(const std::string& input, int8_t bos, int8_t eos) const {
  TORCHETTE_TRY(check(bos, bos_, "bos"));
  TORCHETTE_TRY(check(eos, eos_, "eos"));
  const Result<Text> text = to_text(input);
  if (!text.ok()) return text.error();
  std::vector<uint64_t> tokens(static_cast<size_t>(bos), bos_);
  TORCHETTE_TRY(pipeline_->encode(*text, &tokens));
  tokens.insert(tokens.end(), static_cast<size_t>(eos), eos_);
  return tokens;
}

Result<std::vector<uint64_t>> Tokenizer::encode_with_special_tokens(const std::string& input) const {
  TORCHETTE_TRY(check(0, 0, ""));
  const Result<Text> text = to_text(input);
  if (!text.ok()) return text.error();
  std::vector<uint64_t> tokens = pipeline_->before;
  TORCHETTE_TRY(pipeline_->encode(*text, &tokens));
  tokens.insert(tokens.end(), pipeline_->behind.begin(), pipeline_->behind.end());
  return tokens;
}

Result<std::string> Tokenizer::id_to_piece(uint64_t token) const {
  TORCHETTE_TRY(check(0, 0, ""));
  const auto added = pipeline_->added_pieces.find(token);
  if (added != pipeline_->added_pieces.end()) return added->second;
  TORCHETTE_CHECK(pipeline_->model->vocabulary.has(token), OutOfResources, "%llu is not a token",
                  static_cast<unsigned long long>(token));
  return pipeline_->model->vocabulary.piece(token);
}

Result<uint64_t> Tokenizer::piece_to_id(std::string_view piece) const {
  TORCHETTE_TRY(check(0, 0, ""));
  const std::string key(piece);
  const auto added = pipeline_->added_ids.find(key);
  if (added != pipeline_->added_ids.end()) return added->second;
  const int64_t id = pipeline_->model->vocabulary.find(key);
  if (id < 0) return Error::NotFound;
  return static_cast<uint64_t>(id);
}

bool Tokenizer::has(uint64_t token) const {
  return is_loaded() &&
         (pipeline_->added_pieces.count(token) != 0 || pipeline_->model->vocabulary.has(token));
}

bool Tokenizer::is_special(uint64_t token) const {
  return is_loaded() && token < pipeline_->special.size() && pipeline_->special[token];
}

size_t Tokenizer::vocab_size() const {
  if (!is_loaded()) return 0;
  size_t size = pipeline_->model->vocabulary.size();
  for (const auto& [id, piece] : pipeline_->added_pieces) size = std::max<size_t>(size, id + 1);
  return size;
}

Result<std::string> Tokenizer::decode(const std::vector<uint64_t>& tokens, bool skip_special_tokens) const {
  std::vector<std::string> parts;
  for (uint64_t token : tokens) {
    Result<std::string> piece = id_to_piece(token);
    if (!piece.ok()) return piece.error();
    if (!skip_special_tokens || !is_special(token)) parts.push_back(std::move(*piece));
  }
  TORCHETTE_TRY(check(0, 0, ""));
  for (const auto& decoder : pipeline_->decoders) TORCHETTE_TRY(decoder->decode(&parts));
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (i > 0 && pipeline_->joins_with_spaces) text += ' ';
    text += parts[i];
  }
  return text;
}

std::string Tokenizer::bytes_of(uint64_t token) const {
  if (!has(token) || is_special(token)) return {};
  Result<std::string> piece = id_to_piece(token);
  if (!piece.ok()) return {};
  if (pipeline_->added_pieces.count(token) != 0) return std::move(*piece);
  for (const auto& decoder : pipeline_->decoders) *piece = decoder->bytes(std::move(*piece));
  return pipeline_->joins_with_spaces ? " " + *piece : std::move(*piece);
}

Result<std::string> Tokenizer::decode(uint64_t previous, uint64_t token, bool skip_special_tokens) const {
  const Result<std::string> before = decode(std::vector<uint64_t>{previous}, skip_special_tokens);
  if (!before.ok()) return before.error();
  const Result<std::string> both = decode(std::vector<uint64_t>{previous, token}, skip_special_tokens);
  if (!both.ok()) return both.error();
  return both->size() >= before->size() ? both->substr(before->size()) : std::string();
}

namespace {
/// Whether a text ends with a character that further tokens may complete.
bool is_open(const std::string& text) {
  return text.size() >= 3 && text.compare(text.size() - 3, 3, "\xEF\xBF\xBD") == 0;
}
}  // namespace

Result<std::string> DecodeStream::push(uint64_t token) {
  if (skip_ && tokenizer_.is_special(token)) return std::string();
  tokens_.push_back(token);
  Result<std::string> text = tokenizer_.decode(tokens_, skip_);
  if (!text.ok()) {
    tokens_.pop_back();
    return text.error();
  }
  if (text->size() <= num_decoded_bytes_ ||
      (is_open(*text) && tokens_.size() - num_decoded_tokens_ < kMaxIncompleteTokens))
    return std::string();
  std::string piece = text->substr(num_decoded_bytes_);
  // later text may depend on the tokens of this piece, which are complete characters, but not on earlier
  // tokens
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(num_decoded_tokens_));
  const Result<std::string> last = tokenizer_.decode(tokens_, skip_);
  if (!last.ok()) return last.error();
  num_decoded_bytes_ = last->size();
  num_decoded_tokens_ = tokens_.size();
  return piece;
}

Result<std::string> DecodeStream::flush() {
  const Result<std::string> text = tokenizer_.decode(tokens_, skip_);
  if (!text.ok()) return text.error();
  std::string rest = text->size() > num_decoded_bytes_ ? text->substr(num_decoded_bytes_) : std::string();
  tokens_.clear();
  num_decoded_bytes_ = num_decoded_tokens_ = 0;
  return rest;
}

std::unique_ptr<Tokenizer> load_tokenizer(const std::string& tokenizer_path) {
  Result<FileDataLoader> file = FileDataLoader::from(tokenizer_path.c_str());
  if (!file.ok()) return nullptr;
  const Result<size_t> size = file->size();
  if (!size.ok()) return nullptr;
  const Result<FreeableBuffer> bytes = file->load(0, *size, DataLoader::SegmentInfo());
  if (!bytes.ok()) return nullptr;
  Result<std::unique_ptr<Tokenizer>> made = make_tokenizer({static_cast<const char*>(bytes->data()), *size});
  return made.ok() ? std::move(*made) : nullptr;
}

Result<std::unique_ptr<Tokenizer>> make_tokenizer(std::string_view bytes) {
  std::unique_ptr<Tokenizer> tokenizer;
  const size_t first = bytes.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && bytes[first] == '{')
    tokenizer = std::make_unique<HFTokenizer>();
  else if (is_sentencepiece(bytes))
    tokenizer = std::make_unique<SPTokenizer>();
  else
    tokenizer = std::make_unique<Tiktoken>();
  TORCHETTE_TRY(tokenizer->load_bytes(bytes));
  return tokenizer;
}

}  // namespace torchette::extension::llm
