// SPDX-License-Identifier: BSD-3-Clause
// Loads a program with a user's NamedDataMap, which has the functions of ExecuTorch and Torchette's
// get_tensor(). The map has a weight of 2 x 3 floats. Prints the result of `forward`, or the error if SIZE
// does not match. Arguments: PROGRAM.pte SIZE
#include <executorch/extension/data_loader/file_data_loader.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/core/named_data_map.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace rt = executorch::runtime;
namespace ext = executorch::extension;

namespace {

class OwnMap final : public rt::NamedDataMap {
 public:
  explicit OwnMap(int columns) : columns_(columns) {}

  rt::Result<rt::FreeableBuffer> get_data(const char*) const override { return rt::Error::NotFound; }
  rt::Result<uint32_t> get_num_keys() const override { return uint32_t{1}; }
  rt::Result<const char*> get_key(uint32_t index) const override {
    if (index != 0) return rt::Error::InvalidArgument;
    return "weight";
  }
  rt::Error get_tensor(const char* key, const torchette::TensorImpl& tensor, void** data) const override {
    if (strcmp(key, "weight") != 0) return rt::Error::NotFound;
    if (tensor.dim != 2 || tensor.sizes[0] != 2 || tensor.sizes[1] != columns_)
      return rt::Error::InvalidExternalData;
    *data = values;
    return rt::Error::Ok;
  }

  alignas(16) mutable float values[6] = {1, 2, 3, 4, 5, 6};

 private:
  const int columns_;
};

}  // namespace

int main(int, char** words) {
  auto parent = std::make_shared<ext::Module>(words[1]);
  if (parent->load() != rt::Error::Ok) return 1;
  const auto data = std::make_shared<OwnMap>(atoi(words[2]));
  ext::Module module(parent, data);
  float x[3] = {1, 10, 100};
  const auto result = module.forward(ext::from_blob(x, {1, 3}));
  if (!result.ok()) {
    std::printf("error %d\n", static_cast<int>(result.error()));
    return 0;
  }
  // The runtime reads the weight in the map's memory, so the next call uses changed bytes.
  const float first = result->at(0).toTensor().const_data_ptr<float>()[0];
  data->values[0] = 7;
  const auto again = module.forward(ext::from_blob(x, {1, 3}));
  if (!again.ok()) return 3;
  std::printf("%g %g\n", static_cast<double>(first),
              static_cast<double>(again->at(0).toTensor().const_data_ptr<float>()[0]));
}
