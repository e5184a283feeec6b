// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/grammar.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {
namespace {

constexpr size_t kMaxStates = 20'000, kMaxMasks = 1'000;
constexpr int64_t kMaxWork = 3'000'000, kMaxMaskWork = 20'000'000;  // items
constexpr int32_t kEnd = INT32_MIN;

/// Returns for each rule whether one of its alternatives consists only of such rules, and of byte sets if
/// `with_bytes`.
std::vector<bool> closed_rules(const std::vector<GrammarRule>& rules, bool with_bytes) {
  struct Alternative {
    size_t rule, num_missing;  // rules that it needs and that are not found yet
  };
  std::vector<bool> found(rules.size());
  std::vector<Alternative> alternatives;
  std::vector<std::vector<size_t>> users(rules.size());  // of a rule, the alternatives that need it
  std::vector<size_t> work;
  for (size_t rule = 0; rule < rules.size(); ++rule)
    for (const GrammarSequence& symbols : rules[rule]) {
      if (!with_bytes && std::any_of(symbols.begin(), symbols.end(), [](int32_t s) { return s < 0; }))
        continue;
      alternatives.push_back({rule, 0});
      for (int32_t symbol : symbols) {
        if (symbol < 0) continue;
        ++alternatives.back().num_missing;
        users[static_cast<size_t>(symbol)].push_back(alternatives.size() - 1);
      }
      if (alternatives.back().num_missing == 0) work.push_back(rule);
    }
  while (!work.empty()) {
    const size_t rule = work.back();
    work.pop_back();
    if (found[rule]) continue;
    found[rule] = true;
    for (size_t i : users[rule])
      if (--alternatives[i].num_missing == 0) work.push_back(alternatives[i].rule);
  }
  return found;
}

template <typename Items>
size_t hash_of(const Items& items) {
  size_t hash = items.size();
  for (const auto& [symbol, frame] : items) {
    hash = (hash ^ static_cast<size_t>(symbol)) * 0x9E3779B97F4A7C15u;
    hash = (hash ^ reinterpret_cast<size_t>(frame) >> 4) * 0x9E3779B97F4A7C15u;
    hash ^= hash >> 29;
  }
  return hash;
}

template <typename Items>
void sort_and_unique(Items* items) {
  std::sort(items->begin(), items->end());
  items->erase(std::unique(items->begin(), items->end()), items->end());
}

bool is_subset(const ByteSet& some, const ByteSet& all) {
  return ((some[0] & ~all[0]) | (some[1] & ~all[1]) | (some[2] & ~all[2]) | (some[3] & ~all[3])) == 0;
}

template <typename Item>
struct ItemHash {
  size_t operator()(const Item& item) const {
    return (static_cast<size_t>(item.first) ^ reinterpret_cast<size_t>(item.second) >> 4) *
           0x9E3779B97F4A7C15u;
  }
};

}  // namespace

struct Grammar::Frame {
  Items returns;  // the root rule returns to -1
  size_t index;   // a frame returns to frames with a lower index
};

struct Grammar::State {
  Cache* cache;
  Items items;
  bool accepts;
  std::vector<State*> next;  // by kind of byte; kUnknown until the first move
  ByteSet loops = {};        // bytes that are known to lead back to this state
  bool has_all_loops = false;
  std::vector<bool> mask = {};
  uint64_t mask_vocabulary = 0;  // its id; 0 without a mask
};

/// States and their frames, which refer to each other. A full cache is replaced by an empty one.
struct Grammar::Cache : std::enable_shared_from_this<Cache> {
  std::vector<std::unique_ptr<Frame>> frames;
  std::vector<std::unique_ptr<State>> states;
  std::unordered_multimap<size_t, Frame*> frame_of;  // by the hash of its items
  std::unordered_multimap<size_t, State*> state_of;
  State unknown{this, {}, false, {}};
  State* start = nullptr;
  std::vector<State*> with_masks;

