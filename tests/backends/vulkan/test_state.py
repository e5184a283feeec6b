# SPDX-License-Identifier: BSD-3-Clause
# Mutable buffers stay on the device between calls: attention caches that are written in place, and other states.
from __future__ import annotations

import copy
import itertools
from contextlib import nullcontext

import pytest
import torch
from torch import nn

from tests.backends.vulkan.device import needs_device, on_processor
from tests.backends.vulkan.test_payload import payload_of
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.vulkan.payload import read
from torchette.exir import to_edge_transform_and_lower
from torchette.runtime import Runtime

pytestmark = needs_device


class Attention(nn.Module):
    """Attention of one token in each call, with a cache of keys and values."""

    def __init__(self, update: str) -> None:
        super().__init__()
        self.split, self.join, self.update = nn.Linear(8, 24), nn.Linear(8, 8), update
        self.register_buffer("keys", torch.zeros(1, 2, 6, 4))
        self.register_buffer("values", torch.zeros(1, 2, 6, 4))

    def forward(self, x, place):
        q, k, v = self.split(x).view(1, 1, 6, 4).transpose(1, 2).split(2, 1)
        for cache, new in ((self.keys, k), (self.values, v)):
            if self.update == "index_put":
                cache[:, :, place] = new
            else:
                cache.index_copy_(2, place, new)
        mask = torch.arange(6)[None] <= place[:, None]
        y = nn.functional.scaled_dot_product_attention(q, self.keys, self.values, attn_mask=mask)
        return self.join(y.transpose(1, 2).reshape(1, 1, 8))


class Sums(nn.Module):
    """A state that is read before and after its update, and shifted."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.ones(2, 3))
        self.register_buffer("last", torch.zeros(4, 3))

    def forward(self, x):
        before = self.last.t()
        self.total.add_(x)
        self.last.copy_(torch.cat([self.last[2:], x]))
        return before * 2, self.total - x, self.last


class Reads(nn.Module):
    """The old value is read after the new value is computed, so the state cannot be updated in place."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(3, 2))

    def forward(self, x):
        old = self.kept.clone()
        self.kept[1] = x
        return old.t() @ self.kept


def lower(module: nn.Module, inputs: tuple, **options):
    edge = to_edge_transform_and_lower(
        torch.export.export(module, inputs), partitioner=VulkanPartitioner(options)
    )
    assert [item.op for item in edge.delegation().placements if item.backend is None] == []
    return edge


def assert_goes_on(edge, module: nn.Module, calls: list[tuple], tolerance: float = 1e-4) -> None:
    """A method equals the module in each call. A second method, and a method after reset(), start with the initial state. Also on
    the processor."""
    program = Runtime.get().load_program(edge.to_executorch().buffer)
    for place, again in itertools.product((nullcontext, on_processor), range(3)):
        if again < 2:
            with place():
                method = program.load_method("forward")
        else:
            method.reset()
        eager = copy.deepcopy(module)
        for inputs in calls:
            with torch.no_grad():
                want = eager(*inputs)
            wants = want if isinstance(want, tuple) else (want,)
            for got, one in zip(method.execute(list(inputs)), wants, strict=True):
                torch.testing.assert_close(torch.as_tensor(got), one, atol=tolerance, rtol=tolerance)


@pytest.mark.parametrize("update", ["index_put", "index_copy"])
@pytest.mark.parametrize("half", [False, True])
def test_attention_cache_is_updated_in_place(update, half):
    torch.manual_seed(0)
    module = Attention(update).eval()
    calls = [(torch.randn(1, 1, 8), torch.tensor([i])) for i in range(6)]
    edge = lower(copy.deepcopy(module), calls[0], force_fp16=half)
    assert len(edge.exported_program().graph_signature.buffers_to_mutate) == 0  # the delegate contains them
    graph = read(payload_of(edge))
    (puts,) = ({call.args[0] == call.args[-1] for call in graph.chain if update in call.name},)
    assert puts == {True} and not any(call.name.split(".", 1)[1] == "copy.default" for call in graph.chain)
    assert_goes_on(edge, module, calls, 2e-2 if half else 1e-4)


@pytest.mark.parametrize("module", [Sums(), Reads()], ids=["sums", "reads"])
def test_other_states_equal_eager(module):
    calls = [(torch.randn(2, 3) if isinstance(module, Sums) else torch.randn(2),) for _ in range(4)]
    assert_goes_on(lower(copy.deepcopy(module), calls[0]), module, calls)
