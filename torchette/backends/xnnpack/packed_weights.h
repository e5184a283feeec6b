// SPDX-License-Identifier: BSD-3-Clause
// The library's weights cache: weights in the order in which its kernels read them, each packed and held once
// for all delegates of a program.
#pragma once

#include <pthread.h>
#include <xnnpack.h>

#include <condition_variable>
#include <functional>
#include <list>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "torchette/runtime/loader.h"

namespace torchette {
namespace xnnpack {

/// By address of the weights as they are stored: what tells them from all others of the program. Empty where
/// one address stands for several things; those are not shared.
using Identities = std::map<const void*, std::string>;

/// Weights in float32 of a product in float32, as the file has them: for each output a row of `inputs`
/// numbers, which nothing else reads.
struct Matrix {
  const float* rows;
  const float* bias;  // may be null
  size_t outputs, inputs;
  FreeableBuffer* bytes;  // of the rows, where they may be read in place instead of being packed
};

/// Memory for free(), in huge pages where it is large and the system has them: one fault instead of 512, and
/// one entry of the processor's tables. Null where there is none. An `xnn_allocator` has such a function.
void* allocate(void* context, size_t alignment, size_t size);

/// Not safe to be used by two threads at once.
class PackedWeights {
 public:
  PackedWeights();
  PackedWeights(const PackedWeights&) = delete;
  PackedWeights& operator=(const PackedWeights&) = delete;
  ~PackedWeights();

  /// To be given to the library while it makes the runtime of a graph, about as large as `bytes`.
  /// `packed` is told of each set of weights that is read no more.
  xnn_weights_cache_t open(const Identities& identities, size_t bytes,
                           std::function<void(const void*)> packed);
  /// Packs what the library would pack one after the other, on all processors where it is much, and takes the
  /// bytes of what is to be read in place. For use after `open`; whatever this does not pack, the library
  /// does. `meanwhile` makes the runtime: that needs to know where packed weights are, not what they are.
  void pack(std::vector<Matrix>& matrices, const std::function<void()>& meanwhile);
  void close() {
    identities_ = nullptr;
    packed_ = nullptr;
    ready_.clear();
  }

 private:
  using Key = std::tuple<uint32_t, std::string, std::string>;
  struct Chunk {
    char* data;
    size_t size;
  };
  static PackedWeights& of(void* context) { return *static_cast<PackedWeights*>(context); }
  bool key_of(const xnn_weights_cache_look_up_key& given, Key* key) const;
  struct Block;
  struct InPlace;
  void pack(const std::vector<Block>& blocks, size_t bytes, const std::function<void()>& meanwhile);
  struct Helper;
  void run_with_help(size_t threads, const std::function<void()>& meanwhile,
                     const std::function<void()>& job);
  void join_helpers(bool only_finished);
  size_t look_up(const xnn_weights_cache_look_up_key& key) const;
  void* reserve(size_t size);
  size_t insert(const xnn_weights_cache_look_up_key& key, void* data);

  xnn_weights_cache_provider provider_{};
  const Identities* identities_ = nullptr;
  std::function<void(const void*)> packed_;  // under mutex_
  std::mutex mutex_;
  const std::function<void()>* job_ = nullptr;  // for helpers that begin now; under mutex_, as the next two
  size_t helping_ = 0;
  std::list<Helper> helpers_;
  std::condition_variable helped_;
  std::map<Key, void*> entries_;
  std::map<Key, InPlace> in_place_;
  std::map<std::pair<const void*, const void*>, const void*> ready_;  // (weights, bias) -> what `pack` made
  std::vector<Chunk> chunks_;
  size_t used_ = 0;      // of the last chunk
  size_t expected_ = 0;  // bytes that are still to come
};

}  // namespace xnnpack
}  // namespace torchette
