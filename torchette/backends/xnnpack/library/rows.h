// SPDX-License-Identifier: BSD-3-Clause
// Products of one row of input with weights in float32 that nobody has packed. The backend's code reads this,
// too.
#pragma once

#include <stdbool.h>

/// Weights of one output, as they stand in a file, and what is added.
struct xnn_weights_row {
  const float* numbers;
  float bias;
};

/// What a weights cache adds to the address of the first row, which tells it from packed weights.
enum { XNN_ROWS = 1 };

/// Whether linear layers in float32 can be computed from such rows on this processor. They read each weight
/// once for each row of input: with one there is no better order.
bool xnn_multiplies_rows(void);
