// SPDX-License-Identifier: BSD-3-Clause
// Every way of packing columns that this processor has, also the one that it does not take, against the
// definition. The arrays are as long as they have to be: the sanitizers see what is read or written beyond.
#include "torchette/backends/xnnpack/pack_rows.cpp"

#include <cstdio>
#include <cstdlib>

namespace torchette {
namespace xnnpack {
namespace {

float* allocate(size_t count) {
  void* data = nullptr;
  if (posix_memalign(&data, 64, count * sizeof(float)) != 0) abort();
  return static_cast<float*>(data);
}

bool packs(PackColumns pack, size_t tile, size_t count, size_t inputs, size_t first, size_t columns) {
  const size_t length = (count - 1) * inputs + first + columns;  // of the last row only what is asked for
  float* const rows = allocate(length);
  float* const packed = allocate(columns * tile);
  for (size_t i = 0; i < length; ++i) rows[i] = 1.0f + static_cast<float>(i);
  for (size_t i = 0; i < columns * tile; ++i) packed[i] = -1.0f;
  pack(rows + first, count, inputs, columns, tile, packed);
  bool right = true;
  for (size_t c = 0; c < columns; ++c)
    for (size_t i = 0; i < tile; ++i)
      right = right && packed[c * tile + i] == (i < count ? rows[i * inputs + first + c] : 0.0f);
  free(rows);
  free(packed);
  return right;
}

int run() {
  int wrong = 0;
  const auto check = [&](const char* name, PackColumns pack, size_t step) {
    for (size_t tile = step; tile <= kMaxTile; tile += step)
      for (size_t count = 1; count <= tile; ++count)
        for (size_t columns = 1; columns <= kLine; ++columns)
          for (size_t first : {0, 3}) {
            if (packs(pack, tile, count, first + columns + 5, first, columns)) continue;
            printf("%s: %zu rows of a tile of %zu, %zu columns from %zu on\n", name, count, tile, columns,
                   first);
            ++wrong;
          }
  };
  check("pack_columns", pack_columns, 4);
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) check("pack_columns_by_line", pack_columns_by_line, kLine);
#endif
  return wrong;
}

}  // namespace
}  // namespace xnnpack
}  // namespace torchette

int main() { return torchette::xnnpack::run() == 0 ? 0 : 1; }
