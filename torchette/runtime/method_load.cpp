// SPDX-License-Identifier: BSD-3-Clause
// Builds a method from its plan in the file, initialises its state, and finds the record of an instruction.
#include "torchette/runtime/method_load_instructions.h"
#include "torchette/runtime/method_load_values.h"

namespace torchette {

/// Size on this machine of a structure with the members that `members` encodes
/// (torchette/schema/layouts.def).
static constexpr size_t size_of_layout(const char* members) {
  struct Eight {
    int64_t number;
  };
  size_t end = 0, greatest = 1;
  for (; *members != '\0'; ++members) {
    const size_t size = *members == 'P' ? sizeof(void*) : static_cast<size_t>(*members - '0');
    const size_t alignment = size == 8 ? alignof(Eight) : size;  // 4 on some 32-bit machines
    end = (end + alignment - 1) / alignment * alignment + size;
    if (alignment > greatest) greatest = alignment;
  }
  return (end + greatest - 1) / greatest * greatest;
}

TORCHETTE_INLINE Error Method::Loading::load() {
#define TORCHETTE_LAYOUT(type, members)                  \
  static_assert(sizeof(type) == size_of_layout(members), \
                "torchette/schema/layouts.def is not true of " #type);
#include "torchette/schema/layouts.def"
  TORCHETTE_TRY(load_signature());
  TORCHETTE_TRY(load_values());
  TORCHETTE_TRY(check_lists());
  TORCHETTE_TRY(method_.load_state());
  TORCHETTE_TRY(find_kernels());
  TORCHETTE_TRY(load_instructions());
  return load_delegates();
}

Result<Method> Program::load(const char* method_name, MemoryManager* memory_manager,
                             const NamedDataMap* external
#if TORCHETTE_EVENT_TRACER
                             ,
                             EventTracer* event_tracer
#endif
) const {
#if TORCHETTE_EVENT_TRACER
  if (event_tracer != nullptr) event_tracer->create_event_block("Default");
  const EventTracerProfileScope scope(event_tracer, "Method::init");
#endif
  const Result<size_t> plan = find_plan(method_name);
  if (!plan.ok()) return plan.error();
  TORCHETTE_CHECK(memory_manager != nullptr && memory_manager->method_allocator() != nullptr, InvalidArgument,
                  "a method needs a method allocator");
  Result<Method> method{Method(this, *plan, memory_manager, external)};
#if TORCHETTE_EVENT_TRACER
  if (event_tracer != nullptr) method->trace(event_tracer);
#endif
  Reader reader = this->reader();
  const Error error = Method::Loading(*method, *this, reader).load();
  if (error != Error::Ok) method.fail(error);
  return method;
}

Error Method::load_state() {
  for (size_t i = 0; i < extents_.size(); ++i)
    if (extents_[i] != 0) memory_->planned_memory()->clear(i, extents_[i]);
  Reader reader = program_->reader();
  const Tables records = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kValues);
  for (size_t i = 0; i < values_.size(); ++i) {
    if ((flags_[i] & kInitialised) == 0) continue;
    TORCHETTE_TRY(
        load_initial(reader, records[i].table(schema::EValue::kVal), *values_[i].to_tensor().unsafe_impl()));
  }
  return Error::Ok;
}

Error Method::load_initial(Reader& reader, const Table& record, const TensorImpl& tensor) const {
  const Table extra = record.table(schema::Tensor::kExtraTensorInfo);
  const size_t nbytes = tensor.capacity * element_size(tensor.type);
  if (is_external(extra)) {
    void* data;
    TORCHETTE_TRY(find_external(extra, tensor, &data));
    if (nbytes != 0) memcpy(tensor.data, data, nbytes);
    return Error::Ok;
  }
  const auto segments_index = extra.get<uint64_t>(schema::ExtraTensorInfo::kMutableDataSegmentsIdx);
  const auto index = record.get<uint32_t>(schema::Tensor::kDataBufferIdx);
  const Tables mutable_segments = Table::root(&reader).tables(schema::Program::kMutableDataSegments);
  TORCHETTE_CHECK(segments_index < mutable_segments.size(), InvalidProgram,
                  "the initial data of a tensor are in a missing segment");
  const Table subsegments = mutable_segments[static_cast<size_t>(segments_index)];
  const Span<const uint64_t> offsets = subsegments.vector<uint64_t>(schema::SubsegmentOffsets::kOffsets);
  const size_t segment = subsegments.get<uint32_t>(schema::SubsegmentOffsets::kSegmentIndex);
  size_t start, size;
  TORCHETTE_TRY(program_->find_segment(reader, segment, &start, &size));
  const uint64_t offset = reader.ok() && index < offsets.size() ? offsets[index] : UINT64_MAX;
  TORCHETTE_CHECK(offset <= size && nbytes <= size - static_cast<size_t>(offset), InvalidProgram,
                  "initial data %u of %zu bytes are outside their segment", index, nbytes);
  return program_->loader_->load_into(start + static_cast<size_t>(offset), nbytes,
                                      {DataLoader::SegmentInfo::Type::Mutable, segment}, tensor.data);
}

Error Method::find_external(const Table& extra, const TensorImpl& tensor, void** data) const {
  const char* name = extra.string(schema::ExtraTensorInfo::kFullyQualifiedName).data();
  TORCHETTE_CHECK(external_ != nullptr, InvalidExternalData,
                  "the data of %s are in another file (.ptd), and none is given", name);
  return external_->get_tensor(name, tensor, data);
}

Error Method::reset() {
  TORCHETTE_TRY(reset_execution());
  for (Delegate& delegate : delegates_)
    if (delegate.backend != nullptr) TORCHETTE_TRY(delegate.backend->reset(delegate.handle));
  return load_state();
}

Result<Tensor> Method::get_attribute(const char* name) const {
  Reader reader = program_->reader();
  const Tables records = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kValues);
  for (size_t i = 0; i < values_.size(); ++i) {
    if (!values_[i].is_tensor()) continue;
    const Table extra = records[i].table(schema::EValue::kVal).table(schema::Tensor::kExtraTensorInfo);
    if (strcmp(extra.string(schema::ExtraTensorInfo::kFullyQualifiedName).data(), name) == 0)
      return values_[i].to_tensor();
  }
  return Error::NotFound;
}

