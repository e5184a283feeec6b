// SPDX-License-Identifier: BSD-3-Clause
// Builds a method from its plan in the file. The file is hostile until this has returned Ok: every index,
// offset, size, type and jump target is checked here, so that nothing of it needs a check while executing.
#include <initializer_list>

#include "torchette/runtime/kernel_registry.h"
#include "torchette/runtime/method.h"
#include "torchette/schema/program.h"

namespace torchette {

using flat::CursorOf;
using flat::Reader;
using flat::Table;
using flat::Tables;

namespace {

using Types = schema::KernelTypes;

/// The one kernel that may give a tensor without memory its bytes.
constexpr char kViewKernel[] = "executorch_prim::et_view.default";

constexpr uint16_t one_of(std::initializer_list<Tag> tags) {
  uint16_t set = 0;
  for (Tag tag : tags) set = static_cast<uint16_t>(set | 1u << static_cast<unsigned>(tag));
  return set;
}

/// What a signature's code takes: a bit for each tag.
constexpr uint16_t tags_of(char code) {
  switch (code) {
    case 'T':
    case 't':
      return one_of({Tag::Tensor});
    case 'i':
    case 'b':
      return one_of({Tag::Int, Tag::Bool});
    case 'd':
    case 's':
      return one_of({Tag::Int, Tag::Double, Tag::Bool});
    case 'v':
      return one_of({Tag::None, Tag::Int, Tag::Double, Tag::Bool});
    case 'm':
      return one_of({Tag::None, Tag::Int, Tag::Double, Tag::Bool, Tag::String});
    case 'S':
      return one_of({Tag::String});
    case 'I':
      return one_of({Tag::ListInt});
    case 'D':
      return one_of({Tag::ListDouble});
    case 'B':
      return one_of({Tag::ListBool});
    case 'L':
      return one_of({Tag::ListTensor});
    case 'O':
      return one_of({Tag::ListOptionalTensor});  // not the other: both would gather into one place
    default:
      return 0;
  }
}

/// How a list stands in the file. What names values is gathered, and so has room for the items themselves.
struct ListKind {
  Tag tag;
  uint8_t log2_size;      // of an item in the file
  uint8_t gathered_size;  // 0: it is used in place
};
constexpr ListKind kLists[] = {
    {Tag::String, 0, 0},
    {Tag::ListInt, 3, sizeof(int64_t)},
    {Tag::ListDouble, 3, 0},
    {Tag::ListBool, 0, 0},
    {Tag::ListTensor, 2, sizeof(Tensor)},
    {Tag::ListOptionalTensor, 2, sizeof(Optional<Tensor>)},
};
static_assert(static_cast<int>(Types::OptionalTensorList) - static_cast<int>(Types::String) == 5 &&
              static_cast<int>(Types::IntList) - static_cast<int>(Types::String) == 1);

/// By code: the tags that it takes, the flags that an argument gets under it, and the flags with which it
/// needs a closer look, as all do under '?' and lists of tensors. The low bits of a code tell it from the
/// others.
constexpr unsigned kSetsAt = 16, kDoubtsAt = 24, kCodes = 64;
struct Rules {
  uint32_t of[kCodes] = {};
  constexpr Rules(uint32_t read, uint32_t written, uint32_t unbacked, uint32_t constant) {
    for (char code = 'B'; code <= 'v'; ++code) {
      const bool slot = code == 'v' || code == 'm';
      const uint32_t sets = code == 't' ? written : slot ? read | written : read;
      const uint32_t doubts = code == 'T'                  ? unbacked
                              : code == 't'                ? unbacked | constant
                              : code == 'L' || code == 'O' ? read
                                                           : 0;
      if (tags_of(code) != 0) of[code % kCodes] = tags_of(code) | sets << kSetsAt | doubts << kDoubtsAt;
    }
  }
};

/// Whether a tensor's bytes stand outside of the file, under its name.
bool is_external(const Table& extra) {
  return extra.get<schema::TensorDataLocation>(schema::ExtraTensorInfo::kLocation) ==
         schema::TensorDataLocation::EXTERNAL;
}

bool is_number(const Value& v) { return v.is_none() || v.is_scalar(); }

}  // namespace

/// What is allocated here, torchette/devtools/memory.py counts ahead of time: a change of one is a change of
/// both.
class Method::Loading {
 public:
  Loading(Method& method, const Program& program, Reader& reader)
      : m_(method),
        program_(program),
        reader_(reader),
        plan_(Table::at(&reader, method.plan_)),
        records_(plan_.tables(schema::ExecutionPlan::kValues)),
        entry_(reader),
        tensor_(reader),
        allocation_(reader),
        arena_(*method.memory_->method_allocator()),
        list_budget_(16 * reader.size()) {}

  Error run() {
    TORCHETTE_TRY(signature());
    TORCHETTE_TRY(values());
    TORCHETTE_TRY(lists());
    TORCHETTE_TRY(m_.load_state());
    TORCHETTE_TRY(operators());
    TORCHETTE_TRY(instructions());
    return delegates();
  }

