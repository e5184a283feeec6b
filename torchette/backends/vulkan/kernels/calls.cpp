// SPDX-License-Identifier: BSD-3-Clause
// Converts the calls of a payload to calls of kernels: the calls of a recipe, or one kernel with the
// arguments of the call.
#include <cmath>
#include <cstdio>
#include <cstring>
#include <new>

#include "torchette/backends/vulkan/kernels/graph_reader.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr char kPrepack[] = "et_vk.prepack.default";

/// The kernel with the name of an operator: "aten::add.Tensor_out" or "aten::add.out" for "aten.add.Tensor".
/// The kernel of a view is that of its copy, such as "aten::view_copy.out".
const Kernel* kernel_of_operator(Span<const char> name) {
  constexpr size_t kMaxName = 96;
  const char* const end = name.data() + name.size();
  const char* const space = static_cast<const char*>(memchr(name.data(), '.', name.size()));
  if (space == nullptr || name.size() > kMaxName) return nullptr;
  const auto* const dot =
      static_cast<const char*>(memchr(space + 1, '.', static_cast<size_t>(end - space - 1)));
  if (dot == nullptr) return nullptr;
  char op[2 * kMaxName], overload[2 * kMaxName];
  const auto width = [](const char* from, const char* to) { return static_cast<int>(to - from); };
  for (const char* suffix : {"", "_copy"}) {
    snprintf(op, sizeof(op), "%.*s::%.*s%s", width(name.data(), space), name.data(), width(space + 1, dot),
             space + 1, suffix);
    snprintf(overload, sizeof(overload), "%.*s_out", width(dot + 1, end), dot + 1);
    for (const char* it : {static_cast<const char*>(overload), "out"})
      if (const Kernel* found = find_kernel({op, strlen(op)}, {it, strlen(it)})) return found;
  }
  return nullptr;
}

/// Whether the kernel may write to its first argument.
bool is_in_place(const char* kernel) {
  for (const char* it :
       {"aten::copy.out", "aten::index_put.out", "aten::slice_scatter.out", "aten::select_scatter.out",
        "aten::scatter.src_out", "aten::scatter.value_out", "vulkan::index_copy.out"})
    if (strcmp(kernel, it) == 0) return true;
  return false;
}

/// A parameter of a kernel.
struct Parameter {
  char code;
  bool is_optional, is_written, is_list;  // is_list: of written tensors
};
size_t parameters_of(const Kernel& kernel, Parameter (&out)[kMaxArguments]) {
  size_t count = 0;
  for (const char* at = kernel.signature; *at != 0; ++at) {
    if (count == kMaxArguments) return 0;
    const bool is_optional = *at == '?';
    at += is_optional;
    out[count++] = {*at, is_optional, is_written(at), *at == 'L' && is_written(at)};
  }
  return count;
}

Tag tag_of(const Item& item) {
  return item.type == fb::GraphTypes::Double ? Tag::Double
         : item.type == fb::GraphTypes::Bool ? Tag::Bool
                                             : Tag::Int;
}

}  // namespace

/// A call of the payload.
struct GraphReader::Node {
  const char* name;
  Span<const int32_t> args;     // values, without the results
  Span<const int32_t> results;  // values
  size_t rank = 0;              // of the first result
  ScalarType type;              // the integer type that the call quantizes to or from
  PayloadTensor* temporaries[kMaxTemporaries] = {};
  // of the kernel
  bool is_constant = false, has_read = false;  // whether it reads only constants; whether it reads a tensor

  Error refuse(const char* why) const {
    TORCHETTE_LOG(Error, "the processor cannot run the Vulkan operator %.80s: %s", name, why);
    return Error::NotSupported;
  }
};

bool GraphReader::spend(size_t count) {
  if (count > budget_) return false;
  budget_ -= count;
  return true;
}

