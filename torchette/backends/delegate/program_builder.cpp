// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/delegate/program_builder.h"

#include <cstring>
#include <new>

#include "torchette/runtime/platform.h"

namespace torchette {
namespace delegate {

namespace fb = schema;

namespace {

constexpr size_t kAlignment = 64;  // of planned tensors
constexpr DimOrderType kRowMajor[kMaxRank] = {0, 1, 2, 3, 4, 5, 6, 7};

}  // namespace

Error TensorValue::set(Span<const uint32_t> new_sizes, ScalarType new_type) {
  TORCHETTE_CHECK(new_sizes.size() <= kMaxRank, DelegateInvalidCompatibility,
                  "a tensor of a payload has %zu dimensions, at most %zu are supported", new_sizes.size(),
                  kMaxRank);
  for (size_t d = 0; d < new_sizes.size(); ++d) {
    TORCHETTE_CHECK(new_sizes[d] <= INT32_MAX, DelegateInvalidCompatibility,
                    "dimension %zu of a payload's tensor has the size %u", d, new_sizes[d]);
    sizes[d] = static_cast<SizesType>(new_sizes[d]);
  }
  StridesType strides[kMaxRank];
  const Result<int32_t> count = dense_strides({sizes, new_sizes.size()}, kRowMajor, strides);
  TORCHETTE_CHECK(count.ok(), DelegateInvalidCompatibility, "a payload's tensor has 2^31 elements or more");
  numel = static_cast<size_t>(*count);
  rank = static_cast<uint8_t>(new_sizes.size());
  type = new_type;
  return Error::Ok;
}

ScratchAllocator::~ScratchAllocator() {
  while (blocks_ != nullptr) {
    Block* const next = blocks_->next;
    platform_free(blocks_);
    blocks_ = next;
  }
}

void* ScratchAllocator::allocate(size_t size, size_t alignment) {
  constexpr size_t kBlockSize = size_t{1} << 16;
  const auto padding = [&] { return (0 - reinterpret_cast<uintptr_t>(current_)) & (alignment - 1); };
  if (size > SIZE_MAX / 2) return nullptr;
  if (free_size() < size + alignment) {
    const size_t needed = sizeof(Block) + size + alignment;
    const size_t bytes = needed > kBlockSize ? needed : kBlockSize;
    auto* const block = static_cast<uint8_t*>(platform_allocate(bytes));
    if (block == nullptr) return other_.allocate(size, alignment);
    blocks_ = new (block) Block{blocks_};
    begin_ = block;
    current_ = block + sizeof(Block);
    end_ = block + bytes;
  }
  uint8_t* const result = current_ + padding();
  current_ = result + size;
  return result;
}

// --- Values

Entry* ProgramBuilder::add(const Entry& entry) {
  void* const memory = allocate<Entry>();
  if (memory == nullptr) return nullptr;
  auto* const added = new (memory) Entry(entry);
  added->index = static_cast<int32_t>(value_count_++);
  *last_value_ = added;
  last_value_ = &added->next;
  return added;
}

const Entry* ProgramBuilder::entry(TensorValue* tensor) {
  if (tensor->entry != nullptr) return tensor->entry;
  Entry entry;
  entry.type = fb::KernelTypes::Tensor;
  entry.tensor = tensor;
  return tensor->entry = add(entry);
}

const Entry* ProgramBuilder::number(const Argument& value) {
  Entry entry;
  entry.type = value.type_;
  entry.integer = value.integer_;
  entry.real = value.real_;
  return add(entry);
}

int32_t ProgramBuilder::index_of(const Argument& argument) {
  if (argument.entry_ != nullptr) return argument.entry_->index;
  if (argument.type_ == fb::KernelTypes::Tensor) {
    const Entry* const added = entry(argument.tensor_);
    return added == nullptr ? 0 : added->index;
  }
  int32_t* cached = nullptr;
  if (argument.type_ == fb::KernelTypes::NONE) cached = &none_;
  if (argument.type_ == fb::KernelTypes::Int && argument.integer_ >= 0 && argument.integer_ < kMaxCached)
    cached = &integers_[argument.integer_];
  if (cached != nullptr && *cached != 0) return *cached - 1;
  const Entry* const added = number(argument);
  if (added == nullptr) return 0;
  if (cached != nullptr) *cached = added->index + 1;
  return added->index;
}

const Entry* ProgramBuilder::integers(Span<const int64_t> numbers) {
  auto* const items = allocate<Argument>(numbers.size());
  if (items == nullptr) return nullptr;
  for (size_t i = 0; i < numbers.size(); ++i) new (items + i) Argument(numbers[i]);
  return integers({items, numbers.size()});
}

const Entry* ProgramBuilder::integers(Span<const Argument> numbers) {
  auto* const items = allocate<int32_t>(numbers.size());
  if (items == nullptr) return nullptr;
  for (size_t i = 0; i < numbers.size(); ++i) items[i] = index_of(numbers[i]);
  Entry entry;
  entry.type = fb::KernelTypes::IntList;
  entry.items = items;
  entry.count = static_cast<uint32_t>(numbers.size());
  return add(entry);
}

const Entry* ProgramBuilder::tensor_list(fb::KernelTypes type, TensorValue* const* tensors, size_t count) {
  auto* const items = allocate<int32_t>(count);
  auto** const kept = allocate<TensorValue*>(count);
  if (items == nullptr || kept == nullptr) return nullptr;
  Entry list;
  for (size_t i = 0; i < count; ++i) {
    items[i] = -1;
    if (tensors[i] == nullptr) continue;
    kept[list.count++] = tensors[i];
    items[i] = index_of(Argument(tensors[i]));
  }
  list.type = type;
  list.items = items;
  list.tensors = kept;
  list.tensor_count = list.count;
  list.count = static_cast<uint32_t>(count);
  return add(list);
}

const Entry* ProgramBuilder::tensors(TensorValue* const* tensors, size_t count) {
  return tensor_list(fb::KernelTypes::TensorList, tensors, count);
}

const Entry* ProgramBuilder::optional_tensors(TensorValue* const* tensors, size_t count) {
  return tensor_list(fb::KernelTypes::OptionalTensorList, tensors, count);
}

// --- Calls

Error ProgramBuilder::find(const Kernel& kernel, uint32_t* op) {
  *op = 0;
  for (const Operator* it = operators_; it != nullptr; it = it->next, ++*op)
    if (it->kernel == &kernel) return Error::Ok;
  void* const memory = allocate<Operator>();
  if (memory == nullptr) return Error::MemoryAllocationFailed;
  auto* const added = new (memory) Operator{&kernel, nullptr};
  *last_operator_ = added;
  last_operator_ = &added->next;
  ++operator_count_;
  return Error::Ok;
}

void ProgramBuilder::use(TensorValue* tensor, Call* call) {
  TensorValue& owner = *tensor->owner();
  if (owner.first == 0) {
    owner.first = static_cast<uint32_t>(call_count_);
    if (owner.role == Role::Dynamic && owner.rank == 0) owner.role = Role::Planned;
    if (owner.role == Role::Dynamic) {
      *last_dynamic_ = &owner;
      last_dynamic_ = &owner.next;
    } else if (owner.role == Role::Planned || owner.role == Role::State) {
      *last_planned_ = &owner;
      last_planned_ = &owner.next;
    }
  }
  owner.last = static_cast<uint32_t>(call_count_);
  owner.last_call = tensor->last_call = call;
}

Error ProgramBuilder::call(const char* kernel, std::initializer_list<Argument> arguments) {
  const Kernel* const found = find_kernel(kernel);
  TORCHETTE_CHECK(found != nullptr, NotSupported,
                  "a payload needs the kernel %s, which this build does not have", kernel);
  return call(*found, {arguments.begin(), arguments.size()});
}

Error ProgramBuilder::call(const Kernel& kernel, Span<const Argument> arguments) {
  uint32_t op;
  TORCHETTE_TRY(find(kernel, &op));
  ++call_count_;
  auto* const indices = allocate<int32_t>(arguments.size());
  void* const memory = allocate<Call>();
  TORCHETTE_CHECK(!is_full_, MemoryAllocationFailed, "cannot allocate the nodes of a payload");
  auto* const made = new (memory) Call{
      op,     static_cast<uint32_t>(arguments.size()), indices, debug_handle_, TapLayout::None, 0, nullptr,
      nullptr};
  const char* code = kernel.signature;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    indices[i] = index_of(argument);
    code += *code == '?';
    if (argument.tensor_ != nullptr && is_written(code)) argument.tensor_->writer = made;
    code += *code != 0;
    if (argument.tensor_ != nullptr) use(argument.tensor_, made);
    if (argument.entry_ != nullptr)
      for (uint32_t k = 0; k < argument.entry_->tensor_count; ++k) use(argument.entry_->tensors[k], made);
  }
  TORCHETTE_CHECK(!is_full_, MemoryAllocationFailed, "cannot allocate the nodes of a payload");
  *last_call_ = made;
  last_call_ = &made->next;
  return Error::Ok;
}

void ProgramBuilder::tap(const TensorValue* tensor, uint32_t handle, TapLayout layout) {
  if (tensor->writer == nullptr) return;
  tensor->writer->tap = layout;
  tensor->writer->tap_handle = handle;
}

void ProgramBuilder::assign_offset(TensorValue* tensor, TensorValue** live) {
  const uint64_t bytes = uint64_t{tensor->numel} * element_size(tensor->type);
  tensor->size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  TensorValue** link = live;
  while (*link != nullptr) {
    const TensorValue& other = **link;
    if (other.last < tensor->first && other.role != Role::State && !other.is_output) {
      *link = other.next_in_list;
      continue;
    }
    if (tensor->offset + tensor->size <= other.offset) break;
    const uint64_t end = other.offset + other.size;
    if (end > tensor->offset) tensor->offset = end;
    link = &(*link)->next_in_list;
  }
  tensor->next_in_list = *link;
  *link = tensor;
  if (tensor->offset + tensor->size > planned_size_) planned_size_ = tensor->offset + tensor->size;
}

/// Adds each dynamic tensor to the list of its last call, which frees it.
void ProgramBuilder::free_unused() {
  for (TensorValue* tensor = dynamic_; tensor != nullptr; tensor = tensor->next) {
    if (tensor->is_output) continue;
    tensor->next_in_list = tensor->last_call->freed;
    tensor->last_call->freed = tensor;
    ++free_count_;
  }
}

/// Makes planned tensors, their views and outputs dynamic. A view then has its own memory, which the kernel
/// that made the view fills. Tensors of at most one element, which include those of rank 0, stay planned.
void ProgramBuilder::make_dynamic() {
  const auto is_large = [](const TensorValue& owner) {
    return owner.numel > 1 && (owner.role == Role::Planned || owner.role == Role::Output);
  };
  for (Entry* entry = values_; entry != nullptr; entry = entry->next) {
    TensorValue* const tensor = entry->tensor;
    if (tensor == nullptr || tensor->role != Role::View || tensor->last_call == nullptr) continue;
    if (!is_large(*tensor->base)) continue;
    tensor->role = Role::Dynamic;
    tensor->next = dynamic_;
    dynamic_ = tensor;
  }
  for (Entry* entry = values_; entry != nullptr; entry = entry->next)
    if (entry->tensor != nullptr && entry->tensor->role == Role::Output && is_large(*entry->tensor))
      entry->tensor->role = Role::Dynamic;  // nothing frees an output
  last_planned_ = &planned_;
  for (TensorValue *tensor = planned_, *next; tensor != nullptr; tensor = next) {
    next = tensor->next;
    if (is_large(*tensor)) {
      tensor->role = Role::Dynamic;
      tensor->next = dynamic_;
      dynamic_ = tensor;
    } else {
      *last_planned_ = tensor;
      last_planned_ = &tensor->next;
    }
  }
  *last_planned_ = nullptr;
}

/// Assigns to each tensor the lowest offset that is free during its lifetime. States have the first offsets
/// and are always live. `live` is sorted by offset.
void ProgramBuilder::plan() {
  TensorValue* live = nullptr;
  planned_size_ = 0;
  for (const bool is_state : {true, false}) {
    for (TensorValue* tensor = planned_; tensor != nullptr; tensor = tensor->next) {
      if ((tensor->role == Role::State) != is_state) continue;
      tensor->offset = 0;
      assign_offset(tensor, &live);
    }
  }
}

// --- The file (torchette/schema/program.fbs)

/// Writes a FlatBuffer from its start to its end; without memory it counts the bytes.
class ProgramBuilder::Writer {
 public:
  explicit Writer(uint8_t* bytes) : bytes_(bytes) {}
  size_t at() const { return at_; }

