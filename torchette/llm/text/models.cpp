// SPDX-License-Identifier: BSD-3-Clause
// The models of tokenizers, which divide a piece of a text into tokens: byte pair encoding, WordPiece,
// Unigram (the most probable division) and WordLevel.
#include <algorithm>
#include <limits>
#include <queue>

#include "torchette/llm/text/pipeline.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

void Trie::add(const Text& text, int32_t value) {
  uint32_t node = 0;
  for (char32_t c : text) {
    uint32_t& next = edges_[uint64_t{node} << 21 | c];
    if (next == 0) {
      next = static_cast<uint32_t>(values_.size());
      values_.push_back(-1);
    }
    node = next;
  }
  if (node != 0) values_[node] = value;
}

int32_t Trie::longest(const Text& text, size_t at, size_t* size) const {
  int32_t found = -1;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = step(node, text[i]);
    if (node == 0) break;
    if (values_[node] >= 0) {
      found = values_[node];
      *size = i + 1 - at;
    }
  }
  return found;
}

Error Vocabulary::add(std::string piece, int64_t id) {
  // a large id would allocate much memory for a small file
  TORCHETTE_CHECK(id >= 0 && static_cast<uint64_t>(id) < 2 * ids_.size() + (1u << 20), InvalidExternalData,
                  "token %s has the id %lld, which is out of range", piece.c_str(),
                  static_cast<long long>(id));
  const auto i = static_cast<size_t>(id);
  if (i >= pieces_.size()) {
    pieces_.resize(i + 1);
    known_.resize(i + 1);
  }
  known_[i] = true;
  pieces_[i] = piece;
  ids_[std::move(piece)] = static_cast<uint32_t>(id);
  return Error::Ok;
}

std::string byte_token(uint8_t byte) {
  constexpr char kDigits[] = "0123456789ABCDEF";
  return {'<', '0', 'x', kDigits[byte >> 4], kDigits[byte & 15], '>'};
}

namespace {

/// Appends the token of each byte. Returns false and appends nothing if a byte has no token.
bool append_bytes(const Vocabulary& vocabulary, const std::string& text, std::vector<uint64_t>* tokens) {
  const size_t before = tokens->size();
  for (char c : text) {
    const int64_t id = vocabulary.find(byte_token(static_cast<uint8_t>(c)));
    if (id < 0) {
      tokens->resize(before);
      return false;
    }
    tokens->push_back(static_cast<uint64_t>(id));
  }
  return true;
}

/// Reads {"piece": id, ...}.
Error read_vocabulary(const Json& json, Vocabulary* out) {
  TORCHETTE_CHECK(json.is(Json::Kind::Object), InvalidExternalData,
                  "vocab of the tokenizer's model must be an object");
  // Vocabulary::add() bounds an id by the number of tokens before it
  std::vector<std::pair<int64_t, size_t>> order;
  for (size_t i = 0; i < json.keys.size(); ++i) order.emplace_back(json.items[i].index(), i);
  std::sort(order.begin(), order.end());
  for (const auto& [id, i] : order) TORCHETTE_TRY(out->add(json.keys[i], id));
  return Error::Ok;
}

/// Sets `*out` to the token of unknown text, or to -1 if the model has none.
Error read_unknown(const Json& json, const Vocabulary& vocabulary, int64_t* out) {
  *out = -1;
  const Json& name = json["unk_token"];
  if (!name.is_string()) return Error::Ok;
  *out = vocabulary.find(name.text);
  TORCHETTE_CHECK(*out >= 0, InvalidExternalData, "the unknown token %s is not in the vocabulary",
                  name.text.c_str());
  return Error::Ok;
}

class WordPiece final : public Model {
 public:
  Error read(const Json& json) {
    TORCHETTE_TRY(read_vocabulary(json["vocab"], &vocabulary));
    TORCHETTE_TRY(read_unknown(json, vocabulary, &unknown_));
    TORCHETTE_CHECK(unknown_ >= 0, InvalidExternalData, "the WordPiece model has no unk_token");
    prefix_ = json.string("continuing_subword_prefix", "##");
    const int64_t longest = json["max_input_chars_per_word"].index();
    if (longest >= 0) longest_ = static_cast<size_t>(longest);
    return Error::Ok;
  }

  Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const override {
    const size_t before = tokens->size();
    size_t at = 0;
    while (at < piece.size() && piece.size() <= longest_) {
      int64_t id = -1;
      size_t end = piece.size();
      for (; end > at; --end) {
        id = vocabulary.find((at == 0 ? "" : prefix_) + to_utf8(piece.data() + at, end - at));
        if (id >= 0) break;
      }
      if (id < 0) break;
      tokens->push_back(static_cast<uint64_t>(id));
      at = end;
    }
    if (at < piece.size()) {
      tokens->resize(before);
      tokens->push_back(static_cast<uint64_t>(unknown_));
    }
    return Error::Ok;
  }

