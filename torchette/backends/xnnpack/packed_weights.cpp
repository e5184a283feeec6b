// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/packed_weights.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>

namespace torchette {
namespace xnnpack {
namespace {

constexpr size_t kAlignment = 128;         // of one set of weights
constexpr size_t kHuge = size_t{1} << 21;  // a page that is worth asking for: 512 faults become one

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

}  // namespace

PackedWeights::PackedWeights() {
  provider_.context = this;
  provider_.look_up = [](void* context, const xnn_weights_cache_look_up_key* key) {
    return of(context).look_up(*key);
  };
  provider_.reserve_space = [](void* context, size_t size) { return of(context).reserve(size); };
  provider_.look_up_or_insert = [](void* context, const xnn_weights_cache_look_up_key* key, void* data,
                                   size_t) { return of(context).insert(*key, data); };
  provider_.is_finalized = [](void*) { return true; };  // what is there never moves
  provider_.offset_to_addr = [](void*, size_t offset) { return reinterpret_cast<void*>(offset); };
  provider_.delete_cache = [](void*) { return xnn_status_success; };
}

PackedWeights::~PackedWeights() {
  for (const Chunk& chunk : chunks_) munmap(chunk.data, chunk.size);
}

xnn_weights_cache_t PackedWeights::open(const Identities& identities, size_t bytes,
                                        std::function<void(const void*)> packed) {
  identities_ = &identities;
  packed_ = std::move(packed);
  expected_ = bytes;
  return &provider_;
}

bool PackedWeights::key_of(const xnn_weights_cache_look_up_key& given, Key* key) const {
  const auto kernel = identities_->find(given.kernel), bias = identities_->find(given.bias);
  if (kernel == identities_->end() || kernel->second.empty()) return false;
  if (given.bias != nullptr && (bias == identities_->end() || bias->second.empty())) return false;
  *key = {given.seed, kernel->second, given.bias == nullptr ? "" : bias->second};
  return true;
}

size_t PackedWeights::look_up(const xnn_weights_cache_look_up_key& given) const {
  Key key;
  if (!key_of(given, &key)) return SIZE_MAX;
  const auto found = entries_.find(key);
  return found == entries_.end() ? SIZE_MAX : reinterpret_cast<size_t>(found->second);
}

void* PackedWeights::reserve(size_t size) {
  size = round_up(size, kAlignment);
  // kernels read a little beyond the end
  if (chunks_.empty() || chunks_.back().size - used_ < size + kAlignment) {
    const size_t wanted = std::max(size + kAlignment, expected_ + expected_ / 8);
    const bool huge = wanted >= 2 * kHuge;
    const size_t total = round_up(wanted, huge ? kHuge : 4096), spare = huge ? kHuge : 0;
    void* mapped = mmap(nullptr, total + spare, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return nullptr;
    char* data = static_cast<char*>(mapped);
    if (huge) {
      char* aligned =
          data + (round_up(reinterpret_cast<uintptr_t>(data), kHuge) - reinterpret_cast<uintptr_t>(data));
      if (aligned != data) munmap(data, static_cast<size_t>(aligned - data));
      const size_t behind = spare - static_cast<size_t>(aligned - data);
      if (behind != 0) munmap(aligned + total, behind);
      data = aligned;
#ifdef MADV_HUGEPAGE
      madvise(data, total, MADV_HUGEPAGE);
#endif
    }
    chunks_.push_back({data, total});
    used_ = 0;
  }
  void* result = chunks_.back().data + used_;
  used_ += size;
  expected_ -= std::min(expected_, size);
  return result;
}

size_t PackedWeights::insert(const xnn_weights_cache_look_up_key& given, void* data) {
  packed_(given.kernel);
  Key key;
  if (key_of(given, &key)) {
    const auto [entry, is_new] = entries_.emplace(std::move(key), data);
    if (!is_new) {  // two nodes of one graph: the library packed before it asked
      used_ = static_cast<size_t>(static_cast<char*>(data) - chunks_.back().data);
      return reinterpret_cast<size_t>(entry->second);
    }
  }
  return reinterpret_cast<size_t>(data);
}

}  // namespace xnnpack
}  // namespace torchette