/// Finds the values that calls write: their results, and the states that recipes change. The result of a
/// prepack call is the tensor of its argument.
Error GraphReader::read_written() {
  auto* const same = scratch_.allocate_list<int32_t>(count_);
  if (same == nullptr) return Error::MemoryAllocationFailed;
  for (size_t i = 0; i < count_; ++i) same[i] = static_cast<int32_t>(i);
  const auto write = [&](int32_t id) { items_[same[static_cast<size_t>(id)]].is_written = true; };
  const flat::Tables records = payload_.calls(), values = payload_.values();
  for (size_t i = 0; i < records.size(); ++i) {
    const char* const name = records[i].string(fb::OperatorCall::kName).data();
    const Span<const int32_t> args = records[i].vector<int32_t>(fb::OperatorCall::kArgs);
    TORCHETTE_CHECK(payload_.ok() && !args.empty() && spend(args.size()), DelegateInvalidCompatibility,
                    "call %zu of the Vulkan payload is damaged", i);
    for (const int32_t id : args)
      TORCHETTE_CHECK(id >= 0 && static_cast<size_t>(id) < count_, DelegateInvalidCompatibility,
                      "call %zu of the Vulkan payload uses value %d of %zu", i, id, count_);
    if (strcmp(name, kPrepack) == 0) {
      if (args.size() == 2) same[args[1]] = same[args[0]];
      continue;
    }
    const Recipe* const recipe = recipe_of(name, 0);
    for (const Stage& stage : recipe == nullptr ? std::initializer_list<Stage>() : recipe->stages)
      for (const Operand& operand : stage.operands)
        if (operand.kind == OperandKind::Changed && static_cast<size_t>(operand.index) + 1 < args.size())
          write(args[static_cast<size_t>(operand.index)]);
    write(args.back());
    const flat::Table outer = values[static_cast<size_t>(args.back())];
    if (outer.get<fb::GraphTypes>(fb::VkValue::kValueType) != fb::GraphTypes::ValueList) continue;
    for (const int32_t id : outer.table(fb::VkValue::kValue).vector<int32_t>(fb::ValueList::kItems))
      if (id >= 0 && static_cast<size_t>(id) < count_) write(id);
  }
  return Error::Ok;
}

Error GraphReader::read_call(size_t i) {
  const flat::Table record = payload_.calls()[i];
  const Span<const char> name = record.string(fb::OperatorCall::kName);
  const Span<const int32_t> args = record.vector<int32_t>(fb::OperatorCall::kArgs);
  Item& last = items_[args.back()];
  if (strcmp(name.data(), kPrepack) == 0 && args.size() == 2) {
    PayloadTensor *const from = items_[args[0]].tensor, *const to = last.tensor;
    if (from != nullptr && to != nullptr && from->is_constant && !to->is_defined && from->type == to->type) {
      last.tensor = from;
      return Error::Ok;
    }
  }
  Node n{};
  n.name = name.data();
  n.args = {args.data(), args.size() - 1};
  n.results = last.type == fb::GraphTypes::ValueList ? last.list : Span<const int32_t>(&args.back(), 1);
  if (!spend(n.results.size())) return n.refuse("its lists are too long for the payload");
  const PayloadTensor* const first = n.results.empty() ? nullptr : items_[n.results[0]].tensor;
  if (first != nullptr) n.rank = first->rank;
  const bool is_back = strstr(n.name, ".dequantize") != nullptr && !n.args.empty();
  const PayloadTensor* const typed = is_back ? items_[n.args[0]].tensor : first;
  n.type = typed == nullptr || typed->type == ScalarType::Float ? ScalarType::Char : typed->type;
  const auto handle = record.get<uint32_t>(fb::OperatorCall::kNodeId);
  main_.set_debug_handle(handle);
  const Recipe* const recipe = recipe_of(n.name, n.rank);
  if (recipe == nullptr) {
    const Kernel* const kernel = kernel_of_operator(name);
    if (kernel == nullptr) return n.refuse("this build does not have its kernel");
    TORCHETTE_TRY(call_kernel(*kernel, n));
  } else {
    for (const Stage& stage : recipe->stages) {
      const Kernel* const kernel = find_kernel(stage.kernel);
      TORCHETTE_CHECK(kernel != nullptr, OperatorMissing, "there is no kernel for %s", stage.kernel);
      TORCHETTE_TRY(call_kernel(*kernel, {stage.operands.begin(), stage.operands.size()}, n));
    }
  }
  if (context_.event_tracer() == nullptr || n.results.empty()) return Error::Ok;
  const PayloadTensor* const made = items_[n.results[0]].tensor;
  if (made != nullptr && made->values[kMain] != nullptr)
    delegate::ProgramBuilder::tap(made->values[kMain], handle, delegate::TapLayout::Same);
  return Error::Ok;
}