 private:
  __attribute__((noinline)) void* room(size_t count, size_t size, size_t alignment) {
    size_t bytes;
    void* const found =
        __builtin_mul_overflow(count, size, &bytes) ? nullptr : arena_.allocate(bytes, alignment);
    if (found == nullptr)
      TORCHETTE_LOG(Error, "the method allocator has no room for %zu items of %zu bytes", count, size);
    return found;
  }
  template <typename T>
  Error allocate(size_t count, Span<T>* out) {
    auto* const items = static_cast<T*>(room(count, sizeof(T), alignof(T)));
    *out = {items, count};
    return items == nullptr ? Error::MemoryAllocationFailed : Error::Ok;
  }
  template <typename T>
  Error allocate(T** out) {
    *out = static_cast<T*>(room(1, sizeof(T), alignof(T)));
    return *out == nullptr ? Error::MemoryAllocationFailed : Error::Ok;
  }
  /// Shared vectors could make a small file ask for a lot of memory; files that were written in earnest
  /// cannot.
  Error spend(size_t items) {
    TORCHETTE_CHECK(items <= list_budget_, InvalidProgram, "the lists of the file are too long for its size");
    list_budget_ -= items;
    return Error::Ok;
  }
  Error in_range(int32_t index) const {
    // a negative number becomes a larger one than there are values
    TORCHETTE_CHECK(static_cast<size_t>(index) < m_.values_.size(), InvalidProgram,
                    "value %d is named, there are %zu", static_cast<int>(index), m_.values_.size());
    return Error::Ok;
  }
  Error intact(const char* what, size_t index) const {
    TORCHETTE_CHECK(reader_.ok(), InvalidProgram, "%s %zu of the method is not inside of the file", what,
                    index);
    return Error::Ok;
  }

  // --- Values
  // ------------------------------------------------------------------------------------------------------

  Error signature() {
    m_.inputs_ = plan_.vector<int32_t>(schema::ExecutionPlan::kInputs);
    m_.outputs_ = plan_.vector<int32_t>(schema::ExecutionPlan::kOutputs);
    TORCHETTE_CHECK(reader_.ok(), InvalidProgram, "the method's plan is not inside of the file");
    const size_t count = records_.size();
    TORCHETTE_TRY(allocate(count, &m_.values_));
    Span<uint8_t> flags;
    TORCHETTE_TRY(allocate(count, &flags));
    m_.flags_ = flags.data();
    static_assert(static_cast<int>(Tag::None) == 0);
    memset(static_cast<void*>(m_.values_.data()), 0, count * sizeof(Value));
    memset(m_.flags_, 0, count);
    Span<Span<uint8_t>> buffers;
    const HierarchicalAllocator* planned = m_.memory_->planned_memory();
    if (planned != nullptr) {  // a tensor that is planned says so where there is none
      buffers = planned->buffers();
      TORCHETTE_TRY(planned_sizes(buffers));
    }
    TORCHETTE_TRY(allocate(buffers.size(), &m_.extents_));
    memset(m_.extents_.data(), 0, buffers.size() * sizeof(size_t));
    Span<Input> inputs;
    TORCHETTE_TRY(allocate(m_.inputs_.size(), &inputs));
    m_.input_state_ = inputs.data();
    for (size_t i = 0; i < inputs.size(); ++i) {
      inputs[i].set = true;  // but for tensors
      const int32_t index = m_.inputs_[i];
      TORCHETTE_TRY(in_range(index));
      uint8_t& known = m_.flags(index);
      TORCHETTE_CHECK(known == 0, InvalidProgram, "value %d is an input twice", static_cast<int>(index));
      known = kInput;
      m_.value(index) = Value(static_cast<int64_t>(i));  // until it is read: which input it is
    }
    for (int32_t index : m_.outputs_) {
      TORCHETTE_TRY(in_range(index));
      m_.flags(index) |= kOutput;
    }
    return Error::Ok;
  }

  /// The buffers are as large as the file says, so that a small one is named with what it needs.
  Error planned_sizes(Span<const Span<uint8_t>> buffers) const {
    const Span<const int64_t> sizes = plan_.vector<int64_t>(schema::ExecutionPlan::kNonConstBufferSizes);
    for (size_t id = 1; id < sizes.size(); ++id) {
      const size_t given = id <= buffers.size() ? buffers[id - 1].size() : 0;
      TORCHETTE_CHECK(static_cast<uint64_t>(sizes[id]) <= given, MemoryAllocationFailed,
                      "planned buffer %zu has %zu bytes, the method needs %lld", id - 1, given,
                      static_cast<long long>(sizes[id]));
    }
    return Error::Ok;
  }

  Error values() {
    for (size_t i = 0; i < m_.values_.size(); ++i) {
      entry_.seek(records_, i);
      const auto type = entry_.get<Types>(schema::EValue::kValType);
      if (type == Types::Tensor) {
        tensor_.seek(entry_.follow(schema::EValue::kVal));
        TORCHETTE_TRY(tensor(i));
      } else {
        TORCHETTE_TRY(other(type, entry_.table(schema::EValue::kVal), i));
      }
      TORCHETTE_TRY(intact("value", i));
    }
    return Error::Ok;
  }

