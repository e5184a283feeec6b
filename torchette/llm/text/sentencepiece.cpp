// SPDX-License-Identifier: BSD-3-Clause
// Reads the .model files of SentencePiece, which are protocol buffers.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <optional>

#include "torchette/llm/text/pipeline.h"
#include "torchette/llm/text/tokenizer.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr char32_t kMark = 0x2581;
constexpr std::string_view kMarkUtf8 = "\xE2\x96\x81";

/// The fields of a message, in order.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}

  uint64_t number = 0;    // of the field
  uint64_t value = 0;     // of a varint or a fixed 32-bit field
  std::string_view text;  // of bytes, a string or a message

  bool failed() const { return failed_; }
  /// Reads the next field. Returns false at the end and on an error.
  bool next() {
    uint64_t key = 0;
    if (at_ == bytes_.size() || !varint(&key)) return false;
    number = key >> 3;
    value = 0;
    text = {};
    uint64_t size = 0;
    switch (key & 7) {
      case 0:
        return varint(&value);
      case 1:
        return take(8);
      case 2:
        return varint(&size) && take(size);
      case 5:
        if (!take(4)) return false;
        for (size_t i = 0; i < 4; ++i) value |= uint64_t{static_cast<uint8_t>(text[i])} << 8 * i;
        return true;
      default:
        return fail();
    }
  }
  float number_of_float() const {
    const auto bits = static_cast<uint32_t>(value);
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
  }

 private:
  bool fail() {
    failed_ = true;
    return false;
  }
  bool take(uint64_t size) {
    if (size > bytes_.size() - at_) return fail();
    text = bytes_.substr(at_, size);
    at_ += size;
    return true;
  }
  bool varint(uint64_t* out) {
    *out = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
      if (at_ == bytes_.size()) return fail();
      const auto byte = static_cast<uint8_t>(bytes_[at_++]);
      *out |= uint64_t{byte & 0x7Fu} << shift;
      if (byte < 0x80) return true;
    }
    return fail();
  }

  std::string_view bytes_;
  size_t at_ = 0;
  bool failed_ = false;
};

enum ModelType : uint64_t { kUnigram = 1, kBpe = 2 };
enum Type : uint64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

struct Entry {
  std::string piece;
  float score = 0;
  uint64_t type = kNormal;
};

struct Spec {
  std::vector<Entry> entries;
  uint64_t model_type = kUnigram;
  bool byte_fallback = false, mark_behind = false;
  std::string bos = "<s>", eos = "</s>", unknown_surface = " \xE2\x81\x87 ";
  std::string charsmap;
  bool add_prefix = true, remove_extra = true, escape = true;
};

Error damaged() {
  TORCHETTE_LOG(Error, "the file is not a SentencePiece model, or is damaged");
  return Error::InvalidExternalData;
}

Error read(std::string_view bytes, Spec* out) {
  Fields fields(bytes);
  while (fields.next()) {
    Fields inner(fields.text);
    if (fields.number == 1) {
      Entry entry;
      while (inner.next()) {
        if (inner.number == 1) entry.piece = inner.text;
        if (inner.number == 2) entry.score = inner.number_of_float();
        if (inner.number == 3) entry.type = inner.value;
      }
      out->entries.push_back(std::move(entry));
    } else if (fields.number == 2) {  // TrainerSpec
      while (inner.next()) {
        if (inner.number == 3) out->model_type = inner.value;
        if (inner.number == 24) out->mark_behind = inner.value != 0;
        if (inner.number == 35) out->byte_fallback = inner.value != 0;
        if (inner.number == 44) out->unknown_surface = inner.text;
        if (inner.number == 46) out->bos = inner.text;
        if (inner.number == 47) out->eos = inner.text;
      }
    } else if (fields.number == 3) {  // NormalizerSpec
      while (inner.next()) {
        if (inner.number == 2) out->charsmap = inner.text;
        if (inner.number == 3) out->add_prefix = inner.value != 0;
        if (inner.number == 4) out->remove_extra = inner.value != 0;
        if (inner.number == 5) out->escape = inner.value != 0;
      }
    }
    if (inner.failed()) return damaged();
  }
  if (fields.failed() || out->entries.empty()) return damaged();
  TORCHETTE_CHECK(out->model_type == kUnigram || out->model_type == kBpe, NotSupported,
                  "the SentencePiece model has type %llu; supported: unigram, BPE",
                  static_cast<unsigned long long>(out->model_type));
  TORCHETTE_CHECK(!out->mark_behind, NotSupported, "a SentencePiece model with whitespace suffixes");
  return Error::Ok;
}

