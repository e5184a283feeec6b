// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/cache.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

namespace torchette {
namespace vulkan {
namespace {

struct Head {
  char magic[8];
  uint64_t size, hash;
};
constexpr char kMagic[8] = {'T', 'V', 'K', 'C', '0', '0', '0', '1'};

std::mutex mutex;
std::string* folder = nullptr;  // null until the first use

std::string& folder_of_cache() {
  if (folder == nullptr) {
    folder = new std::string;
    constexpr const char* kVariables[][2] = {
        {"TORCHETTE_CACHE", ""}, {"XDG_CACHE_HOME", "/torchette"}, {"HOME", "/.cache/torchette"}};
    for (const auto& variable : kVariables) {
      const char* const value = getenv(variable[0]);
      if (folder->empty() && value != nullptr && *value != 0) *folder = std::string(value) + variable[1];
    }
  }
  return *folder;
}

}  // namespace

std::string cache_folder() {
  const std::lock_guard<std::mutex> lock(mutex);
  return folder_of_cache();
}

void set_cache_folder(const char* name) {
  const std::lock_guard<std::mutex> lock(mutex);
  folder_of_cache() = name;
}

uint64_t hash(const void* bytes, size_t size, uint64_t seed) {
  for (size_t i = 0; i < size; ++i) seed = (seed ^ static_cast<const uint8_t*>(bytes)[i]) * 0x100000001b3u;
  return seed;
}

std::vector<uint8_t> read_cached(const std::string& path) {
  std::vector<uint8_t> bytes;
  FILE* const file = fopen(path.c_str(), "rb");
  if (file == nullptr) return bytes;
  Head head;
  struct stat status;
  if (fread(&head, sizeof(head), 1, file) == 1 && memcmp(head.magic, kMagic, sizeof(kMagic)) == 0 &&
      fstat(fileno(file), &status) == 0 &&
      head.size == static_cast<uint64_t>(status.st_size) - sizeof(head)) {
    bytes.resize(static_cast<size_t>(head.size));
    if (fread(bytes.data(), 1, bytes.size(), file) != bytes.size() ||
        hash(bytes.data(), bytes.size()) != head.hash)
      bytes.clear();
  }
  fclose(file);
  return bytes;
}

void store_cached(const std::string& path, Span<const uint8_t> bytes) {
  for (size_t at = path.find('/', 1); at != std::string::npos; at = path.find('/', at + 1))
    mkdir(path.substr(0, at).c_str(), 0777);
  std::string draft = path + ".XXXXXX";
  const int handle = mkstemp(&draft[0]);
  FILE* const file = handle < 0 ? nullptr : fdopen(handle, "wb");
  if (file == nullptr) {
    if (handle >= 0) close(handle);
    return;
  }
  Head head{{}, bytes.size(), hash(bytes.data(), bytes.size())};
  memcpy(head.magic, kMagic, sizeof(kMagic));
  const bool written = fwrite(&head, sizeof(head), 1, file) == 1 &&
                       fwrite(bytes.data(), 1, bytes.size(), file) == bytes.size();
  if ((fclose(file) != 0) | !written || rename(draft.c_str(), path.c_str()) != 0) remove(draft.c_str());
}

}  // namespace vulkan
}  // namespace torchette
