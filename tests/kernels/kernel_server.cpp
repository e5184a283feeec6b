// SPDX-License-Identifier: BSD-3-Clause
// Runs kernels for the tests on another machine. Reads calls from standard input and writes the results to
// standard output until the input ends. tests/kernels/machine.py defines the format.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "torchette/extension/kernel_threads.h"
#include "torchette/extension/malloc_memory_allocator.h"
#include "torchette/runtime/kernel_registry.h"

namespace {

using namespace torchette;

std::string log_lines;

void get_bytes(void* to, size_t size) {
  if (size != 0 && fread(to, 1, size, stdin) != size) exit(0);
}
template <typename T>
T get() {
  T value;
  get_bytes(&value, sizeof value);
  return value;
}
std::string get_text() {
  std::string text(get<uint32_t>(), '\0');
  get_bytes(text.data(), text.size());
  return text;
}
void put_bytes(const void* from, size_t size) {
  if (fwrite(from, 1, size, stdout) != size) exit(1);
}
template <typename T>
void put(T value) {
  put_bytes(&value, sizeof value);
}

/// A block of memory that contains tensors, with the same alignment as in the test process.
struct Storage {
  std::unique_ptr<char[]> memory;
  char* data;
  size_t size;
};

struct Shape {
  TensorImpl impl;
  SizesType sizes[kMaxDim];
  StridesType strides[kMaxDim];
  DimOrderType dim_order[kMaxDim];
};

/// A received argument: n (None), b, i, d (scalars), s (a string), l (a list) or t (a tensor).
struct Item {
  char kind;
  Value number;
  std::string text;
  std::vector<Item> items;
  Shape* shape = nullptr;
};

struct List {
  PlainList plain;
  BoxedList boxed;
  std::vector<int32_t> narrow;
  std::vector<int64_t> wide;
  std::vector<char> bytes;
};

class Call {
 public:
  Call() : name_(get_text()), threads_(get<uint32_t>()) {
    for (auto n = get<uint32_t>(); n != 0; --n) {
      Storage& storage = storages_.emplace_back();
      constexpr size_t kAlignment = 64;
      const auto lead = get<uint32_t>();
      storage.size = get<uint64_t>();
      storage.memory.reset(new char[storage.size + 2 * kAlignment]);
      const auto address = reinterpret_cast<uintptr_t>(storage.memory.get());
      storage.data = storage.memory.get() + (0 - address) % kAlignment + lead;
      get_bytes(storage.data, storage.size);
    }
    items_.resize(get<uint32_t>());
    for (Item& item : items_) item = get_item();
  }

  void run() {
    const Kernel* const kernel = find_kernel(name_.c_str());
    if (kernel == nullptr) return finish(2, name_);
    values_.reserve(num_items_);
    values_.resize(items_.size());
    std::vector<int32_t> index;
    const char* code = kernel->signature;
    bool fits = true;
    for (size_t i = 0; *code != 0 && fits; ++i, ++code) {
      const bool optional = *code == '?';
      if (optional) ++code;
      fits =
          i < items_.size() && ((optional && items_[i].kind == 'n') || convert(*code, items_[i], values_[i]));
      index.push_back(static_cast<int32_t>(i));
      is_output_.push_back(*code == 't' || *code == 'v' || *code == 'm');
    }
    if (!fits || index.size() != items_.size()) return finish(1, name_ + " expects " + kernel->signature);
    extension::MallocMemoryAllocator temp;
    Context context(&temp, Traced(), extension::kernel_threads(threads_));
    log_lines.clear();
    const Error error = kernel->function(context, {values_.data(), index.data()});
    if (error == Error::Ok) return finish(0, "");
    finish(3,
           name_ + " failed with error " + std::to_string(static_cast<uint32_t>(error)) + ": " + log_lines);
  }

 private:
  Item get_item() {
    Item item{get<char>(), {}, {}, {}};
    ++num_items_;
    if (item.kind == 'b') item.number = Value(get<uint8_t>() != 0);
    if (item.kind == 'i') item.number = Value(get<int64_t>());
    if (item.kind == 'd') item.number = Value(get<double>());
    if (item.kind == 's') item.text = get_text();
    if (item.kind == 't') item.shape = get_shape();
    if (item.kind == 'l')
      for (auto n = get<uint32_t>(); n != 0; --n) item.items.push_back(get_item());
    return item;
  }

  Shape* get_shape() {
    Shape& s = shapes_.emplace_back();
    s.impl.type = static_cast<ScalarType>(get<uint8_t>());
    s.impl.dim = get<uint8_t>();
    const auto storage = get<uint32_t>();
    s.impl.data = storages_[storage].data + get<uint64_t>();
    s.impl.numel = 1;
    uint8_t order[kMaxDim];
    for (uint8_t d = 0; d < s.impl.dim; ++d) {
      s.sizes[d] = get<int32_t>();
      s.strides[d] = get<int32_t>();
      s.impl.numel *= s.sizes[d];
      order[d] = d;
    }
    std::stable_sort(order, order + s.impl.dim, [&](uint8_t a, uint8_t b) {
      return s.sizes[a] != 1 && s.sizes[b] != 1 && s.strides[a] > s.strides[b];
    });
    std::copy(order, order + s.impl.dim, s.dim_order);
    s.impl.sizes = s.sizes;
    s.impl.strides = s.strides;
    s.impl.dim_order = s.dim_order;
    s.impl.capacity = static_cast<size_t>(s.impl.numel);
    s.impl.dynamism = TensorShapeDynamism::DYNAMIC_BOUND;
    return &s;
  }

