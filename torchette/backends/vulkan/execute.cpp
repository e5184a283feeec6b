// SPDX-License-Identifier: BSD-3-Clause
// Execution: copies the arguments to the device, submits the command buffer, and copies the results to the
// host.
#include <algorithm>
#include <cstring>

#include "torchette/backends/delegate/delegate_method.h"
#include "torchette/backends/vulkan/elements.h"
#include "torchette/backends/vulkan/graph.h"

namespace torchette {
namespace vulkan {

Error Graph::report_times(EventTracer* tracer, torchette_timestamp_t start, torchette_timestamp_t end) const {
  std::vector<uint64_t> times(timed_steps_.size());
  TORCHETTE_TRY(device_.check(
      device_.vk.GetQueryPoolResults(device_.handle(), times_, 0, static_cast<uint32_t>(times.size()),
                                     8 * times.size(), times.data(), 8,
                                     VK_QUERY_RESULT_64_BIT | VK_QUERY_RESULT_WAIT_BIT),
      "times"));
  // The clocks are not synchronized: the first timestamp of the device is taken as the start of the
  // submission.
  const torchette_tick_ratio_t ratio = ticks_to_ns_multiplier();
  const auto ticks = [&](uint64_t time) {
    const double ns = static_cast<double>((time - times[0]) & device_.time_mask()) *
                      static_cast<double>(device_.limits().timestampPeriod);
    const double at = ns * static_cast<double>(ratio.denominator) / static_cast<double>(ratio.numerator);
    return at < static_cast<double>(end - start) ? start + static_cast<torchette_timestamp_t>(at) : end;
  };
  for (size_t i = 1; i < times.size(); ++i) {
    const bool is_step = timed_steps_[i] >= 0 && static_cast<size_t>(timed_steps_[i]) < steps_.size();
    const Step* step = is_step ? &steps_[static_cast<size_t>(timed_steps_[i])] : nullptr;
    event_tracer_log_profiling_delegate(
        tracer, step == nullptr ? "results" : step->name,
        step == nullptr ? kUnsetDelegateDebugIntId : static_cast<DelegateDebugIntId>(step->handle),
        ticks(times[i - 1]), ticks(times[i]));
  }
  return Error::Ok;
}

Error Graph::set_input(size_t i, const torchette::Value& argument, bool* changed) {
  Value& value = values_[payload_.inputs()[i]];
  if (value.type == Type::kSymInt) {
    int64_t number = 0;
    TORCHETTE_TRY(delegate::integer_of(i, argument, &number));
    *changed = *changed || value.integer != number;
    value.integer = number;
    return Error::Ok;
  }
  TORCHETTE_CHECK(argument.is_tensor(), InvalidArgument, "argument %zu of Vulkan is not a tensor", i);
  const Tensor tensor = argument.to_tensor();
  View& view = inputs_[i];
  TORCHETTE_CHECK(tensor.dim() == static_cast<ptrdiff_t>(value.dims.size()), InvalidArgument,
                  "argument %zu of Vulkan has %td dimensions, its graph has %zu", i, tensor.dim(),
                  value.dims.size());
  StridesType dense[kMaxDims];
  const Result<int32_t> count = dense_strides(tensor.sizes(), tensor.dim_order().data(), dense);
  bool is_dense = count.ok() && (tensor.numel() == 0 || tensor.const_data_ptr() != nullptr);
  for (ptrdiff_t d = 0; d < tensor.dim() && is_dense; ++d)
    is_dense = tensor.size(d) == 1 || tensor.strides()[static_cast<size_t>(d)] == dense[d];
  TORCHETTE_CHECK(is_dense, InvalidArgument, "argument %zu of Vulkan is not dense, or has no data", i);
  for (ptrdiff_t d = 0; d < tensor.dim(); ++d) {
    TORCHETTE_CHECK(
        tensor.size(d) >= 0 && tensor.size(d) <= static_cast<ptrdiff_t>(value.dims[static_cast<size_t>(d)]),
        InvalidArgument, "argument %zu of Vulkan has the size %td, its graph allows at most %u", i,
        tensor.size(d), value.dims[static_cast<size_t>(d)]);
    *changed = *changed || view.sizes[d] != tensor.size(d) || view.strides[d] != dense[d];
    view.sizes[d] = tensor.size(d);
    view.strides[d] = dense[d];
  }
  return Error::Ok;
}

Error Graph::set_output(size_t i, const torchette::Value& argument, bool* changed) {
  if (values_[payload_.outputs()[i]].type != Type::kTensor) return Error::Ok;
  TORCHETTE_CHECK(argument.is_tensor() && argument.to_tensor().dim() <= kMaxDims, InvalidArgument,
                  "result %zu of Vulkan is not a tensor, or has more than eight dimensions", i);
  const Span<const DimOrderType> order = argument.to_tensor().dim_order();
  if (memcmp(orders_[i].dims, order.data(), order.size()) == 0) return Error::Ok;
  memcpy(orders_[i].dims, order.data(), order.size());
  *changed = true;
  return Error::Ok;
}

Error Graph::upload_inputs(Span<torchette::Value*> arguments) {
  for (size_t i = 0; i < inputs_.size(); ++i) {
    if (values_[payload_.inputs()[i]].type != Type::kTensor) continue;
    const Tensor tensor = arguments[i]->to_tensor();
    const Storage& storage = storages_[static_cast<size_t>(inputs_[i].storage)];
    TORCHETTE_CHECK(
        tensor.numel() == 0 || to_device(tensor.scalar_type(), tensor.const_data_ptr(), inputs_[i].kind,
                                         io_.mapped + storage.offset, tensor.numel()),
        InvalidArgument, "argument %zu of Vulkan has an unsupported dtype, or integers that exceed 32 bits",
        i);
  }
  return Error::Ok;
}

Error Graph::read_output(size_t i, torchette::Value* argument) {
  const Value& value = values_[payload_.outputs()[i]];
  if (value.type == Type::kInt || value.type == Type::kSymInt) {
    *argument = torchette::Value(value.integer);
    return Error::Ok;
  }
  TORCHETTE_CHECK(value.type == Type::kTensor && argument->is_tensor(), InvalidArgument,
                  "result %zu of Vulkan is not a tensor", i);
  const Tensor tensor = argument->to_tensor();
  const View& view = outputs_[i];
  SizesType sizes[kMaxDims];
  for (int d = 0; d < view.rank; ++d) sizes[d] = static_cast<SizesType>(view.sizes[d]);
  TORCHETTE_TRY(resize_tensor(tensor, {sizes, static_cast<size_t>(view.rank)}));
  const Storage& storage = storages_[static_cast<size_t>(view.storage)];
  TORCHETTE_CHECK(
      is_contiguous(tensor) &&
          (tensor.numel() == 0 || (tensor.const_data_ptr() != nullptr &&
                                   from_device(view.kind, io_.mapped + storage.offset, tensor.scalar_type(),
                                               tensor.mutable_data_ptr(), tensor.numel()))),
      InvalidArgument, "result %zu of Vulkan has another type or layout than its graph", i);
  return Error::Ok;
}

Error Graph::execute(Span<torchette::Value*> arguments, EventTracer* tracer) {
  TORCHETTE_CHECK(arguments.size() == inputs_.size() + outputs_.size(), InvalidArgument,
                  "Vulkan received %zu arguments, its graph has %zu inputs and %zu outputs", arguments.size(),
                  inputs_.size(), outputs_.size());
  if (device_.is_lost()) return device_.check(VK_ERROR_DEVICE_LOST, "");
  const bool timed = tracer != nullptr && device_.has_times();
  bool changed = !is_recorded_ || timed != is_timed_;
  is_timed_ = timed;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Error error = i < inputs_.size() ? set_input(i, *arguments[i], &changed)
                                           : set_output(i - inputs_.size(), *arguments[i], &changed);
    if (error != Error::Ok) {
      is_recorded_ = false;  // some sizes have changed, others have not
      return error;
    }
  }
  if (changed) {
    const Error error = build();
    device_.save();
    TORCHETTE_TRY(error);
  }
  TORCHETTE_TRY(upload_inputs(arguments));
  if (dispatches_ != 0) {
    const torchette_timestamp_t start = timed ? current_ticks() : 0;
    TORCHETTE_TRY(device_.run(commands_, fence_));
    if (timed) TORCHETTE_TRY(report_times(tracer, start, current_ticks()));
  }
  for (size_t i = 0; i < outputs_.size(); ++i) TORCHETTE_TRY(read_output(i, arguments[inputs_.size() + i]));
  return Error::Ok;
}

}  // namespace vulkan
}  // namespace torchette
