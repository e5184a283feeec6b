// SPDX-License-Identifier: BSD-3-Clause
// What a payload becomes where XNNPACK's library is absent: values, and calls of kernels on them. All of it
// is in the method's memory.
#pragma once

#include "torchette/backends/xnnpack/kernels/payload.h"
#include "torchette/runtime/kernel_registry.h"

namespace torchette {
namespace xnnpack {

/// A value: what kernels get of it, and where it is. `impl` is first, so that an argument leads here.
struct Slot {
  TensorImpl impl;
  SizesType sizes[kMostDims];
  StridesType strides[kMostDims];
  size_t bound;           // elements that it may have
  Slot* shows;            // whose memory this shows, in other sizes; null where it has some
  Slot* next;             // of those that nodes write, in their order
  Slot* above;            // while memory is planned: what lives behind this one
  uint64_t offset, size;  // in the memory of values
  uint32_t first, last;   // the nodes that use it: numbers from 1, 0 for none
  uint32_t argument;      // its place among the delegate's, or kNothing
  bool is_constant, is_result, is_ready, is_present;
  bool in_blob;          // a constant whose bytes stand in the delegate's own
  FreeableBuffer bytes;  // of a constant that is named data
};

struct Call;
using Run = Error (*)(Context&, const Call&);

/// A call of a kernel, or of what makes calls of it.
struct Call {
  Run run;
  const Kernel* kernel;
  Value* arguments;
  Call* next;
  const Slot* output;
  uint32_t debug_handle;  // of the node
};

/// A value that is a result of the program's, for a tracer that asks for those inside.
struct Tap {
  const Slot* slot;
  uint32_t debug_handle;
  uint8_t layout;  // as in the payload
};

struct Program {
  Slot* slots = nullptr;  // the values of the payload
  size_t slot_count = 0;
  Slot** arguments = nullptr;
  size_t argument_count = 0;
  Call* calls = nullptr;
  Span<Tap> taps;            // none where nobody asked at init
  bool needs_bytes = false;  // whether constants stand in the processed bytes themselves

  ~Program() {
    for (size_t i = 0; i < slot_count; ++i) slots[i].~Slot();
  }
};

/// Whether results inside are to be seen from outside.
bool wants_taps(const EventTracer* tracer);
/// Tells the tracer what a value is now, if it is one of the taps.
void tell(const Program& program, const Slot* slot, BackendExecutionContext& context);

/// Gives a tensor other memory. It loses its elements, so that its next sizes are held against the new
/// capacity.
inline void move_to(TensorImpl& impl, void* data, size_t capacity) {
  impl.data = data;
  impl.capacity = capacity;
  if (impl.dim == 0) return;
  impl.sizes[0] = 0;
  impl.numel = 0;
}

/// Makes the calls. Errors: DelegateInvalidCompatibility (not a payload of this version, or damaged),
/// NotSupported (what needs the library, or a kernel that this build left out), MemoryAllocationFailed, those
/// of named data.
Error read_program(const FreeableBuffer& processed, BackendInitContext& context, Program* out);

/// A node of the payload.
struct Definition {
  Table n;
  Limits limits;
  const char* const* kernels;  // of its row
  Node kind;
};

class Builder {
 public:
  Builder(BackendInitContext& context, Program* out)
      : memory_(context.get_runtime_allocator()),
        named_(context.get_named_data_map()),
        taps_(wants_taps(context.event_tracer())),
        out_(*out) {}

  Error build(const FreeableBuffer& processed);

 private:
  Error value(const Table& entry);
  Error node(const Table& entry);
  Error place();
  Error find_taps();

  /// The value that a node reads, which must be there; null where the node may go without it.
  Error find(const Table& n, uint16_t slot, Slot** out, bool optional = false);
  /// The value that a node writes: one that nobody wrote before.
  Error make(const Table& n, uint16_t slot, Slot** out);

