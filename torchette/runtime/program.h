// SPDX-License-Identifier: BSD-3-Clause
// Program: the bytes of a .pte file and the constants that its methods share. Loads methods.
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
namespace pybindings {
class LoadCheck;
}

class Method;
class MethodMeta;
class NamedDataMap;
struct TensorImpl;

/// Must outlive the methods that are loaded from it. The loader must outlive the program.
class Program {
 public:
  /// Both levels are safe for any bytes, since all reads are checked. InternalConsistency also visits the
  /// values and instructions of every method when the program is opened; with Minimal, load_method() does
  /// that.
  enum class Verification : uint8_t { Minimal, InternalConsistency };
  enum class HeaderStatus : uint8_t { CompatibleVersion, IncompatibleVersion, NotPresent, ShortData };
  /// Minimum bytes for check_header().
  static constexpr size_t kMinHeadBytes = 64;

  /// Whether `data`, the start of a file, is the header of a program that this runtime supports.
  static HeaderStatus check_header(const void* data, size_t size);
  /// Errors: InvalidProgram (not a program, or damaged), those of the loader.
  static Result<Program> load(DataLoader* loader, Verification verification = Verification::Minimal);

  size_t num_methods() const;
  Result<const char*> get_method_name(size_t index) const;
  /// Error: InvalidArgument (no such method).
  Result<MethodMeta> method_meta(const char* method_name) const;
  /// Loads a method. All errors of the file are reported here, not by execute(). `event_tracer` records
  /// loading and execution, and must outlive the method. Errors: InvalidArgument (no such method),
  /// InvalidProgram, OperatorMissing (the log has all missing operators), NotSupported (also: a tracer in a
  /// build without tracing), MemoryAllocationFailed, InvalidExternalData (`named_data_map` lacks weights that
  /// are outside of the file).
  Result<Method> load_method(const char* method_name, MemoryManager* memory_manager,
                             EventTracer* event_tracer = nullptr,
                             const NamedDataMap* named_data_map = nullptr) const;

  /// Returns the named data of the file, which delegates share. Errors: NotFound, those of the loader.
  Result<FreeableBuffer> get_data(const char* key) const;
  Result<uint32_t> get_num_keys() const;
  /// Error: InvalidArgument (no such index).
  Result<const char*> get_key(uint32_t index) const;

 private:
  friend class Method;
  friend class MethodMeta;
  friend class extension::ParallelMethod;
  friend class extension::SharedArenas;
  friend class extension::SourceLines;
  friend class pybindings::LoadCheck;

  explicit Program(DataLoader* loader) : loader_(loader) {}

  // Two signatures, so that linking fails if a program and the library were compiled with different settings.
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
  /// Returns the position of the method's plan in the bytes.
  Result<size_t> find_plan(const char* method_name) const;
  /// Stores the address of constant `index` of `nbytes` bytes, in the constant segment or in the flatbuffer.
  /// The bytes must not be written.
  Error constant(flat::Reader& reader, uint32_t index, size_t nbytes, void** address) const;
  /// Stores position and size of segment `index` in the file. Error: InvalidProgram.
  Error find_segment(flat::Reader& reader, size_t index, size_t* start, size_t* size) const;
  Error load_segment(flat::Reader& reader, size_t index, const DataLoader::SegmentInfo& info,
                     FreeableBuffer* out) const;
  Error load_delegate_data(flat::Reader& reader, const flat::Table& reference, const char* id,
                           FreeableBuffer* out) const;

  DataLoader* loader_;
  FreeableBuffer bytes_;      // the flatbuffer
  FreeableBuffer constants_;  // the constant segment, if the file has one
  size_t segment_base_ = 0;
  mutable size_t next_named_data_ = 0;  // index after that of the key found last
};

}  // namespace torchette
