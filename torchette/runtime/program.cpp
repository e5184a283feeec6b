// SPDX-License-Identifier: BSD-3-Clause
// Opens a .pte file: the extended header, the flatbuffer, and the constant segment.
#include "torchette/runtime/program.h"

#include "torchette/runtime/kernel.h"
#include "torchette/schema/program.h"

namespace torchette {
namespace {

using flat::Reader;
using flat::Table;
using Segment = DataLoader::SegmentInfo;

// Layout of the start of a file: offset of the root table, file identifier, and, if the file has segments,
// the extended header.
constexpr size_t kIdentifierAt = 4;
constexpr size_t kHeaderAt = 8;
constexpr size_t kHeaderMinimum = 24;
constexpr char kHeaderMagic[] = {'e', 'h', '0', '0'};
constexpr size_t kAlignment = 8;  // of the file in memory

bool is_aligned(const void* p, size_t alignment) { return reinterpret_cast<uintptr_t>(p) % alignment == 0; }

/// Visits each of `tables` and the table in its field `slot`, to check their bounds.
void visit(const Reader& reader, const flat::Tables& tables, uint16_t slot) {
  for (size_t i = 0; i < tables.size() && reader.ok(); ++i) tables[i].table(slot);
}

}  // namespace

Program::HeaderStatus Program::check_header(const void* data, size_t size) {
  if (size < kMinHeadBytes) return HeaderStatus::ShortData;
  const char* found = static_cast<const char*>(data) + kIdentifierAt;
  if (memcmp(found, schema::kFileIdentifier, 4) == 0) return HeaderStatus::CompatibleVersion;
  return memcmp(found, schema::kFileIdentifier, 2) == 0 ? HeaderStatus::IncompatibleVersion
                                                        : HeaderStatus::NotPresent;
}

Result<Program> Program::load(DataLoader* loader, Verification verification) {
  Result<Program> program{Program(loader)};
  const Error error = program->open(verification);
  if (error != Error::Ok) program.fail(error);
  return program;
}

Error Program::read(size_t offset, size_t size, const Segment& info, FreeableBuffer* out) const {
  Result<FreeableBuffer> bytes = loader_->load(offset, size, info);
  if (!bytes.ok()) return bytes.error();
  *out = std::move(*bytes);
  return Error::Ok;
}

Error Program::open(Verification verification) {
  const Result<size_t> file_size = loader_->size();
  if (!file_size.ok()) return file_size.error();
  TORCHETTE_CHECK(*file_size >= kMinHeadBytes, InvalidProgram,
                  "the file has %zu bytes, too few for a program", *file_size);
  size_t program_size = *file_size;
  TORCHETTE_TRY(read(0, kMinHeadBytes, {Segment::Type::Program}, &bytes_));
  const auto* head = static_cast<const uint8_t*>(bytes_.data());
  switch (check_header(head, kMinHeadBytes)) {
    case HeaderStatus::CompatibleVersion:
      break;
    case HeaderStatus::IncompatibleVersion:
      TORCHETTE_LOG(Error, "the file is a program of version %.4s, this runtime reads %s",
                    head + kIdentifierAt, schema::kFileIdentifier);
      return Error::InvalidProgram;
    default:
      TORCHETTE_LOG(Error, "the file is not a program: it lacks the identifier %s", schema::kFileIdentifier);
      return Error::InvalidProgram;
  }
  if (memcmp(head + kHeaderAt, kHeaderMagic, sizeof(kHeaderMagic)) == 0) {
    const auto length = Reader::load<uint32_t>(head + kHeaderAt + 4);
    const auto stated_size = Reader::load<uint64_t>(head + kHeaderAt + 8);
    const auto base = Reader::load<uint64_t>(head + kHeaderAt + 16);
    TORCHETTE_CHECK(length >= kHeaderMinimum, InvalidProgram, "the extended header has %u bytes", length);
    TORCHETTE_CHECK(stated_size <= *file_size && stated_size >= kMinHeadBytes && base <= *file_size,
                    InvalidProgram, "the file is truncated: it has %zu bytes, its program alone %llu",
                    *file_size, static_cast<unsigned long long>(stated_size));
    program_size = static_cast<size_t>(stated_size);
    segment_base_ = static_cast<size_t>(base);
  }
  TORCHETTE_TRY(read(0, program_size, {Segment::Type::Program}, &bytes_));
  TORCHETTE_CHECK(is_aligned(bytes_.data(), kAlignment), InvalidArgument,
                  "the program's bytes must start at a multiple of %zu", kAlignment);

  Reader reader = this->reader();
  const Table root = Table::root(&reader);
  const flat::Tables segments = root.tables(schema::Program::kSegments);
  const uint64_t available = *file_size - segment_base_;
  for (size_t i = 0; i < segments.size(); ++i) {
    const Table segment = segments[i];
    const auto offset = segment.get<uint64_t>(schema::DataSegment::kOffset);
    const auto size = segment.get<uint64_t>(schema::DataSegment::kSize);
    TORCHETTE_CHECK(reader.ok() && offset <= available && size <= available - offset, InvalidProgram,
                    "segment %zu is outside the file of %zu bytes: it may be truncated", i, *file_size);
  }
  const Table constants = root.table(schema::Program::kConstantSegment);
  if (constants.vector<uint64_t>(schema::SubsegmentOffsets::kOffsets).size() > 0) {
    const auto index = constants.get<uint32_t>(schema::SubsegmentOffsets::kSegmentIndex);
    TORCHETTE_TRY(load_segment(reader, index, {Segment::Type::Constant, index}, &constants_));
  }
  root.tables(schema::Program::kExecutionPlan);
  TORCHETTE_CHECK(root.present() && reader.ok(), InvalidProgram, "the file is damaged: its root is outside");
  return verification == Verification::InternalConsistency ? verify() : Error::Ok;
}

Error Program::verify() const {
  Reader reader = this->reader();
  const flat::Tables plans = Table::root(&reader).tables(schema::Program::kExecutionPlan);
  for (size_t p = 0; p < plans.size() && reader.ok(); ++p) {
    const Table plan = plans[p];
    plan.string(schema::ExecutionPlan::kName);
    visit(reader, plan.tables(schema::ExecutionPlan::kValues), schema::EValue::kVal);
    const flat::Tables chains = plan.tables(schema::ExecutionPlan::kChains);
    for (size_t c = 0; c < chains.size() && reader.ok(); ++c)
      visit(reader, chains[c].tables(schema::Chain::kInstructions), schema::Instruction::kInstrArgs);
  }
  TORCHETTE_CHECK(reader.ok(), InvalidProgram, "the file is damaged: a method's records are outside");
  return Error::Ok;
}

size_t Program::num_methods() const {
  Reader reader = this->reader();
  return Table::root(&reader).tables(schema::Program::kExecutionPlan).size();
}

Result<const char*> Program::get_method_name(size_t index) const {
  Reader reader = this->reader();
  const flat::Tables plans = Table::root(&reader).tables(schema::Program::kExecutionPlan);
  TORCHETTE_CHECK(index < plans.size(), InvalidArgument, "method %zu does not exist, methods: %zu", index,
                  plans.size());
  const char* name = plans[index].string(schema::ExecutionPlan::kName).data();
  TORCHETTE_CHECK(reader.ok(), InvalidProgram, "the name of method %zu is damaged", index);
  return name;
}

Result<size_t> Program::find_plan(const char* method_name) const {
  Reader reader = this->reader();
  const flat::Tables plans = Table::root(&reader).tables(schema::Program::kExecutionPlan);
  for (size_t i = 0; i < plans.size(); ++i) {
    const Table plan = plans[i];
    if (strcmp(plan.string(schema::ExecutionPlan::kName).data(), method_name) == 0 && reader.ok())
      return plan.position();
  }
  TORCHETTE_LOG(Error, "there is no method %s", method_name);
  return Error::InvalidArgument;
}

Error Program::find_segment(Reader& reader, size_t index, size_t* start, size_t* size) const {
  const flat::Tables segments = Table::root(&reader).tables(schema::Program::kSegments);
  TORCHETTE_CHECK(index < segments.size(), InvalidProgram, "segment %zu does not exist, segments: %zu", index,
                  segments.size());
  // load() has checked that all segments are inside the file.
  const Table segment = segments[index];
  *start = segment_base_ + static_cast<size_t>(segment.get<uint64_t>(schema::DataSegment::kOffset));
  *size = static_cast<size_t>(segment.get<uint64_t>(schema::DataSegment::kSize));
  return Error::Ok;
}

Error Program::load_segment(Reader& reader, size_t index, const Segment& info, FreeableBuffer* out) const {
  size_t start, size;
  TORCHETTE_TRY(find_segment(reader, index, &start, &size));
  return read(start, size, info, out);
}

Error Program::constant(Reader& reader, uint32_t index, size_t nbytes, void** address) const {
  const Table root = Table::root(&reader);
  const auto offsets =
      root.table(schema::Program::kConstantSegment).vector<uint64_t>(schema::SubsegmentOffsets::kOffsets);
  const uint8_t* data = nullptr;
  size_t available = 0;
  if (offsets.size() > 0) {
    const uint64_t offset = index < offsets.size() ? offsets[index] : UINT64_MAX;
    if (offset <= constants_.size()) {
      data = static_cast<const uint8_t*>(constants_.data()) + offset;
      available = constants_.size() - static_cast<size_t>(offset);
    }
  } else {
    const flat::Tables buffers = root.tables(schema::Program::kConstantBuffer);
    if (index < buffers.size()) {
      const Span<const uint8_t> storage = buffers[index].vector<uint8_t>(schema::Buffer::kStorage);
      data = storage.data();
      available = storage.size();
    }
  }
  TORCHETTE_CHECK(reader.ok() && nbytes <= available && (data != nullptr || nbytes == 0), InvalidProgram,
                  "constant %u of %zu bytes is outside the file", index, nbytes);
  *address = const_cast<uint8_t*>(data);
  return Error::Ok;
}

Result<FreeableBuffer> Program::get_data(const char* key) const {
  Reader reader = this->reader();
  const flat::Tables named = Table::root(&reader).tables(schema::Program::kNamedData);
  // Callers usually request keys in the order of the file.
  size_t i = __atomic_load_n(&next_named_data_, __ATOMIC_RELAXED);
  for (size_t left = named.size(); left != 0; --left, ++i) {
    if (i >= named.size()) i = 0;
    const Table item = named[i];
    if (strcmp(item.string(schema::NamedData::kKey).data(), key) != 0 || !reader.ok()) continue;
    __atomic_store_n(&next_named_data_, i + 1, __ATOMIC_RELAXED);
    const size_t index = item.get<uint32_t>(schema::NamedData::kSegmentIndex);
    FreeableBuffer data;
    const Error error = load_segment(reader, index, {Segment::Type::Backend, index, key}, &data);
    if (error != Error::Ok) return error;
    return data;
  }
  return Error::NotFound;
}

Result<uint32_t> Program::get_num_keys() const {
  Reader reader = this->reader();
  return static_cast<uint32_t>(Table::root(&reader).tables(schema::Program::kNamedData).size());
}

Result<const char*> Program::get_key(uint32_t index) const {
  Reader reader = this->reader();
  const flat::Tables named = Table::root(&reader).tables(schema::Program::kNamedData);
  const char* key = named[index].string(schema::NamedData::kKey).data();
  TORCHETTE_CHECK(reader.ok(), InvalidArgument, "named data %u does not exist", index);
  return key;
}

Error Program::load_delegate_data(Reader& reader, const Table& reference, const char* id,
                                  FreeableBuffer* out) const {
  const auto index = reference.get<uint32_t>(schema::BackendDelegateDataReference::kIndex);
  if (reference.get<schema::DataLocation>(schema::BackendDelegateDataReference::kLocation) ==
      schema::DataLocation::SEGMENT)
    return load_segment(reader, index, {Segment::Type::Backend, index, id}, out);
  const flat::Tables blobs = Table::root(&reader).tables(schema::Program::kBackendDelegateData);
  const Span<const uint8_t> data = blobs[index].vector<uint8_t>(schema::BackendDelegateInlineData::kData);
  TORCHETTE_CHECK(reader.ok(), InvalidProgram, "the data of a delegate to %s are outside the file", id);
  *out = FreeableBuffer(data.data(), data.size(), nullptr);
  return Error::Ok;
}

}  // namespace torchette
