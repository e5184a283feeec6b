// SPDX-License-Identifier: BSD-3-Clause
// cpu::selective_scan: torchette/backends/engine/operators/selective_scan.py.
#include <cstring>

#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/panels.h"
#include "torchette/kernels/vecmath.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Channels that one task updates for all tokens. Their states stay in the nearest cache.
constexpr size_t kChannels = 16;

struct Scan {
  size_t tokens, channels, depth;
  const float *x, *dt, *rates, *b, *c, *state;
  float *out, *last;
};

/// Updates the state of one channel with one token. Returns the output.
float update(const Scan& s, const float* from, size_t channel, size_t token) {
  const float dt = s.dt[token * s.channels + channel];
  const Vec step = broadcast(dt), input = broadcast(dt * s.x[token * s.channels + channel]);
  const float* const rates = s.rates + channel * s.depth;
  const float *const b = s.b + token * s.depth, *const c = s.c + token * s.depth;
  float* const to = s.last + channel * s.depth;
  Vec output = {};
  size_t i = 0;
  for (; i + kLanes <= s.depth; i += kLanes) {
    const Vec state = fma(input, load(b + i), exp_f(step * load(rates + i)) * load(from + i));
    store(to + i, state);
    output = fma(load(c + i), state, output);
  }
  if (i < s.depth) {
    const size_t n = s.depth - i;
    const Vec kept = exp_f(step * load_partial(rates + i, n)) * load_partial(from + i, n);
    store_partial(to + i, fma(input, load_partial(b + i, n), kept), n);
    // The other lanes are not 0 if the input is infinite.
    output = fma(load_partial(c + i, n), load_partial(to + i, n), output);
  }
  return horizontal_sum(output);
}

void run_channels(const Scan& s, size_t first, size_t end) {
  const float* from = s.state;
  for (size_t t = 0; t < s.tokens; ++t, from = s.last)
    for (size_t channel = first; channel < end; ++channel)
      s.out[t * s.channels + channel] = update(s, from + channel * s.depth, channel, t);
}

}  // namespace

static Error selective_scan_out(Context& context, const Tensor& x, const Tensor& dt, const Tensor& rates,
                                const Tensor& b, const Tensor& c, const Tensor& state, Tensor& out,
                                Tensor& last) {
  TORCHETTE_TRY(check_floats("selective_scan", x, "x"));
  TORCHETTE_TRY(check_floats("selective_scan", state, "state"));
  TORCHETTE_CHECK(x.dim() == 2 && state.dim() == 2, InvalidArgument,
                  "selective_scan: x and state have %d and %d dimensions, expected 2",
                  static_cast<int>(x.dim()), static_cast<int>(state.dim()));
  const SizesType tokens = x.size(0), channels = x.size(1), depth = state.size(1);
  const SizesType of_state[] = {channels, depth}, of_b[] = {tokens, depth};
  TORCHETTE_TRY(check_operand("selective_scan", dt, x.sizes(), "dt"));
  TORCHETTE_TRY(check_operand("selective_scan", rates, {of_state, 2}, "rates"));
  TORCHETTE_TRY(check_operand("selective_scan", b, {of_b, 2}, "b"));
  TORCHETTE_TRY(check_operand("selective_scan", c, {of_b, 2}, "c"));
  TORCHETTE_TRY(check_operand("selective_scan", state, {of_state, 2}, "state"));
  TORCHETTE_TRY(check_result("selective_scan", out, x.sizes(), "out0"));
  TORCHETTE_TRY(check_result("selective_scan", last, state.sizes(), "out1"));
  const Scan s = {static_cast<size_t>(tokens),   static_cast<size_t>(channels), static_cast<size_t>(depth),
                  x.const_data_ptr<float>(),     dt.const_data_ptr<float>(),    rates.const_data_ptr<float>(),
                  b.const_data_ptr<float>(),     c.const_data_ptr<float>(),     state.const_data_ptr<float>(),
                  out.mutable_data_ptr<float>(), last.mutable_data_ptr<float>()};
  if (s.tokens == 0) {
    if (state.nbytes() > 0 && s.last != s.state) memcpy(s.last, s.state, state.nbytes());
    return Error::Ok;
  }
  const size_t tasks = (s.channels + kChannels - 1) / kChannels;
  context.parallel_for(tasks, min_items(s.tokens * s.depth * kChannels),
                       [&](size_t begin, size_t end, size_t) {
                         for (size_t task = begin; task < end; ++task) {
                           const size_t first = task * kChannels, rest = s.channels - first;
                           run_channels(s, first, first + (rest < kChannels ? rest : kChannels));
                         }
                       });
  return Error::Ok;
}

TORCHETTE_KERNELS(selective_scan, TORCHETTE_KERNEL("cpu::selective_scan.out", selective_scan_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
