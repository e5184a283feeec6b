// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/host.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <new>

#include "torchette/backends/vulkan/host_kernels.h"
#include "torchette/runtime/kernel_registry.h"

namespace torchette {
namespace vulkan {
namespace {

using flat::Table;

constexpr DimOrderType kOrder[] = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr int kMostTemporaries = 26;
constexpr char kPrepack[] = "et_vk.prepack.default";
constexpr size_t kPerByte = 16;  // arguments for each byte of a payload, at most

struct Recipe {
  const char* name;
  const char* text;
};
constexpr Recipe kRecipes[] = {
#define HOST(name, text) {name, text},
#include "torchette/backends/vulkan/host.def"
#undef HOST
};

const char* recipe_of(const char* name) {
  for (const Recipe& it : kRecipes)
    if (strcmp(it.name, name) == 0) return it.text;
  return nullptr;
}

const Kernel* kernel_of(const std::string& name) {
  if (const Kernel* own = find_kernel_in(host_kernels(), {name.data(), name.size()}, {"", 0})) return own;
  return find_kernel(name.c_str());
}

/// The kernel of an operator that has one of its own: "aten.add.Tensor" is "aten::add.Tensor_out" or
/// "aten::add.out"; what only moves numbers is a copy.
const Kernel* own_kernel(const std::string& name) {
  const size_t space = name.find('.'), overload = name.find('.', space == name.npos ? space : space + 1);
  if (overload == name.npos) return nullptr;
  const std::string op = name.substr(0, space) + "::" + name.substr(space + 1, overload - space - 1);
  const std::string last = name.substr(overload + 1);
  for (const std::string& it :
       {op + "." + last + "_out", op + ".out", op + "_copy." + last + "_out", op + "_copy.out"})
    if (const Kernel* found = kernel_of(it)) return found;
  return nullptr;
}

/// Whether the kernel may write over its first argument.
bool is_in_place(const std::string& kernel) {
  for (const char* it :
       {"aten::copy.out", "aten::index_put.out", "aten::slice_scatter.out", "aten::select_scatter.out",
        "aten::scatter.src_out", "aten::scatter.value_out", "vulkan::index_copy.out"})
    if (kernel == it) return true;
  return false;
}

/// The next code of a signature; its letter, and whether it may be None.
struct Code {
  char letter;
  bool optional, written;
};
bool next_code(const char*& at, Code* out) {
  if (*at == 0) return false;
  out->optional = *at == '?';
  at += out->optional;
  out->letter = *at;
  out->written = is_written(at);
  ++at;
  return true;
}

/// What a tensor is on the processor, where halves are floats and whole numbers have 64 bits. False: there is
/// no such type. `stored`: what it is in the payload.
bool type_of(fb::VkDataType type, ScalarType* out, ScalarType* stored) {
  switch (type) {
    case fb::VkDataType::FLOAT32:
    case fb::VkDataType::FLOAT64:
    case fb::VkDataType::FLOAT16:
      *out = ScalarType::Float;
      *stored = type == fb::VkDataType::FLOAT16   ? ScalarType::Half
                : type == fb::VkDataType::FLOAT64 ? ScalarType::Double
                                                  : ScalarType::Float;
      return true;
    case fb::VkDataType::BOOL:
      *out = *stored = ScalarType::Bool;
      return true;
    case fb::VkDataType::UINT8:
      *out = *stored = ScalarType::Byte;
      return true;
    case fb::VkDataType::INT8:
      *out = *stored = ScalarType::Char;
      return true;
    case fb::VkDataType::INT32:
    case fb::VkDataType::INT64:
      *out = ScalarType::Long;
      *stored = type == fb::VkDataType::INT32 ? ScalarType::Int : ScalarType::Long;
      return true;
    default:
      return false;
  }
}

bool is_digit(char c) { return c >= '0' && c <= '9'; }
int digits(const char*& at) {
  int number = 0;
  while (is_digit(*at) && number < 1000) number = number * 10 + (*at++ - '0');
  return number;
}

}  // namespace

void* HostMemory::reallocate(void* old, size_t size) {
  std::free(old);
  if (size == 0 || size > SIZE_MAX / 2) return nullptr;
  return std::aligned_alloc(64, (size + 63) / 64 * 64);
}

/// What the stages of a recipe know: the call's arguments, results and temporaries.
struct Host::Stage {
  const char* name;
  uint32_t handle;
  Span<const int32_t> args;      // without the results
  std::vector<int32_t> results;  // slots
  int32_t last;                  // the slot of their list, or of the only one
  size_t rank;                   // of the first result
  ScalarType type;               // of the whole numbers that it is about
  int32_t temporaries[kMostTemporaries];
  // of the stage at hand
  bool is_constant = false;
  std::vector<Stored*> read, defined;

