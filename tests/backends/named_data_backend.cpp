// SPDX-License-Identifier: BSD-3-Clause
// A backend with a payload that is only a name. The program or a data file contains the factors under this
// name.
#include <cstring>
#include <string>
#include <vector>

#include "torchette/runtime/backend.h"

namespace {

using namespace torchette;

class Scale final : public BackendInterface {
 public:
  bool is_available() const override { return true; }

  Result<DelegateHandle*> init(BackendInitContext& context, FreeableBuffer* processed,
                               Span<const CompileSpec>) const override {
    const std::string key(static_cast<const char*>(processed->data()), processed->size());
    Result<FreeableBuffer> data = context.get_named_data_map()->get_data(key.c_str());
    if (!data.ok()) return data.error();
    TORCHETTE_CHECK(data->size() % sizeof(float) == 0, InvalidExternalData, "%s has %zu bytes", key.c_str(),
                    data->size());
    auto* factors = new std::vector<float>(data->size() / sizeof(float));
    if (data->size() != 0) memcpy(factors->data(), data->data(), data->size());
    data->Free();
    return static_cast<DelegateHandle*>(factors);
  }

  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<Value*> arguments) const override {
    const auto& factors = *static_cast<const std::vector<float>*>(handle);
    const Tensor from = arguments[0]->to_tensor(), to = arguments[1]->to_tensor();
    TORCHETTE_TRY(resize_tensor(to, from.sizes()));
    TORCHETTE_CHECK(static_cast<size_t>(from.numel()) == factors.size(), InvalidArgument,
                    "%zd elements for %zu factors", from.numel(), factors.size());
    for (size_t i = 0; i < factors.size(); ++i)
      to.mutable_data_ptr<float>()[i] = from.const_data_ptr<float>()[i] * factors[i];
    return Error::Ok;
  }

  void destroy(DelegateHandle* handle) const override { delete static_cast<std::vector<float>*>(handle); }
};

Scale scale;
Backend entry{"ScaleBackend", &scale};

}  // namespace

extern "C" __attribute__((visibility("default"))) torchette::Backend* torchette_backend() { return &entry; }
