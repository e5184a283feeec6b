// SPDX-License-Identifier: BSD-3-Clause
// The list of registered backends.
#include "torchette/runtime/backend.h"

namespace torchette {
namespace {

Backend* backends = nullptr;

/// Looks up named data in the program first, then in the data files.
class Data final : public NamedDataMap {
 public:
  Data(const Program* program, const NamedDataMap* external) : program_(program), external_(external) {}

  Result<FreeableBuffer> get_data(const char* key) const override {
    Result<FreeableBuffer> data = program_->get_data(key);
    if (data.error() != Error::NotFound) return data;
    if (external_ != nullptr) return external_->get_data(key);
    TORCHETTE_LOG(Error, "the program has no data named %s, and there is no data file", key);
    return Error::NotFound;
  }
  Result<uint32_t> get_num_keys() const override {
    if (external_ == nullptr) return program_->get_num_keys();
    const Result<uint32_t> num_external = external_->get_num_keys();
    if (!num_external.ok()) return num_external.error();
    return *program_->get_num_keys() + *num_external;
  }
  Result<const char*> get_key(uint32_t index) const override {
    const uint32_t num_internal = *program_->get_num_keys();
    return index < num_internal || external_ == nullptr ? program_->get_key(index)
                                                        : external_->get_key(index - num_internal);
  }
  Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const override {
    return external_ == nullptr ? Error::NotFound : external_->get_tensor(key, tensor, data);
  }

 private:
  const Program* program_;
  const NamedDataMap* external_;
};

}  // namespace

Error register_backend(Backend& backend) {
  TORCHETTE_CHECK(backend.name != nullptr && backend.backend != nullptr, InvalidArgument,
                  "a backend needs a name and an object");
  TORCHETTE_CHECK(get_backend_class(backend.name) == nullptr, RegistrationAlreadyRegistered,
                  "backend %s is already registered", backend.name);
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

const NamedDataMap* BackendInitContext::get_named_data_map() const {
  static_assert(sizeof(Data) <= sizeof(data_));
  return program_ == nullptr ? nullptr : new (data_) Data(program_, external_);
}

Result<const char*> get_backend_name(size_t index) {
  for (const Backend* node = backends; node != nullptr; node = node->next)
    if (index-- == 0) return node->name;
  return Error::InvalidArgument;
}

}  // namespace torchette