struct SentencePieceNormalizer final : Normalizer {
  Error normalize(Text* text) const override {
    const std::string input = to_utf8(*text);
    std::string out;
    bool after_space = remove_extra, started = false;
    for (size_t at = 0, i = 0; at < input.size();) {  // the same position in bytes and in characters
      bool cut;
      size_t wrong, size = 0;
      std::string_view part;
      if (user_defined.longest(*text, i, &size) >= 0) {
        size = to_utf8(text->data() + i, size).size();
        part = std::string_view(input).substr(at, size);
      } else {
        size = map ? map->find(std::string_view(input).substr(at), true, &part) : 0;
        if (size == 0) {
          size = character_size(input, at, &cut, &wrong);
          part = std::string_view(input).substr(at, size);
        }
      }
      for (size_t k = 0; k < size; ++k) i += (static_cast<uint8_t>(input[at + k]) & 0xC0) != 0x80;
      at += size;
      if (!started && remove_extra && part == " ") continue;
      if (!started && add_prefix) out += ' ';
      started = true;
      while (after_space && !part.empty() && part[0] == ' ') part.remove_prefix(1);
      out += part;
      if (!part.empty()) after_space = remove_extra && part.back() == ' ';
    }
    while (remove_extra && !out.empty() && out.back() == ' ') out.pop_back();
    Result<Text> made = to_text(out);
    if (!made.ok()) return made.error();
    *text = std::move(*made);
    if (escape) std::replace(text->begin(), text->end(), U' ', kMark);
    return Error::Ok;
  }
  std::optional<CharsMap> map;
  Trie user_defined;  // tokens that are not normalized
  bool add_prefix, remove_extra, escape;
};

struct SentencePieceDecoder final : TokenDecoder {
  Error decode(std::vector<std::string>* tokens) const override {
    std::string out;
    bool first = true;
    for (const std::string& token : *tokens) {
      const auto byte = byte_tokens.find(token);
      if (byte != byte_tokens.end()) {
        out += static_cast<char>(byte->second);
        first = false;
        continue;
      }
      std::string_view rest = token == unknown ? std::string_view(surface) : std::string_view(token);
      if (first && strips && rest.substr(0, kMarkUtf8.size()) == kMarkUtf8)
        rest.remove_prefix(kMarkUtf8.size());
      out += spaced(rest);
      first = false;
    }
    *tokens = {to_valid_utf8(out)};
    return Error::Ok;
  }
  std::string bytes(std::string token) const override {
    const auto byte = byte_tokens.find(token);
    if (byte != byte_tokens.end()) return std::string(1, static_cast<char>(byte->second));
    return spaced(token == unknown ? std::string_view(surface) : std::string_view(token));
  }
  static std::string spaced(std::string_view piece) {
    std::string out;
    for (size_t at = 0; at < piece.size();) {
      const bool mark = piece.substr(at, kMarkUtf8.size()) == kMarkUtf8;
      out += mark ? ' ' : piece[at];
      at += mark ? kMarkUtf8.size() : 1;
    }
    return out;
  }
  std::unordered_map<std::string, uint8_t> byte_tokens;
  std::string unknown, surface;
  bool strips = true;
};