 private:
  std::string prefix_;
  int64_t unknown_ = -1;
  size_t longest_ = 100;
};

class WordLevel final : public Model {
 public:
  Error read(const Json& json) {
    TORCHETTE_TRY(read_vocabulary(json["vocab"], &vocabulary));
    return read_unknown(json, vocabulary, &unknown_);
  }
  Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const override {
    const int64_t id = vocabulary.find(to_utf8(piece));
    TORCHETTE_CHECK(id >= 0 || unknown_ >= 0, InvalidArgument,
                    "%s is not in the vocabulary, which has no unknown token", to_utf8(piece).c_str());
    tokens->push_back(static_cast<uint64_t>(id >= 0 ? id : unknown_));
    return Error::Ok;
  }

 private:
  int64_t unknown_ = -1;
};

Error read_bpe(const Json& json, Bpe* out) {
  const double dropout = json["dropout"].number;
  TORCHETTE_CHECK(dropout == 0, NotSupported, "a BPE model with dropout is not deterministic");
  TORCHETTE_TRY(read_vocabulary(json["vocab"], &out->vocabulary));
  TORCHETTE_TRY(read_unknown(json, out->vocabulary, &out->unknown));
  out->prefix = json.string("continuing_subword_prefix");
  out->suffix = json.string("end_of_word_suffix");
  out->fuse_unknown = json.flag("fuse_unk");
  out->byte_fallback = json.flag("byte_fallback");
  out->ignore_merges = json.flag("ignore_merges");
  const Json& merges = json["merges"];
  out->merges.reserve(merges.items.size());
  for (size_t i = 0; i < merges.items.size(); ++i) {
    const Json& merge = merges.items[i];
    std::string a, b;
    if (merge.items.size() == 2) {
      a = merge.items[0].text, b = merge.items[1].text;
    } else {
      const size_t space = merge.text.find(' ');
      TORCHETTE_CHECK(merge.is_string() && space != std::string::npos, InvalidExternalData,
                      "merge %zu is not a pair of tokens", i);
      a = merge.text.substr(0, space), b = merge.text.substr(space + 1);
    }
    const int64_t left = out->vocabulary.find(a), right = out->vocabulary.find(b);
    const int64_t merged =
        b.size() < out->prefix.size() ? -1 : out->vocabulary.find(a + b.substr(out->prefix.size()));
    TORCHETTE_CHECK(left >= 0 && right >= 0 && merged >= 0, InvalidExternalData,
                    "merge %zu, %s %s: an operand or the result is not in the vocabulary", i, a.c_str(),
                    b.c_str());
    out->merges[static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right)] = {
        static_cast<uint32_t>(i), static_cast<uint32_t>(merged)};
  }
  return Error::Ok;
}

Error read_unigram(const Json& json, Unigram* out) {
  const Json& vocab = json["vocab"];
  out->unknown = json["unk_id"].index();
  out->byte_fallback = json.flag("byte_fallback");
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < vocab.items.size(); ++i) {
    const std::vector<Json>& entry = vocab.items[i].items;
    TORCHETTE_CHECK(entry.size() == 2 && entry[0].is_string() && entry[1].is(Json::Kind::Number),
                    InvalidExternalData, "entry %zu of a Unigram vocabulary is not a piece and its score", i);
    TORCHETTE_TRY(out->vocabulary.add(entry[0].text, static_cast<int64_t>(i)));
    out->scores.push_back(entry[1].number);
    least = std::min(least, entry[1].number);
    const Result<Text> piece = to_text(entry[0].text);
    if (!piece.ok()) return piece.error();
    out->add(*piece, static_cast<uint32_t>(i));
  }
  TORCHETTE_CHECK(!vocab.items.empty() && out->unknown < static_cast<int64_t>(vocab.items.size()),
                  InvalidExternalData, "the Unigram model has no vocabulary, or its unk_id is out of range");
  out->set_unknown_score(least - 10);
  return Error::Ok;
}

template <typename M>
Result<std::unique_ptr<Model>> read_model(Error (*read)(const Json&, M*), const Json& json) {
  auto model = std::make_unique<M>();
  TORCHETTE_TRY(read(json, model.get()));
  return std::unique_ptr<Model>(std::move(model));
}

}  // namespace

