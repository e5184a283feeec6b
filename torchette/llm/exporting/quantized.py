# SPDX-License-Identifier: BSD-3-Clause
# In: a model of transformers. Out: a copy with linear layers and embedding table quantized to integers in the engine's panels,
# computed by the engine's operators instead of torch's operators. Only the class of a layer changes; the model's own code around
# the layer stays. A tied embedding is stored once.
"""`store_whole`: quantizes the weights of a model to 8 or 4 bits."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

import torchette.backends.engine.operators  # noqa: F401
from torchette.backends.engine.pack import OCTET, PANEL_WIDTH, pack_linear, pack_nibbles, pack_quads

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Scheme -> bits of a weight, group size (0: one scale per output channel), and whether the layer's input is quantized too.
SCHEMES = {
    "int8-dynamic": (8, 0, True),
    "8da4w": (4, 32, True),
    "int8-weight-only": (8, 0, False),
    "int4-weight-only": (4, 32, False),
}


class Whole(NamedTuple):
    """A quantized matrix: values int8 [N, K], scales float32 [N, groups]."""

    numbers: torch.Tensor
    scales: torch.Tensor


def rounded(weight: torch.Tensor, bits: int, group: int) -> Whole:
    """Quantizes a matrix [N, K] to the nearest integers.

    If `group` does not divide K, the result has 8 bits and one scale per row. With 4 bits, each group's scale is the one of three
    candidates with the smallest squared error.
    """
    outputs, inputs = weight.shape
    if group == 0 or inputs % group:
        bits, group = 8, inputs
    grouped = weight.detach().float().view(outputs, -1, group)
    most, top = grouped.abs().amax(2, keepdim=True), 1 << bits - 1
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for steps in (top - 1, top - 0.5, top + 0.5) if bits == 4 else (top - 1,):
        scale = (most / steps).clamp(min=2.0**-100)
        whole = (grouped / scale).round().clamp(-top, top - 1)
        error = (whole * scale - grouped).square().sum(2, keepdim=True)
        if best is not None:
            better = error < best[0]
            error, scale, whole = (
                torch.where(better, new, old) for new, old in zip((error, scale, whole), best, strict=True)
            )
        best = error, scale, whole
    assert best is not None
    return Whole(best[2].to(torch.int8).view(outputs, inputs), best[1].squeeze(2))


def _store(part: Any, whole: Whole) -> None:
    """Replaces the float weight of a layer by the engine's packed matrix."""
    outputs, inputs = whole.numbers.shape
    nibbles = int(whole.numbers.min()) >= -8 and int(whole.numbers.max()) < 8 and inputs % OCTET == 0
    del part.weight
    part.register_buffer("whole", (pack_nibbles if nibbles else pack_quads)(whole.numbers))
    part.register_buffer("scales", pack_linear(whole.scales))
    part.shape = outputs, inputs
    # Models read the dtype of this parameter; nothing reads its values.
    part.weight = nn.Parameter(torch.empty(0), requires_grad=False)


class _Packed:
    whole: torch.Tensor
    scales: torch.Tensor
    shape: tuple[int, int]


class _Floats(_Packed, nn.Linear):
    """Linear layer with integer weights and float input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.cpu.weight_only_linear(
            input, self.whole, self.scales, self.bias, self.shape[0]
        )
        return result


class _Dynamic(_Packed, nn.Linear):
    """Linear layer with integer weights; each row of its input is quantized to int8 at run time."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        numbers, rows = torch.ops.cpu.quantize_rows(input, -128, 127, 255.0, 2.0**-23, False, False)
        result: torch.Tensor = torch.ops.cpu.dynamic_linear(
            numbers, rows, self.whole, self.scales, self.bias, None, self.shape[0], "none"
        )
        return result


class _Table(_Packed, nn.Embedding):
    """Embedding table of integers."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.cpu.scaled_embedding(self.whole, self.scales, input, *self.shape)
        return result


class _Experts:
    """Replaces the parameter of all experts' matrices; indexing dequantizes the matrices of the selected experts."""

    def __init__(self, part: torch.nn.Module, name: str) -> None:
        matrices, inputs_at = getattr(part, name).detach().float(), 1 if part.is_transposed else 2
        scales = (matrices.abs().amax(inputs_at, keepdim=True) / 127).clamp(min=2.0**-100)
        self._part, self._names = part, (f"{name}_whole", f"{name}_scales")
        delattr(part, name)
        part.register_buffer(self._names[0], (matrices / scales).round().to(torch.int8))
        part.register_buffer(self._names[1], scales)
        setattr(part, name, self)

    def __getitem__(self, experts: torch.Tensor) -> torch.Tensor:
        whole, scales = (getattr(self._part, name)[experts] for name in self._names)
        result: torch.Tensor = whole.float() * scales
        return result


def _become(part: nn.Module, base: type, ours: type) -> None:
    """Changes the class of a layer: `base` among its base classes becomes `ours`."""
    own = type(part)
    part.__class__ = ours if own is base else type(own.__name__, (own, ours), {})


def is_layer(part: nn.Module) -> bool:
    """Returns whether a layer is quantized: a linear layer at least as large as a panel."""
    if isinstance(part, Conv1D):
        return True
    return (
        isinstance(part, nn.Linear) and part.out_features >= PANEL_WIDTH and part.in_features >= PANEL_WIDTH
    )


def matrix_of(part: nn.Linear | nn.Embedding | Conv1D) -> torch.Tensor:
    """Returns a layer's weight as [outputs, inputs]."""
    return part.weight.detach().t() if isinstance(part, Conv1D) else part.weight.detach()


def store_whole(
    model: PreTrainedModel,
    scheme: str | None,
    given: Callable[[str], Whole | None] = lambda name: None,
    progress: Callable[[str], None] = lambda name: None,
) -> Any:
    """Returns a quantized copy of the model. The copy shares the weights that are not quantized.

    Args:
        model: is not changed.
        scheme: a name of `SCHEMES`; None: only layers for which `given` returns integers are quantized.
        given: returns the integers of the layer with this name, or None if the layer is to be quantized here.
        progress: called with the name of each layer.
    """
    bits, group, dynamic = SCHEMES[scheme] if scheme else (0, 0, False)
    model = copy.deepcopy(model, {id(p): p for p in (*model.parameters(), *model.buffers())})
    table = model.get_input_embeddings().weight
    known: dict[int, Whole] = {}
    for name, part in list(model.named_modules()):
        if bits and hasattr(part, "is_transposed"):
            progress(name)
            for own in [own for own, one in part.named_parameters(recurse=False) if one.dim() == 3]:
                _Experts(part, own)
        looked_up = isinstance(part, nn.Embedding) and part.weight is table
        if not looked_up and not is_layer(part):
            continue
        progress(name)
        key = id(part.weight)
        whole = known.get(key) or given(name)
        if whole is None and bits == 0:
            continue
        whole = whole or rounded(matrix_of(part), bits, group)
        if looked_up:
            known[key] = whole
        _store(part, whole)
        if looked_up:
            _become(part, nn.Embedding, _Table)
        elif isinstance(part, Conv1D):
            part.__class__ = _Dynamic if dynamic else _Floats
        else:
            _become(part, nn.Linear, _Dynamic if dynamic else _Floats)
    return model