/// Adds all tokens to the vocabulary of a model. Sets `*unknown` to the token of unknown text.
Error add_vocabulary(const Spec& spec, Model* model, int64_t* unknown) {
  *unknown = -1;
  for (size_t i = 0; i < spec.entries.size(); ++i) {
    TORCHETTE_TRY(model->vocabulary.add(spec.entries[i].piece, static_cast<int64_t>(i)));
    if (spec.entries[i].type == kUnknown) *unknown = static_cast<int64_t>(i);
  }
  TORCHETTE_CHECK(*unknown >= 0, InvalidExternalData, "the SentencePiece model has no unknown token");
  return Error::Ok;
}

/// The different scores of normal tokens, in descending order. The index of a score is its rank.
std::vector<float> ranked_scores(const Spec& spec) {
  std::vector<float> scores;
  for (const Entry& entry : spec.entries)
    if (entry.type == kNormal) scores.push_back(entry.score);
  std::sort(scores.begin(), scores.end(), std::greater<float>());
  scores.erase(std::unique(scores.begin(), scores.end()), scores.end());
  return scores;
}

Result<std::unique_ptr<Model>> make_bpe(const Spec& spec) {
  auto bpe = std::make_unique<Bpe>();
  TORCHETTE_TRY(add_vocabulary(spec, bpe.get(), &bpe->unknown));
  const std::vector<float> scores = ranked_scores(spec);
  for (const Entry& entry : spec.entries) {
    const auto at = std::lower_bound(scores.begin(), scores.end(), entry.score, std::greater<float>());
    bpe->ranks.push_back(entry.type == kNormal ? static_cast<uint32_t>(at - scores.begin()) : Bpe::kNever);
  }
  bpe->byte_fallback = spec.byte_fallback;
  bpe->fuse_unknown = true;
  return std::unique_ptr<Model>(std::move(bpe));
}

Result<std::unique_ptr<Unigram>> make_unigram(const Spec& spec) {
  auto unigram = std::make_unique<Unigram>();
  TORCHETTE_TRY(add_vocabulary(spec, unigram.get(), &unigram->unknown));
  float min_score = std::numeric_limits<float>::infinity(), max_score = -min_score;
  for (const Entry& entry : spec.entries) {
    if (entry.type != kNormal) continue;
    min_score = std::min(min_score, entry.score);
    max_score = std::max(max_score, entry.score);
  }
  for (size_t i = 0; i < spec.entries.size(); ++i) {
    const Entry& entry = spec.entries[i];
    // The sum of scores continues across a user-defined token. Its score is that of the best possible tokens
    // of its size.
    const bool user_defined = entry.type == kUserDefined;
    unigram->scores.push_back(user_defined ? static_cast<float>(entry.piece.size()) * max_score - 0.1f
                                           : entry.score);
    if (entry.type != kNormal && !user_defined) continue;
    const Result<Text> text = to_text(entry.piece);
    if (!text.ok()) return text.error();
    unigram->add(*text, static_cast<uint32_t>(i));
  }
  unigram->set_unknown_score(min_score - 10);
  unigram->single_precision = true;
  unigram->byte_fallback = spec.byte_fallback;
  return unigram;
}

/// `numbers`: see read_sentencepiece().
Result<std::unique_ptr<Model>> make_model(const Spec& spec, const Json& numbers) {
  if (spec.model_type == kBpe) {
    TORCHETTE_CHECK(numbers.is(Json::Kind::Null), NotSupported,
                    "a SentencePiece model of type BPE with a vocabulary file; only unigram models have one");
    return make_bpe(spec);
  }
  Result<std::unique_ptr<Unigram>> unigram = make_unigram(spec);
  if (!unigram.ok()) return unigram.error();
  if (numbers.is(Json::Kind::Null)) return std::unique_ptr<Model>(std::move(*unigram));
  return make_remapped(std::move(*unigram), numbers);
}

