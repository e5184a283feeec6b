# SPDX-License-Identifier: BSD-3-Clause
"""Every operator that the XNNPACK partitioner claims equals eager in every precision, for all cases of `xnnpack_cases.py`, batch
sizes 0, 1, 2 and 17, and values at the ends of the range of their type."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
import torch.ao.quantization.fx._decomposed  # declares torch.ops.quantized_decomposed
from torch import Tensor, nn
from torch.export import Dim, export

from tests.backends.xnnpack_cases import CASES, Case, N, of_the_library
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.backends.xnnpack.operators import OPERATORS
from torchette.errors import DelegationWarning
from torchette.exir import EdgeCompileConfig, to_edge_transform_and_lower
from torchette.runtime import Runtime

qd = torch.ops.quantized_decomposed
BATCHES = (2, 0, 1, 17)
# Cases in one program. More cases would make a fault slower to find.
_CASES_PER_PROGRAM = 40
SPECIAL = (math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0)
EXTREME = {
    torch.float32: (3e38, -3e38, 1e-30, -1e-30, 88.0, -104.0),
    torch.float16: (65504.0, -65504.0, 6e-5, -6e-5, 6e-8, 11.0, -17.0),
}
# Absolute and relative tolerance: eager rounds sums in another order, and exp and similar functions are polynomials.
TOLERANCE = {torch.float32: (1e-4, 2e-5), torch.float16: (1e-2, 1e-2)}
KEPT = (torch.ops.aten.silu.default,)  # otherwise it becomes two operators
# Operators that lowering replaces or removes before a partitioner runs. Programs in the Edge dialect may contain them.
EARLIER = (torch.ops.aten.squeeze_copy.dim, torch.ops.aten.clone.default)
SCALE, ZERO, SCALE_OUT, ZERO_OUT = 0.04, 3, 0.05, -7


def _stored(shape: Sequence[int], seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) / math.sqrt(max(shape[-1], 1))


class PrecisionModule(nn.Module):
    """Independent cases in one precision: "float", "computed" (weights are inputs), "per tensor", "per channel" (integers before
    and after each operator), "weights per tensor", "weights per channel", "weights of four bits" (only weights are integers),
    "dynamic" and "per token" (rows quantized at run time)."""

    def __init__(self, cases: Sequence[Case], precision: str, dtype: torch.dtype, batch: int) -> None:
        super().__init__()
        self.scales: dict[str, float] = {}
        self.cases, self.precision, self.dtype, self.batch = cases, precision, dtype, batch
        for i, case in enumerate(cases):
            for j, (shape, axis) in enumerate(case.weights):
                self._store(f"w{i}_{j}", _stored(shape, 100 * i + j), axis)

    def _store(self, name: str, value: Tensor, axis: int | None) -> None:
        quantized = axis is not None and self.precision not in ("float", "computed")
        if not quantized:
            self.register_buffer(name, value.to(self.dtype))
            return
        least, most = (-8, 7) if "four" in self.precision else (-128, 127)
        if self.precision.endswith("per tensor"):
            scale = value.abs().max().reshape(1) / most
            shaped = scale
            self.scales[name] = scale.item()
        else:
            scale = value.movedim(axis, 0).flatten(1).abs().amax(1) / most
            shaped = scale.reshape([-1 if dim == axis else 1 for dim in range(value.dim())])
        self.register_buffer(name, torch.round(value / shaped).clamp(least, most).to(torch.int8))
        self.register_buffer(f"{name}_scale", scale)
        self.register_buffer(f"{name}_zero", torch.zeros(len(scale), dtype=torch.int64))

    def _weight(self, name: str, axis: int | None) -> Tensor:
        stored = getattr(self, name)
        if not hasattr(self, f"{name}_scale"):
            return stored
        least, most = (-8, 7) if "four" in self.precision else (-128, 127)
        scale, zero = getattr(self, f"{name}_scale"), getattr(self, f"{name}_zero")
        if self.precision.endswith("per tensor"):
            return qd.dequantize_per_tensor(stored, self.scales[name], 0, least, most, torch.int8)
        return qd.dequantize_per_channel(stored, scale, zero, axis, least, most, torch.int8)

    def _in(self, x: Tensor) -> Tensor:
        if self.precision in ("per tensor", "per channel"):
            return _rounded(x, SCALE, ZERO)
        if self.precision == "dynamic":
            scale, zero = qd.choose_qparams(x, -128, 127, 1e-6, torch.int8)
            integers = qd.quantize_per_tensor.tensor(x, scale, zero, -128, 127, torch.int8)
            return qd.dequantize_per_tensor.tensor(integers, scale, zero, -128, 127, torch.int8)
        if self.precision == "per token":
            scale, zero = qd.choose_qparams_per_token_asymmetric(x, torch.int8)
            integers = qd.quantize_per_token(x, scale, zero, -128, 127, torch.int8)
            return qd.dequantize_per_token(integers, scale, zero, -128, 127, torch.int8, torch.float32)
        return x

    def _out(self, y: Any) -> Any:
        if self.precision not in ("per tensor", "per channel"):
            return y
        if isinstance(y, (tuple, list)):
            return [_rounded(part, SCALE, ZERO) for part in y]
        return _rounded(y, SCALE_OUT, ZERO_OUT)

    def inputs(self, batch: int, values: str, seed: int = 0) -> list[Tensor]:
        """Returns the inputs of all cases: "normal" values, or "special" values among them."""
        dice = torch.Generator().manual_seed(seed)
        tensors = []
        for i, case in enumerate(self.cases):
            for shape in case.shapes:
                x = torch.randn([batch if size == N else size for size in shape], generator=dice)
                if values == "special" and x.numel():
                    _insert_special_values(
                        x, case, self.dtype, self.precision not in ("float", "computed"), dice
                    )
                tensors.append(x.to(self.dtype))
            if self.precision == "computed":
                tensors += [getattr(self, f"w{i}_{j}") for j in range(len(case.weights))]
        return tensors

    def varies(self) -> list[dict[int, Any]]:
        """Returns the dynamic dimensions of the inputs: the batch."""
        size = Dim("n", max=max(BATCHES))
        dims: list[dict[int, Any]] = []
        for case in self.cases:
            dims += [{dim: size for dim, n in enumerate(shape) if n == N} for shape in case.shapes]
            dims += [{}] * (len(case.weights) if self.precision == "computed" else 0)
        return dims

    def forward(self, *tensors: Tensor) -> list[Tensor]:
        rejected, results = list(tensors), []
        for i, case in enumerate(self.cases):
            inputs = [self._in(rejected.pop(0)) for _ in case.shapes]
            if self.precision == "computed":
                weights = [rejected.pop(0) for _ in case.weights]
            else:
                weights = [self._weight(f"w{i}_{j}", axis) for j, (_, axis) in enumerate(case.weights)]
            result = self._out(case.call(*inputs, *weights))
            results += result if isinstance(result, (tuple, list)) else [result]
        return results


def _rounded(x: Tensor, scale: float, zero: int) -> Tensor:
    if not x.is_floating_point():  # indices of a maximum
        return x
    integers = qd.quantize_per_tensor(x, scale, zero, -128, 127, torch.int8)
    return qd.dequantize_per_tensor(integers, scale, zero, -128, 127, torch.int8)


def _insert_special_values(
    x: Tensor, case: Case, dtype: torch.dtype, quantized: bool, dice: torch.Generator
) -> None:
    """Writes special values into `x`: into half of its elements, or into one element of each sample in the order of SPECIAL."""
    is_any = case.values == "any"
    kinds = [*SPECIAL, *(EXTREME[dtype] if is_any else ())]
    if case.values == "moderate":
        kinds = [kind for kind in kinds if not abs(kind) > 1e4]
    if quantized:  # torch does not define the quantized value of NaN
        kinds = [0.0, -0.0, 3.0, -3.0, 1e4, -1e4]
    if is_any:
        replacements = torch.tensor(kinds)[torch.randint(len(kinds), x.shape, generator=dice)]
        chosen = torch.rand(x.shape, generator=dice) < 0.5
    else:
        rows = x.reshape(len(x), -1) if x.dim() else x.reshape(1, 1)
        position = torch.randint(rows.shape[1], (len(rows), 1), generator=dice)
        chosen = (torch.arange(rows.shape[1]) == position).reshape(x.shape)
        of_rows = torch.tensor(kinds)[torch.arange(len(rows)) % len(kinds)]
        replacements = of_rows[:, None].expand_as(rows).reshape(x.shape)
    x[chosen] = replacements[chosen]


def lower(module: PrecisionModule, dynamic: bool) -> Any:
    args = tuple(module.inputs(module.batch, "normal"))
    shapes = {"tensors": tuple(module.varies())} if dynamic else None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        program = export(module, args, dynamic_shapes=shapes)
        return program, to_edge_transform_and_lower(
            program, partitioner=XnnpackPartitioner(), compile_config=EdgeCompileConfig(preserve_ops=KEPT)
        )


def check_cases(
    cases: Sequence[tuple[Any, Case]], precision: str, dtype: torch.dtype, batches: Iterable[int] | None
) -> None:
    """Lowers, loads, executes and compares. `batches`: the sizes for one program with a dynamic batch; None: a static batch of 2."""
    module = PrecisionModule([case for _, case in cases], precision, dtype, 2).eval()
    program, edge = lower(module, batches is not None)
    reference = program.module()
    if precision == "float" and dtype is torch.float32 and batches is None:
        _check_delegation(cases, edge)
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    rtol, atol = TOLERANCE[dtype]
    if precision in ("per tensor", "per channel"):
        rtol, atol = 0, SCALE_OUT * 1.01  # integers round either way
    elif precision in ("dynamic", "per token"):
        rtol, atol = 0.05, 0.05  # XNNPACK quantizes each row separately and rounds differently
    texts = [f"{target} {case.text}" for target, case in cases]
    for batch in batches or (2,):
        # XNNPACK quantizes each row, the graph quantizes the tensor. With an outlier the results would differ.
        for values in ("normal",) if precision == "dynamic" else ("normal", "special"):
            args = module.inputs(batch, values, seed=batch)
            with torch.no_grad():
                expected = reference(*args)
                owners = [
                    text
                    for text, case in zip(texts, module.cases, strict=True)
                    for _ in range(_results(case, batch, dtype))
                ]
            results = [torch.as_tensor(result) for result in method.execute(args)]
            assert len(owners) == len(results) == len(expected)
            mismatches = []
            for owner, actual, expected_tensor in zip(owners, results, expected, strict=True):
                assert actual.shape == expected_tensor.shape and actual.dtype == expected_tensor.dtype, owner
                mismatch = ~torch.isclose(actual, expected_tensor, rtol=rtol, atol=atol, equal_nan=True)
                if mismatch.any():
                    mismatches.append(
                        f"{owner}: {actual[mismatch][:4].tolist()}, eager: {expected_tensor[mismatch][:4].tolist()}"
                    )
            assert not mismatches, (precision, dtype, batch, values, mismatches)


def _results(case: Case, batch: int, dtype: torch.dtype) -> int:
    inputs = [torch.zeros([1 if size == N else size for size in shape], dtype=dtype) for shape in case.shapes]
    result = case.call(*inputs, *(torch.zeros(shape, dtype=dtype) for shape, _ in case.weights))
    return len(result) if isinstance(result, (tuple, list)) else 1


def _check_delegation(cases: Sequence[tuple[Any, Case]], edge: Any) -> None:
    """Checks that each kind of node is delegated, except in cases with `refused`."""
    for target in dict.fromkeys(target for target, _ in cases):
        target_cases = [case for kind, case in cases if kind == target]
        placements = [item for item in edge.delegation().placements if item.op == str(target)]
        rejected = [item for item in placements if item.backend is None]
        assert all(any(item.reasons.values()) for item in rejected), target
        reasons = [str(item.reasons) for item in rejected]
        for case in target_cases:
            if case.refused is not None:
                assert any(case.refused in reason for reason in reasons), (str(target), case.text, reasons)
        expected = {case.refused for case in target_cases if case.refused is not None}
        unexpected = [reason for reason in reasons if not any(part in reason for part in expected)]
        assert not unexpected, (str(target), unexpected)
        assert len(placements) > len(rejected) or target in EARLIER, f"{target}: no case of it is delegated"


def test_every_operator_has_cases() -> None:
    assert {str(target) for target in CASES} == {str(target) for target in OPERATORS}


def _all(precision: str, dtype: torch.dtype = torch.float32) -> list[tuple[Any, Case]]:
    weighted = precision == "computed" or precision.startswith("weights")
    quantized, layers = precision in ("per tensor", "per channel"), precision in ("dynamic", "per token")
    return [
        (target, case)
        for target, cases in CASES.items()
        for case in cases
        if (case.weights or not weighted)
        and (case.quantized or not quantized)
        and (case.halves or dtype is not torch.float16)
        and (target == torch.ops.aten.linear.default or not layers)
        and "half" not in case.text  # float16 is computed in float32
    ]


def _parts(precision: str, dtype: torch.dtype, dynamic: bool) -> list[list[tuple[Any, Case]]]:
    """Returns the cases of each program. Separate programs for cases with other results: a delegate skips a batch of 0."""
    cases = _all(precision, dtype)
    if dynamic:
        cases = [(target, case) for target, case in cases if any(N in shape for shape in case.shapes)]
    return [cases[i : i + _CASES_PER_PROGRAM] for i in range(0, len(cases), _CASES_PER_PROGRAM)]


FULL = (
    "float", "computed", "per tensor", "per channel", "weights per tensor", "weights per channel", "weights of four bits",
    "dynamic", "per token",
)  # fmt: skip


def _programs(
    precisions: Iterable[str], dtype: torch.dtype, dynamic: bool
) -> list[tuple[str, torch.dtype, bool, int]]:
    return [
        (precision, dtype, dynamic, part)
        for precision in precisions
        for part in range(len(_parts(precision, dtype, dynamic)))
    ]


@pytest.mark.parametrize("part", range(len(_parts("float", torch.float32, True))))
def test_floats_of_every_batch_equal_eager(part: int) -> None:
    check_cases(_parts("float", torch.float32, True)[part], "float", torch.float32, BATCHES)


@pytest.mark.parametrize(
    "precision", ["per tensor", "weights per channel", "weights of four bits", "per token"]
)
def test_quantized_layers_equal_the_graph_that_they_come_from(precision: str) -> None:
    layers = (torch.ops.aten.linear.default, torch.ops.aten.convolution.default)
    check_cases([case for case in _all(precision) if case[0] in layers], precision, torch.float32, None)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("precision", "dtype", "dynamic", "part"),
    [
        *_programs(FULL, torch.float32, False),
        *_programs(FULL[1:], torch.float32, True),
        *_programs(["float"], torch.float16, False),
        *_programs(["float"], torch.float16, True),
    ],
)
def test_every_precision_equals_eager(precision: str, dtype: torch.dtype, dynamic: bool, part: int) -> None:
    # torch refuses the minimum of an empty tensor
    batches = [batch for batch in BATCHES if batch > 0 or precision != "dynamic"]
    check_cases(_parts(precision, dtype, dynamic)[part], precision, dtype, batches if dynamic else None)


# Operators of which XNNPACK's library runs at least one case.
ON_THE_LIBRARY = {
    "add.Tensor", "convolution.default", "linear.default", "mul.Tensor", "sigmoid.default", "tanh.default", "cat.default",
    "bmm.default", "_softmax.default", "relu.default", "gelu.default", "constant_pad_nd.default", "slice_copy.Tensor",
}  # fmt: skip


@pytest.mark.slow
@of_the_library
@pytest.mark.parametrize("target", CASES, ids=str)
def test_library_runs_only_operators_that_equal_eager(target: Any) -> None:
    """Each case is a separate program, so that a node that only our kernels run does not move other nodes to our kernels."""
    registry = Runtime.get().backend_registry
    ran_on_the_library = 0
    for case in CASES[target]:
        if case.refused is not None or "half" in case.text:
            continue
        module = PrecisionModule([case], "float", torch.float32, 2).eval()
        program, edge = lower(module, True)
        method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
        ran_on_the_library += registry.get_option("XnnpackBackend", "last_payload") == "XNNPACK's library"
        for batch, seed in ((2, 0), (17, 1), (1, 2), (17, 3)):
            args = module.inputs(batch, "special", seed)
            for actual, expected_tensor in zip(method.execute(args), program.module()(*args), strict=True):
                rtol, atol = TOLERANCE[torch.float32]
                torch.testing.assert_close(
                    torch.as_tensor(actual), expected_tensor, rtol=rtol, atol=atol, equal_nan=True,
                    msg=lambda text, case=case: f"{target} {case.text}: {text}",
                )  # fmt: skip
    assert ran_on_the_library or str(target).removeprefix("aten.") not in ON_THE_LIBRARY
