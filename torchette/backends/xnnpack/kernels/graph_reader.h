// SPDX-License-Identifier: BSD-3-Clause
// GraphReader: turns a payload into a program of kernel calls, which runs without XNNPACK's library.
#pragma once

#include "torchette/backends/delegate/delegate_method.h"
#include "torchette/backends/xnnpack/kernels/payload.h"
#include "torchette/extension/malloc_dynamic_allocator.h"

namespace torchette {
namespace xnnpack {

using delegate::Argument;
using delegate::Entry;
using delegate::Role;
using delegate::TensorValue;

// Constants of the CPU engine's kernels, for example the width of a panel of packed weights.
#define TORCHETTE_CONSTANT(name, value) constexpr uint32_t name = value;
#include "torchette/schema/engine.def"

/// Affine quantization of a value: real = (q - zero_point) * scale. A constant may have a scale for each
/// index of a dimension. 4-bit weights may also have a scale for each group of `group` elements along the
/// other dimension.
struct Quantization {
  fb::XNNDatatype type = fb::XNNDatatype::xnn_datatype_fp32;  // fp32: not quantized
  float scale = 0;
  int32_t zero_point = 0;
  const void* scales = nullptr;  // float32, or bfloat16 if there are groups; null: one scale
  uint32_t channel_dim = 0, group = 0;
  int32_t row_dims = 0;  // of qdint8: the number of last dimensions that share a scale
};

/// A value of the payload, or an intermediate value of a node.
struct Slot : delegate::TensorValue {
  uint32_t argument = kNoValue;  // index among the delegate's arguments
  Quantization quantization;
  Slot* source = nullptr;       // of qdint8: the floats that are quantized at run time
  Slot* quantized = nullptr;    // the integers of `source`; null until a node reads them
  Slot* row_scales = nullptr;   // scale and zero point of each row of `quantized`
  Slot* float_value = nullptr;  // the value in float32; null until a node reads it
  bool is_ready = false, is_present = false;
  bool has_view = false;       // a constant with a view
  bool is_in_payload = false;  // a constant with its bytes in the payload
  FreeableBuffer bytes;        // of a constant in named data
  uint32_t constant = 0;       // index of its constant in the payload; 0 if there is none
  FreeableBuffer scale_bytes;

  bool is_constant() const { return role == delegate::Role::Constant; }
  bool is_result() const { return role == delegate::Role::Output; }
  bool is_float() const { return type == ScalarType::Float && source == nullptr; }
  /// Whether it has 8-bit integers with one scale, which the engine's integer kernels accept.
  bool is_8_bit() const {
    return quantization.type == fb::XNNDatatype::xnn_datatype_qint8 ||
           quantization.type == fb::XNNDatatype::xnn_datatype_quint8;
  }
};

/// A loaded delegate.
struct Loaded {
  extension::MallocDynamicAllocator memory;  // of tensors, if the maximum sizes need too much
  delegate::DelegateMethod* method = nullptr;
  Span<FreeableBuffer> constants;  // the named data that the method reads
  bool needs_bytes = false;        // whether the method reads constants in the payload

  Loaded() = default;
  Loaded(const Loaded&) = delete;
  Loaded& operator=(const Loaded&) = delete;
  ~Loaded();
};

/// A node of the payload.
struct Definition {
  Table n;
  Limits limits;
  const char* const* kernels;   // of its row in xnnpack.def
  const char* const* integers;  // of its row of integer kernels; null if there is none
  Node kind;
};

class GraphReader {
 public:
  explicit GraphReader(BackendInitContext& context)
      : context_(context), memory_(context.get_runtime_allocator()), scratch_(*memory_), builder_(scratch_) {}
  GraphReader(const GraphReader&) = delete;
  GraphReader& operator=(const GraphReader&) = delete;
  ~GraphReader();

  /// Adds the calls and loads the method. Errors: DelegateInvalidCompatibility (the payload has another
  /// version or is damaged), NotSupported (no kernel of this build runs a node), MemoryAllocationFailed,
  /// those of named data.
  Error load(const FreeableBuffer& processed, Loaded* out);