Result<std::unique_ptr<SentencePieceNormalizer>> make_normalizer(Spec* spec) {
  auto normalizer = std::make_unique<SentencePieceNormalizer>();
  if (!spec->charsmap.empty()) {
    Result<CharsMap> map = CharsMap::from(std::move(spec->charsmap));
    if (!map.ok()) return map.error();
    normalizer->map.emplace(std::move(*map));
  }
  normalizer->add_prefix = spec->add_prefix;
  normalizer->remove_extra = spec->remove_extra;
  normalizer->escape = spec->escape;
  return normalizer;
}

std::unique_ptr<TokenDecoder> make_decoder(const Spec& spec) {
  auto decoder = std::make_unique<SentencePieceDecoder>();
  for (const Entry& entry : spec.entries)
    if (entry.type == kUnknown) decoder->unknown = entry.piece;
  for (int byte = 0; byte < 256; ++byte)
    decoder->byte_tokens[byte_token(static_cast<uint8_t>(byte))] = static_cast<uint8_t>(byte);
  decoder->surface = spec.unknown_surface;
  decoder->strips = spec.add_prefix || spec.remove_extra;
  return decoder;
}

/// Adds user-defined tokens, which are not normalized. Adds control tokens, which text cannot produce, if the
/// ids are those of the file.
Error add_special_tokens(const Spec& spec, bool has_own_numbers, Pipeline* pipeline,
                         SentencePieceNormalizer* normalizer) {
  for (size_t i = 0; i < spec.entries.size(); ++i) {
    const Entry& entry = spec.entries[i];
    if (entry.type == kControl && has_own_numbers) {
      if (pipeline->special.size() <= i) pipeline->special.resize(i + 1);
      pipeline->special[i] = true;
    } else if (entry.type == kUserDefined) {
      Result<Text> text = to_text(entry.piece);
      if (!text.ok()) return text.error();
      AddedToken token;
      token.content = std::move(*text);
      token.id = i;
      normalizer->user_defined.add(token.content, 0);
      if (spec.model_type != kBpe) continue;  // a unigram model finds it among its tokens
      pipeline->normalized_added.add(token.content, static_cast<int32_t>(pipeline->added.size()));
      pipeline->added.push_back(std::move(token));
    }
  }
  return Error::Ok;
}

}  // namespace

bool is_sentencepiece(std::string_view file) {
  return !file.empty() && file[0] == '\n';  // the tag of the first piece
}

Error read_sentencepiece(std::string_view file, const Json& numbers, Pipeline* out) {
  Spec spec;
  TORCHETTE_TRY(read(file, &spec));
  for (const Entry& entry : spec.entries)
    if (const Result<Text> text = to_text(entry.piece); !text.ok()) return text.error();
  Result<std::unique_ptr<Model>> model = make_model(spec, numbers);
  if (!model.ok()) return model.error();
  out->model = std::move(*model);
  out->decoders.push_back(make_decoder(spec));
  Result<std::unique_ptr<SentencePieceNormalizer>> normalizer = make_normalizer(&spec);
  if (!normalizer.ok()) return normalizer.error();
  TORCHETTE_TRY(add_special_tokens(spec, numbers.is(Json::Kind::Null), out, normalizer->get()));
  out->normalizers.push_back(std::move(*normalizer));
  const int64_t bos = out->model->vocabulary.find(spec.bos), eos = out->model->vocabulary.find(spec.eos);
  if (bos >= 0) out->bos = static_cast<uint64_t>(bos);
  if (eos >= 0) out->eos = static_cast<uint64_t>(eos);
  // as transformers does by default for models with BPE (Llama) and unigrams (T5)
  if (spec.model_type == kBpe && bos >= 0) out->before = {out->bos};
  if (spec.model_type == kUnigram && eos >= 0) out->behind = {out->eos};
  return Error::Ok;
}

Error SPTokenizer::load_bytes(std::string_view file) {
  auto made = std::make_shared<Pipeline>();
  TORCHETTE_TRY(read_sentencepiece(file, Json(), made.get()));
  set_pipeline(std::move(made));
  return Error::Ok;
}

}  // namespace torchette::extension::llm
