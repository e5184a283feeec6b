// SPDX-License-Identifier: BSD-3-Clause
// GrammarVocabulary: the bytes of a model's tokens as a tree of prefixes, in which a grammar finds the tokens
// that it allows.
#pragma once

#include <string>
#include <vector>

#include "torchette/llm/grammar/grammar_parser.h"

namespace torchette::extension::llm {

class GrammarVocabulary {
 public:
  /// A prefix of tokens. A chain of prefixes without a token or a branch is one node.
  struct Node {
    uint32_t end;        // the next node that is not below this one
    uint32_t first;      // the first token with this prefix, an index of order()
    uint32_t num_equal;  // tokens that are equal to the prefix; they come first
    uint32_t size;       // bytes of the prefix
    uint32_t set;        // an index of sets(); kNoSet of a leaf
  };
  static constexpr uint32_t kNoSet = UINT32_MAX;

  /// Token i has the bytes tokens[i]. No grammar allows a token without bytes, such as a special token.
  explicit GrammarVocabulary(std::vector<std::string> tokens);
  const std::vector<std::string>& tokens() const { return tokens_; }

  /// Differs from the id of each other vocabulary of the process.
  uint64_t id() const { return id_; }
  /// The tokens that have bytes, sorted by them.
  const std::vector<uint32_t>& order() const { return order_; }
  /// The nodes in preorder: the children of a node follow it. The last node is not a prefix; it marks the
  /// end.
  const std::vector<Node>& nodes() const { return nodes_; }
  /// For each node, the bytes that occur in its prefix after the prefix of the parent, and in its
  /// descendants.
  const std::vector<ByteSet>& sets() const { return sets_; }

 private:
  void add_nodes();

  std::vector<std::string> tokens_;
  std::vector<uint32_t> order_;
  std::vector<Node> nodes_;
  std::vector<ByteSet> sets_;
  uint64_t id_;
};

}  // namespace torchette::extension::llm
