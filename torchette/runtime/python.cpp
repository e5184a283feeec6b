// SPDX-License-Identifier: BSD-3-Clause
// The native half of torchette.runtime: objects of the C++ runtime for Python, arrays without copies where
// their layout allows it, the lock released while a method runs. Prints nothing; log lines become messages of
// exceptions.
#include <dlfcn.h>
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "torchette/extension/backends.h"
#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/custom_library.h"
#include "torchette/extension/event_recorder.h"
#include "torchette/extension/flat_tensor.h"
#include "torchette/extension/malloc_dynamic_allocator.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/extension/mmap_data_loader.h"
#include "torchette/extension/module.h"
#include "torchette/extension/parallel_method.h"
#include "torchette/extension/source_lines.h"
#include "torchette/extension/thread_pool.h"
#include "torchette/runtime/backend.h"
#include "torchette/runtime/backend_options.h"
#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/method.h"
#include "torchette/runtime/platform.h"
#include "torchette/runtime/program.h"
#include "torchette/runtime/threads.h"

namespace nb = nanobind;

namespace torchette {
namespace {

// --- Ctrl-C
// -----------------------------------------------------------

/// While one lives on Python's main thread, SIGINT cancels the method before Python hears of it. Without, an
/// endless loop of a model could only be killed. Other handlers, and the want of one, stay as they are.
class Interruptible {
 public:
  explicit Interruptible(Method& method) {
    static thread_local const bool is_main = PyThread_get_thread_ident() == main_thread;
    if (!is_main) return;
    seen_ = false;
    running_ = &method;
    struct sigaction ours{};
    ours.sa_sigaction = handle;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    installed_ = sigaction(SIGINT, &ours, &previous_) == 0;
  }
  Interruptible(const Interruptible&) = delete;
  ~Interruptible() {
    if (!installed_) return;
    sigaction(SIGINT, &previous_, nullptr);
    if (seen_) (void)running_.load()->reset_execution();  // should it have come too late
    running_ = nullptr;
  }

  static inline unsigned long main_thread;

 private:
  static void handle(int number, siginfo_t* info, void* context) {
    const bool takes_info = (previous_.sa_flags & SA_SIGINFO) != 0;
    if (!takes_info && previous_.sa_handler == SIG_IGN) return;
    if (Method* method = running_) method->cancel();
    seen_ = true;
    if (takes_info) {
      previous_.sa_sigaction(number, info, context);
    } else if (previous_.sa_handler != SIG_DFL) {
      previous_.sa_handler(number);
    } else {
      sigaction(number, &previous_, nullptr);
      raise(number);
    }
  }