 private:
  Error read_value(const Table& entry);
  Error read_quantization(const ValueRecord& record, Slot* slot);
  Error read_node(const Table& entry);
  Error tap_results();
  /// Sets the bytes of a constant.
  Error read_constant(Slot* slot);
  /// Frees the weights that a node has packed, unless the method reads them.
  void free_packed();
  Error keep_constants(Loaded* out);

  /// The value that a node reads, in float32. It must be ready. Null if it is absent and `optional` is true.
  Error float_input(const Table& n, uint16_t slot, Slot** out, bool optional = false);
  /// The float32 value that a node writes. No node may have written it before. quantize_result() quantizes it
  /// if the payload's value has integers.
  Error float_output(const Table& n, uint16_t slot, Slot** out);
  // The two steps of float_input() and float_output(), for a node that may compute on integers. input() and
  // output() return the value of the payload; to_float() and float_result() replace it by a value in float32.
  Error input(const Table& n, uint16_t slot, Slot** out, bool optional = false);
  Error output(const Table& n, uint16_t slot, Slot** out);
  Error to_float(Slot** slot);
  /// Replaces a float16 value by a value in float32: converts a constant now, an argument by a call.
  Error half_to_float(Slot** slot);
  Error float_result(Slot** slot);
  /// Input and output of an elementwise node with one operand. If both are 8-bit, the node becomes a
  /// table: the node's kernel computes the results of all 256 values, and a kernel looks up the elements.
  Error unary_operands(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out);
  Error use_table(Slot** in, Slot** out);
  /// Input and output of a node that only moves elements. Integers are moved without conversion if both
  /// values have the same quantization.
  Error moved_operands(const Table& n, uint16_t from, uint16_t to, Slot** in, Slot** out);
  /// The integers and scales of a qdint8 value, which all nodes that read it share.
  Error quantize_rows(const char* kernel, Slot* slot, Slot** quantized, Slot** row_scales);
  /// Quantizes the float32 result of a node if the payload's value has integers.
  Error quantize_result();

  /// An intermediate value with these maximum sizes; null if memory is exhausted.
  Slot* temporary(Span<const uint32_t> sizes, ScalarType type = ScalarType::Float);
  /// A view of another value. `order`: the dimensions from outermost to innermost in memory.
  Slot* view(Slot* other, Span<const uint32_t> sizes, const DimOrderType* order = nullptr);
  /// A constant at `data`, which must outlive the method.
  Slot* constant(Span<const uint32_t> sizes, const void* data, ScalarType type = ScalarType::Float);
  /// A constant with new memory; the caller writes its elements.
  Slot* new_constant(Span<const uint32_t> sizes, ScalarType type = ScalarType::Float);
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
  /// Adds the clamp of a node's limits, if it has any.
  Error finish(const Definition& d, Slot* out);

  // The functions that xnnpack.def names.
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
  Error matmul(const Definition& d);
  Error attention(const Definition& d);
  Error transpose(const Definition& d);
  Error reshape(const Definition& d);
  Error slice(const Definition& d);
  Error pad(const Definition& d);
  Error resize(const Definition& d);

