// SPDX-License-Identifier: BSD-3-Clause
// Calls single kernels with Python values: for custom operators, for the compiler, which reserves scratch
// memory, and for tests.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/measuring_allocator.h"
#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/log.h"
#include "torchette/pybindings/memory.h"
#include "torchette/pybindings/values.h"
#include "torchette/runtime/kernel_registry.h"

namespace torchette::pybindings {
namespace {

/// The value table of one call: the converted Python arguments and their memory.
class CallTable {
 public:
  explicit CallTable(size_t reserved) { values_.reserve(reserved); }

  int32_t add(Value value) {
    values_.push_back(value);
    return static_cast<int32_t>(values_.size() - 1);
  }

  /// A tensor of zeros, or of true if its dtype is bool. `description` is (dtype code, sizes, dim order).
  Value make_tensor(const nb::tuple& description) {
    Storage& s = storage_.emplace_back();
    s.impl.type = static_cast<ScalarType>(nb::cast<int>(description[0]));
    const auto sizes = nb::cast<nb::tuple>(description[1]), order = nb::cast<nb::tuple>(description[2]);
    if (sizes.size() > kMaxDim || order.size() != sizes.size())
      throw nb::value_error("sizes and dim order are not those of a tensor");
    s.impl.dim = static_cast<uint8_t>(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      s.sizes[d] = nb::cast<SizesType>(sizes[d]);
      s.dim_order[d] = nb::cast<DimOrderType>(order[d]);
    }
    const Result<int32_t> numel = dense_strides({s.sizes, sizes.size()}, s.dim_order, s.strides);
    if (!numel.ok()) throw nb::value_error("a tensor is too large");
    const size_t size = static_cast<size_t>(*numel) * element_size(s.impl.type);
    s.memory.reset(calloc(size + 1, 1));
    if (s.memory == nullptr) throw std::bad_alloc();
    if (s.impl.type == ScalarType::Bool) memset(s.memory.get(), 1, size);
    s.impl.data = s.memory.get();
    s.impl.sizes = s.sizes;
    s.impl.strides = s.strides;
    s.impl.dim_order = s.dim_order;
    s.impl.capacity = static_cast<size_t>(*numel);
    s.impl.numel = *numel;
    s.impl.dynamism = TensorShapeDynamism::DYNAMIC_BOUND;
    return Tensor(&s.impl);
  }

  Value tensor(nb::handle object) {
    if (PyTuple_Check(object.ptr())) return make_tensor(nb::borrow<nb::tuple>(object));
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
    throw nb::type_error("expected an int, float or bool");
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
    if (!nb::isinstance<nb::str>(object)) throw nb::type_error("expected a string");
    List& list = lists_.emplace_back();
    list.text = nb::borrow<nb::str>(object).c_str();
    list.plain = {list.text.data(), static_cast<uint32_t>(list.text.size())};
    return Value(Tag::String, &list.plain);
  }

  /// Adds the elements to the table, too, as in a program.
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
    const uint16_t tags = tags_of(code);
    const auto accepts = [tags](Tag tag) { return (tags & tag_mask({tag})) != 0; };
    if (accepts(Tag::None) && object.is_none()) return Value();
    if (accepts(Tag::String) && (!accepts(Tag::Int) || nb::isinstance<nb::str>(object)))
      return string(object);
    if (accepts(Tag::Int)) return scalar(object);
    if (accepts(Tag::Tensor)) return tensor(object);
    if (accepts(Tag::ListDouble)) return plain_list<double>(Tag::ListDouble, object);
    if (accepts(Tag::ListBool)) return plain_list<bool>(Tag::ListBool, object);
    for (const Tag tag : {Tag::ListInt, Tag::ListTensor, Tag::ListOptionalTensor})
      if (accepts(tag)) return boxed_list(tag, object);
    throw nb::value_error("the kernel's signature has an unknown code");
  }

  Value* values() { return values_.data(); }