  static inline std::atomic<Method*> running_;
  static inline std::atomic<bool> seen_;
  static inline struct sigaction previous_;
  bool installed_ = false;
};
// --- Log lines of this thread, until somebody takes them
// -----------------------------------------------------------

thread_local std::string log_lines;

/// Messages of the threads that work for one execution.
struct SharedLog {
  std::mutex mutex;
  std::string lines;
};
thread_local SharedLog* shared_log = nullptr;

void append_line(std::string& lines, const char* message, size_t length) {
  if (lines.size() > 64 * 1024) return;  // a fault in a loop must not eat the memory
  if (!lines.empty()) lines += '\n';
  lines.append(message, length);
}

void capture_log_line(torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                      const char* message, size_t length) {
  if (shared_log == nullptr) return append_line(log_lines, message, length);
  const std::lock_guard<std::mutex> lock(shared_log->mutex);
  append_line(shared_log->lines, message, length);
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

// --- Faults
// --------------------------------------------------------------------------------------------------------

/// What Python turns into the exceptions of torchette.errors: an error of the runtime with its log lines, or
/// a value that does not fit input `input`.
struct Fault {
  enum class Kind { Runtime, InputValue, InputType };
  Kind kind;
  Error error;
  std::string text;
  size_t input;
};

PyObject* fault_type = nullptr;

Fault runtime_fault(Error error) { return {Fault::Kind::Runtime, error, take_log(), 0}; }
Fault input_fault(size_t input, std::string text) {
  return {Fault::Kind::InputValue, Error::InvalidArgument, std::move(text), input};
}
Fault input_type_fault(size_t input, std::string text) {
  return {Fault::Kind::InputType, Error::InvalidType, std::move(text), input};
}

template <typename T>
T unwrap(Result<T>&& result) {
  if (!result.ok()) throw runtime_fault(result.error());
  return std::move(*result);
}

const char* dtype_name(ScalarType type) {
  static constexpr const char* kNames[] = {"uint8",           "int8",
                                           "int16",           "int32",
                                           "int64",           "float16",
                                           "float32",         "float64",
                                           "complex32",       "complex64",
                                           "complex128",      "bool",
                                           "qint8",           "quint8",
                                           "qint32",          "bfloat16",
                                           "quint4x2",        "quint2x4",
                                           "bits1x8",         "bits2x4",
                                           "bits4x2",         "bits8",
                                           "bits16",          "float8_e5m2",
                                           "float8_e4m3fn",   "float8_e5m2fnuz",
                                           "float8_e4m3fnuz", "uint16",
                                           "uint32",          "uint64"};
  const auto i = static_cast<size_t>(type);
  return i < sizeof(kNames) / sizeof(*kNames) ? kNames[i] : "an unknown dtype";
}

// --- Memory
// --------------------------------------------------------------------------------------------------------

constexpr size_t kAlignment = 64;

struct FreeMemory {
  void operator()(void* p) const { free(p); }
};
using Memory = std::unique_ptr<void, FreeMemory>;

/// Zeroed pages come from the system without being touched; others are as they come.
Memory allocate_memory(size_t size) {
  void* p = nullptr;
  if (posix_memalign(&p, kAlignment, std::max<size_t>(size, 1)) != 0) throw std::bad_alloc();
  return Memory(p);
}

// --- Programs
// --------------------------------------------------------------------------------------------------------

/// A program with the bytes that it stands in. Methods share it, so it lives as long as any of them.
class LoadedProgram {
 public:
  /// Maps the file.
  LoadedProgram(const std::string& path, Program::Verification verification)
      : file_(unwrap(extension::MmapDataLoader::from(path.c_str()))),
        program_(unwrap(Program::load(&*file_, verification))) {}
  /// Uses the buffer in place if nobody can write to it and it is aligned, else a copy.
  LoadedProgram(nb::handle bytes, Program::Verification verification) : view_(bytes) {
    const Py_buffer& view = view_.get();
    const void* data = view.buf;
    const auto size = static_cast<size_t>(view.len);
    if (!view.readonly || reinterpret_cast<uintptr_t>(data) % 16 != 0) {
      copy_ = allocate_memory(size);
      memcpy(copy_.get(), data, size);
      data = copy_.get();
    }
    buffer_.emplace(data, size);
    program_.emplace(unwrap(Program::load(&*buffer_, verification)));
  }
  LoadedProgram(const LoadedProgram&) = delete;

  const Program& program() const { return *program_; }
  /// Adds a data file, which is mapped; to be called before methods are loaded.
  void add_data_file(const std::string& path) {
    data_files_.push_back(
        std::make_unique<extension::MmapDataLoader>(unwrap(extension::MmapDataLoader::from(path.c_str()))));
    data_maps_.push_back(unwrap(extension::FlatTensorDataMap::load(data_files_.back().get())));
    data_map_.emplace(Span<const extension::FlatTensorDataMap>(data_maps_.data(), data_maps_.size()));
  }
  /// Null where no data file was added.
  const NamedDataMap* data_map() const { return data_map_ ? &*data_map_ : nullptr; }

 private:
  /// A view of a Python buffer. Made and released with the interpreter's lock held, as all objects of Python
  /// are.
  class View {
   public:
    View() { view_.obj = nullptr; }
    explicit View(nb::handle object) {
      if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
    }
    ~View() {
      if (view_.obj != nullptr) PyBuffer_Release(&view_);
    }
    View(const View&) = delete;
    const Py_buffer& get() const { return view_; }

   private:
    Py_buffer view_;
  };

  std::optional<extension::MmapDataLoader> file_;
  View view_;
  Memory copy_;
  std::optional<extension::BufferDataLoader> buffer_;
  std::vector<std::unique_ptr<extension::MmapDataLoader>> data_files_;
  std::vector<extension::FlatTensorDataMap> data_maps_;
  std::optional<extension::MergedDataMap> data_map_;
  std::optional<Program> program_;
};

using SharedProgram = std::shared_ptr<LoadedProgram>;

nb::str text_of(Span<const char> text) {
  // a hostile file's names need not be UTF-8
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "replace"));
}
nb::str text_of(const char* text) { return text_of({text, strlen(text)}); }

template <typename Items>
nb::tuple tuple_of(const Items& items) {
  nb::list list;
  for (const auto item : items) list.append(static_cast<int64_t>(item));
  return nb::tuple(list);
}

/// (sizes, dim order, dtype number, dynamic, planned, bytes, name, least and greatest size of each dimension)
nb::tuple describe(const TensorInfo& info) {
  return nb::make_tuple(tuple_of(info.sizes()), tuple_of(info.dim_order()),
                        static_cast<int>(info.scalar_type()),
                        info.shape_dynamism() != TensorShapeDynamism::STATIC, info.is_memory_planned(),
                        info.nbytes(), text_of(info.name()), tuple_of(info.ranges()));
}

/// A dict of all that MethodMeta tells.
nb::dict describe_method(const SharedProgram& shared, const char* name) {
  const MethodMeta meta = unwrap(shared->program().method_meta(name));
  nb::list inputs, outputs, attributes, buffers, backends;
  for (size_t i = 0; i < meta.num_inputs(); ++i) {
    const Tag tag = unwrap(meta.input_tag(i));
    nb::object info = nb::none();
    if (tag == Tag::Tensor) info = describe(unwrap(meta.input_tensor_meta(i)));
    inputs.append(nb::make_tuple(static_cast<int>(tag), info));
  }
  for (size_t i = 0; i < meta.num_outputs(); ++i) {
    const Tag tag = unwrap(meta.output_tag(i));
    nb::object info = nb::none();
    if (tag == Tag::Tensor) info = describe(unwrap(meta.output_tensor_meta(i)));
    outputs.append(nb::make_tuple(static_cast<int>(tag), info));
  }
  for (size_t i = 0, count = meta.num_attributes(); i < count; ++i)
    attributes.append(describe(unwrap(meta.attribute_tensor_meta(i))));
  for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i)
    buffers.append(unwrap(meta.memory_planned_buffer_size(i)));
  for (size_t i = 0; i < meta.num_backends(); ++i) backends.append(text_of(unwrap(meta.get_backend_name(i))));
  nb::dict result;
  result["name"] = text_of(meta.name());
  result["inputs"] = inputs;
  result["outputs"] = outputs;
  result["attributes"] = attributes;
  result["planned"] = buffers;
  result["backends"] = backends;
  result["instructions"] = meta.num_instructions();
  result["encoded_inputs"] = text_of(meta.encoded_inputs());
  result["encoded_outputs"] = text_of(meta.encoded_outputs());
  return result;
}

nb::list method_names(const SharedProgram& shared) {
  nb::list names;
  for (size_t i = 0; i < shared->program().num_methods(); ++i)
    names.append(text_of(unwrap(shared->program().get_method_name(i))));
  return names;
}

// --- Arrays that come in
// -----------------------------------------------------------------------------------------------

/// Where an array's elements are. Strides count elements.
struct ArrayView {
  const uint8_t* data;
  size_t rank;
  int64_t sizes[kMaxDim];
  int64_t strides[kMaxDim];
  ScalarType type;
  bool writable;
};

