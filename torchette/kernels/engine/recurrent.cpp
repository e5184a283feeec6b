// SPDX-License-Identifier: BSD-3-Clause
// cpu::lstm and cpu::gru: torchette/backends/engine/operators/recurrent.py. One GEMM computes the input's
// contribution for many steps. Each step then adds the GEMM of the previous state and writes the new state
// directly to the result.
#include "torchette/kernels/engine/operands.h"
#include "torchette/kernels/engine/packed_gemm.h"

namespace torchette {
namespace TORCHETTE_ISA {
namespace {

// Floats of gates that are computed from the input at a time, so that they are still in the L2 cache when
// they are read again.
constexpr size_t kGates = size_t{1} << 15;

// The threads are awake from the step before, so fewer multiply-adds pay off than for another loop.
constexpr size_t kAwake = 8;

struct Layer {
  size_t steps, batch, inputs, units, gates;
  const float* x;
  ptrdiff_t x_step, x_row;  // strides of steps and of the batch
  const float* hidden;      // [batch][units]
  const void *weight, *state_weight;
  Stored stored;
  float* wide;         // scratch memory for 16-bit weights
  size_t wide_floats;  // per worker
  const float *bias, *state_bias;
  float* y;
  ptrdiff_t y_step, y_row;
  float* last;  // [batch][units]
  float* cell;  // [batch][units], updated; null for a GRU
  bool reverse;

