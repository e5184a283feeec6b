# SPDX-License-Identifier: BSD-3-Clause
# The payload has ExecuTorch's format. Changed bytes cause an error at most.
from __future__ import annotations

import random
from contextlib import nullcontext

import pytest
import torch

from tests.backends.vulkan.device import needs_device, on_processor
from tests.backends.vulkan.networks import networks
from torchette.backends.vulkan import VkStorageType, VulkanPartitioner
from torchette.backends.vulkan.payload import read
from torchette.errors import FormatError, InputError, TorchetteError
from torchette.exir import to_edge_transform_and_lower
from torchette.exir.delegation.delegate import partitioner_named
from torchette.runtime import Runtime


def lower(name: str, options: dict | None = None, **lists):
    module, inputs = networks()[name]
    return to_edge_transform_and_lower(
        torch.export.export(module, inputs), partitioner=VulkanPartitioner(options, **lists)
    )


def payload_of(edge) -> bytes:
    (part,) = (
        one for one in edge.exported_program().graph_module.children() if hasattr(one, "processed_bytes")
    )
    return bytes(part.processed_bytes)


def test_payload_can_be_read_back():
    graph = read(payload_of(lower("perceptron")))
    assert [call.name for call in graph.chain] == [
        "aten.linear.default", "aten.gelu.default", "aten.linear.default", "aten.tanh.default",
    ]  # fmt: skip
    (source,), (result,) = graph.input_ids, graph.output_ids
    assert graph.values[source].value.dims == [9, 8] and graph.values[result].value.dims == [9, 4]
    assert graph.chain[-1].args[-1] == result
    assert len(graph.constants) == 4 and all(one.named_key for one in graph.constants)


def test_executorch_reads_the_payload():
    pytest.importorskip("executorch", reason="the peer is not installed")
    from executorch.backends.vulkan.serialization.vulkan_graph_serialize import (
        VulkanDelegateHeader,
        flatbuffer_to_vk_graph,
    )

    data = payload_of(lower("vision", {"force_fp16": True, "storage_type_override": VkStorageType["BUFFER"]}))
    header = VulkanDelegateHeader.from_bytes(data[: VulkanDelegateHeader.EXPECTED_LENGTH])
    theirs = flatbuffer_to_vk_graph(data[header.flatbuffer_offset :][: header.flatbuffer_size])
    ours = read(data)
    assert [call.name for call in theirs.chain] == [call.name for call in ours.chain]
    assert [call.args for call in theirs.chain] == [call.args for call in ours.chain]
    assert theirs.storage_type_override.name == "BUFFER"
    for their_value, our_value in zip(theirs.values, ours.values, strict=True):
        assert type(their_value.value).__name__ == type(our_value.value).__name__


@pytest.mark.parametrize("damage", [b"", b"VH00", bytes(64)])
def test_damaged_payload_is_refused(damage):
    with pytest.raises(FormatError, match="Vulkan payload"):
        read(damage)


def test_allowlists_and_blocklists_select_nodes():
    reasons = {}
    for lists in (
        {"operator_blocklist": [torch.ops.aten.gelu.default]},
        {"operator_allowlist": [torch.ops.aten.linear.default]},
        {"nn_module_blocklist": ["GELU"]},
        {"nn_module_allowlist": ["Linear"]},
    ):
        left = [item for item in lower("perceptron", **lists).delegation().placements if item.backend is None]
        reasons[next(iter(lists))] = {item.op: item.reasons["VulkanPartitioner"] for item in left}
    assert reasons["operator_blocklist"] == {"aten.gelu.default": ("operator_blocklist names it",)}
    assert set(reasons["operator_allowlist"]) == {"aten.gelu.default", "aten.tanh.default"}
    assert set(reasons["nn_module_blocklist"]) == {"aten.gelu.default"}
    assert set(reasons["nn_module_allowlist"]) == {"aten.gelu.default", "aten.tanh.default"}


def test_unknown_option_is_refused():
    with pytest.raises(InputError, match=r"'force_fp61'; did you mean force_fp16\?[\s\S]*skip_bool_tensors"):
        VulkanPartitioner({"force_fp61": True})


@needs_device
@pytest.mark.safety
@pytest.mark.parametrize("place", [nullcontext, on_processor])
@pytest.mark.parametrize("name", ["vision", "words", "shuffle", "groups"])
# Our kernels run a graph that the device refuses, with a warning.
@pytest.mark.filterwarnings("ignore:the program. method:RuntimeWarning")
def test_mutated_payload_is_refused_or_runs(name, place):
    edge = lower(name)
    inputs = list(networks()[name][1])
    data, blob = edge.to_executorch().buffer, payload_of(edge)
    at, dice, refused = data.index(blob), random.Random(name), 0
    with place():
        for _ in range(250):
            changed = bytearray(data)
            for _ in range(dice.randint(1, 4)):
                changed[at + dice.randrange(len(blob))] = dice.choice(
                    (0, 1, 0x7F, 0x80, 0xFF, dice.randrange(256))
                )
            try:
                Runtime.get().load_program(bytes(changed)).load_method("forward").execute(inputs)
            except TorchetteError:
                refused += 1
    assert refused > 50


def test_backend_is_found_by_its_name():
    assert type(partitioner_named("vulkan")) is VulkanPartitioner
