# SPDX-License-Identifier: BSD-3-Clause
# Each matmul, convolution, pooling, norm and softmax of the reference models in isolation: our kernel and eager alternate on one
# thread, minimum of several runs. Prints GFLOP/s per shape and the sum per model.
"""Usage: ``python -m benchmarks.kernels [--models resnet18,llama] [--threshold 0]``."""

from __future__ import annotations

import argparse
import collections
import functools
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.models import zoo
from torchette.runtime import _native

aten = torch.ops.aten
# functional overload -> name of the kernel; the schema provides defaults that eager's call may omit.
KERNELS = {
    aten.convolution.default: "aten::convolution.out",
    aten.mm.default: "aten::mm.out",
    aten.bmm.default: "aten::bmm.out",
    aten.addmm.default: "aten::addmm.out",
    aten.native_layer_norm.default: "aten::native_layer_norm.out",
    aten._softmax.default: "aten::_softmax.out",
    aten.max_pool2d_with_indices.default: "aten::max_pool2d_with_indices.out",
    aten.avg_pool2d.default: "aten::avg_pool2d.out",
}


def all_arguments(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    schema = op._schema.arguments
    return tuple(
        args[i] if i < len(args) else kwargs.get(a.name, a.default_value) for i, a in enumerate(schema)
    )


class Record(TorchDispatchMode):
    """Collects the calls of operators of interest: (operator, arguments) and how often."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[str, list[Any]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in KERNELS:
            arguments = all_arguments(func, args, kwargs or {})
            key = f"{func} " + " ".join(describe(a) for a in arguments)
            self.calls.setdefault(key, [0, func, arguments])[0] += 1
        return func(*args, **(kwargs or {}))


def describe(value: Any) -> str:
    if not isinstance(value, torch.Tensor):
        return str(value)
    return "x".join(map(str, value.shape)) + ("" if value.is_contiguous() else "T")


def flops(op: Any, arguments: tuple[Any, ...], out: torch.Tensor) -> float:
    if op is aten.convolution.default:
        weight, transposed = arguments[1], arguments[6]
        return 2.0 * weight[0].numel() * (arguments[0].numel() if transposed else out.numel())
    if op in (aten.mm.default, aten.bmm.default):
        return 2.0 * out.numel() * arguments[0].shape[-1]
    if op is aten.addmm.default:
        return 2.0 * out.numel() * arguments[1].shape[-1]
    return 0.0


def interleaved(
    kernel: Callable[[int], float], eager: Callable[[], Any], budget: float = 0.1, rounds: int = 9
) -> tuple[float, float]:
    """Returns the minimum seconds of one call of each side in alternating runs. `kernel` maps a number of runs to seconds."""
    eager()
    start = time.perf_counter()
    eager()
    once = max(time.perf_counter() - start, kernel(2) / 2, 1e-7)
    repeats = max(1, int(budget / rounds / 2 / once))
    best_kernel = best_eager = float("inf")
    for _ in range(rounds):
        best_kernel = min(best_kernel, kernel(repeats) / repeats)
        start = time.perf_counter()
        for _ in range(repeats):
            eager()
        best_eager = min(best_eager, (time.perf_counter() - start) / repeats)
    return best_kernel, best_eager


def time_kernel(name: str, arguments: tuple[Any, ...], repeats: int) -> float:
    return _native.time_kernel(name, repeats, *arguments)


def short(key: str) -> str:
    return key.replace("aten.", "").replace(".default", "").replace(" False", "").replace(" None", "")


@torch.no_grad()
def measure_calls(model: str, module: torch.nn.Module, args: Any, threshold: float) -> tuple[float, float]:
    record = Record()
    with record:
        module(*args)
    totals: dict[str, list[float]] = collections.defaultdict(lambda: [0.0, 0.0])
    print(f"\n{model}: {len(record.calls)} shapes")
    for key, (count, op, arguments) in record.calls.items():
        arguments = tuple(
            a.detach().clone() if isinstance(a, torch.Tensor) and a.is_contiguous() else a for a in arguments
        )
        positional = sum(
            not a.kwarg_only for a in op._schema.arguments
        )  # the other arguments are also defaults of eager
        call = arguments[:positional]
        result = op(*call)
        outs = [torch.empty_like(t) for t in ([result] if isinstance(result, torch.Tensor) else result)]
        kernel = functools.partial(time_kernel, KERNELS[op], (*arguments, *outs))
        ours, eager = interleaved(kernel, functools.partial(op, *call))
        for label in (op.__name__.split(".")[0], "all"):
            totals[label][0] += count * ours
            totals[label][1] += count * eager
        if eager / ours < threshold or not threshold:
            work = flops(op, arguments, outs[0])
            print(
                f"  {count:3} x {ours * 1e6:8.1f} us (eager {eager * 1e6:8.1f}) {eager / ours:5.2f}x"
                f" {work / ours * 1e-9:6.1f} GFLOP/s (eager {work / eager * 1e-9:6.1f})  {short(key)}"
            )
    for label, (ours, eager) in totals.items():
        print(f"  {label:28} {ours * 1e3:8.3f} ms, eager {eager * 1e3:8.3f} ms: {eager / ours:.2f}x")
    return totals["all"][0], totals["all"][1]


def measure(model: str, threshold: float) -> tuple[float, float]:
    return measure_calls(model, *zoo.build(model), threshold)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default=",".join(zoo.names()))
    parser.add_argument("--threshold", type=float, default=0.0, help="print only shapes with a smaller ratio")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for model in options.models.split(","):
        measure(model, options.threshold)


if __name__ == "__main__":
    main()
