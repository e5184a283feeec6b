// SPDX-License-Identifier: BSD-3-Clause
// Loads the instructions of a method. Checks each call's arguments against the signature of its kernel and
// each jump against its chain, and initialises the delegates. Included by method_load.cpp and
// pybindings/load_check.cpp.
#pragma once

#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/method_loading.h"

namespace torchette {
namespace {

/// The only kernel that may set the data of a tensor without memory.
constexpr char kViewKernel[] = "executorch_prim::et_view.default";

// Bit positions in a rule.
constexpr unsigned kSetFlagsShift = 16, kFullCheckShift = 24, kCodeCount = 64;

}  // namespace

/// For each code: the tags that it accepts, the flags that its argument gets, and the flags with which an
/// argument needs the full check. Optional parameters and lists of tensors always need it. The low bits of
/// the codes differ.
struct Method::Loading::Rules {
  uint32_t of[kCodeCount] = {};
  constexpr Rules(uint32_t read, uint32_t written, uint32_t unbacked, uint32_t constant) {
    for (char code = 'B'; code <= 'v'; ++code) {
      const bool slot = code == 'v' || code == 'm';
      const uint32_t set_flags = code == 't' ? written : slot ? read | written : read;
      const uint32_t full_check = code == 'T'                  ? unbacked
                                  : code == 't'                ? unbacked | constant
                                  : code == 'L' || code == 'O' ? read
                                                               : 0;
      if (tags_of(code) != 0)
        of[code % kCodeCount] = tags_of(code) | set_flags << kSetFlagsShift | full_check << kFullCheckShift;
    }
  }
};

inline uint32_t Method::Loading::rule_of(char code) {
  static constexpr Rules kRules{kUsed, kWritten, kUnbacked, kConstant};
  return kRules.of[static_cast<uint8_t>(code) % kCodeCount];
}

inline Error Method::Loading::read_only_error([[maybe_unused]] const Kernel& kernel,
                                              [[maybe_unused]] int32_t index) {
  TORCHETTE_LOG(Error, "%s writes to value %d, which is a constant or has no memory", kernel.name,
                static_cast<int>(index));
  return Error::InvalidProgram;
}

inline TORCHETTE_NOINLINE size_t Method::Loading::count_checked_arguments(const char* code,
                                                                          const int32_t* indices,
                                                                          size_t count) const {
  // flags is a byte pointer, which may alias the members: local copies avoid repeated loads.
  const Value* const values = method_.values_.data();
  const size_t all = method_.values_.size();
  uint8_t* const all_flags = method_.flags_;
  size_t n = 0;
  for (; code[n] != 0 && n != count; ++n) {
    const auto index = static_cast<uint32_t>(indices[n]);
    if (index >= all) break;
    const uint32_t rule = rule_of(code[n]);
    const uint32_t flags = all_flags[index] | rule >> kSetFlagsShift;
    all_flags[index] = static_cast<uint8_t>(flags);
    if ((rule >> static_cast<unsigned>(values[index].tag()) & 1u) == 0 ||
        (flags & rule >> kFullCheckShift) != 0)
      break;
  }
  return n;
}

inline TORCHETTE_NOINLINE Error Method::Loading::check_argument(const Kernel& kernel, const char* code,
                                                                int32_t index) {
  TORCHETTE_TRY(in_range(index));
  const bool optional = *code == '?';
  code += optional;
  const Value& value = method_.value(index);
  const uint32_t rule = rule_of(*code);
  const uint32_t flags = method_.flags(index) | rule >> kSetFlagsShift;
  method_.flags(index) = static_cast<uint8_t>(flags);
  if ((rule >> static_cast<unsigned>(value.tag()) & 1u) == 0) {
    if (optional && value.is_none()) return Error::Ok;
    // A slot that is written during execution may hold a scalar of any kind at this point.
    const bool number = is_number(value) && (rule >> static_cast<unsigned>(Tag::Int) & 1u) != 0;
    needs_second_pass_ |= number;
    TORCHETTE_CHECK(number && (is_first_pass_ || (flags & kWritten) != 0), InvalidProgram,
                    "value %d as an argument of %s has kind %u, expected (%s)", static_cast<int>(index),
                    kernel.name, static_cast<unsigned>(value.tag()), kernel.signature);
  } else if (value.is_tensor()) {
    unbacked_flags_ |= flags & kUnbacked;
    if (*code == 't' && (flags & (kUnbacked | kConstant)) != 0) {
      if ((flags & kUnbacked) == 0 || code[1] != 0 || strcmp(kernel.name, kViewKernel) != 0)
        return read_only_error(kernel, index);
      defines_last_ = true;
    }
  } else if (value.tag() >= Tag::ListTensor) {
    const BoxedList& list = *value.boxed_list();
    const auto* items = static_cast<const int32_t*>(list.indices);
    TORCHETTE_TRY(use_list_budget(list.size));
    for (uint32_t k = 0; k < list.size; ++k) {
      if (items[k] < 0) continue;
      const unsigned item = method_.flags(items[k]);
      unbacked_flags_ |= item & kUnbacked;
      if (*code == 'L' && code[1] == 0 && (item & (kUnbacked | kConstant)) != 0)
        return read_only_error(kernel, items[k]);
    }
  }
  return Error::Ok;
}

#ifdef TORCHETTE_SELECTED_DTYPES
inline Error Method::Loading::check_dtypes(const Kernel& kernel, Span<const int32_t> indices) {
  for (const int32_t index : indices) {
    if (index < 0) continue;  // None in a list
    const Value& value = method_.values_[static_cast<size_t>(index)];
    if (value.is_tensor()) {
      const ScalarType type = value.to_tensor().scalar_type();
      TORCHETTE_CHECK(has_dtype(type), OperatorMissing,
                      "%s for dtype %d is not in this build: add the dtype with torchette build --dtypes",
                      kernel.name, static_cast<int>(type));
    } else if (value.tag() == Tag::ListTensor || value.tag() == Tag::ListOptionalTensor) {
      const BoxedList& list = *value.boxed_list();
      TORCHETTE_TRY(check_dtypes(kernel, {static_cast<const int32_t*>(list.indices), list.size}));
    }
  }
  return Error::Ok;
}
#endif

inline Error Method::Loading::allocate_control(Control::Kind kind, Control** control, Instruction* out) {
  TORCHETTE_TRY(allocate(control));
  **control = {kind, false, 0, 0, nullptr, {}, {}};
  *out = {nullptr, *control};
  return Error::Ok;
}

inline Error Method::Loading::load_kernel_call(const CursorOf<schema::KernelCall>& call, Instruction* out) {
  const auto op = call.get<uint32_t>(schema::KernelCall::kOpIndex);
  TORCHETTE_CHECK(op < kernels_.size(), InvalidProgram, "operator %d does not exist, operators: %zu",
                  static_cast<int>(op), kernels_.size());
  const Kernel& kernel = *kernels_[op];
  const Span<const int32_t> indices = call.vector<int32_t>(schema::KernelCall::kArgs);
  unbacked_flags_ = 0;
  defines_last_ = false;
  const char* code = kernel.signature;
  size_t count = 0;
  for (;;) {
    const size_t checked = count_checked_arguments(code, indices.data() + count, indices.size() - count);
    code += checked;
    count += checked;
    if (*code == 0) break;
    TORCHETTE_CHECK(count != indices.size(), InvalidProgram, "%s is called with %zu arguments, expected (%s)",
                    kernel.name, count, kernel.signature);
    TORCHETTE_TRY(check_argument(kernel, code, indices[count]));
    code += *code == '?' ? 2 : 1;
    ++count;
  }
  if (!is_first_pass_) return Error::Ok;
#ifdef TORCHETTE_SELECTED_DTYPES
  TORCHETTE_TRY(check_dtypes(kernel, {indices.data(), count}));
#endif
  *out = {kernel.function, indices.data()};
  if (unbacked_flags_ == 0) return Error::Ok;
  Control* control;
  TORCHETTE_TRY(allocate_control(Control::Kind::CheckedKernel, &control, out));
  control->function = kernel.function;
  control->arguments = {indices.data(), count};
  control->defines_last = defines_last_;
  return Error::Ok;
}

inline Error Method::Loading::load_move(int32_t from, int32_t to, Instruction* out) {
  TORCHETTE_TRY(in_range(from));
  TORCHETTE_TRY(in_range(to));
  method_.flags(from) |= kUsed;
  method_.flags(to) |= kWritten;
  const Value &source = method_.value(from), &target = method_.value(to);
  bool fits = is_number(source) && is_number(target);
  if (source.is_tensor() && target.is_tensor())
    fits = source.to_tensor().scalar_type() == target.to_tensor().scalar_type() &&
           (method_.flags(to) & kConstant) == 0;
  TORCHETTE_CHECK(fits, InvalidProgram, "value %d is moved to %d, which is of another kind",
                  static_cast<int>(from), static_cast<int>(to));
  Control* control;
  TORCHETTE_TRY(allocate_control(Control::Kind::Move, &control, out));
  control->a = from;
  control->b = to;
  return Error::Ok;
}

inline Error Method::Loading::load_delegate_call(const Table& args, Instruction* out) {
  const auto index = args.get<int32_t>(schema::DelegateCall::kDelegateIndex);
  const size_t count = plan_.tables(schema::ExecutionPlan::kDelegates).size();
  TORCHETTE_CHECK(static_cast<size_t>(index) < count, InvalidProgram,
                  "delegate %d does not exist, delegates: %zu", static_cast<int>(index), count);
  const Span<const int32_t> indices = args.vector<int32_t>(schema::DelegateCall::kArgs);
  Control* control;
  TORCHETTE_TRY(allocate_control(Control::Kind::Delegate, &control, out));
  TORCHETTE_TRY(use_list_budget(indices.size()));
  Span<Value*> values;
  TORCHETTE_TRY(allocate(indices.size(), &values));
  for (size_t i = 0; i < indices.size(); ++i) {
    TORCHETTE_TRY(in_range(indices[i]));
    method_.flags(indices[i]) |= kUsed | kWritten;
    TORCHETTE_CHECK((method_.flags(indices[i]) & kUnbacked) == 0, InvalidProgram,
                    "argument %zu of a delegate has no memory", i);
    values[i] = &method_.value(indices[i]);
  }
  control->a = index;
  control->delegate_arguments = values;
  return Error::Ok;
}

inline Error Method::Loading::load_control(schema::InstructionArguments kind, const Table& args, size_t start,
                                           size_t count, Instruction* out) {
  switch (kind) {
    case schema::InstructionArguments::MoveCall:
      return load_move(args.get<int32_t>(schema::MoveCall::kMoveFrom),
                       args.get<int32_t>(schema::MoveCall::kMoveTo), out);
    case schema::InstructionArguments::JumpFalseCall: {
      const auto condition = args.get<int32_t>(schema::JumpFalseCall::kCondValueIndex);
      const auto target = args.get<int32_t>(schema::JumpFalseCall::kDestinationInstruction);
      TORCHETTE_TRY(in_range(condition));
      method_.flags(condition) |= kUsed;
      const Value& value = method_.value(condition);
      TORCHETTE_CHECK(
          is_number(value) || (value.is_tensor() && value.to_tensor().scalar_type() == ScalarType::Bool),
          InvalidProgram, "a jump depends on value %d, which is not a bool", static_cast<int>(condition));
      TORCHETTE_CHECK(static_cast<size_t>(target) <= count, InvalidProgram,
                      "a jump leads to instruction %d of %zu", static_cast<int>(target), count);
      Control* control;
      TORCHETTE_TRY(allocate_control(Control::Kind::JumpFalse, &control, out));
      control->a = condition;
      control->b = static_cast<int32_t>(start) + target;
      return Error::Ok;
    }
    case schema::InstructionArguments::FreeCall: {
      const auto freed = args.get<int32_t>(schema::FreeCall::kValueIndex);
      TORCHETTE_TRY(in_range(freed));
      Control* control;
      TORCHETTE_TRY(allocate_control(Control::Kind::Free, &control, out));
      control->a = freed;
      return Error::Ok;
    }
    case schema::InstructionArguments::DelegateCall:
      return load_delegate_call(args, out);
    default:
      TORCHETTE_LOG(Error, "an instruction has an unknown kind");
      return Error::NotSupported;
  }
}

inline Error Method::Loading::load_instructions() {
  const Tables chains = plan_.tables(schema::ExecutionPlan::kChains);
  size_t count = 0;
  for (size_t c = 0; c < chains.size(); ++c) {
    count += chains[c].tables(schema::Chain::kInstructions).size();
    TORCHETTE_CHECK(count <= reader_.size() / 4, InvalidProgram,
                    "the file has more instructions than bytes for them");
  }
  TORCHETTE_TRY(check_record("chain", 0));
  TORCHETTE_TRY(allocate(count, &method_.instructions_));
  method_.end_.store(count, std::memory_order_relaxed);
  CursorOf<schema::Instruction> record(reader_);
  CursorOf<schema::KernelCall> call(reader_);
  // An instruction may read a slot that a later instruction of the file writes. Then a second pass checks the
  // kernel calls again.
  do {
    needs_second_pass_ = false;
    size_t at = 0;
    for (size_t c = 0; c < chains.size(); ++c) {
      const Tables records = chains[c].tables(schema::Chain::kInstructions);
      const size_t start = at;
      for (size_t i = 0; i < records.size(); ++i, ++at) {
        record.seek(records, i);
        const auto kind = record.get<schema::InstructionArguments>(schema::Instruction::kInstrArgsType);
        Instruction* out = &method_.instructions_[at];
        Error error = Error::Ok;
        if (kind == schema::InstructionArguments::KernelCall) {
          call.seek(record.follow(schema::Instruction::kInstrArgs));
          error = load_kernel_call(call, out);
        } else if (is_first_pass_) {
          error =
              load_control(kind, record.table(schema::Instruction::kInstrArgs), start, records.size(), out);
        }
        if (error == Error::Ok) error = check_record("instruction", at);
        if (error != Error::Ok) {
          TORCHETTE_LOG(Error, "instruction %zu is refused", at);
          return error;
        }
      }
    }
    is_first_pass_ = !is_first_pass_;
  } while (needs_second_pass_ && !is_first_pass_);
  return Error::Ok;
}

inline Error Method::Loading::find_kernels() {
  const Tables records = plan_.tables(schema::ExecutionPlan::kOperators);
  TORCHETTE_TRY(allocate(records.size(), &kernels_));
  bool complete = true;
  for (size_t i = 0; i < kernels_.size(); ++i) {
    const Table record = records[i];
    const Span<const char> name = record.string(schema::Operator::kName);
    const Span<const char> overload = record.string(schema::Operator::kOverload);
    TORCHETTE_TRY(check_record("operator", i));
    kernels_[i] = find_kernel(name, overload);
    if (kernels_[i] != nullptr) continue;
    complete = false;
    TORCHETTE_LOG(Error, "there is no kernel for %s%s%s: add it with torchette build --ops", name.data(),
                  overload.empty() ? "" : ".", overload.data());
  }
#if TORCHETTE_EVENT_TRACER
  method_.kernels_ = kernels_;
#endif
  return complete ? Error::Ok : Error::OperatorMissing;
}

inline Error Method::Loading::load_delegates() {
  const Tables records = plan_.tables(schema::ExecutionPlan::kDelegates);
  Span<Delegate> delegates;
  TORCHETTE_TRY(allocate(records.size(), &delegates));
  BackendInitContext context(&arena_, plan_.string(schema::ExecutionPlan::kName).data(), &program_,
                             method_.external_, method_);
  for (size_t i = 0; i < delegates.size(); ++i) {
    const Table record = records[i];
    const char* id = record.string(schema::BackendDelegate::kId).data();
    const Table reference = record.table(schema::BackendDelegate::kProcessed);
    const Tables options = record.tables(schema::BackendDelegate::kCompileSpecs);
    const size_t count = options.size();
    TORCHETTE_TRY(use_list_budget(count));
    Span<CompileSpec> specs;
    TORCHETTE_TRY(allocate(count, &specs));
    for (size_t k = 0; k < count; ++k) {
      const Table option = options[k];
      specs[k] = {option.string(schema::CompileSpec::kKey).data(),
                  option.vector<uint8_t>(schema::CompileSpec::kValue)};
    }
    TORCHETTE_TRY(check_record("delegate", i));
    BackendInterface* backend = get_backend_class(id);
    TORCHETTE_CHECK(backend != nullptr && backend->can_load(), NotSupported,
                    "the method needs the backend %s, which is not %s", id,
                    backend == nullptr ? "registered" : "available on this device");
    Delegate& delegate = delegates[i];
    new (&delegate) Delegate();
    method_.delegates_ = {delegates.data(), i + 1};
    TORCHETTE_TRY(program_.load_delegate_data(reader_, reference, id, &delegate.processed));
    const Result<DelegateHandle*> handle = backend->init(context, &delegate.processed, {specs.data(), count});
    if (!handle.ok()) {
      TORCHETTE_LOG(Error, "the backend %s refused delegate %zu", id, i);
      return handle.error();
    }
    delegate.backend = backend;
    delegate.handle = *handle;
  }
  return Error::Ok;
}

}  // namespace torchette
