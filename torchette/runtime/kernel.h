// SPDX-License-Identifier: BSD-3-Clause
// The kernel interface. A kernel is a typed C++ function. A template wraps it in the runtime's calling
// convention, and one constexpr table per family names it. Kernels include this header and none above it.
#pragma once

#include <cstddef>
#include <initializer_list>
#include <utility>

#include "torchette/runtime/error.h"
#include "torchette/runtime/memory.h"
#include "torchette/runtime/platform.h"
#include "torchette/runtime/result.h"
#include "torchette/runtime/selected.h"
#include "torchette/runtime/tensor.h"
#include "torchette/runtime/threads.h"
#include "torchette/runtime/tracer.h"
#include "torchette/runtime/value.h"

// Whether kernels without a temp allocator get scratch memory from the platform. Units of generated code set
// 0, since they are linked without a platform.
#ifndef TORCHETTE_PLATFORM_SCRATCH
#define TORCHETTE_PLATFORM_SCRATCH 1
#endif

#ifndef TORCHETTE_ISA
#define TORCHETTE_ISA baseline  // namespace of one instruction-set level; the build sets it
#endif

namespace torchette {

/// What a kernel may use of the running method: scratch memory, threads and the tracer.
class Context : public Traced {
 public:
  explicit Context(MemoryAllocator* temp_allocator = nullptr, const Traced& traced = Traced(),
                   Threads* threads = nullptr, const MemoryManager* memory = nullptr)
      : Traced(traced), temp_allocator_(temp_allocator), threads_(threads), memory_(memory) {}

  /// Scratch memory, valid until the kernel returns. Null if fewer than `size` bytes are available; the
  /// kernel then returns Error::MemoryAllocationFailed. Without a temp allocator the memory comes from
  /// platform_allocate() or, if the platform has no heap, from the free bytes of the method allocator.
  void* allocate_temp(size_t size, size_t alignment = 64);

  /// Maximum number of workers of parallel_for(). A kernel allocates scratch memory for each worker before
  /// the call.
  size_t workers() const { return threads_ == nullptr ? 1 : threads_->count(); }
  /// Calls `body(begin, end, worker)` for disjoint ranges of [0, count) with at least `grain_size` items
  /// each, on the threads of the execution. Returns when all calls have returned. Two calls with the same
  /// `worker` (less than workers()) never run concurrently. A range should run for at least 10 to 20
  /// microseconds, since other cores fetch its data. The result for an item must not depend on the bounds of
  /// its range.
  template <typename Body>
  void parallel_for(size_t count, size_t grain_size, const Body& body) {
    if (count == 0) return;
    if (threads_ == nullptr) {
      body(size_t{0}, count, size_t{0});
      return;
    }
    threads_->run(
        count, grain_size,
        [](const void* argument, size_t begin, size_t end, size_t worker) {
          (*static_cast<const Body*>(argument))(begin, end, worker);
        },
        &body);
  }
  /// Frees all scratch memory. The method calls this after each instruction.
  TORCHETTE_INLINE void reset_temp() {
    if (TORCHETTE_UNLIKELY(release_ != nullptr)) release_(*this);
  }

 protected:
  MemoryAllocator* temp_allocator_;
  Threads* threads_;  // null: only the calling thread
  // Null if the kernel has used no scratch memory. A pointer, so that firmware without such kernels does not
  // contain the functions.
  void (*release_)(Context&) = nullptr;

  static void reset_allocator(Context& context) {
    context.temp_allocator_->reset();
    context.release_ = nullptr;
  }

 private:
  struct Block {
    Block* next;
  };

  void* allocate_without_allocator(size_t size, size_t alignment);
  static void release_blocks(Context& context);

  const MemoryManager* memory_;  // of the method; may be null
  // Initialised when release_ becomes release_blocks.
  Block* blocks_;    // allocated by platform_allocate()
  size_t borrowed_;  // bytes used at the start of the free part of the method allocator
};

/// A set of tags: one bit per tag.
constexpr uint16_t tag_mask(std::initializer_list<Tag> tags) {
  uint16_t set = 0;
  for (Tag tag : tags) set = static_cast<uint16_t>(set | 1u << static_cast<unsigned>(tag));
  return set;
}

/// The tags that a signature code accepts, one bit per tag; 0 if `code` is not a code.
constexpr uint16_t tags_of(char code) {
  switch (code) {
#define TORCHETTE_CODE(letter, type, schema_type, get_value, ...) \
  case letter:                                                    \
    return tag_mask({__VA_ARGS__});
#define TORCHETTE_WRITTEN_CODE(letter, type, ...) \
  case letter:                                    \
    return tag_mask({__VA_ARGS__});
#include "torchette/schema/kernels.def"
    default:
      return 0;
  }
}

/// Whether the kernel writes the parameter described by the code at `code`.
constexpr bool is_written(const char* code) {
  switch (*code) {
#define TORCHETTE_WRITTEN_CODE(letter, type, ...) case letter:
#include "torchette/schema/kernels.def"
    return true;
    default:
      return *code == 'L' && code[1] == 0;
  }
}

/// The arguments of one instruction: indices into the method's value table. The indices are read in place
/// from the file; load checks their range.
struct Args {
  Value* values;
  const int32_t* index;

