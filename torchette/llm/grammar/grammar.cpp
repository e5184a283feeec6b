// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/grammar.h"

#include <algorithm>
#include <memory>
#include <set>
#include <unordered_map>

#include "torchette/llm/text/unicode.h"
#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr size_t kMostText = 1 << 20, kMostSymbols = 200'000, kMostStates = 20'000;
constexpr long kMostRepeats = 10'000;
constexpr int kMostDepth = 100;
constexpr int64_t kMostWork = 3'000'000, kMostMaskWork = 50'000'000;
constexpr int32_t kEnd = INT32_MIN;

using Rule = std::vector<std::vector<int32_t>>;  // alternatives of symbols: rules, sets as ~number

/// Of each rule, whether an alternative has nothing but such rules; and sets of bytes, if `bytes_too`.
std::vector<bool> settled(const std::vector<Rule>& rules, bool bytes_too) {
  std::vector<bool> found(rules.size());
  std::vector<std::pair<size_t, size_t>> needs;  // of an alternative: how many rules it waits for, its rule
  std::vector<std::vector<size_t>> waiting(rules.size());
  std::vector<size_t> work;
  for (size_t rule = 0; rule < rules.size(); ++rule)
    for (const auto& one : rules[rule]) {
      if (!bytes_too && std::any_of(one.begin(), one.end(), [](int32_t s) { return s < 0; })) continue;
      needs.emplace_back(0, rule);
      for (int32_t symbol : one) {
        if (symbol < 0) continue;
        ++needs.back().first;
        waiting[static_cast<size_t>(symbol)].push_back(needs.size() - 1);
      }
      if (needs.back().first == 0) work.push_back(rule);
    }
  while (!work.empty()) {
    const size_t rule = work.back();
    work.pop_back();
    if (found[rule]) continue;
    found[rule] = true;
    for (size_t one : waiting[rule])
      if (--needs[one].first == 0) work.push_back(needs[one].second);
  }
  return found;
}

}  // namespace

struct Grammar::Frame {
  Items returns;  // the root's returns to -1
  size_t number;
};

struct Grammar::State {
  Items items;
  bool accepts;
  std::vector<State*> next;  // by kind, where known
  std::vector<bool> known;
  std::unique_ptr<std::vector<bool>> mask;
};

GrammarVocabulary::GrammarVocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (!tokens_[i].empty()) order_.push_back(static_cast<uint32_t>(i));
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return tokens_[a] < tokens_[b]; });
  common_.resize(order_.size());
  for (size_t i = 1; i < order_.size(); ++i) {
    const std::string &a = tokens_[order_[i - 1]], &b = tokens_[order_[i]];
    const auto last = std::mismatch(
        a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())), b.begin());
    common_[i] = static_cast<uint32_t>(last.first - a.begin());
  }
}

Grammar::Grammar() = default;
Grammar::~Grammar() = default;

/// Text to rules. Rule 0 is the root; groups and repeats are rules of their own.
class GrammarParser {
 public:
  using Bytes = Grammar::Bytes;

  explicit GrammarParser(const Text& text) : text_(text) {}

  Error whole() {
    rule("root");
    space();
    while (at_ < text_.size()) {
      const std::string called = name();
      space();
      if (called.empty() || !takes("::=")) return wrong("a rule is expected: name ::= ...");
      const int32_t number = rule(called);
      if (defined_[static_cast<size_t>(number)]) return wrong("rule " + called + " is there twice");
      space();
      Rule found;
      TORCHETTE_TRY(alternatives(called, &found));
      rules_[static_cast<size_t>(number)] = std::move(found);
      defined_[static_cast<size_t>(number)] = true;
    }
    for (const auto& [called, number] : numbers_)
      TORCHETTE_CHECK(defined_[static_cast<size_t>(number)], InvalidArgument, "the grammar has no rule %s",
                      called.c_str());
    return Error::Ok;
  }

  std::vector<Rule> rules_;
  std::vector<std::string> names_;
  std::vector<Bytes> sets_;