  /// A value of ours, of these sizes or less; null where there is no memory. In `order`: dimensions from
  /// outermost to innermost in memory.
  Slot* temporary(Span<const uint32_t> sizes);
  Slot* shown(Slot* other, Span<const uint32_t> sizes, const DimOrderType* order = nullptr);
  /// A constant of ours, or of other sizes: `data` stays.
  Slot* constant(Span<const uint32_t> sizes, const void* data);
  Error set(Slot* slot, Span<const uint32_t> sizes);
  static Span<const uint32_t> sizes_of(const Slot* slot) {
    return {reinterpret_cast<const uint32_t*>(slot->sizes), slot->impl.dim};  // none is negative
  }
  static uint32_t size(const Slot* slot, size_t d) { return static_cast<uint32_t>(slot->sizes[d]); }

  // Arguments of calls. Where there is no memory, the next call says so.
  static Value value_of(Slot* slot) { return slot == nullptr ? Value() : Value(Tensor(&slot->impl)); }
  Value integers(Span<const int64_t> numbers);
  Value tensors(Slot* const* slots, size_t count);
  Value text(const char* words);

  Error call(const char* kernel, std::initializer_list<Value> arguments, Run run = nullptr);
  /// What ends a node: its limits.
  Error finish(const Definition& d, Slot* out);
  void use(Slot* slot);

  // What the table of nodes names.
  Error unary(const Definition& d);
  Error binary(const Definition& d);
  Error sum(const Definition& d);
  Error square(const Definition& d);
  Error prelu(const Definition& d);
  Error clamp(const Definition& d);
  Error gelu(const Definition& d);
  Error leaky_relu(const Definition& d);
  Error elu(const Definition& d);
  Error softmax(const Definition& d);
  Error mean(const Definition& d);
  Error concatenate(const Definition& d);
  Error convolution(const Definition& d);
  Error transposed_convolution(const Definition& d);
  Error max_pool(const Definition& d);
  Error avg_pool(const Definition& d);
  Error fully_connected(const Definition& d);
  Error product(const Definition& d);
  Error attention(const Definition& d);
  Error transpose(const Definition& d);
  Error reshape(const Definition& d);
  Error slice(const Definition& d);
  Error pad(const Definition& d);
  Error resize(const Definition& d);

  /// The result of `kernel`: an image with a border of `value`; or the image, where the border is the same on
  /// both sides and the layer adds it itself, which `padding` then says.
  Error with_border(const char* kernel, Slot* image, const uint32_t (&before)[2], const uint32_t (&behind)[2],
                    bool is_own, double value, int64_t (&padding)[2], Slot** out);
  /// Panels (torchette/backends/cpu/pack.py) of `groups` times `outputs` rows of `inputs` numbers; `steps`:
  /// from one group, row and number to the next. Null where there is no memory.
  Slot* packed(const Slot* weights, size_t groups, size_t outputs, size_t inputs, const size_t (&steps)[3],
               Span<const uint32_t> sizes);
  /// A bias, if there is one, in one dimension of that many elements.
  Error vector(Slot* bias, uint64_t count, Slot** out);
  Error numbers(const Table& n, uint16_t slot, size_t expected, int64_t (&out)[kMostDims]);
  /// The image with its channels as second dimension; in the same memory.
  Error channels_second(Slot* image, Slot** out);

  MemoryAllocator* memory_;
  const NamedDataMap* named_;
  bool taps_;
  Program& out_;
  Payload payload_;
  Call** end_ = nullptr;
  uint32_t time_ = 0;  // the number of the node
  uint32_t debug_handle_ = 0;
  Slot *first_ = nullptr, **last_ = nullptr;  // those that need memory
  bool full_ = false;
};

extern const DimOrderType kNatural[kMostDims];

// Calls of our own: what shows the memory of another value, and what makes several calls of one kernel.
/// [value, sizes, value that shows it]: one size may be 0, what is left.
Error show_reshaped(Context& context, const Call& call);
/// [value, value that shows it with its dimensions in another order]
Error show_permuted(Context& context, const Call& call);
/// [value, value that it shows], when a kernel has given the former its sizes: the latter has them, too.
Error take_sizes(Context& context, const Call& call);
/// [a [*, M, K], b [*, K, N] or [*, N, K], whether b is the latter, out [*, M, N]]: leading sizes are
/// broadcast.
Error multiply(Context& context, const Call& call);

}  // namespace xnnpack
}  // namespace torchette