  TORCHETTE_INLINE Value& operator[](size_t i) const { return values[index[i]]; }
};

using OpFunction = Error (*)(Context&, Args);

/// `signature` has one code of torchette/schema/kernels.def per parameter, preceded by ? if the parameter is
/// optional. The loader checks every argument against it.
struct Kernel {
  const char* name;  // "aten::add.out"
  OpFunction function;
  const char* signature;
};

using Kernels = Span<const Kernel>;

/// All kernels of this build for the running CPU, by family. Defined in kernels/table.cpp or in the table of
/// a selective build. The core has only this reference, so kernels that are not in the table are not linked.
Span<const Kernels> kernel_table();
/// The instruction-set level of the table's kernels: v1, v3 or v4 of x86-64, otherwise baseline.
const char* kernel_isa();
/// Stores the kernels of one level of this build in `room`. Returns an empty span if the build has no such
/// level, the CPU does not support it, or `room` is too small. For tools; execution uses kernel_table().
Span<const Kernels> kernel_table_of(const char* isa, Span<Kernels> room);

/// The destination of a comparison's result; or, for a comparison that must hold, the text of the error.
struct ConditionResult {
  Value* slot;  // null if there is a text
  Span<const char> text;
};

/// The code of a wrong parameter. The assertions are in functions, so that they are the only errors.
constexpr char kAnyCode = '*';
template <typename>
constexpr bool kIsParameterType = false;

/// Reads a parameter of type T from a value. The specializations are the types that a kernel may have.
template <typename T>
struct From {
  static constexpr char kCode[] = {kAnyCode, 0};
  static T get(const Value& v) {
    static_assert(kIsParameterType<T>,
                  "a kernel has a parameter of another type than those of docs/custom-kernels.md");
    return get(v);
  }
};
template <typename T>
struct Written;
#define TORCHETTE_CODE(letter, type, schema_type, get_value, ...)              \
  template <>                                                                  \
  struct From<type> {                                                          \
    static constexpr char kCode[] = {letter, 0};                               \
    static TORCHETTE_INLINE auto get(const Value& v) { return v.get_value(); } \
  };
#define TORCHETTE_WRITTEN_CODE(letter, type, ...) \
  template <>                                     \
  struct Written<type> {                          \
    static constexpr char kCode[] = {letter, 0};  \
  };
#include "torchette/schema/kernels.def"
/// An output. The value table stores tensors by value, so the handle is copied; kernels write through it.
template <>
struct From<Tensor&> : Written<Tensor&> {
  struct Handle {
    Tensor tensor;
    TORCHETTE_INLINE operator Tensor&() { return tensor; }
  };
  static TORCHETTE_INLINE Handle get(const Value& v) { return {v.to_tensor()}; }
};
/// A slot of the value table, for prim operators that write scalars.
template <>
struct From<Value&> : Written<Value&> {
  static TORCHETTE_INLINE Value& get(Value& v) { return v; }
};
template <>
struct From<ConditionResult> : Written<ConditionResult> {
  static TORCHETTE_INLINE ConditionResult get(Value& v) {
    return v.isString() ? ConditionResult{nullptr, v.to_string()} : ConditionResult{&v, {}};
  }
};
template <typename T>
struct From<Optional<T>> {
  static constexpr char kCode[] = {'?', From<T>::kCode[0], 0};
  static TORCHETTE_INLINE Optional<T> get(const Value& v) {
    return v.is_none() ? Optional<T>() : Optional<T>(From<T>::get(v));
  }
};
/// A by-value Tensor parameter has the code of an input.
template <>
struct From<Tensor> : From<const Tensor&> {};
template <>
struct From<Scalar> : From<const Scalar&> {};
template <typename T>
struct From<const Optional<T>&> : From<Optional<T>> {};

template <auto Fn>
struct Boxed {
  static Error run(Context&, Args) {
    static_assert(kIsParameterType<decltype(Fn)>,
                  "a kernel is a function Error(Context&, arguments, results), see docs/custom-kernels.md");
    return Error::InvalidArgument;
  }
  struct Signature {
    char text[2] = {kAnyCode, 0};
  };
  static constexpr Signature kSignature{};
};
template <typename... A, Error (*Fn)(Context&, A...)>
struct Boxed<Fn> {
  template <size_t... I>
  static TORCHETTE_INLINE Error call(Context& context, Args args, std::index_sequence<I...>) {
    return Fn(context, static_cast<A>(From<A>::get(args[I]))...);
  }
  static Error run(Context& context, Args args) {
    return call(context, args, std::index_sequence_for<A...>{});
  }

