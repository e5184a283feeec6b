// SPDX-License-Identifier: BSD-3-Clause
// GraphReader: turns a payload into a program of kernel calls, where XNNPACK's library is absent.
#pragma once

#include "torchette/backends/delegate/delegate_method.h"
#include "torchette/backends/xnnpack/kernels/payload.h"

namespace torchette {
namespace xnnpack {

using delegate::Argument;
using delegate::Entry;
using delegate::Role;
using delegate::TensorValue;

// The CPU engine's kernels, which get weights as they store them.
#define TORCHETTE_CONSTANT(name, value) constexpr uint32_t name = value;
#include "torchette/schema/engine.def"

/// What the whole numbers q of a value stand for: (q - zero) scale. Constants may have a scale for each index
/// of a dimension, weights of 4 bits also one for each group of so many numbers along the other.
struct Quantization {
  fb::XNNDatatype type = fb::XNNDatatype::xnn_datatype_fp32;  // of floats
  float scale = 0;
  int32_t zero = 0;
  const void* scales = nullptr;  // float32, of groups bfloat16; null where there is one
  uint32_t channel_dim = 0, group = 0;
};

/// A value of the payload, or one that a node needs besides.
struct Slot : delegate::TensorValue {
  uint32_t argument = kNothing;  // its place among the delegate's
  Quantization how;
  Slot* source = nullptr;      // of qdint8: floats, which become integers where a node reads them, in one of
  Slot* quantized = nullptr;   // these ways,
  Slot* row_scales = nullptr;  // with the scale and zero of each row,
  Slot* rounded = nullptr;     // or as floats again; null until then
  bool is_ready = false, is_present = false;
  bool is_shown = false;  // a constant that another value shows in other sizes
  bool in_blob = false;   // a constant whose bytes stand in the delegate's own
  FreeableBuffer bytes;   // of a constant that is named data
  FreeableBuffer scale_bytes;

  bool is_constant() const { return role == delegate::Role::Constant; }
  bool is_result() const { return role == delegate::Role::Output; }
  bool is_float() const { return type == ScalarType::Float && source == nullptr; }
  /// Whether kernels take it: numbers of 8 bits with one scale.
  bool is_bytes() const {
    return how.type == fb::XNNDatatype::xnn_datatype_qint8 ||
           how.type == fb::XNNDatatype::xnn_datatype_quint8;
  }
};

/// A delegate that was loaded.
struct Loaded {
  delegate::DelegateMethod* method = nullptr;
  Span<FreeableBuffer> constants;  // that the method reads
  bool needs_bytes = false;        // whether constants stand in the processed bytes themselves

  Loaded() = default;
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  ~Loaded();
};

/// A node of the payload.
struct Definition {
  Table n;
  Limits limits;
  const char* const* kernels;   // of its row
  const char* const* integers;  // of its row of those on whole numbers
  Node kind;
};

class GraphReader {
 public:
  explicit GraphReader(BackendInitContext& context)
      : context_(context), memory_(context.get_runtime_allocator()), scratch_(*memory_), builder_(scratch_) {}
  GraphReader(const GraphReader&) = delete;
  GraphReader& operator=(const GraphReader&) = delete;
  ~GraphReader();

  /// Makes the calls, and loads the method. Errors: DelegateInvalidCompatibility (not a payload of this
  /// version, or damaged), NotSupported (what needs the library, or a kernel that this build does not have),
  /// MemoryAllocationFailed, those of named data.
  Error load(const FreeableBuffer& processed, Loaded* out);

 private:
  Error value(const Table& entry);
  Error quantization(const ValueRecord& record, Slot* slot);
  Error node(const Table& entry);
  Error tap_results();
  Error keep_constants(Loaded* out);

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
  /// The same for a value of float16: a constant is converted now, an argument by a call.
  Error widen(Slot** slot);
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
  static Span<const uint32_t> sizes_of(const Slot* slot) {
    return {reinterpret_cast<const uint32_t*>(slot->sizes), slot->rank};  // none is negative
  }
  static uint32_t size(const Slot* slot, size_t d) { return static_cast<uint32_t>(slot->sizes[d]); }

  const Entry* integers(Span<const int64_t> numbers) { return builder_.integers(numbers); }
  const Entry* tensors(Slot* const* slots, size_t count);
  const Entry* text(const char* words) { return builder_.text({words, strlen(words)}); }
  Error call(const char* kernel, std::initializer_list<Argument> arguments) {
    return builder_.call(kernel, arguments);
  }
  /// What ends a node: its limits.
  Error finish(const Definition& d, Slot* out);

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
  /// The image [N, H, W, C] as [N, C, H, W], in the same memory if that is planned.
  Error channels_second(Slot* image, Slot** out);
  BackendInitContext& context_;
  MemoryAllocator* memory_;  // of the method
  delegate::ScratchAllocator scratch_;
  delegate::ProgramBuilder builder_;
  Payload payload_;
  Slot* slots_ = nullptr;  // the values of the payload
  size_t slot_count_ = 0;
  TensorValue** arguments_ = nullptr;  // of the delegate
  Slot* whole_ = nullptr;              // what the node writes, where that is whole numbers
  Slot* rounded_ = nullptr;            // the floats that become these,
  Slot* looked_up_ = nullptr;          // for all bytes, of which this value has some
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

/// [x, non_blocking, memory_format, out] converts between float32 and float16.
inline constexpr char kConvert[] = "aten::_to_copy.out";
// Kernels of this backend.
/// [x, out]: `out` has the elements of `x` in the order of memory, in dimensions of another order.
inline constexpr char kSameElements[] = "xnnpack::same_elements.out";
/// [a [*, M, K], b [*, K, N] or [*, N, K], whether b is the latter, out [*, M, N]]: leading sizes are
/// broadcast.
inline constexpr char kMultiply[] = "xnnpack::multiply.out";
/// [weights [M, K], x [*, K, N], out [*, M, N]]: their product, without the elements of `x` that +0.0
/// weights.
inline constexpr char kCombineRows[] = "xnnpack::combine_rows.out";
/// [x, count of the last dimensions that are a row, out]: each row's numbers become the nearest of 256 that
/// the row has evenly between its least and its greatest, and 0.
inline constexpr char kRoundRows[] = "xnnpack::round_rows.out";
Kernels own_kernels();

}  // namespace xnnpack
}  // namespace torchette
