// SPDX-License-Identifier: BSD-3-Clause
// The lookup of a kernel, once per operator when a method is loaded, and the list of run-time registrations.
#include "torchette/runtime/kernel_registry.h"

namespace torchette {

namespace {

KernelRegistration* registrations = nullptr;

/// Names from a file may contain any bytes, including zero bytes.
bool is_called(const char* full_name, Span<const char> name, Span<const char> overload) {
  const size_t dot = overload.empty() ? 0 : 1;
  return strlen(full_name) == name.size() + dot + overload.size() &&
         memcmp(full_name, name.data(), name.size()) == 0 && (dot == 0 || full_name[name.size()] == '.') &&
         memcmp(full_name + name.size() + dot, overload.data(), overload.size()) == 0;
}

}  // namespace

const Kernel* find_kernel_in(Kernels kernels, Span<const char> name, Span<const char> overload) {
  for (const Kernel& kernel : kernels)
    if (is_called(kernel.name, name, overload)) return &kernel;
  return nullptr;
}

const Kernel* find_kernel(Span<const char> name, Span<const char> overload) {
  for (const KernelRegistration* node = registrations; node != nullptr; node = node->next)
    if (const Kernel* kernel = node->find(node->kernels, name, overload)) return kernel;
  for (const Kernels& family : kernel_table())
    if (const Kernel* kernel = find_kernel_in(family, name, overload)) return kernel;
  return nullptr;
}

const Kernel* find_kernel(const char* full_name) {
  return find_kernel({full_name, strlen(full_name)}, {"", 0});
}

Error register_kernels(KernelRegistration& registration) {
  for (size_t i = 0; i < registration.kernels.size(); ++i) {
    const Kernel& kernel = registration.kernels[i];
    TORCHETTE_CHECK(kernel.name != nullptr && kernel.function != nullptr && kernel.signature != nullptr,
                    InvalidArgument, "kernel %zu has no name, function or signature", i);
    const Span<const char> name(kernel.name, strlen(kernel.name));
    TORCHETTE_CHECK((registration.replaces || find_kernel(kernel.name) == nullptr) &&
                        find_kernel_in({registration.kernels.data(), i}, name, {"", 0}) == nullptr,
                    RegistrationAlreadyRegistered, "kernel %s is already registered", kernel.name);
  }
  registration.next = registrations;
  registrations = &registration;
  return Error::Ok;
}

}  // namespace torchette