/// Calls the kernel with the arguments of the payload's call.
Error GraphReader::call_kernel(const Kernel& kernel, Node& n) {
  Parameter parameters[kMaxArguments];
  const size_t count = parameters_of(kernel, parameters);
  void* const memory = scratch_.allocate_list<Operand>(count);
  if (memory == nullptr) return Error::MemoryAllocationFailed;
  auto* const operands = static_cast<Operand*>(memory);
  size_t in = 0;
  int8_t out = 0;
  for (size_t i = 0; i < count; ++i) {
    const bool is_result = parameters[i].is_written;
    new (operands + i)
        Operand(is_result ? Operand(OperandKind::Result, out++) : Operand(static_cast<int>(in++)));
  }
  if (in != n.args.size()) return n.refuse("its kernel requires another number of arguments");
  return call_kernel(kernel, {operands, count}, n);
}

Error GraphReader::call_kernel(const Kernel& kernel, Span<const Operand> operands, Node& n) {
  Parameter parameters[kMaxArguments];
  const size_t count = parameters_of(kernel, parameters);
  if (count != operands.size()) return n.refuse("its kernel requires another number of arguments");
  Item items[kMaxArguments];
  PayloadTensor* states[kMaxArguments] = {};  // to which the result of that index is copied
  n.is_constant = true;
  n.has_read = false;
  for (size_t i = 0; i < count; ++i) {
    if (!parameters[i].is_written) {
      if (!find_operand(operands[i], n, &items[i]) || !note_reads(items[i], n))
        return n.refuse("its kernel requires arguments of other types");
      continue;
    }
    TORCHETTE_TRY(find_result(operands[i], parameters[i].code, n, &items[i]));
    PayloadTensor* const state = items[i].tensor;
    if (state == nullptr || !state->is_state || operands[i].kind == OperandKind::Changed) continue;
    if (items[0].tensor == state && is_in_place(kernel.name)) continue;
    states[i] = state;
    items[i].tensor = temporary(state->type, state->rank);
    if (items[i].tensor == nullptr) return Error::MemoryAllocationFailed;
  }
  const Part part = n.is_constant && n.has_read ? kFolded : kMain;
  Argument arguments[kMaxArguments];
  for (size_t i = 0; i < count; ++i)
    if (!argument(items[i], parameters[i].code, parameters[i].is_optional, n, part, &arguments[i]))
      return n.refuse("its kernel requires arguments of other types");
  TORCHETTE_TRY(builder_of(part).call(kernel, {arguments, count}));
  const auto define = [part](PayloadTensor* tensor) {
    if (tensor == nullptr || tensor->is_state) return;
    tensor->is_defined = true;
    tensor->is_constant = part == kFolded;
    if (part == kFolded) tensor->made = tensor->values[kFolded];
  };
  for (size_t i = 0; i < count; ++i) {
    if (!parameters[i].is_written) continue;
    define(items[i].tensor);
    for (const int32_t id : items[i].list) define(items_[id].tensor);
    if (states[i] == nullptr) continue;
    TensorValue* const state = value(*states[i], kMain);
    TORCHETTE_TRY(main_.call("aten::copy.out", {state, value(*items[i].tensor, kMain), false, state}));
  }
  return Error::Ok;
}

