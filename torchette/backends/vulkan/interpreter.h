// SPDX-License-Identifier: BSD-3-Clause
// Interprets the SPIR-V of a compute shader on the CPU. The results are the reference for those of a driver.
// The interpreter supports the instructions of our shaders and checks every memory access.
#pragma once

#include <cstdint>
#include <vector>

#include "torchette/runtime/span.h"

namespace torchette {
namespace vulkan {

class Interpreter {
 public:
  /// `words` must outlive this object. `constants` are the specialization constants, by their ids.
  Interpreter(Span<const uint32_t> words, Span<const uint32_t> constants);
  /// Runs all work groups in sequence. `buffers` are indexed by binding. Returns false if the shader has an
  /// unsupported instruction, accesses memory outside of a buffer, or does not end.
  bool run(Span<const uint32_t> push, Span<const Span<uint8_t>> buffers, const uint32_t (&groups)[3]);

 private:
  struct Type {
    uint32_t op = 0, width = 0, element = 0, count = 0, stride = 0;
    uint32_t words = 0, bytes = 0;  // size in registers (a word for each scalar); size in memory
    std::vector<uint32_t> members, offsets;
  };
  struct Invocation {
    std::vector<uint32_t> registers;
    std::vector<uint8_t> local;
    uint8_t input[128];
    uint32_t at, block;  // index of the next word; label of the block
    bool is_done;
  };

  void declare(const uint32_t* w, uint32_t n, Span<const uint32_t> constants);
  void finish_type(uint32_t id);
  void reserve_register(uint32_t id, uint32_t type);
  void variable(const uint32_t* w);
  bool compute(const uint32_t* w, uint32_t n, uint32_t* registers) const;
  bool compose(const uint32_t* w, uint32_t n, uint32_t* registers) const;
  bool extended(const uint32_t* w, uint32_t* registers) const;
  bool access(Invocation& me, const uint32_t* pointer, uint32_t type, uint32_t* number, bool stores);
  bool move(uint8_t* at, uint32_t type, uint32_t* number, bool stores) const;
  void jump(Invocation& me, uint32_t label);
  bool advance(Invocation& me);  // runs to a barrier or the end

  Span<const uint32_t> words_;
  std::vector<Type> types_;  // this and the next vectors are indexed by id
  std::vector<uint32_t> type_of_, register_of_, label_, special_, binding_, builtin_;
  std::vector<uint32_t> template_;  // initial registers of an invocation
  struct Place {
    uint32_t builtin, offset;
  };
  std::vector<Place> inputs_;
  std::vector<uint8_t> shared_;
  std::vector<Span<uint8_t>> memories_;  // of pointers: push constants, input, local, shared, buffers
  uint32_t shared_size_ = 0, local_size_ = 0, input_size_ = 0, entry_ = 0, local_[3] = {1, 1, 1};
  uint64_t steps_ = 0;
  bool ok_ = true;
};

}  // namespace vulkan
}  // namespace torchette