  /// Value `i`, of the kinds that a file has few of.
  Error other(Types type, const Table& record, size_t i) {
    Value& value = m_.values_[i];
    switch (type) {
      case Types::NONE:
      case Types::Null:
        value = Value();
        break;
      case Types::Int:
        value = Value(record.get<int64_t>(schema::Int::kIntVal));
        break;
      case Types::Bool:
        value = Value(record.get<uint8_t>(schema::Bool::kBoolVal) != 0);
        break;
      case Types::Double:
        value = Value(record.get<double>(schema::Double::kDoubleVal));
        break;
      default: {
        const auto list = static_cast<size_t>(type) - static_cast<size_t>(Types::String);
        TORCHETTE_CHECK(list < sizeof(kLists) / sizeof(*kLists), NotSupported,
                        "value %zu is of a kind that this runtime does not know", i);
        return this->list(kLists[list], record, i);
      }
    }
    return Error::Ok;
  }

  /// Value `i`, whose record has one field, the items.
  Error list(const ListKind& kind, const Table& record, size_t i) {
    constexpr uint16_t kItems = schema::IntList::kItems;
    Span<const uint8_t> items;
    if (kind.tag == Tag::String) {
      const Span<const char> text = record.string(kItems);
      items = {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
    } else {
      items = record.items(kItems, kind.log2_size);
    }
    const auto size = static_cast<uint32_t>(items.size());
    TORCHETTE_TRY(spend(size));
    if (kind.tag == Tag::ListBool)
      for (uint8_t item : items)
        TORCHETTE_CHECK(item <= 1, InvalidProgram, "value %zu has a bool of %u", i, item);
    if (kind.gathered_size == 0) {
      PlainList* list;
      TORCHETTE_TRY(allocate(&list));
      *list = {items.data(), size};
      m_.values_[i] = Value(kind.tag, list);
    } else {
      BoxedList* list;
      TORCHETTE_TRY(allocate(&list));
      void* gathered = room(size, kind.gathered_size, 8);
      if (gathered == nullptr) return Error::MemoryAllocationFailed;
      *list = {m_.values_.data(), items.data(), gathered, size};
      m_.values_[i] = Value(kind.tag, list);
    }
    return Error::Ok;
  }

  /// After all values are known: what the lists name.
  Error lists() {
    for (size_t i = 0; i < m_.values_.size(); ++i) {
      const Value& value = m_.values_[i];
      const bool ints = value.tag() == Tag::ListInt, optional = value.tag() == Tag::ListOptionalTensor;
      if (!ints && !optional && value.tag() != Tag::ListTensor) continue;
      const BoxedList& list = *value.boxed_list();
      for (uint32_t k = 0; k < list.size; ++k) {
        const int64_t index = ints ? static_cast<const int64_t*>(list.indices)[k]
                                   : static_cast<const int32_t*>(list.indices)[k];
        if (optional && index == -1) continue;
        TORCHETTE_CHECK(index >= 0 && static_cast<uint64_t>(index) < m_.values_.size(), InvalidProgram,
                        "list %zu names a value that is not there", i);
        const Value& item = m_.values_[static_cast<size_t>(index)];
        TORCHETTE_CHECK(
            ints ? is_number(item) && !item.is_double() : item.is_tensor() || (optional && item.is_none()),
            InvalidProgram, "list %zu names value %lld, which is of kind %u", i,
            static_cast<long long>(index), static_cast<unsigned>(item.tag()));
        m_.flags_[index] |= kUsed;
      }
    }
    return Error::Ok;
  }

  /// The tensor under the cursor is value `index`.
  Error tensor(size_t index) {
    const bool stays =
        tensor_.get<TensorShapeDynamism>(schema::Tensor::kShapeDynamism) == TensorShapeDynamism::STATIC;
    TensorInfo& info = last_[stays];
    TORCHETTE_TRY(info.read(reader_, tensor_));
    if (stays && !info.same_layout_) shared_strides_ = nullptr;
    return make_tensor(info, stays, index);
  }

  /// A function by itself, so that the address of `info` is not computed again and again.
  __attribute__((noinline)) Error make_tensor(const TensorInfo& info, bool stays, size_t index) {
    const size_t rank = info.sizes_.size();
    const bool owned = info.dynamism_ == TensorShapeDynamism::DYNAMIC_UNBOUND &&
                       (m_.flags_[index] & kInput) == 0 && rank != 0;
    auto* const impl = static_cast<TensorImpl*>(
        arena_.allocate(owned ? sizeof(OwnedTensorImpl) : sizeof(TensorImpl), alignof(OwnedTensorImpl)));
    if (impl == nullptr) return Error::MemoryAllocationFailed;
    // sizes that stay are never written, so they stand in the file and equal neighbours share their strides
    impl->sizes = const_cast<SizesType*>(info.sizes_.data());
    impl->strides = shared_strides_;
    if (!stays || shared_strides_ == nullptr) {
      Span<SizesType> numbers;
      TORCHETTE_TRY(allocate(stays ? rank : 2 * rank, &numbers));
      impl->strides = numbers.data();
      (void)dense_strides(info.sizes_, info.dim_order_.data(), impl->strides).ok();
      if (stays) {
        shared_strides_ = impl->strides;
      } else {
        impl->sizes = numbers.data() + rank;
        for (size_t d = 0; d < rank; ++d) impl->sizes[d] = info.sizes_[d];
      }
    }
    impl->data = nullptr;
    impl->dim_order = info.dim_order_.data();
    impl->capacity = static_cast<size_t>(info.numel_);
    impl->numel = info.numel_;
    impl->dim = static_cast<uint8_t>(rank);
    impl->type = info.type_;
    impl->dynamism = info.dynamism_;
    Value& value = m_.values_[index];
    const Table extra = tensor_.table(schema::Tensor::kExtraTensorInfo);
    if ((m_.flags_[index] & kInput) != 0) {
      const auto ranges = extra.vector<SizesType>(schema::ExtraTensorInfo::kRanges);
      const bool both = ranges.size() == 2 * rank;
      // it is an int, and asking keeps the conversion of doubles out of firmware
      m_.input_state_[value.is_int() ? value.to_int() : 0] = {
          both ? ranges.data() : info.sizes_.data(), static_cast<uint8_t>(1 + both), both || stays, false};
    }
    new (&value) Value(Tensor(impl));
    return place(index, info.nbytes_, owned, extra, impl);
  }

  /// Gives the tensor under the cursor, which is value `index`, its bytes.
  TORCHETTE_INLINE Error place(size_t index, size_t nbytes, bool owned, const Table& extra,
                               TensorImpl* impl) {
    const auto buffer = tensor_.get<uint32_t>(schema::Tensor::kDataBufferIdx);
    const uint8_t* const allocation = tensor_.follow(schema::Tensor::kAllocationInfo);
    uint8_t& flags = m_.flags_[index];
    TORCHETTE_CHECK(!extra.present() || extra.get<schema::DeviceType>(schema::ExtraTensorInfo::kDeviceType) ==
                                            schema::DeviceType::CPU,
                    NotSupported, "tensor %zu lives on another device than the CPU", index);
    const bool external = extra.present() && is_external(extra);
    if (allocation != nullptr) {
      allocation_.seek(allocation);
      TORCHETTE_TRY(planned(nbytes, *impl));
      if (buffer != 0 || external) flags |= kInitialised;
    } else if (external) {
      TORCHETTE_TRY(m_.find_external(extra, *impl, &impl->data));
      flags |= kConstant;
    } else if (buffer != 0) {
      TORCHETTE_TRY(program_.constant(reader_, buffer, nbytes, &impl->data));
      flags |= kConstant;
    } else if (owned) {
      impl->dynamism = TensorShapeDynamism::OWNED;
      DynamicAllocator*& memory = static_cast<OwnedTensorImpl*>(impl)->memory;
      memory = m_.memory_->dynamic_allocator();
      TORCHETTE_CHECK(memory != nullptr, InvalidArgument,
                      "tensor %zu has a size that only the run knows: give a dynamic allocator", index);
      reserve_tensor(*impl, 0);
    } else if ((flags & (kInput | kOutput)) != 0) {
      flags |= kCallerMemory;
    } else {
      flags |= kUnbacked;
      impl->capacity = SIZE_MAX;  // it has the bytes of another tensor, as many as it needs
      m_.any_unbacked_ = true;
    }
    TORCHETTE_CHECK(is_aligned_for(impl->data, impl->type), InvalidProgram,
                    "the bytes of tensor %zu are not aligned", index);
    return Error::Ok;
  }

  /// Gives a tensor the address that is planned under the cursor. What starts as zeros has a size that stays:
  /// the rest is not touched before it is written, so that a room for the greatest sizes costs no memory that
  /// no run needs.
  Error planned(size_t nbytes, TensorImpl& tensor) {
    const auto id = allocation_.get<uint32_t>(schema::AllocationDetails::kMemoryId);
    const uint64_t offset =
        allocation_.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetLow) |
        static_cast<uint64_t>(allocation_.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetHigh)) << 32;
    const HierarchicalAllocator* memory = m_.memory_->planned_memory();
    TORCHETTE_CHECK(memory != nullptr, InvalidArgument, "the method needs planned memory, none is given");
    TORCHETTE_CHECK(id != 0 && offset <= SIZE_MAX, InvalidProgram, "a tensor is planned into memory %u", id);
    const Result<void*> found = memory->get_offset_address(id - 1, static_cast<size_t>(offset), nbytes);
    if (!found.ok()) return found.error();
    tensor.data = *found;
    const size_t end = static_cast<size_t>(offset) + nbytes;
    size_t& extent = m_.extents_[id - 1];
    if (end > extent && tensor.dynamism == TensorShapeDynamism::STATIC) extent = end;
    return Error::Ok;
  }