Table Method::find_record(Reader& reader, size_t at, size_t* chain, size_t* index) const {
  const Tables chains = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kChains);
  for (*chain = 0, *index = at;; ++*chain) {
    const Tables records = chains[*chain].tables(schema::Chain::kInstructions);
    if (*index < records.size()) return records[*index];
    *index -= records.size();
  }
}

/// Logs the failed instruction, after the kernel's message. Returns `error`.
Error Method::explain(Error error) const {
#if TORCHETTE_LOG_LEVEL >= 2
  Reader reader = program_->reader();
  size_t chain, index;
  const Table record = find_record(reader, next_ - 1, &chain, &index);
  if (record.get<schema::InstructionArguments>(schema::Instruction::kInstrArgsType) ==
      schema::InstructionArguments::KernelCall) {
    const auto op = record.table(schema::Instruction::kInstrArgs).get<int32_t>(schema::KernelCall::kOpIndex);
    const Tables operators = Table::at(&reader, plan_).tables(schema::ExecutionPlan::kOperators);
    const Table called = operators[static_cast<size_t>(op)];
    TORCHETTE_LOG(Error, "instruction %zu (%s.%s)", next_ - 1, called.string(schema::Operator::kName).data(),
                  called.string(schema::Operator::kOverload).data());
  } else {
    TORCHETTE_LOG(Error, "instruction %zu", next_ - 1);
  }
#endif
  return error;
}

}  // namespace torchette
