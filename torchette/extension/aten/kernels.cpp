// SPDX-License-Identifier: BSD-3-Clause
// ATen mode: finds kernels by operator name that call torch's kernels through its dispatcher.
// Compiled against an installed torch into libtorchette_aten (torchette/build/aten.py, CMakeLists.txt). That
// library contains the parts of the core that it calls, and is loaded like a library of custom operators.
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "torchette/extension/aten_mode.h"
#include "torchette/extension/custom_op.h"

namespace torchette::extension {
namespace {

/// An argument of a call in the program.
struct Parameter {
  std::string name;
  char code;      // of torchette/schema/kernels.def
  bool optional;  // accepts None
  bool out;       // a result: a keyword-only argument that the operator writes
};

/// An argument of the functional operator that is called instead of the out variant.
struct FunctionalArgument {
  size_t position;  // index of the parameter with its value; kNone if the program has no such parameter
  bool is_dtype;    // without a parameter: whether to pass the dtype of the result instead of `preset`
  c10::IValue preset;
};
constexpr size_t kNone = SIZE_MAX;

/// An operator of torch as a kernel of the runtime.
struct AtenKernel {
  c10::OperatorHandle handle;
  bool functional;  // returns new tensors; if false, `handle` is the out variant
  std::vector<Parameter> parameters;
  std::vector<FunctionalArgument> functional_arguments;  // empty unless `functional`
  std::string name, signature;
  Kernel kernel;
};

constexpr size_t kMaxOperators = 4096;  // torch has fewer operators with results that a program can store

/// A kernel with the same index in kFunctions. Never freed, because methods keep pointers to it.
struct Slot {
  AtenKernel* op;
  std::atomic<bool> is_deregistered;  // the operator has been deregistered
};
Slot slots[kMaxOperators];
std::atomic<size_t> count{0};
std::mutex mutex;                            // guards the next line and additions to `slots`
std::map<std::string, size_t> slot_by_name;  // operator name -> its last slot
thread_local bool is_on = false;

/// Marks the slots of operators that a torch library, in Python or C++, deregisters.
struct DeregistrationListener final : c10::OpRegistrationListener {
  void onOperatorRegistered(const c10::OperatorHandle&) override {}
  void onOperatorDeregistered(const c10::OperatorHandle& handle) override {
    for (size_t i = 0; i < count; ++i)
      if (slots[i].op->handle == handle) slots[i].is_deregistered = true;
  }
};

// --- Tensors

bool has_supported_dtype(const Tensor& t) {
  switch (t.scalar_type()) {
    case ScalarType::QInt8:
    case ScalarType::QUInt8:
    case ScalarType::QInt32:
    case ScalarType::QUInt4x2:
    case ScalarType::QUInt2x4:
      return false;  // a torch tensor of this dtype has a quantizer, which a program file cannot store
    default:
      return true;
  }
}

/// Returns a torch tensor that shares the memory of `t`.
at::Tensor view_of(const Tensor& t) {
  int64_t sizes[kMaxDim], strides[kMaxDim];
  const auto rank = static_cast<size_t>(t.dim());
  for (size_t d = 0; d < rank; ++d) {
    sizes[d] = t.sizes()[d];
    strides[d] = t.strides()[d];
  }
  const auto type = static_cast<c10::ScalarType>(t.scalar_type());
  return at::from_blob(t.mutable_data_ptr(), at::IntArrayRef(sizes, rank), at::IntArrayRef(strides, rank),
                       at::TensorOptions(type));
}

bool overlap(const Tensor& a, const Tensor& b) {
  const auto* x = static_cast<const char*>(a.const_data_ptr());
  const auto* y = static_cast<const char*>(b.const_data_ptr());
  return x < y + b.nbytes() && y < x + a.nbytes();
}

/// Resizes `out` to the sizes of `result` and copies the elements.
Error store(const AtenKernel& op, const at::Tensor& result, const Tensor& out) {
  const char* const name = op.name.c_str();
  TORCHETTE_CHECK(result.defined(), NotSupported, "%s returned an undefined tensor", name);
  TORCHETTE_CHECK(result.layout() == at::kStrided, NotSupported,
                  "%s returned a %s tensor: a program supports only dense tensors", name,
                  result.is_sparse() ? "sparse" : "sparse compressed");
  TORCHETTE_CHECK(result.device().is_cpu(), NotSupported, "%s returned a tensor that is not on the CPU",
                  name);
  TORCHETTE_CHECK(static_cast<int>(result.scalar_type()) == static_cast<int>(out.scalar_type()), InvalidType,
                  "%s returned dtype %d, the program expects %d", name,
                  static_cast<int>(result.scalar_type()), static_cast<int>(out.scalar_type()));
  SizesType sizes[kMaxDim];
  const auto rank = static_cast<size_t>(result.dim());
  TORCHETTE_CHECK(rank <= kMaxDim, NotSupported, "%s returned a tensor of %zu dimensions, at most %zu", name,
                  rank, size_t{kMaxDim});
  for (size_t d = 0; d < rank; ++d) {
    TORCHETTE_CHECK(result.size(static_cast<int64_t>(d)) <= INT32_MAX, NotSupported,
                    "dimension %zu of the tensor that %s returned exceeds 2^31 - 1", d, name);
    sizes[d] = static_cast<SizesType>(result.size(static_cast<int64_t>(d)));
  }
  TORCHETTE_TRY(resize_tensor(out, {sizes, rank}));
  if (result.numel() != 0) view_of(out).copy_(result);
  return Error::Ok;
}

// --- One call

/// The results of a call. torch allocates a result if its size is dynamic, if the operator is functional, or
/// if the memory plan has placed it over an input of the call. Otherwise torch writes into the program's
/// tensor.
class Results {
 public:
  Results(const AtenKernel& op, const std::vector<Tensor>& read) : op_(op), read_(read) {}

