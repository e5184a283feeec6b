# SPDX-License-Identifier: BSD-3-Clause
# The operators that stay what they are when torch.nn.functional is decomposed, are not core, and have no kernel: a
# model that needs one is refused with the reason here. Published in the page of dialects; a test holds it to be complete.
"""Operator name -> why there is neither a decomposition nor a kernel."""

from __future__ import annotations

_TRAINING = "it is what a layer in training mode does"

REFUSED: dict[str, str] = {
    "aten::_scaled_mm_v2": "the file format has no 8-bit floating point tensors",
    "aten::bernoulli.p": _TRAINING,
    "aten::native_channel_shuffle": "torch takes no decomposition for it; channel_shuffle computes the same",
    "aten::rrelu_with_noise_functional": _TRAINING,
}
