// SPDX-License-Identifier: BSD-3-Clause
// What a payload becomes where XNNPACK's library is absent: values, and calls of kernels on them. All of it
// is in the method's memory.
#pragma once

#include "torchette/backends/xnnpack/kernels/payload.h"
#include "torchette/runtime/kernel_registry.h"

namespace torchette {
namespace xnnpack {

// The CPU engine's kernels, which get weights as they store them.
#define TORCHETTE_CONSTANT(name, value) constexpr uint32_t name = value;
#include "torchette/schema/engine.def"

/// What the whole numbers q of a value stand for: (q - zero) scale. Constants may have a scale for each index
/// of a dimension, weights of 4 bits also one for each group of so many numbers along the other.
struct Quantization {
  fb::XNNDatatype type;  // fp32 for floats
  float scale;
  int32_t zero;
  const void* scales;  // float32, of groups bfloat16; null where there is one
  uint32_t channel_dim, group;
};

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
  Quantization how;
  Slot* source;      // of qdint8: floats that become whole numbers where a node reads them, in one of
  Slot* quantized;   // these ways,
  Slot* row_scales;  // with the scale and zero of each row,
  Slot* rounded;     // or as floats again; null until then
  bool is_constant, is_result, is_ready, is_present;
  bool in_blob;          // a constant whose bytes stand in the delegate's own
  FreeableBuffer bytes;  // of a constant that is named data
  FreeableBuffer scale_bytes;

  bool is_float() const { return impl.type == ScalarType::Float && source == nullptr; }
  /// Whether kernels take it: numbers of 8 bits with one scale.
  bool is_bytes() const {
    return how.type == fb::XNNDatatype::xnn_datatype_qint8 ||
           how.type == fb::XNNDatatype::xnn_datatype_quint8;
  }
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
  const char* const* kernels;   // of its row
  const char* const* integers;  // of its row of those on whole numbers
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
  Error quantization(const ValueRecord& record, Slot* slot);
  Error node(const Table& entry);
  Error place();
  Error find_taps();

  /// The value that a node reads, which must be there; null where the node may go without it. Whole numbers
  /// as floats.
  Error find(const Table& n, uint16_t slot, Slot** out, bool optional = false);
  /// The value that a node writes: one that nobody wrote before. Floats, which become whole numbers behind
  /// the node where it is to write those.
  Error make(const Table& n, uint16_t slot, Slot** out);
  // The same in two steps, for a node that takes some whole numbers as they are.
  Error look(const Table& n, uint16_t slot, Slot** out, bool optional = false);
  Error claim(const Table& n, uint16_t slot, Slot** out);
  Error floats(Slot** slot);
  Error result(Slot** slot);
  /// Both values of a node with one operand: a function of numbers. Of bytes to bytes it is a table, and what
  /// the node computes are the results for all bytes.
  Error one(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out);
  Error tabulated(Slot** in, Slot** out);
  /// The same where numbers only change places: whole ones stay so if they stand for the same on both sides.
  Error moved(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out);
  /// The whole numbers of a value of qdint8, and their scales: once for all nodes that read it.
  Error quantize_rows(const char* kernel, Slot* slot, Slot** quantized, Slot** row_scales);
  /// Makes whole numbers of a node's floats, if they are to be that.
  Error round();

  /// A value of ours, of these sizes or less; null where there is no memory. In `order`: dimensions from
  /// outermost to innermost in memory.
  Slot* temporary(Span<const uint32_t> sizes, ScalarType type = ScalarType::Float);
  Slot* shown(Slot* other, Span<const uint32_t> sizes, const DimOrderType* order = nullptr);
  /// A constant of ours, or of other sizes: `data` stays.
  Slot* constant(Span<const uint32_t> sizes, const void* data, ScalarType type = ScalarType::Float);
  /// One whose elements the caller writes.
  Slot* stored(Span<const uint32_t> sizes, ScalarType type = ScalarType::Float);
  Error set(Slot* slot, Span<const uint32_t> sizes, ScalarType type);
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
  Error convert(const Definition& d);
  Error copy(const Definition& d);
  Error binary(const Definition& d);
  Error integer_binary(const Definition& d, Slot* a, Slot* b, Slot* out, bool* is_done);
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
  /// Panels (torchette/backends/engine/pack.py) of `groups` times `outputs` rows of `inputs` numbers;
  /// `steps`: from one group, row and number to the next. Null where there is no memory.
  Slot* packed(const Slot* weights, size_t groups, size_t outputs, size_t inputs, const size_t (&steps)[3],
               Span<const uint32_t> sizes);
  /// Whole numbers of a constant, `unit` inputs of an output side by side: panels
  /// [groups][outputs / 16][inputs / unit][16][unit], of a unit of 8 two numbers in a byte (pack.py:
  /// pack_quads, pack_nibbles). `sums`: of each output's, in lines of whole panels; or null.
  Slot* packed_integers(const Slot* weights, size_t groups, size_t outputs, size_t inputs,
                        const size_t (&steps)[3], size_t unit, Span<const uint32_t> sizes, float* sums,
                        size_t line);
  /// A layer on whole numbers: packed weights, and the terms that make bytes of sums (pack.py:
  /// requantization_terms).
  Error integer_weights(const Slot* in, const Slot* weights, const Slot* bias, const Slot* out, size_t groups,
                        size_t outputs, size_t inputs, const size_t (&steps)[3], size_t unit,
                        Span<const uint32_t> sizes, Slot** packed, Slot** terms);
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
  Slot* whole_ = nullptr;      // what the node writes, where that is whole numbers
  Slot* rounded_ = nullptr;    // the floats that become these,
  Slot* looked_up_ = nullptr;  // for all bytes, of which this value has some
};

/// Whether equal elements of both mean the same to our kernels.
bool stand_for_the_same(const Slot& a, const Slot& b);
/// The whole number that a real one becomes, within the range of its type; NaN becomes the lowest.
int64_t whole_of(const Slot& slot, double real);
/// The range that a node's results are clamped to, in whole numbers.
int64_t low_of(const Slot& slot, const Limits& limits);
int64_t high_of(const Slot& slot, const Limits& limits);
/// Element i of a constant.
int32_t whole_at(const Slot& slot, size_t i);
/// The scale of a constant's elements in place i of its channels, and in that group of them.
float scale_at(const Slot& slot, size_t channel, size_t group);
/// Whether sums of products of these are whole numbers of 32 bits, with a scale for each index of
/// `outputs_dim` of the weights: what the engine's integer kernels compute.
bool sums_are_whole(const Slot& in, const Slot& weights, const Slot* bias, const Slot& out,
                    uint32_t outputs_dim, uint64_t inputs);

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
/// [floats, how many of the last dimensions are a row, out]: each row's numbers become the nearest of 256
/// that the row has evenly between its least and its greatest, and 0.
Error round_rows(Context& context, const Call& call);

}  // namespace xnnpack
}  // namespace torchette