 private:
  struct Storage {
    TensorImpl impl;
    SizesType sizes[kMaxDim];
    StridesType strides[kMaxDim];
    DimOrderType dim_order[kMaxDim];
    nb::ndarray<nb::ro> array;
    Memory memory;
  };
  struct List {
    PlainList plain;
    BoxedList boxed;
    std::string text;
    std::vector<int32_t> narrow;
    std::vector<int64_t> wide;
    std::vector<char> bytes;
  };
  std::vector<Value> values_;  // capacity is reserved, so lists may point into it
  std::deque<Storage> storage_;
  std::deque<List> lists_;
};

/// The converted arguments of one call. They have the first indices of `table`, so that the slots of prim
/// operators can be read by position.
struct Call {
  Call(const Kernel& kernel, const nb::tuple& arguments) : table(count_values(arguments)) {
    const size_t count = nb::len(arguments);
    for (size_t i = 0; i < count; ++i) table.add(Value());
    const char* code = kernel.signature;
    for (size_t i = 0; *code != 0; ++i) {
      const bool optional = *code == '?';
      if (optional) ++code;
      if (i >= count)
        throw nb::type_error(
            (std::string(kernel.name) + " expects the arguments " + kernel.signature).c_str());
      const nb::object argument = arguments[i];
      if (!(optional && argument.is_none())) table.values()[i] = table.convert(*code, argument);
      index.push_back(static_cast<int32_t>(i));
      is_output.push_back(*code == 't' || *code == 'v' || *code == 'm');
      ++code;
    }
  }
  static size_t count_values(const nb::tuple& arguments) {
    size_t count = nb::len(arguments);
    for (nb::handle argument : arguments)
      if (PySequence_Check(argument.ptr()) && !PyUnicode_Check(argument.ptr()) &&
          nb::hasattr(argument, "__iter__") && !nb::hasattr(argument, "__dlpack__"))
        count += nb::len(argument);
    return count;
  }
  Args args() { return {table.values(), index.data()}; }