  Error refuse(const char* why) const {
    TORCHETTE_LOG(Error, "the processor cannot run Vulkan's %.80s: %s", name, why);
    return Error::NotSupported;
  }
};

Host::~Host() {
  for (Stored& it : tensors_)
    if (it.owns || it.dynamism == TensorShapeDynamism::OWNED) memory_.reallocate(it.data, 0);
  for (void* it : converted_) memory_.reallocate(it, 0);
}

void* Host::room(size_t bytes) {
  rooms_.emplace_back(new (std::nothrow) uint64_t[bytes / 8 + 1]);
  return rooms_.back().get();
}

int32_t Host::add(const Value& value) {
  values_.push_back(value);
  return static_cast<int32_t>(values_.size()) - 1;
}

Host::Stored* Host::make(ScalarType type, size_t rank) {
  tensors_.emplace_back();
  Stored& it = tensors_.back();
  it.data = nullptr;
  it.sizes = it.own_sizes;
  it.strides = it.own_strides;
  it.dim_order = kOrder;
  it.capacity = 0;
  it.numel = 0;
  it.dim = static_cast<uint8_t>(rank);
  it.type = type;
  it.dynamism = TensorShapeDynamism::OWNED;
  it.memory = &memory_;
  for (size_t d = 0; d < kMostDims; ++d) it.own_sizes[d] = 0, it.own_strides[d] = 1;
  if (rank == 0) {  // it never takes another size
    memset(it.own_room, 0, sizeof(it.own_room));
    it.data = it.own_room;
    it.capacity = 1;
    it.numel = 1;
    it.dynamism = TensorShapeDynamism::STATIC;
  }
  return &it;
}

Host::Stored* Host::stored(int32_t slot) const {
  const Value& value = values_[static_cast<size_t>(slot)];
  return value.is_tensor() ? static_cast<Stored*>(value.to_tensor().unsafe_impl()) : nullptr;
}

Error Host::copy(const Tensor& from, const Tensor& to, Context& context) const {
  Value values[] = {Value(to), Value(from), Value(false)};
  const int32_t index[] = {0, 1, 2, 0};
  return copy_->function(context, {values, index});
}

Error Host::open(const void* bytes, size_t size, const NamedDataMap* named) {
  copy_ = kernel_of("aten::copy.out");
  TORCHETTE_CHECK(copy_ != nullptr, OperatorMissing, "there is no kernel for aten::copy.out");
  budget_ = kPerByte * size;
  TORCHETTE_TRY(payload_.open(bytes, size, named));
  TORCHETTE_TRY(read_states());
  TORCHETTE_TRY(read_values());
  return read_calls();
}

Error Host::read_values() {
  const flat::Tables records = payload_.values();
  given_.resize(records.size());
  for (size_t i = 0; i < records.size(); ++i) {
    Given& out = given_[i];
    const Table outer = records[i];
    out.type = outer.get<fb::GraphTypes>(fb::VkValue::kValueType);
    const Table t = outer.table(fb::VkValue::kValue);
    Value value;
    switch (out.type) {
      case fb::GraphTypes::NONE:
      case fb::GraphTypes::Null:
        break;
      case fb::GraphTypes::Int:
        value = Value(t.get<int64_t>(fb::Int::kIntVal));
        break;
      case fb::GraphTypes::SymInt:
        value = Value(int64_t{t.get<int32_t>(fb::SymInt::kValue)});
        break;
      case fb::GraphTypes::Bool:
        value = Value(t.get<uint8_t>(fb::Bool::kBoolVal) != 0);
        break;
      case fb::GraphTypes::Double:
        value = Value(t.get<double>(fb::Double::kDoubleVal));
        break;
      case fb::GraphTypes::String:
        out.text = t.string(fb::String::kStringVal);
        break;
      case fb::GraphTypes::IntList:
        out.ints = t.vector<int64_t>(fb::IntList::kItems);
        break;
      case fb::GraphTypes::DoubleList:
        out.reals = t.vector<double>(fb::DoubleList::kItems);
        break;
      case fb::GraphTypes::BoolList:
        out.flags = t.vector<uint8_t>(fb::BoolList::kItems);
        break;
      case fb::GraphTypes::ValueList:
        out.list = t.vector<int32_t>(fb::ValueList::kItems);
        for (const int32_t id : out.list)
          TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < records.size(), DelegateInvalidCompatibility,
                          "value %d is in a list of Vulkan's, there are %zu", id, records.size());
        break;
      case fb::GraphTypes::VkTensor: {
        const Span<const uint32_t> dims = t.vector<uint32_t>(fb::VkTensor::kDims);
        const auto data = t.get<fb::VkDataType>(fb::VkTensor::kDatatype);
        ScalarType type, kept;
        TORCHETTE_CHECK(dims.size() <= kMostDims && type_of(data, &type, &kept), NotSupported,
                        "value %zu of Vulkan's has %zu dimensions and type %d", i, dims.size(),
                        static_cast<int>(data));
        Stored* const tensor = make(type, dims.size());
        out.dims = dims;
        for (const uint32_t d : dims)
          TORCHETTE_CHECK(d < INT32_MAX, NotSupported, "value %zu of Vulkan's has 2^31 elements", i);
        TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
        add(Value(Tensor(tensor)));
        const auto constant = t.get<int32_t>(fb::VkTensor::kConstantId);
        if (constant >= 0) TORCHETTE_TRY(read_constant(i, constant, kept));
        continue;
      }
      default:
        TORCHETTE_CHECK(false, NotSupported, "value %zu of Vulkan's is of an unknown kind", i);
    }
    add(value);
  }
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  return Error::Ok;
}

Error Host::read_constant(size_t value, int32_t constant, ScalarType kept) {
  Stored& it = *stored(static_cast<int32_t>(value));
  Stored from = it;
  from.sizes = from.own_sizes;
  from.strides = from.own_strides;
  from.type = kept;
  for (size_t d = 0; d < it.dim; ++d) from.sizes[d] = static_cast<SizesType>(given_[value].dims[d]);
  const Result<int32_t> count = dense_strides({from.sizes, it.dim}, kOrder, from.strides);
  TORCHETTE_CHECK(count.ok(), NotSupported, "value %zu of Vulkan's has 2^31 elements", value);
  from.numel = *count;
  const size_t bytes = Tensor(&from).nbytes();
  const void* data = nullptr;
  FreeableBuffer named;
  TORCHETTE_TRY(payload_.constant(static_cast<uint32_t>(constant), bytes, &data, &named));
  held_.push_back(std::move(named));
  it.is_constant = it.is_defined = true;
  it.is_state = states_[value];
  std::vector<uint8_t> moved;
  const bool lies_well = reinterpret_cast<uintptr_t>(data) % element_size(kept) == 0;
  if (!lies_well || kept == ScalarType::Bool) {  // any byte may stand for a truth value
    moved.assign(static_cast<const uint8_t*>(data), static_cast<const uint8_t*>(data) + bytes);
    if (kept == ScalarType::Bool)
      for (uint8_t& byte : moved) byte = byte != 0;
    data = moved.data();
  }
  from.data = const_cast<void*>(data);
  if (it.dim != 0) {
    if (moved.empty() && kept == it.type && !it.is_state) {  // it is read where it is
      memcpy(it.own_sizes, from.own_sizes, sizeof(it.own_sizes));
      memcpy(it.own_strides, from.own_strides, sizeof(it.own_strides));
      it.data = from.data;
      it.numel = from.numel;
      it.capacity = static_cast<size_t>(from.numel);
      it.dynamism = TensorShapeDynamism::STATIC;
      return Error::Ok;
    }
    TORCHETTE_TRY(resize_tensor(Tensor(&it), {from.own_sizes, it.dim}));
    it.owns = true;
    it.dynamism = TensorShapeDynamism::STATIC;
  }
  if (*count == 0) return Error::Ok;
  Context context;
  TORCHETTE_TRY(copy(Tensor(&from), Tensor(&it), context));
  if (!it.is_state) return Error::Ok;
  const auto* const first = static_cast<const uint8_t*>(it.data);
  const uint8_t* const end = first + Tensor(&it).nbytes();
  const bool is_zero = std::all_of(first, end, [](uint8_t byte) { return byte == 0; });
  first_.emplace_back(&it, is_zero ? std::vector<uint8_t>() : std::vector<uint8_t>(first, end));
  return Error::Ok;
}

Error Host::reset() {
  for (const auto& [state, first] : first_) {
    if (first.empty())
      memset(state->data, 0, Tensor(state).nbytes());
    else
      memcpy(state->data, first.data(), first.size());
  }
  return Error::Ok;
}

/// Says which constants change: results of calls, and what recipes write. A call that prepares a constant
/// for a device gives the same tensor.
Error Host::read_states() {
  const flat::Tables records = payload_.calls();
  states_.assign(payload_.values().size(), false);
  same_.resize(states_.size());
  for (size_t i = 0; i < same_.size(); ++i) same_[i] = static_cast<int32_t>(i);
  for (size_t i = 0; i < records.size(); ++i) {
    const Span<const char> name = records[i].string(fb::OperatorCall::kName);
    const Span<const int32_t> args = records[i].vector<int32_t>(fb::OperatorCall::kArgs);
    TORCHETTE_CHECK(payload_.ok() && !args.empty() && args.size() <= budget_, DelegateInvalidCompatibility,
                    "call %zu of Vulkan's is damaged", i);
    budget_ -= args.size();
    for (const int32_t id : args)
      TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < states_.size(), DelegateInvalidCompatibility,
                      "call %zu of Vulkan's names value %d of %zu", i, id, states_.size());
    if (strcmp(name.data(), kPrepack) == 0 && args.size() == 2)
      same_[static_cast<size_t>(args[1])] = same_[static_cast<size_t>(args[0])];
    const char* recipe = recipe_of(name.data());
    for (; recipe != nullptr && (recipe = strchr(recipe, '!')) != nullptr;) {
      const auto k = static_cast<size_t>(digits(++recipe));
      if (k + 1 < args.size()) states_[static_cast<size_t>(same_[static_cast<size_t>(args[k])])] = true;
    }
    if (strcmp(name.data(), kPrepack) == 0) continue;
    const auto last = static_cast<size_t>(args.back());
    states_[static_cast<size_t>(same_[last])] = true;
    const Table outer = payload_.values()[last];
    if (outer.get<fb::GraphTypes>(fb::VkValue::kValueType) != fb::GraphTypes::ValueList) continue;
    for (const int32_t id : outer.table(fb::VkValue::kValue).vector<int32_t>(fb::ValueList::kItems))
      if (id >= 0 && static_cast<size_t>(id) < same_.size())
        states_[static_cast<size_t>(same_[static_cast<size_t>(id)])] = true;
  }
  return Error::Ok;
}

