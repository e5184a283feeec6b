#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# In: a folder. Out: there, the sources of XNNPACK and what it stands on (src/), and static libraries of them (build/).
# The sources are Debian's, fetched and checked by apt; nothing of them is in this repository. Needs root's apt lists
# (apt-get update), a C and C++ compiler, cmake and ninja. About 3 minutes of processor time, once.
set -euo pipefail
destination=$(realpath -m "${1:?usage: build_library.sh FOLDER}")
own=$(realpath "$(dirname "${BASH_SOURCE[0]}")/library")

# Debian's name, the upstream version that this backend was tried with (* for any), suites that have had it, best first.
# Of pthreadpool the newest: before 2025 a computation waited also for threads that had not begun to help.
readonly SOURCES=(
  "xnnpack 0.0~git20241108.4ea82e5 trixie sid"
  "pthreadpool * sid trixie"
  "fxdiv 0.0~git20200417.b408327 trixie sid"
  "fp16 0.0~git20200514.4dfe081 trixie sid"
  "cpuinfo * sid"
)

fail() { printf 'build_library: %s\n' "$1" >&2; exit 1; }

# The archive of Debian that this machine's apt already uses.
archive() {
  apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }'
}

fetch() {
  local uri apt name version suite suites tarball parts
  command -v apt-get >/dev/null || fail "there is no apt here: on other systems build XNNPACK yourself and give cmake -DTORCHETTE_XNNPACK_DIR"
  uri=$(archive)
  [[ -n $uri ]] || fail "apt knows no Debian archive; run apt-get update first"
  mkdir -p "$destination/apt/lists/partial" "$destination/apt/cache/archives/partial" "$destination/src"
  for suite in trixie sid; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
  done >"$destination/apt/sources.list"
  apt=(apt-get -qq -o "Dir::Etc::SourceList=$destination/apt/sources.list" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$destination/apt/lists" -o "Dir::Cache=$destination/apt/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  cd "$destination/src"
  for entry in "${SOURCES[@]}"; do
    read -r name version suites <<<"$entry"
    rm -f "$name"_*.orig.tar.*
    for suite in $suites; do
      # Only the upstream tarball: not every mirror carries Debian's own part, and it is not needed.
      "${apt[@]}" source --download-only --tar-only "$name/$suite" >/dev/null 2>&1 && break
    done
    # shellcheck disable=SC2206
    tarball=(${name}_${version}.orig.tar.*)
    [[ -f ${tarball[0]} ]] || fail "$name $version cannot be had from this archive"
    rm -rf "$name" "$name.unpacked"
    mkdir "$name.unpacked"
    tar -xf "${tarball[0]}" -C "$name.unpacked"
    parts=("$name.unpacked"/*)
    if ((${#parts[@]} == 1)) && [[ -d ${parts[0]} ]]; then
      mv "${parts[0]}" "$name"
      rmdir "$name.unpacked"
    else
      mv "$name.unpacked" "$name"
    fi
    echo "$name: ${tarball[0]}"
  done
}

# Products on AVX-512 in tiles of 8 rows as well, with a kernel that the library has but does not choose from: of the
# 128 rows of a sentence none is computed in vain, where tiles of 7 rows compute 133. Not convolutions, whose rows each
# have a pointer: with 8 of them the registers run out.
choose_tiles_of_8() {
  local config="$destination/src/xnnpack/src/configs/gemm-config.c" name=f32_gemm_minmax_ukernel_7x32__avx512f_broadcast
  grep -q "$name" "$config" || fail "this version of XNNPACK has no $name"
  sed -i "/$name/{p;s/INDEX(7)/INDEX(8)/;s/7x32/8x32/}" "$config"
  sed -i "/${name/7x/8x}/,/\.mr = 7;/s/\.mr = 7;/.mr = 8;/" "$config"
  sed -i "/^SET(PROD_AVX512F/a\\  src/f32-gemm/gen/f32-gemm-8x32-minmax-avx512f-broadcast.c" \
    "$destination/src/xnnpack/cmake/gen/avx512f_microkernels.cmake"
}

# edit FILE SCRIPT: changes a file of XNNPACK's by a script of sed's. A version in which there is nothing to change fails.
edit() {
  local file="$destination/src/xnnpack/$1"
  cp "$file" "$file.before"
  sed -i "$2" "$file"
  ! cmp -s "$file" "$file.before" || fail "in this version of XNNPACK $1 has nothing like: $2"
  rm "$file.before"
}

# Code of our own is compiled with the library, and called where it does better: additions.h says what each part is for.
add_our_own() {
  cp "$own"/* "$destination/src/xnnpack/src/"
  for file in configs/gemm-config.c configs/transpose-config.c operators/unary-elementwise-nc.c \
    operators/fully-connected-nc.c operator-run.c; do
    edit "src/$file" '1i #include "additions.h"'
  done
  edit CMakeLists.txt 's|^SET(OPERATOR_SRCS$|&\n  src/additions.c\n  src/rows.c|'
  edit cmake/gen/avx512f_microkernels.cmake 's|^SET(PROD_AVX512F_MICROKERNEL_SRCS$|&\n  src/avx512.c|'
  edit src/configs/gemm-config.c 's/\(f32_i\?gemm_minmax_ukernel_[78]x32__\)avx512f_broadcast/\1added/'
  edit src/configs/transpose-config.c 's/(xnn_transposec_ukernel_fn) xnn_x32_[a-z0-9_]*_avx,/hardware_config->use_x86_avx512f ? xnn_x32_transposec_ukernel__added : &/'
  edit src/operator-run.c '/case xnn_parallelization_type_2d_tile_2d:/,/break;/{
    /pthreadpool_parallelize_2d_tile_2d(/,/flags);/c\        xnn_compute_tiles(op, \&op->compute[i], threadpool, flags);
  }'
  edit include/xnnpack.h 's/^  xnn_unary_tanh,/&\n  xnn_unary_silu,/'
  edit src/operators/unary-elementwise-nc.c 's/^ *case xnn_unary_gelu:/      case xnn_unary_silu: return xnn_init_f32_silu_config();\n&/'
  edit src/operators/fully-connected-nc.c '0,/^  fully_connected_op->state = xnn_run_state_invalid;/s//  xnn_use_rows(fully_connected_op);\n&/'
  edit src/operator-utils.c 's/^ *case xnn_unary_gelu:/    case xnn_unary_silu: return "silu";\n&/'
}

# A kernel that computes several rows at once reads the scales of as many: behind a value's own there must be enough
# of them for the tallest, of 16 rows. The library keeps 10, and a last tile of 2 or 3 rows is wrong where kernels have
# 14 (four-bit weights on processors with GFNI).
keep_scales_for_all_rows() {
  edit include/xnnpack.h 's/^#define XNN_EXTRA_QUANTIZATION_PARAMS 10$/#define XNN_EXTRA_QUANTIZATION_PARAMS 15/'
}

# A thread that waits for the others, or for the next operator, turns for some tenths of a millisecond, then sleeps. Old
# versions of pthreadpool turn for tens of milliseconds: beside another busy process on the very processor that the one
# they wait for needs, and that drains a battery anywhere. New ones turn for some hundredths, less than it may take from
# one call to the next: then a thread has to be woken each time.
wait_briefly() {
  local header="$destination/src/pthreadpool/src/threadpool-common.h" name=PTHREADPOOL_SPIN_WAIT_ITERATIONS
  ! grep -q PTHREADPOOL_SPIN_PAUSE_ITERATIONS "$header" || name=PTHREADPOOL_SPIN_PAUSE_ITERATIONS
  grep -qE "define $name 1000(000)?$" "$header" || fail "this version of pthreadpool waits in another way"
  sed -i -E "s/(define $name) 1000(000)?$/\1 10000/" "$header"
}

build() {
  local src="$destination/src" flags="-ffunction-sections -fdata-sections ${CFLAGS:-}"
  cmake -G Ninja -S "$src/xnnpack" -B "$destination/build" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON "-DCMAKE_C_FLAGS=$flags" "-DCMAKE_CXX_FLAGS=$flags" \
    -DXNNPACK_LIBRARY_TYPE=static -DXNNPACK_BUILD_TESTS=OFF -DXNNPACK_BUILD_BENCHMARKS=OFF \
    -DXNNPACK_BUILD_ALL_MICROKERNELS=OFF -DXNNPACK_ENABLE_KLEIDIAI=OFF -DXNNPACK_ENABLE_ARM_SME=OFF \
    -DXNNPACK_ENABLE_ARM_SME2=OFF -DCPUINFO_SOURCE_DIR="$src/cpuinfo" -DPTHREADPOOL_SOURCE_DIR="$src/pthreadpool" \
    -DFXDIV_SOURCE_DIR="$src/fxdiv" -DFP16_SOURCE_DIR="$src/fp16" -DCPUINFO_BUILD_TOOLS=OFF \
    -DCPUINFO_BUILD_UNIT_TESTS=OFF -DCPUINFO_BUILD_MOCK_TESTS=OFF -DCPUINFO_BUILD_BENCHMARKS=OFF \
    -DPTHREADPOOL_BUILD_TESTS=OFF -DPTHREADPOOL_BUILD_BENCHMARKS=OFF
  cmake --build "$destination/build" --target XNNPACK
}

# Unpacked files are older than what was made from those before them: that goes, too.
made_by="$destination/src/made_by" this=$(cat "${BASH_SOURCE[0]}" "$own"/* | sha256sum)
if [[ ! -f $made_by || $(<"$made_by") != "$this" ]]; then
  rm -rf "$destination/build"
  fetch
  choose_tiles_of_8
  add_our_own
  keep_scales_for_all_rows
  wait_briefly
  printf '%s' "$this" >"$made_by"
fi
build