Result<std::unique_ptr<Model>> make_model(const Json& json) {
  std::string_view type = json.string("type");
  if (type.empty())  // of older files
    type = json["merges"].is(Json::Kind::Array)                      ? "BPE"
           : json["vocab"].is(Json::Kind::Array)                     ? "Unigram"
           : json["max_input_chars_per_word"].is(Json::Kind::Number) ? "WordPiece"
                                                                     : "";
  TORCHETTE_CHECK(!type.empty(), InvalidExternalData, "the tokenizer has no model");
  if (type == "BPE") return read_model<Bpe>(read_bpe, json);
  if (type == "Unigram") return read_model<Unigram>(read_unigram, json);
  if (type == "WordPiece")
    return read_model<WordPiece>([](const Json& j, WordPiece* m) { return m->read(j); }, json);
  if (type == "WordLevel")
    return read_model<WordLevel>([](const Json& j, WordLevel* m) { return m->read(j); }, json);
  TORCHETTE_LOG(Error, "the tokenizer's model has type %s; supported: BPE, WordPiece, Unigram, WordLevel",
                std::string(type).c_str());
  return Error::NotSupported;
}

// --- Byte pair encoding
// -----------------------------------------------------------------------------------------
struct Bpe::Symbol {
  int64_t id;
  int32_t previous, next;  // index of a symbol, or -1
  bool alive = true;
};

bool Bpe::find(const Symbol& a, const Symbol& b, Merge* out) const {
  if (a.id < 0 || b.id < 0) return false;
  if (ranks.empty()) {
    const auto found = merges.find(static_cast<uint64_t>(a.id) << 32 | static_cast<uint64_t>(b.id));
    if (found == merges.end()) return false;
    *out = found->second;
    return true;
  }
  const int64_t id = vocabulary.find(vocabulary.piece(static_cast<uint64_t>(a.id)) +
                                     vocabulary.piece(static_cast<uint64_t>(b.id)));
  if (id < 0 || ranks[static_cast<size_t>(id)] == kNever) return false;
  *out = {ranks[static_cast<size_t>(id)], static_cast<uint32_t>(id)};
  return true;
}

Error Bpe::divide(const Text& piece, std::vector<Symbol>* symbols) const {
  const auto put = [&](int64_t id) {
    const auto n = static_cast<int32_t>(symbols->size());
    symbols->push_back({id, n - 1, n + 1});
  };
  bool was_unknown = false;
  for (size_t i = 0; i < piece.size(); ++i) {
    const std::string utf8 = to_utf8(&piece[i], 1);
    if (of_bytes) {
      for (char c : utf8) put(vocabulary.find(std::string(1, c)));
      continue;
    }
    const int64_t id = vocabulary.find((i > 0 ? prefix : "") + utf8 + (i + 1 == piece.size() ? suffix : ""));
    std::vector<uint64_t> bytes;
    if (id >= 0 && (ranks.empty() || ranks[static_cast<size_t>(id)] != kNever)) {
      put(id);
    } else if (byte_fallback && append_bytes(vocabulary, utf8, &bytes)) {
      for (uint64_t byte : bytes) put(static_cast<int64_t>(byte));
    } else {
      if (unknown >= 0 && !(fuse_unknown && was_unknown)) put(unknown);
      was_unknown = true;
      continue;
    }
    was_unknown = false;
  }
  if (!symbols->empty()) symbols->back().next = -1;
  return Error::Ok;
}

Error Bpe::tokenize(const Text& piece, std::vector<uint64_t>* tokens) const {
  if (ignore_merges) {
    const int64_t id = vocabulary.find(to_utf8(piece));
    if (id >= 0) {
      tokens->push_back(static_cast<uint64_t>(id));
      return Error::Ok;
    }
  }
  TORCHETTE_CHECK(piece.size() < (1u << 28), InvalidArgument, "a piece of %zu characters is too long",
                  piece.size());
  std::vector<Symbol> symbols;
  TORCHETTE_TRY(divide(piece, &symbols));
  struct Candidate {
    uint32_t rank;
    int32_t at;
    uint32_t id;
    bool operator<(const Candidate& other) const {  // the top of the queue is the maximum
      return rank != other.rank ? rank > other.rank : at > other.at;
    }
  };
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t at) {
    Merge merge;
    if (at < 0 || symbols[static_cast<size_t>(at)].next < 0) return;
    const Symbol& a = symbols[static_cast<size_t>(at)];
    if (find(a, symbols[static_cast<size_t>(a.next)], &merge)) queue.push({merge.rank, at, merge.id});
  };
  for (size_t i = 0; i < symbols.size(); ++i) consider(static_cast<int32_t>(i));
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& a = symbols[static_cast<size_t>(top.at)];
    Merge merge;
    // a merge may have changed the symbols of a queued candidate
    if (!a.alive || a.next < 0) continue;
    Symbol& b = symbols[static_cast<size_t>(a.next)];
    if (!find(a, b, &merge) || merge.id != top.id) continue;
    a.id = merge.id;
    b.alive = false;
    a.next = b.next;
    if (b.next >= 0) symbols[static_cast<size_t>(b.next)].previous = top.at;
    consider(a.previous);
    consider(top.at);
  }
  for (int32_t i = symbols.empty() ? -1 : 0; i >= 0; i = symbols[static_cast<size_t>(i)].next)
    if (symbols[static_cast<size_t>(i)].id >= 0)
      tokens->push_back(static_cast<uint64_t>(symbols[static_cast<size_t>(i)].id));
  return Error::Ok;
}