/// The size of dimension `dim` of an argument, -1 for the last one. It is the payload's size, an upper bound;
/// 0 if the argument has no such dimension.
int64_t GraphReader::size_of(const Node& n, int argument, int dim) const {
  const auto i = static_cast<size_t>(argument);
  const PayloadTensor* const tensor = i < n.args.size() ? items_[n.args[i]].tensor : nullptr;
  if (tensor == nullptr) return 0;
  const size_t d = dim < 0 ? tensor->dims.size() - 1 : static_cast<size_t>(dim);
  return d < tensor->dims.size() ? tensor->dims[d] : 0;
}

/// Returns false if the call does not have the argument.
bool GraphReader::find_operand(const Operand& operand, const Node& n, Item* out) const {
  const auto set = [out](fb::GraphTypes type, int64_t integer) {
    out->type = type;
    out->integer = integer;
    return true;
  };
  const auto i = static_cast<size_t>(operand.argument);
  if (operand.argument >= 0 && i < n.args.size()) {
    *out = items_[n.args[i]];
    if (operand.kind == OperandKind::Required || !out->is_none()) return true;
  }
  const int64_t size = size_of(n, operand.index, operand.kind == OperandKind::Channels ? 1 : -1);
  const int64_t last = size == 0 ? 1 : size;
  switch (operand.kind) {
    case OperandKind::None:
      *out = Item();
      return true;
    case OperandKind::Bool:
      return set(fb::GraphTypes::Bool, operand.number != 0);
    case OperandKind::Int:
      return set(fb::GraphTypes::Int, static_cast<int64_t>(operand.number));
    case OperandKind::Double:
      out->real = operand.number;
      return set(fb::GraphTypes::Double, 0);
    case OperandKind::Scale:
      out->real = 1 / std::sqrt(static_cast<double>(last));
      return set(fb::GraphTypes::Double, 0);
    case OperandKind::Text:
      out->text = {operand.text, strlen(operand.text)};
      return set(fb::GraphTypes::String, 0);
    case OperandKind::Ints:
      out->ints = operand.ints;
      return set(fb::GraphTypes::IntList, 0);
    case OperandKind::LastSize:
    case OperandKind::LastSizeList:  // argument() makes a list of an integer
      return set(fb::GraphTypes::Int, last);
    case OperandKind::Channels:
      return size != 0 && set(fb::GraphTypes::Int, size);
    case OperandKind::Temporary:
      out->tensor = n.temporaries[operand.index];
      return out->tensor != nullptr && set(fb::GraphTypes::VkTensor, 0);
    default:
      return false;
  }
}

/// Returns false if the kernel would read a tensor that nothing has computed.
bool GraphReader::note_reads(const Item& item, Node& n) const {
  const auto note = [&n](const Item& read) {
    n.is_constant = n.is_constant && read.slot == nullptr;
    if (read.tensor == nullptr) return true;
    n.is_constant = n.is_constant && read.tensor->is_constant && !read.tensor->is_state;
    n.has_read = true;
    return read.tensor->is_defined;
  };
  bool is_defined = note(item);
  for (const int32_t id : item.list) is_defined = is_defined && note(items_[id]);
  return is_defined;
}

/// A tensor, a list of tensors or a number that a kernel writes. A result that the call does not have is a
/// temporary tensor.
Error GraphReader::find_result(const Operand& operand, char code, Node& n, Item* out) {
  const auto i = static_cast<size_t>(operand.index);
  if (code == 'L') {
    out->type = fb::GraphTypes::ValueList;
    out->list = n.results;
    for (const int32_t id : n.results) {
      PayloadTensor* const tensor = items_[id].tensor;
      if (tensor == nullptr || tensor->is_defined)
        return n.refuse("a result is not a tensor, or already computed");
      tensor->is_defined = true;
    }
    return Error::Ok;
  }
  out->type = fb::GraphTypes::VkTensor;
  if (operand.kind == OperandKind::Temporary) {
    const size_t rank = operand.rank < 0 ? n.rank : static_cast<size_t>(operand.rank);
    out->tensor = n.temporaries[i] = temporary(operand.type, rank);
  } else if (operand.kind == OperandKind::Changed) {
    if (i < n.args.size()) *out = items_[n.args[i]];
    if (out->tensor == nullptr || !out->tensor->is_state)
      return n.refuse("it changes a tensor that is not a state");
  } else if (i < n.results.size()) {
    *out = items_[n.results[i]];
  } else {
    out->tensor = temporary(ScalarType::Float, n.rank);
  }
  if (code != 't') {
    n.is_constant = false;
    return out->slot == nullptr ? n.refuse("a result is not an integer") : Error::Ok;
  }
  if (out->tensor == nullptr) return n.refuse("a result is not a tensor");
  if (out->tensor->is_state) n.is_constant = false;
  if (out->tensor->is_defined && !out->tensor->is_state) return n.refuse("a result is already computed");
  return Error::Ok;
}

