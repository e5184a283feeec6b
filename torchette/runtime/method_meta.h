// SPDX-License-Identifier: BSD-3-Clause
// What a method takes, gives and needs, asked of the file without loading the method.
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

/// A tensor of the method's signature. Views point into the program.
class TensorInfo {
 public:
  /// Upper bounds where the shape is dynamic.
  Span<const SizesType> sizes() const { return sizes_; }
  Span<const DimOrderType> dim_order() const { return dim_order_; }
  ScalarType scalar_type() const { return type_; }
  TensorShapeDynamism shape_dynamism() const { return dynamism_; }
  /// Whether its memory is inside of the planned buffers (else it comes from the caller).
  bool is_memory_planned() const { return planned_; }
  /// At the upper bounds.
  size_t nbytes() const { return nbytes_; }
  /// Of an input with a dynamic shape: the least and the greatest size of each dimension; empty where not
  /// known.
  Span<const SizesType> ranges() const { return ranges_; }
  /// Fully qualified name, such as encoder.layer.0.weight; empty where the file has none.
  Span<const char> name() const { return name_; }

 private:
  friend class Method;
  friend class MethodMeta;
  friend class extension::SharedArenas;
  TensorInfo() = default;
  /// Reads the Tensor record under the cursor and checks all of it that needs nothing but the record. Where
  /// sizes and order are those that this held before, it takes the verdict on them over. Errors:
  /// InvalidProgram, NotSupported (a type or layout that no tensor of this runtime has).
  Error read(const flat::Reader& reader, const flat::Cursor& tensor);
  /// One tensor by itself.
  static Result<TensorInfo> of(flat::Reader& reader, const flat::Table& tensor);

  Span<const SizesType> sizes_;
  Span<const DimOrderType> dim_order_;
  Span<const char> name_;
  Span<const SizesType> ranges_;
  size_t nbytes_ = 0;
  const uint8_t *sizes_at_ = nullptr, *order_at_ = nullptr;  // where what was read last stands in the file
  int32_t numel_ = 1;
  ScalarType type_ = ScalarType::Undefined;
  TensorShapeDynamism dynamism_ = TensorShapeDynamism::STATIC;
  bool planned_ = false;
  bool same_layout_ = false;  // whether sizes and order are those of the record that was read before
};

/// Must not outlive the program. Errors of all: InvalidArgument (no such index), InvalidProgram (damaged
/// file).
class MethodMeta {
 public:
  const char* name() const;
  size_t num_inputs() const;
  Result<Tag> input_tag(size_t index) const;
  Result<TensorInfo> input_tensor_meta(size_t index) const;
  size_t num_outputs() const;
  Result<Tag> output_tag(size_t index) const;
  Result<TensorInfo> output_tensor_meta(size_t index) const;
  /// Attributes are the tensors inside of the method that have a name, such as mutable buffers. None are told
  /// of where a file names more than it can have bytes for.
  size_t num_attributes() const;
  Result<TensorInfo> attribute_tensor_meta(size_t index) const;
  size_t num_memory_planned_buffers() const;
  /// Bytes, as the file says, where the tensors planned into the buffer come to that within 4160 bytes:
  /// whoever allocates as much asks for no memory that only a damaged file needs.
  Result<int64_t> memory_planned_buffer_size(size_t index) const;
  bool uses_backend(const char* backend_name) const;
  size_t num_backends() const;
  Result<const char*> get_backend_name(size_t index) const;
  size_t num_instructions() const;
  /// The trees of inputs and outputs in the file's text form; empty where the file has none.
  Span<const char> encoded_inputs() const;
  Span<const char> encoded_outputs() const;

 private:
  friend class Method;
  friend class Program;
  MethodMeta(const Program* program, size_t plan) : program_(program), plan_(plan) {}

  struct Reach;

  Result<Tag> tag_of(uint16_t slot, size_t index) const;
  Result<TensorInfo> tensor_of(uint16_t slot, size_t index) const;
  Span<const char> container(uint16_t slot) const;

  const Program* program_;
  size_t plan_;
};

}  // namespace torchette
