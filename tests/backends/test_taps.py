# SPDX-License-Identifier: BSD-3-Clause
# Intermediate results of delegates: an ETDump that requests them contains the result of each node under the node's debug handle,
# equal to the result of eager.

from __future__ import annotations

import inspect
import math
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.export import export

from tests.backends.vulkan.device import on_processor
from torchette.backends.null import NullPartitioner
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.devtools import Inspector
from torchette.exir import to_edge_transform_and_lower
from torchette.exir.graph import constants
from torchette.format import etdump
from torchette.runtime import Runtime
from torchette.schema import DTYPES


class Images(torch.nn.Module):
    """Values in NHWC, sequences as images, x * sigmoid(x) (one operator), and activations that may be fused."""

    def __init__(self) -> None:
        super().__init__()
        self.a = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.b = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.c = torch.nn.Linear(8, 4)
        self.d = torch.nn.Conv1d(4, 5, 3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.nn.functional.silu(self.a(x))
        z = torch.nn.functional.max_pool2d(torch.relu(self.b(y) + y), 2)
        w = torch.softmax(self.c(z.permute(0, 2, 3, 1)), -1)
        return torch.tanh(self.d(w.flatten(1, 2).transpose(1, 2))), w.sigmoid() * w


class Chain(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x + y) * y + x) * x


def inside(program: Any, args: tuple, folder: Path) -> tuple[list[Any], dict[int, np.ndarray], Any]:
    """Returns the outputs, the values by debug handle, and the run. A call that became several nodes has the last value."""
    loaded = Runtime.get().load_program(program.buffer, enable_etdump=True, debug_buffer_size=1 << 20)
    outputs = loaded.load_method("forward").execute(list(args))
    loaded.write_etdump_result_to_file(folder / "a.etdp", folder / "a.bin")
    data = (folder / "a.bin").read_bytes()
    run = etdump.load(folder / "a.etdp").run_data[-1]
    found = {}
    for event in (event.debug_event for event in run.events if event.debug_event):
        if (part := event.delegate_debug_id_int) != -1:
            tensor = event.debug_entry.tensor
            dtype = DTYPES[tensor.scalar_type].torch_name
            assert event.chain_index == 0
            flat = np.frombuffer(data, dtype, math.prod(tensor.sizes), tensor.offset)
            found[part] = flat.reshape(tensor.sizes)
    return outputs, found, run


def eager_inside(module: Any, args: tuple) -> dict[int, torch.Tensor]:
    """Returns the eager result of each node of a lowered program, by its debug handle."""
    program = module.original_module
    stored, given, found = constants(program), iter(args), {}

    class Noting(torch.fx.Interpreter):
        def run_node(self, node: torch.fx.Node) -> Any:
            result = super().run_node(node)
            if node.op == "call_function" and isinstance(result, torch.Tensor):
                found[node.meta["debug_handle"]] = result.detach()
            return result

    nodes = program.graph.find_nodes(op="placeholder")
    Noting(program.graph_module).run(*(stored[node] if node in stored else next(given) for node in nodes))
    return found


def lowered(model: torch.nn.Module, args: tuple, partitioner: Any, **more: Any) -> tuple[Any, Any]:
    edge = to_edge_transform_and_lower(export(model.eval(), args, **more), partitioner=[partitioner])
    graph = edge.exported_program().graph_module
    (node,) = graph.graph.find_nodes(op="get_attr")
    return getattr(graph, node.target), edge.to_executorch()


def compared_with_eager(
    module: Any,
    program: Any,
    model: torch.nn.Module,
    args: tuple,
    folder: Path,
    fused: dict[int, int] | None = None,
) -> tuple[dict[int, np.ndarray], Any]:
    """Compares the value of each node, and the outputs, with eager. Returns the values by debug handle, and the run.

    `fused`: handle of a node -> handle of the user that is fused with it. The node has the value of this user.
    """
    outputs, found, run = inside(program, args, folder)
    expected = eager_inside(module, args)
    for handle, user in (fused or {}).items():
        expected[handle] = expected.pop(user)
    assert found.keys() == expected.keys() and len(found) > 13
    for handle in found:
        torch.testing.assert_close(torch.tensor(found[handle]), expected[handle], rtol=1e-4, atol=1e-5)
    for output, wanted in zip(outputs, model(*args), strict=True):
        torch.testing.assert_close(torch.as_tensor(output), wanted, rtol=1e-4, atol=1e-5)
    return found, run