  template <typename T>
  void put(T value) {
    set(at_, value);
    at_ += sizeof(T);
  }
  template <typename T>
  void set(size_t where, T value) {
    if (bytes_ != nullptr) memcpy(bytes_ + where, &value, sizeof(T));
  }
  void put_bytes(const void* data, size_t size) {
    if (bytes_ != nullptr && size != 0) memcpy(bytes_ + at_, data, size);
    at_ += size;
  }
  /// Adds zeros until `behind` bytes from here is a multiple of `alignment`.
  void align(size_t alignment, size_t behind = 0) {
    while ((at_ + behind) % alignment != 0) put<uint8_t>(0);
  }
  /// Sets the offset field at `where` to the current position.
  void refer(size_t where) { set(where, static_cast<uint32_t>(at_ - where)); }

  struct Field {
    uint16_t slot, at;  // of the vtable, of the table
  };
  size_t vtable(uint16_t size, std::initializer_list<Field> fields) {
    const size_t place = at_;
    uint16_t end = 4;
    for (const Field& field : fields)
      end = field.slot + 2 > end ? static_cast<uint16_t>(field.slot + 2) : end;
    put(end);
    put(size);
    for (uint16_t slot = 4; slot < end; slot = static_cast<uint16_t>(slot + 2)) {
      uint16_t found = 0;
      for (const Field& field : fields)
        if (field.slot == slot) found = field.at;
      put(found);
    }
    return place;
  }
  /// Begins a table; the caller writes the fields. Returns its position.
  size_t table(size_t vtable) {
    const size_t place = at_;
    put(static_cast<int32_t>(place - vtable));
    return place;
  }
  /// A vector of offsets that refer() sets. Returns the position of the first.
  size_t offsets(size_t count) {
    put(static_cast<uint32_t>(count));
    const size_t first = at_;
    for (size_t i = 0; i < count; ++i) put(uint32_t{0});
    return first;
  }
  void string(const char* text, size_t size) {
    put(static_cast<uint32_t>(size));
    put_bytes(text, size);
    put<uint8_t>(0);
    align(4);
  }

