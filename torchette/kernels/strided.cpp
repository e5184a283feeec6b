// SPDX-License-Identifier: BSD-3-Clause
// The implementation of every operator that only moves elements. Contiguous runs become memory moves;
// permutations become transposes of small squares in registers and cache.
#include "torchette/kernels/strided.h"

#include <cstring>

#include "torchette/kernels/simd.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

struct Element16 {
  uint64_t halves[2];
};

/// Moves `rows` runs of `bytes`. Short runs are copied inline, because a call costs as much as the copy. Does
/// not use memcpy: in a malicious file the ranges may overlap, which must not corrupt anything except the
/// result.
void move_runs(char* to, ptrdiff_t to_step, const char* from, ptrdiff_t from_step, size_t rows,
               size_t bytes) {
  constexpr size_t kWide = 32, kNarrow = 16, kLong = 512;
  if (bytes < kNarrow || bytes > kLong) {
    for (size_t row = 0; row < rows; ++row, to += to_step, from += from_step) memmove(to, from, bytes);
    return;
  }
  for (size_t row = 0; row < rows; ++row, to += to_step, from += from_step) {
    size_t i = 0;
    for (; i + kWide <= bytes; i += kWide) memmove(to + i, from + i, kWide);
    // Copies the remaining bytes, overlapping bytes that are already copied.
    if (i == bytes) continue;
    if (bytes - i > kNarrow) memmove(to + i, from + i, kNarrow);
    memmove(to + bytes - kNarrow, from + bytes - kNarrow, kNarrow);
  }
}

/// Moves one row of `n` elements. Strides are in elements.
template <typename T>
void move_row(T* to, ptrdiff_t to_stride, const T* from, ptrdiff_t from_stride, size_t n) {
  if (to_stride == 1 && from_stride == 0) {
    const T value = *from;
    for (size_t i = 0; i < n; ++i) to[i] = value;
  } else {
    for (size_t i = 0; i < n; ++i)
      to[static_cast<ptrdiff_t>(i) * to_stride] = from[static_cast<ptrdiff_t>(i) * from_stride];
  }
}

/// Deinterleaves two planes, as in a channel shuffle, or three, as in images; interleave() is the inverse.
template <size_t kPlanes, typename T>
void take_apart(T* __restrict to, ptrdiff_t to_row, const T* __restrict from, size_t columns) {
  T* __restrict to1 = to + to_row;
  T* __restrict to2 = to + static_cast<ptrdiff_t>(kPlanes - 1) * to_row;
  for (size_t j = 0; j < columns; ++j) {
    to[j] = from[kPlanes * j];
    to1[j] = from[kPlanes * j + 1];
    if (kPlanes == 3) to2[j] = from[kPlanes * j + 2];
  }
}
template <size_t kPlanes, typename T>
void interleave(T* __restrict to, const T* __restrict from, ptrdiff_t from_row, size_t rows) {
  const T* __restrict from1 = from + from_row;
  const T* __restrict from2 = from + static_cast<ptrdiff_t>(kPlanes - 1) * from_row;
  for (size_t i = 0; i < rows; ++i) {
    to[kPlanes * i] = from[i];
    to[kPlanes * i + 1] = from1[i];
    if (kPlanes == 3) to[kPlanes * i + 2] = from2[i];
  }
}

