// SPDX-License-Identifier: BSD-3-Clause
// Saves and loads checkpoints: .ptd files with the parameters of a model and the state of an optimizer.
// Python's `TrainingModule.save` writes the same files.
#pragma once

#include <cstdio>
#include <cstring>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "torchette/extension/flat_tensor.h"
#include "torchette/extension/training/optimizer.h"

namespace torchette::extension {
namespace flat_tensor {

/// Builds the bytes of a .ptd file from start to end. The target of an offset is written after the offset.
class PtdWriter {
 public:
  std::vector<uint8_t> bytes;

  void align(size_t alignment) { bytes.resize((bytes.size() + alignment - 1) / alignment * alignment); }
  template <typename T>
  size_t append(T value) {
    const size_t at = bytes.size();
    bytes.resize(at + sizeof(T));
    std::memcpy(bytes.data() + at, &value, sizeof(T));
    return at;
  }
  /// Sets the offset at `from` to the current end of the bytes.
  void set_offset(size_t from) {
    const auto distance = static_cast<uint32_t>(bytes.size() - from);
    std::memcpy(bytes.data() + from, &distance, sizeof(distance));
  }
  /// Writes the vtable of a table of `size` bytes with fields at these offsets. Returns its position.
  size_t vtable(uint16_t size, const std::vector<uint16_t>& fields) {
    align(4);
    const size_t at = append(static_cast<uint16_t>(4 + 2 * fields.size()));
    append(size);
    for (const uint16_t field : fields) append(field);
    return at;
  }
  void table(size_t vtable_at) { append(static_cast<int32_t>(bytes.size() - vtable_at)); }
  void items(size_t from, const void* data, size_t count, size_t size) {
    align(4);
    set_offset(from);
    append(static_cast<uint32_t>(count));
    if (count == 0) return;
    const size_t at = bytes.size();
    bytes.resize(at + count * size);
    std::memcpy(bytes.data() + at, data, count * size);
  }
};

/// Writes a .ptd file to a temporary name and renames it to `path`, so that a device that loses power has
/// either the old or the new file. Errors: AccessFailed (the file cannot be written), InvalidArgument
/// (`tensor_alignment` is not a power of two).
template <typename Name>
Error save_ptd(const std::string& path, const std::map<Name, Tensor>& tensors,
               size_t tensor_alignment = 128) {
  TORCHETTE_CHECK(tensor_alignment != 0 && (tensor_alignment & (tensor_alignment - 1)) == 0, InvalidArgument,
                  "the alignment of tensors is %zu, expected a power of two", tensor_alignment);
  constexpr size_t kHeader = 48, kHeaderOffset = 8;
  PtdWriter out;
  const size_t root = out.append(uint32_t{0});
  for (const char c : {'F', 'T', '0', '1'}) out.append(c);
  out.bytes.resize(kHeaderOffset + kHeader);
  const size_t of_file = out.vtable(16, {4, 8, 12}), of_segment = out.vtable(24, {8, 16});
  const size_t of_entry = out.vtable(16, {4, 8, 12}), of_layout = out.vtable(16, {4, 8, 12});
  out.align(4);
  out.set_offset(root);
  out.table(of_file);
  out.append(uint32_t{0});
  const size_t segments = out.append(uint32_t{0}), entries = out.append(uint32_t{0});
  const std::vector<uint32_t> empty_offsets(tensors.size());
  out.items(segments, empty_offsets.data(), empty_offsets.size(), 4);
  size_t slot = out.bytes.size() - 4 * empty_offsets.size(), end = 0;
  const auto align_up = [&](size_t size) { return (size + tensor_alignment - 1) & ~(tensor_alignment - 1); };
  for (const auto& entry : tensors) {
    out.align(8);
    out.set_offset(slot);
    slot += 4;
    out.table(of_segment);
    out.append(uint32_t{0});
    out.append(static_cast<uint64_t>(align_up(end)));
    out.append(static_cast<uint64_t>(entry.second.nbytes()));
    end = align_up(end) + entry.second.nbytes();
  }
  out.items(entries, empty_offsets.data(), empty_offsets.size(), 4);
  slot = out.bytes.size() - 4 * empty_offsets.size();
  uint32_t index = 0;
  for (const auto& [name, tensor] : tensors) {
    out.align(4);
    out.set_offset(slot);
    slot += 4;
    out.table(of_entry);
    const size_t key = out.append(uint32_t{0});
    out.append(index++);
    const size_t layout = out.append(uint32_t{0});
    out.items(key, name.data(), name.size(), 1);
    out.append(uint8_t{0});
    out.align(4);
    out.set_offset(layout);
    out.table(of_layout);
    out.append(static_cast<uint32_t>(tensor.scalar_type()));
    const size_t sizes = out.append(uint32_t{0}), order = out.append(uint32_t{0});
    out.items(sizes, tensor.sizes().data(), tensor.sizes().size(), sizeof(SizesType));
    out.items(order, tensor.dim_order().data(), tensor.dim_order().size(), sizeof(DimOrderType));
  }
  const size_t head = out.bytes.size(), base = align_up(head);
  const uint32_t length = 40;
  std::memcpy(out.bytes.data() + kHeaderOffset, "FH01", 4);
  std::memcpy(out.bytes.data() + kHeaderOffset + 4, &length, 4);
  const uint64_t header_fields[] = {kHeader, head - kHeader, base, end};
  std::memcpy(out.bytes.data() + kHeaderOffset + 8, header_fields, sizeof(header_fields));
  out.bytes.resize(base);

  const std::string temporary_path = path + ".new";
  std::FILE* const file = std::fopen(temporary_path.c_str(), "wb");
  TORCHETTE_CHECK(file != nullptr, AccessFailed, "cannot open %s for writing", temporary_path.c_str());
  bool is_written = std::fwrite(out.bytes.data(), 1, base, file) == base;
  size_t at = 0;
  const std::vector<uint8_t> zeros(tensor_alignment);
  for (const auto& entry : tensors) {
    const size_t gap = align_up(at) - at, size = entry.second.nbytes();
    is_written = is_written && std::fwrite(zeros.data(), 1, gap, file) == gap &&
                 (size == 0 || std::fwrite(entry.second.const_data_ptr(), 1, size, file) == size);
    at += gap + size;
  }
  is_written = std::fclose(file) == 0 && is_written;
  TORCHETTE_CHECK(is_written && std::rename(temporary_path.c_str(), path.c_str()) == 0, AccessFailed,
                  "cannot write %s", path.c_str());
  return Error::Ok;
}

}  // namespace flat_tensor

namespace training {

/// Writes a checkpoint. Errors: those of save_ptd().
inline Error save_checkpoint(const std::string& path,
                             const std::map<std::string_view, Tensor>& named_parameters,
                             const OptimizerState& state = {}) {
  std::map<std::string_view, Tensor> all = named_parameters;
  for (const auto& [name, tensor] : state) all.emplace(name, *tensor);
  return flat_tensor::save_ptd(path, all);
}

/// Loads the parameters and, if `state` is not null, the optimizer state of a checkpoint. On an error, both
/// are unchanged. Errors: NotFound (the file lacks a parameter), InvalidExternalData (a tensor in the file
/// has another shape, layout or dtype).
inline Error load_checkpoint(const FlatTensorDataMap& file,
                             const std::map<std::string_view, Tensor>& named_parameters,
                             OptimizerState* state = nullptr) {
  std::vector<std::pair<const Tensor*, void*>> sources;
  for (const auto& [name, tensor] : named_parameters) {
    void* data = nullptr;
    TORCHETTE_TRY(file.get_tensor(std::string(name).c_str(), *tensor.unsafe_impl(), &data));
    sources.emplace_back(&tensor, data);
  }
  OptimizerState loaded_state;
  const Result<uint32_t> count = file.get_num_keys();
  for (uint32_t i = 0; state != nullptr && count.ok() && i < *count; ++i) {
    const Result<const char*> key = file.get_key(i);
    if (!key.ok()) return key.error();
    if (std::strchr(*key, '@') == nullptr) continue;
    const Result<const TensorLayout> layout = file.get_tensor_layout(*key);
    if (!layout.ok()) return layout.error();
    TensorPtr tensor =
        make_tensor_ptr(std::vector<SizesType>(layout->sizes().begin(), layout->sizes().end()),
                        std::vector<uint8_t>(layout->nbytes()),
                        std::vector<DimOrderType>(layout->dim_order().begin(), layout->dim_order().end()), {},
                        layout->scalar_type());
    if (!tensor) return Error::InvalidExternalData;
    TORCHETTE_TRY(file.load_data_into(*key, tensor->mutable_data_ptr(), layout->nbytes()));
    loaded_state.emplace(*key, std::move(tensor));
  }
  for (const auto& [tensor, data] : sources)
    if (tensor->nbytes() != 0) std::memcpy(tensor->mutable_data_ptr(), data, tensor->nbytes());
  if (state != nullptr) *state = std::move(loaded_state);
  return Error::Ok;
}

}  // namespace training
}  // namespace torchette::extension