  // --- Instructions
  // ------------------------------------------------------------------------------------------------

  /// Each operator is looked up once, however often it is called. All that are missing are named.
  Error operators() {
    const Tables records = plan_.tables(schema::ExecutionPlan::kOperators);
    TORCHETTE_TRY(allocate(records.size(), &kernels_));
    bool complete = true;
    for (size_t i = 0; i < kernels_.size(); ++i) {
      const Table record = records[i];
      const Span<const char> name = record.string(schema::Operator::kName);
      const Span<const char> overload = record.string(schema::Operator::kOverload);
      TORCHETTE_TRY(intact("operator", i));
      kernels_[i] = find_kernel(name, overload);
      if (kernels_[i] != nullptr) continue;
      complete = false;
      TORCHETTE_LOG(Error, "there is no kernel for %s%s%s: add it with torchette build --ops", name.data(),
                    overload.empty() ? "" : ".", overload.data());
    }
#if TORCHETTE_EVENT_TRACER
    m_.kernels_ = kernels_;
#endif
    return complete ? Error::Ok : Error::OperatorMissing;
  }

  Error instructions() {
    const Tables chains = plan_.tables(schema::ExecutionPlan::kChains);
    size_t count = 0;
    for (size_t c = 0; c < chains.size(); ++c) {
      count += chains[c].tables(schema::Chain::kInstructions).size();
      TORCHETTE_CHECK(count <= reader_.size() / 4, InvalidProgram,
                      "the file has more instructions than bytes for them");
    }
    TORCHETTE_TRY(intact("chain", 0));
    TORCHETTE_TRY(allocate(count, &m_.instructions_));
    m_.end_.store(count, std::memory_order_relaxed);
    CursorOf<schema::Instruction> record(reader_);
    CursorOf<schema::KernelCall> call(reader_);
    // a slot may be read before the instruction that writes it, in file order: then kernel calls are judged
    // once more
    do {
      unsure_ = false;
      size_t at = 0;
      for (size_t c = 0; c < chains.size(); ++c) {
        const Tables records = chains[c].tables(schema::Chain::kInstructions);
        const size_t start = at;
        for (size_t i = 0; i < records.size(); ++i, ++at) {
          record.seek(records, i);
          const auto kind = record.get<schema::InstructionArguments>(schema::Instruction::kInstrArgsType);
          Instruction* out = &m_.instructions_[at];
          Error error = Error::Ok;
          if (kind == schema::InstructionArguments::KernelCall) {
            call.seek(record.follow(schema::Instruction::kInstrArgs));
            error = kernel_call(call, out);
          } else if (first_) {
            error = control(kind, record.table(schema::Instruction::kInstrArgs), start, records.size(), out);
          }
          if (error == Error::Ok) error = intact("instruction", at);
          if (error != Error::Ok) {
            TORCHETTE_LOG(Error, "instruction %zu is refused", at);
            return error;
          }
        }
      }
      first_ = !first_;
    } while (unsure_ && !first_);
    return Error::Ok;
  }

