// SPDX-License-Identifier: BSD-3-Clause
// Calls of a payload as calls of kernels: one kernel with the arguments of the call, or the recipe of
// host.def.
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <string>

#include "torchette/backends/vulkan/host.h"
#include "torchette/backends/vulkan/host_kernels.h"

namespace torchette {
namespace vulkan {
namespace {

constexpr int kMaxTemporaries = 26;  // A to Z
constexpr char kPrepack[] = "et_vk.prepack.default";

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

/// The kernel with the name of an operator: "aten::add.Tensor_out" or "aten::add.out" for "aten.add.Tensor".
/// A view is a copy, such as "aten::view_copy.out".
const Kernel* kernel_of_operator(const std::string& name) {
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

/// A code of a signature: its letter, whether it may be None, and whether the kernel writes it.
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

bool is_digit(char c) { return c >= '0' && c <= '9'; }
int digits(const char*& at) {
  int number = 0;
  while (is_digit(*at) && number < 1000) number = number * 10 + (*at++ - '0');
  return number;
}

}  // namespace

/// The state of a recipe: the arguments, results and temporaries of its call.
struct Host::Stage {
  const char* name;
  uint32_t handle;
  Span<const int32_t> args;      // without the results
  std::vector<int32_t> results;  // slots
  int32_t last;                  // the slot of the list of results, or of the only result
  size_t rank;                   // of the first result
  ScalarType type;               // the integer type that the call quantizes to or from
  int32_t temporaries[kMaxTemporaries];
  // of the current stage
  bool is_constant = false;
  std::vector<Stored*> read, defined;

  int32_t argument(int i) const {
    return static_cast<size_t>(i) < args.size() ? args[static_cast<size_t>(i)] : -1;
  }

  Error refuse(const char* why) const {
    TORCHETTE_LOG(Error, "the processor cannot run Vulkan's %.80s: %s", name, why);
    return Error::NotSupported;
  }
};

/// Finds the constants that change: results of calls, and the arguments that recipes write. The result of a
/// prepack call is the tensor of its argument.
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
    const flat::Table outer = payload_.values()[last];
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
    it->dynamism = TensorShapeDynamism::STATIC;  // the caller owns the memory
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
    std::fill(it.temporaries, it.temporaries + kMaxTemporaries, -1);
    const char* recipe = recipe_of((std::string(name) + "/" + std::to_string(it.rank)).c_str());
    if (recipe == nullptr) recipe = recipe_of(name);
    std::string own;
    if (recipe == nullptr) {
      const Kernel* const kernel = kernel_of_operator(name);
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
  std::vector<std::pair<int32_t, int32_t>> kept;  // states, and the tensors to copy to them
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
          const int32_t result = add(Value(Tensor(make(it->type, it->dim))));
          kept.push_back({slot, result});
          slot = result;
          it = stored(result);
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
  for (const auto& [state, result] : kept) {
    of.is_constant = false;
    of.read.assign(1, stored(result));
    of.defined.clear();
    add_step(*copy_, {state, result, add(Value(false)), state}, of);
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

/// Converts a value to the type of a kernel's argument. Returns the slot of the converted value, `slot`
/// itself if the value has the type, or -1 if there is no conversion.
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
  return code == 'i' ? add(Value(static_cast<int64_t>(of.type))) : -1;  // the dtype of the tensor
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

/// Reads a word of a recipe (see host.def) and returns the slot of the kernel's argument; -1 if there is
/// none.
int32_t Host::input(const char*& at, char code, bool optional, Stage& of) {
  if (is_digit(*at)) return argument_input(at, code, optional, of);
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
      const int64_t integer = strtoll(at, &end, 10);
      at = end;
      return as(add(Value(integer)), code, optional, of);
    }
    case 'x': {
      const double real = strtod(at, &end);
      at = end;
      return as(add(Value(real)), code, optional, of);
    }
    case 's':  // the default scale of attention
      return add(Value(1 / std::sqrt(static_cast<double>(last_size(of.argument(digits(at)))))));
    case 'k':
      return add(Value(last_size(of.argument(digits(at)))));
    case 'c': {
      const int32_t slot = of.argument(digits(at));
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
      return boxed(Tag::ListInt, {add(Value(last_size(of.argument(digits(at)))))});
    case '[':
      return list_input(at, of);
    default:
      return -1;
  }
}

/// "3", an argument of the call, or "3|word", which stands for `word` if the call does not have the argument.
int32_t Host::argument_input(const char*& at, char code, bool optional, Stage& of) {
  const int32_t slot = of.argument(digits(at));
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

/// The integers of "[0,(1),2]", behind the bracket; "(1)" is argument 1 of the call.
int32_t Host::list_input(const char*& at, Stage& of) {
  std::vector<int32_t> slots;
  while (*at != ']' && *at != 0) {
    if (*at == '(') {
      ++at;
      const int32_t slot = of.argument(digits(at));
      ++at;
      if (slot < 0 || !values_[static_cast<size_t>(slot)].is_scalar()) return -1;
      slots.push_back(slot);
    } else {
      char* end = nullptr;
      slots.push_back(add(Value(int64_t{strtoll(at, &end, 10)})));
      at = end;
    }
    at += *at == ',';
  }
  at += *at == ']';
  return boxed(Tag::ListInt, slots);
}

/// The last size of a tensor of the payload; 1 for anything else.
int64_t Host::last_size(int32_t slot) const {
  const Stored* const it = slot < 0 ? nullptr : stored(slot);
  if (it == nullptr || it->dim == 0 || static_cast<size_t>(slot) >= given_.size()) return 1;
  return given_[static_cast<size_t>(slot)].dims[it->dim - 1u];
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
    return add(Value(Tensor(make(ScalarType::Float, of.rank))));  // the call has no such result
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
  return of.temporaries[word - 'A'] = add(Value(Tensor(make(type, std::min(rank, kMaxDims)))));
}

}  // namespace vulkan
}  // namespace torchette
