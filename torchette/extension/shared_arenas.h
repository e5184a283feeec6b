// SPDX-License-Identifier: BSD-3-Clause
// SharedArenas: planned memory that several methods of a program share. Finds the arenas that contain state
// of several methods and preserves that state when another method is loaded.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "torchette/extension/arena.h"
#include "torchette/runtime/method.h"

namespace torchette::extension {

/// Only one thread at a time may use an object.
class SharedArenas {
 public:
  enum class Kind : uint8_t {
    All,    // every arena, so that only one method is in use at a time
    State,  // only arenas of state that methods share
  };

  /// Allocates the shared arenas of a program, which must outlive the result. Portable fallbacks
  /// (Module::is_fallback()) share no memory. Errors: InvalidProgram, MemoryAllocationFailed.
  static Result<std::unique_ptr<SharedArenas>> make(const Program& program, Kind kind);

  /// Allocates `size` bytes for planned buffer `id` of a method, or of all methods if `method_name` is null.
  /// Errors: MemoryAllocationFailed.
  static Result<Arena> allocate_arena(const Program& program, const char* method_name, size_t id,
                                      size_t size);

  /// Returns whether methods of the program share state, as planned by
  /// `MemoryPlanningPass(share_mutable_buffers=True)`.
  bool has_state() const { return !state_.empty(); }
  /// Returns the memory of planned buffer `id`, with the index of MethodMeta, or an empty span if it is not
  /// shared.
  Span<uint8_t> arena(size_t id) const { return id < arenas_.size() ? arenas_[id].bytes() : Span<uint8_t>(); }
  /// Sets the first `size` bytes of planned buffer `id` to zero, except the state that load() or reset()
  /// preserves.
  void clear(size_t id, size_t size);
  /// Calls `load`, which initializes the state of the method, and preserves the state of methods that were
  /// loaded before. Returns the error of `load`.
  Error load(const std::string& method_name, const std::function<Error()>& load);
  /// Calls `reset`, which initializes the state of the method, and preserves state that this method does not
  /// have. Returns the error of `reset`.
  Error reset(const std::string& method_name, const std::function<Error()>& reset);

 private:
  /// A byte range of planned buffer `id`. In the order, a range precedes the ranges within it.
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
  static bool is_used_in_part(const Program& program, const char* method_name, size_t id);
  Error preserve(const Ranges& ranges, const std::function<Error()>& function);

  std::vector<Arena> arenas_;            // by id; empty if it is not shared
  std::map<std::string, Ranges> state_;  // by method; disjoint
  Ranges initialized_;                   // ranges of state_ with initial values in the file
  Ranges loaded_;                        // of the methods that have been loaded
  Ranges preserved_;                     // during load() and reset()
};

}  // namespace torchette::extension
