// SPDX-License-Identifier: BSD-3-Clause
// Reads the text of a TreeSpec from each line of the standard input. Prints its structure with numbered
// leaves, and the result of to_str(). If the argument is a .pte file, runs its method `forward` on ones and
// prints the outputs.
#include "torchette/extension/pytree.h"

#include <iostream>

#include "torchette/extension/module.h"
#include "torchette/extension/prepare_inputs.h"
#include "torchette/extension/print_value.h"

using namespace torchette;
using namespace torchette::extension;

namespace {

template <typename T>
void print(const pytree::Tree<T>& tree) {
  if (tree.is_leaf()) {
    std::cout << tree.leaf << (tree.spec.is_complex ? "i" : "");
    return;
  }
  std::cout << tree.spec.type << '(';
  for (size_t i = 0; i < tree.size(); ++i) {
    if (i != 0) std::cout << ", ";
    if (!tree.spec.keys.empty()) std::cout << tree.spec.keys[i] << ": ";
    print(tree[i]);
  }
  std::cout << ')';
}

int outputs(const char* path) {
  Module module(path);
  const Result<Method*> method = module.method("forward");
  if (!method.ok()) return 1;
  const Result<PreparedInputs> inputs = prepare_input_tensors(**method);
  Result<std::vector<Value>> values = module.forward();
  const Result<pytree::TreeSpec> spec = pytree::from_str((*method)->method_meta().encoded_outputs());
  if (!inputs.ok() || !values.ok() || !spec.ok()) return 1;
  const Result<pytree::Tree<Value>> tree = pytree::unflatten(*spec, *values);
  if (!tree.ok()) return 1;
  print(*tree);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1) return outputs(argv[1]);
  for (std::string line; std::getline(std::cin, line);) {
    const Result<pytree::TreeSpec> spec = pytree::from_str(line);
    if (!spec.ok()) {
      std::cout << "refused\n";
      continue;
    }
    std::vector<int> leaves(spec->num_leaves());
    for (size_t i = 0; i < leaves.size(); ++i) leaves[i] = static_cast<int>(i);
    const Result<pytree::Tree<int>> tree = pytree::unflatten(*spec, leaves);
    const auto flat = pytree::flatten(pytree::map([](int leaf) { return 10 * leaf; }, *tree));
    leaves.push_back(0);
    const bool right = flat.second == *spec && !pytree::unflatten(*spec, leaves).ok();
    for (size_t i = 0; i < flat.first.size(); ++i)
      if (!right || flat.first[i] != static_cast<int>(10 * i)) return 1;
    print(*tree);
    std::cout << '\t' << pytree::to_str(*spec) << '\n';
  }
  return 0;
}