Error Host::read_calls() {
  converted_.resize(payload_.inputs().size());
  for (const uint32_t id : payload_.inputs()) {
    Stored* const it = stored(static_cast<int32_t>(id));
    TORCHETTE_CHECK(given_[id].type == fb::GraphTypes::SymInt || (it != nullptr && !it->is_defined),
                    DelegateInvalidCompatibility, "input %u of Vulkan's is no tensor, or twice there", id);
    if (it == nullptr) continue;
    it->is_defined = true;
    it->dynamism = TensorShapeDynamism::STATIC;  // whose memory is the caller's
  }
  const flat::Tables records = payload_.calls();
  for (size_t i = 0; i < records.size(); ++i) {
    const char* const name = records[i].string(fb::OperatorCall::kName).data();
    const Span<const int32_t> args = records[i].vector<int32_t>(fb::OperatorCall::kArgs);
    if (strcmp(name, kPrepack) == 0 && args.size() == 2) {
      Stored *const from = stored(args[0]), *const to = stored(args[1]);
      if (from != nullptr && to != nullptr && from->is_constant && !to->is_defined &&
          from->type == to->type) {
        values_[static_cast<size_t>(args[1])] = values_[static_cast<size_t>(args[0])];
        continue;
      }
    }
    Stage it{};
    it.name = name;
    it.handle = records[i].get<uint32_t>(fb::OperatorCall::kNodeId);
    it.args = {args.data(), args.size() - 1};
    it.last = args.back();
    const Given& last = given_[static_cast<size_t>(it.last)];
    it.results.push_back(it.last);
    if (last.type == fb::GraphTypes::ValueList) it.results.assign(last.list.begin(), last.list.end());
    if (!spend(it.results.size())) return it.refuse("its lists are too long for the payload");
    const Stored* const first = it.results.empty() ? nullptr : stored(it.results[0]);
    if (first != nullptr) it.rank = first->dim;
    const bool is_back = strstr(name, ".dequantize") != nullptr && args.size() > 1;
    const Stored* const typed = is_back ? stored(args[0]) : first;
    it.type = typed == nullptr || typed->type == ScalarType::Float ? ScalarType::Char : typed->type;
    std::fill(it.temporaries, it.temporaries + kMostTemporaries, -1);
    const char* recipe = recipe_of((std::string(name) + "/" + std::to_string(it.rank)).c_str());
    if (recipe == nullptr) recipe = recipe_of(name);
    std::string own;
    if (recipe == nullptr) {
      const Kernel* const kernel = own_kernel(name);
      if (kernel == nullptr) return it.refuse("there is no kernel");
      own = kernel->name;
      const char* codes = kernel->signature;
      Code code;
      size_t in = 0;
      int out = 0;
      while (next_code(codes, &code))
        own += code.letter == 'L' && *codes == 0 ? " r"
               : code.written                    ? " r" + std::to_string(out++)
                                                 : " " + std::to_string(in++);
      if (in != it.args.size()) return it.refuse("its kernel takes another number of arguments");
      recipe = own.c_str();
    }
    TORCHETTE_TRY(call(recipe, it));
  }
  TORCHETTE_CHECK(payload_.ok(), DelegateInvalidCompatibility, "a Vulkan payload is damaged");
  for (const uint32_t id : payload_.outputs()) {
    Stored* const it = stored(static_cast<int32_t>(id));
    TORCHETTE_CHECK(it == nullptr ? values_[id].is_scalar() : it->is_defined, DelegateInvalidCompatibility,
                    "nothing computes output %u of Vulkan's", id);
    if (it != nullptr) it->last = SIZE_MAX;
  }
  for (BoxedList& it : boxed_) it.values = values_.data();
  for (Stored& it : tensors_)
    if (it.dynamism == TensorShapeDynamism::OWNED && it.is_defined && it.last != SIZE_MAX &&
        !(it.is_constant && it.is_read_each_time))
      freed_.push_back(&it);
  std::sort(freed_.begin(), freed_.end(), [](const Stored* a, const Stored* b) { return a->last < b->last; });
  return Error::Ok;
}

