// SPDX-License-Identifier: BSD-3-Clause
// A program and its memory.
#pragma once

#include <nanobind/nanobind.h>

#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "torchette/extension/etdump.h"
#include "torchette/extension/module.h"
#include "torchette/extension/shared_ptr_data_loader.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/memory.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// A view of a Python buffer. Create and destroy it with the GIL held.
class View {
 public:
  View() { view_.obj = nullptr; }
  explicit View(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_SIMPLE) != 0) throw nb::python_error();
  }
  ~View() {
    if (view_.obj != nullptr) PyBuffer_Release(&view_);
  }
  View(const View&) = delete;
  const Py_buffer& get() const { return view_; }

 private:
  Py_buffer view_;
};

/// A program. Its methods share it and keep it alive.
class LoadedProgram {
 public:
  using Module = extension::Module;

  /// Maps the file.
  LoadedProgram(const std::string& path, Program::Verification verification)
      : LoadedProgram(std::make_shared<Module>(path, Module::LoadMode::Mmap), verification) {}
  /// Uses the buffer in place if it is read-only and aligned; otherwise copies it.
  LoadedProgram(nb::handle bytes, Program::Verification verification)
      : LoadedProgram(std::make_shared<Module>(loader_of(bytes)), verification) {}
  LoadedProgram(const LoadedProgram&) = delete;

  const std::shared_ptr<Module>& module() const { return module_; }
  const Program& program() const { return *module_->program(); }
  /// Maps a data file. Call it before methods are loaded.
  void add_data_file(const std::string& path) { check(module_->add_data_file(path, Module::LoadMode::Mmap)); }
  /// Methods that are loaded afterwards write an ETDump, with the values of all instructions if
  /// `debug_buffer_size` is not 0.
  void enable_etdump(size_t debug_buffer_size) {
    etdump_ = std::make_unique<extension::ETDumpGen>();
    if (debug_buffer_size == 0) return;
    debug_buffer_ = allocate_memory(debug_buffer_size);
    debug_buffer_size_ = debug_buffer_size;
    etdump_->set_event_tracer_debug_level(EventTracerDebugLogLevel::kIntermediateOutputs);
    clear_debug_buffer();
  }
  /// Null if the program writes no ETDump. The caller must hold the mutex while it uses the ETDump.
  extension::ETDumpGen* etdump() const { return etdump_.get(); }
  /// Waits without the GIL, which an observer of a running method may need.
  std::unique_lock<std::recursive_mutex> lock() {
    nb::gil_scoped_release release;
    return std::unique_lock<std::recursive_mutex>(mutex_);
  }
  /// A lock for methods that write to one ETDump or share state: they run in sequence. Empty for other
  /// methods.
  std::unique_lock<std::recursive_mutex> execution_lock() {
    return etdump_ == nullptr && !module_->shares_state() ? std::unique_lock<std::recursive_mutex>()
                                                          : std::unique_lock<std::recursive_mutex>(mutex_);
  }
  /// Returns the bytes of the ETDump, its values and the number of events that did not fit; then starts an
  /// empty ETDump.
  nb::tuple take_etdump() {
    const std::unique_lock<std::recursive_mutex> mutex_lock = lock();
    const size_t dropped = etdump_->num_dropped();
    const extension::ETDumpResult dump = etdump_->get_etdump_data();
    const nb::bytes bytes(dump.buf, dump.size);
    platform_free(dump.buf);
    const extension::DataSinkBase* const sink = etdump_->get_data_sink();
    const nb::bytes values(static_cast<const void*>(debug_buffer_.get()),
                           sink == nullptr ? 0 : sink->get_used_bytes());
    etdump_->reset();
    clear_debug_buffer();
    return nb::make_tuple(bytes, values, dropped);
  }
  /// Compares all files with the program's receipt.
  void verify_integrity() {
    Error error;
    {
      nb::gil_scoped_release release;
      error = module_->verify_integrity();
    }
    check(error);
  }

 private:
  LoadedProgram(std::shared_ptr<Module> module, Program::Verification verification)
      : module_(std::move(module)) {
    check(module_->load(verification));
    check(module_->share_state(*module_));
  }

  static std::shared_ptr<DataLoader> loader_of(nb::handle bytes) {
    const auto view = std::make_shared<View>(bytes);
    const Py_buffer& buffer = view->get();
    const auto size = static_cast<size_t>(buffer.len);
    std::shared_ptr<const void> data(view, buffer.buf);
    if (!buffer.readonly || reinterpret_cast<uintptr_t>(buffer.buf) % 16 != 0) {
      std::shared_ptr<void> copy = allocate_memory(size);
      memcpy(copy.get(), buffer.buf, size);
      data = std::move(copy);
    }
    return std::make_shared<extension::SharedPtrDataLoader>(std::move(data), size);
  }

  void clear_debug_buffer() {
    if (debug_buffer_size_ != 0)
      (void)etdump_->set_debug_buffer({static_cast<uint8_t*>(debug_buffer_.get()), debug_buffer_size_}).ok();
  }

  std::shared_ptr<Module> module_;
  std::unique_ptr<extension::ETDumpGen> etdump_;
  std::recursive_mutex mutex_;  // recursive: an observer of a method may call another method
  Memory debug_buffer_;
  size_t debug_buffer_size_ = 0;
};

using SharedProgram = std::shared_ptr<LoadedProgram>;

}  // namespace torchette::pybindings
