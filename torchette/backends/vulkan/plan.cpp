// SPDX-License-Identifier: BSD-3-Clause
// Planning: runs the operators of a graph to find the memory that they need, and assigns offsets to it.
#include <algorithm>
#include <cstring>

#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {

int Graph::add_storage(uint64_t bytes, Use use) {
  storages_.emplace_back();
  storages_.back().bytes = bytes;
  storages_.back().use = use;
  return static_cast<int>(storages_.size()) - 1;
}

/// Allocates a storage for `view`; returns false after an error.
bool Graph::allocate(View* view) {
  view->offset = 0;
  view->make_contiguous_strides();
  double count = 1;
  for (int d = 0; d < view->rank; ++d)
    count *= view->sizes[d] < 0 ? 1e18 : static_cast<double>(view->sizes[d]);
  if (count >= static_cast<double>(kMaxElements)) {
    TORCHETTE_LOG(Error, "a tensor of the Vulkan graph has 2^31 elements or more");
    fail(Error::NotSupported);
  }
  if (!ok()) return false;
  const uint64_t bytes = static_cast<uint64_t>(view->numel()) * bytes_of(view->kind);
  if (bytes > device_.limits().maxStorageBufferRange) {
    TORCHETTE_LOG(Error, "a tensor of the Vulkan graph has %llu bytes, the device supports %u",
                  static_cast<unsigned long long>(bytes), device_.limits().maxStorageBufferRange);
    fail(Error::NotSupported);
    return false;
  }
  if (recording_) {  // reuses the storages of the planning run, in the same order
    if (next_storage_ >= storages_.size() || storages_[next_storage_].bytes != bytes) {
      fail(Error::Internal);
      return false;
    }
    view->storage = static_cast<int>(next_storage_++);
  } else {
    view->storage = add_storage(bytes, Use::kArena);
  }
  return true;
}

View Graph::scratch(const View& like) {
  View view = like;
  allocate(&view);
  return view;
}

Error Graph::reserve(Buffer* buffer, uint64_t size, Memory kind) {
  if (buffer->buffer != VK_NULL_HANDLE && buffer->size >= size) return Error::Ok;
  device_.free(buffer);
  return device_.allocate(size, kind, buffer);
}

/// Runs all operators, to plan or to record.
Error Graph::trace(bool record) {
  recording_ = record;
  error_ = Error::Ok;
  dispatches_ = bindings_ = 0;
  counts_ = Counts();
  pending_.clear();
  next_storage_ = constant_storages_;
  if (!record) storages_.resize(constant_storages_);
  for (Value& value : values_) {
    if (value.type == Type::kTensor && value.constant < 0) value.view = View();
    if (value.is_state) value.view = value.state;
  }
  for (size_t i = 0; i < inputs_.size(); ++i) {
    Value& value = values_[payload_.inputs()[i]];
    if (value.type != Type::kTensor) continue;
    const View given = inputs_[i];
    if (allocate(&inputs_[i])) {
      memcpy(inputs_[i].strides, given.strides, sizeof(given.strides));
      storages_[static_cast<size_t>(inputs_[i].storage)].use = Use::kInput;
      value.view = inputs_[i];
    }
  }
  for (Step& step : steps_) step.is_done = false;
  if (record && has_state_) wait_for_shaders();  // for the states that the previous execution wrote
  step_ = -1;
  for (const Step& step : steps_) {
    ++step_;
    if (step.is_done) continue;
    Call call(*this, step.name, step.args);
    step.run(call);
    const int32_t last = step.args[step.args.size() - 1];
    store_state(last);
    for (const int32_t id : values_[static_cast<size_t>(last)].list) store_state(id);
    if (!ok()) {
      TORCHETTE_LOG(Error, "step %d of the Vulkan payload failed: %.80s", step_, step.name);
      break;
    }
  }
  step_ = -1;
  if (ok()) finish_outputs();
  return error_;
}

