// SPDX-License-Identifier: BSD-3-Clause
// The loops behind strided.h: dimensions are merged, contiguous runs are moved whole, transposes go by tiles.
#include "torchette/kernels/strided.h"

namespace torchette {
namespace TORCHETTE_ISA {

namespace {

/// Sizes and byte strides of a copy, outermost first, after merging.
struct Loops {
  ptrdiff_t dim = 0;
  ptrdiff_t size[kMaxLoops];
  ptrdiff_t from[kMaxLoops];
  ptrdiff_t to[kMaxLoops];
};

TORCHETTE_INLINE ptrdiff_t magnitude(ptrdiff_t x) { return x < 0 ? -x : x; }

/// Drops dimensions of size 1, puts those that lie closest in the output innermost, joins what is one run in
/// both.
Loops merge(const Strided& from, const Strided& to) {
  Loops out;
  for (ptrdiff_t d = 0; d < to.dim; ++d) {
    if (to.size[d] == 1) continue;
    const ptrdiff_t f = from.stride[d] * from.width, t = to.stride[d] * to.width;
    ptrdiff_t at = out.dim++;
    for (; at > 0 && magnitude(out.to[at - 1]) < magnitude(t); --at) {
      out.size[at] = out.size[at - 1];
      out.from[at] = out.from[at - 1];
      out.to[at] = out.to[at - 1];
    }
    out.size[at] = to.size[d];
    out.from[at] = f;
    out.to[at] = t;
  }
  ptrdiff_t last = 0;
  for (ptrdiff_t d = 1; d < out.dim; ++d) {
    if (out.from[last] == out.from[d] * out.size[d] && out.to[last] == out.to[d] * out.size[d]) {
      out.size[last] *= out.size[d];
    } else {
      ++last;
      out.size[last] = out.size[d];
    }
    out.from[last] = out.from[d];
    out.to[last] = out.to[d];
  }
  if (out.dim > 0) out.dim = last + 1;
  return out;
}

template <size_t Width>
void copy_row(const char* from, char* to, ptrdiff_t n, ptrdiff_t from_step, ptrdiff_t to_step) {
  for (ptrdiff_t i = 0; i < n; ++i) {
    memcpy(to, from, Width);
    from += from_step;
    to += to_step;
  }
}

/// Rows of the output run over `n`, columns of the input over `m`: tiles keep both in the first-level cache.
template <size_t Width>
void transpose(const char* from, char* to, ptrdiff_t m, ptrdiff_t n, ptrdiff_t from_n, ptrdiff_t to_m) {
  constexpr ptrdiff_t kTile = 16;
  for (ptrdiff_t i0 = 0; i0 < m; i0 += kTile) {
    const ptrdiff_t i1 = i0 + kTile < m ? i0 + kTile : m;
    for (ptrdiff_t j0 = 0; j0 < n; j0 += kTile) {
      const ptrdiff_t j1 = j0 + kTile < n ? j0 + kTile : n;
      for (ptrdiff_t i = i0; i < i1; ++i) {
        const char* f = from + i * static_cast<ptrdiff_t>(Width) + j0 * from_n;
        char* t = to + i * to_m + j0 * static_cast<ptrdiff_t>(Width);
        for (ptrdiff_t j = j0; j < j1; ++j, f += from_n, t += Width) memcpy(t, f, Width);
      }
    }
  }
}

struct Row {
  void (*copy)(const char*, char*, ptrdiff_t, ptrdiff_t, ptrdiff_t);
  void (*transpose)(const char*, char*, ptrdiff_t, ptrdiff_t, ptrdiff_t, ptrdiff_t);
};

template <size_t Width>
constexpr Row kRow = {copy_row<Width>, transpose<Width>};

Row row_of(ptrdiff_t width) {
  switch (width) {
    case 1:
      return kRow<1>;
    case 2:
      return kRow<2>;
    case 4:
      return kRow<4>;
    case 8:
      return kRow<8>;
    default:
      return kRow<16>;
  }
}

/// Steps to the next position of dimensions [0, dim); false after the last one.
TORCHETTE_INLINE bool advance(const Loops& loops, ptrdiff_t dim, ptrdiff_t* index, const char** from,
                              char** to) {
  for (ptrdiff_t d = dim - 1; d >= 0; --d) {
    *from += loops.from[d];
    *to += loops.to[d];
    if (++index[d] < loops.size[d]) return true;
    *from -= loops.from[d] * loops.size[d];
    *to -= loops.to[d] * loops.size[d];
    index[d] = 0;
  }
  return false;
}

}  // namespace

void copy_strided(const Strided& source, const Strided& target) {
  if (target.numel() == 0) return;
  Loops loops = merge(source, target);
  const char* from = source.data;
  char* to = target.data;
  const ptrdiff_t width = target.width;
  if (loops.dim == 0) {
    memmove(to, from, static_cast<size_t>(width));
    return;
  }
  ptrdiff_t index[kMaxLoops] = {};
  const ptrdiff_t inner = loops.dim - 1;
  const ptrdiff_t n = loops.size[inner], from_step = loops.from[inner], to_step = loops.to[inner];
  if (from_step == width && to_step == width) {
    if (from == to && inner == 0) return;
    do {
      memmove(to, from, static_cast<size_t>(n * width));
    } while (advance(loops, inner, index, &from, &to));
    return;
  }
  const Row row = row_of(width);
  if (to_step == width) {
    for (ptrdiff_t d = 0; d < inner; ++d) {
      if (loops.from[d] != width) continue;
      // Dimension d is a run of the input: take it out of the outer loops and transpose it with the innermost
      // one.
      const ptrdiff_t m = loops.size[d], to_m = loops.to[d];
      for (ptrdiff_t e = d; e + 1 < inner; ++e) {
        loops.size[e] = loops.size[e + 1];
        loops.from[e] = loops.from[e + 1];
        loops.to[e] = loops.to[e + 1];
      }
      do {
        row.transpose(from, to, m, n, from_step, to_m);
      } while (advance(loops, inner - 1, index, &from, &to));
      return;
    }
  }
  do {
    row.copy(from, to, n, from_step, to_step);
  } while (advance(loops, inner, index, &from, &to));
}

void fill_strided(const void* element, const Strided& to) {
  Strided from = to;
  // memmove of one element only reads it.
  from.data = const_cast<char*>(static_cast<const char*>(element));
  for (ptrdiff_t d = 0; d < from.dim; ++d) from.stride[d] = 0;
  copy_strided(from, to);
}

bool store_scalar(const Scalar& value, ScalarType type, void* bytes) {
  const auto put = [bytes](auto element) { memcpy(bytes, &element, sizeof(element)); };
  switch (type) {
    case ScalarType::Byte:
    case ScalarType::Char:
      put(static_cast<uint8_t>(value.to_int()));
      return true;
    case ScalarType::Short:
    case ScalarType::UInt16:
      put(static_cast<uint16_t>(value.to_int()));
      return true;
    case ScalarType::Int:
    case ScalarType::UInt32:
      put(static_cast<uint32_t>(value.to_int()));
      return true;
    case ScalarType::Long:
    case ScalarType::UInt64:
      put(value.to_int());
      return true;
    case ScalarType::Half:
      put(Half(static_cast<float>(value.to_double())));
      return true;
    case ScalarType::BFloat16:
      put(BFloat16(static_cast<float>(value.to_double())));
      return true;
    case ScalarType::Float:
      put(static_cast<float>(value.to_double()));
      return true;
    case ScalarType::Double:
      put(value.to_double());
      return true;
    case ScalarType::Bool:
      put(value.to_bool());
      return true;
    default:
      return false;
  }
}

}  // namespace TORCHETTE_ISA
}  // namespace torchette