ScalarType scalar_type_of(const char* format, Py_ssize_t item_size) {
  if (format == nullptr) return ScalarType::Byte;
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (format[0] == 'Z') {
    return format[1] == 'f'   ? ScalarType::ComplexFloat
           : format[1] == 'd' ? ScalarType::ComplexDouble
                              : ScalarType::Undefined;
  }
  if (format[0] == 0 || format[1] != 0) return ScalarType::Undefined;
  constexpr ScalarType kSigned[] = {ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long};
  constexpr ScalarType kUnsigned[] = {ScalarType::Byte, ScalarType::UInt16, ScalarType::UInt32,
                                      ScalarType::UInt64};
  const size_t i = item_size == 1 ? 0 : item_size == 2 ? 1 : item_size == 4 ? 2 : 3;
  switch (*format) {
    case '?':
      return ScalarType::Bool;
    case 'b':
    case 'h':
    case 'i':
    case 'l':
    case 'q':
      return kSigned[i];
    case 'B':
    case 'H':
    case 'I':
    case 'L':
    case 'Q':
      return kUnsigned[i];
    case 'e':
      return ScalarType::Half;
    case 'f':
      return ScalarType::Float;
    case 'd':
      return ScalarType::Double;
    default:
      return ScalarType::Undefined;
  }
}

/// Copies a strided array to `target`, without gaps, in `dim_order`.
void copy_dense(const ArrayView& source, Span<const DimOrderType> dim_order, uint8_t* target) {
  const size_t item = element_size(source.type);
  int64_t count = 1;
  for (size_t d = 0; d < source.rank; ++d) count *= source.sizes[d];
  if (count == 0) return;
  int64_t index[kMaxDim] = {};
  const size_t inner = source.rank == 0 ? 0 : dim_order[source.rank - 1];
  const int64_t run = source.rank == 0 ? 1 : source.sizes[inner];
  const int64_t step = source.rank == 0 ? 1 : source.strides[inner];
  const uint8_t* row = source.data;
  for (int64_t done = 0; done < count; done += run) {
    if (step == 1) {
      memcpy(target, row, static_cast<size_t>(run) * item);
      target += static_cast<size_t>(run) * item;
    } else {
      for (int64_t i = 0; i < run; ++i, target += item)
        memcpy(target, row + i * step * static_cast<int64_t>(item), item);
    }
    // the next row, counting from the innermost but one dimension outwards
    for (size_t k = source.rank; k-- > 1;) {
      const size_t d = dim_order[k - 1];
      row += source.strides[d] * static_cast<int64_t>(item);
      if (++index[d] < source.sizes[d]) break;
      row -= source.sizes[d] * source.strides[d] * static_cast<int64_t>(item);
      index[d] = 0;
    }
  }
}

/// One input of a call: the value for the runtime and what keeps its bytes alive.
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

  /// Takes an array for the tensor `info` describes. Throws Fault.
  void set_tensor(nb::handle object, const TensorInfo& info, bool needs_writable, size_t input) {
    ArrayView array;
    view(object, input, &array);
    check(array, info, input);
    for (size_t d = 0; d < array.rank; ++d) sizes_[d] = static_cast<SizesType>(array.sizes[d]);
    const Result<int32_t> numel = dense_strides({sizes_, array.rank}, info.dim_order().data(), strides_);
    if (!numel.ok()) throw input_fault(input, "is too large");
    bool in_place = (!needs_writable || array.writable) && is_aligned_for(array.data, array.type);
    for (size_t d = 0; d < array.rank; ++d)
      in_place = in_place && (array.sizes[d] == 1 || array.strides[d] == strides_[d]);
    if (!in_place && *numel != 0) {
      copy_ = allocate_memory(static_cast<size_t>(*numel) * element_size(array.type));
      copy_dense(array, info.dim_order(), static_cast<uint8_t*>(copy_.get()));
      array.data = static_cast<const uint8_t*>(copy_.get());
    }
    impl_.data = const_cast<uint8_t*>(array.data);
    impl_.sizes = sizes_;
    impl_.strides = strides_;
    impl_.dim_order = info.dim_order().data();
    impl_.capacity = static_cast<size_t>(*numel);
    impl_.numel = *numel;
    impl_.dim = static_cast<uint8_t>(array.rank);
    impl_.type = array.type;
    impl_.dynamism = TensorShapeDynamism::STATIC;
    value_ = Value(Tensor(&impl_));
  }

 private:
  void view(nb::handle object, size_t input, ArrayView* out) {
    if (PyObject_CheckBuffer(object.ptr()) && !PyBytes_Check(object.ptr())) {
      if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_STRIDES | PyBUF_FORMAT) == 0) {
        const ScalarType type = scalar_type_of(view_.format, view_.itemsize);
        if (type == ScalarType::Undefined)
          throw input_type_fault(input, std::string("is an array of format '") + view_.format + "'");
        if (view_.ndim > static_cast<int>(kMaxDim)) throw input_fault(input, "has more than 16 dimensions");
        *out = {static_cast<const uint8_t*>(view_.buf),
                static_cast<size_t>(view_.ndim),
                {},
                {},
                type,
                !view_.readonly};
        for (int d = 0; d < view_.ndim; ++d) {
          out->sizes[d] = view_.shape[d];
          out->strides[d] = view_.strides[d] / view_.itemsize;
          if (view_.strides[d] % view_.itemsize != 0 && view_.shape[d] > 1)
            throw input_fault(input,
                              "is an array whose strides are no multiples of its items; copy it first");
        }
        return;
      }
      PyErr_Clear();  // arrays of extension types such as bfloat16 may still speak DLPack
      view_.obj = nullptr;
    }
    if (nb::hasattr(object, "__dlpack__") && nb::try_cast<nb::ndarray<nb::ro>>(object, array_)) {
      if (array_.device_type() != nb::device::cpu::value)
        throw input_fault(input, "is not in the CPU's memory; move it there with .cpu()");
      const ScalarType type = torchette::scalar_type_of(array_.dtype());
      if (array_.ndim() > kMaxDim) throw input_fault(input, "has more than 16 dimensions");
      *out = {static_cast<const uint8_t*>(array_.data()), array_.ndim(), {}, {}, type, true};
      for (size_t d = 0; d < array_.ndim(); ++d) {
        out->sizes[d] = static_cast<int64_t>(array_.shape(d));
        out->strides[d] = array_.stride(d);
      }
      return;
    }
    throw input_type_fault(input,
                           std::string("is a ") + Py_TYPE(object.ptr())->tp_name +
                               ", the method takes a tensor (a numpy array or anything that speaks DLPack)");
  }

  static std::string shape_text(const int64_t* sizes, size_t rank) {
    std::string text = "(";
    for (size_t d = 0; d < rank; ++d) text += (d == 0 ? "" : ", ") + std::to_string(sizes[d]);
    return text + (rank == 1 ? ",)" : ")");
  }

  static void check(const ArrayView& array, const TensorInfo& info, size_t input) {
    if (array.type != info.scalar_type())
      throw input_fault(input, std::string("has dtype ") + dtype_name(array.type) + ", the method takes " +
                                   dtype_name(info.scalar_type()));
    const bool dynamic = info.shape_dynamism() != TensorShapeDynamism::STATIC;
    const size_t rank = info.sizes().size();
    int64_t bounds[kMaxDim];
    for (size_t d = 0; d < rank; ++d) bounds[d] = info.sizes()[d];
    const auto differs = [&](const std::string& why) {
      return input_fault(input, "has shape " + shape_text(array.sizes, array.rank) + ", the method takes " +
                                    (dynamic ? "at most " : "") + shape_text(bounds, rank) + why);
    };
    if (array.rank != rank) throw differs("");
    for (size_t d = 0; d < rank; ++d) {
      int64_t least = dynamic ? 0 : bounds[d], most = bounds[d];
      if (!info.ranges().empty()) {
        least = info.ranges()[2 * d];
        most = info.ranges()[2 * d + 1];
      }
      const std::string wanted = most == INT32_MAX ? std::to_string(least) + " or more"
                                 : least == most   ? std::to_string(most)
                                                   : std::to_string(least) + " to " + std::to_string(most);
      if (!info.ranges().empty() && (array.sizes[d] < least || array.sizes[d] > most))
        throw input_fault(input, "has shape " + shape_text(array.sizes, rank) + ": its size in dimension " +
                                     std::to_string(d) + " is " + std::to_string(array.sizes[d]) +
                                     ", the method takes " + wanted);
      if (array.sizes[d] < least || array.sizes[d] > most) throw differs("");
    }
  }

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