 private:
  uint8_t* bytes_;
  size_t at_ = 0;
};

namespace {

/// "aten::add.out" is the operator aten::add with the overload out.
size_t name_size(const char* full_name) {
  const char* const dot = strchr(full_name, '.');
  return dot == nullptr ? strlen(full_name) : static_cast<size_t>(dot - full_name);
}

}  // namespace

void name_of_constant(int32_t index, char (&name)[9]) {
  for (size_t i = 0; i < 8; ++i)
    name[i] = static_cast<char>('a' + (static_cast<uint32_t>(index) >> (28 - 4 * i) & 15));
  name[8] = 0;
}

int32_t index_of_constant(const char* name) {
  uint32_t index = 0;
  for (size_t i = 0; i < 8 && name[i] >= 'a' && name[i] <= 'p'; ++i)
    index = index << 4 | static_cast<uint32_t>(name[i] - 'a');
  return static_cast<int32_t>(index);
}

/// The vtables of all tables, which come first.
struct ProgramBuilder::Vtables {
  explicit Vtables(Writer& w) {
    using P = fb::ExecutionPlan;
    using T = fb::Tensor;
    using A = fb::AllocationDetails;
    using X = fb::ExtraTensorInfo;
    program = w.vtable(8, {{fb::Program::kExecutionPlan, 4}});
    plan = w.vtable(32, {{P::kName, 4},
                         {P::kValues, 8},
                         {P::kInputs, 12},
                         {P::kOutputs, 16},
                         {P::kChains, 20},
                         {P::kOperators, 24},
                         {P::kNonConstBufferSizes, 28}});
    value = w.vtable(12, {{fb::EValue::kVal, 4}, {fb::EValue::kValType, 8}});
    none = w.vtable(4, {});
    number = w.vtable(12, {{fb::Int::kIntVal, 4}});
    one = w.vtable(8, {{fb::IntList::kItems, 4}});
    caller = w.vtable(16, {{T::kSizes, 4}, {T::kDimOrder, 8}, {T::kScalarType, 12}, {T::kShapeDynamism, 13}});
    planned = w.vtable(20, {{T::kSizes, 4},
                            {T::kDimOrder, 8},
                            {T::kScalarType, 12},
                            {T::kShapeDynamism, 13},
                            {T::kAllocationInfo, 16}});
    constant = w.vtable(20, {{T::kSizes, 4},
                             {T::kDimOrder, 8},
                             {T::kScalarType, 12},
                             {T::kShapeDynamism, 13},
                             {T::kExtraTensorInfo, 16}});
    state = w.vtable(24, {{T::kSizes, 4},
                          {T::kDimOrder, 8},
                          {T::kScalarType, 12},
                          {T::kShapeDynamism, 13},
                          {T::kAllocationInfo, 16},
                          {T::kExtraTensorInfo, 20}});
    free = w.vtable(8, {{fb::FreeCall::kValueIndex, 4}});
    place = w.vtable(16, {{A::kMemoryId, 4}, {A::kMemoryOffsetLow, 8}, {A::kMemoryOffsetHigh, 12}});
    extra = w.vtable(12, {{X::kFullyQualifiedName, 4}, {X::kLocation, 8}});
    op = w.vtable(12, {{fb::Operator::kName, 4}, {fb::Operator::kOverload, 8}});
    chain = w.vtable(8, {{fb::Chain::kInstructions, 4}});
    instruction = w.vtable(12, {{fb::Instruction::kInstrArgs, 4}, {fb::Instruction::kInstrArgsType, 8}});
    call = w.vtable(12, {{fb::KernelCall::kOpIndex, 4}, {fb::KernelCall::kArgs, 8}});
    w.align(4);
  }

