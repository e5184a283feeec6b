// SPDX-License-Identifier: BSD-3-Clause
// RecurrentState: the position of a decoder's recurrent state, and copies of it at earlier positions. A
// smaller start position rewinds a KV cache, but not a state that depends on all earlier tokens.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "torchette/llm/engine/decoder.h"

namespace torchette::extension::llm {

class RecurrentState {
 public:
  /// The snapshot that a new one replaces: the last one of a draft, or the oldest one of a prompt.
  enum class Kind : uint8_t { Prompt, Draft };

  /// Starts at position 0. Errors: those of Decoder::is_recurrent().
  Error reset(Decoder& decoder);
  /// The state is at `position`, without snapshots.
  void clear(size_t position) {
    position_ = position;
    snapshots_.clear();
  }
  /// False: the decoder has only a KV cache, and the other functions have no effect.
  bool exists() const { return exists_; }
  /// Drops what depends on tokens from `position` on. Returns the last position, at most `position`, from
  /// which the decoder can continue.
  size_t discard_after(size_t position);
  /// Copies the state, if no snapshot of its position exists. Errors: those of Decoder::state().
  Error snapshot(Decoder& decoder, Kind kind);
  /// Restores the state at `position`, a result of discard_after(), unless it is there. A step from position
  /// 0 ignores the state. Errors: those of Decoder::state() and restored(); Internal (no snapshot).
  Error restore(Decoder& decoder, size_t position);
  /// Sets the position after a step, or kUnknown if it failed.
  void set_position(size_t position) { position_ = position; }
  static constexpr size_t kUnknown = SIZE_MAX;

 private:
  struct Snapshot {
    size_t position;
    Kind kind;
    std::shared_ptr<const std::vector<uint8_t>> bytes;  // forks share it
  };
  static constexpr size_t kMaxPrompts = 2;

  bool exists_ = false;
  size_t position_ = 0;
  std::vector<Snapshot> snapshots_;  // the oldest first
};

}  // namespace torchette::extension::llm