  const Frame* frame(Items returns) {
    sort_and_unique(&returns);
    const size_t hash = hash_of(returns);
    const auto [first, last] = frame_of.equal_range(hash);
    for (auto at = first; at != last; ++at)
      if (at->second->returns == returns) return at->second;
    frames.push_back(std::make_unique<Frame>(Frame{std::move(returns), frames.size()}));
    frame_of.emplace(hash, frames.back().get());
    return frames.back().get();
  }
  State* state(Items items, bool accepts, size_t num_kinds) {
    std::sort(items.begin(), items.end());
    const size_t hash = hash_of(items) + accepts;
    const auto [first, last] = state_of.equal_range(hash);
    for (auto at = first; at != last; ++at)
      if (at->second->accepts == accepts && at->second->items == items) return at->second;
    states.push_back(std::make_unique<State>(
        State{this, std::move(items), accepts, std::vector<State*>(num_kinds, &unknown)}));
    state_of.emplace(hash, states.back().get());
    return states.back().get();
  }
  bool is_full() const { return std::max(states.size(), frames.size()) > kMaxStates; }
};

Grammar::Grammar() = default;
Grammar::~Grammar() = default;

Result<std::unique_ptr<Grammar>> Grammar::parse(std::string_view text, const std::string& root) {
  Result<GrammarRules> rules = parse_grammar(text, root);
  if (!rules.ok()) return rules.error();
  auto grammar = std::make_unique<Grammar>();
  TORCHETTE_TRY(grammar->prepare(std::move(*rules)));
  return grammar;
}

Error Grammar::prepare(GrammarRules given) {
  const std::vector<bool> ends = closed_rules(given.rules, true);
  TORCHETTE_CHECK(ends[0], InvalidArgument,
                  "rule '%s' never comes to an end; add an alternative that does not call it",
                  given.names[0].c_str());
  for (GrammarRule& rule : given.rules)  // alternatives that never end
    rule.erase(std::remove_if(rule.begin(), rule.end(),
                              [&](const GrammarSequence& symbols) {
                                return std::any_of(symbols.begin(), symbols.end(),
                                                   [&](int32_t s) { return s >= 0 && !ends[size_t(s)]; });
                              }),
               rule.end());
  is_nullable_ = closed_rules(given.rules, false);
  for (const GrammarRule& rule : given.rules) {
    starts_.emplace_back();
    for (const GrammarSequence& symbols : rule) {
      starts_.back().push_back(static_cast<int32_t>(symbols_.size()));
      symbols_.insert(symbols_.end(), symbols.begin(), symbols.end());
      symbols_.push_back(kEnd);
    }
  }
  group_bytes(given.sets);
  return sort_rules(given.names);
}

/// Ranks each rule after the rules that may call it before any byte. Error: InvalidArgument (left recursion).
Error Grammar::sort_rules(const std::vector<std::string>& names) {
  const size_t count = starts_.size();
  std::vector<std::vector<int32_t>> called(count);
  for (size_t rule = 0; rule < count; ++rule)
    for (int32_t at : starts_[rule])
      for (; symbols_[size_t(at)] >= 0; ++at) {
        const int32_t symbol = symbols_[size_t(at)];
        // a call of itself at the end is not a recursion: after nullable symbols it returns to the same items
        if (symbol != static_cast<int32_t>(rule) || symbols_[size_t(at) + 1] != kEnd)
          called[rule].push_back(symbol);
        if (!is_nullable_[size_t(symbol)]) break;
      }
  enum class Mark : uint8_t { New, Open, Done };
  std::vector<Mark> marks(count, Mark::New);
  rank_.assign(count, 0);
  size_t rank = count;
  for (size_t root = 0; root < count; ++root) {
    std::vector<std::pair<size_t, size_t>> path;  // a rule and the next call of it
    if (marks[root] == Mark::New) path.emplace_back(root, 0), marks[root] = Mark::Open;
    while (!path.empty()) {
      auto& [rule, next] = path.back();
      if (next == called[rule].size()) {
        marks[rule] = Mark::Done;
        rank_[rule] = --rank;
        path.pop_back();
        continue;
      }
      const auto other = static_cast<size_t>(called[rule][next++]);
      TORCHETTE_CHECK(marks[other] != Mark::Open, InvalidArgument,
                      "rule '%s' calls itself before any character (left recursion); put what is repeated "
                      "first: list ::= item list | item",
                      names[other].c_str());
      if (marks[other] == Mark::New) path.emplace_back(other, 0), marks[other] = Mark::Open;
    }
  }
  return Error::Ok;
}

