// SPDX-License-Identifier: BSD-3-Clause
// A program with the bytes that it stands in, as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "torchette/extension/buffer_data_loader.h"
#include "torchette/extension/etdump.h"
#include "torchette/extension/flat_tensor.h"
#include "torchette/extension/mmap_data_loader.h"
#include "torchette/extension/receipt.h"
#include "torchette/pybindings/faults.h"
#include "torchette/pybindings/memory.h"
#include "torchette/runtime/program.h"

namespace nb = nanobind;

namespace torchette::pybindings {

/// A view of a Python buffer. Made and released with the interpreter's lock held, as all objects of Python
/// are.
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

/// A program with the bytes that it stands in. Methods share it, so it lives as long as any of them.
class LoadedProgram {
 public:
  /// Maps the file.
  LoadedProgram(const std::string& path, Program::Verification verification)
      : file_(unwrap(extension::MmapDataLoader::from(path.c_str()))),
        program_(unwrap(Program::load(&*file_, verification))) {}
  /// Uses the buffer in place if nobody can write to it and it is aligned, else a copy.
  LoadedProgram(nb::handle bytes, Program::Verification verification) : view_(bytes) {
    const Py_buffer& view = view_.get();
    const void* data = view.buf;
    const auto size = static_cast<size_t>(view.len);
    if (!view.readonly || reinterpret_cast<uintptr_t>(data) % 16 != 0) {
      copy_ = allocate_memory(size);
      memcpy(copy_.get(), data, size);
      data = copy_.get();
    }
    buffer_.emplace(data, size);
    program_.emplace(unwrap(Program::load(&*buffer_, verification)));
  }
  LoadedProgram(const LoadedProgram&) = delete;

  const Program& program() const { return *program_; }
  /// Adds a data file, which is mapped; to be called before methods are loaded.
  void add_data_file(const std::string& path) {
    data_files_.push_back(
        std::make_unique<extension::MmapDataLoader>(unwrap(extension::MmapDataLoader::from(path.c_str()))));
    data_maps_.push_back(unwrap(extension::FlatTensorDataMap::load(data_files_.back().get())));
    data_map_.emplace(Span<const extension::FlatTensorDataMap>(data_maps_.data(), data_maps_.size()));
  }
  /// Methods that are loaded from now on write an ETDump; with the values of all instructions where there is
  /// a buffer for them.
  void enable_etdump(size_t debug_buffer_size) {
    etdump_ = std::make_unique<extension::ETDumpGen>();
    if (debug_buffer_size == 0) return;
    debug_buffer_ = allocate_memory(debug_buffer_size);
    debug_buffer_size_ = debug_buffer_size;
    etdump_->set_event_tracer_debug_level(EventTracerDebugLogLevel::kIntermediateOutputs);
    clear_debug_buffer();
  }
  /// Null where there is none. Whoever uses it holds the mutex.
  extension::ETDumpGen* etdump() const { return etdump_.get(); }
  std::mutex& etdump_mutex() { return etdump_mutex_; }
  /// The bytes of the dump and of the values in it, what events found no room, and an empty dump from now on.
  nb::tuple take_etdump() {
    const std::lock_guard<std::mutex> lock(etdump_mutex_);
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
  /// Holds all files against the program's receipt.
  void verify_integrity() const {
    std::vector<const DataLoader*> data_files;
    for (const auto& data_file : data_files_) data_files.push_back(&*data_file);
    const DataLoader& file = file_ ? static_cast<const DataLoader&>(*file_) : *buffer_;
    Error error;
    {
      nb::gil_scoped_release others_run;
      error = extension::verify_integrity(*program_, file, data_files);
    }
    if (error != Error::Ok) throw runtime_fault(error);
  }
  /// Null where no data file was added.
  const NamedDataMap* data_map() const { return data_map_ ? &*data_map_ : nullptr; }

 private:
  void clear_debug_buffer() {
    if (debug_buffer_size_ != 0)
      (void)etdump_->set_debug_buffer({static_cast<uint8_t*>(debug_buffer_.get()), debug_buffer_size_}).ok();
  }

  std::optional<extension::MmapDataLoader> file_;
  View view_;
  Memory copy_;
  std::optional<extension::BufferDataLoader> buffer_;
  std::vector<std::unique_ptr<extension::MmapDataLoader>> data_files_;
  std::vector<extension::FlatTensorDataMap> data_maps_;
  std::optional<extension::MergedDataMap> data_map_;
  std::optional<Program> program_;
  std::unique_ptr<extension::ETDumpGen> etdump_;
  std::mutex etdump_mutex_;
  Memory debug_buffer_;
  size_t debug_buffer_size_ = 0;
};

using SharedProgram = std::shared_ptr<LoadedProgram>;

}  // namespace torchette::pybindings
