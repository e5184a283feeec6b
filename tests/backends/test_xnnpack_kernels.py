# SPDX-License-Identifier: BSD-3-Clause
"""XNNPACK's payload on our own kernels: nodes that no partitioner writes, what is refused, and what a build takes along.
Payloads are written by hand, for either runtime."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import export
from torch.nn import functional as F

import torchette
from tests.backends.xnnpack_cases import HAS_LIBRARY
from torchette.backends.xnnpack import XnnpackBackend, XnnpackPartitioner
from torchette.backends.xnnpack.payload import FP32, NONE, Payload
from torchette.build import delegates, kernels, selection
from torchette.errors import DelegationWarning, InputError, RuntimeLoadError, TorchetteError
from torchette.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import PreprocessResult
from torchette.exir.delegation.partitioners import AllNodePartitioner
from torchette.runtime import Method, Runtime

ROOT = Path(__file__).parents[2]
ours = pytest.mark.skipif(HAS_LIBRARY, reason="this build has XNNPACK's library")

Graph = Callable[[Payload, list[int], list[int]], None]


def _method(monkeypatch, graph: Graph, inputs: list, shapes: list) -> Method:
    """A method that is one call of this graph. `inputs`: shapes that it takes; `shapes`: of its results."""

    def preprocess(program, specs) -> PreprocessResult:
        payload = Payload(len(inputs) + len(shapes))
        given = [payload.value(shape, FP32, argument=i) for i, shape in enumerate(inputs)]
        made = [
            payload.value(shape, FP32, argument=len(inputs) + i, output=True)
            for i, shape in enumerate(shapes)
        ]
        graph(payload, given, made)
        data, named = payload.finish()
        return PreprocessResult(data, data_store_output=named)

    class Shaped(nn.Module):
        def forward(self, *args):
            total = sum(arg.sum() for arg in args)
            return tuple(total + torch.full(shape, i) for i, shape in enumerate(shapes))

    monkeypatch.setattr(XnnpackBackend, "preprocess", staticmethod(preprocess))
    program = export(Shaped(), tuple(torch.zeros(shape) for shape in inputs))
    edge = to_edge_transform_and_lower(program, partitioner=AllNodePartitioner("XnnpackBackend", []))
    return Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")


def _same(method: Method, args: list[torch.Tensor], *expected: torch.Tensor) -> None:
    for _ in range(2):  # the second execution finds what the first has left
        for got, wanted in zip(method.execute(args), expected, strict=True):
            torch.testing.assert_close(torch.as_tensor(got), wanted, rtol=1e-4, atol=1e-5)


def _window(**changes: int) -> dict[str, int]:
    names = "padding_top padding_right padding_bottom padding_left adjustment_height adjustment_width"
    ones = "subsampling_height subsampling_width dilation_height dilation_width groups"
    return {**dict.fromkeys(names.split(), 0), **dict.fromkeys(ones.split(), 1), **changes}


def test_slopes_of_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    x, slope = torch.randn(2, 3, 4, 5), torch.tensor([0.1, -2.0, 0.0, 1.0, 3.0])
    x[0, 0, 0] = torch.tensor([torch.inf, torch.nan, -1.0, -0.0, 5.0])

    def graph(payload: Payload, given: list[int], made: list[int]) -> None:
        fields = {
            "input1_id": given[0],
            "input2_id": payload.constant(slope),
            "output_id": made[0],
            "flags": 0,
        }
        payload.node("XNNPReLU", 0, **fields)

    method = _method(monkeypatch, graph, [x.shape], [x.shape])
    expected = torch.where(x > 0, x, x * slope)
    got = torch.as_tensor(method.execute([x])[0])
    torch.testing.assert_close(got, expected, equal_nan=True)


def test_attention_as_one_node(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = torch.randn(2, 3, 5, 8), torch.randn(2, 3, 7, 8), torch.randn(2, 3, 7, 6)
    scale, mask = torch.rand(8), torch.randn(5, 7)

    def graph(payload: Payload, given: list[int], made: list[int]) -> None:
        names = ("query_id", "key_id", "value_id")
        fields = dict(zip(names, given, strict=True))
        fields |= {"scale_id": payload.constant(scale), "mask_id": payload.constant(mask)}
        payload.node("XNNScaledDotProductAttention", 0, **fields, output_id=made[0], flags=0)

    method = _method(monkeypatch, graph, [query.shape, key.shape, value.shape], [(2, 3, 5, 6)])
    expected = F.scaled_dot_product_attention(query * scale, key, value, mask, scale=1.0)
    _same(method, [query, key, value], expected)


@pytest.mark.parametrize("multiplier", [1, 3, 17])
def test_channels_that_become_several(multiplier: int, monkeypatch: pytest.MonkeyPatch) -> None:
    weight, bias, x = (
        torch.randn(5 * multiplier, 1, 3, 2),
        torch.randn(5 * multiplier),
        torch.randn(2, 5, 7, 8),
    )
    expected = F.conv2d(F.pad(x, (1, 0, 2, 1)), weight, bias, (2, 1), groups=5).clamp(-0.5, 1.5)

    def graph(payload: Payload, given: list[int], made: list[int]) -> None:
        window = _window(padding_top=2, padding_left=1, padding_bottom=1, subsampling_height=2, groups=5)
        window |= {"kernel_height": 3, "kernel_width": 2, "group_input_channels": 1}
        payload.node(
            "XNNDepthwiseConv2d", 0, (-0.5, 1.5), **window, group_output_channels=multiplier, input1_id=given[0],
            filter_id=payload.constant(weight.permute(1, 2, 3, 0)), bias_id=payload.constant(bias),
            output_id=made[0], flags=0,
        )  # fmt: skip

    shape = expected.permute(0, 2, 3, 1).shape
    method = _method(monkeypatch, graph, [(2, 7, 8, 5)], [shape])
    _same(method, [x.permute(0, 2, 3, 1).contiguous()], expected.permute(0, 2, 3, 1))


def test_a_pool_whose_border_is_wider_than_half_of_its_window(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1, 4, 5, 6)

    def graph(payload: Payload, given: list[int], made: list[int]) -> None:
        names = (
            "pooling_height",
            "pooling_width",
            "stride_height",
            "stride_width",
            "dilation_height",
            "dilation_width",
        )
        sides = {"padding_top": 2, "padding_right": 1, "padding_bottom": 0, "padding_left": 2}
        numbers = dict(zip(names, (3, 3, 2, 1, 1, 1), strict=True))
        payload.node("XNNMaxPooling2d", 0, **sides, **numbers, input_id=given[0], output_id=made[0], flags=0)

    wide = F.pad(x, (2, 1, 2, 0), value=-torch.inf)
    expected = F.max_pool2d(wide, 3, (2, 1)).permute(0, 2, 3, 1)
    _same(
        _method(monkeypatch, graph, [(1, 5, 6, 4)], [expected.shape]),
        [x.permute(0, 2, 3, 1).contiguous()],
        expected,
    )


def test_values_that_share_memory_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reshaped value is the memory of another, which must live as long; and results that are read again."""
    x = torch.randn(4, 6)

    def graph(payload: Payload, given: list[int], made: list[int]) -> None:
        def unary(kind: str, source: int, to: int | None = None, shape: tuple[int, ...] = (4, 6)) -> int:
            to = payload.value(shape, FP32) if to is None else to
            payload.node(kind, 0, input_id=source, output_id=to, flags=0)
            return to

        once = unary("XNNAbs", given[0])
        flat = payload.value((24,), FP32)
        payload.node("XNNStaticReshape", 0, num_dims=1, new_shape=[0], input_id=once, output_id=flat, flags=0)
        last = given[0]
        for _ in range(3):  # others that would take the place of `once`
            last = unary("XNNNegate", unary("XNNSquare", last))
        unary("XNNNegate", flat, made[0], (24,))
        unary("XNNNegate", last, made[1])
        payload.node("XNNAdd", 0, input1_id=made[0], input2_id=flat, output_id=made[2], flags=0)

    method = _method(monkeypatch, graph, [(4, 6)], [(24,), (4, 6), (24,)])
    flat = -x.abs().flatten()
    got = [torch.as_tensor(each) for each in method.execute([x])]
    for each, wanted in zip(got, (flat, x**8, torch.zeros(24)), strict=True):
        torch.testing.assert_close(each, wanted, equal_nan=True)


