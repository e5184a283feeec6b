// SPDX-License-Identifier: BSD-3-Clause
// The signature of a method. Each function reads the plan in the file again.
#include "torchette/runtime/method_meta.h"

#include "torchette/runtime/kernel.h"
#include "torchette/runtime/program.h"
#include "torchette/schema/program.h"

namespace torchette {
namespace {

using flat::Reader;
using flat::Table;

Tag tag_of_record(schema::KernelTypes type) {
  switch (type) {
    case schema::KernelTypes::Int:
      return Tag::Int;
    case schema::KernelTypes::Bool:
      return Tag::Bool;
    case schema::KernelTypes::Double:
      return Tag::Double;
    case schema::KernelTypes::Tensor:
      return Tag::Tensor;
    case schema::KernelTypes::String:
      return Tag::String;
    case schema::KernelTypes::IntList:
      return Tag::ListInt;
    case schema::KernelTypes::DoubleList:
      return Tag::ListDouble;
    case schema::KernelTypes::BoolList:
      return Tag::ListBool;
    case schema::KernelTypes::TensorList:
      return Tag::ListTensor;
    case schema::KernelTypes::OptionalTensorList:
      return Tag::ListOptionalTensor;
    default:
      return Tag::None;
  }
}

/// The record of the value that element `index` of the plan's vector `slot` refers to.
Result<Table> signature_value(Reader& reader, const Table& plan, uint16_t slot, size_t index) {
  const Span<const int32_t> list = plan.vector<int32_t>(slot);
  TORCHETTE_CHECK(index < list.size(), InvalidArgument, "index %zu is out of range: the size is %zu", index,
                  list.size());
  const int32_t value = list[index];
  const flat::Tables values = plan.tables(schema::ExecutionPlan::kValues);
  TORCHETTE_CHECK(value >= 0 && static_cast<size_t>(value) < values.size(), InvalidProgram,
                  "value %d of the signature does not exist, values: %zu", static_cast<int>(value),
                  values.size());
  const Table record = values[static_cast<size_t>(value)];
  TORCHETTE_CHECK(reader.ok(), InvalidProgram, "value %d is damaged", static_cast<int>(value));
  return record;
}

/// A plan with a separate reader, so that MethodMeta is a plain value and calls do not affect each other.
struct Plan {
  Reader reader;
  Table table;
  // Remaining steps of a search for attributes. Records may be shared, so a small damaged file could
  // otherwise require a very long search.
  size_t step_budget = 64 * reader.size();
  Plan(const Reader& bytes, size_t position) : reader(bytes), table(Table::at(&reader, position)) {}
  Plan(const Plan&) = delete;
};

/// Attributes are the named internal tensors. Inputs and outputs may have names, but are not attributes.
bool is_attribute(Plan& plan, const flat::Tables& values, size_t index) {
  if (values[index].get<schema::KernelTypes>(schema::EValue::kValType) != schema::KernelTypes::Tensor)
    return false;
  const Table extra = values[index].table(schema::EValue::kVal).table(schema::Tensor::kExtraTensorInfo);
  if (extra.string(schema::ExtraTensorInfo::kFullyQualifiedName).empty() || !plan.reader.ok()) return false;
  for (const uint16_t slot : {schema::ExecutionPlan::kInputs, schema::ExecutionPlan::kOutputs}) {
    const Span<const int32_t> ports = plan.table.vector<int32_t>(slot);
    if (ports.size() > plan.step_budget) return false;
    plan.step_budget -= ports.size();
    for (int32_t port : ports)
      if (static_cast<size_t>(port) == index) return false;
  }
  return true;
}

}  // namespace

Error TensorInfo::read(const Reader& reader, const flat::Cursor& tensor) {
  const uint8_t* const sizes_address = tensor.follow(schema::Tensor::kSizes);
  const uint8_t* const order_address = tensor.follow(schema::Tensor::kDimOrder);
  type_ = tensor.get<ScalarType>(schema::Tensor::kScalarType);
  dynamism_ = tensor.get<TensorShapeDynamism>(schema::Tensor::kShapeDynamism);
  same_layout_ = true;
  // Equal vectors may be shared in the file.
  if (sizes_address != sizes_address_ || order_address != order_address_) {
    const auto sizes = tensor.vector_at<SizesType>(sizes_address);
    const auto dim_order = tensor.vector_at<DimOrderType>(order_address);
    const size_t rank = sizes.size();
    TORCHETTE_CHECK(dim_order.size() == rank, InvalidProgram,
                    "a tensor of rank %zu has a dim order of size %zu", rank, dim_order.size());
    bool same = rank == sizes_.size();
    for (size_t d = 0; same && d < rank; ++d) same = sizes[d] == sizes_[d] && dim_order[d] == dim_order_[d];
    if (!same) {
      TORCHETTE_CHECK(rank <= kMaxDim, NotSupported, "a tensor has rank %zu, the maximum is %zu", rank,
                      kMaxDim);
      uint32_t seen = 0;
      for (uint8_t d : dim_order) seen |= d < rank ? 1u << d : 0;
      TORCHETTE_CHECK(seen == (1u << rank) - 1, InvalidProgram, "a dim order is not a permutation");
      StridesType strides[kMaxDim];
      const Result<int32_t> numel = dense_strides(sizes, dim_order.data(), strides);
      TORCHETTE_CHECK(numel.ok(), InvalidProgram, "a tensor's sizes are negative or too large");
      numel_ = *numel;
    }
    same_layout_ = same;
    sizes_address_ = sizes_address;
    order_address_ = order_address;
    sizes_ = sizes;
    dim_order_ = dim_order;
  }
  TORCHETTE_CHECK(tensor.present() && reader.ok(), InvalidProgram, "a tensor's record is damaged");
  const size_t item_size = element_size(type_);
  TORCHETTE_CHECK(item_size != 0 && tensor.get<int8_t>(schema::Tensor::kLayout) == 0 &&
                      tensor.get<int32_t>(schema::Tensor::kStorageOffset) == 0,
                  NotSupported, "a tensor has dtype %d, or a layout or storage offset other than 0",
                  static_cast<int>(type_));
  TORCHETTE_CHECK(dynamism_ <= TensorShapeDynamism::DYNAMIC_UNBOUND, InvalidProgram,
                  "shape dynamism %d is unknown", static_cast<int>(dynamism_));
  TORCHETTE_CHECK(!multiply_overflows(static_cast<size_t>(numel_), item_size, &nbytes_), InvalidProgram,
                  "a tensor's sizes are too large");
  return Error::Ok;
}

Result<TensorInfo> TensorInfo::of(Reader& reader, const Table& tensor) {
  flat::CursorOf<schema::Tensor> cursor(reader);
  cursor.seek(tensor);
  TensorInfo info;
  const Error error = info.read(reader, cursor);
  if (error != Error::Ok) return error;
  info.planned_ = cursor.follow(schema::Tensor::kAllocationInfo) != nullptr;
  const Table extra = cursor.table(schema::Tensor::kExtraTensorInfo);
  info.name_ = extra.string(schema::ExtraTensorInfo::kFullyQualifiedName);
  info.ranges_ = extra.vector<SizesType>(schema::ExtraTensorInfo::kRanges);
  if (info.ranges_.size() != 2 * info.sizes_.size()) info.ranges_ = {};
  TORCHETTE_CHECK(reader.ok(), InvalidProgram, "a tensor's record is damaged");
  return info;
}

Result<MethodMeta> Program::method_meta(const char* method_name) const {
  const Result<size_t> plan = find_plan(method_name);
  if (!plan.ok()) return plan.error();
  return MethodMeta(this, *plan);
}

const char* MethodMeta::name() const {
  Plan plan(program_->reader(), plan_);
  return plan.table.string(schema::ExecutionPlan::kName).data();
}

size_t MethodMeta::num_inputs() const {
  Plan plan(program_->reader(), plan_);
  return plan.table.vector<int32_t>(schema::ExecutionPlan::kInputs).size();
}

size_t MethodMeta::num_outputs() const {
  Plan plan(program_->reader(), plan_);
  return plan.table.vector<int32_t>(schema::ExecutionPlan::kOutputs).size();
}

Result<Tag> MethodMeta::tag_of(uint16_t slot, size_t index) const {
  Plan plan(program_->reader(), plan_);
  Result<Table> value = signature_value(plan.reader, plan.table, slot, index);
  if (!value.ok()) return value.error();
  return tag_of_record(value->get<schema::KernelTypes>(schema::EValue::kValType));
}

Result<TensorInfo> MethodMeta::tensor_of(uint16_t slot, size_t index) const {
  Plan plan(program_->reader(), plan_);
  Result<Table> value = signature_value(plan.reader, plan.table, slot, index);
  if (!value.ok()) return value.error();
  TORCHETTE_CHECK(value->get<schema::KernelTypes>(schema::EValue::kValType) == schema::KernelTypes::Tensor,
                  InvalidArgument, "value %zu of the signature is not a tensor", index);
  return TensorInfo::of(plan.reader, value->table(schema::EValue::kVal));
}

Result<Tag> MethodMeta::input_tag(size_t index) const {
  return tag_of(schema::ExecutionPlan::kInputs, index);
}
Result<Tag> MethodMeta::output_tag(size_t index) const {
  return tag_of(schema::ExecutionPlan::kOutputs, index);
}
Result<TensorInfo> MethodMeta::input_tensor_meta(size_t index) const {
  return tensor_of(schema::ExecutionPlan::kInputs, index);
}
Result<TensorInfo> MethodMeta::output_tensor_meta(size_t index) const {
  return tensor_of(schema::ExecutionPlan::kOutputs, index);
}

size_t MethodMeta::num_attributes() const {
  Plan plan(program_->reader(), plan_);
  const flat::Tables values = plan.table.tables(schema::ExecutionPlan::kValues);
  size_t n = 0;
  for (size_t i = 0; i < values.size(); ++i) n += is_attribute(plan, values, i);
  // attribute_tensor_meta() searches all values on each call.
  return n == 0 || values.size() <= plan.step_budget / n ? n : 0;
}

Result<TensorInfo> MethodMeta::attribute_tensor_meta(size_t index) const {
  Plan plan(program_->reader(), plan_);
  const flat::Tables values = plan.table.tables(schema::ExecutionPlan::kValues);
  for (size_t i = 0; i < values.size(); ++i) {
    if (is_attribute(plan, values, i) && index-- == 0)
      return TensorInfo::of(plan.reader, values[i].table(schema::EValue::kVal));
  }
  return Error::InvalidArgument;
}

size_t MethodMeta::num_memory_planned_buffers() const {
  Plan plan(program_->reader(), plan_);
  const size_t n = plan.table.vector<int64_t>(schema::ExecutionPlan::kNonConstBufferSizes).size();
  return n == 0 ? 0 : n - 1;  // the first is reserved
}

/// The bytes that the tensors in a planned buffer of `buffer_size` bytes occupy.
struct MethodMeta::PlannedExtent {
  /// Maximum bytes of a buffer after its last tensor. Planners round the size up to their alignment, at most
  /// a page, and ExecuTorch adds 64 bytes that XNNPACK may read.
  static constexpr uint64_t kRounding = 4096 + 64;