  at::Tensor add(const Tensor& out) {
    bool is_allocated = op_.functional || out.shape_dynamism() != TensorShapeDynamism::STATIC;
    for (const Tensor& t : read_) is_allocated = is_allocated || overlap(t, out);
    outs_.push_back(out);
    views_.push_back(is_allocated ? at::empty({0}, static_cast<c10::ScalarType>(out.scalar_type()))
                                  : view_of(out));
    is_allocated_.push_back(is_allocated);
    return views_.back();
  }
  /// Stores the tensors that a functional operator has returned.
  Error set_returned(const torch::jit::Stack& stack) {
    std::vector<at::Tensor> returned;
    for (const c10::IValue& value : stack) {
      if (value.isTensorList())
        for (const at::Tensor& each : value.toTensorVector()) returned.push_back(each);
      else
        returned.push_back(value.toTensor());
    }
    TORCHETTE_CHECK(returned.size() == outs_.size(), InvalidState,
                    "%s returned %zu tensors, the program expects %zu", op_.name.c_str(), returned.size(),
                    outs_.size());
    views_ = std::move(returned);
    return Error::Ok;
  }
  c10::IValue dtype() const { return static_cast<int64_t>(views_.front().scalar_type()); }
  Error finish() const {
    for (size_t i = 0; i < outs_.size(); ++i) {
      const at::Tensor& view = views_[i];
      const Tensor& out = outs_[i];
      bool needs_copy =
          is_allocated_[i] || view.data_ptr() != out.const_data_ptr() || view.dim() != out.dim();
      for (int64_t d = 0; !needs_copy && d < view.dim(); ++d)
        needs_copy = view.size(d) != out.sizes()[static_cast<size_t>(d)] ||
                     view.stride(d) != out.strides()[static_cast<size_t>(d)];
      if (needs_copy) TORCHETTE_TRY(store(op_, view, out));
    }
    return Error::Ok;
  }

