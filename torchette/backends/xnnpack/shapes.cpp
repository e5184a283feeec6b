// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/shapes.h"

#include <algorithm>

#include "torchette/runtime/kernel.h"

namespace torchette {
namespace xnnpack {
namespace {

constexpr uint64_t kMaxElements = uint64_t{1} << 30;  // of a value
constexpr uint64_t kTaps = uint64_t{1} << 28;  // elements of all windows, for which the library keeps a table
constexpr uint64_t kRange = uint64_t{1}
                            << 31;  // of any number, so that sums and products of two do not overflow

/// The number of elements, at most kMaxElements + 1.
uint64_t elements(const Dims& dims) {
  uint64_t count = 1;
  for (size_t d : dims) count = d != 0 && count > kMaxElements / d ? kMaxElements + 1 : count * d;
  return std::find(dims.begin(), dims.end(), 0u) != dims.end() ? 0 : std::min(count, kMaxElements + 1);
}

/// Broadcasts sizes to each other, except the last `kept`. Returns false if they do not fit.
bool broadcast(const Dims& a, const Dims& b, size_t kept, Dims* out) {
  const size_t rank = std::max(a.size(), b.size());
  out->assign(rank, 1);
  for (size_t i = kept; i < rank; ++i) {
    const size_t x = i < a.size() ? a[a.size() - 1 - i] : 1, y = i < b.size() ? b[b.size() - 1 - i] : 1;
    if (x != y && x != 1 && y != 1) return false;
    (*out)[rank - 1 - i] = x == 1 ? y : x;
  }
  return true;
}

/// How many windows fit along one dimension of an image; 0 if none fits.
uint64_t windows(uint64_t size, const uint64_t* numbers, bool is_pool) {
  const uint64_t kernel = numbers[0], stride = numbers[2], dilation = numbers[4];
  const uint64_t before = numbers[6], behind = numbers[8];
  if (size == 0 || kernel == 0 || stride == 0 || dilation == 0) return 0;
  const uint64_t span = (kernel - 1) * dilation + 1;
  if (is_pool && (before >= span || behind >= span)) return 0;  // a window of padding alone
  return size + before + behind < span ? 0 : (size + before + behind - span) / stride + 1;
}

/// The size of a dimension of the result of a transposed convolution; 0 if it is empty.
uint64_t spread(uint64_t size, const uint64_t* numbers, uint64_t adjustment) {
  const uint64_t kernel = numbers[0], stride = numbers[2], dilation = numbers[4];
  const uint64_t padding = numbers[6] + numbers[8];
  if (size == 0 || kernel == 0 || stride == 0 || dilation == 0 || adjustment >= stride) return 0;
  if (size > kRange / stride || kernel > kRange / dilation) return 0;
  const uint64_t whole = (size - 1) * stride + adjustment + (kernel - 1) * dilation + 1;
  return whole > padding ? whole - padding : 0;
}

bool is_image(const Dims& dims, uint64_t channels) {
  return dims.size() == 4 && (channels == 0 || dims[3] == channels);
}

/// Whether a result of this height and width is not empty and its windows have at most kTaps elements. `n`
/// starts with the height and width of the kernel.
bool has_few_taps(uint64_t height, uint64_t width, const std::vector<uint64_t>& n) {
  return height != 0 && width != 0 && height <= kTaps / width && n[0] <= kTaps / n[1] &&
         height * width <= kTaps / (n[0] * n[1]);
}

// The size functions of the kinds of nodes. `*out` has the sizes of the first input when they are called.
// They return false if the sizes do not fit the node.

bool concatenate(const Step& step, const std::vector<Dims>& sizes, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const size_t rank = in.size();
  if (n[0] >= rank) return false;
  for (size_t i = 1; i < step.inputs.size(); ++i) {
    Dims other = sizes[step.inputs[i]];
    if (other.size() != rank) return false;
    (*out)[n[0]] += other[n[0]];
    other[n[0]] = in[n[0]];
    if (other != in) return false;
  }
  return true;
}

bool convolution(const Step& step, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const uint64_t from = n[Step::kWindow], to = n[Step::kWindow + 1];
  if (!is_image(in, from)) return false;
  const uint64_t height = windows(in[1], &n[0], to == 0), width = windows(in[2], &n[1], to == 0);
  if (!has_few_taps(height, width, n)) return false;
  *out = {in[0], static_cast<size_t>(height), static_cast<size_t>(width), to == 0 ? in[3] : to};
  return true;
}

bool transposed_convolution(const Step& step, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const uint64_t *adjustment = &n[Step::kWindow], *channels = adjustment + 2;
  if (!is_image(in, channels[0])) return false;
  const uint64_t height = spread(in[1], &n[0], adjustment[0]), width = spread(in[2], &n[1], adjustment[1]);
  if (!has_few_taps(height, width, n)) return false;
  *out = {in[0], static_cast<size_t>(height), static_cast<size_t>(width), channels[1]};
  return true;
}

bool linear(const Step& step, const std::vector<Dims>& sizes, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const size_t rank = in.size();
  const Dims& weights = sizes[step.inputs[1]];
  const size_t from = n[0] != 0 ? 0 : 1;
  if (rank == 0 || weights.size() != 2 || in.back() != weights[from]) return false;
  out->back() = weights[1 - from];
  if (step.inputs.size() < 3) return true;
  const Dims& added = sizes[step.inputs[2]];
  return !added.empty() && added.back() == out->back() &&
         std::all_of(added.begin(), added.end() - 1, [](size_t d) { return d == 1; });
}

bool matmul(const Step& step, const std::vector<Dims>& sizes, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const size_t rank = in.size();
  const Dims& other = sizes[step.inputs[1]];
  if (rank < 2 || other.size() < 2 || !broadcast(in, other, 2, out)) return false;
  const size_t rows = other[other.size() - 2], columns = other.back();
  if (in.back() != (n[0] != 0 ? columns : rows)) return false;
  (*out)[out->size() - 2] = in[rank - 2];
  out->back() = n[0] != 0 ? rows : columns;
  return true;
}

bool attention(const Step& step, const std::vector<Dims>& sizes, const Dims& in, Dims* out) {
  const size_t rank = in.size();
  const Dims &key = sizes[step.inputs[1]], &value = sizes[step.inputs[2]], &scale = sizes[step.inputs[3]],
             &mask = sizes[step.inputs[4]];
  if (rank < 3 || key.size() != rank || value.size() != rank || scale != Dims{in.back()}) return false;
  for (size_t i = 0; i + 2 < rank; ++i)
    if (key[i] != in[i] || value[i] != in[i]) return false;
  const size_t seen = key[rank - 2];
  out->back() = value.back();
  return key.back() == in.back() && value[rank - 2] == seen && mask == Dims{in[rank - 2], seen};
}

bool transpose(const Step& step, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const size_t rank = in.size();
  if (n.size() != rank) return false;
  std::vector<bool> taken(rank, false);
  for (size_t i = 0; i < rank; ++i) {
    if (n[i] >= rank || taken[n[i]]) return false;
    taken[n[i]] = true;
    (*out)[i] = in[n[i]];
  }
  return true;
}

bool reshape(const Step& step, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  uint64_t count = 1, known = 1;
  for (size_t d : in) count *= d;  // at most kMaxElements
  out->assign(n.begin(), n.end());
  size_t* open = nullptr;
  for (size_t& d : *out) {
    if (d == 0 && open != nullptr) return false;
    if (d == 0) {
      open = &d;
    } else if (d > kMaxElements / known) {
      return false;
    } else {
      known *= d;
    }
  }
  if (open != nullptr) *open = static_cast<size_t>(count / known);
  return known * (open == nullptr ? 1 : *open) == count;
}

bool slice(const Step& step, const Dims& in, Dims* out) {
  const std::vector<uint64_t>& n = step.numbers;
  const size_t rank = in.size();
  if (n.size() != 2 * rank) return false;
  for (size_t i = 0; i < rank; ++i) {
    const uint64_t offset = n[i], size = n[rank + i];
    if (size == 0 ? offset != 0 : offset + size > in[i]) return false;
    if (size != 0) (*out)[i] = static_cast<size_t>(size);
  }
  return true;
}

/// Computes the sizes of the output of a step.
bool follow(const Step& step, const std::vector<Dims>& sizes, Dims* out) {
  const Dims& in = sizes[step.inputs[0]];
  const std::vector<uint64_t>& n = step.numbers;
  const size_t rank = in.size();
  for (uint64_t number : n)
    if (number >= kRange) return false;
  *out = in;
  switch (step.kind) {
    case Step::Kind::Same:
      return true;
    case Step::Kind::Broadcast:
      return broadcast(in, sizes[step.inputs[1]], 0, out);
    case Step::Kind::Concatenate:
      return concatenate(step, sizes, in, out);
    case Step::Kind::Convolution:
      return convolution(step, in, out);
    case Step::Kind::Transposed:
      return transposed_convolution(step, in, out);
    case Step::Kind::Linear:
      return linear(step, sizes, in, out);
    case Step::Kind::Product:
      return matmul(step, sizes, in, out);
    case Step::Kind::Attention:
      return attention(step, sizes, in, out);
    case Step::Kind::Transpose:
      return transpose(step, in, out);
    case Step::Kind::Reshape:
      return reshape(step, in, out);
    case Step::Kind::Slice:
      return slice(step, in, out);
    case Step::Kind::Pad:
      if (n.size() != 2 * rank) return false;
      for (size_t i = 0; i < rank; ++i) (*out)[i] += n[i] + n[rank + i];
      return true;
    case Step::Kind::Resize:
      if (rank != 4 || in[1] == 0 || in[2] == 0 || n[0] == 0 || n[1] == 0 || n[0] > kTaps / n[1])
        return false;
      (*out)[1] = n[0], (*out)[2] = n[1];
      return true;
    default:  // Mean
      if (n[0] >= rank) return false;
      for (size_t i = 1; i <= n[0]; ++i) {
        if (in[i] == 0) return false;
        (*out)[i] = 1;
      }
      return true;
  }
}

}  // namespace

Error find_sizes(const std::vector<Step>& steps, const std::vector<Dims>& bounds, std::vector<Dims>& sizes) {
  for (size_t i = 0; i < steps.size(); ++i) {
    const Dims& bound = bounds[steps[i].output];
    Dims& out = sizes[steps[i].output];
    const bool fits = follow(steps[i], sizes, &out) && out.size() == bound.size() &&
                      elements(out) <= std::min(elements(bound), kMaxElements);
    TORCHETTE_CHECK(fits, InvalidArgument, "node %zu of XNNPACK's graph cannot run on values of these sizes",
                    i);
  }
  return Error::Ok;
}

}  // namespace xnnpack
}  // namespace torchette
