// SPDX-License-Identifier: BSD-3-Clause
// Program: the bytes of a .pte file and what all methods share, its constants. Open it, ask it, load methods
// from it.
#pragma once

#include "torchette/runtime/flat.h"
#include "torchette/runtime/loader.h"
#include "torchette/runtime/memory.h"
#include "torchette/runtime/tracer.h"

namespace torchette {

namespace extension {
class ParallelMethod;
class SharedArenas;
class SourceLines;
}  // namespace extension

class Method;
class MethodMeta;
class NamedDataMap;
struct TensorImpl;

/// Must outlive the methods that are loaded from it, as its loader must outlive it.
class Program {
 public:
  /// Reading is verifying: either level is safe on any bytes. InternalConsistency also visits every method's
  /// values and instructions at once, where Minimal leaves that to load_method().
  enum class Verification : uint8_t { Minimal, InternalConsistency };
  enum class HeaderStatus : uint8_t { CompatibleVersion, IncompatibleVersion, NotPresent, ShortData };
  /// As many bytes check_header() needs.
  static constexpr size_t kMinHeadBytes = 64;

  /// Whether the first bytes of a file are those of a program that this runtime reads.
  static HeaderStatus check_header(const void* data, size_t size);
  /// Errors: InvalidProgram (not a program, or damaged), those of the loader.
  static Result<Program> load(DataLoader* loader, Verification verification = Verification::Minimal);

  size_t num_methods() const;
  Result<const char*> get_method_name(size_t index) const;
  /// Error: InvalidArgument (no such method).
  Result<MethodMeta> method_meta(const char* method_name) const;
  /// Everything that may fail for reasons of the file fails here. Errors: InvalidArgument (no such method),
  /// InvalidProgram, OperatorMissing (all missing ones are in the log), NotSupported, MemoryAllocationFailed,
  /// InvalidExternalData (weights stand outside of the file and `named_data_map` does not have them).
  /// `event_tracer` is told what loading and executing the method does, and must outlive it; a build without
  /// tracing takes none: NotSupported.
  Result<Method> load_method(const char* method_name, MemoryManager* memory_manager,
                             EventTracer* event_tracer = nullptr,
                             const NamedDataMap* named_data_map = nullptr) const;

  /// The bytes that the file has under that name, which delegates share. Errors: NotFound, those of the
  /// loader.
  Result<FreeableBuffer> get_data(const char* key) const;
  Result<uint32_t> get_num_keys() const;
  /// Error: InvalidArgument (there are fewer).
  Result<const char*> get_key(uint32_t index) const;

 private:
  friend class Method;
  friend class MethodMeta;
  friend class extension::ParallelMethod;
  friend class extension::SharedArenas;
  friend class extension::SourceLines;

  explicit Program(DataLoader* loader) : loader_(loader) {}

  // two signatures, so that the linker refuses a program that was compiled for the other kind of build
#if TORCHETTE_EVENT_TRACER
  Result<Method> load(const char* method_name, MemoryManager* memory_manager, const NamedDataMap* external,
                      EventTracer* event_tracer) const;
#else
  Result<Method> load(const char* method_name, MemoryManager* memory_manager,
                      const NamedDataMap* external) const;
#endif

  flat::Reader reader() const { return {bytes_.data(), bytes_.size()}; }
  Error open(Verification verification);
  Error verify() const;
  Error read(size_t offset, size_t size, const DataLoader::SegmentInfo& info, FreeableBuffer* out) const;
  /// Position of the plan of that name in the bytes.
  Result<size_t> find_plan(const char* method_name) const;
  /// The address of `nbytes` bytes of constant `index`, wherever the file has them. They are not to be
  /// written.
  Error constant(flat::Reader& reader, uint32_t index, size_t nbytes, void** address) const;
  /// Where segment `index` is in the file. Error: InvalidProgram.
  Error find_segment(flat::Reader& reader, size_t index, size_t* start, size_t* size) const;
  Error load_segment(flat::Reader& reader, size_t index, const DataLoader::SegmentInfo& info,
                     FreeableBuffer* out) const;
  Error load_delegate_data(flat::Reader& reader, const flat::Table& reference, const char* id,
                           FreeableBuffer* out) const;

  DataLoader* loader_;
  FreeableBuffer bytes_;      // the flatbuffer
  FreeableBuffer constants_;  // the constant segment, if the file has one
  size_t segment_base_ = 0;
  mutable size_t next_named_ = 0;  // behind the data that were found last
};

}  // namespace torchette
