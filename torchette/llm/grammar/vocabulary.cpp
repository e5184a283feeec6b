// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/grammar/vocabulary.h"

#include <algorithm>
#include <atomic>

namespace torchette::extension::llm {
namespace {

size_t num_common(const std::string& a, const std::string& b) {
  const auto size = static_cast<std::ptrdiff_t>(std::min(a.size(), b.size()));
  return static_cast<size_t>(std::mismatch(a.begin(), a.begin() + size, b.begin()).first - a.begin());
}

void merge(const ByteSet& from, ByteSet* to) {
  for (size_t i = 0; i < to->size(); ++i) (*to)[i] |= from[i];
}

}  // namespace

GrammarVocabulary::GrammarVocabulary(std::vector<std::string> tokens) : tokens_(std::move(tokens)) {
  static std::atomic<uint64_t> num_vocabularies{0};
  id_ = ++num_vocabularies;
  for (size_t i = 0; i < tokens_.size(); ++i)
    if (!tokens_[i].empty()) order_.push_back(static_cast<uint32_t>(i));
  std::sort(order_.begin(), order_.end(), [&](uint32_t a, uint32_t b) { return tokens_[a] < tokens_[b]; });
  add_nodes();
}

/// Without recursion: a file may have tokens of any length.
void GrammarVocabulary::add_nodes() {
  struct Open {
    size_t node, at, end, size;  // tokens from `at` to `end` of the order are not in a child yet
    ByteSet bytes;
  };
  const auto token = [&](size_t i) -> const std::string& { return tokens_[order_[i]]; };
  std::vector<Open> path = {{SIZE_MAX, 0, order_.size(), 0, {}}};
  for (;;) {
    if (path.back().at == path.back().end) {
      const Open done = path.back();
      path.pop_back();
      if (path.empty()) break;
      nodes_[done.node].end = static_cast<uint32_t>(nodes_.size());
      nodes_[done.node].set = static_cast<uint32_t>(sets_.size());
      sets_.push_back(done.bytes);
      merge(done.bytes, &path.back().bytes);
      continue;
    }
    Open& parent = path.back();
    const size_t begin = parent.at, parent_size = parent.size;
    while (parent.at < parent.end && token(parent.at)[parent_size] == token(begin)[parent_size]) ++parent.at;
    const size_t end = parent.at, size = num_common(token(begin), token(end - 1));
    size_t first_child = begin;
    while (first_child < end && token(first_child).size() == size) ++first_child;
    ByteSet bytes = {};
    for (size_t i = parent_size; i < size; ++i) {
      const auto byte = static_cast<uint8_t>(token(begin)[i]);
      bytes[byte / 64] |= uint64_t{1} << byte % 64;
    }
    nodes_.push_back({static_cast<uint32_t>(nodes_.size() + 1), static_cast<uint32_t>(begin),
                      static_cast<uint32_t>(first_child - begin), static_cast<uint32_t>(size), kNoSet});
    if (first_child == end)
      merge(bytes, &parent.bytes);
    else
      path.push_back({nodes_.size() - 1, first_child, end, size, bytes});
  }
  nodes_.push_back({0, static_cast<uint32_t>(order_.size()), 0, 0, kNoSet});
}

}  // namespace torchette::extension::llm
