// SPDX-License-Identifier: BSD-3-Clause
// Measures the time of the work of limits/probe.h. torchette/devtools/limits.py computes the limits of a CPU
// from it.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <chrono>
#include <cstring>

#include "torchette/pybindings/bindings.h"
#include "torchette/pybindings/limits/probe.h"
#include "torchette/runtime/kernel.h"

namespace torchette::pybindings {

#ifdef TORCHETTE_HAS_baseline
namespace baseline {
extern const Probe probe;
}
#else
namespace v1 {
extern const Probe probe;
}
namespace v3 {
extern const Probe probe;
}
namespace v4 {
extern const Probe probe;
}
#endif

namespace {

/// The probe of the level of the kernels.
const Probe& probe() {
#ifdef TORCHETTE_HAS_baseline
  return baseline::probe;
#else
  const char* level = kernel_isa();
  return strcmp(level, "v4") == 0 ? v4::probe : strcmp(level, "v3") == 0 ? v3::probe : v1::probe;
#endif
}

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Returns (result of `work`, begin, end). Other Python threads run meanwhile.
template <typename Work>
nb::tuple timed(const Work& work) {
  size_t count = 0;
  double begin = 0, end = 0;
  {
    nb::gil_scoped_release release;
    begin = now();
    count = work();
    end = now();
  }
  return nb::make_tuple(count, begin, end);
}

nb::tuple multiply_adds(size_t rounds) {
  return timed([rounds] {
    float sink = 0.5f;
    return probe().multiply_adds(rounds, &sink);
  });
}

using Floats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

nb::tuple read(const Floats& data, size_t rounds) {
  const size_t size = data.size() / kStep * kStep;
  const float* floats = data.data();
  return timed([=] {
    float sink = 0;
    probe().read(floats, size, rounds, &sink);
    return size * rounds * sizeof(float);
  });
}

}  // namespace

void bind_limits(nb::module_& m) {
  m.def("multiply_adds", &multiply_adds, nb::arg("rounds"),
        "(float32 multiply-adds in registers, begin, end). Times are in seconds.");
  m.def("read", &read, nb::arg("data"), nb::arg("rounds"),
        "(bytes read from a float32 array, read `rounds` times, begin, end). Times are in seconds.");
}

}  // namespace torchette::pybindings