  Error control(schema::InstructionArguments kind, const Table& args, size_t start, size_t count,
                Instruction* out) {
    switch (kind) {
      case schema::InstructionArguments::MoveCall:
        return move(args.get<int32_t>(schema::MoveCall::kMoveFrom),
                    args.get<int32_t>(schema::MoveCall::kMoveTo), out);
      case schema::InstructionArguments::JumpFalseCall: {
        const auto condition = args.get<int32_t>(schema::JumpFalseCall::kCondValueIndex);
        const auto target = args.get<int32_t>(schema::JumpFalseCall::kDestinationInstruction);
        TORCHETTE_TRY(in_range(condition));
        m_.flags(condition) |= kUsed;
        const Value& value = m_.value(condition);
        TORCHETTE_CHECK(
            is_number(value) || (value.is_tensor() && value.to_tensor().scalar_type() == ScalarType::Bool),
            InvalidProgram, "a jump depends on value %d, which is no bool", static_cast<int>(condition));
        TORCHETTE_CHECK(static_cast<size_t>(target) <= count, InvalidProgram,
                        "a jump leads to instruction %d of %zu", static_cast<int>(target), count);
        Control* control;
        TORCHETTE_TRY(make_control(Control::Kind::JumpFalse, &control, out));
        control->a = condition;
        control->b = static_cast<int32_t>(start) + target;
        return Error::Ok;
      }
      case schema::InstructionArguments::FreeCall: {
        const auto freed = args.get<int32_t>(schema::FreeCall::kValueIndex);
        TORCHETTE_TRY(in_range(freed));
        Control* control;
        TORCHETTE_TRY(make_control(Control::Kind::Free, &control, out));
        control->a = freed;
        return Error::Ok;
      }
      case schema::InstructionArguments::DelegateCall:
        return delegate_call(args, out);
      default:
        TORCHETTE_LOG(Error, "an instruction is of a kind that this runtime does not know");
        return Error::NotSupported;
    }
  }

  Error make_control(Control::Kind kind, Control** control, Instruction* out) {
    TORCHETTE_TRY(allocate(control));
    **control = {kind, false, 0, 0, nullptr, {}, {}};
    *out = {nullptr, *control};
    return Error::Ok;
  }

  Error kernel_call(const CursorOf<schema::KernelCall>& call, Instruction* out) {
    const auto op = call.get<uint32_t>(schema::KernelCall::kOpIndex);
    TORCHETTE_CHECK(op < kernels_.size(), InvalidProgram, "operator %d is called, there are %zu",
                    static_cast<int>(op), kernels_.size());
    const Kernel& kernel = *kernels_[op];
    const Span<const int32_t> indices = call.vector<int32_t>(schema::KernelCall::kArgs);
    unbacked_ = 0;
    defines_last_ = false;
    const char* code = kernel.signature;
    size_t count = 0;
    for (;;) {
      const size_t usual = count_usual(code, indices.data() + count, indices.size() - count);
      code += usual;
      count += usual;
      if (*code == 0) break;
      TORCHETTE_CHECK(count != indices.size(), InvalidProgram,
                      "%s is called with %zu arguments, it takes (%s)", kernel.name, count, kernel.signature);
      TORCHETTE_TRY(unusual(kernel, code, indices[count]));
      code += *code == '?' ? 2 : 1;
      ++count;
    }
    if (!first_) return Error::Ok;
#ifdef TORCHETTE_SELECTED_DTYPES
    TORCHETTE_TRY(dtypes_are_built(kernel, {indices.data(), count}));
#endif
    *out = {kernel.function, indices.data()};
    if (unbacked_ == 0) return Error::Ok;
    Control* control;
    TORCHETTE_TRY(make_control(Control::Kind::CheckedKernel, &control, out));
    control->function = kernel.function;
    control->arguments = {indices.data(), count};
    control->defines_last = defines_last_;
    return Error::Ok;
  }