  CallTable table;
  std::vector<int32_t> index;
  std::vector<bool> is_output;
};

/// Threads that divide every loop, also short ones, so that tests find all differences. Two threads run one
/// half each; more threads run one item at a time.
class DividingThreads final : public Threads {
 public:
  explicit DividingThreads(size_t count) : count_(count) {}
  size_t count() const override { return count_; }
  void run(size_t items, size_t, Part part, const void* argument) override {
    const size_t size = count_ == 2 ? (items + 1) / 2 : 1;
    std::vector<std::thread> threads;
    for (size_t worker = 0; worker < count_; ++worker)
      threads.emplace_back([=] {
        for (size_t begin = worker * size; begin < items; begin += count_ * size)
          part(argument, begin, std::min(begin + size, items), worker);
      });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  size_t count_;
};

/// The kernel of a level, or of the best level if `level` is null. Null if it does not exist.
const Kernel* kernel_of(const char* name, const char* level) {
  if (level == nullptr) return find_kernel(name);
  Kernels buffer[64];
  for (const Kernels& family : kernel_table_of(level, {buffer, 64}))
    for (const Kernel& kernel : family)
      if (strcmp(kernel.name, name) == 0) return &kernel;
  return nullptr;
}

/// Runs a kernel `repeats` times. Stores the total time in `seconds` unless that is null.
nb::list run_kernel(const char* name, const nb::args& arguments, int repeats, double* seconds,
                    const char* level = nullptr, size_t workers = 1) {
  const Kernel* kernel = kernel_of(name, level);
  if (kernel == nullptr) throw nb::key_error(name);
  Call call(*kernel, arguments);
  CallTable& table = call.table;
  const std::vector<int32_t>& index = call.index;
  if (index.size() != arguments.size())
    throw nb::type_error((std::string(name) + " expects the arguments " + kernel->signature).c_str());
  extension::MallocMemoryAllocator temp;
  DividingThreads threads(workers);
  Context context(&temp, Traced(), workers > 1 ? &threads : nullptr);
  take_log();
  Error error = Error::Ok;
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats && error == Error::Ok; ++i) {
    error = kernel->function(context, call.args());
    temp.reset();
  }
  if (seconds != nullptr)
    *seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (error != Error::Ok) {
    const std::string text = std::string(name) + " failed with error " +
                             std::to_string(static_cast<uint32_t>(error)) + ": " + take_log();
    throw std::runtime_error(text);
  }
  nb::list results;
  for (size_t i = 0; i < index.size(); ++i)
    if (call.is_output[i]) {
      const Value& value = table.values()[i];
      results.append(value.is_tensor() ? tuple_of(value.to_tensor().sizes()) : value_to_python(value));
    }
  return results;
}

nb::list call_kernel(const char* name, nb::args arguments, const nb::object& level, size_t threads) {
  const char* const level_name = level.is_none() ? nullptr : nb::cast<const char*>(level);
  return run_kernel(name, arguments, 1, nullptr, level_name, threads);
}

double time_kernel(const char* name, int repeats, nb::args arguments) {
  double seconds = 0;
  run_kernel(name, arguments, repeats, &seconds);
  return seconds;
}

/// Returns (bytes with which no request is refused, minimum bytes with which the kernel succeeds), or None if
/// the kernel does not exist or fails for another reason than memory.
nb::object scratch_bytes(const char* name, const nb::sequence& arguments, const char* level) {
  const Kernel* kernel = kernel_of(name, level);
  if (kernel == nullptr) return nb::none();
  std::optional<Call> call;
  try {
    call.emplace(*kernel, nb::tuple(arguments));
  } catch (nb::python_error&) {  // not arguments for this kernel; those of a file may be anything
    return nb::none();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return nb::none();
  }
  extension::MallocMemoryAllocator heap;
  const auto run = [&](extension::MeasuringAllocator& memory) {
    Context context(&memory);
    const Error error = kernel->function(context, call->args());
    heap.reset();
    take_log();
    return error;
  };
  extension::MeasuringAllocator unlimited(heap);
  if (run(unlimited) != Error::Ok) return nb::none();
  size_t min_bytes = 0;
  while (min_bytes < unlimited.used()) {
    extension::MeasuringAllocator limited(heap, min_bytes);
    const Error error = run(limited);
    if (error == Error::Ok) break;
    if (error != Error::MemoryAllocationFailed || limited.required() <= min_bytes) return nb::none();
    min_bytes = limited.required();
  }
  return nb::make_tuple(unlimited.used(), min_bytes);
}

}  // namespace

void bind_kernel_calls(nb::module_& m) {
  m.def("scratch_bytes", &scratch_bytes, nb::arg("name"), nb::arg("arguments"), nb::arg("level"),
        "Measures the scratch memory of one kernel of a level. Tensors are (dtype code, sizes, dim order). "
        "Arguments\n"
        "after those of the signature are ignored. Returns (bytes with which no request is refused, minimum "
        "bytes\n"
        "with which the kernel succeeds), or None if it fails.");
  m.def("call_kernel", &call_kernel, nb::arg("name"), nb::arg("arguments"), nb::arg("level") = nb::none(),
        nb::arg("threads") = 1,
        "Runs one kernel on arrays, scalars, lists, strings and None, outputs included, in the order of its\n"
        "signature. Uses the given or the best level, and divides loops among `threads` threads. Returns the "
        "final\n"
        "sizes of output tensors and the values of output slots, in order.");
  m.def("time_kernel", &time_kernel, nb::arg("name"), nb::arg("repeats"), nb::arg("arguments"),
        "Runs one kernel `repeats` times on the arguments of call_kernel. Returns the seconds without the\n"
        "conversion of the arguments.");
}

}  // namespace torchette::pybindings
