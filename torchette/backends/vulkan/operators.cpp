// SPDX-License-Identifier: BSD-3-Clause
// All families in one table.
#include "torchette/backends/vulkan/operators.h"

namespace torchette {
namespace vulkan {

Operator find_operator(Span<const char> name) {
  for (const Span<const NamedOperator>& family : {kPointwise, kShapes, kMatmuls, kConvolutions, kPools,
                                                  kNorms, kReductions, kIndexing, kResizing, kQuantization})
    for (const NamedOperator& it : family)
      if (strlen(it.name) == name.size() && memcmp(it.name, name.data(), name.size()) == 0) return it.run;
  return nullptr;
}

}  // namespace vulkan
}  // namespace torchette