  /// Converts the item to `value`. Returns false if a parameter of type `code` does not accept it.
  bool convert(char code, const Item& item, Value& value) {
    const uint16_t tags = tags_of(code);
    const auto takes = [tags](Tag tag) { return (tags & tag_mask({tag})) != 0; };
    if (takes(Tag::None) && item.kind == 'n') return true;
    if (takes(Tag::String) && item.kind == 's') {
      List& list = lists_.emplace_back();
      list.plain = {item.text.data(), static_cast<uint32_t>(item.text.size())};
      value = Value(Tag::String, &list.plain);
      return true;
    }
    if (takes(Tag::Int)) {
      value = item.number;
      return item.number.is_scalar();
    }
    if (takes(Tag::Tensor)) {
      if (item.kind == 't') value = Tensor(&item.shape->impl);
      return item.kind == 't';
    }
    if (item.kind != 'l') return false;
    if (takes(Tag::ListDouble)) return plain_list<double>(Tag::ListDouble, item, value);
    if (takes(Tag::ListBool)) return plain_list<bool>(Tag::ListBool, item, value);
    for (const Tag tag : {Tag::ListInt, Tag::ListTensor, Tag::ListOptionalTensor})
      if (takes(tag)) return boxed_list(tag, item, value);
    return false;
  }

  template <typename T>
  bool plain_list(Tag tag, const Item& item, Value& value) {
    List& list = lists_.emplace_back();
    list.bytes.resize(item.items.size() * sizeof(T) + 1);
    auto* const to = reinterpret_cast<T*>(list.bytes.data());
    for (size_t i = 0; i < item.items.size(); ++i) {
      if (!item.items[i].number.is_scalar()) return false;
      to[i] = static_cast<T>(item.items[i].number.to_double());
    }
    list.plain = {list.bytes.data(), static_cast<uint32_t>(item.items.size())};
    value = Value(tag, &list.plain);
    return true;
  }

  /// Creates a list and adds its elements to the value table, as in a program.
  bool boxed_list(Tag tag, const Item& item, Value& value) {
    List& list = lists_.emplace_back();
    for (const Item& element : item.items) {
      const bool none = element.kind == 'n';
      if (!none && (tag == Tag::ListInt ? !element.number.is_scalar() : element.kind != 't')) return false;
      list.narrow.push_back(none ? -1 : static_cast<int32_t>(values_.size()));
      list.wide.push_back(list.narrow.back());
      if (!none)
        values_.push_back(tag == Tag::ListInt ? element.number : Value(Tensor(&element.shape->impl)));
    }
    list.bytes.resize(item.items.size() * sizeof(Optional<Tensor>) + sizeof(int64_t));
    const void* const indices =
        tag == Tag::ListInt ? static_cast<const void*>(list.wide.data()) : list.narrow.data();
    list.boxed = {values_.data(), indices, list.bytes.data(), static_cast<uint32_t>(item.items.size())};
    value = Value(tag, &list.boxed);
    return true;
  }

  void finish(uint8_t status, const std::string& text) {
    put(status);
    put(static_cast<uint32_t>(text.size()));
    put_bytes(text.data(), text.size());
    for (const Storage& storage : storages_) put_bytes(storage.data, storage.size);
    put(static_cast<uint32_t>(status == 0 ? std::count(is_output_.begin(), is_output_.end(), true) : 0));
    for (size_t i = 0; status == 0 && i < is_output_.size(); ++i)
      if (is_output_[i]) put_result(values_[i]);
    fflush(stdout);
  }

  static void put_result(const Value& value) {
    if (value.is_tensor()) {
      put('t');
      put(static_cast<uint32_t>(value.to_tensor().dim()));
      for (const SizesType size : value.to_tensor().sizes()) put(size);
    } else if (value.is_bool()) {
      put('b');
      put(static_cast<uint8_t>(value.to_bool()));
    } else if (value.is_int()) {
      put('i');
      put(value.to_int());
    } else if (value.is_double()) {
      put('d');
      put(value.to_double());
    } else {
      put('n');
    }
  }

  std::string name_;
  size_t threads_;
  std::vector<Storage> storages_;
  std::deque<Shape> shapes_;
  std::deque<List> lists_;
  std::vector<Item> items_;
  size_t num_items_ = 0;
  std::vector<Value> values_;  // reserved: lists point into it
  std::vector<bool> is_output_;
};

}  // namespace

extern "C" void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t, const char*,
                                               const char*, size_t, const char* message, size_t length) {
  if (!log_lines.empty()) log_lines += '\n';
  log_lines.append(message, length);
}

int main() {
  runtime_init();
  for (;;) Call().run();
}
