// SPDX-License-Identifier: BSD-3-Clause
// Pre-tokenizers: divide a normalized text into pieces.
#include <algorithm>

#include "torchette/llm/text/pipeline.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

using PreTokenizerList = std::vector<std::unique_ptr<PreTokenizer>>;
using Pieces = std::vector<Piece>;

enum class Behavior : uint8_t { Removed, Isolated, MergedWithPrevious, MergedWithNext, Contiguous };

Error read_behavior(std::string_view name, Behavior* out) {
  constexpr std::string_view kNames[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext",
                                         "Contiguous"};
  const auto* found = std::find(std::begin(kNames), std::end(kNames), name);
  TORCHETTE_CHECK(found != std::end(kNames), NotSupported, "the behavior %s is not supported",
                  std::string(name).c_str());
  *out = static_cast<Behavior>(found - kNames);
  return Error::Ok;
}

/// The treatment of matches and of the text between them.
std::vector<Range> arrange(const std::vector<Range>& ranges, Behavior behavior) {
  std::vector<Range> out;
  switch (behavior) {
    case Behavior::Removed:
      std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(out),
                   [](const Range& r) { return !r.match; });
      return out;
    case Behavior::Isolated:
      return ranges;
    case Behavior::Contiguous:
      for (const Range& range : ranges)
        if (!out.empty() && out.back().match == range.match)
          out.back().end = range.end;
        else
          out.push_back(range);
      return out;
    case Behavior::MergedWithPrevious: {
      bool after_match = false;
      for (const Range& range : ranges) {
        if (range.match && !after_match && !out.empty())
          out.back().end = range.end;
        else
          out.push_back(range);
        after_match = range.match;
      }
      return out;
    }
    case Behavior::MergedWithNext: {
      bool before_match = false;
      for (size_t i = ranges.size(); i-- > 0;) {
        if (ranges[i].match && !before_match && !out.empty())
          out.back().begin = ranges[i].begin;
        else
          out.push_back(ranges[i]);
        before_match = ranges[i].match;
      }
      std::reverse(out.begin(), out.end());
      return out;
    }
  }
  return out;
}

/// Divides each piece into ranges, which `find` appends.
template <typename F>
Error divide(Pieces* pieces, Behavior behavior, F&& find) {
  Pieces out;
  std::vector<Range> ranges;
  for (Piece& piece : *pieces) {
    ranges.clear();
    TORCHETTE_TRY(find(piece.text, &ranges));
    for (const Range& range : arrange(ranges, behavior))
      out.push_back(
          {piece.text.substr(range.begin, range.end - range.begin), piece.first && range.begin == 0});
  }
  *pieces = std::move(out);
  return Error::Ok;
}

/// Divides by a pattern.
struct Split final : PreTokenizer {
  Split(Regex r, Behavior b, bool i) : regex(std::move(r)), behavior(b), invert(i) {}
  Error split(Pieces* pieces) const override {
    return divide(pieces, behavior, [this](const Text& text, std::vector<Range>* out) {
      TORCHETTE_TRY(find_matches(regex, text, out));
      for (Range& range : *out) range.match = range.match != invert;
      return Error::Ok;
    });
  }
  Regex regex;
  Behavior behavior;
  bool invert;
};

/// Divides at characters of a category; each is a separate match.
struct SplitCharacters final : PreTokenizer {
  SplitCharacters(bool (*i)(char32_t), Behavior b) : is(i), behavior(b) {}
  Error split(Pieces* pieces) const override {
    return divide(pieces, behavior, [this](const Text& text, std::vector<Range>* out) {
      for (size_t i = 0; i < text.size(); ++i) {
        const bool match = is(text[i]);
        if (!match && !out->empty() && !out->back().match)
          out->back().end = i + 1;
        else
          out->push_back({i, i + 1, match});
      }
      return Error::Ok;
    });
  }
  bool (*is)(char32_t);
  Behavior behavior;
};

bool is_number(char32_t c) { return is_in(c, kNumbers); }
/// Punctuation, including the ASCII symbols.
bool is_punctuation(char32_t c) { return is_in(c, c < 128 ? kPunctuation | kSymbols : kPunctuation); }

struct ByteLevel final : PreTokenizer {
  explicit ByteLevel(bool prefix) : adds_space(prefix) {}
  Error split(Pieces* pieces) const override {
    if (adds_space)
      for (Piece& piece : *pieces)
        if (!piece.text.empty() && piece.text[0] != ' ') piece.text.insert(0, 1, U' ');
    return Error::Ok;
  }
  bool adds_space;
};

struct ByteLetters final : PreTokenizer {
  Error split(Pieces* pieces) const override {
    for (Piece& piece : *pieces) {
      Text out;
      for (char byte : to_utf8(piece.text)) out += letter_of_byte(static_cast<uint8_t>(byte));
      piece.text = std::move(out);
    }
    return Error::Ok;
  }
};

