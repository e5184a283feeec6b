// SPDX-License-Identifier: BSD-3-Clause
// Fuzzes every kernel of the table with arguments that match its signature but little else: wrong shapes,
// dtypes, ranks, layouts and values, and outputs that alias operands. AddressSanitizer and
// UndefinedBehaviorSanitizer end the process if a kernel accesses memory outside of its tensors. Every
// rejection must log a message. Arguments: calls per kernel, seed, file of valid calls ("" for none), parts
// of kernel names (default: all). Prints "name: ran, refused" per kernel, followed by its distinct messages
// with N in place of each number.
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/kernel.h"

using namespace torchette;

namespace {

constexpr ScalarType kTypes[] = {ScalarType::Float, ScalarType::Double,   ScalarType::Long,  ScalarType::Int,
                                 ScalarType::Bool,  ScalarType::Half,     ScalarType::Byte,  ScalarType::Char,
                                 ScalarType::Short, ScalarType::BFloat16, ScalarType::UInt16};
constexpr size_t kLargest = 1 << 14;  // elements of a tensor
constexpr size_t kScratch = 1 << 22;  // bytes

size_t messages = 0;
std::string last_message;
const char* running = "nothing";

void count_message(torchette_timestamp_t, torchette_log_level_t, const char*, const char*, size_t,
                   const char* message, size_t length) {
  ++messages;
  last_message.assign(message, length);
}

extern "C" void took_too_long(int) {
  static const char kText[] = " runs for too long\n";
  if (write(2, running, strlen(running)) < 0 || write(2, kText, sizeof(kText) - 1) < 0) _exit(4);
  _exit(3);
}

/// Scratch memory with a limit, as on a device.
class Scratch final : public MemoryAllocator {
 public:
  Scratch() : MemoryAllocator(0, nullptr) {}
  void* allocate(size_t size, size_t alignment) override {
    if (size > kScratch) return nullptr;
    // Exact size, so that the sanitizer detects any access beyond the end.
    void* const piece = aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
    pieces_.push_back(piece);
    return piece;
  }
  void reset() override {
    for (void* piece : pieces_) free(piece);
    pieces_.clear();
  }