/// Copies the computed value of a state to the storage of the state.
void Graph::store_state(int32_t id) {
  Value& it = values_[static_cast<size_t>(id)];
  if (!it.is_state || !ok()) return;
  View from = it.view;
  const View& to = it.state;
  it.view = to;
  const auto differ = [&](const int64_t* a, const int64_t* b) {
    return memcmp(a, b, sizeof(int64_t) * static_cast<size_t>(to.rank)) != 0;
  };
  if (from.storage < 0 || from.rank != to.rank || differ(from.sizes, to.sizes)) {
    TORCHETTE_LOG(Error, "the new value of a Vulkan state has another size than the state");
    return fail(Error::DelegateInvalidCompatibility);
  }
  if (from.storage == to.storage) {
    if (from.offset == to.offset && !differ(from.strides, to.strides)) return;
    const View copied = scratch(from);
    copy(*this, from, copied);
    from = copied;
  }
  copy(*this, from, to);
}

/// Makes every output a separate storage with the dim order of the argument.
void Graph::finish_outputs() {
  for (size_t i = 0; i < outputs_.size() && ok(); ++i) {
    const Value& value = values_[payload_.outputs()[i]];
    if (value.type != Type::kTensor) continue;
    const View& view = value.view;
    if (view.storage < 0) {
      TORCHETTE_LOG(Error, "output %zu of the Vulkan payload is not computed", i);
      return fail(Error::DelegateInvalidCompatibility);
    }
    Storage& storage = storages_[static_cast<size_t>(view.storage)];
    View ordered = view;
    int64_t stride = 1;
    bool has_order = true;
    uint32_t seen = 0;
    for (int d = view.rank - 1; d >= 0; --d) {
      const int dim = orders_[i].dims[d];
      if (dim >= view.rank || (seen >> dim & 1) != 0)  // the argument has another rank
        return fail(Error::InvalidArgument);
      seen |= 1u << dim;
      ordered.strides[dim] = stride;
      stride *= view.sizes[dim];
      has_order = has_order && (view.sizes[dim] == 1 || view.strides[dim] == ordered.strides[dim]);
    }
    const bool is_whole_storage = view.offset == 0 && has_order &&
                                  static_cast<uint64_t>(view.numel()) * bytes_of(view.kind) == storage.bytes;
    const int index = static_cast<int>(i);
    if (is_whole_storage &&
        (storage.use == Use::kArena || (storage.use == Use::kOutput && storage.owner == index))) {
      storage.use = Use::kOutput;
      storage.owner = index;
      outputs_[i] = view;
      continue;
    }
    View out = scratch(view);
    if (!ok()) return;
    memcpy(out.strides, ordered.strides, sizeof(out.strides));
    storages_[static_cast<size_t>(out.storage)].use = Use::kOutput;
    storages_[static_cast<size_t>(out.storage)].owner = index;
    copy(*this, view, out);
    outputs_[i] = out;
  }
}

/// Arguments are consecutive in the buffer that the host reads and writes. Of the arena's storages, the
/// largest come first, each at the lowest offset that is free during its lifetime.
Error Graph::assign_offsets() {
  uint64_t io = 0, arena = 0;
  std::vector<size_t> order;
  for (size_t i = constant_storages_; i < storages_.size(); ++i) {
    Storage& it = storages_[i];
    if (it.use == Use::kArena) {
      if (it.first >= 0) order.push_back(i);
      continue;
    }
    it.buffer = &io_;
    it.offset = io;
    io += aligned(it.bytes);
  }
  std::stable_sort(order.begin(), order.end(),
                   [this](size_t a, size_t b) { return storages_[a].bytes > storages_[b].bytes; });
  std::vector<size_t> placed, overlapping;
  for (const size_t i : order) {
    Storage& it = storages_[i];
    overlapping.clear();
    for (const size_t other : placed)
      if (storages_[other].first <= it.last && it.first <= storages_[other].last)
        overlapping.push_back(other);
    std::sort(overlapping.begin(), overlapping.end(),
              [this](size_t a, size_t b) { return storages_[a].offset < storages_[b].offset; });
    uint64_t at = 0;
    for (const size_t other : overlapping) {
      if (at + it.bytes <= storages_[other].offset) break;
      at = std::max(at, storages_[other].offset + aligned(storages_[other].bytes));
    }
    it.offset = at;
    it.buffer = &arena_;
    arena = std::max(arena, at + aligned(it.bytes));
    placed.push_back(i);
  }
  TORCHETTE_TRY(reserve(&io_, io, Memory::kHost));
  return reserve(&arena_, arena, Memory::kDevice);
}

}  // namespace vulkan
}  // namespace torchette
