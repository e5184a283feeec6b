// SPDX-License-Identifier: BSD-3-Clause
// What a kernel is: a typed C++ function, boxed by one template into the runtime's calling convention, and
// named in one constexpr table per family. Kernels include this header and nothing above it.
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

// Whether a kernel without a temp allocator has scratch memory of the platform. Generated units bring no
// platform.
#ifndef TORCHETTE_PLATFORM_SCRATCH
#define TORCHETTE_PLATFORM_SCRATCH 1
#endif

#ifndef TORCHETTE_ISA
#define TORCHETTE_ISA baseline  // the namespace of one instruction-set level; set by the build
#endif

namespace torchette {

/// What a kernel may ask of the running method; its tracer, too.
class Context : public Traced {
 public:
  explicit Context(MemoryAllocator* temp_allocator = nullptr, const Traced& traced = Traced(),
                   Threads* threads = nullptr, const MemoryManager* memory = nullptr)
      : Traced(traced), temp_allocator_(temp_allocator), threads_(threads), memory_(memory) {}

  /// Scratch memory that is valid until the kernel returns; null if there are fewer than `size` bytes (the
  /// kernel then returns Error::MemoryAllocationFailed). Without a temp allocator it comes from
  /// platform_allocate() or, if the platform has no memory, from the free bytes of the method allocator.
  void* allocate_temp(size_t size, size_t alignment = 64);

  /// How many workers parallel_for() has at most: scratch memory of its body is allocated for each, before.
  size_t workers() const { return threads_ == nullptr ? 1 : threads_->count(); }
  /// Calls `body(begin, end, worker)` for parts of [0, count), of `least` items or more each, on the threads
  /// of the execution; returns when all have returned. No two parts with one `worker` (less than workers())
  /// run at the same time. A part must be worth 10 to 20 microseconds, since a core fetches what another
  /// wrote; what a part computes must not depend on where it begins and ends.
  template <typename Body>
  void parallel_for(size_t count, size_t least, const Body& body) {
    if (count == 0) return;
    if (threads_ == nullptr) {
      body(size_t{0}, count, size_t{0});
      return;
    }
    threads_->run(
        count, least,
        [](const void* argument, size_t begin, size_t end, size_t worker) {
          (*static_cast<const Body*>(argument))(begin, end, worker);
        },
        &body);
  }
  /// Takes all scratch memory back; called by the method after each instruction.
  TORCHETTE_INLINE void reset_temp() {
    if (TORCHETTE_UNLIKELY(release_ != nullptr)) release_(*this);
  }

 protected:
  MemoryAllocator* temp_allocator_;
  Threads* threads_;  // null: the thread that calls is the only one
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

  const MemoryManager* memory_;  // of the method; null without one
  // set together with release_
  Block* blocks_;    // of the platform
  size_t borrowed_;  // bytes of the free part of the method allocator
};

/// A bit for each of the tags.
constexpr uint16_t one_of(std::initializer_list<Tag> tags) {
  uint16_t set = 0;
  for (Tag tag : tags) set = static_cast<uint16_t>(set | 1u << static_cast<unsigned>(tag));
  return set;
}

/// What a signature's code takes: a bit for each tag; 0 for what is no code.
constexpr uint16_t tags_of(char code) {
  switch (code) {
#define TORCHETTE_CODE(letter, type, schema_type, get_value, ...) \
  case letter:                                                    \
    return one_of({__VA_ARGS__});
#define TORCHETTE_WRITTEN_CODE(letter, type, ...) \
  case letter:                                    \
    return one_of({__VA_ARGS__});
#include "torchette/schema/kernels.def"
    default:
      return 0;
  }
}

/// Whether the parameter whose code stands there is one that the kernel writes.
constexpr bool is_written(const char* code) {
  switch (*code) {
#define TORCHETTE_WRITTEN_CODE(letter, type, ...) case letter:
#include "torchette/schema/kernels.def"
    return true;
    default:
      return *code == 'L' && code[1] == 0;
  }
}

/// The arguments of one instruction: indices (read in place from the file, proven in range at load) into the
/// method's value table.
struct Args {
  Value* values;
  const int32_t* index;

