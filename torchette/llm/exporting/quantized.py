# SPDX-License-Identifier: BSD-3-Clause
# In: a model of transformers. Out: a copy with linear layers and embedding table quantized to integers in the engine's panels,
# computed by the engine's operators instead of torch's operators. Only the class of a layer changes; the model's own code around
# the layer stays. A tied embedding is stored once.
"""`quantize_weights`: quantizes the weights of a model to 8 or 4 bits."""

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


class QuantizedWeight(NamedTuple):
    """A quantized matrix: values int8 [N, K], scales float32 [N, groups]."""

    values: torch.Tensor
    scales: torch.Tensor


def quantize_weight(weight: torch.Tensor, bits: int, group: int) -> QuantizedWeight:
    """Quantizes a matrix [N, K] to the nearest integers.

    If `group` does not divide K, the result has 8 bits and one scale per row. With 4 bits, each group's scale is the one of three
    candidates with the smallest squared error.
    """
    outputs, inputs = weight.shape
    if group == 0 or inputs % group:
        bits, group = 8, inputs
    grouped = weight.detach().float().view(outputs, -1, group)
    max_abs, limit = grouped.abs().amax(2, keepdim=True), 1 << bits - 1
    best: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    for steps in (limit - 1, limit - 0.5, limit + 0.5) if bits == 4 else (limit - 1,):
        scale = (max_abs / steps).clamp(min=2.0**-100)
        values = (grouped / scale).round().clamp(-limit, limit - 1)
        error = (values * scale - grouped).square().sum(2, keepdim=True)
        if best is not None:
            better = error < best[0]
            error, scale, values = (
                torch.where(better, new, old) for new, old in zip((error, scale, values), best, strict=True)
            )
        best = error, scale, values
    assert best is not None
    return QuantizedWeight(best[2].to(torch.int8).view(outputs, inputs), best[1].squeeze(2))


def _replace_weight(part: Any, weight: QuantizedWeight) -> None:
    """Replaces the float weight of a layer by the engine's packed matrix."""
    outputs, inputs = weight.values.shape
    has_nibbles = int(weight.values.min()) >= -8 and int(weight.values.max()) < 8 and inputs % OCTET == 0
    del part.weight
    part.register_buffer("packed", (pack_nibbles if has_nibbles else pack_quads)(weight.values))
    part.register_buffer("scales", pack_linear(weight.scales))
    part.shape = outputs, inputs
    # Models read the dtype of this parameter; nothing reads its values.
    part.weight = nn.Parameter(torch.empty(0), requires_grad=False)


class _Packed:
    packed: torch.Tensor
    scales: torch.Tensor
    shape: tuple[int, int]


class _WeightOnlyLinear(_Packed, nn.Linear):
    """Linear layer with integer weights and float input."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.cpu.weight_only_linear(
            input, self.packed, self.scales, self.bias, self.shape[0]
        )
        return result


class _DynamicLinear(_Packed, nn.Linear):
    """Linear layer with integer weights; each row of its input is quantized to int8 at run time."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        values, rows = torch.ops.cpu.quantize_rows(input, -128, 127, 255.0, 2.0**-23, False, False)
        result: torch.Tensor = torch.ops.cpu.dynamic_linear(
            values, rows, self.packed, self.scales, self.bias, None, self.shape[0], "none"
        )
        return result


