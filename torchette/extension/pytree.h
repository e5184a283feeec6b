// SPDX-License-Identifier: BSD-3-Clause
// Converts the structure of a method's inputs and outputs from the text in a file
// (MethodMeta::encoded_outputs(), in torch's format) to nested structures and back. Requires a heap.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/runtime/result.h"
#include "torchette/runtime/span.h"

namespace torchette::extension::pytree {

enum class Kind : uint8_t { Leaf, Tuple, List, Dict, Custom };

/// The form of a structure without its values. `keys` contains the key of each child of a dict; integer keys
/// are text.
struct TreeSpec {
  Kind kind = Kind::Leaf;
  std::string type;              // the registered name, such as builtins.dict; empty for a leaf
  std::string context = "null";  // data of the container besides its children, as JSON text of the file
  std::vector<std::string> keys;
  std::vector<TreeSpec> children;
  // For a leaf: the model's output is complex, and the tensor is its real view with a last dimension of 2.
  bool is_complex = false;

  bool is_leaf() const { return kind == Kind::Leaf; }
  size_t num_leaves() const;
};
bool operator==(const TreeSpec& a, const TreeSpec& b);

/// Parses the text of a TreeSpec. Error: InvalidProgram (the text is invalid, or nested deeper than 64
/// levels).
Result<TreeSpec> from_str(Span<const char> text);
Result<TreeSpec> from_str(const char* text);
/// Returns the text of a TreeSpec in torch's format.
std::string to_str(const TreeSpec& spec);

/// A nested structure of values.
template <typename T>
struct Tree {
  TreeSpec spec;  // its `children` are empty
  std::vector<Tree> children;
  T leaf{};

  bool is_leaf() const { return spec.is_leaf(); }
  size_t size() const { return children.size(); }
  /// Returns child `i`; 0 <= i < size().
  const Tree& operator[](size_t i) const { return children[i]; }
  /// Returns the child of a dict with this key, or null.
  const Tree* find(std::string_view key) const {
    for (size_t i = 0; i < spec.keys.size(); ++i)
      if (spec.keys[i] == key) return &children[i];
    return nullptr;
  }
};

/// Builds a tree from the leaves that start at `next`, and advances `next`.
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

/// Builds a tree from its leaves. Error: InvalidArgument (`leaves` does not have spec.num_leaves() elements).
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

/// Returns the leaves in order, and the TreeSpec.
template <typename T>
std::pair<std::vector<T>, TreeSpec> flatten(const Tree<T>& tree) {
  std::vector<T> leaves;
  TreeSpec spec = flatten_into(tree, &leaves);
  return {std::move(leaves), std::move(spec)};
}

/// Returns a tree of the same structure with `function` applied to each leaf.
template <typename T, typename F>
auto map(F&& function, const Tree<T>& tree) -> Tree<decltype(function(tree.leaf))> {
  Tree<decltype(function(tree.leaf))> result;
  result.spec = tree.spec;
  if (tree.is_leaf()) result.leaf = function(tree.leaf);
  for (const Tree<T>& child : tree.children) result.children.push_back(map(function, child));
  return result;
}

}  // namespace torchette::extension::pytree