  /// How many of the next arguments need no closer look, most often all. A function by itself and without
  /// calls, so that all of it is in registers.
  __attribute__((noinline)) size_t count_usual(const char* code, const int32_t* indices, size_t count) const {
    // a byte that is written may be any byte: locals keep the compiler from asking again
    const Value* const values = m_.values_.data();
    const size_t all = m_.values_.size();
    uint8_t* const all_flags = m_.flags_;
    size_t n = 0;
    for (; code[n] != 0 && n != count; ++n) {
      const auto index = static_cast<uint32_t>(indices[n]);
      if (index >= all) break;
      const uint32_t rule = rule_of(code[n]);
      const uint32_t flags = all_flags[index] | rule >> kSetsAt;
      all_flags[index] = static_cast<uint8_t>(flags);
      if ((rule >> static_cast<unsigned>(values[index].tag()) & 1u) == 0 || (flags & rule >> kDoubtsAt) != 0)
        break;
    }
    return n;
  }

  __attribute__((noinline)) Error unusual(const Kernel& kernel, const char* code, int32_t index) {
    TORCHETTE_TRY(in_range(index));
    const bool optional = *code == '?';
    code += optional;
    const Value& value = m_.value(index);
    const uint32_t rule = rule_of(*code);
    const uint32_t flags = m_.flags(index) | rule >> kSetsAt;
    m_.flags(index) = static_cast<uint8_t>(flags);
    if ((rule >> static_cast<unsigned>(value.tag()) & 1u) == 0) {
      if (optional && value.is_none()) return Error::Ok;
      // a slot that is written while executing may hold any number, whatever it holds now
      const bool number = is_number(value) && (rule >> static_cast<unsigned>(Tag::Int) & 1u) != 0;
      unsure_ |= number;
      TORCHETTE_CHECK(number && (first_ || (flags & kWritten) != 0), InvalidProgram,
                      "value %d as an argument of %s is of kind %u, it takes (%s)", static_cast<int>(index),
                      kernel.name, static_cast<unsigned>(value.tag()), kernel.signature);
    } else if (value.is_tensor()) {
      unbacked_ |= flags & kUnbacked;
      if (*code == 't' && (flags & (kUnbacked | kConstant)) != 0) {
        if ((flags & kUnbacked) == 0 || code[1] != 0 || strcmp(kernel.name, kViewKernel) != 0)
          return read_only(kernel, index);
        defines_last_ = true;
      }
    } else if (value.tag() >= Tag::ListTensor) {
      const BoxedList& list = *value.boxed_list();
      const auto* items = static_cast<const int32_t*>(list.indices);
      TORCHETTE_TRY(spend(list.size));
      for (uint32_t k = 0; k < list.size; ++k) {
        if (items[k] < 0) continue;
        const unsigned item = m_.flags(items[k]);
        unbacked_ |= item & kUnbacked;
        if (*code == 'L' && code[1] == 0 && (item & (kUnbacked | kConstant)) != 0)
          return read_only(kernel, items[k]);
      }
    }
    return Error::Ok;
  }

#ifdef TORCHETTE_SELECTED_DTYPES
  /// A selective build has no code for other dtypes than it was told of.
  Error dtypes_are_built(const Kernel& kernel, Span<const int32_t> indices) {
    for (const int32_t index : indices) {
      if (index < 0) continue;  // a list's empty place
      const Value& value = m_.values_[static_cast<size_t>(index)];
      if (value.is_tensor()) {
        const ScalarType type = value.to_tensor().scalar_type();
        TORCHETTE_CHECK(has_dtype(type), OperatorMissing,
                        "%s for dtype %d is not in this build: add the dtype with torchette build --dtypes",
                        kernel.name, static_cast<int>(type));
      } else if (value.tag() == Tag::ListTensor || value.tag() == Tag::ListOptionalTensor) {
        const BoxedList& list = *value.boxed_list();
        TORCHETTE_TRY(dtypes_are_built(kernel, {static_cast<const int32_t*>(list.indices), list.size}));
      }
    }
    return Error::Ok;
  }
#endif

  /// Constants stand in read-only memory, and a view of the caller's memory or of a constant may.
  static Error read_only([[maybe_unused]] const Kernel& kernel, [[maybe_unused]] int32_t index) {
    TORCHETTE_LOG(Error, "%s writes to value %d, which is a constant or has no memory", kernel.name,
                  static_cast<int>(index));
    return Error::InvalidProgram;
  }