  struct Signature {
    char text[2 * sizeof...(A) + 1] = {};
    constexpr Signature() {
      size_t n = 0;
      for (const char* code : {From<A>::kCode...})
        while (*code != 0) text[n++] = *code++;
    }
  };
  static constexpr Signature kSignature{};
};

/// The entry of `Fn` in its family's table. Empty if the build does not select the operator; `Fn` is then not
/// compiled.
template <bool kSelected, auto Fn>
constexpr Kernel kernel_entry(const char* name) {
  if constexpr (kSelected)
    return {name, &Boxed<Fn>::run, Boxed<Fn>::kSignature.text};
  else
    return {nullptr, nullptr, nullptr};
}

/// One entry of a family's table: TORCHETTE_KERNEL("aten::mm.out", mm_out).
#define TORCHETTE_KERNEL(name, fn) ::torchette::kernel_entry<::torchette::is_selected(name), fn>(name)

/// The selected entries, without the empty ones. An entry is empty if its name is null; GCC with sanitizers
/// does not compare a function with nullptr in constant expressions.
template <size_t kCount>
struct SelectedKernels {
  Kernel kernels[kCount != 0 ? kCount : 1] = {};
  template <size_t kNumEntries>
  constexpr explicit SelectedKernels(const Kernel (&entries)[kNumEntries]) {
    size_t n = 0;
    for (const Kernel& kernel : entries)
      if (kernel.name != nullptr) kernels[n++] = kernel;
  }
};
template <size_t kNumEntries>
constexpr size_t count_selected(const Kernel (&entries)[kNumEntries]) {
  size_t n = 0;
  for (const Kernel& kernel : entries) n += kernel.name != nullptr ? 1 : 0;
  return n;
}

/// Defines the kernels of the array FAMILY_entries as FAMILY_family. Must be inside namespace
/// torchette::TORCHETTE_ISA. The table of all kernels expects one family per file, with the name of the file.
#define TORCHETTE_FAMILY(family)                                                               \
  static constexpr ::torchette::SelectedKernels<::torchette::count_selected(family##_entries)> \
      family##_kernels(family##_entries);                                                      \
  extern const ::torchette::Kernels family##_family;                                           \
  const ::torchette::Kernels family##_family(family##_kernels.kernels,                         \
                                             ::torchette::count_selected(family##_entries));

/// Registers the kernels of a file. Used once, at the end of the file, here matmul.cpp:
/// TORCHETTE_KERNELS(matmul, TORCHETTE_KERNEL("aten::mm.out", mm_out), ...)
#define TORCHETTE_KERNELS(family, ...)                                     \
  static constexpr ::torchette::Kernel family##_entries[] = {__VA_ARGS__}; \
  TORCHETTE_FAMILY(family)

/// The same for kernels that wider vectors do not accelerate: a build for several instruction-set levels
/// compiles the file for the lowest level only.
#define TORCHETTE_KERNELS_ONCE(family, ...) TORCHETTE_KERNELS(family, __VA_ARGS__)

/// The same for kernels that 256-bit vectors accelerate and wider vectors do not.
#define TORCHETTE_KERNELS_NARROW(family, ...) TORCHETTE_KERNELS(family, __VA_ARGS__)

/// Logs the message and returns `error` if `condition` is false. The location of the failure is logged once,
/// here.
#define TORCHETTE_CHECK(condition, error, ...) \
  do {                                         \
    if (TORCHETTE_UNLIKELY(!(condition))) {    \
      TORCHETTE_LOG(Error, __VA_ARGS__);       \
      return ::torchette::Error::error;        \
    }                                          \
  } while (0)

}  // namespace torchette