def test_a_missing_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = torch.randn(6, 35), torch.randn(2, 3, 6)

    def graph(payload: Payload, given: list[int], made: list[int]) -> None:
        fields = {"input1_id": given[0], "filter_id": payload.constant(weight), "bias_id": NONE}
        payload.node(
            "XNNFullyConnected", 0, (0.0, 6.0), **fields, output_id=made[0], flags=1
        )  # [inputs, outputs]

    method = _method(monkeypatch, graph, [(2, 3, 6)], [(2, 3, 35)])
    _same(method, [x], F.relu6(x @ weight))


def _lowered(model: nn.Module, x: torch.Tensor, **config: bool):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        edge = to_edge_transform_and_lower(export(model.eval(), (x,)), partitioner=XnnpackPartitioner())
    return edge.to_executorch(ExecutorchBackendConfig(**config)).buffer


@ours
def test_what_needs_the_library_is_refused_by_name_and_falls_back() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(8, 4), nn.Sigmoid()).half(), torch.randn(3, 8).half()
    with pytest.raises(RuntimeLoadError, match="of type fp16, which needs XNNPACK's library") as refused:
        Runtime.get().load_program(_lowered(model, x)).load_method("forward")
    assert "./dev xnnpack" in str(refused.value) and "portable_fallback=True" in str(refused.value)
    program = Runtime.get().load_program(_lowered(model, x, portable_fallback=True))
    with pytest.warns(RuntimeWarning, match="portable"):
        method = program.load_method("forward")
    torch.testing.assert_close(torch.as_tensor(method.execute([x])[0]), model(x), rtol=1e-2, atol=1e-3)