// --- Methods
// ---------------------------------------------------------------------------------------------------------

nb::object value_to_python(const Value& value) {
  switch (value.tag()) {
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

/// One output of a call, detached from the method.
struct Outcome {
  Value value;  // where it is a number or None
  Tag tag = Tag::None;
  std::string text;
  Memory memory;
  ScalarType type = ScalarType::Undefined;
  std::vector<size_t> sizes;
  std::vector<int64_t> strides;
  bool is_list = false;
  std::vector<Outcome> items;
};

bool is_torch_tensor(nb::handle object) {
  static PyTypeObject* known = nullptr;  // guarded by the interpreter's lock
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type == known) return true;
  if (!nb::hasattr(object, "__dlpack__") || !nb::hasattr(type, "__module__")) return false;
  const nb::object module_name = nb::getattr(nb::handle(reinterpret_cast<PyObject*>(type)), "__module__");
  if (!nb::isinstance<nb::str>(module_name)) return false;
  const char* name = nb::borrow<nb::str>(module_name).c_str();
  if (strncmp(name, "torch", 5) != 0 || (name[5] != 0 && name[5] != '.')) return false;
  known = type;
  return true;
}

nb::dlpack::dtype dlpack_type_of(ScalarType type) {
  using Code = nb::dlpack::dtype_code;
  const auto code = type == ScalarType::Bool                                                ? Code::Bool
                    : type == ScalarType::BFloat16                                          ? Code::Bfloat
                    : is_floating(type)                                                     ? Code::Float
                    : type == ScalarType::ComplexFloat || type == ScalarType::ComplexDouble ? Code::Complex
                    : type == ScalarType::Byte || type == ScalarType::UInt16 || type == ScalarType::UInt32 ||
                            type == ScalarType::UInt64
                        ? Code::UInt
                        : Code::Int;
  return {static_cast<uint8_t>(code), static_cast<uint8_t>(8 * element_size(type)), 1};
}

template <typename Framework>
nb::object array_of(void* data, const std::vector<size_t>& sizes, const std::vector<int64_t>& strides,
                    ScalarType type, nb::handle owner) {
  return nb::cast(
      nb::ndarray<Framework>(data, sizes.size(), sizes.data(), owner, strides.data(), dlpack_type_of(type)));
}

nb::object to_python(Outcome& outcome, bool torch) {
  if (outcome.is_list) {
    nb::list items;
    for (Outcome& item : outcome.items) items.append(to_python(item, torch));
    return items;
  }
  switch (outcome.tag) {
    case Tag::Tensor:
      break;
    case Tag::String:
      return text_of({outcome.text.data(), outcome.text.size()});
    default:
      return value_to_python(outcome.value);
  }
  if (outcome.type == ScalarType::BFloat16 && !torch) {
    // numpy has no bfloat16; float32 holds every one of its values
    size_t count = 1;
    for (size_t size : outcome.sizes) count *= size;
    Memory wide = allocate_memory(count * sizeof(float));
    for (size_t i = 0; i < count; ++i)
      static_cast<float*>(wide.get())[i] = static_cast<const BFloat16*>(outcome.memory.get())[i];
    outcome.memory = std::move(wide);
    outcome.type = ScalarType::Float;
  }
  void* data = outcome.memory.release();
  const nb::capsule owner(data, [](void* p) noexcept { free(p); });
  return torch ? array_of<nb::pytorch>(data, outcome.sizes, outcome.strides, outcome.type, owner)
               : array_of<nb::numpy>(data, outcome.sizes, outcome.strides, outcome.type, owner);
}

/// Memory as on a device with a pool of `limit` bytes that starts at a multiple of any alignment.
class MeasuringAllocator final : public MemoryAllocator {
 public:
  explicit MeasuringAllocator(size_t limit = SIZE_MAX / 4) : MemoryAllocator(0, nullptr), limit_(limit) {}

  void* allocate(size_t size, size_t alignment = kDefaultAlignment) override {
    const size_t start = (used_ + alignment - 1) / alignment * alignment;
    if (size > limit_ || start > limit_ - size) {
      wanted_ = start + size;
      return nullptr;
    }
    used_ = start + size;
    return memory_.allocate(size, alignment);
  }

  size_t used() const { return used_; }
  /// What the pool must hold for the last request that was refused.
  size_t wanted() const { return wanted_; }

 private:
  extension::MallocMemoryAllocator memory_;
  size_t limit_, used_ = 0, wanted_ = 0;
};

/// Threads whose messages can be had afterwards.
class LoggingPool final : public extension::Executor {
 public:
  explicit LoggingPool(size_t threads) : pool_(threads) {}
  void submit(void (*task)(void*), void* argument) override {
    pool_.submit(&run, new Task{task, argument, &log_});
  }
  std::string take_log() {
    const std::lock_guard<std::mutex> lock(log_.mutex);
    return std::exchange(log_.lines, {});
  }

 private:
  struct Task {
    void (*task)(void*);
    void* argument;
    SharedLog* log;
  };
  static void run(void* argument) {
    const std::unique_ptr<Task> task(static_cast<Task*>(argument));
    shared_log = task->log;
    task->task(task->argument);
    shared_log = nullptr;
  }

  SharedLog log_;
  extension::threadpool::ThreadPool pool_;
};

/// A method with its memory. Calls from several threads wait for one another.
class LoadedMethod {
 public:
  /// `threads`: 0 for as many as the runtime is told.
  LoadedMethod(SharedProgram program, const std::string& name, size_t threads, bool tracing)
      : program_(std::move(program)) {
    if (tracing) recorder_.emplace();
    const MethodMeta meta = unwrap(program_->program().method_meta(name.c_str()));
    for (size_t i = 0; i < meta.num_memory_planned_buffers(); ++i) {
      const auto size = static_cast<size_t>(unwrap(meta.memory_planned_buffer_size(i)));
      buffers_.push_back(allocate_memory(size));
      spans_.emplace_back(static_cast<uint8_t*>(buffers_.back().get()), size);
    }
    planned_.emplace(Span<Span<uint8_t>>(spans_.data(), spans_.size()));
    memory_.emplace(&method_memory_, &*planned_, &temp_memory_, &dynamic_memory_);
    for (size_t i = 0; i < meta.num_inputs(); ++i)
      inputs_.push_back(unwrap(meta.input_tag(i)) == Tag::Tensor
                            ? std::optional<TensorInfo>(unwrap(meta.input_tensor_meta(i)))
                            : std::nullopt);
    EventTracer* const tracer = recorder_.has_value() ? &*recorder_ : nullptr;
    const NumThreadsScope scope(threads);
    method_.emplace(
        unwrap(program_->program().load_method(name.c_str(), &*memory_, tracer, program_->data_map())));
    constexpr size_t kMost = 256;  // more than there are chains are of no use
    threads = std::min(num_threads(), kMost);
    if (threads < 2) return;
    std::vector<MemoryAllocator*> scratch;
    for (size_t i = 0; i < threads; ++i) scratch.push_back(&scratch_.emplace_back(64 * 1024));
    parallel_.emplace(*method_, std::move(scratch));
    if (parallel_->is_parallel())
      pool_.emplace(threads - 1);  // the thread that executes takes part
    else
      parallel_.reset();
  }

  nb::list execute(nb::sequence given) {
    const size_t count = nb::len(given);
    if (count != inputs_.size()) throw Fault{Fault::Kind::InputValue, Error::InvalidArgument, "count", count};
    std::deque<Argument> arguments(count);
    std::vector<Value> values(count);
    bool torch = false;
    for (size_t i = 0; i < count; ++i) {
      const nb::object object = given[i];
      convert(object, i, &arguments[i]);
      values[i] = arguments[i].value();
      torch = torch || (inputs_[i].has_value() && is_torch_tensor(object));
    }
    std::vector<Outcome> outcomes(method_->outputs_size());
    Error error;
    std::string log;
    {
      nb::gil_scoped_release release;
      const std::lock_guard<std::mutex> lock(mutex_);
      take_log();
      const Interruptible interruptible(*method_);
      error = run({values.data(), values.size()}, outcomes);
      log = take_log();
      if (pool_.has_value()) log += pool_->take_log();
    }
    if (error == Error::OutOfResources && PyErr_CheckSignals() != 0) throw nb::python_error();
    if (error != Error::Ok) throw Fault{Fault::Kind::Runtime, error, log, 0};
    nb::list results;
    for (Outcome& outcome : outcomes) results.append(to_python(outcome, torch));
    return results;
  }

  nb::object attribute(const char* name, bool torch) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const Result<Tensor> tensor = method_->get_attribute(name);
    if (!tensor.ok()) throw nb::key_error(name);
    Outcome outcome;
    detach(*tensor, nullptr, outcome);
    return to_python(outcome, torch);
  }

  void cancel() { method_->cancel(); }

  /// Of the method pool, what backends took included.
  size_t method_bytes() const { return method_memory_.used(); }

  void reset() {
    nb::gil_scoped_release release;
    const std::lock_guard<std::mutex> lock(mutex_);
    const Error error = method_->reset();
    if (error != Error::Ok) throw runtime_fault(error);
  }

  /// What was recorded since the last call, one tuple for each event: block (0: loading), name, chain,
  /// instruction, whether a backend has said it, its part, begin and end in nanoseconds.
  nb::list take_events() {
    const std::lock_guard<std::mutex> lock(mutex_);
    nb::list events;
    if (!recorder_.has_value()) return events;
    const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
    const auto ns = [&](torchette_timestamp_t ticks) { return ticks * ratio.numerator / ratio.denominator; };
    for (const extension::RecordedEvent& event : recorder_->events())
      events.append(nb::make_tuple(blocks_ + event.block, text_of({event.name.data(), event.name.size()}),
                                   event.chain, event.instruction, event.in_delegate, event.part,
                                   ns(event.begin), ns(event.end)));
    blocks_ += recorder_->blocks().size();
    recorder_->clear();
    return events;
  }

  /// The most bytes that tensors of sizes which only the run knows held at once in the last execution.
  size_t dynamic_memory_peak() const { return dynamic_memory_.peak(); }

 private:
  void convert(nb::handle object, size_t i, Argument* out) {
    if (inputs_[i].has_value()) {
      out->set_tensor(object, *inputs_[i], method_->writes_input(i), i);
      return;
    }
    const Value& own = method_->get_input(i);
    PyObject* p = object.ptr();
    const char* expected = nullptr;
    switch (own.tag()) {
      case Tag::Bool:
        if (PyBool_Check(p)) return out->set_number(Value(p == Py_True));
        expected = "a bool";
        break;
      case Tag::Int:
        if (PyIndex_Check(p) && !PyBool_Check(p))
          return out->set_number(Value(nb::cast<int64_t>(nb::steal(PyNumber_Index(p)))));
        expected = "an int";
        break;
      case Tag::Double:
        if (PyFloat_Check(p) || (PyLong_Check(p) && !PyBool_Check(p)))
          return out->set_number(Value(PyFloat_AsDouble(p)));
        expected = "a float";
        break;
      case Tag::String:
        if (PyUnicode_Check(p)) return out->set_string(nb::borrow<nb::str>(object).c_str());
        expected = "a str";
        break;
      case Tag::None:
        // ExecuTorch's compiler stores a string argument, which cannot change, as None
        if (object.is_none() || PyUnicode_Check(p)) return;
        expected = "None";
        break;
      default:
        expected = "a value of a kind that Python cannot give";
    }
    throw input_type_fault(i, std::string("is a ") + Py_TYPE(p)->tp_name + ", the method takes " + expected);
  }

  /// Runs without the interpreter's lock.
  Error run(Span<const Value> values, std::vector<Outcome>& outcomes) {
    TORCHETTE_TRY(method_->set_inputs(values));
    std::vector<Memory> fresh(outcomes.size());
    for (size_t i = 0; i < outcomes.size(); ++i) {
      const Value& output = method_->get_output(i);
      if (!output.is_tensor()) continue;
      // what has no planned place is written straight into the array that is returned
      const TensorImpl& impl = *output.to_tensor().unsafe_impl();
      const size_t size = impl.capacity * element_size(impl.type);
      if (!method_->output_needs_memory(i)) continue;
      fresh[i] = allocate_memory(size);
      TORCHETTE_TRY(method_->set_output_data_ptr(fresh[i].get(), size, i));
    }
    TORCHETTE_TRY(extension::SourceLines::explain(
        *method_, parallel_.has_value() ? parallel_->execute(&*pool_) : method_->execute()));
    for (size_t i = 0; i < outcomes.size(); ++i) {
      TORCHETTE_TRY(detach(method_->get_output(i), std::move(fresh[i]), outcomes[i]));
    }
    return Error::Ok;
  }

  static Error detach(const Value& output, Memory memory, Outcome& outcome) {
    const auto add = [&](const Value& item) {
      outcome.is_list = true;
      return detach(item, nullptr, outcome.items.emplace_back());
    };
    outcome.tag = output.tag();
    switch (output.tag()) {
      case Tag::Tensor:
        detach(output.to_tensor(), std::move(memory), outcome);
        break;
      case Tag::String:
        outcome.text.assign(output.to_string().data(), output.to_string().size());
        break;
      case Tag::ListTensor:
        for (const Tensor& item : output.to_tensor_list()) TORCHETTE_TRY(add(item));
        break;
      case Tag::ListOptionalTensor:
        for (const Optional<Tensor>& item : output.to_optional_tensor_list())
          TORCHETTE_TRY(add(item.has_value() ? Value(item.value()) : Value()));
        break;
      case Tag::ListInt:
        for (int64_t item : output.to_int_list()) TORCHETTE_TRY(add(item));
        break;
      case Tag::ListDouble:
        for (double item : output.to_double_list()) TORCHETTE_TRY(add(item));
        break;
      case Tag::ListBool:
        for (bool item : output.to_bool_list()) TORCHETTE_TRY(add(item));
        break;
      default:
        outcome.value = output;
    }
    // an empty one too
    outcome.is_list = output.tag() >= Tag::ListBool;
    return Error::Ok;
  }

  /// Takes over `memory` if the tensor's bytes are in it, else copies them.
  static void detach(const Tensor& tensor, Memory memory, Outcome& outcome) {
    const size_t size = tensor.nbytes();
    if (memory == nullptr || memory.get() != tensor.const_data_ptr()) {
      memory = allocate_memory(size);
      if (size != 0) memcpy(memory.get(), tensor.const_data_ptr(), size);
    }
    outcome.tag = Tag::Tensor;
    outcome.memory = std::move(memory);
    outcome.type = tensor.scalar_type();
    for (SizesType n : tensor.sizes()) outcome.sizes.push_back(static_cast<size_t>(n));
    for (StridesType n : tensor.strides()) outcome.strides.push_back(n);
  }

  SharedProgram program_;  // first, so that it goes last
  std::vector<Memory> buffers_;
  std::vector<Span<uint8_t>> spans_;
  std::optional<HierarchicalAllocator> planned_;
  MeasuringAllocator method_memory_;
  extension::MallocMemoryAllocator temp_memory_{64 * 1024};
  extension::MallocDynamicAllocator dynamic_memory_;
  std::optional<MemoryManager> memory_;
  std::vector<std::optional<TensorInfo>> inputs_;
  std::optional<extension::EventRecorder> recorder_;
  size_t blocks_ = 0;  // that it has had before the ones it has
  std::optional<Method> method_;
  std::deque<extension::MallocMemoryAllocator> scratch_;  // of the chains that run at the same time
  std::optional<LoggingPool> pool_;
  std::optional<extension::ParallelMethod> parallel_;
  std::mutex mutex_;
};

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

  /// (dtype number, sizes, dim order): zeros, or all true where it is a mask.
  Value made_up(const nb::tuple& description) {
    Storage& s = storage_.emplace_back();
    s.impl.type = static_cast<ScalarType>(nb::cast<int>(description[0]));
    const auto sizes = nb::cast<nb::tuple>(description[1]), order = nb::cast<nb::tuple>(description[2]);
    if (sizes.size() > kMaxDim || order.size() != sizes.size()) throw nb::value_error("not a tensor's shape");
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
    if (PyTuple_Check(object.ptr())) return made_up(nb::borrow<nb::tuple>(object));
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
      case 'm':
        return object.is_none() ? Value() : nb::isinstance<nb::str>(object) ? string(object) : scalar(object);
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
  std::vector<Value> values_;  // reserved, so that lists may point into it
  std::deque<Storage> storage_;
  std::deque<List> lists_;
};

