// SPDX-License-Identifier: BSD-3-Clause
// What one family of operators takes from another.
#pragma once

#include <cmath>

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {

constexpr int64_t kGroup = 64;  // invocations of most shaders' groups
inline int64_t groups_for(int64_t elements) { return (elements + kGroup - 1) / kGroup; }

/// What results are clamped to.
struct Limits {
  double low = -INFINITY, high = INFINITY;
};

/// What pointwise.def has, by its name and, where there are several of it, by the text that it needs.
void pointwise(Graph& graph, const char* name, std::initializer_list<const View*> operands, const View& out,
               double p = 0, double q = 0);
/// p + q * i for each element i.
void fill(Graph& graph, const View& out, double p, double q = 0);
/// out = limited(alpha * a @ b + beta * bias); a (..., m, k), b (..., k, n), of any strides; bias may be
/// broadcast.
void matmul(Graph& graph, View a, View b, const View* bias, const View& out, double alpha = 1,
            double beta = 1, const Limits& limits = Limits(), const Epilogue& then = Epilogue());
void softmax(Graph& graph, const View& in, int dim, bool logarithm, const View& out);
/// A view of another shape whose elements are those of `view` in the same order, copied if need be.
View reshaped(Graph& graph, const View& view, const Numbers& sizes);
View transposed(const View& view, int a, int b);
/// `view` as it is broadcast to the sizes of `to`.
View broadcast(Graph& graph, const View& view, const View& to);
/// In the kind that is asked for.
View converted(Graph& graph, const View& view, Kind kind);
/// The shader for what holds floats or halves.
inline const Shader& variant(Kind kind, const Shader& words, const Shader& half) {
  return kind == Kind::kHalf ? half : words;
}

bool reads_bytes_of_filters(Operator run);

extern const Span<const NamedOperator> kPointwise, kShapes, kProducts, kConvolutions, kPools, kNorms,
    kReductions, kIndexing, kResizing, kQuantization;

}  // namespace vulkan
}  // namespace torchette