 private:
  const AtenKernel& op_;
  const std::vector<Tensor>& read_;
  std::vector<Tensor> outs_;
  std::vector<at::Tensor> views_;
  std::vector<bool> is_allocated_;
};

/// Converts an argument that is not None to torch's type.
c10::IValue to_torch(const Parameter& p, const Value& value, Results& results) {
  switch (p.code) {
    case 'T':
      return view_of(value.to_tensor());
    case 't':
      return p.out ? results.add(value.to_tensor()) : view_of(value.to_tensor());
    case 'L': {
      c10::List<at::Tensor> list;
      for (const Tensor& t : value.to_tensor_list()) list.push_back(p.out ? results.add(t) : view_of(t));
      return list;
    }
    case 'O': {
      c10::List<std::optional<at::Tensor>> list;
      for (const Optional<Tensor>& t : value.to_optional_tensor_list())
        list.push_back(t.has_value() ? std::optional<at::Tensor>(view_of(t.value())) : std::nullopt);
      return list;
    }
    case 's': {
      const Scalar s = value.to_scalar();
      if (s.is_floating()) return s.to_double();
      if (s.is_bool()) return s.to_bool();
      return s.to_int();
    }
    case 'i':
      return value.to_scalar().to_int();
    case 'd':
      return value.to_scalar().to_double();
    case 'b':
      return value.to_scalar().to_bool();
    case 'S':
      return std::string(value.to_string().data(), value.to_string().size());
    case 'I':
      return std::vector<int64_t>(value.to_int_list().begin(), value.to_int_list().end());
    case 'D':
      return std::vector<double>(value.to_double_list().begin(), value.to_double_list().end());
    default: {  // 'B'
      c10::List<bool> list;
      for (const bool each : value.to_bool_list()) list.push_back(each);
      return list;
    }
  }
}

Error call(const AtenKernel& op, Args args) {
  // Collect the inputs and check their dtypes before results.add() compares their memory with the outputs.
  std::vector<Tensor> read;
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    const Value& value = args[i];
    std::vector<Tensor> tensors;
    if (value.is_tensor()) tensors.push_back(value.to_tensor());
    if (value.tag() == Tag::ListTensor)
      for (const Tensor& t : value.to_tensor_list()) tensors.push_back(t);
    if (value.tag() == Tag::ListOptionalTensor)
      for (const Optional<Tensor>& t : value.to_optional_tensor_list())
        if (t.has_value()) tensors.push_back(t.value());
    for (const Tensor& t : tensors) {
      TORCHETTE_CHECK(has_supported_dtype(t), NotSupported,
                      "an input of %s has the quantized dtype %d, which torch cannot use without a quantizer",
                      op.name.c_str(), static_cast<int>(t.scalar_type()));
      if (!op.parameters[i].out) read.push_back(t);
    }
  }
  Results results(op, read);
  torch::jit::Stack all_values;
  for (size_t i = 0; i < op.parameters.size(); ++i) {
    const Parameter& p = op.parameters[i];
    all_values.push_back(p.optional && args[i].is_none() ? c10::IValue() : to_torch(p, args[i], results));
  }
  if (!op.functional) {
    op.handle.callBoxed(all_values);
    return results.finish();
  }
  torch::jit::Stack stack;
  for (const FunctionalArgument& argument : op.functional_arguments)
    stack.push_back(argument.position != kNone ? all_values[argument.position]
                    : argument.is_dtype        ? results.dtype()
                                               : argument.preset);
  op.handle.callBoxed(stack);
  TORCHETTE_TRY(results.set_returned(stack));
  return results.finish();
}

/// Dispatch keys of the calling thread's eager modes, such as autocast and fake tensors. Kernels exclude
/// them.
const c10::DispatchKeySet kModes =
    c10::DispatchKeySet(
        {c10::DispatchKey::Python, c10::DispatchKey::PythonTLSSnapshot, c10::DispatchKey::Functionalize}) |
    c10::autocast_dispatch_keyset;

Error run(size_t index, Args args) {
  const AtenKernel& op = *slots[index].op;
  TORCHETTE_CHECK(!slots[index].is_deregistered, OperatorMissing, "%s is no longer registered with torch",
                  op.name.c_str());
  try {
    const c10::InferenceMode no_gradients;
    const c10::impl::ExcludeDispatchKeyGuard no_modes(kModes);
    return call(op, args);
  } catch (const c10::Error& error) {
    TORCHETTE_LOG(Error, "%s: %s", op.name.c_str(), error.what_without_backtrace());
    return Error::InvalidArgument;
  } catch (const std::bad_alloc&) {
    TORCHETTE_LOG(Error, "%s: cannot allocate memory for the results", op.name.c_str());
    return Error::MemoryAllocationFailed;
  } catch (const std::exception& error) {  // thrown by a custom operator
    TORCHETTE_LOG(Error, "%s: %s", op.name.c_str(), error.what());
    return Error::Internal;
  }
}

// A kernel is a function without state, so each slot has a separate function.
template <size_t kIndex>
Error call_at(Context&, Args args) {
  return run(kIndex, args);
}
template <size_t... kIndex>
constexpr std::array<OpFunction, sizeof...(kIndex)> functions(std::index_sequence<kIndex...>) {
  return {&call_at<kIndex>...};
}
constexpr std::array<OpFunction, kMaxOperators> kFunctions =
    functions(std::make_index_sequence<kMaxOperators>{});

/// Copies `x` to `out`. Ignores the memory format and dim order arguments, because `out` already has its
/// layout.
Error copy_to(Context&, const Tensor& x, bool, Optional<Span<const int64_t>>, Tensor& out) {
  TORCHETTE_TRY(resize_tensor(out, x.sizes()));
  if (out.numel() != 0 && out.const_data_ptr() != x.const_data_ptr()) view_of(out).copy_(view_of(x));
  return Error::Ok;
}
const Kernel kCopyKernels[] = {
    {"dim_order_ops::_to_dim_order_copy.out", &Boxed<copy_to>::run, Boxed<copy_to>::kSignature.text},
    {"dim_order_ops::_clone_dim_order.out", &Boxed<copy_to>::run, Boxed<copy_to>::kSignature.text},
};

// --- An operator of torch as a kernel

/// Returns the signature code of a torch type, or 0 if a program has no values of that type.
char code_of(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::TensorType:
      return 'T';
    case c10::TypeKind::NumberType:
      return 's';
    case c10::TypeKind::IntType:
    case c10::TypeKind::SymIntType:
    case c10::TypeKind::ScalarTypeType:
    case c10::TypeKind::LayoutType:
    case c10::TypeKind::MemoryFormatType:
      return 'i';
    case c10::TypeKind::FloatType:
    case c10::TypeKind::SymFloatType:
      return 'd';
    case c10::TypeKind::BoolType:
    case c10::TypeKind::SymBoolType:
      return 'b';
    case c10::TypeKind::StringType:
      return 'S';
    case c10::TypeKind::ListType: {
      const c10::TypePtr& item = type->castRaw<c10::ListType>()->getElementType();
      const auto* optional = item->castRaw<c10::OptionalType>();
      if (optional != nullptr) return code_of(optional->getElementType()) == 'T' ? 'O' : '\0';
      switch (code_of(item)) {
        case 'T':
          return 'L';
        case 'i':
          return 'I';
        case 'd':
          return 'D';
        case 'b':
          return 'B';
        default:
          return 0;
      }
    }
    default:
      return 0;
  }
}

