// SPDX-License-Identifier: BSD-3-Clause
// The overhead of the runtime on a program of many one-element additions. The source uses ExecuTorch's names,
// so it is built with ExecuTorch's libraries and, through the compatibility headers, with Torchette.
// NOOP_KERNEL replaces the addition by an empty kernel. Arguments: the program, its number of instructions,
// repetitions, and any fourth argument to disable tracing. Prints one `name value` per line.
#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/executor/program.h>
#include <executorch/runtime/kernel/operator_registry.h>
#include <executorch/runtime/platform/runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <vector>

#ifdef TORCHETTE_LOG
#include <executorch/devtools/etdump/etdump_flatcc.h>

#include "torchette/runtime/kernel.h"
#ifdef NOOP_KERNEL
namespace torchette {
inline namespace TORCHETTE_ISA {
volatile long calls;
Error nothing(Context&, const Tensor&, const Tensor&, const Scalar&, Tensor&) {
  calls = calls + 1;
  return Error::Ok;
}
TORCHETTE_KERNELS(noop, TORCHETTE_KERNEL("aten::add.out", nothing))
}  // namespace TORCHETTE_ISA
Span<const Kernels> kernel_table() { return {&noop_family, 1}; }
}  // namespace torchette
#endif
#elif defined(NOOP_KERNEL)
volatile long calls;
void nothing(executorch::runtime::KernelRuntimeContext&,
             executorch::runtime::Span<executorch::runtime::EValue*>) {
  calls = calls + 1;
}
executorch::runtime::Kernel kernels[] = {executorch::runtime::Kernel("aten::add.out", nothing)};
#endif

using namespace executorch::runtime;
using executorch::aten::Tensor;
using executorch::extension::BufferDataLoader;

namespace {

double now() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) * 1e9 + static_cast<double>(t.tv_nsec);
}

/// Returns the median of the measurements in nanoseconds.
class Figure {
 public:
  template <typename F>
  void measure(int times, F&& call) {
    const double start = now();
    for (int i = 0; i < times; ++i) call();
    values_.push_back((now() - start) / times);
  }
  double median() {
    if (values_.empty()) return 0;
    std::sort(values_.begin(), values_.end());
    return values_[values_.size() / 2];
  }

 private:
  std::vector<double> values_;
};

void require(bool good, const char* what) {
  if (good) return;
  std::fprintf(stderr, "%s\n", what);
  std::exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  require(argc > 3, "tax PROGRAM INSTRUCTIONS REPETITIONS [untraced]");
  runtime_init();
#if defined(NOOP_KERNEL) && !defined(TORCHETTE_LOG)
  require(register_kernels({kernels, 1}) == Error::Ok, "the kernel is not registered");
#endif
  const double count = std::max(1.0, std::atof(argv[2]));
  std::FILE* file = std::fopen(argv[1], "rb");
  require(file != nullptr, "no such program");
  alignas(64) static char bytes[1 << 20];
  const size_t size = std::fread(bytes, 1, sizeof(bytes), file);
  alignas(64) static uint8_t pool[1 << 20], planned[1 << 16];
  Figure open, verify, load, execute, traced, clock;
  static uint8_t dump[1 << 20];
  size_t arena = 0;
  float result = 0;
  for (int i = 0; i < std::atoi(argv[3]); ++i) {
    BufferDataLoader loader(bytes, size);
    open.measure(1, [&] { require(Program::load(&loader).ok(), "not opened"); });
    verify.measure(1, [&] { (void)Program::load(&loader, Program::Verification::InternalConsistency).ok(); });
    Result<Program> program = Program::load(&loader);
    Span<uint8_t> buffers[] = {{planned, sizeof(planned)}};
    HierarchicalAllocator planned_memory({buffers, 1});
    {
      MemoryAllocator method_memory(sizeof(pool), pool);
      MemoryManager memory(&method_memory, &planned_memory);
      load.measure(1, [&] { require(program->load_method("forward", &memory).ok(), "not loaded"); });
      arena = method_memory.used_size();
    }
    MemoryAllocator method_memory(sizeof(pool), pool);
    MemoryManager memory(&method_memory, &planned_memory);
    Result<Method> method = program->load_method("forward", &memory);
    float x[] = {1}, y[] = {1};
    executorch::aten::SizesType sizes[] = {1};
    executorch::aten::DimOrderType order[] = {0};
    executorch::aten::StridesType strides[] = {1};
    using executorch::aten::ScalarType;
    using executorch::aten::TensorImpl;
    TensorImpl a(ScalarType::Float, 1, sizes, x, order, strides);
    TensorImpl b(ScalarType::Float, 1, sizes, y, order, strides);
    require(method->set_input(EValue(Tensor(&a)), 0) == Error::Ok &&
                method->set_input(EValue(Tensor(&b)), 1) == Error::Ok,
            "wrong inputs");
    execute.measure(count > 1 ? 5 : 1000, [&] { require(method->execute() == Error::Ok, "not executed"); });
    result = method->get_output(0).toTensor().const_data_ptr<float>()[0];
#if defined(TORCHETTE_LOG) && TORCHETTE_EVENT_TRACER
    if (argc > 4) continue;
    executorch::etdump::ETDumpGen tracer({dump, sizeof(dump)});
    MemoryAllocator traced_memory(sizeof(pool), pool);
    MemoryManager traced_manager(&traced_memory, &planned_memory);
    Result<Method> told = program->load_method("forward", &traced_manager, &tracer);
    require(told->set_input(EValue(Tensor(&a)), 0) == Error::Ok &&
                told->set_input(EValue(Tensor(&b)), 1) == Error::Ok,
            "wrong inputs");
    traced.measure(5, [&] { require(told->execute() == Error::Ok, "not executed"); });
    require(tracer.num_dropped() == 0, "not traced");
    volatile uint64_t ticks;
    clock.measure(1000, [&] { ticks = torchette::current_ticks(), ticks = torchette::current_ticks(); });
#else
    traced.measure(1, [] {}), clock.measure(1, [] {});
#endif
  }
  std::printf(
      "open %g\nverify %g\nload %g\nexecute %g\ntraced %g\nclock %g\narena %zu\nfile %zu\nresult %g\n",
      open.median(), verify.median(), load.median(), execute.median(), traced.median(), clock.median(), arena,
      size, static_cast<double>(result));
  return 0;
}