void Grammar::group_bytes(const std::vector<ByteSet>& sets) {
  const auto contains = [](const ByteSet& set, size_t byte) {
    return (set[byte / 64] >> byte % 64 & 1) != 0;
  };
  std::map<std::vector<bool>, uint8_t> kinds;  // by the sets that contain the byte
  for (size_t byte = 0; byte < 256; ++byte) {
    std::vector<bool> in(sets.size());
    for (size_t i = 0; i < sets.size(); ++i) in[i] = contains(sets[i], byte);
    const uint8_t kind = kinds.try_emplace(std::move(in), static_cast<uint8_t>(kinds.size())).first->second;
    kinds_[byte] = kind;
    members_.resize(kinds.size());
    members_[kind][byte / 64] |= uint64_t{1} << byte % 64;
  }
  sets_.assign(sets.size(), Kinds(kinds.size()));
  for (const auto& [in, kind] : kinds)
    for (size_t i = 0; i < sets.size(); ++i) sets_[i][kind] = in[i];
}

/// The state of these items, after the rules that they call and the rules that they end.
Result<Grammar::State*> Grammar::close(Cache* cache, Items items, bool accepts) {
  std::unordered_set<Item, ItemHash<Item>> seen;
  Items found;
  std::map<size_t, Items> calls;  // by the rank of the rule
  size_t rank = 0;
  bool has_rank = false;
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
        found.push_back(item);
      } else {
        // a call of a rule that is done is a call of itself at its end
        if (!has_rank || rank_[size_t(symbol)] > rank) calls[rank_[size_t(symbol)]].push_back(item);
        if (is_nullable_[size_t(symbol)]) items.emplace_back(item.first + 1, item.second);
      }
    }
    if (calls.empty()) break;
    rank = calls.begin()->first;
    has_rank = true;
    const Items callers = std::move(calls.begin()->second);
    calls.erase(calls.begin());
    Items returns;
    for (const auto& [at, frame] : callers)
      if (symbols_[size_t(at) + 1] == kEnd)  // the caller ends here: return to its own frame
        returns.insert(returns.end(), frame->returns.begin(), frame->returns.end());
      else
        returns.emplace_back(at + 1, frame);
    work_left_ -= static_cast<int64_t>(returns.size());
    const Frame* const to = cache->frame(std::move(returns));
    for (int32_t start : starts_[size_t(symbols_[size_t(callers[0].first)])]) items.emplace_back(start, to);
  }
  work_left_ -= static_cast<int64_t>(seen.size()) + 1;
  TORCHETTE_CHECK(work_left_ >= 0, OutOfResources,
                  "the grammar has too many readings of one text; use fewer alternatives that begin alike");
  return cache->state(std::move(found), accepts, members_.size());
}

Result<Grammar::State*> Grammar::move(State* state, uint8_t kind) {
  if (state->next[kind] != &state->cache->unknown) return state->next[kind];
  Items items;
  for (const auto& [at, frame] : state->items)
    if (sets_[size_t(~symbols_[size_t(at)])][kind]) items.emplace_back(at + 1, frame);
  State* next = nullptr;
  if (!items.empty()) {
    const Result<State*> closed = close(state->cache, std::move(items), false);
    if (!closed.ok()) return closed.error();
    next = *closed;
  }
  if (next == state)
    for (size_t i = 0; i < state->loops.size(); ++i) state->loops[i] |= members_[kind][i];
  return state->next[kind] = next;
}

/// A copy of the state and of the frames that it needs in a new cache.
Grammar::State* Grammar::renew(const State* kept) {
  std::map<size_t, const Frame*> needed;
  std::vector<const Frame*> work;
  for (const Item& item : kept->items) work.push_back(item.second);
  while (!work.empty()) {
    const Frame* frame = work.back();
    work.pop_back();
    if (frame == nullptr || !needed.try_emplace(frame->index, frame).second) continue;
    for (const Item& item : frame->returns) work.push_back(item.second);
  }
  const auto old = std::exchange(cache_, std::make_shared<Cache>());
  std::unordered_map<const Frame*, const Frame*> copies;
  const auto copied = [&](Items items) {
    for (Item& item : items) item.second = item.second == nullptr ? nullptr : copies.at(item.second);
    return items;
  };
  for (const auto& [index, frame] : needed) copies[frame] = cache_->frame(copied(frame->returns));
  return cache_->state(copied(kept->items), kept->accepts, members_.size());
}

