# SPDX-License-Identifier: BSD-3-Clause
# In: networks, small ones and some of the zoo's. Out: what our graph does on Vulkan at each execution, beside what the graph
# of ExecuTorch's partitioner does: a count, which no device's speed changes.
"""Dispatches, barriers and bytes moved of our graph, and the calls, barriers and bytes of ExecuTorch's for the same network."""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from typing import Any

import torch

BYTES = {"FLOAT16": 2, "INT8": 1, "UINT8": 1, "BOOL": 1, "INT64": 8, "FLOAT64": 8}
ZOO = (
    "transformers/distilbert", "transformers/gpt2", "timm/deit_tiny_patch16_224", "torchvision/mobilenet_v2",
    "torchvision/resnet18",
)  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    from tests.backends.vulkan import device, networks
    from tests.models import architectures

    parser = argparse.ArgumentParser(prog="./dev bench vulkan", description=__doc__)
    parser.add_argument("networks", nargs="*", help="names; all by default")
    options = parser.parse_args(arguments)
    if not device.has_device():
        parser.error("there is no Vulkan device: ./dev tools installs one in software")
    logging.disable(logging.INFO)
    small = networks.networks()
    print(
        "| network | dispatches | theirs | ratio | barriers | theirs | MB moved | theirs | left outside by them |\n|---|"
        + "---:|" * 8
    )
    for name in options.networks or [*small, *ZOO]:
        module, args = small[name] if name in small else architectures.build(name)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ours, theirs = _ours(module, args), _theirs(module, args)
        print(
            f"| `{name}` | {ours[0]} | {theirs[0]} | {ours[0] / theirs[0]:.2f} | {ours[1]} | {theirs[1]} | {ours[2] / 1e6:.3g}"
            f" | {theirs[2] / 1e6:.3g} | {theirs[3]} |",
            flush=True,
        )
    return 0


def _ours(module: torch.nn.Module, args: tuple[Any, ...]) -> list[int]:
    """Dispatches, barriers and bytes, as the runtime recorded them."""
    from torchette.backends.vulkan import VulkanPartitioner
    from torchette.exir import to_edge_transform_and_lower
    from torchette.runtime import Runtime

    edge = to_edge_transform_and_lower(torch.export.export(module, args), partitioner=VulkanPartitioner())
    assert not [item for item in edge.delegation().placements if item.backend is None]
    Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    return [
        int(count)
        for count in Runtime.get().backend_registry.get_option("VulkanBackend", "counts").split(",")
    ]


def _theirs(module: torch.nn.Module, args: tuple[Any, ...]) -> tuple[int, int, int, int]:
    """Calls of operators but for those that prepare weights, of which each is a dispatch or more; how many of them have a
    barrier; the bytes of their tensors; and calls outside of its delegates.

    Its runtime keeps of each tensor whether it was written or read last, and puts a barrier before a dispatch that uses one
    that was written last: by the copy of an input, or by a call. The first write of an image needs one besides, to have
    its layout; these are not counted."""
    from executorch.backends.vulkan.partitioner.vulkan_partitioner import VulkanPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from torchette.backends.vulkan.payload import read

    edge = to_edge_transform_and_lower(torch.export.export(module, args), partitioner=[VulkanPartitioner({})])
    graph_module = edge.exported_program().graph_module
    calls = barriers = bytes_moved = 0
    for part in graph_module.children():
        if not hasattr(part, "processed_bytes"):
            continue
        graph = read(part.processed_bytes)
        written = set(graph.input_ids)
        for call in graph.chain:
            if call.name.startswith(("et_vk.prepack", "sym_size")):
                continue
            calls += 1
            used, results = set(call.args), {call.args[-1]}
            for number in [*used]:
                if type(one := graph.values[number].value).__name__ == "ValueList":
                    used |= {*one.items}
                    results |= {*one.items} if number in results else set()
            barriers += bool(used & written)
            written = written - used | results
            values = [graph.values[number].value for number in used]
            bytes_moved += sum(
                math.prod(one.dims) * BYTES.get(one.datatype.name, 4)
                for one in values
                if type(one).__name__ == "VkTensor"
            )
    outside = sum(
        node.op == "call_function"
        and "getitem" not in str(node.target)
        and "delegate" not in str(node.target)
        for node in graph_module.graph.nodes
    )
    return calls, barriers, bytes_moved, outside
