// SPDX-License-Identifier: BSD-3-Clause
// A program with the bytes that it stands in, as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "torchette/extension/buffer_data_loader.h"
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
  std::optional<extension::MmapDataLoader> file_;
  View view_;
  Memory copy_;
  std::optional<extension::BufferDataLoader> buffer_;
  std::vector<std::unique_ptr<extension::MmapDataLoader>> data_files_;
  std::vector<extension::FlatTensorDataMap> data_maps_;
  std::optional<extension::MergedDataMap> data_map_;
  std::optional<Program> program_;
};

using SharedProgram = std::shared_ptr<LoadedProgram>;

}  // namespace torchette::pybindings