class _QuantizedEmbedding(_Packed, nn.Embedding):
    """Embedding table of integers."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = torch.ops.cpu.scaled_embedding(self.packed, self.scales, input, *self.shape)
        return result


def _inputs_dim(part: nn.Module) -> int | None:
    """Returns the dimension of the inputs in the matrices of all experts; None for a module without experts."""
    if hasattr(part, "is_transposed"):
        return 1 if part.is_transposed else 2
    up, down = (getattr(part, name, torch.empty(0)) for name in ("gate_up_proj", "down_proj"))
    if not all(isinstance(matrices, nn.Parameter) and matrices.dim() == 3 for matrices in (up, down)):
        return None
    return 1 if up.shape[1] == down.shape[2] else 2


class _QuantizedExperts:
    """Replaces the parameter of all experts' matrices; indexing dequantizes the matrices of the selected experts."""

    def __init__(self, part: torch.nn.Module, name: str, inputs_dim: int) -> None:
        matrices = getattr(part, name).detach().float()
        scales = (matrices.abs().amax(inputs_dim, keepdim=True) / 127).clamp(min=2.0**-100)
        self._part, self._names = part, (f"{name}_values", f"{name}_scales")
        delattr(part, name)
        part.register_buffer(self._names[0], (matrices / scales).round().to(torch.int8))
        part.register_buffer(self._names[1], scales)
        setattr(part, name, self)

    def __getitem__(self, experts: torch.Tensor) -> torch.Tensor:
        values, scales = (getattr(self._part, name)[experts] for name in self._names)
        result: torch.Tensor = values.float() * scales
        return result


def _replace_class(part: nn.Module, base: type, replacement: type) -> None:
    """Changes the class of a layer: `base` among its base classes becomes `replacement`."""
    cls = type(part)
    part.__class__ = replacement if cls is base else type(cls.__name__, (cls, replacement), {})


def is_quantizable(part: nn.Module) -> bool:
    """Returns whether a layer is quantized: a linear layer at least as large as a panel."""
    if isinstance(part, Conv1D):
        return True
    return (
        isinstance(part, nn.Linear) and part.out_features >= PANEL_WIDTH and part.in_features >= PANEL_WIDTH
    )


def weight_matrix(part: nn.Linear | nn.Embedding | Conv1D) -> torch.Tensor:
    """Returns a layer's weight as [outputs, inputs]."""
    return part.weight.detach().t() if isinstance(part, Conv1D) else part.weight.detach()


def quantize_weights(
    model: PreTrainedModel,
    scheme: str | None,
    integers_of: Callable[[str], QuantizedWeight | None] = lambda name: None,
    progress: Callable[[str], None] = lambda name: None,
) -> Any:
    """Returns a quantized copy of the model. The copy shares the weights that are not quantized.

    Args:
        model: is not changed.
        scheme: a name of `SCHEMES`; None: only layers for which `integers_of` returns integers are quantized.
        integers_of: returns the integers of the layer with this name, or None if the layer is to be quantized here.
        progress: called with the name of each layer.
    """
    bits, group, dynamic = SCHEMES[scheme] if scheme else (0, 0, False)
    model = copy.deepcopy(model, {id(p): p for p in (*model.parameters(), *model.buffers())})
    table = model.get_input_embeddings().weight
    known: dict[int, QuantizedWeight] = {}
    for name, part in list(model.named_modules()):
        inputs_dim = _inputs_dim(part) if bits else None
        if inputs_dim is not None:
            progress(name)
            for weight_name in [key for key, one in part.named_parameters(recurse=False) if one.dim() == 3]:
                _QuantizedExperts(part, weight_name, inputs_dim)
        is_embedding = isinstance(part, nn.Embedding) and part.weight is table
        if not is_embedding and not is_quantizable(part):
            continue
        progress(name)
        key = id(part.weight)
        weight = known.get(key) or integers_of(name)
        if weight is None and bits == 0:
            continue
        weight = weight or quantize_weight(weight_matrix(part), bits, group)
        if is_embedding:
            known[key] = weight
        _replace_weight(part, weight)
        if is_embedding:
            _replace_class(part, nn.Embedding, _QuantizedEmbedding)
        elif isinstance(part, Conv1D):
            part.__class__ = _DynamicLinear if dynamic else _WeightOnlyLinear
        else:
            _replace_class(part, nn.Linear, _DynamicLinear if dynamic else _WeightOnlyLinear)
    return model
