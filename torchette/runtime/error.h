// SPDX-License-Identifier: BSD-3-Clause
// The error codes of the runtime. They equal those of ExecuTorch, so codes in logs of both have the same
// meaning.
#pragma once

#include <cstdint>

namespace torchette {

enum class [[nodiscard]] Error : uint32_t {
  Ok = 0x00,
  Internal = 0x01,
  InvalidState = 0x02,
  EndOfMethod = 0x03,
  AlreadyLoaded = 0x04,

  NotSupported = 0x10,
  NotImplemented = 0x11,
  InvalidArgument = 0x12,
  InvalidType = 0x13,
  OperatorMissing = 0x14,
  RegistrationExceedingMaxKernels = 0x15,
  RegistrationAlreadyRegistered = 0x16,

  NotFound = 0x20,
  MemoryAllocationFailed = 0x21,
  AccessFailed = 0x22,
  InvalidProgram = 0x23,
  InvalidExternalData = 0x24,
  OutOfResources = 0x25,

  DelegateInvalidCompatibility = 0x30,
  DelegateMemoryAllocationFailed = 0x31,
  DelegateInvalidHandle = 0x32,
};

/// Returns the error of `expr` to the caller; continues if `expr` is Error::Ok.
#define TORCHETTE_TRY(expr)                                                \
  do {                                                                     \
    const ::torchette::Error torchette_error = (expr);                     \
    if (torchette_error != ::torchette::Error::Ok) return torchette_error; \
  } while (0)

}  // namespace torchette