 private:
  std::vector<void*> pieces_;
};

using Shape = std::vector<SizesType>;
/// A valid call, one word per argument: `-` None, `v` an output slot for a scalar, `i5` `d0.5` `b1` scalars,
/// `Sfloor` a string (~ for a space), `I1,2` `D0.5` `B1,0` lists, `T6:2,3:00..` a tensor (type, sizes, bytes
/// in hexadecimal), `L` a list of tensors separated by `|`.
using Example = std::vector<std::string>;

std::vector<std::string> parts_of(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

class Call {
 public:
  Call(const Kernel& kernel, std::mt19937_64& random, const std::vector<Example>* examples)
      : random_(random) {
    values_.reserve(512);  // lists point into it
    base_ = any_shape();
    type_ = one_of(kTypes);
    tame_ = chance(40);
    mixed_ = !tame_ && chance(25);
    if (tame_) {  // almost valid arguments, which pass the checks and reach the loops
      base_ = Shape(2 + below(4));
      for (SizesType& size : base_) size = static_cast<SizesType>(1 + below(4));
      if (chance(60)) type_ = ScalarType::Float;
      length_ = chance(70) && base_.size() > 2 ? base_.size() - 2 : chance(50) ? base_.size() : 1 + below(3);
      indices_ = chance(30);
    }
    // Half of the calls use an example, either unchanged or with a few wrong arguments.
    const Example* const example =
        examples != nullptr && chance(50) ? &(*examples)[below(examples->size())] : nullptr;
    const size_t wrong = chance(30) ? 0 : 15;
    const char* code = kernel.signature;
    size_t count = 0;
    for (const char* c = code; *c != 0; ++c) count += *c != '?';
    values_.resize(count);
    for (size_t i = 0; *code != 0; ++i, ++code) {
      const bool optional = *code == '?';
      if (optional) ++code;
      if (example != nullptr && !chance(wrong))
        values_[i] = given((*example)[i], *code);
      else if (!optional || !chance(40))
        values_[i] = argument(*code, code[1] == 0);
      index_.push_back(static_cast<int32_t>(i));
    }
  }

  Args arguments() { return {values_.data(), index_.data()}; }

 private:
  struct Storage {
    TensorImpl impl;
    SizesType sizes[kMaxDim];
    StridesType strides[kMaxDim];
    DimOrderType dim_order[kMaxDim];
  };
  struct List {
    PlainList plain;
    BoxedList boxed;
    std::string text;
    std::vector<double> doubles;
    std::unique_ptr<bool[]> bools;
    std::vector<int32_t> narrow;
    std::vector<int64_t> wide;
    std::vector<Optional<Tensor>> gathered;
    std::vector<int64_t> gathered_numbers;
  };
  struct Free {
    void operator()(void* p) const { free(p); }
  };

  size_t below(size_t n) { return static_cast<size_t>(random_() % n); }
  bool chance(size_t percent) { return below(100) < percent; }
  template <typename T, size_t n>
  T one_of(const T (&items)[n]) {
    return items[below(n)];
  }

  Shape any_shape() {
    static constexpr SizesType kSizes[] = {1, 2, 2, 3, 3, 4, 5, 7, 9, 0};
    static constexpr size_t kRanks[] = {0, 1, 1, 2, 2, 3, 3, 4, 4, 4, 5, 5, 6, 16};
    Shape shape(one_of(kRanks));
    const bool small = shape.size() > 5;
    for (SizesType& size : shape) size = small ? (chance(80) ? 1 : 2) : one_of(kSizes);
    return shape;
  }
  /// Returns a shape that often matches or broadcasts with the other shapes, and often does not.
  Shape shape() {
    Shape shape = base_;
    if (tame_ && chance(70)) return chance(20) && shape.size() > 1 ? Shape{shape[1]} : shape;
    switch (below(10)) {
      case 0:
        return any_shape();
      case 1:
        for (SizesType& size : shape)
          if (chance(40)) size = 1;
        return shape;
      case 2:
        shape.erase(shape.begin(),
                    shape.begin() + static_cast<ptrdiff_t>(shape.empty() ? 0 : below(shape.size())));
        return shape;
      case 3:
        if (!shape.empty()) shape[below(shape.size())] = static_cast<SizesType>(below(6));
        return shape;
      case 4:
        if (shape.size() > 1) return {shape[1]};
        return shape;
      case 5:
        if (shape.size() > 1) std::swap(shape[shape.size() - 1], shape[shape.size() - 2]);
        return shape;
      default:
        return shape;
    }
  }

  Value tensor(bool output) {
    Storage& storage = storage_.emplace_back();
    TensorImpl& impl = storage.impl;
    const Shape sizes = shape();
    impl.type = mixed_ && chance(50) ? one_of(kTypes) : type_;
    if (output && !mixed_ && chance(15)) impl.type = chance(50) ? ScalarType::Bool : ScalarType::Long;
    if (indices_ && !output && !storage_.empty() && chance(50)) impl.type = ScalarType::Long;
    impl.dim = static_cast<uint8_t>(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      storage.sizes[d] = sizes[d];
      storage.dim_order[d] = static_cast<DimOrderType>(d);
    }
    if (sizes.size() > 1 && chance(20)) {
      if (chance(50)) {  // channels last
        for (size_t d = 1; d + 1 < sizes.size(); ++d) storage.dim_order[d] = static_cast<DimOrderType>(d + 1);
        storage.dim_order[sizes.size() - 1] = 1;
      } else {
        for (size_t d = sizes.size(); d-- > 1;)
          std::swap(storage.dim_order[d], storage.dim_order[below(d + 1)]);
      }
    }
    impl.sizes = storage.sizes;
    impl.strides = storage.strides;
    impl.dim_order = storage.dim_order;
    const Result<int32_t> numel =
        dense_strides({storage.sizes, sizes.size()}, storage.dim_order, storage.strides);
    impl.numel = *numel;
    impl.capacity = static_cast<size_t>(impl.numel);
    impl.dynamism = TensorShapeDynamism::STATIC;
    if (output && chance(75)) {
      impl.dynamism = TensorShapeDynamism::DYNAMIC_BOUND;
      if (chance(70)) impl.capacity += tame_ ? 4000 : below(400);
    }
    const size_t bytes = impl.capacity * element_size(impl.type);
    if (output && !tame_ && !buffers_.empty() && chance(15)) {
      for (const auto& [buffer, size] :
           buffers_) {  // aliases the memory of an operand, at its start or inside
        if (size < bytes) continue;
        const size_t spare = (size - bytes) / 8 * 8;
        impl.data = static_cast<uint8_t*>(buffer.get()) + (chance(50) ? 0 : below(spare / 8 + 1) * 8);
        return Value(Tensor(&impl));
      }
    }
    impl.data = malloc(bytes);
    buffers_.emplace_back(impl.data, bytes);
    fill(impl);
    if (impl.capacity == 0 && chance(50)) impl.data = nullptr;
    return Value(Tensor(&impl));
  }

  void fill(TensorImpl& impl) {
    const size_t kind = below(8);
    const size_t extent = 1 + below(7);
    for (size_t i = 0; i < impl.capacity; ++i) {
      double x = static_cast<double>(below(extent)) - (kind == 0 ? 3 : 0);
      if (kind == 1 && chance(10)) x = number();
      if (kind == 2) x = static_cast<double>(below(1000)) / 500 - 1;
      const auto whole = static_cast<int64_t>(truncate(x));
      void* const at = static_cast<uint8_t*>(impl.data) + i * element_size(impl.type);
      switch (impl.type) {
        case ScalarType::Float:
          *static_cast<float*>(at) = static_cast<float>(x);
          break;
        case ScalarType::Double:
          *static_cast<double*>(at) = x;
          break;
        case ScalarType::Half:
          *static_cast<Half*>(at) = Half(static_cast<float>(x));
          break;
        case ScalarType::BFloat16:
          *static_cast<BFloat16*>(at) = BFloat16(static_cast<float>(x));
          break;
        case ScalarType::Bool:
          *static_cast<uint8_t*>(at) = static_cast<uint8_t>(kind == 3 ? whole : whole & 1);
          break;
        default:
          memcpy(at, &whole, element_size(impl.type));
      }
    }
  }

  double number() {
    static const double kNumbers[] = {0,
                                      1,
                                      -1,
                                      0.5,
                                      -0.0,
                                      2,
                                      3,
                                      1e300,
                                      -1e300,
                                      1e10,
                                      1e-300,
                                      7,
                                      std::numeric_limits<double>::quiet_NaN(),
                                      std::numeric_limits<double>::infinity(),
                                      -std::numeric_limits<double>::infinity()};
    return kNumbers[below(sizeof(kNumbers) / sizeof(double))];
  }
  int64_t whole() {
    static constexpr int64_t kNumbers[] = {0,
                                           0,
                                           0,
                                           1,
                                           1,
                                           1,
                                           -1,
                                           -1,
                                           2,
                                           2,
                                           -2,
                                           3,
                                           4,
                                           5,
                                           -3,
                                           8,
                                           16,
                                           100,
                                           -100,
                                           255,
                                           INT32_MAX,
                                           int64_t{INT32_MAX} + 1,
                                           int64_t{1} << 33,
                                           INT64_MAX,
                                           INT64_MIN,
                                           INT32_MIN};
    const size_t common = 14;
    return chance(85) ? kNumbers[below(common)] : one_of(kNumbers);
  }

  Value list(Tag tag) {
    List& list = lists_.emplace_back();
    const size_t rank = base_.size();
    static constexpr size_t kMore[] = {0, 0, 1, 2, 3};
    const size_t lengths[] = {0, 1, 2, 3, rank, rank, rank > 2 ? rank - 2 : 1, 2 * rank, below(20)};
    const size_t n = tame_ && chance(85) ? length_ : one_of(lengths);
    const auto size = static_cast<uint32_t>(n);
    const bool tame = tame_ || chance(60), ones = chance(30);
    switch (tag) {
      case Tag::ListDouble:
        for (size_t i = 0; i < n; ++i) list.doubles.push_back(number());
        list.plain = {list.doubles.data(), size};
        return Value(tag, &list.plain);
      case Tag::ListBool:
        list.bools.reset(new bool[n]);
        for (size_t i = 0; i < n; ++i) list.bools[i] = chance(50);
        list.plain = {list.bools.get(), size};
        return Value(tag, &list.plain);
      case Tag::ListInt:
        for (size_t i = 0; i < n; ++i) {
          int64_t x = whole();
          if (tame) x = ones ? 1 : static_cast<int64_t>(below(4));
          if (tame && !ones && chance(30) && i < rank) x = base_[i];
          if (tame && n == rank && chance(20)) x = static_cast<int64_t>(i);
          list.wide.push_back(add(Value(x)));
        }
        list.gathered_numbers.resize(n);
        list.boxed = {values_.data(), list.wide.data(), list.gathered_numbers.data(), size};
        return Value(tag, &list.boxed);
      default: {
        const size_t m = 1 + one_of(kMore);
        for (size_t i = 0; i < m; ++i) {
          const bool absent = tag == Tag::ListOptionalTensor && chance(25);
          list.narrow.push_back(absent ? -1 : add(tensor(false)));
        }
        if (chance(5)) list.narrow.clear();
        list.gathered.resize(m);
        list.boxed = {values_.data(), list.narrow.data(), list.gathered.data(),
                      static_cast<uint32_t>(list.narrow.size())};
        return Value(tag, &list.boxed);
      }
    }
  }
  int32_t add(Value value) {
    values_.push_back(value);
    return static_cast<int32_t>(values_.size() - 1);
  }

  Value argument(char code, bool last) {
    switch (code) {
      case 'T':
        return tensor(false);
      case 't':
        return tensor(true);
      case 'i':
        return Value(whole());
      case 'd':
        return Value(number());
      case 'b':
        return Value(chance(50));
      case 's':
        return chance(50) ? Value(whole()) : chance(80) ? Value(number()) : Value(chance(50));
      case 'v':
        return Value();
      case 'm':
        return chance(50) ? Value() : argument('S', last);
      case 'S': {
        static const char* const kTexts[] = {"none", "tanh", "floor", "trunc", "sum",
                                             "mean", "amax", "",      "ij"};
        List& list = lists_.emplace_back();
        list.text = one_of(kTexts);
        list.plain = {list.text.data(), static_cast<uint32_t>(list.text.size())};
        return Value(Tag::String, &list.plain);
      }
      case 'D':
        return list(Tag::ListDouble);
      case 'B':
        return list(Tag::ListBool);
      case 'I':
        return list(Tag::ListInt);
      case 'L':
        return last ? outputs() : list(Tag::ListTensor);
      default:
        return list(Tag::ListOptionalTensor);
    }
  }
  Value given(const std::string& word, char code) {
    const std::string rest = word.substr(1);
    switch (word[0]) {
      case 'i':
        return Value(static_cast<int64_t>(std::stoll(rest)));
      case 'd':
        return Value(std::stod(rest));
      case 'b':
        return Value(rest == "1");
      case 'T':
        return given_tensor(rest, code == 't');
      case 'S': {
        List& list = lists_.emplace_back();
        list.text = rest;
        std::replace(list.text.begin(), list.text.end(), '~', ' ');
        list.plain = {list.text.data(), static_cast<uint32_t>(rest.size())};
        return Value(Tag::String, &list.plain);
      }
      case 'I':
      case 'D':
      case 'B':
      case 'L':
        return given_list(!rest.empty() ? word[0] : code == 'O' ? 'L' : code, rest, code);
      default:  // None, or an output slot for a scalar
        return Value();
    }
  }
  Value given_list(char kind, const std::string& text, char code) {
    List& list = lists_.emplace_back();
    const std::vector<std::string> parts = parts_of(text, kind == 'L' ? '|' : ',');
    const auto n = static_cast<uint32_t>(parts.size());
    if (kind == 'D') {
      for (const std::string& part : parts) list.doubles.push_back(std::stod(part));
      list.plain = {list.doubles.data(), n};
      return Value(Tag::ListDouble, &list.plain);
    }
    if (kind == 'B') {
      list.bools.reset(new bool[n]);
      for (uint32_t i = 0; i < n; ++i) list.bools[i] = parts[i] == "1";
      list.plain = {list.bools.get(), n};
      return Value(Tag::ListBool, &list.plain);
    }
    if (kind == 'I') {
      for (const std::string& part : parts)
        list.wide.push_back(add(Value(static_cast<int64_t>(std::stoll(part)))));
      list.gathered_numbers.resize(n);
      list.boxed = {values_.data(), list.wide.data(), list.gathered_numbers.data(), n};
      return Value(Tag::ListInt, &list.boxed);
    }
    for (const std::string& part : parts)
      list.narrow.push_back(part == "-" ? -1 : add(given_tensor(part.substr(1), code == 't')));
    list.gathered.resize(n);
    list.boxed = {values_.data(), list.narrow.data(), list.gathered.data(), n};
    return Value(code == 'O' ? Tag::ListOptionalTensor : Tag::ListTensor, &list.boxed);
  }
  Value given_tensor(const std::string& text, bool output) {
    const size_t first = text.find(':'), second = text.find(':', first + 1);
    Storage& storage = storage_.emplace_back();
    TensorImpl& impl = storage.impl;
    impl.type = static_cast<ScalarType>(std::stoi(text));
    const std::vector<std::string> sizes = parts_of(text.substr(first + 1, second - first - 1), ',');
    impl.dim = static_cast<uint8_t>(sizes.size());
    for (size_t d = 0; d < sizes.size(); ++d) {
      storage.sizes[d] = std::stoi(sizes[d]);
      storage.dim_order[d] = static_cast<DimOrderType>(d);
    }
    impl.sizes = storage.sizes;
    impl.strides = storage.strides;
    impl.dim_order = storage.dim_order;
    impl.numel = *dense_strides({storage.sizes, sizes.size()}, storage.dim_order, storage.strides);
    impl.capacity = static_cast<size_t>(impl.numel);
    impl.dynamism = output && chance(30) ? TensorShapeDynamism::DYNAMIC_BOUND : TensorShapeDynamism::STATIC;
    const size_t bytes = impl.capacity * element_size(impl.type);
    auto* const data = static_cast<uint8_t*>(malloc(bytes));
    for (size_t i = 0; i < bytes; ++i)
      data[i] = static_cast<uint8_t>(std::stoi(text.substr(second + 1 + 2 * i, 2), nullptr, 16));
    impl.data = data;
    buffers_.emplace_back(impl.data, bytes);
    return Value(Tensor(&impl));
  }
  Value outputs() {
    List& list = lists_.emplace_back();
    const size_t n = 1 + below(4);
    for (size_t i = 0; i < n; ++i) list.narrow.push_back(add(tensor(true)));
    list.gathered.resize(n);
    list.boxed = {values_.data(), list.narrow.data(), list.gathered.data(), static_cast<uint32_t>(n)};
    return Value(Tag::ListTensor, &list.boxed);
  }

  std::mt19937_64& random_;
  Shape base_;
  ScalarType type_;
  bool mixed_, tame_, indices_ = false;
  size_t length_ = 0;
  std::vector<Value> values_;
  std::vector<int32_t> index_;
  std::deque<Storage> storage_;
  std::deque<List> lists_;
  std::vector<std::pair<std::unique_ptr<void, Free>, size_t>> buffers_;
};

/// Reads lines of a kernel name and a valid call.
std::map<std::string, std::vector<Example>> examples_of(const char* path) {
  std::map<std::string, std::vector<Example>> examples;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    Example words = parts_of(line, ' ');
    const std::string name = words.front();
    words.erase(words.begin());
    examples[name].push_back(words);
  }
  return examples;
}

/// Returns the message with each number replaced by N, so that it is the same for all calls.
std::string without_numbers(const std::string& message) {
  const auto in_word = [](char c) { return isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; };
  std::string text;
  for (size_t at = 0, end = 0; at < message.size(); at = end) {
    while (end < message.size() && in_word(message[end])) ++end;
    const std::string word = message.substr(at, end - at);
    if (word.empty())
      text += message[end++];
    else
      text +=
          isdigit(static_cast<unsigned char>(word[0])) != 0 || word == "nan" || word == "inf" ? "N" : word;
  }
  return text;
}

bool wanted(const char* name, int parts, char** part) {
  for (int i = 0; i < parts; ++i)
    if (strstr(name, part[i]) != nullptr) return true;
  return parts == 0;
}

}  // namespace