Error Host::call(const char* recipe, Stage& of) {
  while (*recipe != 0) {
    const Error error = stage(recipe, of);
    if (error != Error::Ok) return error;
    while (*recipe == ' ' || *recipe == '>') ++recipe;
  }
  return Error::Ok;
}

Error Host::stage(const char*& at, Stage& of) {
  const char* const start = at;
  while (*at != ' ' && *at != 0) ++at;
  const std::string name(start, static_cast<size_t>(at - start));
  const Kernel* const kernel = kernel_of(name);
  TORCHETTE_CHECK(kernel != nullptr, OperatorMissing, "there is no kernel for %s", name.c_str());
  of.is_constant = true;
  of.read.clear();
  of.defined.clear();
  std::vector<int32_t> slots;
  std::vector<std::pair<int32_t, int32_t>> kept;  // states, and what goes there
  const char* codes = kernel->signature;
  Code code;
  while (next_code(codes, &code)) {
    while (*at == ' ') ++at;
    const bool is_list = code.letter == 'L' && *codes == 0, changes = *at == '!';
    if (!code.written && !is_list) {
      const int32_t slot = input(at, code.letter, code.optional, of);
      if (slot < 0) return of.refuse("its kernel takes arguments of another kind");
      slots.push_back(slot);
      continue;
    }
    int32_t slot = is_list ? of.last : output(at, of);
    if (is_list) {
      ++at;
      for (const int32_t id : of.results) {
        Stored* const it = stored(id);
        if (it == nullptr || it->is_defined) return of.refuse("a result is no tensor, or there already");
        it->is_defined = true;
        of.defined.push_back(it);
      }
      slot = boxed(Tag::ListTensor, of.results);
    } else if (slot < 0) {
      return of.refuse("it has fewer results than its kernel");
    } else if (code.letter != 't') {
      of.is_constant = false;
      const auto n = static_cast<size_t>(slot);
      if (n >= given_.size() ||
          (given_[n].type != fb::GraphTypes::SymInt && given_[n].type != fb::GraphTypes::Int))
        return of.refuse("a result is no number");
    } else {
      Stored* it = stored(slot);
      if (it == nullptr) return of.refuse("a result is no tensor");
      if (it->is_state) {
        of.is_constant = false;
        if (!changes && (slots.empty() || stored(slots[0]) != it || !is_in_place(name))) {
          const int32_t apart = add(Value(Tensor(make(it->type, it->dim))));
          kept.push_back({slot, apart});
          slot = apart;
          it = stored(apart);
        }
      }
      if (!it->is_state) {
        if (it->is_defined) return of.refuse("a result is there already");
        of.defined.push_back(it);
      }
    }
    slots.push_back(slot);
  }
  of.is_constant = of.is_constant && !of.read.empty();
  add_step(*kernel, slots, of);
  for (const auto& [state, apart] : kept) {
    of.is_constant = false;
    of.read.assign(1, stored(apart));
    of.defined.clear();
    add_step(*copy_, {state, apart, add(Value(false)), state}, of);
  }
  return Error::Ok;
}

