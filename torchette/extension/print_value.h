// SPDX-License-Identifier: BSD-3-Clause
// std::cout << value: what a value holds, for people.
#pragma once

#include <ostream>

#include "torchette/runtime/value.h"

namespace torchette {

/// `tensor(sizes=[2, 3], [0, 1, 2, 3, 4, 5])`, `tensor(Long, sizes=[], [7])`, `5`, `0.5`, `true`, `[1, 2]`,
/// `"text"`, `None`. Elements are in memory order; of long tensors and lists the first and last are
/// printed.
std::ostream& operator<<(std::ostream& out, const Value& value);

namespace extension {

/// std::cout << evalue_edge_items(3) << value: how many elements to print at either end. The default is 100,
/// and 0 means all. It lasts for as long as the stream.
struct evalue_edge_items {
  explicit evalue_edge_items(long items) : count(items) {}
  long count;
};
std::ostream& operator<<(std::ostream& out, evalue_edge_items items);

}  // namespace extension
}  // namespace torchette
