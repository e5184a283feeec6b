// SPDX-License-Identifier: BSD-3-Clause
// The list of backends.
#include "torchette/runtime/backend.h"

namespace torchette {
namespace {

Backend* backends = nullptr;

}  // namespace

Error register_backend(Backend& backend) {
  TORCHETTE_CHECK(backend.name != nullptr && backend.backend != nullptr, InvalidArgument,
                  "a backend needs a name and an object");
  TORCHETTE_CHECK(get_backend_class(backend.name) == nullptr, RegistrationAlreadyRegistered,
                  "there is a backend %s already", backend.name);
  backend.next = backends;
  backends = &backend;
  return Error::Ok;
}

BackendInterface* get_backend_class(const char* name) {
  for (const Backend* node = backends; node != nullptr; node = node->next)
    if (strcmp(node->name, name) == 0) return node->backend;
  return nullptr;
}

size_t get_num_registered_backends() {
  size_t n = 0;
  for (const Backend* node = backends; node != nullptr; node = node->next) ++n;
  return n;
}

Result<const char*> get_backend_name(size_t index) {
  for (const Backend* node = backends; node != nullptr; node = node->next)
    if (index-- == 0) return node->name;
  return Error::InvalidArgument;
}

}  // namespace torchette
