// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/xnnpack/packed_weights.h"

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "torchette/backends/xnnpack/pack_rows.h"

extern "C" {
#include <xnnpack/config.h>  // of the library's own: the order in which its kernels read weights

#include "torchette/backends/xnnpack/library/rows.h"
}

namespace torchette {
namespace xnnpack {
namespace {

constexpr size_t kAlignment = 128;         // of one set of weights
constexpr size_t kHuge = size_t{1} << 21;  // a page that is worth asking for: 512 faults become one
constexpr size_t kPage = 4096;             // at least

constexpr size_t kChunk = size_t{64} << 20;  // bytes of several sets of weights

constexpr uint32_t kMatrix = UINT32_MAX;    // in place of the library's seed: what `pack` packed
constexpr size_t kBlock = size_t{1} << 18;  // bytes that a thread packs at once, or one block of rows
// Bytes that are worth a thread: where processors are busy it begins late, or is kept from going on.
constexpr size_t kThread = size_t{8} << 20;
constexpr size_t kAround = size_t{1} << 16;  // what a page fault maps at least of a file that is in memory
constexpr size_t kFreed = size_t{1} << 21;   // bytes that are worth giving back

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

/// Has the pages of a file mapped: fetching a line ahead of its use does nothing where there is no page. Then
/// has the processor find out where they are, which it does for several at once: packing would wait for each.
void map(const float* numbers, size_t count) {
  for (size_t i = 0; i < count; i += kAround / sizeof(float))
    *static_cast<const volatile float*>(numbers + i);
  for (size_t i = 0; i < count; i += kPage / sizeof(float)) TORCHETTE_PREFETCH(numbers + i);
}

/// Whether memory of this size has whole huge pages, wherever it begins.
bool is_large(size_t size) { return size >= 2 * kHuge; }

void ask_for_huge_pages([[maybe_unused]] char* data, [[maybe_unused]] size_t size) {
#ifdef MADV_HUGEPAGE
  const auto first = reinterpret_cast<uintptr_t>(data);
  const size_t before = round_up(first, kHuge) - first;
  if (is_large(size)) madvise(data + before, (size - before) / kHuge * kHuge, MADV_HUGEPAGE);
#endif
}

/// Memory of weights that are gone, for those of the next program: the system clears what it gives, which
/// takes about as long as packing.
struct {
  std::mutex mutex;
  char* data = nullptr;
  size_t size = 0;
} spare;

/// Locks `spare`. No other thread holds it while the process forks, so the child can lock it.
std::unique_lock<std::mutex> lock_spare() {
  static const int registered =
      pthread_atfork([] { spare.mutex.lock(); }, [] { spare.mutex.unlock(); }, [] { spare.mutex.unlock(); });
  (void)registered;
  return std::unique_lock<std::mutex>(spare.mutex);
}

/// `*size` bytes, or more, which it then says, of which `used` are surely used; null where there are none.
char* take(size_t* size, size_t used) {
  if (!is_large(*size)) return static_cast<char*>(allocate(nullptr, kAlignment, *size));
  {
    const std::unique_lock<std::mutex> lock = lock_spare();
    if (spare.size >= *size) {
      *size = std::exchange(spare.size, 0);
      return spare.data;
    }
  }
  *size = round_up(*size, kHuge);  // such blocks begin where a huge page may
  void* const data = mmap(nullptr, *size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED) return nullptr;
  ask_for_huge_pages(static_cast<char*>(data), used);
  return static_cast<char*>(data);
}

void give(char* data, size_t size) {
  if (!is_large(size)) return free(data);
#ifdef MADV_FREE
  // The system may have the pages when it runs short of them.
  if (size <= kChunk && madvise(data, size, MADV_FREE) == 0) {
    const std::unique_lock<std::mutex> lock = lock_spare();
    if (size > spare.size) {
      std::swap(data, spare.data);
      std::swap(size, spare.size);
    }
  }
#endif
  if (size != 0) munmap(data, size);
}

}  // namespace

/// Rows of a matrix that are packed together.
struct PackedWeights::Block {
  const Matrix* matrix;
  size_t tile;  // rows whose numbers stand side by side
  size_t first, count;
  float* to;
};

/// A matrix of a layer with one row of input, which needs each weight once: whatever their order is.
struct PackedWeights::InPlace {
  FreeableBuffer bytes;
  std::vector<xnn_weights_row> rows;

