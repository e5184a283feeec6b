// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/backends/vulkan/interpreter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "torchette/runtime/dtype.h"

namespace torchette {
namespace vulkan {
namespace {

// Opcodes of SPIR-V. compute_integer() and compute_float() contain further opcodes as literals.
// clang-format off
enum : uint32_t {
  kUndef = 1, kExtInst = 12, kExecutionMode = 16, kTypeVoid = 19, kTypeBool = 20, kTypeInt = 21, kTypeFloat = 22, kTypeVector = 23,
  kTypeArray = 28, kTypeRuntimeArray = 29, kTypeStruct = 30, kTypePointer = 32, kConstantTrue = 41, kConstantFalse = 42,
  kConstant = 43, kConstantComposite = 44, kConstantNull = 46, kSpecConstant = 50, kSpecConstantOp = 52, kVariable = 59, kLoad = 61, kStore = 62,
  kAccessChain = 65, kDecorate = 71, kMemberDecorate = 72, kVectorShuffle = 79, kCompositeConstruct = 80,
  kCompositeExtract = 81, kCopyObject = 83, kFloatConvert = 115, kBitcast = 124, kVectorTimesScalar = 142, kSelect = 169,
  kBitFieldSExtract = 202, kBitFieldUExtract = 203, kControlBarrier = 224, kMemoryBarrier = 225, kPhi = 245, kLoopMerge = 246, kSelectionMerge = 247,
  kLabel = 248, kBranch = 249, kBranchConditional = 250, kSwitch = 251, kReturn = 253
};
enum : uint32_t { kPush, kInput, kLocal, kShared, kBuffers };  // memories
// clang-format on
constexpr uint32_t kNone = ~0u;
constexpr uint64_t kMaxSteps = uint64_t{1} << 27;

float as_float(uint32_t bits) {
  float number;
  memcpy(&number, &bits, 4);
  return number;
}
uint32_t bits_of(float number) {
  uint32_t bits;
  memcpy(&bits, &number, 4);
  return bits;
}
// clang-format off
/// An instruction on integers or booleans. Returns false if `op` is not one of them.
inline bool compute_integer(uint32_t op, uint32_t a, uint32_t b, uint32_t* out) {
  const auto x = static_cast<int32_t>(a), y = static_cast<int32_t>(b);
  switch (op) {
    case 126: *out = 0u - a; return true;
    case 128: *out = a + b; return true;
    case 130: *out = a - b; return true;
    case 132: *out = a * b; return true;
    case 134: *out = b == 0 ? 0 : a / b; return true;
    case 135: *out = b == 0 || (y == -1 && a == 0x80000000u) ? 0 : static_cast<uint32_t>(x / y); return true;
    case 137: *out = b == 0 ? 0 : a % b; return true;
    case 138: case 139: {
      int32_t remainder = y == 0 || y == -1 ? 0 : x % y;
      if (op == 139 && remainder != 0 && (remainder < 0) != (y < 0)) remainder += y;
      *out = static_cast<uint32_t>(remainder);
      return true;
    }
    case 164: case 170: *out = a == b; return true;
    case 165: case 171: *out = a != b; return true;
    case 166: *out = a | b; return true;
    case 167: *out = a & b; return true;
    case 168: *out = a == 0; return true;
    case 172: *out = a > b; return true;
    case 173: *out = x > y; return true;
    case 174: *out = a >= b; return true;
    case 175: *out = x >= y; return true;
    case 176: *out = a < b; return true;
    case 177: *out = x < y; return true;
    case 178: *out = a <= b; return true;
    case 179: *out = x <= y; return true;
    case 194: *out = a >> (b & 31); return true;
    case 195: *out = static_cast<uint32_t>(static_cast<int64_t>(x) >> (b & 31)); return true;
    case 196: *out = a << (b & 31); return true;
    case 197: *out = a | b; return true;
    case 198: *out = a ^ b; return true;
    case 199: *out = a & b; return true;
    case 200: *out = ~a; return true;
    default: return false;
  }
}

/// An instruction on floats, or a conversion from or to floats. Returns false if `op` is not one of them.
inline bool compute_float(uint32_t op, uint32_t a, uint32_t b, uint32_t* out) {
  const float f = as_float(a), g = as_float(b);
  const bool unordered = std::isnan(f) || std::isnan(g);
  const auto clamped = [](double value, double low, double high) {
    return static_cast<int64_t>(std::isnan(value) ? 0.0 : std::min(std::max(value, low), high));
  };
  switch (op) {
    case 109: *out = static_cast<uint32_t>(clamped(f, 0, 4294967295.0)); return true;
    case 110: *out = static_cast<uint32_t>(clamped(f, -2147483648.0, 2147483647.0)); return true;
    case 111: *out = bits_of(static_cast<float>(static_cast<int32_t>(a))); return true;
    case 112: *out = bits_of(static_cast<float>(a)); return true;
    case 127: *out = a ^ 0x80000000u; return true;
    case 129: *out = bits_of(f + g); return true;
    case 131: *out = bits_of(f - g); return true;
    case 133: *out = bits_of(f * g); return true;
    case 136: *out = bits_of(f / g); return true;
    case 141: *out = bits_of(f - g * std::floor(f / g)); return true;
    case 156: *out = std::isnan(f); return true;
    case 157: *out = std::isinf(f); return true;
    case 180: *out = f == g; return true;
    case 181: *out = unordered || f == g; return true;
    case 182: *out = !unordered && f != g; return true;
    case 183: *out = f != g; return true;
    case 184: *out = f < g; return true;
    case 185: *out = unordered || f < g; return true;
    case 186: *out = f > g; return true;
    case 187: *out = unordered || f > g; return true;
    case 188: *out = f <= g; return true;
    case 189: *out = unordered || f <= g; return true;
    case 190: *out = f >= g; return true;
    case 191: *out = unordered || f >= g; return true;
    default: return false;
  }
}

/// The bits [offset, offset + count) of `a`, as an integer with or without a sign.
inline uint32_t bit_field(uint32_t a, uint32_t offset, uint32_t count, bool is_signed) {
  const uint32_t bits = std::min(count, 32 - offset);
  const uint64_t field = bits == 0 ? 0 : (a >> offset) & (~uint64_t{0} >> (64 - bits));
  const bool fills = is_signed && bits != 0 && (field >> (bits - 1) & 1) != 0;
  return static_cast<uint32_t>(fills ? field | ~uint64_t{0} << bits : field);
}
// clang-format on
}  // namespace

Interpreter::Interpreter(Span<const uint32_t> words, Span<const uint32_t> constants) : words_(words) {
  const uint32_t bound = words.size() > 5 ? words[3] : 0;
  types_.resize(bound);
  for (std::vector<uint32_t>* it : {&type_of_, &register_of_, &label_, &special_, &binding_, &builtin_})
    it->assign(bound, kNone);
  size_t n = 0;
  for (size_t at = 5; at < words.size(); at += n) {
    n = words[at] >> 16;
    if (n == 0 || n > words.size() - at) {
      ok_ = false;
      return;
    }
    declare(&words[at], static_cast<uint32_t>(n), constants);
  }
  // A read of a scalar also reads the registers after it and ignores them.
  template_.resize(template_.size() + 16);
}

void Interpreter::reserve_register(uint32_t id, uint32_t type) {
  type_of_[id] = type;
  register_of_[id] = static_cast<uint32_t>(template_.size());
  template_.resize(template_.size() + std::max(types_[type].words, 1u));
}

void Interpreter::finish_type(uint32_t id) {
  Type& type = types_[id];
  if (type.op == kTypePointer) {
    type.words = 2;
  } else if (type.op == kTypeVector || type.op == kTypeArray) {
    if (type.stride == 0) type.stride = types_[type.element].bytes;
    type.words = type.count * types_[type.element].words;
    type.bytes = type.count * type.stride;
  } else if (type.op == kTypeStruct) {
    type.offsets.resize(type.members.size(), kNone);
    for (size_t i = 0; i < type.members.size(); ++i) {
      const Type& member = types_[type.members[i]];
      if (type.offsets[i] == kNone) type.offsets[i] = type.bytes;
      type.words += member.words;
      type.bytes = std::max(type.bytes, type.offsets[i] + member.bytes);
    }
  } else if (type.op != kTypeRuntimeArray && type.op != kTypeVoid) {
    type.words = 1;
    type.bytes = type.op == kTypeBool ? 4 : type.width / 8;
  }
}

void Interpreter::variable(const uint32_t* w) {
  const uint32_t id = w[2], storage = w[3];
  const Type& type = types_[types_[w[1]].element];
  uint32_t* const pointer = &template_[register_of_[id]];
  switch (storage) {
    case 1:  // input
      pointer[0] = kInput, pointer[1] = input_size_;
      inputs_.push_back({builtin_[id], input_size_});
      input_size_ += 16;
      break;
    case 4:
      pointer[0] = kShared, pointer[1] = shared_size_;
      shared_size_ += type.bytes;
      break;
    case 7:
      pointer[0] = kLocal, pointer[1] = local_size_;
      local_size_ += type.bytes;
      break;
    case 9:
      pointer[0] = kPush, pointer[1] = 0;
      break;
    default:  // buffers
      ok_ = ok_ && binding_[id] != kNone;
      pointer[0] = kBuffers + binding_[id], pointer[1] = 0;
  }
}

/// Reads the declaration of an instruction, or reserves the register of a result inside of a function.
void Interpreter::declare(const uint32_t* w, uint32_t n, Span<const uint32_t> constants) {
  const uint32_t op = w[0] & 0xffff;
  if (op == kExecutionMode) {
    if (w[2] == 17) memcpy(local_, w + 3, sizeof(local_));
  } else if (op == kDecorate) {
    if (w[2] == 1) special_[w[1]] = w[3];
    if (w[2] == 6) types_[w[1]].stride = w[3];
    if (w[2] == 11) builtin_[w[1]] = w[3];
    if (w[2] == 33) binding_[w[1]] = w[3];
  } else if (op == kMemberDecorate) {
    std::vector<uint32_t>& offsets = types_[w[1]].offsets;
    if (offsets.size() <= w[2]) offsets.resize(w[2] + 1, kNone);
    if (w[3] == 35) offsets[w[2]] = w[4];
  } else if (op >= kTypeVoid && op <= kTypePointer) {
    Type& type = types_[w[1]];
    type.op = op;
    if (op == kTypeInt || op == kTypeFloat) type.width = w[2];
    if (op == kTypeVector) type.element = w[2], type.count = w[3];
    if (op == kTypeRuntimeArray) type.element = w[2];
    if (op == kTypeArray) type.element = w[2], type.count = template_[register_of_[w[3]]];
    if (op == kTypePointer) type.element = w[3];
    if (op == kTypeStruct) type.members.assign(w + 2, w + n);
    finish_type(w[1]);
  } else if (op == kUndef || op == kConstantNull) {
    reserve_register(w[2], w[1]);
  } else if (op == kVariable) {
    reserve_register(w[2], w[1]);
    variable(w);
  } else if (op >= kConstantTrue && op <= kConstant) {
    reserve_register(w[2], w[1]);
    const bool is_half = types_[w[1]].op == kTypeFloat && types_[w[1]].width == 16;
    template_[register_of_[w[2]]] = op != kConstant ? op == kConstantTrue
                                    : is_half       ? bits_of(Half::to_float(static_cast<uint16_t>(w[3])))
                                                    : w[3];
  } else if (op == kSpecConstant) {
    reserve_register(w[2], w[1]);
    const uint32_t number = special_[w[2]];
    template_[register_of_[w[2]]] = number < constants.size() ? constants[number] : w[3];
  } else if (op == kConstantComposite || op == kSpecConstantOp) {
    reserve_register(w[2], w[1]);
    uint32_t call[16] = {kCompositeConstruct, w[1], w[2]};
    if (n > 16) ok_ = false;
    if (op == kSpecConstantOp) call[0] = w[3];
    const uint32_t skip = op == kSpecConstantOp ? 1 : 0;
    for (uint32_t i = 3; ok_ && i + skip < n; ++i) call[i] = w[i + skip];
    ok_ = ok_ && compute(call, n - skip, template_.data());
  } else if (op == kLabel) {
    label_[w[1]] = static_cast<uint32_t>(w - words_.data());
    if (entry_ == 0) entry_ = label_[w[1]];
  } else if (entry_ != 0 && op != kStore && op != kControlBarrier && op != kMemoryBarrier &&
             op < kLoopMerge && n > 2) {
    reserve_register(w[2], w[1]);  // of a result
  }
}

bool Interpreter::run(Span<const uint32_t> push, Span<const Span<uint8_t>> buffers,
                      const uint32_t (&groups)[3]) {
  if (!ok_ || entry_ == 0 || input_size_ > sizeof(Invocation::input)) return false;
  shared_.assign(shared_size_, 0);
  memories_.assign(kBuffers, {});
  std::vector<uint8_t> pushed(push.size() * 4);
  if (!pushed.empty()) memcpy(pushed.data(), push.data(), pushed.size());
  memories_[kPush] = {pushed.data(), pushed.size()};
  memories_[kShared] = {shared_.data(), shared_.size()};
  for (const Span<uint8_t>& it : buffers) memories_.push_back(it);
  std::vector<Invocation> all(size_t{local_[0]} * local_[1] * local_[2]);
  steps_ = 0;
  for (uint32_t group = 0; group < groups[0] * groups[1] * groups[2]; ++group) {
    for (uint32_t i = 0; i < all.size(); ++i) {
      Invocation& me = all[i];
      me.registers = template_;
      me.local.assign(local_size_, 0);
      me.at = entry_, me.block = kNone, me.is_done = false;
      const uint32_t local_id[3] = {i % local_[0], i / local_[0] % local_[1], i / local_[0] / local_[1]};
      const uint32_t group_id[3] = {group % groups[0], group / groups[0] % groups[1],
                                    group / groups[0] / groups[1]};
      for (const Place& it : inputs_) {
        uint32_t value[4] = {i};  // index of the invocation
        for (int d = 0; d < 3 && it.builtin != 29; ++d)
          value[d] = it.builtin == 24   ? groups[d]
                     : it.builtin == 26 ? group_id[d]
                     : it.builtin == 27 ? local_id[d]
                                        : group_id[d] * local_[d] + local_id[d];
        memcpy(me.input + it.offset, value, sizeof(value));
      }
    }
    for (bool is_running = true; is_running;) {  // from barrier to barrier
      is_running = false;
      for (Invocation& me : all) {
        if (me.is_done) continue;
        if (!advance(me)) return false;
        is_running = is_running || !me.is_done;
      }
    }
  }
  return true;
}

bool Interpreter::move(uint8_t* at, uint32_t id, uint32_t* number, bool stores) const {
  const Type& type = types_[id];
  if (type.op == kTypeStruct) {
    for (size_t i = 0; i < type.members.size(); ++i) {
      if (!move(at + type.offsets[i], type.members[i], number, stores)) return false;
      number += types_[type.members[i]].words;
    }
  } else if (type.op == kTypeVector || type.op == kTypeArray) {
    for (uint32_t i = 0; i < type.count; ++i)
      if (!move(at + i * type.stride, type.element, number + i * types_[type.element].words, stores))
        return false;
  } else if (type.bytes == 2) {
    uint16_t half = stores ? Half::from_float(as_float(*number)) : uint16_t{0};
    memcpy(stores ? at : reinterpret_cast<uint8_t*>(&half), stores ? reinterpret_cast<uint8_t*>(&half) : at,
           2);
    if (!stores) *number = bits_of(Half::to_float(half));
  } else if (type.bytes == 4) {
    if (stores)
      memcpy(at, number, 4);
    else
      memcpy(number, at, 4);
  } else {
    return false;
  }
  return true;
}

bool Interpreter::access(Invocation& me, const uint32_t* pointer, uint32_t type, uint32_t* number,
                         bool stores) {
  if (pointer[0] >= memories_.size()) return false;
  const Span<uint8_t> memory = pointer[0] == kInput   ? Span<uint8_t>(me.input, sizeof(me.input))
                               : pointer[0] == kLocal ? Span<uint8_t>(me.local.data(), me.local.size())
                                                      : memories_[pointer[0]];
  const uint32_t bytes = types_[type].bytes;
  if (bytes > memory.size() || pointer[1] > memory.size() - bytes) return false;
  return move(memory.data() + pointer[1], type, number, stores);
}

void Interpreter::jump(Invocation& me, uint32_t label) {
  // All phi operands are read before any phi result is written.
  uint32_t at = label_[label] + 2;
  std::vector<std::pair<uint32_t, uint32_t>> moves;
  while ((words_[at] & 0xffff) == kPhi) {
    const uint32_t n = words_[at] >> 16;
    for (uint32_t i = 3; i + 1 < n; i += 2) {
      if (words_[at + i + 1] != me.block) continue;
      for (uint32_t k = 0; k < types_[words_[at + 1]].words; ++k)
        moves.push_back({register_of_[words_[at + 2]] + k, me.registers[register_of_[words_[at + i]] + k]});
    }
    at += n;
  }
  for (const auto& it : moves) me.registers[it.first] = it.second;
  me.block = label;
  me.at = at;
}

bool Interpreter::advance(Invocation& me) {
  uint32_t* const r = me.registers.data();
  const auto of = [&](uint32_t id) { return r + register_of_[id]; };
  for (;;) {
    if (++steps_ > kMaxSteps) return false;
    const uint32_t* const w = &words_[me.at];
    const uint32_t op = w[0] & 0xffff, n = w[0] >> 16;
    me.at += n;
    switch (op) {
      case kLabel:
        me.block = w[1];
        break;
      case kUndef:
      case kVariable:
      case kLoopMerge:
      case kSelectionMerge:
      case kMemoryBarrier:
        break;
      case kControlBarrier:
        return true;
      case kReturn:
        me.is_done = true;
        return true;
      case kBranch:
        jump(me, w[1]);
        break;
      case kBranchConditional:
        jump(me, *of(w[1]) != 0 ? w[2] : w[3]);
        break;
      case kSwitch: {
        uint32_t target = w[2];
        for (uint32_t i = 3; i + 1 < n; i += 2)
          if (w[i] == *of(w[1])) target = w[i + 1];
        jump(me, target);
        break;
      }
      case kLoad:
        if (!access(me, of(w[3]), w[1], of(w[2]), false)) return false;
        break;
      case kStore:
        if (!access(me, of(w[1]), type_of_[w[2]], of(w[2]), true)) return false;
        break;
      case kAccessChain: {
        uint32_t* const out = of(w[2]);
        out[0] = of(w[3])[0];
        uint32_t type = types_[type_of_[w[3]]].element;
        uint64_t at = of(w[3])[1];
        for (uint32_t i = 4; i < n; ++i) {
          const uint32_t index = *of(w[i]);
          const Type& it = types_[type];
          if (it.op == kTypeStruct && index >= it.members.size()) return false;
          at += it.op == kTypeStruct ? it.offsets[index] : uint64_t{it.stride} * index;
          type = it.op == kTypeStruct ? it.members[index] : it.element;
        }
        out[1] = static_cast<uint32_t>(std::min<uint64_t>(at, kNone));
        break;
      }
      case kExtInst:
        if (!extended(w, r)) return false;
        break;
      default:
        if (!compute(w, n, r)) return false;
    }
  }
}

/// Instructions that copy whole words: composites and shuffles.
bool Interpreter::compose(const uint32_t* w, uint32_t n, uint32_t* registers) const {
  uint32_t* const out = registers + register_of_[w[2]];
  const uint32_t count = types_[w[1]].words, op = w[0] & 0xffff;
  const auto of = [&](uint32_t i) { return registers + register_of_[w[3 + i]]; };
  if (op == kCompositeConstruct) {
    uint32_t* to = out;
    for (uint32_t i = 3; i < n; ++i) {
      const uint32_t words = types_[type_of_[w[i]]].words;
      memcpy(to, of(i - 3), words * 4);
      to += words;
    }
    return true;
  }
  if (op == kCompositeExtract) {
    uint32_t type = type_of_[w[3]];
    const uint32_t* from = of(0);
    for (uint32_t i = 4; i < n; ++i) {
      const Type& it = types_[type];
      for (uint32_t k = 0; k < w[i]; ++k)
        from += types_[it.op == kTypeStruct ? it.members[k] : it.element].words;
      type = it.op == kTypeStruct ? it.members[w[i]] : it.element;
    }
    memcpy(out, from, count * 4);
    return true;
  }
  const uint32_t first = types_[type_of_[w[3]]].words;
  for (uint32_t i = 0; i < count; ++i) out[i] = w[5 + i] < first ? of(0)[w[5 + i]] : of(1)[w[5 + i] - first];
  return true;
}

bool Interpreter::compute(const uint32_t* w, uint32_t n, uint32_t* registers) const {
  uint32_t* const out = registers + register_of_[w[2]];
  const uint32_t count = types_[w[1]].words, op = w[0] & 0xffff;
  const auto of = [&](uint32_t i) { return registers + register_of_[w[3 + i]]; };
  if (op == kCompositeConstruct || op == kCompositeExtract || op == kVectorShuffle)
    return compose(w, n, registers);
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t a = of(0)[i], b = n > 4 ? of(1)[i] : 0;
    switch (op) {
      case kFloatConvert:
        out[i] = types_[w[1]].width == 16 ? bits_of(Half::to_float(Half::from_float(as_float(a)))) : a;
        break;
      case kCopyObject:
      case kBitcast:
        out[i] = a;
        break;
      case kVectorTimesScalar:
        out[i] = bits_of(as_float(a) * as_float(of(1)[0]));
        break;
      case kSelect: {
        const bool chosen = of(0)[types_[type_of_[w[3]]].words == 1 ? 0 : i] != 0;
        out[i] = chosen ? b : of(2)[i];
        break;
      }
      case kBitFieldSExtract:
      case kBitFieldUExtract:
        out[i] = bit_field(a, b & 31, *of(2), op == kBitFieldSExtract);
        break;
      default:
        if (!compute_integer(op, a, b, &out[i]) && !compute_float(op, a, b, &out[i])) return false;
    }
  }
  return true;
}

/// GLSL.std.450
bool Interpreter::extended(const uint32_t* w, uint32_t* registers) const {
  uint32_t* const out = registers + register_of_[w[2]];
  const uint32_t words = w[0] >> 16;
  for (uint32_t i = 0; i < types_[w[1]].words; ++i) {
    uint32_t u[3] = {0, 0, 0};
    for (uint32_t k = 0; k < 3 && k + 5 < words; ++k) u[k] = registers[register_of_[w[5 + k]] + i];
    const auto x = static_cast<int32_t>(u[0]), y = static_cast<int32_t>(u[1]), z = static_cast<int32_t>(u[2]);
    const double f = as_float(u[0]), g = as_float(u[1]), h = as_float(u[2]);
    const auto sign = [](double number) { return number > 0 ? 1.0 : number < 0 ? -1.0 : 0.0; };
    const auto real = [&](double number) { out[i] = bits_of(static_cast<float>(number)); };
    // clang-format off
    switch (w[4]) {
      case 1: case 2: real(std::nearbyint(f)); break;
      case 3: real(std::trunc(f)); break;
      case 4: real(std::fabs(f)); break;
      case 5: out[i] = x < 0 ? 0u - u[0] : u[0]; break;
      case 6: real(sign(f)); break;
      case 7: out[i] = static_cast<uint32_t>(x > 0 ? 1 : x < 0 ? -1 : 0); break;
      case 8: real(std::floor(f)); break;
      case 9: real(std::ceil(f)); break;
      case 10: real(f - std::floor(f)); break;
      case 13: real(std::sin(f)); break;
      case 14: real(std::cos(f)); break;
      case 15: real(std::tan(f)); break;
      case 16: real(std::asin(f)); break;
      case 17: real(std::acos(f)); break;
      case 18: real(std::atan(f)); break;
      case 19: real(std::sinh(f)); break;
      case 20: real(std::cosh(f)); break;
      case 21: real(std::tanh(f)); break;
      case 22: real(std::asinh(f)); break;
      case 23: real(std::acosh(f)); break;
      case 24: real(std::atanh(f)); break;
      case 25: real(std::atan2(f, g)); break;
      case 26: real(std::pow(f, g)); break;
      case 27: real(std::exp(f)); break;
      case 28: real(std::log(f)); break;
      case 29: real(std::exp2(f)); break;
      case 30: real(std::log2(f)); break;
      case 31: real(std::sqrt(f)); break;
      case 32: real(1 / std::sqrt(f)); break;
      case 37: real(g < f ? g : f); break;
      case 38: out[i] = std::min(u[0], u[1]); break;
      case 39: out[i] = static_cast<uint32_t>(std::min(x, y)); break;
      case 40: real(f < g ? g : f); break;
      case 41: out[i] = std::max(u[0], u[1]); break;
      case 42: out[i] = static_cast<uint32_t>(std::max(x, y)); break;
      case 43: real(std::min(std::max(f, g), h)); break;
      case 44: out[i] = std::min(std::max(u[0], u[1]), u[2]); break;
      case 45: out[i] = static_cast<uint32_t>(std::min(std::max(x, y), z)); break;
      case 46: real(f * (1 - h) + g * h); break;
      case 50: real(f * g + h); break;
      default: return false;
    }
    // clang-format on
  }
  return true;
}

}  // namespace vulkan
}  // namespace torchette