// --- Unigrams
// -----------------------------------------------------------------------------------------------------
std::vector<Unigram::Part> Unigram::divide(const Text& piece) const {
  struct Best {
    double score = 0;
    size_t from = Text::npos;
    int32_t id = -1;  // -1: unknown
  };
  std::vector<Best> best(piece.size() + 1);
  const auto reach = [&](size_t from, size_t to, double score, int32_t id) {
    score += best[from].score;
    if (single_precision) score = static_cast<float>(score);
    if (best[to].from == Text::npos || score > best[to].score) best[to] = {score, from, id};
  };
  for (size_t at = 0; at < piece.size(); ++at) {
    uint32_t node = 0;
    bool has_one = false;
    for (size_t end = at; end < piece.size(); ++end) {
      node = trie_.step(node, piece[end]);
      if (node == 0) break;
      const int32_t id = trie_.value(node);
      if (id < 0) continue;
      has_one = has_one || end == at;
      reach(at, end + 1, scores[static_cast<size_t>(id)], id);
    }
    if (!has_one) reach(at, at + 1, unknown_score_, -1);
  }
  std::vector<Part> parts;  // from the end
  for (size_t end = piece.size(); end > 0; end = best[end].from) {
    const int32_t id = best[end].id == unknown ? -1 : best[end].id;
    if (id < 0 && !parts.empty() && parts.back().id < 0)
      parts.back().begin = best[end].from;  // consecutive unknown characters are one part
    else
      parts.push_back({best[end].from, end, id});
  }
  std::reverse(parts.begin(), parts.end());
  return parts;
}

Error Unigram::tokenize(const Text& piece, std::vector<uint64_t>* tokens) const {
  for (const auto& [begin, end, id] : divide(piece)) {
    if (id >= 0) {
      tokens->push_back(static_cast<uint64_t>(id));
    } else if (!byte_fallback ||
               !append_bytes(vocabulary, to_utf8(piece.data() + begin, end - begin), tokens)) {
      TORCHETTE_CHECK(unknown >= 0, InvalidArgument,
                      "%s is not in the vocabulary, which has no unknown token",
                      to_utf8(piece.data() + begin, end - begin).c_str());
      tokens->push_back(static_cast<uint64_t>(unknown));
    }
  }
  return Error::Ok;
}

namespace {

class RemappedUnigram final : public Model {
 public:
  Error read(std::unique_ptr<Unigram> model, const Json& json) {
    model_ = std::move(model);
    TORCHETTE_TRY(read_vocabulary(json["vocab"], &vocabulary));
    TORCHETTE_TRY(read_unknown(json, vocabulary, &unknown_));
    TORCHETTE_CHECK(unknown_ >= 0, InvalidExternalData, "the vocabulary file has no unk_token");
    return Error::Ok;
  }
  Error tokenize(const Text& piece, std::vector<uint64_t>* tokens) const override {
    for (const Unigram::Part& part : model_->divide(piece)) {
      const int64_t id = vocabulary.find(to_utf8(piece.data() + part.begin, part.end - part.begin));
      tokens->push_back(static_cast<uint64_t>(id >= 0 ? id : unknown_));
    }
    return Error::Ok;
  }

 private:
  std::unique_ptr<Unigram> model_;
  int64_t unknown_ = -1;
};

}  // namespace

Result<std::unique_ptr<Model>> make_remapped(std::unique_ptr<Unigram> model, const Json& json) {
  auto made = std::make_unique<RemappedUnigram>();
  TORCHETTE_TRY(made->read(std::move(model), json));
  return std::unique_ptr<Model>(std::move(made));
}

}  // namespace torchette::extension::llm
