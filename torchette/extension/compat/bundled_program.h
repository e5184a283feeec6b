// SPDX-License-Identifier: BSD-3-Clause
// ExecuTorch's functions on a pointer to a bundled program. A file must be checked before it is read, and the
// check needs the size: get_program_data(), which has a size parameter, checks the file and stores the size
// for the functions that have only the pointer.
#pragma once

#include <map>
#include <mutex>

#include "torchette/extension/bundled_program.h"
#include "torchette/extension/compat/runtime.h"

namespace executorch::bundled_program {

using SerializedBundledProgram = const void;
using runtime::Error;
using runtime::Method;

/// The checked files, by the address of their first byte.
struct CheckedFiles {
  std::mutex mutex;
  std::map<const void*, ::torchette::extension::BundledProgram> by_address;
  static CheckedFiles& get() {
    static CheckedFiles files;
    return files;
  }
};

inline bool is_bundled_program(void* file_data, size_t file_data_len) {
  return ::torchette::extension::BundledProgram::is_bundled(file_data, file_data_len);
}

/// Returns the program in the file. `file_data` must be aligned to 32 bytes. Call it again if the contents of
/// the buffer change. Errors: those of BundledProgram::load().
[[nodiscard]] inline Error get_program_data(void* file_data, size_t file_data_len,
                                            const void** out_program_data, size_t* out_program_data_len) {
  CheckedFiles& files = CheckedFiles::get();
  const std::lock_guard<std::mutex> lock(files.mutex);
  files.by_address.erase(file_data);
  auto bundle = ::torchette::extension::BundledProgram::load(file_data, file_data_len);
  if (!bundle.ok()) return bundle.error();
  *out_program_data = bundle->program().data();
  *out_program_data_len = bundle->program().size();
  files.by_address.emplace(file_data, *bundle);
  return Error::Ok;
}

/// Error: InvalidState (get_program_data() has not been called with this pointer).
inline runtime::Result<::torchette::extension::BundledProgram> checked_file(SerializedBundledProgram* file) {
  CheckedFiles& files = CheckedFiles::get();
  const std::lock_guard<std::mutex> lock(files.mutex);
  const auto found = files.by_address.find(file);
  if (found == files.by_address.end()) {
    TORCHETTE_LOG(
        Error, "the bundled program at %p has not been checked: call get_program_data() with its size first",
        file);
    return Error::InvalidState;
  }
  return found->second;
}

/// Errors: those of checked_file() and BundledProgram::load_bundled_input().
[[nodiscard]] inline Error load_bundled_input(Method& method, SerializedBundledProgram* file,
                                              size_t testset_idx) {
  const auto bundle = checked_file(file);
  return bundle.ok() ? bundle->load_bundled_input(method, testset_idx) : bundle.error();
}

/// Errors: those of checked_file() and BundledProgram::verify_method_outputs().
[[nodiscard]] inline Error verify_method_outputs(Method& method, SerializedBundledProgram* file,
                                                 size_t testset_idx, double rtol = 1e-5, double atol = 1e-8) {
  const auto bundle = checked_file(file);
  return bundle.ok() ? bundle->verify_method_outputs(method, testset_idx, rtol, atol) : bundle.error();
}

}  // namespace executorch::bundled_program

// Older names, from before the namespace executorch.
namespace torch::executor::bundled_program {
using serialized_bundled_program = const void;
using ::executorch::bundled_program::load_bundled_input;
using ::executorch::bundled_program::verify_method_outputs;
inline bool IsBundledProgram(void* file_data, size_t file_data_len) {
  return ::executorch::bundled_program::is_bundled_program(file_data, file_data_len);
}
[[nodiscard]] inline Error GetProgramData(void* file_data, size_t file_data_len,
                                          const void** out_program_data, size_t* out_program_data_len) {
  return ::executorch::bundled_program::get_program_data(file_data, file_data_len, out_program_data,
                                                         out_program_data_len);
}
[[nodiscard]] inline Error LoadBundledInput(Method& method, serialized_bundled_program* file,
                                            size_t testset_idx) {
  return load_bundled_input(method, file, testset_idx);
}
[[nodiscard]] inline Error VerifyResultWithBundledExpectedOutput(Method& method,
                                                                 serialized_bundled_program* file,
                                                                 size_t testset_idx, double rtol = 1e-5,
                                                                 double atol = 1e-8) {
  return verify_method_outputs(method, file, testset_idx, rtol, atol);
}
}  // namespace torch::executor::bundled_program
