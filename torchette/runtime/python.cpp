// SPDX-License-Identifier: BSD-3-Clause
// The native half of torchette.runtime: objects of the C++ runtime for Python, arrays without copies where
// their layout allows it, the lock released while a method runs. Prints nothing; log lines become messages of
// exceptions.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/platform.h"

namespace nb = nanobind;

namespace torchette {
namespace {

// --- Log lines of this thread, until somebody takes them
// -----------------------------------------------------------

thread_local std::string log_lines;

void capture_log_line(torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                      const char* message, size_t length) {
  if (log_lines.size() > 64 * 1024) return;  // a fault in a loop must not eat the memory
  if (!log_lines.empty()) log_lines += '\n';
  log_lines.append(message, length);
}

std::string take_log() { return std::exchange(log_lines, {}); }

// --- Scalar types between DLPack and the runtime
// ---------------------------------------------------------------------

ScalarType scalar_type_of(nb::dlpack::dtype type) {
  using Code = nb::dlpack::dtype_code;
  if (type.lanes != 1) return ScalarType::Undefined;
  switch (static_cast<Code>(type.code)) {
    case Code::Bool:
      return type.bits == 8 ? ScalarType::Bool : ScalarType::Undefined;
    case Code::Int:
      return type.bits == 8    ? ScalarType::Char
             : type.bits == 16 ? ScalarType::Short
             : type.bits == 32 ? ScalarType::Int
             : type.bits == 64 ? ScalarType::Long
                               : ScalarType::Undefined;
    case Code::UInt:
      return type.bits == 8    ? ScalarType::Byte
             : type.bits == 16 ? ScalarType::UInt16
             : type.bits == 32 ? ScalarType::UInt32
             : type.bits == 64 ? ScalarType::UInt64
                               : ScalarType::Undefined;
    case Code::Float:
      return type.bits == 16   ? ScalarType::Half
             : type.bits == 32 ? ScalarType::Float
             : type.bits == 64 ? ScalarType::Double
                               : ScalarType::Undefined;
    case Code::Bfloat:
      return type.bits == 16 ? ScalarType::BFloat16 : ScalarType::Undefined;
    case Code::Complex:
      return type.bits == 64    ? ScalarType::ComplexFloat
             : type.bits == 128 ? ScalarType::ComplexDouble
                                : ScalarType::Undefined;
    default:
      return ScalarType::Undefined;
  }
}

// --- One kernel alone, for tests
// -----------------------------------------------------------------------------------

/// The value table of one call: what the arguments of Python become, with the memory behind them.
class CallTable {
 public:
  explicit CallTable(size_t reserved) { values_.reserve(reserved); }

  int32_t add(Value value) {
    values_.push_back(value);
    return static_cast<int32_t>(values_.size() - 1);
  }

  Value tensor(nb::handle object) {
    auto array = nb::cast<nb::ndarray<nb::ro>>(object);
    const size_t dim = array.ndim();
    if (dim > kMaxDim) throw nb::value_error("a tensor has more than 16 dimensions");
    Storage& s = storage_.emplace_back();
    size_t order[kMaxDim];
    s.impl.capacity = 1;
    for (size_t d = 0; d < dim; ++d) {
      s.sizes[d] = static_cast<SizesType>(array.shape(d));
      s.strides[d] = static_cast<StridesType>(array.stride(d));
      s.impl.capacity *= array.shape(d);
      order[d] = d;
    }
    std::stable_sort(order, order + dim, [&](size_t a, size_t b) {
      return s.sizes[a] != 1 && s.sizes[b] != 1 && s.strides[a] > s.strides[b];
    });
    std::copy(order, order + dim, s.dim_order);
    s.impl.data = const_cast<void*>(array.data());
    s.impl.sizes = s.sizes;
    s.impl.strides = s.strides;
    s.impl.dim_order = s.dim_order;
    s.impl.numel = static_cast<int32_t>(s.impl.capacity);
    s.impl.dim = static_cast<uint8_t>(dim);
    s.impl.type = scalar_type_of(array.dtype());
    s.impl.dynamism = TensorShapeDynamism::DYNAMIC_BOUND;
    s.array = std::move(array);
    return Tensor(&s.impl);
  }

  Value scalar(nb::handle object) {
    if (PyBool_Check(object.ptr())) return Value(nb::cast<bool>(object));
    if (PyLong_Check(object.ptr())) return Value(nb::cast<int64_t>(object));
    if (PyFloat_Check(object.ptr())) return Value(nb::cast<double>(object));
    throw nb::type_error("a number is needed here");
  }

  template <typename T>
  Value plain_list(Tag tag, nb::handle object) {
    List& list = lists_.emplace_back();
    const nb::list items(nb::steal<nb::list>(PySequence_List(object.ptr())));
    list.bytes.resize(items.size() * sizeof(T) + 1);
    for (size_t i = 0; i < items.size(); ++i)
      reinterpret_cast<T*>(list.bytes.data())[i] = nb::cast<T>(items[i]);
    list.plain = {list.bytes.data(), static_cast<uint32_t>(items.size())};
    return Value(tag, &list.plain);
  }

  Value string(nb::handle object) {
    List& list = lists_.emplace_back();
    list.text = nb::borrow<nb::str>(object).c_str();
    list.plain = {list.text.data(), static_cast<uint32_t>(list.text.size())};
    return Value(Tag::String, &list.plain);
  }