int main(int count, char** argument) {
  const size_t calls = count > 1 ? strtoul(argument[1], nullptr, 10) : 200;
  const uint64_t seed = count > 2 ? strtoull(argument[2], nullptr, 10) : 1;
  const std::map<std::string, std::vector<Example>> examples = examples_of(count > 3 ? argument[3] : "");
  PalImpl platform;
  platform.emit_log_message = count_message;
  register_pal(platform);
  signal(SIGVTALRM, took_too_long);
  Scratch scratch;
  for (const Kernels& family : kernel_table())
    for (const Kernel& kernel : family) {
      if (!wanted(kernel.name, count - 4, argument + 4)) continue;
      const auto found = examples.find(kernel.name);
      running = kernel.name;
      // The limit is CPU time, so that a busy machine does not make a kernel appear to hang.
      const itimerval limit = {{}, {20 + static_cast<time_t>(calls / 100), 0}};
      setitimer(ITIMER_VIRTUAL, &limit, nullptr);
      size_t ran = 0, refused = 0;
      std::set<std::string> refusals;
      for (size_t i = 0; i < calls; ++i) {
        std::mt19937_64 random(seed * 1000003 + i);
        Call call(kernel, random, found == examples.end() ? nullptr : &found->second);
        Context context(&scratch);
        messages = 0;
        const Error error = kernel.function(context, call.arguments());
        context.reset_temp();
        ++(error == Error::Ok ? ran : refused);
        if (error != Error::Ok && messages == 0) {
          fprintf(stderr, "%s: call %zu is refused with error %d and no message\n", kernel.name, i,
                  static_cast<int>(error));
          return 2;
        }
        if (error != Error::Ok) refusals.insert(without_numbers(last_message));
      }
      printf("%s: %zu ran, %zu refused\n", kernel.name, ran, refused);
      for (const std::string& refusal : refusals) printf("  %s\n", refusal.c_str());
    }
  return 0;
}