struct Metaspace final : PreTokenizer {
  Error split(Pieces* pieces) const override {
    for (Piece& piece : *pieces) {
      std::replace(piece.text.begin(), piece.text.end(), U' ', mark);
      const bool wants = scheme == "always" || (scheme == "first" && piece.first);
      if (wants && !piece.text.empty() && piece.text[0] != mark) piece.text.insert(0, 1, mark);
    }
    if (!splits) return Error::Ok;
    return divide(pieces, Behavior::MergedWithNext, [this](const Text& text, std::vector<Range>* out) {
      for (size_t i = 0; i < text.size(); ++i)
        if (text[i] != mark && !out->empty() && !out->back().match)
          out->back().end = i + 1;
        else
          out->push_back({i, i + 1, text[i] == mark});
      return Error::Ok;
    });
  }
  char32_t mark = 0x2581;
  std::string scheme;
  bool splits = true;
};

Error add_metaspace(const Json& json, PreTokenizerList* out) {
  auto made = std::make_unique<Metaspace>();
  const Result<Text> mark = to_text(json.string("replacement", "\xE2\x96\x81"));
  TORCHETTE_CHECK(mark.ok() && mark->size() == 1, InvalidExternalData,
                  "Metaspace's replacement must be one character");
  made->mark = (*mark)[0];
  made->scheme = json.string("prepend_scheme", json.flag("add_prefix_space", true) ? "always" : "never");
  made->splits = json.flag("split", true);
  out->push_back(std::move(made));
  return Error::Ok;
}

Error add_regex(std::string_view pattern, Behavior behavior, bool invert, PreTokenizerList* out,
                Regex::Dialect dialect = Regex::Dialect::Oniguruma) {
  Result<Regex> regex = Regex::compile(pattern, dialect);
  if (!regex.ok()) return regex.error();
  out->push_back(std::make_unique<Split>(std::move(*regex), behavior, invert));
  return Error::Ok;
}

constexpr char kGpt2[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

std::unique_ptr<PreTokenizer> make_split(Regex regex) {
  return std::make_unique<Split>(std::move(regex), Behavior::Isolated, false);
}

Error add_pre_tokenizers(const Json& json, PreTokenizerList* out) {
  if (json.is(Json::Kind::Null)) return Error::Ok;
  const std::string_view type = json.string("type");
  const auto characters = [&](bool (*is)(char32_t), Behavior behavior) {
    out->push_back(std::make_unique<SplitCharacters>(is, behavior));
  };
  Behavior behavior = Behavior::Isolated;
  if (type == "Sequence") {
    for (const Json& member : json["pretokenizers"].items) TORCHETTE_TRY(add_pre_tokenizers(member, out));
  } else if (type == "ByteLevel") {
    out->push_back(std::make_unique<ByteLevel>(json.flag("add_prefix_space", true)));
    if (json.flag("use_regex", true)) TORCHETTE_TRY(add_regex(kGpt2, Behavior::Isolated, false, out));
    out->push_back(std::make_unique<ByteLetters>());
  } else if (type == "Split") {
    TORCHETTE_TRY(read_behavior(json.string("behavior"), &behavior));
    Result<Regex> regex = make_pattern(json["pattern"]);
    if (!regex.ok()) return regex.error();
    out->push_back(std::make_unique<Split>(std::move(*regex), behavior, json.flag("invert")));
  } else if (type == "Metaspace") {
    TORCHETTE_TRY(add_metaspace(json, out));
  } else if (type == "Whitespace") {
    TORCHETTE_TRY(add_regex(R"(\w+|[^\w\s]+)", Behavior::Removed, true, out, Regex::Dialect::Rust));
  } else if (type == "WhitespaceSplit") {
    characters(is_space, Behavior::Removed);
  } else if (type == "Punctuation") {
    TORCHETTE_TRY(read_behavior(json.string("behavior", "Isolated"), &behavior));
    characters(is_punctuation, behavior);
  } else if (type == "Digits") {
    characters(is_number, json.flag("individual_digits") ? Behavior::Isolated : Behavior::Contiguous);
  } else if (type == "BertPreTokenizer") {
    characters(is_space, Behavior::Removed);
    characters(is_punctuation, Behavior::Isolated);
  } else if (type == "CharDelimiterSplit") {
    const Result<Text> delimiter = to_text(json.string("delimiter"));
    TORCHETTE_CHECK(delimiter.ok() && delimiter->size() == 1, InvalidExternalData,
                    "a delimiter must be one character");
    out->push_back(std::make_unique<Split>(Regex::literal(*delimiter), Behavior::Removed, false));
  } else {
    TORCHETTE_LOG(Error, "the tokenizer's pre-tokenizer %s is not supported", std::string(type).c_str());
    return Error::NotSupported;
  }
  return Error::Ok;
}

}  // namespace torchette::extension::llm
