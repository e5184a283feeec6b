# SPDX-License-Identifier: BSD-3-Clause
# The operators that remain when torch.nn.functional is decomposed, are not core, and have no kernel. A model that needs
# one is rejected with the reason. The page of dialects lists them; a test checks that the table is complete.
"""Operator name -> why there is neither a decomposition nor a kernel."""

from __future__ import annotations

_TRAINING = "it is the training behaviour of a layer"

REFUSED: dict[str, str] = {
    "aten::_scaled_mm_v2": "the file format has no 8-bit floating point tensors",
    "aten::bernoulli.p": _TRAINING,
    "aten::native_channel_shuffle": "torch does not decompose it; use channel_shuffle, which computes the same result",
    "aten::rrelu_with_noise_functional": _TRAINING,
}
