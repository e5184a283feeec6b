// SPDX-License-Identifier: BSD-3-Clause
// Runs an embedded model on the inputs in the host's file "inputs" and writes the bytes of the outputs as
// text. Command line: POOL BYTES limits a pool (planned, method or temp) to this size. The exit code is the
// number of the error.
#include <stdio.h>
#include <string.h>

#include "net.hpp"
#include "torchette/build/bare/semihosting.h"

using namespace torchette;

extern "C" void torchette_pal_emit_log_message(torchette_timestamp_t, torchette_log_level_t, const char*,
                                               const char*, size_t, const char* message, size_t) {
  semihosting_write(message);
  semihosting_write("\n");
}

static uint8_t inputs[4096];

static size_t missing(const char* line, const char* pool) {
  const size_t length = strlen(pool);
  while (*line != 0 && strncmp(line, pool, length) != 0) ++line;
  size_t bytes = 0;
  if (*line != 0)
    for (line += length + 1; *line >= '0' && *line <= '9'; ++line)
      bytes = 10 * bytes + static_cast<size_t>(*line - '0');
  return bytes;
}

static Error run(const char* line) {
  auto loader = net::program();
  const auto program = Program::load(&loader, Program::Verification::InternalConsistency);
  if (!program.ok()) return program.error();
  Span<uint8_t> buffer{net_forward_planned_1, NET_FORWARD_PLANNED_1_SIZE - missing(line, "planned")};
  MemoryAllocator method_memory(NET_FORWARD_METHOD_SIZE - missing(line, "method"), net_forward_method);
  MemoryAllocator temp_memory(NET_FORWARD_TEMP_SIZE - missing(line, "temp"), net_forward_temp);
  HierarchicalAllocator planned({&buffer, 1});
  MemoryManager memory(&method_memory, &planned, &temp_memory);
  auto method = program->load_method("forward", &memory);
  if (!method.ok()) return method.error();
  TensorImpl impl = *method->get_input(0).to_tensor().unsafe_impl();
  const Tensor input(&impl);
  if (semihosting_read_file("inputs", inputs, sizeof(inputs)) != static_cast<ptrdiff_t>(input.nbytes()))
    return Error::AccessFailed;
  impl.data = inputs;
  TORCHETTE_TRY(method->set_input(Value(input), 0));
  TORCHETTE_TRY(method->execute());
  const Tensor output = method->get_output(0).to_tensor();
  char text[16];
  for (ptrdiff_t i = 0; i < output.numel(); ++i) {
    snprintf(text, sizeof(text), "%08x ", static_cast<unsigned>(output.const_data_ptr<uint32_t>()[i]));
    semihosting_write(text);
  }
  return Error::Ok;
}

int main() {
  char line[64];
  semihosting_command_line(line, sizeof(line));
  return static_cast<int>(run(line));
}