  /// Pads an image with `value` by a call of `kernel`. If the paddings on opposite sides are equal and the
  /// layer can pad (`can_pad`), returns the image and sets `padding` for the layer instead.
  Error with_border(const char* kernel, Slot* image, const uint32_t (&before)[2], const uint32_t (&after)[2],
                    bool can_pad, double value, int64_t (&padding)[2], Slot** out);
  /// Packs float32 weights into panels (torchette/backends/engine/pack.py): `groups` groups of `outputs` rows
  /// with `inputs` elements. `steps`: the strides of group, row and element. Null if memory is exhausted. The
  /// end of the node frees the unpacked weights.
  Slot* packed(Slot* weights, size_t groups, size_t outputs, size_t inputs, const size_t (&steps)[3],
               Span<const uint32_t> sizes);
  /// Packs integer weights into panels [groups][outputs / 16][inputs / unit][16][unit]. A unit of 8 stores
  /// two 4-bit weights in a byte (pack.py: pack_quads, pack_nibbles). `sums`, unless null, receives the sum
  /// of each output's weights, in lines of `line` elements.
  Slot* packed_integers(Slot* weights, size_t groups, size_t outputs, size_t inputs, const size_t (&steps)[3],
                        size_t unit, Span<const uint32_t> sizes, float* sums, size_t line);
  /// The packed weights of an integer layer, and the terms that convert accumulators to 8 bits (pack.py:
  /// requantization_terms).
  Error integer_weights(const Slot* in, Slot* weights, const Slot* bias, const Slot* out, size_t groups,
                        size_t outputs, size_t inputs, const size_t (&steps)[3], size_t unit,
                        Span<const uint32_t> sizes, Slot** packed, Slot** terms);
  /// A bias, if there is one, as a vector of `count` elements.
  Error bias_vector(Slot* bias, uint64_t count, Slot** out);
  Error read_list(const Table& n, uint16_t slot, size_t expected, int64_t (&out)[kMaxDims]);
  /// A view [N, C, H, W] of the image [N, H, W, C]. It shares the image's memory if that is planned.
  Error channels_first_view(Slot* image, Slot** out);

  BackendInitContext& context_;
  MemoryAllocator* memory_;  // of the method
  delegate::ScratchAllocator scratch_;
  delegate::ProgramBuilder builder_;
  Payload payload_;
  Slot* slots_ = nullptr;  // the values of the payload
  size_t slot_count_ = 0;
  TensorValue** arguments_ = nullptr;  // of the delegate
  Slot* packed_ = nullptr;             // the weights that the node has packed, or null
  Slot* converted_result_ = nullptr;   // the integer or float16 value that the node writes; else null
  Slot* float_result_ = nullptr;       // the float32 value that becomes `converted_result_`
  Slot* table_indices_ = nullptr;      // if `float_result_` is a table: its indices
};

/// Whether equal elements of both values represent equal real values.
bool has_equal_quantization(const Slot& a, const Slot& b);
/// Quantizes a real value and clamps it to the range of the type. NaN becomes the minimum.
int64_t quantize_value(const Slot& slot, double real);
/// The quantized limits of a node's results.
int64_t quantized_min(const Slot& slot, const Limits& limits);
int64_t quantized_max(const Slot& slot, const Limits& limits);
/// Element i of an integer constant.
int32_t integer_at(const Slot& slot, size_t i);
/// The scale of a constant's elements in a channel and a group.
float scale_at(const Slot& slot, size_t channel, size_t group);
/// Whether the engine's integer kernels can run a layer: 8-bit input and output, constant int8 weights with a
/// scale for each index of `outputs_dim`, and accumulators that fit in 32 bits.
bool has_integer_kernel(const Slot& in, const Slot& weights, const Slot* bias, const Slot& out,
                        uint32_t outputs_dim, uint64_t inputs);

/// [x, non_blocking, memory_format, out] converts between float32 and float16.
inline constexpr char kConvert[] = "aten::_to_copy.out";
// Kernels of this backend. The arguments are in brackets.
/// [x, out]: copies the elements of `x` in the order of memory to `out`, which has another dim order.
inline constexpr char kSameElements[] = "xnnpack::same_elements.out";
/// [a [*, M, K], b [*, K, N], or [*, N, K] if transposed, transposed, out [*, M, N]]: matrix multiplication;
/// leading sizes broadcast.
inline constexpr char kMultiply[] = "xnnpack::multiply.out";
/// [weights [M, K], x [*, K, N], out [*, M, N]]: matrix multiplication that does not read the elements of `x`
/// with a weight of +0.0.
inline constexpr char kCombineRows[] = "xnnpack::combine_rows.out";
/// [x, number of last dimensions that form a row, out]: quantizes each row to 8 bits and dequantizes it. The
/// range of the quantization contains 0 and the minimum and maximum of the row.
inline constexpr char kRoundRows[] = "xnnpack::round_rows.out";
Kernels payload_kernels();

}  // namespace xnnpack
}  // namespace torchette