@ours
def test_options_belong_to_the_library() -> None:
    registry = Runtime.get().backend_registry
    assert registry.get_option("XnnpackBackend", "library") is False
    with pytest.raises(InputError, match="num_threads"):
        registry.set_option("XnnpackBackend", num_threads=1)


@ours
def test_parts_of_a_call_are_told_under_their_kernels_names() -> None:
    model, x = nn.Sequential(nn.Linear(8, 4), nn.Sigmoid()), torch.randn(3, 8)
    method = Runtime.get().load_program(_lowered(model, x)).load_method("forward", tracing=True)
    method.execute([x])
    told = [event for event in method.take_events() if event.in_delegate]
    assert [event.name for event in told] == ["cpu::linear.out", "aten::sigmoid.out"]
    assert told[0].part is not None and told[0].part != told[1].part


def test_every_kind_of_node_has_kernels_that_exist() -> None:
    folder = ROOT / "torchette" / "backends" / "xnnpack"
    rows = dict(
        re.findall(r"^NODE\((\w+), \w+, (.*)\)$", (folder / "kernels" / "nodes.def").read_text(), re.M)
    )
    of_the_library = re.findall(r"\{Node::(\w+), &Builder", (folder / "nodes.cpp").read_text())
    assert sorted(rows) == sorted(of_the_library)
    assert {
        name for row in rows.values() for name in re.findall(r'"([^"]+)"', row)
    } <= kernels.library().keys()


def test_a_build_for_a_file_takes_what_its_nodes_call(tmp_path: Path) -> None:
    (tmp_path / "model.pte").write_bytes(
        _lowered(nn.Sequential(nn.Conv2d(2, 4, 3), nn.Tanh()), torch.randn(1, 2, 5, 5))
    )
    chosen = selection.of_file(tmp_path / "model.pte")
    assert chosen.backends == {"XnnpackBackend"}
    assert chosen.operators >= {"cpu::convolution.out", "aten::tanh.out", "aten::permute_copy.out"}
    assert not chosen.operators & {"aten::bmm.out", "cpu::linear.out"}
    assert delegates.operators("XnnpackBackend", memoryview(b"no payload")) == frozenset()


def test_a_program_of_any_batch_and_damaged_sizes() -> None:
    """What a tensor's sizes say at each call is held against the payload's."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(36, 3)).eval()
    x = torch.randn(4, 2, 5, 5)
    compiled = torchette.compile(
        model, (x,), dynamic_shapes=({0: torch.export.Dim("n", max=8)},), backend="xnnpack"
    )
    for count in (1, 8, 3, 0):
        some = torch.randn(count, 2, 5, 5)
        torch.testing.assert_close(compiled(some), model(some), rtol=1e-4, atol=1e-5)
    with pytest.raises(TorchetteError):
        compiled(torch.randn(9, 2, 5, 5))
