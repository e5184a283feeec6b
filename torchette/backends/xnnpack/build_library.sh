#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# In: a path. Out: there, a link to the headers of XNNPACK (src/) and to static libraries of it and its dependencies (build/).
# They are stored in the user's cache (TORCHETTE_CACHE, else ~/.cache/torchette), under a hash of this script and the
# compiler's version, and other checkouts use them from there. The sources are Debian's, fetched and checked by apt, and
# are not changed. Needs root's apt lists (apt-get update), a C and C++ compiler, cmake and ninja. About 80 seconds of
# processor time, once.
set -euo pipefail
link=$(realpath -ms "${1:?usage: build_library.sh PATH}")

# Debian's name, the tested upstream version, its tarball's SHA-256, suites that contained it. trixie keeps its versions.
# sid has only the newest version: the script accepts another version of a source that only sid has, with a note.
# pthreadpool is a version of 2025: an older one also waits for threads that have not started.
readonly SOURCES=(
  "xnnpack 0.0~git20241108.4ea82e5 90bde2caef0f880f627bab0dc805a86c4b8070cd98e3243db3046ab3f3be1a99 trixie sid"
  "fxdiv 0.0~git20200417.b408327 7953482badaf4cb34026c3487c257b8e4ab2df061c019bd6fabbbc12ad52c44b trixie sid"
  "fp16 0.0~git20200514.4dfe081 7d7782b37b74136e0e12593a2a93ccbe7db831f4374cc408e44623d9b708b54e trixie sid"
  "pthreadpool 0.0~git20251020.0e6ca13 7a385b6585abe8f8658952c50b44a1dabe200de2c88eabe65d15168b8a82295c sid"
  "cpuinfo 0.0~git20250905.877328f 557ca404a3836b9f335a3a06b65ff9fe9dbaaefab7fb5c0185f53d9f33615a10 sid"
)

fail() { printf 'build_library: %s\n' "$1" >&2; exit 1; }

# The archive of Debian that this machine's apt already uses.
archive() {
  apt-get indextargets --format '$(ORIGIN) $(CODENAME) $(REPO_URI)' 'Created-By: Packages' |
    awk '$1 == "Debian" && $2 !~ /-/ { print $3; exit }'
}

# fetch FOLDER: the tarballs.
fetch() {
  local uri apt name version digest suites suite tarball
  command -v apt-get >/dev/null ||
    fail "there is no apt here: on other systems build XNNPACK yourself and give cmake -DTORCHETTE_XNNPACK_DIR"
  uri=$(archive)
  [[ -n $uri ]] || fail "apt knows no Debian archive; run apt-get update first"
  mkdir -p "$1/lists/partial" "$1/cache/archives/partial"
  for suite in trixie sid; do
    echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $uri $suite main"
  done >"$1/sources.list"
  apt=(apt-get -qq -o "Dir::Etc::SourceList=$1/sources.list" -o Dir::Etc::SourceParts=-
    -o "Dir::State::Lists=$1/lists" -o "Dir::Cache=$1/cache" -o APT::Sandbox::User=root)
  "${apt[@]}" update
  cd "$1"
  for entry in "${SOURCES[@]}"; do
    read -r name version digest suites <<<"$entry"
    for suite in $suites; do
      # Only the upstream tarball: not every mirror carries Debian's own part, and it is not needed.
      "${apt[@]}" source --download-only --tar-only "$name/$suite" >/dev/null 2>&1 || continue
      tarball=$(echo "${name}"_*.orig.tar.*)
      [[ $tarball == "${name}_${version}.orig.tar."* || $suite == "${suites##* }" ]] && break
      rm -f "$tarball" # the next suite may have it
    done
    tarball=$(echo "${name}"_*.orig.tar.*)
    [[ -f $tarball ]] || fail "$name $version cannot be had from this archive"
    if [[ $tarball == "${name}_${version}.orig.tar."* ]]; then
      sha256sum --quiet --check <<<"$digest  $tarball" >&2 ||
        fail "$tarball is not the one that was tried: its SHA-256 differs"
    elif [[ $suites == trixie* ]]; then
      fail "$name $version cannot be had from this archive, which has $tarball; the backend was tested with that version"
    else
      echo "build_library: note: $tarball, where $version was tried; the archive has no older one" >&2
    fi
  done
}

