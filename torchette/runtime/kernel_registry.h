// SPDX-License-Identifier: BSD-3-Clause
// Finds a kernel by operator name: first in the run-time registrations, latest first, then in the linked
// table.
#pragma once

#include "torchette/runtime/kernel.h"

namespace torchette {

/// The kernel of that name in `kernels`, or null.
const Kernel* find_kernel_in(Kernels kernels, Span<const char> name, Span<const char> overload);

/// Kernels that are added at run time. The caller owns the node and the objects that it points to, and keeps
/// them for as long as the runtime is used. So the registry has no capacity limit and needs no heap.
struct KernelRegistration {
  Kernels kernels;
  KernelRegistration* next = nullptr;
  /// Whether programs that are loaded afterwards use these kernels instead of existing ones of the same name.
  bool replaces = false;
  /// Finds a kernel in `kernels`, or creates one on demand; a created kernel lives as long as the node.
  const Kernel* (*find)(Kernels, Span<const char> name, Span<const char> overload) = &find_kernel_in;
};

/// Adds the kernels of `registration`. Must not be called while another thread loads a program. Errors:
/// RegistrationAlreadyRegistered (a kernel of that name exists and `replaces` is false, or the list contains
/// a name twice; nothing is added), InvalidArgument (a kernel without name, function or signature).
Error register_kernels(KernelRegistration& registration);

/// The kernel of operator `name` ("aten::add") and `overload` ("out"; may be empty), or null.
const Kernel* find_kernel(Span<const char> name, Span<const char> overload);
/// The kernel of a full name, such as "aten::add.out", or null.
const Kernel* find_kernel(const char* full_name);

}  // namespace torchette