void Host::add_step(const Kernel& kernel, const std::vector<int32_t>& slots, Stage& of) {
  for (Stored* it : of.read) {
    it->last = steps_.size();
    it->is_read_each_time = it->is_read_each_time || !of.is_constant;
  }
  for (Stored* it : of.defined) {
    it->is_defined = true;
    it->is_constant = of.is_constant;
    it->last = steps_.size();
  }
  steps_.push_back({kernel.function, of.name, of.handle, arguments_.size(), of.is_constant});
  arguments_.insert(arguments_.end(), slots.begin(), slots.end());
}

/// `slot`, or what stands for it under a kernel's code; -1 where nothing does.
int32_t Host::as(int32_t slot, char code, bool optional, Stage& of) {
  const auto n = static_cast<size_t>(slot);
  const Value value = values_[n];
  if ((tags_of(code) >> static_cast<unsigned>(value.tag()) & 1u) != 0) {
    if (n < given_.size() && given_[n].type == fb::GraphTypes::SymInt) of.is_constant = false;
    if (!value.is_tensor()) return slot;
    Stored* const it = stored(slot);
    if (!it->is_defined) return -1;
    of.is_constant = of.is_constant && it->is_constant && !it->is_state;
    of.read.push_back(it);
    return slot;
  }
  if (value.is_scalar() && code == 'I') {
    of.is_constant = of.is_constant && (n >= given_.size() || given_[n].type != fb::GraphTypes::SymInt);
    return boxed(Tag::ListInt, {slot});
  }
  if (n < given_.size() && value.is_none() && given_[n].type > fb::GraphTypes::Null)
    return listed(code, given_[n], of);
  if (!value.is_none()) return -1;
  if (optional) return slot;
  return code == 'i' ? add(Value(static_cast<int64_t>(of.type))) : -1;  // a type, which the tensor says
}