/// The arguments of one call, converted, in the first places of `table`, so that prim operators' slots can be
/// read back by position.
struct Call {
  Call(const Kernel& kernel, const nb::tuple& arguments) : table(room_for(arguments)) {
    const size_t count = nb::len(arguments);
    for (size_t i = 0; i < count; ++i) table.add(Value());
    const char* code = kernel.signature;
    for (size_t i = 0; *code != 0; ++i) {
      const bool optional = *code == '?';
      if (optional) ++code;
      if (i >= count) throw nb::type_error((std::string(kernel.name) + " takes " + kernel.signature).c_str());
      const nb::object argument = arguments[i];
      if (!(optional && argument.is_none())) table.values()[i] = table.convert(*code, argument);
      index.push_back(static_cast<int32_t>(i));
      is_output.push_back(*code == 't' || *code == 'v' || *code == 'm');
      ++code;
    }
  }
  static size_t room_for(const nb::tuple& arguments) {
    size_t room = nb::len(arguments);
    for (nb::handle argument : arguments)
      if (PySequence_Check(argument.ptr()) && !PyUnicode_Check(argument.ptr()) &&
          nb::hasattr(argument, "__iter__") && !nb::hasattr(argument, "__dlpack__"))
        room += nb::len(argument);
    return room;
  }
  Args args() { return {table.values(), index.data()}; }