  Error move(int32_t from, int32_t to, Instruction* out) {
    TORCHETTE_TRY(in_range(from));
    TORCHETTE_TRY(in_range(to));
    m_.flags(from) |= kUsed;
    m_.flags(to) |= kWritten;
    const Value &source = m_.value(from), &target = m_.value(to);
    bool fits = is_number(source) && is_number(target);
    if (source.is_tensor() && target.is_tensor())
      fits = source.to_tensor().scalar_type() == target.to_tensor().scalar_type() &&
             (m_.flags(to) & kConstant) == 0;
    TORCHETTE_CHECK(fits, InvalidProgram, "value %d is moved to %d, which is of another kind",
                    static_cast<int>(from), static_cast<int>(to));
    Control* control;
    TORCHETTE_TRY(make_control(Control::Kind::Move, &control, out));
    control->a = from;
    control->b = to;
    return Error::Ok;
  }

  Error delegate_call(const Table& args, Instruction* out) {
    const auto index = args.get<int32_t>(schema::DelegateCall::kDelegateIndex);
    const size_t count = plan_.tables(schema::ExecutionPlan::kDelegates).size();
    TORCHETTE_CHECK(static_cast<size_t>(index) < count, InvalidProgram,
                    "delegate %d is called, there are %zu", static_cast<int>(index), count);
    const Span<const int32_t> indices = args.vector<int32_t>(schema::DelegateCall::kArgs);
    Control* control;
    TORCHETTE_TRY(make_control(Control::Kind::Delegate, &control, out));
    TORCHETTE_TRY(spend(indices.size()));
    Span<Value*> values;
    TORCHETTE_TRY(allocate(indices.size(), &values));
    for (size_t i = 0; i < indices.size(); ++i) {
      TORCHETTE_TRY(in_range(indices[i]));
      m_.flags(indices[i]) |= kUsed | kWritten;
      TORCHETTE_CHECK((m_.flags(indices[i]) & kUnbacked) == 0, InvalidProgram,
                      "argument %zu of a delegate has no memory", i);
      values[i] = &m_.value(indices[i]);
    }
    control->a = index;
    control->delegate_arguments = values;
    return Error::Ok;
  }

  /// Last, since backends may take their time and must be destroyed again.
  Error delegates() {
    const Tables records = plan_.tables(schema::ExecutionPlan::kDelegates);
    Span<Delegate> all;
    TORCHETTE_TRY(allocate(records.size(), &all));
    for (size_t i = 0; i < all.size(); ++i) {
      const Table record = records[i];
      const char* id = record.string(schema::BackendDelegate::kId).data();
      const Table reference = record.table(schema::BackendDelegate::kProcessed);
      const Tables options = record.tables(schema::BackendDelegate::kCompileSpecs);
      const size_t count = options.size();
      TORCHETTE_TRY(spend(count));
      Span<CompileSpec> specs;
      TORCHETTE_TRY(allocate(count, &specs));
      for (size_t k = 0; k < count; ++k) {
        const Table option = options[k];
        specs[k] = {option.string(schema::CompileSpec::kKey).data(),
                    option.vector<uint8_t>(schema::CompileSpec::kValue)};
      }
      TORCHETTE_TRY(intact("delegate", i));
      BackendInterface* backend = get_backend_class(id);
      TORCHETTE_CHECK(backend != nullptr && backend->is_available(), NotSupported,
                      "the method needs the backend %s, which is not %s", id,
                      backend == nullptr ? "registered" : "available on this device");
      Delegate& made = all[i];
      new (&made) Delegate();
      m_.delegates_ = {all.data(), i + 1};
      TORCHETTE_TRY(program_.load_delegate_data(reader_, reference, id, &made.processed));
      BackendInitContext context(&arena_, plan_.string(schema::ExecutionPlan::kName).data(), &program_,
                                 m_.external_, m_);
      const Result<DelegateHandle*> handle = backend->init(context, &made.processed, {specs.data(), count});
      if (!handle.ok()) {
        TORCHETTE_LOG(Error, "the backend %s refused delegate %zu", id, i);
        return handle.error();
      }
      made.backend = backend;
      made.handle = *handle;
    }
    return Error::Ok;
  }

  static constexpr Rules kRules{kUsed, kWritten, kUnbacked, kConstant};
  static uint32_t rule_of(char code) { return kRules.of[static_cast<uint8_t>(code) % kCodes]; }

  Method& m_;
  const Program& program_;
  Reader& reader_;
  Table plan_;
  Tables records_;  // of the values
  CursorOf<schema::EValue> entry_;
  CursorOf<schema::Tensor> tensor_;
  CursorOf<schema::AllocationDetails> allocation_;
  MemoryAllocator& arena_;
  size_t list_budget_;
  Span<const Kernel*> kernels_;
  TensorInfo last_[2];                     // tensors read: one whose sizes may change, one whose sizes stay
  StridesType* shared_strides_ = nullptr;  // of tensors like the latter
  unsigned unbacked_;                      // of the kernel call that is judged: not 0 where an argument is
  bool defines_last_;                      // and whether its last argument is the view that becomes backed
  bool first_ = true;                      // of the walks over the instructions
  bool unsure_ = false;  // whether the verdict on an argument depends on instructions that come later
};