bool is_implied(const std::string& name) {
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory";
}
bool is_written(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}
bool is_functional(const c10::FunctionSchema& schema) {
  for (const c10::Argument& argument : schema.arguments())
    if (is_written(argument)) return false;
  for (const c10::Argument& result : schema.returns())
    if (result.alias_info() != nullptr) return false;
  return true;
}

/// Returns the parameter for an argument that the operator reads.
Parameter parameter_of(const c10::Argument& argument) {
  const auto* optional = argument.type()->castRaw<c10::OptionalType>();
  return {argument.name(), code_of(optional != nullptr ? optional->getElementType() : argument.type()),
          optional != nullptr, false};
}

/// Adds the parameters that a call in the program has: those of the schema, without the arguments that the
/// results imply if `skip_implied` is true. Returns false if a program cannot store a parameter.
bool add_parameters(AtenKernel& op, const c10::FunctionSchema& schema, bool skip_implied) {
  for (const c10::Argument& argument : schema.arguments()) {
    if (skip_implied && is_implied(argument.name())) continue;
    Parameter p = parameter_of(argument);
    const bool written = is_written(argument);
    p.out = written && argument.kwarg_only();
    if (p.code == 0 && p.optional) p.code = 'i';  // for example a generator: only None is possible
    if (p.code == 0 || (written && p.code != 'T' && p.code != 'L')) return false;
    if (written && p.code == 'T') p.code = 't';
    op.parameters.push_back(std::move(p));
  }
  return true;
}

/// Makes `op` call the functional operator of this schema. Returns false if its arguments differ from the
/// parameters of `op`.
bool use_functional(AtenKernel& op, const c10::FunctionSchema& schema) {
  size_t used = 0;
  for (const c10::Argument& argument : schema.arguments()) {
    FunctionalArgument functional_argument{kNone, argument.name() == "dtype",
                                           argument.default_value().value_or(c10::IValue())};
    const Parameter expected = parameter_of(argument);
    for (size_t i = 0; i < op.parameters.size(); ++i) {
      const Parameter& p = op.parameters[i];
      if (p.out || p.name != expected.name) continue;
      if (expected.code != 0 && (p.code != expected.code || p.optional != expected.optional)) return false;
      functional_argument.position = i;
    }
    used += functional_argument.position != kNone;
    if (functional_argument.position == kNone && !is_implied(argument.name())) return false;
    op.functional_arguments.push_back(std::move(functional_argument));
  }
  size_t read = 0, written = 0;
  for (const Parameter& p : op.parameters) (p.out ? written : read) += 1;
  return used == read && written == schema.returns().size();
}

bool has_cpu_kernel(const std::optional<c10::OperatorHandle>& handle) {
  return handle.has_value() && handle->hasComputedKernelForDispatchKey(c10::DispatchKey::CPU);
}