  CallTable table;
  std::vector<int32_t> index;
  std::vector<bool> is_output;
};

/// Runs a kernel `repeats` times; `seconds`, where not null, gets the time that they took together.
nb::list run_kernel(const char* name, const nb::args& arguments, int repeats, double* seconds) {
  const Kernel* kernel = find_kernel(name);
  if (kernel == nullptr) throw nb::key_error(name);
  Call call(*kernel, arguments);
  CallTable& table = call.table;
  const std::vector<int32_t>& index = call.index;
  if (index.size() != arguments.size())
    throw nb::type_error((std::string(name) + " takes " + kernel->signature).c_str());
  extension::MallocMemoryAllocator temp;
  Context context(&temp);
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

nb::list call_kernel(const char* name, nb::args arguments) { return run_kernel(name, arguments, 1, nullptr); }

double time_kernel(const char* name, int repeats, nb::args arguments) {
  double seconds = 0;
  run_kernel(name, arguments, repeats, &seconds);
  return seconds;
}

std::vector<Kernels> loaded_kernels;  // beside the table

nb::list names_of(Span<const Kernels> families) {
  nb::list names;
  for (const Kernels& family : families)
    for (const Kernel& kernel : family) names.append(nb::make_tuple(kernel.name, kernel.signature));
  return names;
}

/// [(schema, result)] of the operators of a library, whose kernels are there from now on.
nb::list load_library(const char* path) {
  take_log();
  PalImpl platform;
  platform.emit_log_message = capture_log_line;
  const Result<const extension::CustomLibrary*> library =
      extension::load_custom_library(path, platform, &loaded_kernels);
  if (!library.ok()) throw runtime_fault(library.error());
  nb::list ops;
  for (const extension::CustomOp* op = *(*library)->ops; op != nullptr; op = op->next)
    ops.append(nb::make_tuple(op->schema, op->result));
  return ops;
}

nb::list kernel_levels() {
  Kernels room[64];
  nb::list levels;
  for (const char* level : {"v4", "v3", "v1", "baseline"})
    if (!kernel_table_of(level, {room, 64}).empty()) levels.append(level);
  return levels;
}

/// (bytes with which no request is refused, least bytes with which the kernel succeeds), or None where there
/// is no such kernel or it fails for another reason than memory.
nb::object scratch_bytes(const char* name, const nb::sequence& arguments, const char* level) {
  Kernels room[64];
  const Kernel* kernel = nullptr;
  for (const Kernels& family : kernel_table_of(level, {room, 64}))
    for (const Kernel& candidate : family)
      if (strcmp(candidate.name, name) == 0) kernel = &candidate;
  if (kernel == nullptr) return nb::none();
  std::optional<Call> call;
  try {
    call.emplace(*kernel, nb::tuple(arguments));
  } catch (nb::python_error&) {  // no arguments for this kernel: a file may say anything
    return nb::none();
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception&) {
    return nb::none();
  }
  const auto run = [&](MeasuringAllocator& memory) {
    Context context(&memory);
    const Error error = kernel->function(context, call->args());
    take_log();
    return error;
  };
  MeasuringAllocator unlimited;
  if (run(unlimited) != Error::Ok) return nb::none();
  size_t least = 0;
  while (least < unlimited.used()) {
    MeasuringAllocator limited(least);
    const Error error = run(limited);
    if (error == Error::Ok) break;
    if (error != Error::MemoryAllocationFailed || limited.wanted() <= least) return nb::none();
    least = limited.wanted();
  }
  return nb::make_tuple(unlimited.used(), least);
}

Program::Verification verification(bool verify) {
  return verify ? Program::Verification::InternalConsistency : Program::Verification::Minimal;
}

NB_MODULE(_native, m) {
  // what a script's own variables still hold when Python ends is no fault, and nothing of ours prints
  nb::set_leak_warnings(false);
  PalImpl platform;
  platform.emit_log_message = capture_log_line;
  register_pal(platform);

  Interruptible::main_thread =
      nb::cast<unsigned long>(nb::module_::import_("threading").attr("main_thread")().attr("ident"));
  fault_type = PyErr_NewException("torchette.runtime._native.Fault", nullptr, nullptr);
  m.attr("Fault") = nb::steal(fault_type);
  Py_INCREF(fault_type);
  // arguments: kind, error number, text, number of the input
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const Fault& fault) {
      static constexpr const char* kKinds[] = {"runtime", "input", "input-type"};
      const nb::tuple arguments =
          nb::make_tuple(kKinds[static_cast<int>(fault.kind)], static_cast<uint32_t>(fault.error),
                         text_of({fault.text.data(), fault.text.size()}), fault.input);
      PyErr_SetObject(fault_type, arguments.ptr());
    }
  });

  m.attr("PORTABLE") = extension::Module::kPortable;
  nb::class_<LoadedProgram>(m, "Program")
      .def_static(
          "from_path",
          [](const std::string& path, bool verify) {
            take_log();
            return std::make_shared<LoadedProgram>(path, verification(verify));
          },
          nb::arg("path"), nb::arg("verify"))
      .def_static(
          "from_bytes",
          [](nb::handle bytes, bool verify) {
            take_log();
            return std::make_shared<LoadedProgram>(bytes, verification(verify));
          },
          nb::arg("bytes"), nb::arg("verify"))
      .def(
          "add_data_file",
          [](LoadedProgram& program, const std::string& path) {
            take_log();
            program.add_data_file(path);
          },
          nb::arg("path"))
      .def_prop_ro("method_names", &method_names)
      .def("describe", &describe_method, nb::arg("method"))
      .def(
          "load_method",
          [](const SharedProgram& program, const std::string& name, size_t threads, bool tracing) {
            take_log();
            return std::make_unique<LoadedMethod>(program, name, threads, tracing);
          },
          nb::arg("name"), nb::arg("threads") = 0, nb::arg("tracing") = false);
  m.def("set_num_threads", [](size_t count) {
    take_log();
    if (const Error error = set_num_threads(count); error != Error::Ok) throw runtime_fault(error);
  });
  m.def("num_threads", &num_threads);
  nb::class_<LoadedMethod>(m, "Method")
      .def("execute", &LoadedMethod::execute, nb::arg("inputs"))
      .def("attribute", &LoadedMethod::attribute, nb::arg("name"), nb::arg("torch"))
      .def("reset", &LoadedMethod::reset)
      .def("cancel", &LoadedMethod::cancel)
      .def("take_events", &LoadedMethod::take_events)
      .def_prop_ro("method_bytes", &LoadedMethod::method_bytes)
      .def_prop_ro("dynamic_memory_peak", &LoadedMethod::dynamic_memory_peak);

  if (const Error error = register_all_backends(); error != Error::Ok) throw runtime_fault(error);
  m.def(
      "load_backend",
      [](const std::string& path) {
        take_log();
        void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (library == nullptr) throw Fault{Fault::Kind::Runtime, Error::AccessFailed, dlerror(), 0};
        using Entry = Backend* (*)();
        const auto entry = reinterpret_cast<Entry>(dlsym(library, "torchette_backend"));
        if (entry == nullptr)
          throw Fault{Fault::Kind::Runtime, Error::NotFound, path + " has no function torchette_backend", 0};
        Backend* backend = entry();
        // the library stays loaded: methods may hold its code
        if (const Error error = register_backend(*backend); error != Error::Ok) throw runtime_fault(error);
        return text_of(backend->name);
      },
      nb::arg("path"));
  m.def("is_backend_available", [](const std::string& name) {
    const BackendInterface* backend = get_backend_class(name.c_str());
    return backend != nullptr && backend->is_available();
  });
  m.def("set_backend_option", [](const std::string& name, const std::string& key, nb::object value) {
    take_log();
    BackendOptions<1> options;
    Error error = Error::InvalidArgument;
    if (nb::isinstance<nb::bool_>(value)) {
      error = options.set_option(key.c_str(), nb::cast<bool>(value));
    } else if (nb::isinstance<nb::int_>(value)) {
      int number = 0;
      if (nb::try_cast(value, number)) error = options.set_option(key.c_str(), number);
    } else if (nb::isinstance<nb::str>(value)) {
      error = options.set_option(key.c_str(), nb::cast<std::string>(value).c_str());
    }
    if (error == Error::Ok) error = set_option(name.c_str(), options.view());
    if (error != Error::Ok) throw runtime_fault(error);
  });
  m.def("get_backend_option", [](const std::string& name, const std::string& key) -> nb::object {
    take_log();
    BackendOptions<1> options;
    Error error = options.set_option(key.c_str(), 0);
    if (error == Error::Ok) error = get_option(name.c_str(), options.view());
    if (error != Error::Ok) throw runtime_fault(error);
    const OptionValue& value = options.view()[0].value;
    if (const bool* truth = std::get_if<bool>(&value)) return nb::cast(*truth);
    if (const int* number = std::get_if<int>(&value)) return nb::cast(*number);
    return nb::cast(std::string(std::get<2>(value).data()));
  });
  m.def("backends", [] {
    nb::list names;
    for (size_t i = 0; i < get_num_registered_backends(); ++i)
      names.append(text_of(unwrap(get_backend_name(i))));
    return names;
  });
  m.def("isa", &kernel_isa, "the instruction-set level of the kernels: v1, v3, v4 or baseline");
  m.def("levels", &kernel_levels, "the levels that this build has and this CPU runs, the best first");
  m.def("scratch_bytes", &scratch_bytes, nb::arg("name"), nb::arg("arguments"), nb::arg("level"),
        "Runs one kernel of a level, tensors given as (dtype number, sizes, dim order) and more arguments "
        "than\n"
        "its signature has left out. (bytes of scratch memory with which no request is refused, least bytes\n"
        "with which it succeeds), or None where it fails.");
  m.def("load_library", &load_library, nb::arg("path"));
  m.def(
      "operators", [] { return names_of(kernel_table()); }, "(name, signature) of every kernel in the table");
  m.def(
      "loaded_operators", [] { return names_of({loaded_kernels.data(), loaded_kernels.size()}); },
      "(name, signature) of every kernel of a library that was loaded");
  m.def("call_kernel", &call_kernel, nb::arg("name"), nb::arg("arguments"),
        "Runs one kernel on arrays, numbers, lists, strings and None, outputs included, in the order of its\n"
        "signature. Returns the final sizes of output tensors and the values of output slots, in order.");
  m.def(
      "time_kernel", &time_kernel, nb::arg("name"), nb::arg("repeats"), nb::arg("arguments"),
      "Runs one kernel so many times on the arguments of call_kernel; the seconds that it took without the\n"
      "conversion of the arguments.");
}

}  // namespace
}  // namespace torchette