  TORCHETTE_INLINE Value& operator[](size_t i) const { return values[index[i]]; }
};

using OpFunction = Error (*)(Context&, Args);

/// `signature` spells the parameters in the codes of torchette/schema/kernels.def, with ? before the code of
/// an optional one; the loader holds every argument against it.
struct Kernel {
  const char* name;  // "aten::add.out"
  OpFunction function;
  const char* signature;
};

using Kernels = Span<const Kernel>;

/// Every kernel of this build for the CPU it runs on, family by family. Defined by kernels/table.cpp or by
/// the selective build's own table; the core holds only this reference, so what the table does not name is
/// not linked.
Span<const Kernels> kernel_table();
/// The instruction-set level that the table's kernels were compiled for: v1, v3 or v4 of x86-64, else
/// baseline.
const char* kernel_isa();
/// The kernels of one level of this build, put into `room`; empty where there is no such level, this CPU does
/// not run it, or `room` is too small. For tools: what runs is kernel_table().
Span<const Kernels> kernel_table_of(const char* isa, Span<Kernels> room);

/// Where a comparison's result goes; or, where what is compared must hold, the text that says so.
struct Verdict {
  Value* slot;  // null where there is a text
  Span<const char> text;
};

template <typename T>
struct From;
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
/// An output: by value in the table, so the handle is copied; kernels write through it.
template <>
struct From<Tensor&> : Written<Tensor&> {
  struct Held {
    Tensor tensor;
    TORCHETTE_INLINE operator Tensor&() { return tensor; }
  };
  static TORCHETTE_INLINE Held get(const Value& v) { return {v.to_tensor()}; }
};
/// A slot of the value table itself, for prim operators that write scalars.
template <>
struct From<Value&> : Written<Value&> {
  static TORCHETTE_INLINE Value& get(Value& v) { return v; }
};
template <>
struct From<Verdict> : Written<Verdict> {
  static TORCHETTE_INLINE Verdict get(Value& v) {
    return v.isString() ? Verdict{nullptr, v.to_string()} : Verdict{&v, {}};
  }
};
template <typename T>
struct From<Optional<T>> {
  static constexpr char kCode[] = {'?', From<T>::kCode[0], 0};
  static TORCHETTE_INLINE Optional<T> get(const Value& v) {
    return v.is_none() ? Optional<T>() : Optional<T>(From<T>::get(v));
  }
};
/// Optional<Tensor> is held by value; its code is that of an optional input.
template <>
struct From<Tensor> : From<const Tensor&> {};
template <>
struct From<Scalar> : From<const Scalar&> {};
template <typename T>
struct From<const Optional<T>&> : From<Optional<T>> {};

template <auto Fn>
struct Boxed;
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

/// What stands in a family's table for `Fn`; empty, and nothing of `Fn` compiled, where the build leaves it
/// out.
template <bool kSelected, auto Fn>
constexpr Kernel kernel_entry(const char* name) {
  if constexpr (kSelected)
    return {name, &Boxed<Fn>::run, Boxed<Fn>::kSignature.text};
  else
    return {nullptr, nullptr, nullptr};
}

/// One entry of a family's table: KERNEL("aten::mm.out", mm_out).
#define TORCHETTE_KERNEL(name, fn) ::torchette::kernel_entry<::torchette::is_selected(name), fn>(name)

/// The entries that a build keeps, without the empty ones. They are known by their names: with sanitizers GCC
/// compares no function with nullptr while compiling.
template <size_t kCount>
struct KeptKernels {
  Kernel kernels[kCount != 0 ? kCount : 1] = {};
  template <size_t kAll>
  constexpr explicit KeptKernels(const Kernel (&all)[kAll]) {
    size_t n = 0;
    for (const Kernel& kernel : all)
      if (kernel.name != nullptr) kernels[n++] = kernel;
  }
};
template <size_t kAll>
constexpr size_t count_kept(const Kernel (&all)[kAll]) {
  size_t n = 0;
  for (const Kernel& kernel : all) n += kernel.name != nullptr ? 1 : 0;
  return n;
}

/// The family of kernels in the array FAMILY_entries, as FAMILY_family. Must stand inside namespace
/// torchette::TORCHETTE_ISA. The table of all kernels expects a family under the name of its file.
#define TORCHETTE_FAMILY(family)                                                                         \
  static constexpr ::torchette::KeptKernels<::torchette::count_kept(family##_entries)> family##_kernels( \
      family##_entries);                                                                                 \
  extern const ::torchette::Kernels family##_family;                                                     \
  const ::torchette::Kernels family##_family(family##_kernels.kernels,                                   \
                                             ::torchette::count_kept(family##_entries));

/// The one registration of a family, under the kernels of its file matmul.cpp:
/// TORCHETTE_KERNELS(matmul, TORCHETTE_KERNEL("aten::mm.out", mm_out), ...)
#define TORCHETTE_KERNELS(family, ...)                                     \
  static constexpr ::torchette::Kernel family##_entries[] = {__VA_ARGS__}; \
  TORCHETTE_FAMILY(family)

/// The same for kernels that wider vectors do not make faster: builds for several instruction sets compile
/// the file for the lowest one alone.
#define TORCHETTE_KERNELS_ONCE(family, ...) TORCHETTE_KERNELS(family, __VA_ARGS__)

/// The same for kernels that vectors of 256 bits make faster, and wider ones do not.
#define TORCHETTE_KERNELS_NARROW(family, ...) TORCHETTE_KERNELS(family, __VA_ARGS__)

/// Returns `error` from the kernel, with the message in the log, when `condition` does not hold. The place of
/// the fault is logged once, here.
#define TORCHETTE_CHECK(condition, error, ...) \
  do {                                         \
    if (TORCHETTE_UNLIKELY(!(condition))) {    \
      TORCHETTE_LOG(Error, __VA_ARGS__);       \
      return ::torchette::Error::error;        \
    }                                          \
  } while (0)

}  // namespace torchette
