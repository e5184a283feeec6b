#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# In: a folder. Out: there, the sources of XNNPACK and what it stands on (src/), and static libraries of them (build/).
# The sources are Debian's, fetched and checked by apt; nothing of them is in this repository. Needs root's apt lists
# (apt-get update), a C and C++ compiler, cmake and ninja. About 3 minutes of processor time, once.
set -euo pipefail
destination=$(realpath -m "${1:?usage: build_library.sh FOLDER}")

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

# Tiles of 16 outputs as well, with kernels that the library has too: a layer of 16 outputs, or of 40, computes in tiles
# of 32 as many in vain. What chooses is one function, which the code that packs weights ahead of the library asks too.
choose_tiles_of_16_outputs() {
  local src="$destination/src/xnnpack" kind rows
  for kind in gemm igemm; do
    for rows in 1 8; do
      sed -i "/^SET(PROD_AVX512F/a\  src/f32-$kind/gen/f32-$kind-${rows}x16-minmax-avx512f-broadcast.c" \
        "$src/cmake/gen/avx512f_microkernels.cmake"
    done
  done
  cat >>"$src/src/configs/gemm-config.c" <<'C'

static struct xnn_gemm_config f32_gemm_16_config;
XNN_INIT_ONCE_GUARD(f32_gemm_16);

static void init_f32_gemm_16_config(void) {
#if XNN_ARCH_X86 || XNN_ARCH_X86_64
  f32_gemm_16_config = *xnn_init_f32_gemm_config();
  struct gemm_fused_ukernels* kernels = &f32_gemm_16_config.minmax;
  memset(kernels, 0, sizeof(*kernels));
  kernels->gemm[XNN_MR_TO_INDEX(1)] = xnn_init_hmp_gemm_ukernel(
      (xnn_gemm_ukernel_fn) xnn_f32_gemm_minmax_ukernel_1x16__avx512f_broadcast);
  kernels->gemm[XNN_MR_TO_INDEX(8)] = xnn_init_hmp_gemm_ukernel(
      (xnn_gemm_ukernel_fn) xnn_f32_gemm_minmax_ukernel_8x16__avx512f_broadcast);
  kernels->igemm[XNN_MR_TO_INDEX(1)] = xnn_init_hmp_igemm_ukernel(
      (xnn_igemm_ukernel_fn) xnn_f32_igemm_minmax_ukernel_1x16__avx512f_broadcast);
  kernels->igemm[XNN_MR_TO_INDEX(8)] = xnn_init_hmp_igemm_ukernel(
      (xnn_igemm_ukernel_fn) xnn_f32_igemm_minmax_ukernel_8x16__avx512f_broadcast);
  f32_gemm_16_config.pack_gemm_goi = (xnn_packw_gemm_goi_ukernel_fn) xnn_x32_packw_gemm_goi_ukernel_x16__avx_u4;
  f32_gemm_16_config.mr = 8;
  f32_gemm_16_config.nr = 16;
#endif
}

const struct xnn_gemm_config* xnn_f32_gemm_config_for(size_t outputs) {
  const struct xnn_gemm_config* config = xnn_init_f32_gemm_config();
  if (config == NULL || config->nr != 32 || (outputs - 1) % 32 >= 16) return config;
  XNN_INIT_ONCE(f32_gemm_16);
  return &f32_gemm_16_config;
}
C
  sed -i "/xnn_init_f32_gemm_nr2_config/a XNN_INTERNAL const struct xnn_gemm_config* xnn_f32_gemm_config_for(size_t outputs);" \
    "$src/src/xnnpack/config.h"
  sed -i "s/xnn_init_f32_gemm_config()/xnn_f32_gemm_config_for(group_output_channels)/" "$src/src/operators/convolution-nhwc.c"
  sed -i "s/xnn_init_f32_gemm_config()/xnn_f32_gemm_config_for(output_channels)/" "$src/src/operators/fully-connected-nc.c"
  grep -q "config_for(group_output_channels)" "$src/src/operators/convolution-nhwc.c" &&
    grep -q "config_for(output_channels)" "$src/src/operators/fully-connected-nc.c" ||
    fail "this version of XNNPACK chooses its kernels in another way"
}

# Where only an old pthreadpool is had: a thread that waits for the others sleeps after some tenths of a millisecond of
# turning, not after tens of them. Beside another busy process it would turn on the very processor that the one it waits
# for needs, and drain a battery anywhere.
wait_briefly() {
  local header="$destination/src/pthreadpool/src/threadpool-common.h"
  sed -i "s/PTHREADPOOL_SPIN_WAIT_ITERATIONS 1000000$/PTHREADPOOL_SPIN_WAIT_ITERATIONS 10000/" "$header"
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
made_by="$destination/src/made_by" this=$(sha256sum <"${BASH_SOURCE[0]}")
if [[ ! -f $made_by || $(<"$made_by") != "$this" ]]; then
  rm -rf "$destination/build"
  fetch
  choose_tiles_of_8
  choose_tiles_of_16_outputs
  wait_briefly
  printf '%s' "$this" >"$made_by"
fi
build
