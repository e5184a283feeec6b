// SPDX-License-Identifier: BSD-3-Clause
// The trees of a method's inputs and outputs: from the text that a file holds (MethodMeta::encoded_outputs(),
// torch's own) to nested structures and back. For machines with a heap.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::pytree {

enum class Kind : uint8_t { Leaf, Tuple, List, Dict, Custom };

/// The form of a structure, without the values. `keys` are those of a dict, numbers as text, one for each
/// child.
struct TreeSpec {
  Kind kind = Kind::Leaf;
  std::string type;              // the registered name, such as builtins.dict; empty for a leaf
  std::string context = "null";  // what the container needs besides its children: JSON as in the file
  std::vector<std::string> keys;
  std::vector<TreeSpec> children;
  // Of a leaf: the model's result is complex, and the tensor is its real view, pairs in a last dimension
  // of 2.
  bool is_complex = false;

  bool is_leaf() const { return kind == Kind::Leaf; }
  size_t num_leaves() const;
};
bool operator==(const TreeSpec& a, const TreeSpec& b);

/// Error: InvalidProgram (no such text; nested deeper than 64).
Result<TreeSpec> from_str(Span<const char> text);
Result<TreeSpec> from_str(const char* text);
/// The text that torch writes.
std::string to_str(const TreeSpec& spec);

/// A structure with its values.
template <typename T>
struct Tree {
  TreeSpec spec;  // without children: those are below
  std::vector<Tree> children;
  T leaf{};

  bool is_leaf() const { return spec.is_leaf(); }
  size_t size() const { return children.size(); }
  /// 0 <= i < size().
  const Tree& operator[](size_t i) const { return children[i]; }
  /// The member of a dict, or null.
  const Tree* find(std::string_view key) const {
    for (size_t i = 0; i < spec.keys.size(); ++i)
      if (spec.keys[i] == key) return &children[i];
    return nullptr;
  }
};

/// Takes leaves from `next` on, in order.
template <typename T>
Tree<T> unflatten_from(const TreeSpec& spec, const T*& next) {
  Tree<T> tree;
  tree.spec.kind = spec.kind;
  tree.spec.type = spec.type;
  tree.spec.context = spec.context;
  tree.spec.keys = spec.keys;
  tree.spec.is_complex = spec.is_complex;
  if (spec.is_leaf()) tree.leaf = *next++;
  tree.children.reserve(spec.children.size());
  for (const TreeSpec& child : spec.children) tree.children.push_back(unflatten_from(child, next));
  return tree;
}

/// Error: InvalidArgument (another number of leaves).
template <typename T>
Result<Tree<T>> unflatten(const TreeSpec& spec, const std::vector<T>& leaves) {
  if (leaves.size() != spec.num_leaves()) return Error::InvalidArgument;
  const T* next = leaves.data();
  return unflatten_from(spec, next);
}

template <typename T>
TreeSpec flatten_into(const Tree<T>& tree, std::vector<T>* leaves) {
  TreeSpec spec = tree.spec;
  if (tree.is_leaf()) leaves->push_back(tree.leaf);
  for (const Tree<T>& child : tree.children) spec.children.push_back(flatten_into(child, leaves));
  return spec;
}

/// The leaves in order, and their structure.
template <typename T>
std::pair<std::vector<T>, TreeSpec> flatten(const Tree<T>& tree) {
  std::vector<T> leaves;
  TreeSpec spec = flatten_into(tree, &leaves);
  return {std::move(leaves), std::move(spec)};
}

/// The same structure with `function` of each leaf.
template <typename T, typename F>
auto map(F&& function, const Tree<T>& tree) -> Tree<decltype(function(tree.leaf))> {
  Tree<decltype(function(tree.leaf))> result;
  result.spec = tree.spec;
  if (tree.is_leaf()) result.leaf = function(tree.leaf);
  for (const Tree<T>& child : tree.children) result.children.push_back(map(function, child));
  return result;
}

}  // namespace torchette::extension::pytree
