# SPDX-License-Identifier: BSD-3-Clause
# In: small networks and some of the zoo. Out: the operations of Torchette's Vulkan graph in each execution, and those of the graph
# of ExecuTorch's partitioner. They are counts, which do not depend on the speed of a device.
"""Dispatches, barriers and bytes moved of Torchette's graph, and calls, barriers and bytes of ExecuTorch's graph, by network."""

from __future__ import annotations

import argparse
import logging
import math
import warnings
from collections import Counter
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
    parser.add_argument("networks", nargs="*", help="names; default: all")
    parser.add_argument(
        "--convolutions", action="store_true", help="loads of the dense convolutions, by layer"
    )
    options = parser.parse_args(arguments)
    if not device.has_device():
        parser.error("no Vulkan device found: ./dev tools installs a software device")
    logging.disable(logging.INFO)
    small = networks.networks()
    if options.convolutions:
        for name in options.networks or ["torchvision/resnet18"]:
            module, _ = architectures.build(name)
            _print_convolutions(module, (torch.zeros(1, 3, 224, 224),))
        return 0
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


def _print_convolutions(module: torch.nn.Module, args: tuple[Any, ...]) -> None:
    """Prints the loads of dense convolutions: of convolution.comp, one invocation for 4 channels of a pixel, and of
    convolution_tiled.comp on a discrete GPU. Loads count the elements that invocations request, before caches."""
    layers: Counter[tuple[int, ...]] = Counter()

    def count(layer: torch.nn.Module, inputs: tuple[torch.Tensor], result: torch.Tensor) -> None:
        assert isinstance(layer, torch.nn.Conv2d)
        if layer.groups == 1:
            pixels = result.shape[0] * result[0, 0].numel()
            layers[(layer.in_channels, layer.out_channels, *layer.kernel_size, pixels)] += 1

    for layer in module.modules():
        if isinstance(layer, torch.nn.Conv2d):
            layer.register_forward_hook(count)
    module(*args)
    print(
        "| in, out, kernel, pixels | layers | MMAC | workgroups | MB loaded | MAC / byte | workgroups | MB loaded | MB stored | MB shared | MAC / byte |"
    )
    print("|---|" + "---:|" * 10)
    total = [0.0] * 6
    for (inputs, channels, height, width, pixels), times in layers.items():
        depth = inputs * height * width
        macs = depth * channels * pixels
        invocations = pixels * math.ceil(channels / 4)
        direct = 4 * depth * invocations * 5  # one input, four weights
        # As tiling_of() of torchette/backends/vulkan/convolutions.cpp divides the work on a discrete GPU.
        rows = 4 if math.ceil(channels / 32) < 2 * math.ceil(channels / 64) else 8
        tiles = math.ceil(pixels / 64) * math.ceil(channels / (8 * rows))
        chunk = math.ceil(math.ceil(depth / max(min(256 // tiles, depth // 128), 1)) / 16) * 16
        parts = math.ceil(depth / chunk)
        divided = 4 * parts * channels * pixels if parts > 1 else 0
        tiled = 4 * depth * tiles * (64 + 8 * rows) + divided
        stored = 4 * channels * pixels + divided
        shared = 4 * depth * tiles * 128 * (4 + rows)
        for i, value in enumerate((macs, direct, tiled, stored, shared)):
            total[i] += times * value
        print(
            f"| {inputs}, {channels}, {height} x {width}, {pixels} | {times} | {macs / 1e6:.0f} | {math.ceil(invocations / 64)} | {direct / 1e6:.1f}"
            f" | {macs / direct:.2f} | {tiles * parts} | {tiled / 1e6:.1f} | {stored / 1e6:.2f} | {shared / 1e6:.0f} | {macs / tiled:.2f} |"
        )
    macs, direct, tiled, stored, shared, _ = total
    print(
        f"| all | {sum(layers.values())} | {macs / 1e6:.0f} | | {direct / 1e6:.0f} | {macs / direct:.2f} | | {tiled / 1e6:.0f} | {stored / 1e6:.1f}"
        f" | {shared / 1e6:.0f} | {macs / tiled:.2f} |"
    )


def _ours(module: torch.nn.Module, args: tuple[Any, ...]) -> list[int]:
    """Returns the dispatches, barriers and bytes that the runtime recorded."""
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
    """Counts the operations of ExecuTorch's graph.

    Returns:
        The calls of operators except those that prepare weights; each is one or more dispatches. The number of calls with a
        barrier. The bytes of their tensors. The calls outside of its delegates.

    ExecuTorch's runtime records for each tensor whether the last access was a read or a write. It inserts a barrier before a
    dispatch that uses a tensor after a write by a copy of an input or by a call. The first write of an image also needs a barrier
    for its layout; these are not counted.
    """
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
