// SPDX-License-Identifier: BSD-3-Clause
// Runs a payload on the processor if no device can: its calls become calls of the runtime's kernels. Does not
// use Vulkan.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "torchette/backends/vulkan/payload.h"
#include "torchette/runtime/kernel.h"

namespace torchette {
namespace vulkan {

/// Allocates the memory of tensors when their sizes are known.
class HostMemory final : public DynamicAllocator {
 public:
  void* reallocate(void* old, size_t size) override;
};

class Host {
 public:
  Host() = default;
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;
  ~Host();

  /// `bytes` must outlive this. Errors: DelegateInvalidCompatibility, NotSupported (an operator or a type
  /// that the kernels do not have), OperatorMissing, those of memory and of the named data.
  Error open(const void* bytes, size_t size, const NamedDataMap* named);
  Error execute(Span<Value*> arguments, Context& context);
  /// Sets the states to the values that they had after open().
  Error reset();
  size_t inputs() const { return payload_.inputs().size(); }

 private:
  static constexpr size_t kMaxDims = kMaxVulkanDims;
  /// A tensor with its sizes and strides.
  struct Stored : OwnedTensorImpl {
    SizesType own_sizes[kMaxDims];
    StridesType own_strides[kMaxDims];
    alignas(16) uint8_t own_room[16];  // of a tensor without dimensions
    bool owns = false;                 // keeps its memory until the end
    bool is_defined = false, is_constant = false, is_state = false, is_read_each_time = false;
    size_t last = 0;  // the last step that reads it
  };
  struct Given {  // a value of the payload
    fb::GraphTypes type = fb::GraphTypes::NONE;
    Span<const uint32_t> dims;
    Span<const int64_t> ints;
    Span<const double> reals;
    Span<const uint8_t> flags;
    Span<const int32_t> list;
    Span<const char> text;
  };
  struct Step {
    OpFunction function;
    const char* name;
    uint32_t handle;   // its id in the payload
    size_t first;      // index of its first argument
    bool is_constant;  // its results are the same at each execution
  };
  struct Stage;

  Stored* make(ScalarType type, size_t rank);
  int32_t add(const Value& value);
  Stored* stored(int32_t slot) const;
  Error read_states();
  Error read_values();
  Error read_constant(size_t value, int32_t constant, ScalarType kept);
  Error read_calls();
  Error call(const char* recipe, Stage& of);
  Error stage(const char*& at, Stage& of);
  int32_t input(const char*& at, char code, bool optional, Stage& of);
  int32_t argument_input(const char*& at, char code, bool optional, Stage& of);
  int32_t list_input(const char*& at, Stage& of);
  int32_t output(const char*& at, Stage& of);
  int64_t last_size(int32_t slot) const;
  int32_t as(int32_t slot, char code, bool optional, Stage& of);
  int32_t listed(char code, const Given& given, Stage& of);
  int32_t boxed(Tag tag, const std::vector<int32_t>& slots);
  int32_t plain(Tag tag, const void* data, size_t count);
  void* room(size_t bytes);
  bool spend(size_t count);
  void add_step(const Kernel& kernel, const std::vector<int32_t>& slots, Stage& of);
  Error copy(const Tensor& from, const Tensor& to, Context& context) const;
  Error set_input(size_t i, const Value& argument, Context& context);
  Error give_output(size_t i, Value* argument, Context& context);

  Payload payload_;
  HostMemory memory_;
  std::deque<Stored> tensors_;
  std::vector<Value> values_;  // those of the payload, then temporary values
  std::vector<Given> given_;
  std::vector<bool> states_;  // by the payload's values
  std::vector<std::pair<Stored*, std::vector<uint8_t>>>
      first_;                  // initial bytes of states; empty if all are zero
  std::vector<int32_t> same_;  // by the payload's values: the value of the same tensor
  std::vector<int32_t> arguments_;
  std::vector<Step> steps_;
  std::vector<Stored*> freed_;  // in the order of their last steps
  std::vector<void*> converted_;
  std::deque<BoxedList> boxed_;
  std::deque<PlainList> plain_;
  std::vector<std::unique_ptr<uint64_t[]>> rooms_;
  std::vector<FreeableBuffer> held_;
  const Kernel* copy_ = nullptr;
  size_t budget_ = 0;  // arguments that may still be added; it bounds the memory for a small file
  bool has_run_ = false;
};

}  // namespace vulkan
}  // namespace torchette