  size_t program, plan, value, none, op, chain, instruction, call, free;
  size_t number;                            // an Int or a Double
  size_t one;                               // a Bool, a String or a list
  size_t caller, planned, constant, state;  // a Tensor
  size_t place, extra;
};

void ProgramBuilder::emit_tensor(Writer& w, const Vtables& of, const Entry& entry) {
  const TensorValue& tensor = *entry.tensor;
  const TensorValue& owner = *tensor.owner();
  const bool is_state = owner.role == Role::State;
  const bool has_data = is_state || owner.role == Role::Constant;
  const bool is_planned = is_state || owner.role == Role::Planned;
  const size_t record = w.table(is_state     ? of.state
                                : has_data   ? of.constant
                                : is_planned ? of.planned
                                             : of.caller);
  w.put(uint32_t{0});
  w.put(uint32_t{0});
  w.put(static_cast<uint8_t>(tensor.type));
  w.put(static_cast<uint8_t>(has_data                      ? TensorShapeDynamism::STATIC
                             : owner.role == Role::Dynamic ? TensorShapeDynamism::DYNAMIC_UNBOUND
                                                           : TensorShapeDynamism::DYNAMIC_BOUND));
  w.put(uint16_t{0});
  if (is_planned) w.put(uint32_t{0});
  if (has_data) w.put(uint32_t{0});
  if (is_planned) {
    w.refer(record + 16);
    w.table(of.place);
    w.put(uint32_t{1});
    w.put(static_cast<uint32_t>(owner.offset));
    w.put(static_cast<uint32_t>(owner.offset >> 32));
  }
  if (has_data) {
    char name[9];
    name_of_constant(entry.index, name);
    w.refer(record + (is_state ? 20 : 16));
    const size_t extra = w.table(of.extra);
    w.put(uint32_t{0});
    w.put(static_cast<uint32_t>(fb::TensorDataLocation::EXTERNAL));
    w.refer(extra + 4);
    w.string(name, 8);
  }
  w.refer(record + 4);
  w.put(uint32_t{tensor.rank});
  w.put_bytes(tensor.sizes, tensor.rank * sizeof(SizesType));
  w.refer(record + 8);
  w.put(uint32_t{tensor.rank});
  w.put_bytes(tensor.dim_order == nullptr ? kRowMajor : tensor.dim_order, tensor.rank);
  w.align(4);
}

void ProgramBuilder::emit_value(Writer& w, const Vtables& of, const Entry& entry) {
  if (entry.type == fb::KernelTypes::NONE) {
    w.table(of.none);
    return;
  }
  const size_t value = w.table(of.value);
  w.put(uint32_t{0});
  w.put(static_cast<uint32_t>(entry.type));  // one byte, and padding
  if (entry.type == fb::KernelTypes::Int || entry.type == fb::KernelTypes::Double) w.align(8, 4);
  w.refer(value + 4);
  const auto to_items = [&] {  // of 8 bytes
    const size_t list = w.table(of.one);
    w.put(uint32_t{0});
    w.align(8, 4);
    w.refer(list + 4);
    w.put(entry.count);
  };
  switch (entry.type) {
    case fb::KernelTypes::Int:
      w.table(of.number);
      w.put(entry.integer);
      break;
    case fb::KernelTypes::Double:
      w.table(of.number);
      w.put(entry.real);
      break;
    case fb::KernelTypes::Bool:
      w.table(of.one);
      w.put(static_cast<uint32_t>(entry.integer));
      break;
    case fb::KernelTypes::String:
      w.table(of.one);
      w.put(uint32_t{4});
      w.string(static_cast<const char*>(entry.data), entry.count);
      break;
    case fb::KernelTypes::BoolList:
      w.table(of.one);
      w.put(uint32_t{4});
      w.put(entry.count);
      w.put_bytes(entry.data, entry.count);
      w.align(4);
      break;
    case fb::KernelTypes::DoubleList:
      to_items();
      w.put_bytes(entry.data, entry.count * sizeof(double));
      break;
    case fb::KernelTypes::TensorList:
    case fb::KernelTypes::OptionalTensorList:
      w.table(of.one);
      w.put(uint32_t{4});
      w.put(entry.count);
      w.put_bytes(entry.items, entry.count * sizeof(int32_t));
      break;
    case fb::KernelTypes::IntList:
      to_items();
      for (uint32_t i = 0; i < entry.count; ++i) w.put(int64_t{entry.items[i]});
      break;
    default:
      emit_tensor(w, of, entry);
  }
}

void ProgramBuilder::emit_calls(Writer& w, const Vtables& of, size_t plan) const {
  w.refer(plan + 20);
  const size_t to_chain = w.offsets(1);
  w.refer(to_chain);
  const size_t chain = w.table(of.chain);
  w.put(uint32_t{0});
  w.refer(chain + 4);
  size_t to_instruction = w.offsets(instruction_count());
  const auto begin = [&](fb::InstructionArguments kind, size_t vtable) {
    w.refer(to_instruction);
    to_instruction += 4;
    w.table(of.instruction);
    w.put(uint32_t{8});  // behind this field and the next
    w.put(static_cast<uint32_t>(kind));
    w.table(vtable);
  };
  for (const Call* call = calls_; call != nullptr; call = call->next) {
    begin(fb::InstructionArguments::KernelCall, of.call);
    w.put(call->op);
    w.put(uint32_t{4});
    w.put(call->count);
    w.put_bytes(call->arguments, call->count * sizeof(int32_t));
    for (const TensorValue* tensor = call->freed; tensor != nullptr; tensor = tensor->next_in_list) {
      begin(fb::InstructionArguments::FreeCall, of.free);
      w.put(tensor->entry->index);
    }
  }
  w.refer(plan + 24);
  size_t to_operator = w.offsets(operator_count_);
  for (const Operator* it = operators_; it != nullptr; it = it->next, to_operator += 4) {
    const char* const name = it->kernel->name;
    const size_t size = name_size(name);
    const char* const overload = name[size] == '.' ? name + size + 1 : "";
    w.refer(to_operator);
    const size_t record = w.table(of.op);
    w.put(uint32_t{0});
    w.put(uint32_t{0});
    w.refer(record + 4);
    w.string(name, size);
    w.refer(record + 8);
    w.string(overload, strlen(overload));
  }
}

void ProgramBuilder::emit(Writer& w, Span<const Entry* const> inputs,
                          Span<const Entry* const> outputs) const {
  const size_t to_root = w.at();
  w.put(uint32_t{0});
  w.put_bytes(fb::kFileIdentifier, 4);
  const Vtables of(w);
  w.refer(to_root);
  const size_t program = w.table(of.program);
  w.put(uint32_t{0});
  w.refer(program + 4);
  const size_t to_plan = w.offsets(1);
  w.refer(to_plan);
  const size_t plan = w.table(of.plan);
  for (size_t i = 0; i < 7; ++i) w.put(uint32_t{0});
  w.refer(plan + 4);
  w.string(kMethodName, strlen(kMethodName));
  const auto put_indices = [&w](size_t where, Span<const Entry* const> values) {
    w.refer(where);
    w.put(static_cast<uint32_t>(values.size()));
    for (const Entry* value : values) w.put(value->index);
  };
  put_indices(plan + 12, inputs);
  put_indices(plan + 16, outputs);
  w.refer(plan + 8);
  size_t to_value = w.offsets(value_count_);
  for (const Entry* entry = values_; entry != nullptr; entry = entry->next, to_value += 4) {
    w.refer(to_value);
    emit_value(w, of, *entry);
  }
  emit_calls(w, of, plan);
  w.align(8, 4);
  w.refer(plan + 28);
  w.put(uint32_t{2});
  w.put(int64_t{0});
  w.put(static_cast<int64_t>(planned_size_));
}

Error ProgramBuilder::write(MemoryAllocator& allocator, Span<const Entry* const> inputs,
                            Span<const Entry* const> outputs, uint64_t max_planned,
                            Span<const uint8_t>* program) {
  TORCHETTE_CHECK(!is_full_, MemoryAllocationFailed, "cannot allocate the values of a payload");
  uint64_t output_size = 0;
  for (const Entry* value : outputs) {
    if (value->tensor == nullptr) continue;
    TensorValue& owner = *value->tensor->owner();
    owner.is_output = true;
    if (owner.role == Role::Output) output_size += uint64_t{owner.numel} * element_size(owner.type);
  }
  plan();
  if (planned_size_ + output_size > max_planned) {
    make_dynamic();
    plan();
  }
  TORCHETTE_CHECK(planned_size_ <= SIZE_MAX / 2, MemoryAllocationFailed,
                  "the values of a payload need %llu bytes", static_cast<unsigned long long>(planned_size_));
  free_unused();
  Writer counter(nullptr);
  emit(counter, inputs, outputs);
  auto* const bytes = static_cast<uint8_t*>(allocator.allocate(counter.at(), 16));
  TORCHETTE_CHECK(bytes != nullptr, MemoryAllocationFailed, "cannot allocate a program of %zu bytes",
                  counter.at());
  Writer writer(bytes);
  emit(writer, inputs, outputs);
  *program = {bytes, writer.at()};
  return Error::Ok;
}

}  // namespace delegate
}  // namespace torchette