int32_t Host::listed(char code, const Given& given, Stage& of) {
  if (!spend(given.ints.size() + given.reals.size() + given.flags.size() + given.list.size())) return -1;
  std::vector<int32_t> slots;
  switch (given.type) {
    case fb::GraphTypes::IntList:
      if (code == 'I') {
        for (const int64_t it : given.ints) slots.push_back(add(Value(it)));
        return boxed(Tag::ListInt, slots);
      }
      if (code == 'D') {
        auto* const reals = static_cast<double*>(room(8 * given.ints.size()));
        for (size_t i = 0; i < given.ints.size(); ++i) reals[i] = static_cast<double>(given.ints[i]);
        return plain(Tag::ListDouble, reals, given.ints.size());
      }
      return -1;
    case fb::GraphTypes::DoubleList: {
      if (code != 'D') return -1;
      void* const reals = room(8 * given.reals.size());
      if (!given.reals.empty()) memcpy(reals, given.reals.data(), 8 * given.reals.size());
      return plain(Tag::ListDouble, reals, given.reals.size());
    }
    case fb::GraphTypes::BoolList: {
      if (code != 'B') return -1;
      auto* const flags = static_cast<bool*>(room(given.flags.size()));
      for (size_t i = 0; i < given.flags.size(); ++i) flags[i] = given.flags[i] != 0;
      return plain(Tag::ListBool, flags, given.flags.size());
    }
    case fb::GraphTypes::String:
      return code == 'S' ? plain(Tag::String, given.text.data(), given.text.size()) : -1;
    case fb::GraphTypes::ValueList: {
      const char item = code == 'I' ? 'i' : 'T';
      if (code != 'I' && code != 'L' && code != 'O') return -1;
      for (const int32_t id : given.list) {
        if (code == 'O' && values_[static_cast<size_t>(id)].is_none()) {
          slots.push_back(-1);
          continue;
        }
        const int32_t slot = as(id, item, false, of);
        if (slot < 0) return -1;
        slots.push_back(slot);
      }
      return boxed(code == 'I'   ? Tag::ListInt
                   : code == 'L' ? Tag::ListTensor
                                 : Tag::ListOptionalTensor,
                   slots);
    }
    default:
      return -1;
  }
}

int32_t Host::boxed(Tag tag, const std::vector<int32_t>& slots) {
  BoxedList it{nullptr, nullptr, nullptr, static_cast<uint32_t>(slots.size())};
  if (tag == Tag::ListInt) {
    auto* const index = static_cast<int64_t*>(room(8 * slots.size()));
    std::copy(slots.begin(), slots.end(), index);
    it.indices = index;
  } else {
    void* const index = room(4 * slots.size());
    if (!slots.empty()) memcpy(index, slots.data(), 4 * slots.size());
    it.indices = index;
  }
  it.gathered = room(std::max(sizeof(int64_t), sizeof(Optional<Tensor>)) * slots.size());
  boxed_.push_back(it);
  return add(Value(tag, &boxed_.back()));
}

int32_t Host::plain(Tag tag, const void* data, size_t count) {
  plain_.push_back({data, static_cast<uint32_t>(count)});
  return add(Value(tag, &plain_.back()));
}

bool Host::spend(size_t count) {
  if (count > budget_) return false;
  budget_ -= count;
  return true;
}

