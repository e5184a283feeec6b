// SPDX-License-Identifier: BSD-3-Clause
// Returns the names of error codes for messages.
#pragma once

#include "torchette/runtime/error.h"

namespace torchette::extension {

inline const char* error_name(Error error) {
  switch (error) {
#define TORCHETTE_NAME(name) \
  case Error::name:          \
    return #name;
    TORCHETTE_NAME(Ok)
    TORCHETTE_NAME(Internal)
    TORCHETTE_NAME(InvalidState)
    TORCHETTE_NAME(EndOfMethod)
    TORCHETTE_NAME(AlreadyLoaded)
    TORCHETTE_NAME(NotSupported)
    TORCHETTE_NAME(NotImplemented)
    TORCHETTE_NAME(InvalidArgument)
    TORCHETTE_NAME(InvalidType)
    TORCHETTE_NAME(OperatorMissing)
    TORCHETTE_NAME(RegistrationExceedingMaxKernels)
    TORCHETTE_NAME(RegistrationAlreadyRegistered)
    TORCHETTE_NAME(NotFound)
    TORCHETTE_NAME(MemoryAllocationFailed)
    TORCHETTE_NAME(AccessFailed)
    TORCHETTE_NAME(InvalidProgram)
    TORCHETTE_NAME(InvalidExternalData)
    TORCHETTE_NAME(OutOfResources)
    TORCHETTE_NAME(DelegateInvalidCompatibility)
    TORCHETTE_NAME(DelegateMemoryAllocationFailed)
    TORCHETTE_NAME(DelegateInvalidHandle)
#undef TORCHETTE_NAME
  }
  return "an unknown error";
}

}  // namespace torchette::extension
