// SPDX-License-Identifier: BSD-3-Clause
// What is kept between processes, in files of a folder: bytes come in, the same bytes or none go out.
#pragma once

#include <string>
#include <vector>

#include "torchette/runtime/span.h"

namespace torchette {
namespace vulkan {

/// The folder: what was set; at first $TORCHETTE_CACHE, or torchette in the user's cache folder. Empty:
/// nothing is kept.
std::string cache_folder();
void set_cache_folder(const char* folder);

/// FNV-1a, of `seed` and then the bytes.
uint64_t hash(const void* bytes, size_t size, uint64_t seed = 0xcbf29ce484222325u);

/// What was written; empty where there is no such file, or not as it was written.
std::vector<uint8_t> read_kept(const std::string& path);
/// All of it or nothing, for readers in other processes, too. Makes the folder. A failure leaves what was
/// there.
void keep(const std::string& path, Span<const uint8_t> bytes);

}  // namespace vulkan
}  // namespace torchette