# unpack TARBALLS SOURCES
unpack() {
  local name parts tarball
  for entry in "${SOURCES[@]}"; do
    name=${entry%% *}
    tarball=$(echo "$1/${name}"_*.orig.tar.*)
    mkdir -p "$2/$name.unpacked"
    tar -xf "$tarball" -C "$2/$name.unpacked"
    parts=("$2/$name.unpacked"/*)
    if ((${#parts[@]} == 1)) && [[ -d ${parts[0]} ]]; then
      mv "${parts[0]}" "$2/$name"
      rmdir "$2/$name.unpacked"
    else
      mv "$2/$name.unpacked" "$2/$name"
    fi
  done
  join_microkernels "$2/xnnpack"
}

# join_microkernels XNNPACK: replaces the microkernels in each list of CMake by sources that include 40 of them. A microkernel
# alone needs 0.2 s to compile, most of it for the headers of intrinsics.
join_microkernels() {
  local list
  mkdir "$1/src/joined"
  for list in "$1"/cmake/gen/*_microkernels.cmake; do
    awk -v folder="$1" '
      /^SET\(PROD_.*[^)]$/ { name = substr($0, 5); count = 0; inside = 1; print; next }
      inside && /\.c\)?$/ {
        source = $1
        sub(/\)$/, "", source)
        if (count++ % 40 == 0) { joined = "src/joined/" name int(count / 40) ".c"; print "  " joined }
        print "#include \"../../" source "\"" > (folder "/" joined)
        if (/\)$/) { print ")"; inside = 0 }
        next
      }
      /\)$/ { inside = 0 }
      { print }' "$list" >"$list.joined"
    mv "$list.joined" "$list"
  done
}

# build SOURCES FOLDER. MICROKERNELS names a library of them that was built before: only the rest is built, with CFLAGS that
# they need not have.
build() {
  local src="$1" flags="-ffunction-sections -fdata-sections ${CFLAGS:-}" apart=OFF
  [[ -z ${MICROKERNELS:-} ]] || apart=ON # else a static library waits for those that are linked with it
  cmake -G Ninja -S "$src/xnnpack" -B "$2" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON "-DCMAKE_C_FLAGS=$flags" "-DCMAKE_CXX_FLAGS=$flags" \
    -DXNNPACK_LIBRARY_TYPE=static -DXNNPACK_BUILD_TESTS=OFF -DXNNPACK_BUILD_BENCHMARKS=OFF \
    -DXNNPACK_BUILD_ALL_MICROKERNELS=OFF -DXNNPACK_ENABLE_KLEIDIAI=OFF -DXNNPACK_ENABLE_ARM_SME=OFF \
    -DXNNPACK_ENABLE_ARM_SME2=OFF -DCPUINFO_SOURCE_DIR="$src/cpuinfo" -DPTHREADPOOL_SOURCE_DIR="$src/pthreadpool" \
    -DFXDIV_SOURCE_DIR="$src/fxdiv" -DFP16_SOURCE_DIR="$src/fp16" -DCPUINFO_BUILD_TOOLS=OFF \
    -DCPUINFO_BUILD_UNIT_TESTS=OFF -DCPUINFO_BUILD_MOCK_TESTS=OFF -DCPUINFO_BUILD_BENCHMARKS=OFF \
    -DPTHREADPOOL_BUILD_TESTS=OFF -DPTHREADPOOL_BUILD_BENCHMARKS=OFF \
    -DCMAKE_OPTIMIZE_DEPENDENCIES=$apart
  cmake --build "$2" --target XNNPACK --target pthreadpool --target cpuinfo
  [[ -z ${MICROKERNELS:-} ]] || cp "$MICROKERNELS" "$2/"
}

key() {
  cat "${BASH_SOURCE[0]}"
  "${CC:-cc}" --version
  "${CXX:-c++}" --version
  printf '%s\n' "${CFLAGS:-}" "${MICROKERNELS:-}" "$(uname -m)"
}

cache=${TORCHETTE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/torchette}
mkdir -p "$cache"
made="$(realpath "$cache")/xnnpack-$(key | sha256sum | cut -c 1-16)"
if [[ ! -f $made/build/libXNNPACK.a ]]; then
  work=$(mktemp -d "$made.XXXXXX")
  trap 'rm -rf "$work"' EXIT
  fetch "$work/apt"
  unpack "$work/apt" "$work/src"
  build "$work/src" "$work/build"
  # What a build reads of it: headers and libraries, a tenth of all.
  rm -rf "$work/apt"
  find "$work/src" -type f ! -name '*.h' -delete
  find "$work/build" -type f ! -name '*.a' -delete
  find "$work" -mindepth 1 -type d -empty -delete
  chmod 755 "$work"
  mv -T "$work" "$made" 2>/dev/null || [[ -f $made/build/libXNNPACK.a ]] # or another build was faster
fi
if [[ -d $link && ! -L $link ]]; then
  [[ -f $link/src/made_by ]] || fail "$link is a folder, and none that this script has made; remove it"
  rm -rf "$link" # of a version of this script that built there
fi
mkdir -p "$(dirname "$link")"
ln -sfnT "$made" "$link"
echo "$made"
