// SPDX-License-Identifier: BSD-3-Clause
// Functions of an operator family that other families use.
#pragma once

#include <cmath>

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {

constexpr int64_t kGroup = 64;  // invocations of most shaders' groups
inline int64_t groups_for(int64_t elements) { return (elements + kGroup - 1) / kGroup; }

/// The range of the results.
struct Limits {
  double low = -INFINITY, high = INFINITY;
};

/// Runs the first operator of pointwise.def with this name. `p` and `q` are its scalar arguments.
void pointwise(Graph& graph, const char* name, std::initializer_list<const View*> operands, const View& out,
               double p = 0, double q = 0);
/// Sets element i to p + q * i.
void fill(Graph& graph, const View& out, double p, double q = 0);
/// out = clamp(alpha * a @ b + beta * bias). a is (..., m, k), b is (..., k, n), both with any strides. bias
/// broadcasts.
void matmul(Graph& graph, View a, View b, const View* bias, const View& out, double alpha = 1,
            double beta = 1, const Limits& limits = Limits(), const Epilogue& then = Epilogue());
/// As in softmax.comp. kSafe yields zeros for a row of -infinity, as torch's attention does.
enum class SoftmaxMode : uint32_t { kPlain, kLogarithm, kSafe };
void softmax(Graph& graph, const View& in, int dim, SoftmaxMode mode, const View& out);
/// Returns a view with another shape and the same elements in the same order; copies them if necessary.
View reshaped(Graph& graph, const View& view, const Numbers& sizes);
View transposed(const View& view, int a, int b);
/// Broadcasts `view` to the sizes of `to`.
View broadcast(Graph& graph, const View& view, const View& to);
/// Returns `view`, or a copy converted to `kind`.
View converted(Graph& graph, const View& view, Kind kind);
/// The variant of a shader for float32 (`words`) or float16 (`half`).
inline const Shader& variant(Kind kind, const Shader& words, const Shader& half) {
  return kind == Kind::kHalf ? half : words;
}

bool reads_bytes_of_filters(Operator run);
/// The mean of each plane of the two last dimensions, which remain with size 1, and the operators after it if
/// they are squeeze-and-excitation.
void global_mean(Call& call);
/// `pool` has computed the `means` of the channels of x. Computes x * gate(layer(activation(layer(means))))
/// if the payload's next calls do.
void excite(const Call& pool, const View& x, const View& means);

extern const Span<const NamedOperator> kPointwise, kShapes, kMatmuls, kConvolutions, kPools, kNorms,
    kReductions, kIndexing, kResizing, kQuantization;

}  // namespace vulkan
}  // namespace torchette