  uint64_t buffer_size;
  size_t step_budget;  // remaining values that may be visited
  uint64_t end = 0;    // maximum end of a tensor

  bool explains_size() const { return end >= buffer_size || buffer_size - end <= kRounding; }

  /// Adds the tensors of one method in buffer `id`, until the buffer's size is explained.
  Error add(Reader& reader, const Table& plan, size_t id) {
    const flat::Tables values = plan.tables(schema::ExecutionPlan::kValues);
    TORCHETTE_CHECK(values.size() <= step_budget, InvalidProgram, "the file has too many planned buffers");
    step_budget -= values.size();
    for (size_t i = 0; i < values.size() && !explains_size(); ++i) {
      const Table value = values[i];
      if (value.get<schema::KernelTypes>(schema::EValue::kValType) != schema::KernelTypes::Tensor) continue;
      const Table tensor = value.table(schema::EValue::kVal);
      const Table allocation = tensor.table(schema::Tensor::kAllocationInfo);
      if (!allocation.present() || allocation.get<uint32_t>(schema::AllocationDetails::kMemoryId) != id)
        continue;
      const Result<TensorInfo> info = TensorInfo::of(reader, tensor);
      if (!info.ok()) return info.error();
      const uint64_t offset =
          allocation.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetLow) |
          static_cast<uint64_t>(allocation.get<uint32_t>(schema::AllocationDetails::kMemoryOffsetHigh)) << 32;
      // Load refuses a tensor that ends after its buffer.
      const uint64_t tensor_end = offset + info->nbytes();
      if (tensor_end >= offset && tensor_end > end) end = tensor_end;
    }
    return Error::Ok;
  }
};

