// SPDX-License-Identifier: BSD-3-Clause
// AdapterData: the external data of a program with LoRA adapters. The tensors of the adapter come from its
// file, or are zeros without one. All other data come from the data files of the parent module.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "torchette/extension/module.h"
#include "torchette/llm/engine/decoder.h"

namespace torchette::extension::llm {

/// Returns the hash of a file's bytes. Errors: those of the loader.
Result<uint64_t> hash_of(const DataLoader& file);

class AdapterData final : public NamedDataMap {
 public:
  /// `file` may be null. Sets `*suffix` to a text that identifies the file. Errors: those of
  /// FlatTensorDataMap::load().
  static Result<std::shared_ptr<const NamedDataMap>> make(std::shared_ptr<Module> parent,
                                                          std::shared_ptr<DataLoader> file,
                                                          Decoder::Adapter tensors, std::string* suffix);

  Result<FreeableBuffer> get_data(const char* key) const override;
  Result<uint32_t> get_num_keys() const override;
  Result<const char*> get_key(uint32_t index) const override;
  Error get_tensor(const char* key, const TensorImpl& tensor, void** data) const override;

 private:
  const NamedDataMap* parent_data() const { return parent_->data_map(); }

  std::shared_ptr<Module> parent_;
  Decoder::Adapter tensors_;
  std::vector<float> zeros_;  // the size of the largest tensor; shared by all tensors
  std::shared_ptr<DataLoader> file_;
  std::unique_ptr<FlatTensorDataMap> map_;
};

}  // namespace torchette::extension::llm
