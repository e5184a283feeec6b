// SPDX-License-Identifier: BSD-3-Clause
#include "torchette/llm/engine/adapter_data.h"

#include <algorithm>

#include "torchette/extension/receipt.h"

namespace torchette::extension::llm {

Result<uint64_t> hash_of(const DataLoader& file) {
  const Result<size_t> size = file.size();
  if (!size.ok()) return size.error();
  const Result<FreeableBuffer> bytes =
      file.load(0, *size, {DataLoader::SegmentInfo::Type::Program, 0, nullptr});
  if (!bytes.ok()) return bytes.error();
  return xxh64(bytes->data(), bytes->size());
}

Result<std::shared_ptr<const NamedDataMap>> AdapterData::make(std::shared_ptr<Module> parent,
                                                              std::shared_ptr<DataLoader> file,
                                                              Decoder::Adapter tensors, std::string* suffix) {
  auto made = std::make_shared<AdapterData>();
  if (file == nullptr) {
    size_t max_size = 0;
    for (const auto& one : tensors) max_size = std::max(max_size, one.second);
    made->zeros_.resize(max_size);
  } else {
    const Result<uint64_t> hash = hash_of(*file);
    if (!hash.ok()) return hash.error();
    *suffix = "-" + std::to_string(*hash);
    Result<FlatTensorDataMap> map = FlatTensorDataMap::load(file.get());
    if (!map.ok()) return map.error();
    made->map_ = std::make_unique<FlatTensorDataMap>(std::move(*map));
    made->file_ = std::move(file);
  }
  made->tensors_ = std::move(tensors);
  made->parent_ = std::move(parent);
  return std::shared_ptr<const NamedDataMap>(std::move(made));
}

Result<FreeableBuffer> AdapterData::get_data(const char* key) const {
  const NamedDataMap* data = parent_data();
  return data == nullptr ? Result<FreeableBuffer>(Error::NotFound) : data->get_data(key);
}

Result<uint32_t> AdapterData::get_num_keys() const {
  const NamedDataMap* data = parent_data();
  return data == nullptr ? Result<uint32_t>(0u) : data->get_num_keys();
}

Result<const char*> AdapterData::get_key(uint32_t index) const {
  const NamedDataMap* data = parent_data();
  return data == nullptr ? Result<const char*>(Error::InvalidArgument) : data->get_key(index);
}

Error AdapterData::get_tensor(const char* key, const TensorImpl& tensor, void** data) const {
  const bool is_adapter =
      std::any_of(tensors_.begin(), tensors_.end(), [&](const auto& one) { return one.first == key; });
  if (!is_adapter)
    return parent_data() == nullptr ? Error::NotFound : parent_data()->get_tensor(key, tensor, data);
  if (map_) return map_->get_tensor(key, tensor, data);
  size_t count = 1;
  for (size_t i = 0; i < tensor.dim; ++i) count *= static_cast<size_t>(tensor.sizes[i]);
  if (tensor.type != ScalarType::Float || count > zeros_.size()) return Error::InvalidExternalData;
  *data = const_cast<float*>(zeros_.data());
  return Error::Ok;
}

}  // namespace torchette::extension::llm