/// Selects the functional operator with the same name and arguments, which eager mode calls. An out variant
/// that torch composes of other operators may round differently. Other out variants compute the same result
/// and copy it.
void prefer_functional(AtenKernel& op, const std::string& name) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& other : dispatcher.getAllOpNames()) {
    if (other.name != name) continue;
    const auto handle = dispatcher.findSchema(other);
    if (!has_cpu_kernel(handle) || !is_functional(handle->schema())) continue;
    AtenKernel candidate = op;
    if (!use_functional(candidate, handle->schema())) continue;
    if (op.functional && op.functional_arguments.size() <= candidate.functional_arguments.size()) continue;
    op.functional_arguments = std::move(candidate.functional_arguments);
    op.handle = *handle;
    op.functional = true;
  }
}

const Kernel* make(const std::string& full, const std::string& name, const std::string& overload) {
  c10::Dispatcher& dispatcher = c10::Dispatcher::singleton();
  auto handle = dispatcher.findSchema({name, overload});
  const bool has_out = handle.has_value();
  // The operator may be registered without an out variant: "out" belongs to "", "Scalar_out" to "Scalar".
  if (!has_out && overload.size() >= 3 && overload.compare(overload.size() - 3, 3, "out") == 0)
    handle = dispatcher.findSchema({name, overload == "out" ? "" : overload.substr(0, overload.size() - 4)});
  if (!has_cpu_kernel(handle)) return nullptr;
  const c10::FunctionSchema& schema = handle->schema();
  for (const c10::Argument& result :
       schema.returns())  // only the runtime's kernels can write a scalar result
    if (code_of(result.type()) != 'T' && code_of(result.type()) != 'L') return nullptr;
  AtenKernel op{*handle, !has_out, {}, {}, full, {}, {}};
  if (!add_parameters(op, schema, !has_out)) return nullptr;
  if (!has_out) {
    for (const c10::Argument& result : schema.returns())
      op.parameters.push_back({"", code_of(result.type()) == 'T' ? 't' : 'L', false, true});
    if (!is_functional(schema) || !use_functional(op, schema)) return nullptr;
  } else if (!handle->hasKernelForDispatchKey(c10::DispatchKey::CPU)) {
    prefer_functional(op, name);
  }
  for (const Parameter& p : op.parameters) op.signature.append(p.optional ? "?" : "").push_back(p.code);
  const size_t index = count;
  if (index == kMaxOperators) {
    TORCHETTE_LOG(Error, "cannot use %s: all %zu slots for torch operators are in use", full.c_str(),
                  kMaxOperators);
    return nullptr;
  }
  static const auto* const listener =  // never freed: the order of destruction at exit is not defined
      new c10::RegistrationHandleRAII(
          dispatcher.addRegistrationListener(std::make_unique<DeregistrationListener>()));
  static_cast<void>(listener);
  AtenKernel* const aten_kernel = new AtenKernel(std::move(op));
  aten_kernel->kernel = {aten_kernel->name.c_str(), kFunctions[index], aten_kernel->signature.c_str()};
  slots[index].op = aten_kernel;
  count = index + 1;
  slot_by_name[full] = index;
  return &aten_kernel->kernel;
}

const Kernel* find(Kernels, Span<const char> name, Span<const char> overload) {
  if (!is_on) return nullptr;
  const std::string text(name.data(), name.size());
  const std::string overload_text(overload.data(), overload.size());
  const std::string full = overload.empty() ? text : text + "." + overload_text;
  for (const Kernel& kernel : kCopyKernels)
    if (full == kernel.name) return &kernel;
  // Operators that only the runtime has: scalar arithmetic, jumps and operators that compiler passes create.
  for (const char* prefix : {"executorch_prim::", "dim_order_ops::", "cpu::", "torchette::"})
    if (text.rfind(prefix, 0) == 0) return nullptr;
  const std::lock_guard<std::mutex> lock(mutex);
  const auto found = slot_by_name.find(full);
  if (found != slot_by_name.end() && !slots[found->second].is_deregistered)
    return &slots[found->second].op->kernel;
  try {
    return make(full, text, overload_text);
  } catch (const std::exception& error) {
    TORCHETTE_LOG(Error, "%s: %s", full.c_str(), error.what());
    return nullptr;
  }
}

KernelNode node{{{}, nullptr, true, &find}};
[[maybe_unused]] const Error added = add_kernels(node);

}  // namespace
}  // namespace torchette::extension

extern "C" TORCHETTE_EXPORT bool torchette_aten_mode(bool on) {
  return std::exchange(torchette::extension::is_on, on);
}
