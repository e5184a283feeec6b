// SPDX-License-Identifier: BSD-3-Clause
// SharedArenas: planned memory that several methods of a program use. It finds the arenas that contain state
// of several methods, and keeps that state while another method is loaded.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// Not for use by two threads at once.
class SharedArenas {
 public:
  static constexpr size_t kAlignment = 64;  // for vector instructions

  enum class Kind : uint8_t {
    All,    // every arena, so that only one method is in use at a time
    State,  // only arenas of state that methods share
  };

  /// The program must outlive it. Fallback methods (Module::is_fallback) share nothing. Errors:
  /// InvalidProgram, MemoryAllocationFailed.
  static Result<std::unique_ptr<SharedArenas>> make(const Program& program, Kind kind);

  /// `size` bytes for planned buffer `id`. Error: MemoryAllocationFailed.
  static Result<Span<uint8_t>> allocate_arena(MemoryAllocator& memory, size_t id, size_t size);

  /// Whether methods of the program share state, as `MemoryPlanningPass(share_mutable_buffers=True)` plans
  /// it.
  bool has_state() const { return !state_.empty(); }
  /// The memory of planned buffer `id`, numbered as in MethodMeta; empty if it is not shared.
  Span<uint8_t> arena(size_t id) const { return id < arenas_.size() ? arenas_[id] : Span<uint8_t>(); }
  /// Calls `load`, which gives the method's state its first values. State that a method loaded earlier has
  /// keeps its values. Returns the error of `load`.
  Error load(const std::string& method_name, const std::function<Error()>& load);
  /// Calls `reset`, which gives the method's state its first values. State that this method does not have
  /// keeps its values. Returns the error of `reset`.
  Error reset(const std::string& method_name, const std::function<Error()>& reset);

 private:
  /// Bytes of planned buffer `id`. A range comes before the ranges inside it.
  struct Range {
    size_t id, begin, end;
    bool operator<(const Range& other) const {
      return std::tie(id, begin, other.end) < std::tie(other.id, other.begin, end);
    }
  };
  using Ranges = std::set<Range>;
  struct Plans;

  SharedArenas() = default;
  Error find_state(const Program& program);
  Error allocate(const Program& program, Kind kind);
  Error keep(const Ranges& ranges, const std::function<Error()>& function);

  MallocMemoryAllocator memory_;
  std::vector<Span<uint8_t>> arenas_;
  std::map<std::string, Ranges> state_;  // by method; disjoint
  Ranges loaded_;                        // of the methods that have been loaded
};

}  // namespace torchette::extension
