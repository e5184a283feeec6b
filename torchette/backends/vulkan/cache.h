// SPDX-License-Identifier: BSD-3-Clause
// Stores bytes for other processes in the files of a folder, with a checksum.
#pragma once

#include <string>
#include <vector>

#include "torchette/runtime/span.h"

namespace torchette {
namespace vulkan {

/// The folder of the cache. The default is $TORCHETTE_CACHE, or torchette in the user's cache folder. If it
/// is empty, nothing is stored.
std::string cache_folder();
void set_cache_folder(const char* folder);

/// The FNV-1a hash of `seed` and the bytes.
uint64_t hash(const void* bytes, size_t size, uint64_t seed = 0xcbf29ce484222325u);

/// Reads a file that store_cached() wrote. Returns no bytes if the file is absent or damaged.
std::vector<uint8_t> read_cached(const std::string& path);
/// Writes a file atomically, also for readers in other processes. Creates the folder. After a failure the
/// file is unchanged.
void store_cached(const std::string& path, Span<const uint8_t> bytes);

}  // namespace vulkan
}  // namespace torchette
