// SPDX-License-Identifier: BSD-3-Clause
// Prints a value in readable form: std::cout << value.
#pragma once

#include <ostream>

#include "torchette/runtime/value.h"

namespace torchette {

/// Prints `tensor(sizes=[2, 3], [0, 1, 2, 3, 4, 5])`, `tensor(Long, sizes=[], [7])`, `5`, `0.5`, `true`,
/// `[1, 2]`, `"text"` or `None`. Elements are in memory order. Only the first and last elements of long
/// tensors and lists are printed.
std::ostream& operator<<(std::ostream& out, const Value& value);

namespace extension {

/// Sets the number of elements that a stream prints at either end of a list: std::cout <<
/// evalue_edge_items(3)
/// << value. The default is 100; 0 means all elements. The setting applies to all later output of the stream.
struct evalue_edge_items {
  explicit evalue_edge_items(long items) : count(items) {}
  long count;
};
std::ostream& operator<<(std::ostream& out, evalue_edge_items items);

}  // namespace extension
}  // namespace torchette