/// Converts a value to an argument of a kernel. Returns false if there is no conversion.
bool GraphReader::argument(const Item& item, char code, bool is_optional, const Node& n, Part part,
                           Argument* out) {
  if (item.tensor != nullptr) {
    *out = value(*item.tensor, part);
    return code == 'T' || code == 't';
  }
  if (item.is_number()) {
    *out = item.slot != nullptr ? Argument(item.slot) : item.number();
    if (code == 'I') *out = builder_of(part).integers(Span<const Argument>{out, 1});
    return code == 'I' || (tags_of(code) >> static_cast<unsigned>(tag_of(item)) & 1u) != 0;
  }
  if (!item.is_none()) return list(item, code, part, out);
  if (is_optional) return true;
  *out = static_cast<int64_t>(n.type);
  return code == 'i';  // the dtype of the tensor
}

bool GraphReader::list(const Item& item, char code, Part part, Argument* out) {
  delegate::ProgramBuilder& builder = builder_of(part);
  const size_t count = item.ints.size() + item.list.size();
  if (!spend(count + item.reals.size() + item.flags.size())) return false;
  switch (item.type) {
    case fb::GraphTypes::IntList: {
      if (code == 'I') *out = builder.integers(item.ints);
      if (code != 'D') return code == 'I';
      auto* const reals = builder.allocate<double>(count);
      for (size_t i = 0; reals != nullptr && i < count; ++i) reals[i] = static_cast<double>(item.ints[i]);
      *out = builder.doubles({reals, reals == nullptr ? 0 : count});
      return true;
    }
    case fb::GraphTypes::DoubleList:
      *out = builder.doubles(item.reals);
      return code == 'D';
    case fb::GraphTypes::BoolList: {
      auto* const flags = builder.allocate<bool>(item.flags.size());
      for (size_t i = 0; flags != nullptr && i < item.flags.size(); ++i) flags[i] = item.flags[i] != 0;
      *out = builder.booleans({flags, flags == nullptr ? 0 : item.flags.size()});
      return code == 'B';
    }
    case fb::GraphTypes::String:
      *out = builder.text(item.text);
      return code == 'S';
    case fb::GraphTypes::ValueList: {
      if (code == 'I') {
        auto* const items = builder.allocate<Argument>(count);
        for (size_t i = 0; items != nullptr && i < count; ++i) {
          const Item& number = items_[item.list[i]];
          if (!number.is_number() || number.type == fb::GraphTypes::Double) return false;
          new (items + i) Argument(number.slot != nullptr ? Argument(number.slot) : number.number());
        }
        *out = builder.integers(Span<const Argument>{items, items == nullptr ? 0 : count});
        return true;
      }
      auto** const tensors = builder.allocate<TensorValue*>(count);
      for (size_t i = 0; tensors != nullptr && i < count; ++i) {
        const Item& tensor = items_[item.list[i]];
        if (tensor.tensor == nullptr && (code != 'O' || !tensor.is_none())) return false;
        tensors[i] = tensor.tensor == nullptr ? nullptr : value(*tensor.tensor, part);
      }
      if (tensors == nullptr) return true;
      *out = code == 'O' ? builder.optional_tensors(tensors, count) : builder.tensors(tensors, count);
      return code == 'O' || code == 'L';
    }
    default:
      return false;
  }
}

}  // namespace vulkan
}  // namespace torchette