Result<const Grammar::State*> Grammar::start() {
  work_left_ = kMaxWork;
  if (!cache_ || cache_->is_full()) cache_ = std::make_shared<Cache>();
  if (cache_->start == nullptr) {
    const Frame* const root = cache_->frame({{-1, nullptr}});
    Items items;
    for (int32_t at : starts_[0]) items.emplace_back(at, root);
    const Result<State*> state = close(cache_.get(), std::move(items), is_nullable_[0]);
    if (!state.ok()) return state.error();
    cache_->start = *state;
  }
  return static_cast<const State*>(cache_->start);
}

Result<const Grammar::State*> Grammar::advance(const State* state, std::string_view bytes, bool keeps_older) {
  work_left_ = kMaxWork;
  auto* here = const_cast<State*>(state);
  for (char byte : bytes) {
    const Result<State*> next = move(here, kinds_[static_cast<uint8_t>(byte)]);
    if (!next.ok()) return next.error();
    here = *next;
    if (here == nullptr) break;
  }
  if (!keeps_older && here != nullptr && here->cache->is_full()) here = renew(here);
  return static_cast<const State*>(here);
}

Result<const std::vector<bool>*> Grammar::mask(const State* state, const GrammarVocabulary& vocabulary) {
  auto* const from = const_cast<State*>(state);
  if (from->mask_vocabulary != vocabulary.id()) {
    work_left_ = kMaxMaskWork;
    std::vector<bool> mask(vocabulary.tokens().size());
    TORCHETTE_TRY(add_allowed(from, vocabulary, &mask));
    std::vector<State*>& with_masks = from->cache->with_masks;
    if (with_masks.size() >= kMaxMasks) {
      for (State* other : with_masks) other->mask = {}, other->mask_vocabulary = 0;
      with_masks.clear();
    }
    if (from->mask_vocabulary == 0) with_masks.push_back(from);
    from->mask = std::move(mask);
    from->mask_vocabulary = vocabulary.id();
  }
  return static_cast<const std::vector<bool>*>(&from->mask);
}

/// Makes every move of a state that some byte leads back to, so that `loops` is complete.
Error Grammar::find_loops(State* state) {
  if (state->has_all_loops || state->loops == ByteSet{}) return Error::Ok;
  for (size_t kind = 0; kind < members_.size(); ++kind) {
    const Result<State*> next = move(state, static_cast<uint8_t>(kind));
    if (!next.ok()) return next.error();
  }
  state->has_all_loops = true;
  return Error::Ok;
}

Error Grammar::add_allowed(State* state, const GrammarVocabulary& vocabulary, std::vector<bool>* mask) {
  const std::vector<GrammarVocabulary::Node>& nodes = vocabulary.nodes();
  const std::vector<uint32_t>& order = vocabulary.order();
  const auto allow = [&](uint32_t first, uint32_t end) {
    for (uint32_t i = first; i < end; ++i) (*mask)[order[i]] = true;
  };
  struct Open {
    size_t end;  // of the node
    uint32_t size;
    State* state;  // after its prefix
  };
  std::vector<Open> path = {{nodes.size(), 0, state}};
  for (size_t at = 0; at + 1 < nodes.size();) {
    while (path.back().end <= at) path.pop_back();
    const GrammarVocabulary::Node& node = nodes[at];
    State* here = path.back().state;
    if (node.set != GrammarVocabulary::kNoSet) TORCHETTE_TRY(find_loops(here));
    if (node.set != GrammarVocabulary::kNoSet && is_subset(vocabulary.sets()[node.set], here->loops)) {
      allow(node.first, nodes[node.end].first);  // every token below leads back to this state
      at = node.end;
      continue;
    }
    const std::string& token = vocabulary.tokens()[order[node.first]];
    for (size_t i = path.back().size; i < node.size && here != nullptr; ++i) {
      const Result<State*> next = move(here, kinds_[static_cast<uint8_t>(token[i])]);
      if (!next.ok()) return next.error();
      here = *next;
    }
    if (here == nullptr) {
      at = node.end;
      continue;
    }
    allow(node.first, node.first + node.num_equal);
    if (node.end > at + 1) path.push_back({node.end, node.size, here});
    ++at;
  }
  return Error::Ok;
}

std::shared_ptr<const Grammar::State> Grammar::keep(const State* state) {
  return {state->cache->shared_from_this(), state};
}
bool Grammar::accepts(const State* state) { return state->accepts; }
bool Grammar::is_done(const State* state) { return state->accepts && state->items.empty(); }
size_t Grammar::num_states() const { return cache_ ? cache_->states.size() : 0; }

}  // namespace torchette::extension::llm