Result<int64_t> MethodMeta::memory_planned_buffer_size(size_t index) const {
  Plan plan(program_->reader(), plan_);
  const Span<const int64_t> sizes = plan.table.vector<int64_t>(schema::ExecutionPlan::kNonConstBufferSizes);
  TORCHETTE_CHECK(index + 1 < sizes.size(), InvalidArgument, "planned buffer %zu does not exist", index);
  const int64_t size = sizes[index + 1];
  TORCHETTE_CHECK(size >= 0, InvalidProgram, "planned buffer %zu has a negative size", index);
  if (size == 0) return size;
  // Callers allocate this size, so it is compared with the sizes of the tensors.
  const auto buffer_size = static_cast<uint64_t>(size);
  // Callers ask for each buffer in turn; each call visits all values and may have kRounding unexplained
  // bytes.
  const size_t step_budget = plan.step_budget / sizes.size();
  TORCHETTE_CHECK(sizes.size() <= step_budget, InvalidProgram, "the file has too many planned buffers");
  PlannedExtent planned_extent{buffer_size, step_budget};
  TORCHETTE_TRY(planned_extent.add(plan.reader, plan.table, index + 1));
  // Methods with shared state have buffers for the state of all of them.
  const flat::Tables plans = Table::root(&plan.reader).tables(schema::Program::kExecutionPlan);
  for (size_t i = 0; i < plans.size() && !planned_extent.explains_size(); ++i)
    TORCHETTE_TRY(planned_extent.add(plan.reader, plans[i], index + 1));
  TORCHETTE_CHECK(plan.reader.ok(), InvalidProgram, "a method's plan is outside the file");
  TORCHETTE_CHECK(planned_extent.explains_size(), InvalidProgram,
                  "planned buffer %zu has %lld bytes, its tensors occupy %llu: the file is damaged", index,
                  static_cast<long long>(size), static_cast<unsigned long long>(planned_extent.end));
  return size;
}