  explicit InPlace(const Matrix& matrix) : bytes(std::move(*matrix.bytes)) {
    rows.reserve(matrix.outputs);
    for (size_t i = 0; i < matrix.outputs; ++i)
      rows.push_back({matrix.rows + i * matrix.inputs, matrix.bias == nullptr ? 0.0f : matrix.bias[i]});
  }
};

/// A thread that does what is to be done when it begins, and of which nobody knows when that is.
struct PackedWeights::Helper {
  PackedWeights* weights;
  pid_t process;
  pthread_t thread{};
  bool finished = false;
};

void* allocate(void*, size_t alignment, size_t size) {
  // In whole pages malloc's own bookkeeping has room: it gives the block again to who asks for as much again.
  if (is_large(size)) size = round_up(size, kPage);
  void* data;
  if (posix_memalign(&data, alignment, size) != 0) return nullptr;
  ask_for_huge_pages(static_cast<char*>(data), size);
  return data;
}

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
  join_helpers(false);
  for (const Chunk& chunk : chunks_) give(chunk.data, chunk.size);
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

void PackedWeights::pack(std::vector<Matrix>& matrices, const std::function<void()>& meanwhile) {
  std::sort(matrices.begin(), matrices.end(),
            [](const Matrix& a, const Matrix& b) { return a.rows < b.rows; });
  std::vector<Block> blocks;
  size_t bytes = 0;
  const xnn_gemm_config* const config = xnn_init_f32_gemm_config();
  // Where the kernels read one number of a row at a time, a convolution's rows are packed as a product's.
  const size_t tile = config == nullptr || config->log2_kr != 0 || config->log2_sr != 0 ? 0 : config->nr;
  for (const Matrix& matrix : matrices) {
    Key key;
    const bool has_key = key_of({kMatrix, matrix.rows, matrix.bias}, &key);
    const bool in_place = has_key && matrix.bytes != nullptr;
    // the library has other kernels for so few outputs
    if (!in_place && (!can_pack_rows(tile) || matrix.outputs < tile)) continue;
    const auto [ready, is_new] = ready_.emplace(std::pair(matrix.rows, matrix.bias), nullptr);
    if (!is_new) continue;
    const auto found = has_key ? entries_.find(key) : entries_.end();
    if (found != entries_.end()) {
      ready->second = found->second;
      continue;
    }
    if (in_place) {
      const InPlace& it = in_place_.try_emplace(std::move(key), matrix).first->second;
      ready->second = reinterpret_cast<const char*>(it.rows.data()) + XNN_ROWS;
      continue;
    }
    const size_t stride = matrix.inputs + 1, outputs = round_up(matrix.outputs, tile);
    void* const packed = reserve(outputs * stride * sizeof(float));
    if (packed == nullptr) {
      ready_.erase(ready);
      break;
    }
    ready->second = packed;
    if (has_key) entries_.emplace(std::move(key), packed);
    const size_t at_once = round_up(std::max<size_t>(kBlock / (stride * sizeof(float)), 1), tile);
    for (size_t first = 0; first < matrix.outputs; first += at_once)
      blocks.push_back({&matrix, tile, first, std::min(at_once, matrix.outputs - first),
                        static_cast<float*>(packed) + first * stride});
    bytes += matrix.outputs * stride * sizeof(float);
  }
  pack(blocks, bytes, meanwhile);
}

void PackedWeights::pack(const std::vector<Block>& blocks, size_t bytes,
                         const std::function<void()>& meanwhile) {
  const size_t threads =
      std::clamp<size_t>(bytes / kThread, 1, std::max<size_t>(std::thread::hardware_concurrency(), 1));
  std::atomic<size_t> next{0};
  std::map<const Matrix*, size_t> left;  // rows that are not packed yet; under mutex_, as what follows
  std::vector<const Matrix*> done;
  for (const Block& block : blocks) left[block.matrix] += block.count;
  // Pages are given back many at a time, which costs all processors a call each.
  size_t freed = 0;
  const auto release = [&] {
    for (const Matrix* one : done) packed_(one->rows);
    done.clear();
    freed = 0;
  };
  const auto work = [&] {
    for (size_t i = next++; i < blocks.size(); i = next++) {
      const Block& it = blocks[i];
      const Matrix& matrix = *it.matrix;
      const float* rows = matrix.rows + it.first * matrix.inputs;
      map(rows, it.count * matrix.inputs);
      pack_rows(rows, matrix.bias == nullptr ? nullptr : matrix.bias + it.first, it.count, matrix.inputs,
                it.tile, it.to);
      const std::lock_guard<std::mutex> lock(mutex_);
      if ((left[&matrix] -= it.count) != 0) continue;
      done.push_back(&matrix);
      freed += matrix.outputs * matrix.inputs * sizeof(float);
      if (freed >= kFreed) release();
    }
  };
  run_with_help(threads, meanwhile, work);
  release();
}

/// Does a job in several threads, after `meanwhile` in this one. A thread that has not begun when the others
/// have nothing left to do is not waited for: where processors are busy that may take longer than all the
/// rest.
void PackedWeights::run_with_help(size_t threads, const std::function<void()>& meanwhile,
                                  const std::function<void()>& job) {
  join_helpers(true);
  std::unique_lock<std::mutex> lock(mutex_);
  job_ = &job;
  while (helpers_.size() + 1 < threads) {
    Helper& helper = helpers_.emplace_back(Helper{this, getpid()});
    const auto run = [](void* it) -> void* {
      Helper& self = *static_cast<Helper*>(it);
      PackedWeights& weights = *self.weights;
      std::unique_lock<std::mutex> held(weights.mutex_);
      if (weights.job_ != nullptr) {
        const std::function<void()>& what = *weights.job_;
        ++weights.helping_;
        held.unlock();
        what();
        held.lock();
        if (--weights.helping_ == 0) weights.helped_.notify_one();
      }
      self.finished = true;
      return nullptr;
    };
    if (pthread_create(&helper.thread, nullptr, run, &helper) != 0) {
      helpers_.pop_back();
      break;
    }
  }
  lock.unlock();
  meanwhile();
  job();
  lock.lock();
  job_ = nullptr;
  helped_.wait(lock, [this] { return helping_ == 0; });
}

void PackedWeights::join_helpers(bool only_finished) {
  std::list<Helper> gone;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (auto it = helpers_.begin(); it != helpers_.end();) {
      const auto helper = it++;
      // of a process that was forked from theirs they are no threads
      if (helper->process != getpid())
        helpers_.erase(helper);
      else if (helper->finished || !only_finished)
        gone.splice(gone.end(), helpers_, helper);
    }
  }
  for (const Helper& helper : gone) pthread_join(helper.thread, nullptr);
}

size_t PackedWeights::look_up(const xnn_weights_cache_look_up_key& given) const {
  const auto ready = ready_.find({given.kernel, given.bias});
  if (ready != ready_.end()) return reinterpret_cast<size_t>(ready->second);
  Key key;
  if (!key_of(given, &key)) return SIZE_MAX;
  const auto found = entries_.find(key);
  return found == entries_.end() ? SIZE_MAX : reinterpret_cast<size_t>(found->second);
}

void* PackedWeights::reserve(size_t size) {
  size = round_up(size, kAlignment);
  // kernels read a little beyond the end
  if (chunks_.empty() || chunks_.back().size - used_ < size + kAlignment) {
    size_t total = std::max(size + kAlignment, std::min(expected_ + expected_ / 8, kChunk));
    char* data = take(&total, std::max(size, std::min(expected_, kChunk)));
    if (data == nullptr) return nullptr;
    chunks_.push_back({data, total});
    used_ = 0;
  }
  void* result = chunks_.back().data + used_;
  used_ += size;
  expected_ -= std::min(expected_, size);
  return result;
}

size_t PackedWeights::insert(const xnn_weights_cache_look_up_key& given, void* data) {
  if (data == nullptr) return look_up(given);  // a convolution asks again for what it has found
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    packed_(given.kernel);
  }
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