#if TORCHETTE_EVENT_TRACER
Result<Method> Program::load(const char* method_name, MemoryManager* memory_manager,
                             const NamedDataMap* external, EventTracer* event_tracer) const {
  if (event_tracer != nullptr) event_tracer->create_event_block("Default");
  const EventTracerProfileScope scope(event_tracer, "Method::init");
#else
Result<Method> Program::load(const char* method_name, MemoryManager* memory_manager,
                             const NamedDataMap* external) const {
#endif
  const Result<size_t> plan = find_plan(method_name);
  if (!plan.ok()) return plan.error();
  TORCHETTE_CHECK(memory_manager != nullptr && memory_manager->method_allocator() != nullptr, InvalidArgument,
                  "a method needs a method allocator");
  Result<Method> method{Method(this, *plan, memory_manager, external)};
#if TORCHETTE_EVENT_TRACER
  if (event_tracer != nullptr) method->trace(event_tracer);
#endif
  Reader reader = this->reader();
  const Error error = Method::Loading(*method, *this, reader).run();
  if (error != Error::Ok) method.fail(error);
  return method;
}

Error Method::load_state() {
  for (size_t i = 0; i < extents_.size(); ++i)
    if (extents_[i] != 0) memset(memory_->planned_memory()->buffers()[i].data(), 0, extents_[i]);
  Reader reader = program_->reader();
  const Tables records = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kValues);
  for (size_t i = 0; i < values_.size(); ++i) {
    if ((flags_[i] & kInitialised) == 0) continue;
    TORCHETTE_TRY(
        load_initial(reader, records[i].table(schema::EValue::kVal), *values_[i].to_tensor().unsafe_impl()));
  }
  return Error::Ok;
}

Error Method::load_initial(Reader& reader, const Table& record, const TensorImpl& tensor) const {
  const Table extra = record.table(schema::Tensor::kExtraTensorInfo);
  const size_t nbytes = tensor.capacity * element_size(tensor.type);
  if (is_external(extra)) {
    void* data;
    TORCHETTE_TRY(find_external(extra, tensor, &data));
    if (nbytes != 0) memcpy(tensor.data, data, nbytes);
    return Error::Ok;
  }
  const auto place = extra.get<uint64_t>(schema::ExtraTensorInfo::kMutableDataSegmentsIdx);
  const auto index = record.get<uint32_t>(schema::Tensor::kDataBufferIdx);
  const Tables parts = Table::root(&reader).tables(schema::Program::kMutableDataSegments);
  TORCHETTE_CHECK(place < parts.size(), InvalidProgram,
                  "a tensor starts with data of a mutable segment that is not there");
  const Table part = parts[static_cast<size_t>(place)];
  const Span<const uint64_t> offsets = part.vector<uint64_t>(schema::SubsegmentOffsets::kOffsets);
  const size_t segment = part.get<uint32_t>(schema::SubsegmentOffsets::kSegmentIndex);
  size_t start, size;
  TORCHETTE_TRY(program_->find_segment(reader, segment, &start, &size));
  const uint64_t offset = reader.ok() && index < offsets.size() ? offsets[index] : UINT64_MAX;
  TORCHETTE_CHECK(offset <= size && nbytes <= size - static_cast<size_t>(offset), InvalidProgram,
                  "initial data %u of %zu bytes is not inside of its segment", index, nbytes);
  return program_->loader_->load_into(start + static_cast<size_t>(offset), nbytes,
                                      {DataLoader::SegmentInfo::Type::Mutable, segment}, tensor.data);
}

Error Method::find_external(const Table& extra, const TensorImpl& tensor, void** data) const {
  const char* name = extra.string(schema::ExtraTensorInfo::kFullyQualifiedName).data();
  TORCHETTE_CHECK(external_ != nullptr, InvalidExternalData,
                  "the data of %s are in another file (.ptd), and none is given", name);
  return external_->get_tensor(name, tensor, data);
}

Error Method::reset() {
  TORCHETTE_TRY(reset_execution());
  return load_state();
}

Result<Tensor> Method::get_attribute(const char* name) const {
  Reader reader = program_->reader();
  const Tables records = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kValues);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].is_tensor()) continue;
    const Table extra = records[i].table(schema::EValue::kVal).table(schema::Tensor::kExtraTensorInfo);
    if (strcmp(extra.string(schema::ExtraTensorInfo::kFullyQualifiedName).data(), name) == 0)
      return values_[i].to_tensor();
  }
  return Error::NotFound;
}

Table Method::find_record(Reader& reader, size_t at, size_t* chain, size_t* index) const {
  const Tables chains = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kChains);
  for (*chain = 0, *index = at;; ++*chain) {
    const Tables records = chains[*chain].tables(schema::Chain::kInstructions);
    if (*index < records.size()) return records[*index];
    *index -= records.size();
  }
}

/// Says which instruction it was, after what the kernel has said.
Error Method::explain(Error error) const {
#if TORCHETTE_LOG_LEVEL >= 2
  Reader reader = program_->reader();
  size_t chain, index;
  const Table record = find_record(reader, next_ - 1, &chain, &index);
  if (record.get<schema::InstructionArguments>(schema::Instruction::kInstrArgsType) ==
      schema::InstructionArguments::KernelCall) {
    const auto op = record.table(schema::Instruction::kInstrArgs).get<int32_t>(schema::KernelCall::kOpIndex);
    const Tables operators = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kOperators);
    const Table called = operators[static_cast<size_t>(op)];
    TORCHETTE_LOG(Error, "instruction %zu (%s.%s)", next_ - 1, called.string(schema::Operator::kName).data(),
                  called.string(schema::Operator::kOverload).data());
  } else {
    TORCHETTE_LOG(Error, "instruction %zu", next_ - 1);
  }
#endif
  return error;
}

}  // namespace torchette