 private:
  Error wrong(const std::string& what) {
    const auto line =
        1 + std::count(text_.begin(),
                       text_.begin() + static_cast<std::ptrdiff_t>(std::min(at_, text_.size())), U'\n');
    TORCHETTE_LOG(Error, "the grammar, line %ld: %s, found '%s'", static_cast<long>(line), what.c_str(),
                  to_utf8(text_.substr(std::min(at_, text_.size()), 20)).c_str());
    return Error::InvalidArgument;
  }
  void space() {
    while (at_ < text_.size()) {
      if (text_[at_] == '#')
        at_ = std::min(text_.find(U'\n', at_), text_.size());
      else if (is_space(text_[at_]))
        ++at_;
      else
        return;
    }
  }
  bool sees(const char* what) const {
    size_t i = 0;
    while (what[i] != 0 && at_ + i < text_.size() && text_[at_ + i] == static_cast<char32_t>(what[i])) ++i;
    return what[i] == 0;
  }
  bool takes(const char* what) {
    if (!sees(what)) return false;
    at_ += std::char_traits<char>::length(what);
    return true;
  }
  std::string name() {
    const size_t start = at_;
    while (at_ < text_.size() &&
           (text_[at_] == '-' || text_[at_] == '_' || is_in(text_[at_], kLetters | kNumbers)))
      ++at_;
    return to_utf8(text_.substr(start, at_ - start));
  }
  int32_t add(const std::string& called, Rule rule) {
    for (const auto& one : rule) size_ += one.size();
    ++size_;
    rules_.push_back(std::move(rule));
    names_.push_back(called);
    defined_.push_back(true);
    return static_cast<int32_t>(rules_.size() - 1);
  }
  int32_t rule(const std::string& called) {
    const auto found = numbers_.find(called);
    if (found != numbers_.end()) return found->second;
    const int32_t number = add(called, {});
    defined_.back() = false;
    return numbers_[called] = number;
  }
  Error limit() {
    return size_ <= kMostSymbols ? Error::Ok : wrong("the grammar needs more than 200000 symbols");
  }
  int32_t set(const Bytes& members) {
    const auto [found, is_new] = set_numbers_.try_emplace(members, static_cast<int32_t>(sets_.size()));
    if (is_new) sets_.push_back(members);
    return ~found->second;
  }
  int32_t range(uint8_t low, uint8_t high) {
    Bytes members = {};
    for (unsigned b = low; b <= high; ++b) members[b / 64] |= uint64_t{1} << b % 64;
    return set(members);
  }

  Error alternatives(const std::string& called, Rule* out) {
    do {
      space();
      out->emplace_back();
      TORCHETTE_TRY(sequence(called, &out->back()));
    } while (takes("|"));
    return Error::Ok;
  }

  Error sequence(const std::string& called, std::vector<int32_t>* out) {
    std::vector<int32_t> last;
    bool has_last = false;
    while (at_ < text_.size() && text_[at_] != '|' && text_[at_] != ')') {
      const char32_t c = text_[at_];
      if (c == '*' || c == '+' || c == '?' || c == '{') {
        if (!has_last) return wrong("something to repeat is expected");
        out->resize(out->size() - last.size());
        long least = 0, most = 0;
        TORCHETTE_TRY(bounds(&least, &most));
        TORCHETTE_TRY(repeat(called, &last, least, most));
      } else if (takes("\"")) {
        last.clear();
        while (!takes("\"")) {
          char32_t one = 0;
          TORCHETTE_TRY(character('"', &one));
          if (one >= 0xD800 && one < 0xE000) return wrong("surrogates are no characters");
          for (char byte : to_utf8(&one, 1))
            last.push_back(range(static_cast<uint8_t>(byte), static_cast<uint8_t>(byte)));
        }
      } else if (c == '[') {
        TORCHETTE_TRY(char_class(&last));
      } else if (takes(".")) {
        TORCHETTE_TRY(characters({{0, 0x10FFFF}}, &last));
      } else if (takes("(")) {
        if (++depth_ > kMostDepth) return wrong("groups are nested more than 100 deep");
        Rule inner;
        TORCHETTE_TRY(alternatives(called, &inner));
        last = {add(called, std::move(inner))};
        if (!takes(")")) return wrong("a ) is expected");
        --depth_;
      } else {
        const size_t start = at_;
        const std::string other = name();
        if (other.empty()) return wrong("a string, class, name or group is expected");
        space();
        if (sees("::=")) {  // the next rule
          at_ = start;
          break;
        }
        last = {rule(other)};
      }
      has_last = true;
      out->insert(out->end(), last.begin(), last.end());
      size_ += last.size();
      TORCHETTE_TRY(limit());
      space();
    }
    return Error::Ok;
  }