/// to[i * to_row + j] = from[j * from_row + i] for i < rows, j < columns.
template <typename T>
void transpose_plane(T* to, ptrdiff_t to_row, const T* from, ptrdiff_t from_row, size_t rows,
                     size_t columns) {
  if constexpr (sizeof(T) == 4) {  // the other types would double the code
    if (rows == 2 && from_row == 2) return take_apart<2>(to, to_row, from, columns);
    if (columns == 2 && to_row == 2) return interleave<2>(to, from, from_row, rows);
  }
  if (rows == 3 && from_row == 3) return take_apart<3>(to, to_row, from, columns);
  if (columns == 3 && to_row == 3) return interleave<3>(to, from, from_row, rows);
  constexpr size_t kBlock = 32;  // blocks of source and destination stay in the L1 cache
  for (size_t i0 = 0; i0 < rows; i0 += kBlock) {
    const size_t i1 = i0 + kBlock < rows ? i0 + kBlock : rows;
    for (size_t j0 = 0; j0 < columns; j0 += kBlock) {
      const size_t j1 = j0 + kBlock < columns ? j0 + kBlock : columns;
      size_t i = i0;
      if constexpr (sizeof(T) == 4) {
        for (; i + kLanes <= i1; i += kLanes) {
          size_t j = j0;
          for (; j + kLanes <= j1; j += kLanes) {
            Vec square[kLanes];
            TORCHETTE_UNROLL(16)
            for (int k = 0; k < kLanes; ++k)
              square[k] = load(reinterpret_cast<const float*>(
                  from + static_cast<ptrdiff_t>(j + static_cast<size_t>(k)) * from_row + i));
            transpose(square);
            TORCHETTE_UNROLL(16)
            for (int k = 0; k < kLanes; ++k)
              store(reinterpret_cast<float*>(to +
                                             static_cast<ptrdiff_t>(i + static_cast<size_t>(k)) * to_row + j),
                    square[k]);
          }
          for (; j < j1; ++j)
            for (size_t k = i; k < i + kLanes; ++k)
              to[static_cast<ptrdiff_t>(k) * to_row + static_cast<ptrdiff_t>(j)] =
                  from[static_cast<ptrdiff_t>(j) * from_row + static_cast<ptrdiff_t>(k)];
        }
      }
      for (; i < i1; ++i) TORCHETTE_UNROLL(4)
      for (size_t j = j0; j < j1; ++j)
        to[static_cast<ptrdiff_t>(i) * to_row + static_cast<ptrdiff_t>(j)] =
            from[static_cast<ptrdiff_t>(j) * from_row + static_cast<ptrdiff_t>(i)];
    }
  }
}

/// Moves a nest with a contiguous innermost dimension on both sides, so that `element` is its size in bytes.
void move_nest_of_runs(const Move& nest, char* to, const char* from, size_t element) {
  const size_t inner = nest.dim - 1, outer = inner > 0 ? inner - 1 : 0;
  const auto width = static_cast<ptrdiff_t>(element);
  const size_t rows = inner > 0 ? nest.size[outer] : 1;
  size_t at[Move::kMaxLoops] = {};
  for (;;) {
    move_runs(to, nest.to[outer] * width, from, nest.from[outer] * width, rows, nest.size[inner] * element);
    size_t d = outer;
    for (;;) {
      if (d == 0) return;
      --d;
      to += nest.to[d] * width;
      from += nest.from[d] * width;
      if (++at[d] < nest.size[d]) break;
      to -= static_cast<ptrdiff_t>(at[d]) * nest.to[d] * width;
      from -= static_cast<ptrdiff_t>(at[d]) * nest.from[d] * width;
      at[d] = 0;
    }
  }
}

template <typename T>
void move_nest(const Move& nest, T* to, const T* from) {
  const size_t inner = nest.dim - 1;
  // Transposes planes if the source is contiguous along another dimension than the innermost one.
  size_t plane = inner;
  if (nest.to[inner] == 1 && nest.from[inner] > 1)
    for (size_t d = 0; d < inner; ++d)
      if (nest.from[d] == 1) plane = d;
  size_t at[Move::kMaxLoops] = {};
  for (;;) {
    if (plane != inner)
      transpose_plane(to, nest.to[plane], from, nest.from[inner], nest.size[plane], nest.size[inner]);
    else
      move_row(to, nest.to[inner], from, nest.from[inner], nest.size[inner]);
    size_t d = inner;
    for (;;) {
      if (d == 0) return;
      --d;
      if (d == plane) continue;
      to += nest.to[d];
      from += nest.from[d];
      if (++at[d] < nest.size[d]) break;
      to -= static_cast<ptrdiff_t>(at[d]) * nest.to[d];
      from -= static_cast<ptrdiff_t>(at[d]) * nest.from[d];
      at[d] = 0;
    }
  }
}

}  // namespace