/// A word of a recipe, see host.def, as what a kernel takes.
int32_t Host::input(const char*& at, char code, bool optional, Stage& of) {
  const auto argument = [&](size_t k) { return k < of.args.size() ? of.args[k] : -1; };
  const auto last_size = [&](int32_t slot) {
    const Stored* const it = slot < 0 ? nullptr : stored(slot);
    if (it == nullptr || it->dim == 0 || static_cast<size_t>(slot) >= given_.size()) return int64_t{1};
    return int64_t{given_[static_cast<size_t>(slot)].dims[it->dim - 1u]};
  };
  if (is_digit(*at)) {
    const int32_t slot = argument(static_cast<size_t>(digits(at)));
    const bool has_other = *at == '|';
    at += has_other;
    const bool is_none = slot < 0 || (values_[static_cast<size_t>(slot)].is_none() &&
                                      given_[static_cast<size_t>(slot)].type <= fb::GraphTypes::Null);
    if (has_other) {
      const int32_t other = input(at, code, optional, of);
      if (is_none) return other;
    }
    return slot < 0 ? -1 : as(slot, code, optional, of);
  }
  const char word = *at++;
  if (word >= 'A' && word <= 'Z') {
    const int32_t slot = of.temporaries[word - 'A'];
    return slot < 0 ? -1 : as(slot, code, optional, of);
  }
  char* end = nullptr;
  switch (word) {
    case 'n':
      return as(add(Value()), code, optional, of);
    case 'f':
    case 't':
      return as(add(Value(word == 't')), code, optional, of);
    case 'i': {
      const int64_t number = strtoll(at, &end, 10);
      at = end;
      return as(add(Value(number)), code, optional, of);
    }
    case 'x': {
      const double number = strtod(at, &end);
      at = end;
      return as(add(Value(number)), code, optional, of);
    }
    case 's':  // what attention multiplies with
      return add(
          Value(1 / std::sqrt(static_cast<double>(last_size(argument(static_cast<size_t>(digits(at))))))));
    case 'k':
      return add(Value(last_size(argument(static_cast<size_t>(digits(at))))));
    case 'c': {
      const int32_t slot = argument(static_cast<size_t>(digits(at)));
      const bool has = slot >= 0 && given_[static_cast<size_t>(slot)].dims.size() > 1;
      return has ? add(Value(int64_t{given_[static_cast<size_t>(slot)].dims[1]})) : -1;
    }
    case '\'': {
      const char* const text = at;
      while (*at != '\'' && *at != 0) ++at;
      const auto size = static_cast<size_t>(at - text);
      at += *at != 0;
      return plain(Tag::String, text, size);
    }
    case 'l':
      return boxed(Tag::ListInt, {add(Value(last_size(argument(static_cast<size_t>(digits(at))))))});
    case '[': {
      std::vector<int32_t> slots;
      while (*at != ']' && *at != 0) {
        if (*at == '(') {  // an argument of the call
          ++at;
          const int32_t slot = argument(static_cast<size_t>(digits(at)));
          ++at;
          if (slot < 0 || !values_[static_cast<size_t>(slot)].is_scalar()) return -1;
          slots.push_back(slot);
        } else {
          slots.push_back(add(Value(int64_t{strtoll(at, &end, 10)})));
          at = end;
        }
        at += *at == ',';
      }
      at += *at == ']';
      return boxed(Tag::ListInt, slots);
    }
    default:
      return -1;
  }
}

int32_t Host::output(const char*& at, Stage& of) {
  const char word = *at++;
  if (word == '!') {
    const auto k = static_cast<size_t>(digits(at));
    const Stored* const it = k < of.args.size() ? stored(of.args[k]) : nullptr;
    return it != nullptr && it->is_state ? of.args[k] : -1;
  }
  if (word == 'r') {
    const auto k = static_cast<size_t>(digits(at));
    if (k < of.results.size()) return of.results[k];
    return add(Value(Tensor(make(ScalarType::Float, of.rank))));  // nobody asks for it
  }
  if (word < 'A' || word > 'Z') return -1;
  size_t rank = of.rank;
  if (is_digit(*at)) rank = static_cast<size_t>(digits(at));
  ScalarType type = ScalarType::Float;
  const char suffix = *at;
  if (suffix == '?') type = ScalarType::Bool;
  if (suffix == '#') type = ScalarType::Long;
  if (suffix == '%') type = ScalarType::Char;
  if (suffix == '&') type = ScalarType::Byte;
  at += suffix == '?' || suffix == '#' || suffix == '%' || suffix == '&';
  return of.temporaries[word - 'A'] = add(Value(Tensor(make(type, std::min(rank, kMostDims)))));
}

