// SPDX-License-Identifier: BSD-3-Clause
// Uses ETDumpGen with ExecuTorch's names: traces a method in several ways and writes the dumps to files,
// which test_etdump.py reads. Arguments: the model (two inputs of 2x3 floats), a folder.
#include <executorch/devtools/etdump/data_sinks/file_data_sink.h>
#include <executorch/devtools/etdump/etdump_flatcc.h>
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor_ptr.h>
#include <executorch/runtime/core/event_tracer_hooks_delegate.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

using executorch::aten::Tensor;
using executorch::etdump::BufferDataSink;
using executorch::etdump::ETDumpGen;
using executorch::etdump::ETDumpResult;
using executorch::etdump::FileDataSink;
using executorch::extension::from_blob;
using executorch::extension::Module;
using executorch::runtime::Error;
using executorch::runtime::EValue;
using executorch::runtime::EventTracerDebugLogLevel;
using executorch::runtime::EventTracerEntry;
using executorch::runtime::EventTracerProfilingLevel;
using executorch::runtime::LoggedEValueType;
using executorch::runtime::Result;
using executorch::runtime::Span;

namespace {

#define REQUIRE(condition)                                         \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      std::exit(1);                                                \
    }                                                              \
  } while (0)

std::string folder;
uint64_t readings = 0;
float x[] = {0, 1, 2, 3, 4, 5}, y[] = {1, 1, 1, 1, 1, 1};

void write(const std::string& name, const void* data, size_t size) {
  FILE* file = std::fopen((folder + "/" + name).c_str(), "wb");
  REQUIRE(file != nullptr && std::fwrite(data, 1, size, file) == size && std::fclose(file) == 0);
}

void run(const char* model, std::shared_ptr<ETDumpGen> tracer, int times) {
  Module module(model, Module::LoadMode::File, tracer);
  const auto a = from_blob(x, {2, 3}), b = from_blob(y, {2, 3});
  for (int i = 0; i < times; ++i) REQUIRE(module.forward({a, b}).ok());
}

class OddParts final : public executorch::runtime::EventTracerFilterBase {
 public:
  Result<bool> filter(const char*, executorch::runtime::DelegateDebugIntId part) override {
    return part % 2 == 1;
  }
};

/// Calls all functions of a tracer, without a method.
void call_all_functions(ETDumpGen& tracer) {
  static uint8_t values[4096];
  REQUIRE(!tracer.log_evalue(EValue(int64_t{1})).ok());  // no data sink is set
  REQUIRE(tracer.set_debug_buffer({values, sizeof(values)}).ok());
  tracer.set_bundled_input_index(4);
  tracer.create_event_block("block");
  tracer.set_allocation_events(true);
  REQUIRE(tracer.track_allocator("temp") == 1 && tracer.track_allocator("other") == 2);
  tracer.track_allocation(2, 100);
  tracer.set_allocation_events(false);
  tracer.track_allocation(2, 200);
  tracer.set_chain_debug_handle(1, 7);
  const EventTracerEntry call = tracer.start_profiling("DELEGATE_CALL", 1, 7);
  tracer.end_profiling_delegate(tracer.start_profiling_delegate(nullptr, 3), "meta", 4);
  tracer.end_profiling_delegate(tracer.start_profiling_delegate("by name", -1), nullptr, 0);
  tracer.log_profiling_delegate("conv", 5, 1000, 1010, nullptr, 0);
  OddParts odd;
  tracer.set_delegation_intermediate_output_filter(&odd);
  const auto tensor = from_blob(x, {3, 2}), other = from_blob(y, {6});
  const Tensor both[] = {*tensor, *other};
  REQUIRE(*tracer.log_intermediate_output_delegate(nullptr, 1, *tensor));
  REQUIRE(!*tracer.log_intermediate_output_delegate(nullptr, 2, *tensor));
  tracer.set_delegation_intermediate_output_filter(nullptr);
  REQUIRE(*tracer.log_intermediate_output_delegate("pair", -1, Span<const Tensor>(both)));
  REQUIRE(*tracer.log_intermediate_output_delegate(nullptr, 2, 41));
  REQUIRE(*tracer.log_intermediate_output_delegate(nullptr, 2, true));
  REQUIRE(*tracer.log_intermediate_output_delegate(nullptr, 2, 0.25));
  tracer.end_profiling(call);
  REQUIRE(*tracer.log_evalue(EValue(int64_t{-3})));
  REQUIRE(!*tracer.log_evalue(EValue()));
  tracer.set_chain_debug_handle(-1, 0);
  REQUIRE(*tracer.log_evalue(EValue(*tensor), LoggedEValueType::kProgramOutput));
  tracer.set_bundled_input_index(-1);
  tracer.create_event_block("empty");
  REQUIRE(tracer.get_num_blocks() == 2 && tracer.num_dropped() == 0);
  REQUIRE(tracer.get_data_sink()->get_used_bytes() > 4 * 24);
  write("told.bin", values, tracer.get_data_sink()->get_used_bytes());
}