bool simplify(Move& nest) {
  Move sorted;
  for (size_t d = 0; d < nest.dim; ++d) {
    if (nest.size[d] == 0) return false;
    if (nest.size[d] == 1) continue;
    size_t position = sorted.dim++;
    for (; position > 0 && sorted.to[position - 1] < nest.to[d]; --position) {
      sorted.size[position] = sorted.size[position - 1];
      sorted.to[position] = sorted.to[position - 1];
      sorted.from[position] = sorted.from[position - 1];
    }
    sorted.size[position] = nest.size[d];
    sorted.to[position] = nest.to[d];
    sorted.from[position] = nest.from[d];
  }
  nest.dim = 0;
  for (size_t d = 0; d < sorted.dim; ++d) {
    const auto n = static_cast<ptrdiff_t>(sorted.size[d]);
    const size_t last = nest.dim - 1;
    if (nest.dim > 0 && nest.to[last] == sorted.to[d] * n && nest.from[last] == sorted.from[d] * n) {
      nest.size[last] *= sorted.size[d];
      nest.to[last] = sorted.to[d];
      nest.from[last] = sorted.from[d];
    } else {
      nest.add(sorted.size[d], sorted.to[d], sorted.from[d]);
    }
  }
  if (nest.dim == 0) nest.add(1, 1, 1);
  return true;
}

void move(Move nest, void* to, const void* from, size_t element) {
  if (simplify(nest)) move_simplified(nest, to, from, element);
}

void move(Context& context, Move nest, void* to, const void* from, size_t element) {
  constexpr size_t kMinBytes = size_t{1} << 18;  // of a thread: 10 to 20 microseconds
  if (!simplify(nest)) return;
  size_t bytes = element, longest = 0;
  for (size_t d = 0; d < nest.dim; ++d) {
    bytes *= nest.size[d];
    if (nest.size[d] > nest.size[longest]) longest = d;
  }
  if (bytes < 2 * kMinBytes || context.workers() == 1) return move_simplified(nest, to, from, element);
  size_t d = 0;  // the outermost loop that is long enough
  while (d < longest && nest.size[d] < 4 * context.workers()) ++d;
  context.parallel_for(nest.size[d], kMinBytes / (bytes / nest.size[d]) + 1,
                       [&](size_t begin, size_t end, size_t) {
                         Move part = nest;
                         part.size[d] = end - begin;
                         const auto first = static_cast<ptrdiff_t>(begin * element);
                         move_simplified(part, static_cast<char*>(to) + first * nest.to[d],
                                         static_cast<const char*>(from) + first * nest.from[d], element);
                       });
}

void move_simplified(const Move& nest, void* to, const void* from, size_t element) {
  if (nest.to[nest.dim - 1] == 1 && nest.from[nest.dim - 1] == 1)
    return move_nest_of_runs(nest, static_cast<char*>(to), static_cast<const char*>(from), element);
  switch (element) {
    case 1:
      return move_nest(nest, static_cast<uint8_t*>(to), static_cast<const uint8_t*>(from));
    case 2:
      return move_nest(nest, static_cast<uint16_t*>(to), static_cast<const uint16_t*>(from));
    case 4:
      return move_nest(nest, static_cast<uint32_t*>(to), static_cast<const uint32_t*>(from));
    case 8:
      return move_nest(nest, static_cast<uint64_t*>(to), static_cast<const uint64_t*>(from));
    default:
      return move_nest(nest, static_cast<Element16*>(to), static_cast<const Element16*>(from));
  }
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