Error Host::set_input(size_t i, const Value& argument, Context& context) {
  const auto id = static_cast<int32_t>(payload_.inputs()[i]);
  Stored* const it = stored(id);
  if (it == nullptr) {
    int64_t number = 0;
    TORCHETTE_TRY(whole_number(i, argument, &number));
    values_[static_cast<size_t>(id)] = Value(number);
    return Error::Ok;
  }
  TORCHETTE_CHECK(argument.is_tensor(), InvalidArgument, "argument %zu of Vulkan is no tensor", i);
  const Tensor tensor = argument.to_tensor();
  const Span<const uint32_t> most = given_[static_cast<size_t>(id)].dims;
  TORCHETTE_CHECK(tensor.dim() == it->dim, InvalidArgument,
                  "argument %zu of Vulkan has %td dimensions, its graph has %d", i, tensor.dim(), it->dim);
  for (size_t d = 0; d < it->dim; ++d)
    TORCHETTE_CHECK(tensor.sizes()[d] >= 0 && static_cast<uint32_t>(tensor.sizes()[d]) <= most[d],
                    InvalidArgument, "argument %zu of Vulkan has the size %d where its graph has at most %u",
                    i, static_cast<int>(tensor.sizes()[d]), most[d]);
  TORCHETTE_CHECK(is_floating(tensor.scalar_type()) == is_floating(it->type) &&
                      (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr),
                  InvalidArgument, "argument %zu of Vulkan has another type, or no data", i);
  const Result<int32_t> count = dense_strides(tensor.sizes(), kOrder, it->own_strides);
  TORCHETTE_CHECK(count.ok(), InvalidArgument, "argument %zu of Vulkan is too large", i);
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), it->own_sizes);
  it->numel = *count;
  it->capacity = static_cast<size_t>(*count);
  it->data = tensor.mutable_data_ptr();
  if (tensor.scalar_type() == it->type && is_contiguous(tensor)) return Error::Ok;
  converted_[i] = memory_.reallocate(converted_[i], Tensor(it).nbytes());
  it->data = converted_[i];
  if (*count == 0) return Error::Ok;
  if (it->data == nullptr) return Error::MemoryAllocationFailed;
  return copy(tensor, Tensor(it), context);
}

Error Host::give_output(size_t i, Value* argument, Context& context) {
  const auto id = static_cast<int32_t>(payload_.outputs()[i]);
  const Value& value = values_[static_cast<size_t>(id)];
  if (!value.is_tensor()) {
    *argument = value;
    return Error::Ok;
  }
  TORCHETTE_CHECK(
      argument->is_tensor() && argument->to_tensor().dim() == value.to_tensor().dim() &&
          is_floating(argument->to_tensor().scalar_type()) == is_floating(value.to_tensor().scalar_type()),
      InvalidArgument, "result %zu of Vulkan has another type or other dimensions than its graph", i);
  const Tensor to = argument->to_tensor();
  TORCHETTE_TRY(resize_tensor(to, value.to_tensor().sizes()));
  if (to.numel() == 0) return Error::Ok;
  TORCHETTE_CHECK(to.const_data_ptr() != nullptr, InvalidArgument, "result %zu of Vulkan has no memory", i);
  return copy(value.to_tensor(), to, context);
}

Error Host::execute(Span<Value*> arguments, Context& context) {
  const size_t inputs = payload_.inputs().size(), outputs = payload_.outputs().size();
  TORCHETTE_CHECK(arguments.size() == inputs + outputs, InvalidArgument,
                  "Vulkan is given %zu arguments, its graph has %zu inputs and %zu outputs", arguments.size(),
                  inputs, outputs);
  for (size_t i = 0; i < inputs; ++i) TORCHETTE_TRY(set_input(i, *arguments[i], context));
  EventTracer* const tracer = context.event_tracer();
  size_t freed = 0;
  for (size_t s = 0; s < steps_.size(); ++s) {
    const Step& step = steps_[s];
    if (!step.is_constant || !has_run_) {
      const torchette_timestamp_t start = tracer == nullptr ? 0 : current_ticks();
      const Error error = step.function(context, {values_.data(), arguments_.data() + step.first});
      context.reset_temp();
      if (error != Error::Ok) {
        TORCHETTE_LOG(Error, "the processor cannot run Vulkan's %.80s", step.name);
        return error;
      }
      if (tracer != nullptr)
        event_tracer_log_profiling_delegate(tracer, step.name, static_cast<DelegateDebugIntId>(step.handle),
                                            start, current_ticks());
    }
    for (; freed < freed_.size() && freed_[freed]->last <= s; ++freed) reserve_tensor(*freed_[freed], 0);
  }
  has_run_ = true;
  for (size_t i = 0; i < outputs; ++i) TORCHETTE_TRY(give_output(i, arguments[inputs + i], context));
  return Error::Ok;
}

}  // namespace vulkan
}  // namespace torchette