void save(ETDumpGen& tracer, const std::string& name) {
  const ETDumpResult result = tracer.get_etdump_data();
  REQUIRE(result.buf != nullptr);
  write(name, result.buf, result.size);
  if (!tracer.is_static_etdump()) std::free(result.buf);
}

}  // namespace

int main(int argc, char** argv) {
  REQUIRE(argc == 3);
  const char* const model = argv[1];
  folder = argv[2];

  // A dump on the heap.
  auto tracer = std::make_shared<ETDumpGen>();
  REQUIRE(tracer->get_etdump_data().buf == nullptr && !tracer->is_static_etdump());
  run(model, tracer, 3);
  REQUIRE(tracer->get_num_blocks() == 4);
  save(*tracer, "heap.etdp");
  REQUIRE(tracer->get_etdump_data().buf == nullptr);  // the dump has been returned
  run(model, tracer, 1);                              // begins another dump
  save(*tracer, "again.etdp");
  auto lone = std::unique_ptr<ETDumpGen>(new ETDumpGen);
  call_all_functions(*lone);
  save(*lone, "told.etdp");

  // Dumps in buffers of all sizes and alignments. Bytes outside a buffer do not change.
  for (size_t size = 0; size < 3000; size += size < 64 ? 1 : 37) {
    std::vector<uint8_t> memory(size + 32, 0xA5);
    const size_t start = 8 + size % 8;
    auto fixed = std::make_shared<ETDumpGen>(Span<uint8_t>(memory.data() + start, size));
    REQUIRE(fixed->is_static_etdump());
    run(model, fixed, 2);
    const ETDumpResult result = fixed->get_etdump_data();
    for (size_t i = 0; i < memory.size(); ++i) REQUIRE((i >= start && i < start + size) || memory[i] == 0xA5);
    if (result.size == 0) {
      REQUIRE(size < 700 && fixed->num_dropped() > 0);
      continue;
    }
    REQUIRE(fixed->get_etdump_data().buf == result.buf);
    REQUIRE(result.buf >= memory.data() + start &&
            static_cast<uint8_t*>(result.buf) + result.size <= memory.data() + start + size);
    write("static-" + std::to_string(size) + "-" + std::to_string(fixed->num_dropped()) + ".etdp", result.buf,
          result.size);
  }

  // All values in a file, then only outputs in a buffer that is too small for the second run.
  Result<FileDataSink> sink = FileDataSink::create((folder + "/values.bin").c_str());
  REQUIRE(sink.ok());
  tracer->set_data_sink(&*sink);
  tracer->set_event_tracer_debug_level(EventTracerDebugLogLevel::kIntermediateOutputs);
  run(model, tracer, 2);
  save(*tracer, "values.etdp");
  REQUIRE(sink->close() && !sink->write(x, 4).ok());
  alignas(64) static uint8_t small[64 + 24];
  REQUIRE(tracer->set_debug_buffer({small, sizeof(small)}).ok());
  tracer->set_event_tracer_debug_level(EventTracerDebugLogLevel::kProgramOutputs);
  tracer->set_event_tracer_profiling_level(EventTracerProfilingLevel::kProfileMethodOnly);
  run(model, tracer, 3);
  REQUIRE(tracer->num_dropped() == 1);
  save(*tracer, "outputs.etdp");
  write("outputs.bin", small, sizeof(small));
  REQUIRE(FileDataSink::create((folder + "/none/at/all").c_str()).error() == Error::AccessFailed);
  REQUIRE(!BufferDataSink::create(small, sizeof(small), 3).ok());

  // An event that begins in one dump and ends in the next is in neither dump.
  tracer->create_event_block("first");
  const EventTracerEntry entry = tracer->start_profiling("late");
  save(*tracer, "late.etdp");
  tracer->create_event_block("second");
  tracer->end_profiling(entry);
  save(*tracer, "later.etdp");
  // The times of a platform with a custom clock are stored unchanged.
  executorch::runtime::PalImpl own;
  own.current_ticks = [] { return torchette_timestamp_t{++readings}; };
  REQUIRE(executorch::runtime::register_pal(own));
  ETDumpGen counted;
  counted.create_event_block("counted");
  const uint64_t before = readings;
  const EventTracerEntry event = counted.start_profiling("event");
  REQUIRE(event.start_time == before + 1);
  counted.end_profiling(event);
  REQUIRE(readings == before + 2);
  std::puts("done");
  return 0;
}