size_t MethodMeta::num_backends() const {
  Plan plan(program_->reader(), plan_);
  return plan.table.tables(schema::ExecutionPlan::kDelegates).size();
}

Result<const char*> MethodMeta::get_backend_name(size_t index) const {
  Plan plan(program_->reader(), plan_);
  const flat::Tables delegates = plan.table.tables(schema::ExecutionPlan::kDelegates);
  TORCHETTE_CHECK(index < delegates.size(), InvalidArgument, "delegate %zu does not exist", index);
  const char* name = delegates[index].string(schema::BackendDelegate::kId).data();
  TORCHETTE_CHECK(plan.reader.ok(), InvalidProgram, "delegate %zu is damaged", index);
  return name;
}

bool MethodMeta::uses_backend(const char* backend_name) const {
  Plan plan(program_->reader(), plan_);
  const flat::Tables delegates = plan.table.tables(schema::ExecutionPlan::kDelegates);
  for (size_t i = 0; i < delegates.size(); ++i)
    if (strcmp(delegates[i].string(schema::BackendDelegate::kId).data(), backend_name) == 0) return true;
  return false;
}

size_t MethodMeta::num_instructions() const {
  Plan plan(program_->reader(), plan_);
  const flat::Tables chains = plan.table.tables(schema::ExecutionPlan::kChains);
  size_t n = 0;
  for (size_t i = 0; i < chains.size(); ++i) n += chains[i].tables(schema::Chain::kInstructions).size();
  return n;
}

Span<const char> MethodMeta::container(uint16_t slot) const {
  Plan plan(program_->reader(), plan_);
  return plan.table.table(schema::ExecutionPlan::kContainerMetaType).string(slot);
}

Span<const char> MethodMeta::encoded_inputs() const {
  return container(schema::ContainerMetadata::kEncodedInpStr);
}
Span<const char> MethodMeta::encoded_outputs() const {
  return container(schema::ContainerMetadata::kEncodedOutStr);
}

}  // namespace torchette
