// SPDX-License-Identifier: BSD-3-Clause
// Finding a kernel by its operator's name: first among those that were registered while running, the last one
// first, then in the table that was linked in.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {

/// The kernel among these, or null.
const Kernel* find_kernel_in(Kernels kernels, Span<const char> name, Span<const char> overload);

/// Kernels that are added at run time. The caller owns the node and keeps it, and what it points to, for as
/// long as the runtime is used; so there is neither a capacity nor a heap.
struct KernelRegistration {
  Kernels kernels;
  KernelRegistration* next = nullptr;
  bool replaces =
      false;  // programs that are loaded from now on use these where there are others of their name
  /// Looks among `kernels`; or makes kernels when programs name them, which stay as long as the node does.
  const Kernel* (*find)(Kernels, Span<const char> name, Span<const char> overload) = &find_kernel_in;
};

/// Adds the kernels of `registration`. Not to be called while programs are loading in other threads.
/// Errors: RegistrationAlreadyRegistered (a kernel of that name is there and not to be replaced, or it is
/// twice in the list; nothing is added), InvalidArgument (a kernel without name, function or signature).
Error register_kernels(KernelRegistration& registration);

/// The kernel called `name` ("aten::add"), `overload` ("out"; may be empty), or null.
const Kernel* find_kernel(Span<const char> name, Span<const char> overload);
/// The same by full name, "aten::add.out".
const Kernel* find_kernel(const char* full_name);

}  // namespace torchette