  Error bounds(long* least, long* most) {
    const char32_t c = text_[at_++];
    *least = c == '+' ? 1 : 0;
    *most = c == '?' ? 1 : -1;
    if (c != '{') return Error::Ok;
    const auto number = [&](long* out) {
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      bool any = false;
      for (*out = 0; at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9'; ++at_, any = true)
        *out = std::min(*out * 10 + static_cast<long>(text_[at_] - '0'), 10 * kMostRepeats);
      while (at_ < text_.size() && is_space(text_[at_])) ++at_;
      return any;
    };
    const bool has_least = number(least);
    bool has_most = has_least;
    *most = *least;
    if (takes(",")) {
      has_most = number(most);
      if (!has_most) *most = -1;
    }
    if (!takes("}") || !(has_least || has_most)) return wrong("a repeat is expected: {2}, {2,} or {2,4}");
    if (std::max(*least, *most) > kMostRepeats || (*most >= 0 && *most < *least))
      return wrong("repeats go up, to 10000 at most");
    return Error::Ok;
  }

  Error repeat(const std::string& called, std::vector<int32_t>* what, long least, long most) {
    if (what->size() != 1) *what = {add(called, {*what})};
    const int32_t one = what->front();
    std::vector<int32_t> tail;
    if (most < 0) {
      const int32_t number = add(called, {});
      rules_[static_cast<size_t>(number)] = {{one, number}, {}};
      size_ += 2;
      tail = {number};
    }
    for (long i = least; i < most; ++i) {
      std::vector<int32_t> next = {one};
      next.insert(next.end(), tail.begin(), tail.end());
      tail = {add(called, {std::move(next), {}})};
      TORCHETTE_TRY(limit());
    }
    size_ += static_cast<size_t>(least);
    TORCHETTE_TRY(limit());
    what->assign(static_cast<size_t>(least), one);
    what->insert(what->end(), tail.begin(), tail.end());
    return Error::Ok;
  }

  Error character(char32_t end, char32_t* out) {
    if (at_ >= text_.size() || text_[at_] == '\n')
      return wrong(std::string("a ") + static_cast<char>(end) + " is expected");
    const char32_t c = text_[at_++];
    *out = c;
    if (c != '\\') return Error::Ok;
    const char32_t kind = at_ < text_.size() ? text_[at_] : U'\\';
    ++at_;
    const size_t width = kind == 'x' ? 2 : kind == 'u' ? 4 : kind == 'U' ? 8 : 0;
    *out = kind == 'n' ? U'\n' : kind == 'r' ? U'\r' : kind == 't' ? U'\t' : kind;
    if (width == 0) return Error::Ok;
    uint64_t code = 0;
    for (size_t i = 0; i < width; ++i, ++at_) {
      const char32_t d = at_ < text_.size() ? text_[at_] : 0;
      const int digit = d >= '0' && d <= '9'   ? static_cast<int>(d - '0')
                        : d >= 'a' && d <= 'f' ? static_cast<int>(d - 'a') + 10
                        : d >= 'A' && d <= 'F' ? static_cast<int>(d - 'A') + 10
                                               : -1;
      if (digit < 0) return wrong(std::to_string(width) + " hexadecimal digits of a character are expected");
      code = code * 16 + static_cast<uint64_t>(digit);
    }
    if (code > 0x10FFFF)
      return wrong(std::to_string(width) + " hexadecimal digits of a character are expected");
    *out = static_cast<char32_t>(code);
    return Error::Ok;
  }

  using Ranges = std::vector<std::pair<char32_t, char32_t>>;
  Error char_class(std::vector<int32_t>* out) {
    ++at_;
    const bool negated = takes("^");
    Ranges ranges;
    while (!takes("]")) {
      char32_t low = 0, high = 0;
      TORCHETTE_TRY(character(']', &low));
      high = low;
      if (sees("-") && !sees("-]")) {
        ++at_;
        TORCHETTE_TRY(character(']', &high));
      }
      if (high < low) return wrong("ranges go up");
      ranges.emplace_back(low, high);
    }
    if (negated) {
      std::sort(ranges.begin(), ranges.end());
      Ranges others;
      char32_t low = 0;
      for (const auto& [first, last] : ranges) {
        if (first > low) others.emplace_back(low, first - 1);
        low = std::max<char32_t>(low, last + 1);
      }
      if (low <= 0x10FFFF) others.emplace_back(low, 0x10FFFF);
      ranges = std::move(others);
    }
    if (ranges.empty()) return wrong("the class has no character");
    return characters(ranges, out);
  }

  /// Sequences of sets of bytes that are the characters from lo to hi.
  void sequences(char32_t lo, char32_t hi, Rule* out) {
    for (char32_t edge : {0x80u, 0x800u, 0xD800u, 0xE000u, 0x10000u})
      if (lo < edge && edge <= hi) {
        sequences(lo, edge - 1, out);
        sequences(edge, hi, out);
        return;
      }
    if (lo >= 0xD800 && hi < 0xE000) return;  // surrogates are no characters
    for (int bits = 6; hi >= 0x80 && bits <= 18; bits += 6) {
      const char32_t low = (char32_t{1} << bits) - 1;
      if ((lo & ~low) != (hi & ~low) && ((lo & low) != 0 || (hi & low) != low)) {
        const char32_t edge = (lo & low) != 0 ? (lo | low) + 1 : hi & ~low;
        sequences(lo, edge - 1, out);
        sequences(edge, hi, out);
        return;
      }
    }
    const std::string first = to_utf8(&lo, 1), last = to_utf8(&hi, 1);
    out->emplace_back();
    for (size_t i = 0; i < first.size(); ++i)
      out->back().push_back(range(static_cast<uint8_t>(first[i]), static_cast<uint8_t>(last[i])));
  }

  Error characters(const Ranges& ranges, std::vector<int32_t>* out) {
    const auto found = kept_.find(ranges);
    if (found != kept_.end()) {
      *out = found->second;
      return Error::Ok;
    }
    Rule all, longer;
    for (const auto& [low, high] : ranges) sequences(low, high, &all);
    Bytes single = {};
    bool has_single = false;
    for (std::vector<int32_t>& one : all)
      if (one.size() == 1) {
        has_single = true;
        for (size_t i = 0; i < 4; ++i) single[i] |= sets_[static_cast<size_t>(~one[0])][i];
      } else {
        longer.push_back(std::move(one));
      }
    if (has_single) longer.insert(longer.begin(), {set(single)});
    if (longer.empty()) return wrong("surrogates are no characters");
    *out = longer.size() == 1 ? longer[0] : std::vector<int32_t>{add("class", longer)};
    kept_[ranges] = *out;
    return Error::Ok;
  }

  const Text& text_;
  size_t at_ = 0, size_ = 0;
  int depth_ = 0;
  std::vector<bool> defined_;
  std::map<std::string, int32_t> numbers_;
  std::map<Bytes, int32_t> set_numbers_;
  std::map<Ranges, std::vector<int32_t>> kept_;
};

Result<std::unique_ptr<Grammar>> Grammar::parse(std::string_view text) {
  TORCHETTE_CHECK(text.size() <= kMostText, OutOfResources, "a grammar of %zu bytes, at most %zu are taken",
                  text.size(), kMostText);
  const Result<Text> characters = to_text(text);
  if (!characters.ok()) return characters.error();
  GrammarParser parser(*characters);
  TORCHETTE_TRY(parser.whole());
  auto grammar = std::make_unique<Grammar>();
  TORCHETTE_TRY(grammar->prepare(std::move(parser.rules_), parser.names_, parser.sets_));
  return grammar;
}

Error Grammar::prepare(std::vector<Rule> rules, const std::vector<std::string>& names,
                       const std::vector<Bytes>& sets) {
  const std::vector<bool> ends = settled(rules, true);
  TORCHETTE_CHECK(ends[0], InvalidArgument,
                  "rule root never comes to an end; give it an alternative that does not call itself");
  for (Rule& rule : rules)  // what leads nowhere goes
    rule.erase(std::remove_if(rule.begin(), rule.end(),
                              [&](const std::vector<int32_t>& one) {
                                return std::any_of(one.begin(), one.end(),
                                                   [&](int32_t s) { return s >= 0 && !ends[size_t(s)]; });
                              }),
               rule.end());
  nullable_ = settled(rules, false);
  for (const Rule& rule : rules) {
    starts_.emplace_back();
    for (const auto& one : rule) {
      starts_.back().push_back(static_cast<int32_t>(symbols_.size()));
      symbols_.insert(symbols_.end(), one.begin(), one.end());
      symbols_.push_back(kEnd);
    }
  }
  // an order in which each rule comes after those that call it first
  const size_t count = rules.size();
  std::vector<std::vector<int32_t>> first(count);
  for (size_t rule = 0; rule < count; ++rule)
    for (int32_t place : starts_[rule])
      for (; symbols_[size_t(place)] >= 0; ++place) {
        const int32_t symbol = symbols_[size_t(place)];
        if (symbol != static_cast<int32_t>(rule) || symbols_[size_t(place) + 1] != kEnd)
          first[rule].push_back(symbol);
        if (!nullable_[size_t(symbol)]) break;
      }
  rank_.assign(count, 0);
  std::vector<uint8_t> color(count);
  size_t rank = count;
  for (size_t root = 0; root < count; ++root) {
    std::vector<std::pair<size_t, size_t>> trail;
    if (color[root] == 0) trail.emplace_back(root, 0);
    color[root] = std::max<uint8_t>(color[root], 1);
    while (!trail.empty()) {
      auto& [rule, next] = trail.back();
      if (next == first[rule].size()) {
        color[rule] = 2;
        rank_[rule] = --rank;
        trail.pop_back();
        continue;
      }
      const auto called = static_cast<size_t>(first[rule][next++]);
      TORCHETTE_CHECK(
          color[called] != 1, InvalidArgument,
          "rule %s calls itself before any character (left recursion); put what is repeated first: "
          "list ::= item list | item",
          names[called].c_str());
      if (color[called] == 0) {
        color[called] = 1;
        trail.emplace_back(called, 0);
      }
    }
  }
  std::map<std::vector<bool>, uint8_t> looks;
  for (size_t byte = 0; byte < 256; ++byte) {
    std::vector<bool> look(sets.size());
    for (size_t i = 0; i < sets.size(); ++i) look[i] = (sets[i][byte / 64] >> byte % 64 & 1) != 0;
    kinds_[byte] = looks.try_emplace(std::move(look), static_cast<uint8_t>(looks.size())).first->second;
  }
  num_kinds_ = looks.size();
  sets_.assign(sets.size(), std::vector<bool>(num_kinds_));
  for (const auto& [look, kind] : looks)
    for (size_t i = 0; i < sets.size(); ++i) sets_[i][kind] = look[i];
  return Error::Ok;
}

const Grammar::Frame* Grammar::frame(Items returns) {
  std::sort(returns.begin(), returns.end());
  returns.erase(std::unique(returns.begin(), returns.end()), returns.end());
  const auto [found, is_new] = frame_of_.try_emplace(std::move(returns), nullptr);
  if (is_new) {
    frames_.push_back(std::make_unique<Frame>(Frame{found->first, frames_.size()}));
    found->second = frames_.back().get();
  }
  return found->second;
}

Grammar::State* Grammar::intern(Items items, bool accepts) {
  const auto [found, is_new] = state_of_.try_emplace({std::move(items), accepts}, nullptr);
  if (is_new) {
    states_.push_back(
        std::make_unique<State>(State{found->first.first, accepts, std::vector<State*>(num_kinds_),
                                      std::vector<bool>(num_kinds_), nullptr}));
    found->second = states_.back().get();
  }
  return found->second;
}

/// The state of these places, the rules that they call and those that they end.
Result<Grammar::State*> Grammar::close(Items items, bool accepts) {
  std::set<Item> seen, ends;
  std::map<std::pair<size_t, int32_t>, Items> calls;  // by rank
  std::set<int32_t> done;
  for (;;) {
    while (!items.empty()) {
      const Item item = items.back();
      items.pop_back();
      if (item.first < 0) {
        accepts = true;
        continue;
      }
      if (!seen.insert(item).second) continue;
      const int32_t symbol = symbols_[size_t(item.first)];
      if (symbol == kEnd) {
        items.insert(items.end(), item.second->returns.begin(), item.second->returns.end());
      } else if (symbol < 0) {
        ends.insert(item);
      } else {
        if (done.count(symbol) == 0) calls[{rank_[size_t(symbol)], symbol}].push_back(item);
        if (nullable_[size_t(symbol)]) items.emplace_back(item.first + 1, item.second);
      }
    }
    if (calls.empty()) break;
    const int32_t rule = calls.begin()->first.second;
    Items returns;
    for (const auto& [place, from] : calls.begin()->second)
      if (symbols_[size_t(place) + 1] == kEnd)  // nothing is left to do there: its own return will do
        returns.insert(returns.end(), from->returns.begin(), from->returns.end());
      else
        returns.emplace_back(place + 1, from);
    calls.erase(calls.begin());
    done.insert(rule);
    left_ -= static_cast<int64_t>(returns.size());
    const Frame* const to = frame(std::move(returns));
    for (int32_t start : starts_[size_t(rule)]) items.emplace_back(start, to);
  }
  left_ -= static_cast<int64_t>(seen.size()) + 1;
  TORCHETTE_CHECK(left_ >= 0, OutOfResources,
                  "the grammar has too many readings of one text; have fewer alternatives that begin alike");
  return intern(Items(ends.begin(), ends.end()), accepts);
}

Result<Grammar::State*> Grammar::move(State* state, uint8_t kind) {
  if (state->known[kind]) return state->next[kind];
  Items items;
  for (const auto& [place, from] : state->items)
    if (sets_[size_t(~symbols_[size_t(place)])][kind]) items.emplace_back(place + 1, from);
  State* following = nullptr;
  if (!items.empty()) {
    const Result<State*> closed = close(std::move(items), false);
    if (!closed.ok()) return closed.error();
    following = *closed;
  }
  state->known[kind] = true;
  return state->next[kind] = following;
}

/// That state alone, with the frames that it needs; everything else goes.
Grammar::State* Grammar::renew(const State* kept) {
  std::map<size_t, const Frame*> needed;
  std::vector<const Frame*> work;
  for (const Item& item : kept->items) work.push_back(item.second);
  while (!work.empty()) {
    const Frame* one = work.back();
    work.pop_back();
    if (one == nullptr || !needed.try_emplace(one->number, one).second) continue;
    for (const Item& item : one->returns) work.push_back(item.second);
  }
  const auto old_frames = std::move(frames_);
  const auto old_states = std::move(states_);
  frames_.clear();
  states_.clear();
  frame_of_.clear();
  state_of_.clear();
  std::unordered_map<const Frame*, const Frame*> now;
  const auto moved = [&](Items items) {
    for (Item& item : items) item.second = item.second == nullptr ? nullptr : now.at(item.second);
    std::sort(items.begin(), items.end());
    return items;
  };
  for (const auto& [number, one] : needed) now[one] = frame(moved(one->returns));  // callers come first
  return intern(moved(kept->items), kept->accepts);
}

Result<const Grammar::State*> Grammar::start() {
  frames_.clear();
  states_.clear();
  frame_of_.clear();
  state_of_.clear();
  left_ = kMostWork;
  const Frame* const root = frame({{-1, nullptr}});
  Items items;
  for (int32_t place : starts_[0]) items.emplace_back(place, root);
  const Result<State*> state = close(std::move(items), nullable_[0]);
  if (!state.ok()) return state.error();
  return static_cast<const State*>(*state);
}

Result<const Grammar::State*> Grammar::advance(const State* state, std::string_view bytes, bool keeps_older) {
  left_ = kMostWork;
  auto* here = const_cast<State*>(state);
  for (char byte : bytes) {
    const Result<State*> following = move(here, kinds_[static_cast<uint8_t>(byte)]);
    if (!following.ok()) return following.error();
    here = *following;
    if (here == nullptr) break;
  }
  if (!keeps_older && here != nullptr && std::max(states_.size(), frames_.size()) > kMostStates)
    here = renew(here);
  return static_cast<const State*>(here);
}

Result<const std::vector<bool>*> Grammar::mask(const State* state, const GrammarVocabulary& vocabulary) {
  auto* const from = const_cast<State*>(state);
  if (from->mask) return static_cast<const std::vector<bool>*>(from->mask.get());
  left_ = kMostMaskWork;
  auto found = std::make_unique<std::vector<bool>>(vocabulary.tokens_.size());
  std::vector<State*> path = {from};  // behind each byte of the token before, as far as it is allowed
  for (size_t i = 0; i < vocabulary.order_.size(); ++i) {
    const std::string& token = vocabulary.tokens_[vocabulary.order_[i]];
    // it shares bytes with the one before that were not allowed there
    if (vocabulary.common_[i] >= path.size()) continue;
    path.resize(size_t{vocabulary.common_[i]} + 1);
    for (size_t at = path.size() - 1; at < token.size(); ++at) {
      const Result<State*> following = move(path.back(), kinds_[static_cast<uint8_t>(token[at])]);
      if (!following.ok()) return following.error();
      if (*following == nullptr) break;
      path.push_back(*following);
    }
    (*found)[vocabulary.order_[i]] = path.size() == token.size() + 1;
  }
  from->mask = std::move(found);
  return static_cast<const std::vector<bool>*>(from->mask.get());
}

bool Grammar::accepts(const State* state) { return state->accepts; }
bool Grammar::is_done(const State* state) { return state->accepts && state->items.empty(); }

}  // namespace torchette::extension::llm