  /// Elements go into the table themselves, as in a program.
  Value boxed_list(Tag tag, nb::handle object) {
    List& list = lists_.emplace_back();
    const nb::list items(nb::steal<nb::list>(PySequence_List(object.ptr())));
    for (nb::handle item : items) {
      const int32_t index = item.is_none() ? -1 : add(tag == Tag::ListInt ? scalar(item) : tensor(item));
      list.narrow.push_back(index);
      list.wide.push_back(index);
    }
    list.bytes.resize(items.size() * sizeof(Optional<Tensor>) + 1);
    const void* indices =
        tag == Tag::ListInt ? static_cast<const void*>(list.wide.data()) : list.narrow.data();
    list.boxed = {values_.data(), indices, list.bytes.data(), static_cast<uint32_t>(items.size())};
    return Value(tag, &list.boxed);
  }

  Value convert(char code, nb::handle object) {
    switch (code) {
      case 'T':
      case 't':
        return tensor(object);
      case 'i':
      case 'd':
      case 'b':
      case 's':
        return scalar(object);
      case 'v':
        return object.is_none() ? Value() : scalar(object);
      case 'S':
        return string(object);
      case 'D':
        return plain_list<double>(Tag::ListDouble, object);
      case 'B':
        return plain_list<bool>(Tag::ListBool, object);
      case 'I':
        return boxed_list(Tag::ListInt, object);
      case 'L':
        return boxed_list(Tag::ListTensor, object);
      case 'O':
        return boxed_list(Tag::ListOptionalTensor, object);
      default:
        throw nb::value_error("the kernel's signature has an unknown code");
    }
  }

  Value* values() { return values_.data(); }

 private:
  struct Storage {
    TensorImpl impl;
    SizesType sizes[kMaxDim];
    StridesType strides[kMaxDim];
    DimOrderType dim_order[kMaxDim];
    nb::ndarray<nb::ro> array;
  };
  struct List {
    PlainList plain;
    BoxedList boxed;
    std::string text;
    std::vector<int32_t> narrow;
    std::vector<int64_t> wide;
    std::vector<char> bytes;
  };
  std::vector<Value> values_;  // reserved, so that lists may point into it
  std::deque<Storage> storage_;
  std::deque<List> lists_;
};

nb::object value_to_python(const Value& value) {
  switch (value.tag()) {
    case Tag::Tensor: {
      nb::list sizes;
      for (SizesType size : value.to_tensor().sizes()) sizes.append(static_cast<int64_t>(size));
      return nb::tuple(sizes);
    }
    case Tag::Int:
      return nb::int_(value.to_int());
    case Tag::Double:
      return nb::float_(value.to_double());
    case Tag::Bool:
      return nb::bool_(value.to_bool());
    default:
      return nb::none();
  }
}

nb::list call_kernel(const char* name, nb::args arguments) {
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr) throw nb::key_error(name);
  size_t room = arguments.size();
  for (nb::handle argument : arguments)
    if (PySequence_Check(argument.ptr()) && !PyUnicode_Check(argument.ptr()) &&
        nb::hasattr(argument, "__iter__") && !nb::hasattr(argument, "__dlpack__"))
      room += nb::len(argument);
  CallTable table(room);
  // arguments take the first places so that prim operators' slots can be read back by position
  for (size_t i = 0; i < arguments.size(); ++i) table.add(Value());
  std::vector<int32_t> index;
  std::vector<bool> is_output;
  const char* code = kernel->signature;
  for (size_t i = 0; *code != 0; ++i) {
    const bool optional = *code == '?';
    if (optional) ++code;
    if (i >= arguments.size())
      throw nb::type_error((std::string(name) + " takes " + kernel->signature).c_str());
    if (!(optional && arguments[i].is_none())) table.values()[i] = table.convert(*code, arguments[i]);
    index.push_back(static_cast<int32_t>(i));
    is_output.push_back(*code == 't' || *code == 'v');
    ++code;
  }
  if (index.size() != arguments.size())
    throw nb::type_error((std::string(name) + " takes " + kernel->signature).c_str());
  std::unique_ptr<uint8_t[]> scratch(new uint8_t[64 << 20]);
  MemoryAllocator temp(64 << 20, scratch.get());
  Context context(&temp);
  take_log();
  const Error error = kernel->function(context, {table.values(), index.data()});
  if (error != Error::Ok) {
    const std::string text = std::string(name) + " failed with error " +
                             std::to_string(static_cast<uint32_t>(error)) + ": " + take_log();
    throw std::runtime_error(text);
  }
  nb::list results;
  for (size_t i = 0; i < index.size(); ++i)
    if (is_output[i]) results.append(value_to_python(table.values()[i]));
  return results;
}

nb::list operator_names() {
  nb::list names;
  for (const Kernels& family : kernel_table())
    for (const Kernel& kernel : family) names.append(nb::make_tuple(kernel.name, kernel.signature));
  return names;
}

NB_MODULE(_native, m) {
  PalImpl platform;
  platform.emit_log_message = capture_log_line;
  register_pal(platform);

  m.def("operators", &operator_names, "(name, signature) of every kernel in the table");
  m.def("call_kernel", &call_kernel, nb::arg("name"), nb::arg("arguments"),
        "Runs one kernel on arrays, numbers, lists, strings and None, outputs included, in the order of its\n"
        "signature. Returns the final sizes of output tensors and the values of output slots, in order.");
}

}  // namespace
}  // namespace torchette
