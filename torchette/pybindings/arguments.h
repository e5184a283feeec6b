// SPDX-License-Identifier: BSD-3-Clause
// Converts an argument from Python to a value of the runtime. Arrays with the method's layout are used in
// place.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <string>

#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/memory.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/method_meta.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// The data and the layout of an array. Strides count elements.
struct ArrayView {
  const uint8_t* data;
  size_t rank;
  int64_t sizes[kMaxDim];
  int64_t strides[kMaxDim];
  ScalarType type;
  bool writable;
};

/// The dtype of an item format of the buffer protocol; Undefined if the runtime has no such type.
ScalarType scalar_type_of(const char* format, Py_ssize_t item_size);
/// Copies a strided array to `target`, contiguous in `dim_order`.
void copy_dense(const ArrayView& source, Span<const DimOrderType> dim_order, uint8_t* target);

/// One input of a call: the value for the runtime, and the objects that keep its memory alive.
class Argument {
 public:
  Argument() { view_.obj = nullptr; }
  ~Argument() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  Argument(const Argument&) = delete;

  const Value& value() const { return value_; }

  void set_number(const Value& value) { value_ = value; }
  void set_string(const char* text) {
    text_ = text;
    list_ = {text_.data(), static_cast<uint32_t>(text_.size())};
    value_ = Value(Tag::String, &list_);
  }

  /// Sets a tensor for the input that `info` describes, in place or as a copy. Throws Fault.
  void set_tensor(nb::handle object, const TensorInfo& info, bool needs_writable, size_t input);

 private:
  void view(nb::handle object, size_t input, ArrayView* out);
  static void check(const ArrayView& array, const TensorInfo& info, size_t input);

  Value value_;
  TensorImpl impl_;
  SizesType sizes_[kMaxDim];
  StridesType strides_[kMaxDim];
  Py_buffer view_;
  nb::ndarray<nb::ro> array_;
  Memory copy_;
  std::string text_;
  PlainList list_;
};

}  // namespace torchette::pybindings