def test_taps_contain_each_node_of_an_xnnpack_graph(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Images(), (torch.randn(2, 3, 6, 4),)
    module, program = lowered(model, args, XnnpackPartitioner())
    (relu,) = module.original_module.graph.find_nodes(op="call_function", target=torch.ops.aten.relu.default)
    layer, clamp = (node.meta["debug_handle"] for node in (relu.args[0], relu))
    found, run = compared_with_eager(module, program, model, args, tmp_path, {layer: clamp})
    # the debug_handle_map of preprocess and the timed events have the same handles
    assert found.keys() <= module.meta["debug_handle_map"].keys()
    assert module.meta["debug_handle_map"][layer] == (layer, clamp)
    timed = {event.profile_event.delegate_debug_id_int for event in run.events if event.profile_event}
    assert found.keys() - timed <= {12}, "a view moves nothing"


def test_taps_have_the_sizes_of_the_call(tmp_path: Path) -> None:
    n = torch.export.Dim("n", min=1, max=9)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(2, 3, 1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(12, 2)
    )
    example, args = (torch.randn(4, 2, 2, 2),), (torch.randn(7, 2, 2, 2),)
    _, program = lowered(net, example, XnnpackPartitioner(), dynamic_shapes=({0: n},))
    _, found, _ = inside(program, args, tmp_path)
    wanted = net[1](net[0](args[0])).detach().numpy()
    assert any(it.shape == wanted.shape and np.allclose(it, wanted, atol=1e-5) for it in found.values())


def test_taps_are_absent_by_default(tmp_path: Path) -> None:
    _, program = lowered(Images(), (torch.randn(2, 3, 6, 4),), XnnpackPartitioner())
    loaded = Runtime.get().load_program(program.buffer, enable_etdump=True)
    loaded.load_method("forward").execute([torch.randn(2, 3, 6, 4)])
    loaded.write_etdump_result_to_file(tmp_path / "a.etdp")
    run = etdump.load(tmp_path / "a.etdp").run_data[-1]
    assert all(event.debug_event is None for event in run.events)


@pytest.mark.parametrize("backend", ["xnnpack", "vulkan"])
def test_profile_names_the_line_of_the_model_of_each_node(backend: str, tmp_path: Path) -> None:
    model, args = Images().eval(), (torch.randn(2, 3, 6, 4),)
    partitioner = {"xnnpack": XnnpackPartitioner, "vulkan": VulkanPartitioner}[backend]()
    lowered = to_edge_transform_and_lower(
        export(model, args), partitioner=[partitioner], generate_etrecord=True
    )
    program = lowered.to_executorch()
    program.get_etrecord().save(str(tmp_path / "record"))
    with on_processor() if backend == "vulkan" else nullcontext():
        loaded = Runtime.get().load_program(program.buffer, enable_etdump=True)
        loaded.load_method("forward").execute(list(args))
    loaded.write_etdump_result_to_file(tmp_path / "dump")
    inspector = Inspector(etdump_path=str(tmp_path / "dump"), etrecord=str(tmp_path / "record"))
    events = [event for block in inspector.event_blocks for event in block.events if event.is_delegated_op]
    lines, first = inspect.getsourcelines(Images.forward)
    named: dict[str, set[str]] = {}
    for event in events:
        for operator, trace in zip(event.op_types, event.stack_traces.values(), strict=True):
            (number,) = map(int, re.findall(rf'File "{re.escape(__file__)}", line (\d+), in forward', trace))
            named.setdefault(operator.split(".")[1], set()).add(lines[number - first].strip())
    returned = "return torch.tanh(self.d(w.flatten(1, 2).transpose(1, 2))), w.sigmoid() * w"
    assert len(named["convolution"]) == 3 and named["tanh"] == {returned}
    assert named["linear"] == named["_softmax"] == {"w = torch.softmax(self.c(z.permute(0, 2, 3, 1)), -1)"}


def test_executorch_runs_a_payload_with_taps() -> None:
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    torch.manual_seed(1)
    model, args = Images().eval(), (torch.randn(2, 3, 6, 4),)
    _, program = lowered(model, args, XnnpackPartitioner())
    found = peer._load_for_executorch_from_buffer(program.buffer).forward(args)
    for output, wanted in zip(found, model(*args), strict=True):
        torch.testing.assert_close(output, wanted, rtol=1e-4, atol=1e-5)


def test_taps_contain_each_node_of_a_vulkan_graph_without_a_device(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model, args = Images(), (torch.randn(2, 3, 6, 4),)
    module, program = lowered(model, args, VulkanPartitioner())
    with on_processor():
        found, run = compared_with_eager(module, program, model, args, tmp_path)
    assert found.keys() <= module.meta["debug_handle_map"].keys()
    timed = {event.profile_event.delegate_debug_id_int for event in run.events if event.profile_event}
    assert found.keys() <= timed


def test_taps_contain_each_instruction_of_the_null_backend(tmp_path: Path) -> None:
    args = (torch.arange(6.0).reshape(2, 3), torch.full((2, 3), 2.0))
    module, program = lowered(Chain(), args, NullPartitioner())
    _, found, _ = inside(program, args, tmp_path)
    expected = eager_inside(module, args)
    handles = module.meta["debug_handle_map"]  # the backend's id -> handles
    assert len(found) == 4 and found.keys() == handles.keys()
    for number, value in found.items():
        np.testing.assert_array_equal(value, expected[handles[number][-1]])


def test_taps_contain_integers_of_a_quantized_graph(tmp_path: Path) -> None:
    pytest.importorskip("torchao")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    from torchette.backends.xnnpack.pt2e_quantizer import XNNPACKQuantizer, get_symmetric_quantization_config

    torch.manual_seed(0)
    args = (torch.randn(2, 3, 6, 6),)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(128, 4)
    )
    quantizer = XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(export(net.eval(), args).module(), quantizer)
    prepared(*args)
    edge = to_edge_transform_and_lower(
        export(convert_pt2e(prepared), args), partitioner=[XnnpackPartitioner()]
    )
    graph = edge.exported_program().graph_module
    (node,) = graph.graph.find_nodes(op="get_attr")
    _, found, _ = inside(edge.to_executorch(), args, tmp_path)
    expected = eager_inside(getattr(graph, node.target), args)
    integers = [handle for handle, value in found.items() if value.dtype == np.int8]
    assert len(integers) >= 3
    for handle in integers:
        # may differ by one rounding
        assert np.abs(found[handle].astype(int) - expected[handle].numpy().astype(int)).max() <= 1