  size_t width() const { return panels_of(units) * gates * kPanelWidth; }
  /// Returns the time step that is processed in iteration t.
  ptrdiff_t step(size_t t) const { return static_cast<ptrdiff_t>(reverse ? steps - 1 - t : t); }
};

/// Computes new states from the gates of the panels [first, last) of 16 units, for one row. `given` is the
/// input's contribution, `recalled` the state's contribution (for an LSTM, the sum of both).
void lstm_units(const float*, const float* recalled, const float*, float* cell, float* y, size_t units,
                size_t first, size_t last) {
  for (size_t p = first; p < last; ++p) {
    const float* const gate = recalled + p * 4 * kPanelWidth;
    for (size_t i = p * kPanelWidth, v = 0; v < kPanelWidth && i < units; v += kLanes, i += kLanes) {
      const size_t here = units - i < kLanes ? units - i : kLanes;
      const Vec before = here == kLanes ? load(cell + i) : load_partial(cell + i, here);
      const Vec taken = sigmoid_f(load(gate + v)) * tanh_f(load(gate + 2 * kPanelWidth + v));
      const Vec now = fma(sigmoid_f(load(gate + kPanelWidth + v)), before, taken);
      const Vec shown = sigmoid_f(load(gate + 3 * kPanelWidth + v)) * tanh_f(now);
      if (here == kLanes) {
        store(cell + i, now);
        store(y + i, shown);
      } else {
        store_partial(cell + i, now, here);
        store_partial(y + i, shown, here);
      }
    }
  }
}

void gru_units(const float* given, const float* recalled, const float* before, float*, float* y, size_t units,
               size_t first, size_t last) {
  for (size_t p = first; p < last; ++p) {
    const float *const a = given + p * 3 * kPanelWidth, *const b = recalled + p * 3 * kPanelWidth;
    for (size_t i = p * kPanelWidth, v = 0; v < kPanelWidth && i < units; v += kLanes, i += kLanes) {
      const size_t here = units - i < kLanes ? units - i : kLanes;
      const Vec old = here == kLanes ? load(before + i) : load_partial(before + i, here);
      const Vec reset = sigmoid_f(load(a + v) + load(b + v));
      const Vec kept = sigmoid_f(load(a + kPanelWidth + v) + load(b + kPanelWidth + v));
      const Vec fresh = tanh_f(fma(reset, load(b + 2 * kPanelWidth + v), load(a + 2 * kPanelWidth + v)));
      const Vec now = fma(old - fresh, kept, fresh);
      if (here == kLanes)
        store(y + i, now);
      else
        store_partial(y + i, now, here);
    }
  }
}

/// Computes the input's contribution in the steps [t, t + count) for the rows [first, last), stored at
/// given[row - first][step - t]. Uses the threads of `context` if it is not null.
void multiply_input(Context* context, const Layer& layer, size_t t, size_t count, size_t first, size_t last,
                    size_t worker, float* given) {
  const size_t width = layer.width();
  PackedProduct product = {};
  product.stored = layer.stored;
  product.wide = layer.wide + worker * layer.wide_floats;
  product.n = width;
  product.k = layer.inputs;
  product.w = layer.weight;
  product.bias = layer.bias;
  product.activation = Activation::none;
  const size_t rows = last - first;
  // Chooses the longer GEMMs: along the steps of each row, or along the rows of each step.
  const bool along_steps = count > rows;
  const ptrdiff_t step_width = static_cast<ptrdiff_t>(width),
                  row_width = step_width * static_cast<ptrdiff_t>(count);
  product.m = along_steps ? count : rows;
  product.a_row = !along_steps ? layer.x_row : layer.reverse ? -layer.x_step : layer.x_step;
  product.c_row = along_steps ? step_width : row_width;
  for (size_t i = 0; i < (along_steps ? rows : count); ++i) {
    const auto row = static_cast<ptrdiff_t>(along_steps ? i : 0),
               step = static_cast<ptrdiff_t>(along_steps ? 0 : i);
    product.a = layer.x + layer.step(t + static_cast<size_t>(step)) * layer.x_step +
                (static_cast<ptrdiff_t>(first) + row) * layer.x_row;
    product.c = given + row * row_width + step * step_width;
    if (context != nullptr)
      packed_gemm(*context, product);
    else
      packed_gemm(product, 0, width / kPanelWidth);
  }
}

/// Computes one step for the rows [first, last) and the unit panels [from, to).
void advance(const Layer& layer, size_t t, size_t first, size_t last, size_t from, size_t to, size_t worker,
             const float* given, size_t given_row, float* recalled) {
  const size_t width = layer.width();
  const bool is_lstm = layer.cell != nullptr;
  const ptrdiff_t y_before = t == 0 ? 0 : layer.step(t - 1) * layer.y_step;
  const float* const before = t == 0 ? layer.hidden : layer.y + y_before;
  const ptrdiff_t before_row = t == 0 ? static_cast<ptrdiff_t>(layer.units) : layer.y_row;
  PackedProduct product = {};
  product.m = last - first;
  product.n = width;
  product.k = layer.units;
  product.a = before + static_cast<ptrdiff_t>(first) * before_row;
  product.a_row = before_row;
  product.w = layer.state_weight;
  product.stored = layer.stored;
  product.wide = layer.wide + worker * layer.wide_floats;
  product.c = recalled;
  product.c_row = static_cast<ptrdiff_t>(width);
  product.bias = is_lstm ? nullptr : layer.state_bias;
  product.residual = is_lstm ? given : nullptr;
  product.residual_row = static_cast<ptrdiff_t>(given_row);
  product.activation = Activation::none;
  packed_gemm(product, from * layer.gates, to * layer.gates);
  for (size_t row = first; row < last; ++row) {
    const size_t r = row - first;
    float* const cell = is_lstm ? layer.cell + row * layer.units : nullptr;
    (is_lstm ? lstm_units : gru_units)(
        given + r * given_row, recalled + r * width, before + static_cast<ptrdiff_t>(row) * before_row, cell,
        layer.y + layer.step(t) * layer.y_step + static_cast<ptrdiff_t>(row) * layer.y_row, layer.units, from,
        to);
  }
}

/// Distributes rows among the threads if there are enough, and each thread runs all steps of its rows.
/// Otherwise distributes the units of each step.
Error run(Context& context, const char* op, Layer& layer) {
  const size_t width = layer.width(), panels = panels_of(layer.units);
  const size_t of_step = layer.batch * width;
  size_t count = kGates / (of_step + 1);
  count = count < 1 ? 1 : count > layer.steps ? layer.steps : count;
  for (const size_t depth : {layer.inputs, layer.units}) {
    PackedProduct product = {};
    product.m = layer.batch * layer.steps;
    product.n = width;
    product.k = depth;
    product.stored = layer.stored;
    if (product.widened() > layer.wide_floats) layer.wide_floats = product.widened();
  }
  const size_t floats = of_step * (count + 1) + context.workers() * layer.wide_floats;
  float* const given = static_cast<float*>(context.allocate_temp(floats * sizeof(float)));
  TORCHETTE_CHECK(given != nullptr, MemoryAllocationFailed, "%s: no scratch memory for %d floats of gates",
                  op, static_cast<int>(floats));
  float* const recalled = given + of_step * count;
  layer.wide = recalled + of_step;
  const bool by_rows = layer.batch >= context.workers();
  const auto run_rows = [&](size_t first, size_t last, size_t worker) {
    float *const mine = given + first * count * width, *const sums = recalled + first * width;
    for (size_t t = 0; t < layer.steps; t += count) {
      const size_t here = layer.steps - t < count ? layer.steps - t : count;
      multiply_input(by_rows ? nullptr : &context, layer, t, here, first, last, worker, mine);
      for (size_t s = 0; s < here; ++s)
        if (by_rows)
          advance(layer, t + s, first, last, 0, panels, worker, mine + s * width, here * width, sums);
        else
          context.parallel_for(
              panels, min_items(kAwake * layer.batch * layer.units * layer.gates * kPanelWidth),
              [&](size_t from, size_t to, size_t own) {
                advance(layer, t + s, first, last, from, to, own, mine + s * width, here * width, sums);
              });
    }
  };
  if (by_rows)
    context.parallel_for(layer.batch, min_items(layer.steps * width * (layer.inputs + layer.units)),
                         run_rows);
  else
    run_rows(0, layer.batch, 0);
  const float* const last = layer.y + layer.step(layer.steps - 1) * layer.y_step;
  for (size_t row = 0; row < layer.batch; ++row)
    memcpy(layer.last + row * layer.units, last + static_cast<ptrdiff_t>(row) * layer.y_row,
           layer.units * sizeof(float));
  return Error::Ok;
}

Error check_weight(const char* op, const Tensor& weight, size_t gates, size_t units, ptrdiff_t depth,
                   const char* name, Stored& stored) {
  TORCHETTE_TRY(check_stored(op, weight, stored, name));
  TORCHETTE_CHECK(weight.dim() == 3 && weight.size(0) == static_cast<ptrdiff_t>(panels_of(units) * gates) &&
                      weight.size(1) == depth && weight.size(2) == static_cast<ptrdiff_t>(kPanelWidth),
                  InvalidArgument,
                  "%s: %s has %d panels of %d inputs, which does not fit %d units of %d inputs", op, name,
                  static_cast<int>(weight.dim() == 3 ? weight.size(0) : -1),
                  static_cast<int>(weight.dim() == 3 ? weight.size(1) : -1), static_cast<int>(units),
                  static_cast<int>(depth));
  return Error::Ok;
}

/// Checks the arguments that LSTM and GRU share, and fills `layer`.
Error prepare(const char* op, size_t gates, const Tensor& input, const Tensor& hidden, const Tensor& weight,
              const Tensor& state_weight, const Optional<Tensor>& bias, bool reverse, bool batch_first,
              Tensor& out, Tensor& last, Layer& layer) {
  TORCHETTE_TRY(check_floats(op, input, "input"));
  TORCHETTE_TRY(check_floats(op, hidden, "hidden"));
  TORCHETTE_CHECK(
      input.dim() == 3 && hidden.dim() == 2 && hidden.size(0) == input.size(batch_first ? 0 : 1),
      InvalidArgument,
      "%s: input of %d dimensions and hidden of %d dimensions do not fit, or differ in batch size", op,
      static_cast<int>(input.dim()), static_cast<int>(hidden.dim()));
  const ptrdiff_t steps = input.size(batch_first ? 1 : 0), batch = hidden.size(0), units = hidden.size(1);
  TORCHETTE_CHECK(steps > 0, InvalidArgument, "%s: input has no steps", op);
  layer = {};
  layer.steps = static_cast<size_t>(steps);
  layer.batch = static_cast<size_t>(batch);
  layer.inputs = static_cast<size_t>(input.size(2));
  layer.units = static_cast<size_t>(units);
  layer.gates = gates;
  TORCHETTE_TRY(check_weight(op, weight, gates, layer.units, input.size(2), "weight", layer.stored));
  Stored of_state;
  TORCHETTE_TRY(check_weight(op, state_weight, gates, layer.units, units, "state_weight", of_state));
  TORCHETTE_CHECK(of_state == layer.stored, InvalidType, "%s: weight and state_weight are of different types",
                  op);
  const SizesType of_bias[] = {static_cast<SizesType>(panels_of(layer.units)), static_cast<SizesType>(gates),
                               static_cast<SizesType>(kPanelWidth)};
  TORCHETTE_TRY(check_operand(op, bias, {of_bias, 3}, "bias"));
  const SizesType of_out[] = {static_cast<SizesType>(input.size(0)), static_cast<SizesType>(input.size(1)),
                              static_cast<SizesType>(units)};
  TORCHETTE_TRY(check_result(op, out, {of_out, 3}, "out0"));
  TORCHETTE_TRY(check_result(op, last, hidden.sizes(), "out1"));
  layer.x = input.const_data_ptr<float>();
  layer.x_step = batch_first ? input.size(2) : batch * input.size(2);
  layer.x_row = batch_first ? steps * input.size(2) : input.size(2);
  layer.hidden = hidden.const_data_ptr<float>();
  layer.weight = weight.const_data_ptr();
  layer.state_weight = state_weight.const_data_ptr();
  layer.bias = floats_of(bias);
  layer.y = out.mutable_data_ptr<float>();
  layer.y_step = batch_first ? units : batch * units;
  layer.y_row = batch_first ? steps * units : units;
  layer.last = last.mutable_data_ptr<float>();
  layer.reverse = reverse;
  return Error::Ok;
}

}  // namespace

static Error lstm_out(Context& context, const Tensor& input, const Tensor& hidden, const Tensor& cell,
                      const Tensor& weight, const Tensor& state_weight, const Optional<Tensor>& bias,
                      bool reverse, bool batch_first, Tensor& out, Tensor& last, Tensor& last_cell) {
  Layer layer;
  TORCHETTE_TRY(
      prepare("lstm", 4, input, hidden, weight, state_weight, bias, reverse, batch_first, out, last, layer));
  TORCHETTE_TRY(check_operand("lstm", cell, hidden.sizes(), "cell"));
  TORCHETTE_TRY(check_result("lstm", last_cell, hidden.sizes(), "out2"));
  layer.cell = last_cell.mutable_data_ptr<float>();
  memcpy(layer.cell, cell.const_data_ptr<float>(), layer.batch * layer.units * sizeof(float));
  return run(context, "lstm", layer);
}

static Error gru_out(Context& context, const Tensor& input, const Tensor& hidden, const Tensor& weight,
                     const Tensor& state_weight, const Optional<Tensor>& bias,
                     const Optional<Tensor>& state_bias, bool reverse, bool batch_first, Tensor& out,
                     Tensor& last) {
  Layer layer;
  TORCHETTE_TRY(
      prepare("gru", 3, input, hidden, weight, state_weight, bias, reverse, batch_first, out, last, layer));
  const SizesType sizes[] = {static_cast<SizesType>(panels_of(layer.units)), 3,
                             static_cast<SizesType>(kPanelWidth)};
  TORCHETTE_TRY(check_operand("gru", state_bias, {sizes, 3}, "state_bias"));
  layer.state_bias = floats_of(state_bias);
  return run(context, "gru", layer);
}

TORCHETTE_KERNELS(recurrent, TORCHETTE_KERNEL("cpu::lstm.out", lstm_out),
                  TORCHETTE_KERNEL("cpu::gru.out", gru_out))

}  // namespace TORCHETTE_ISA
}  // namespace torchette
