// SPDX-License-Identifier: BSD-3-Clause
// The signature of a method and its memory needs, read from the file without loading the method.
#pragma once

#include "torchette/runtime/flat.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/tensor.h"
#include "torchette/runtime/value.h"

namespace torchette {

namespace extension {
class SharedArenas;
}

class Program;

/// A tensor of the method's signature. The spans point into the program.
class TensorInfo {
 public:
  /// Upper bounds if the shape is dynamic.
  Span<const SizesType> sizes() const { return sizes_; }
  Span<const DimOrderType> dim_order() const { return dim_order_; }
  ScalarType scalar_type() const { return type_; }
  TensorShapeDynamism shape_dynamism() const { return dynamism_; }
  /// Whether it is in a planned buffer; otherwise it is in memory of the caller.
  bool is_memory_planned() const { return planned_; }
  /// Bytes of the maximum shape.
  size_t nbytes() const { return nbytes_; }
  /// For an input of dynamic shape: the minimum and maximum size of each dimension. Empty if unknown.
  Span<const SizesType> ranges() const { return ranges_; }
  /// Fully qualified name, such as encoder.layer.0.weight. Empty if the file has no name.
  Span<const char> name() const { return name_; }

 private:
  friend class Method;
  friend class MethodMeta;
  friend class extension::SharedArenas;
  TensorInfo() = default;
  /// Reads the Tensor record under the cursor and checks it. If sizes and dim order equal those of the
  /// previous record, it does not check them again. Errors: InvalidProgram, NotSupported (a dtype or layout
  /// that this runtime does not support).
  Error read(const flat::Reader& reader, const flat::Cursor& tensor);
  /// Reads a single record.
  static Result<TensorInfo> of(flat::Reader& reader, const flat::Table& tensor);

  Span<const SizesType> sizes_;
  Span<const DimOrderType> dim_order_;
  Span<const char> name_;
  Span<const SizesType> ranges_;
  size_t nbytes_ = 0;
  // addresses in the file of the vectors read last
  const uint8_t* sizes_address_ = nullptr;
  const uint8_t* order_address_ = nullptr;
  int32_t numel_ = 1;
  ScalarType type_ = ScalarType::Undefined;
  TensorShapeDynamism dynamism_ = TensorShapeDynamism::STATIC;
  bool planned_ = false;
  bool same_layout_ = false;  // whether sizes and dim order equal those of the previous record
};

/// Must not outlive the program. Errors of all functions: InvalidArgument (no such index), InvalidProgram
/// (damaged file).
class MethodMeta {
 public:
  const char* name() const;
  size_t num_inputs() const;
  Result<Tag> input_tag(size_t index) const;
  Result<TensorInfo> input_tensor_meta(size_t index) const;
  size_t num_outputs() const;
  Result<Tag> output_tag(size_t index) const;
  Result<TensorInfo> output_tensor_meta(size_t index) const;
  /// Attributes are named internal tensors, such as mutable buffers. Returns 0 if the file lists more than it
  /// can have bytes for.
  size_t num_attributes() const;
  Result<TensorInfo> attribute_tensor_meta(size_t index) const;
  size_t num_memory_planned_buffers() const;
  /// The size in bytes that the file states. It is checked: it may exceed the end of the buffer's last tensor
  /// by at most 4160 bytes. So a damaged file cannot make a caller allocate much memory.
  Result<int64_t> memory_planned_buffer_size(size_t index) const;
  bool uses_backend(const char* backend_name) const;
  size_t num_backends() const;
  Result<const char*> get_backend_name(size_t index) const;
  size_t num_instructions() const;
  /// The pytree specs of inputs and outputs as text; empty if the file has none.
  Span<const char> encoded_inputs() const;
  Span<const char> encoded_outputs() const;

 private:
  friend class Method;
  friend class Program;
  MethodMeta(const Program* program, size_t plan) : program_(program), plan_(plan) {}

  struct PlannedExtent;

  Result<Tag> tag_of(uint16_t slot, size_t index) const;
  Result<TensorInfo> tensor_of(uint16_t slot, size_t index) const;
  Span<const char> container(uint16_t slot) const;

  const Program* program_;
  size_t plan_;
};

}  // namespace torchette
