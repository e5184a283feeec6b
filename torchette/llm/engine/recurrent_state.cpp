// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/recurrent_state.h"

#include <algorithm>
#include <cstring>

#include "torchette/runtime/kernel.h"

namespace torchette::extension::llm {

Error RecurrentState::reset(Decoder& decoder) {
  const Result<bool> exists = decoder.is_recurrent();
  if (!exists.ok()) return exists.error();
  exists_ = *exists;
  clear(0);
  return Error::Ok;
}

size_t RecurrentState::discard_after(size_t position) {
  if (!exists_) return position;
  snapshots_.erase(std::remove_if(snapshots_.begin(), snapshots_.end(),
                                  [&](const Snapshot& one) { return one.position > position; }),
                   snapshots_.end());
  if (position_ == position) return position;
  if (position_ > position) position_ = kUnknown;
  size_t last = position_ == kUnknown ? 0 : position_;
  for (const Snapshot& one : snapshots_) last = std::max(last, one.position);
  return last;
}

Error RecurrentState::snapshot(Decoder& decoder, Kind kind) {
  if (!exists_ || position_ == 0 || position_ == kUnknown) return Error::Ok;
  for (const Snapshot& one : snapshots_)
    if (one.position == position_) return Error::Ok;
  const Result<std::vector<Decoder::Part>> parts = decoder.state();
  if (!parts.ok()) return parts.error();
  std::vector<uint8_t> bytes;
  for (const Decoder::Part& part : *parts)
    if (part.is_recurrent()) bytes.insert(bytes.end(), part.bytes, part.bytes + part.nbytes);
  const auto is_kind = [&](const Snapshot& one) { return one.kind == kind; };
  const auto count = std::count_if(snapshots_.begin(), snapshots_.end(), is_kind);
  if (count >= static_cast<std::ptrdiff_t>(kind == Kind::Draft ? 1 : kMaxPrompts))
    snapshots_.erase(std::find_if(snapshots_.begin(), snapshots_.end(), is_kind));
  snapshots_.push_back({position_, kind, std::make_shared<const std::vector<uint8_t>>(std::move(bytes))});
  return Error::Ok;
}

Error RecurrentState::restore(Decoder& decoder, size_t position) {
  if (!exists_ || position_ == position || position == 0) return Error::Ok;
  const auto found = std::find_if(snapshots_.begin(), snapshots_.end(),
                                  [&](const Snapshot& one) { return one.position == position; });
  TORCHETTE_CHECK(found != snapshots_.end(), Internal, "there is no snapshot of the state at position %zu",
                  position);
  const Result<std::vector<Decoder::Part>> parts = decoder.state();
  if (!parts.ok()) return parts.error();
  position_ = kUnknown;
  const uint8_t* from = found->bytes->data();
  for (const Decoder::Part& part : *parts) {
    if (!part.is_recurrent()) continue;
    std::memcpy(part.bytes, from, part.nbytes);
    from += part.nbytes;
  }
  TORCHETTE_TRY(decoder.restored());
  position_ = position;
  return Error::Ok;
}

}  // namespace torchette::extension::llm
