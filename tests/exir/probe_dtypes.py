# SPDX-License-Identifier: BSD-3-Clause
# In: torch's sample database, eager and the kernels of this build. Out: torchette/exir/dialects/edge/dtypes.txt, which
# says of each operator which dtypes its tensors may have. `python tests/exir/probe_dtypes.py` writes it, --check compares.
"""Calls every operator of the Edge dialect with every dtype, in eager and as a kernel, and notes what went well."""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # eager warns of uint8 masks at every call

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from torchette.exir import dialects, ops
from torchette.exir.dialects.edge import dtypes
from torchette.exir.emit.calls import signature
from torchette.exir.emit.records import plain
from torchette.runtime import _native, operator_names

aten = torch.ops.aten
TABLE = Path(dtypes.__file__).with_name("dtypes.txt")
COMMAND = ".venv/bin/python tests/exir/probe_dtypes.py"
HEADER = f"""\
# Measured, not written: `{COMMAND}`.
# operators = the dtypes of their tensors and results that a kernel takes / those that only eager takes
# {" ".join(f"{letter} {str(dtype).removeprefix('torch.')}" for letter, dtype in dtypes.DTYPES.items())}, - not given
"""
PER_SHAPE = 2

Call = tuple[tuple, dict[str, Any]]


def edge_operators() -> list[torch._ops.OpOverload]:
    """What a program in the Edge dialect may call, and every operator that a kernel of this build runs."""
    named = {}
    for op in ops.all_aten():
        variant = None if ops.is_mutating(op) or ops.is_view(op) else ops.out_variant(op)
        runs = variant is not None and kernel_of(op) is not None
        if runs or (not ops.is_mutating(op) and dialects.EDGE.accepts(op) and not ops.is_symbolic(op)):
            named[str(op)] = op
    for op in (ops.to_dim_order_copy, ops.clone_dim_order):
        named[str(op)] = op
    yields = [op for op in named.values() if any("Tensor" in str(r.type) for r in op._schema.returns)]
    return [op for op in yields if not ops.is_random(op)]


def kernel_of(op: torch._ops.OpOverload) -> str | None:
    """The name of the kernel that runs an operator."""
    variant = ops.out_variant(op)
    name = ".".join(filter(None, ops.kernel_name(variant))) if variant is not None else ""
    return name if name in operator_names() else None


def name_of(op: torch._ops.OpOverload) -> str:
    """The name of an operator in the table."""
    return ".".join(filter(None, (op._schema.name, op._schema.overload_name)))


class _Recorder(TorchDispatchMode):
    """Keeps, of every operator that is called, a few calls of each shape of arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: dict[Any, list[Call]] = {}
        self._count: dict[Any, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for op in {func, ops.copying(func) or func}:
            leaves, tree = pytree.tree_flatten((args, kwargs))
            kinds = tuple(
                type(x).__name__ + (str(x.dtype) if isinstance(x, torch.Tensor) else "") for x in leaves
            )
            key = (op, kinds, str(tree))
            sizes = [x.numel() for x in leaves if isinstance(x, torch.Tensor)]
            if self._count.get(key, 0) < PER_SHAPE and all(0 < size < 5000 for size in sizes):
                self._count[key] = self._count.get(key, 0) + 1
                copied = [x.detach().clone() if isinstance(x, torch.Tensor) else x for x in leaves]
                self.calls.setdefault(op, []).append(pytree.tree_unflatten(copied, tree))
        return func(*args, **kwargs)


def database(dtypes_of_samples: Iterable[torch.dtype], count: int) -> Iterator[Callable[[], Any]]:
    """Calls of torch's sample database, so many of each operator and dtype; a call may fail, as some are meant to."""
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        if info.name.startswith(("linalg.", "special.", "sparse.", "masked.")):
            continue
        for dtype in dtypes_of_samples:
            if dtype in info.dtypes:
                with contextlib.suppress(Exception):
                    for sample in itertools.islice(info.sample_inputs("cpu", dtype), count):
                        yield functools.partial(info, sample.input, *sample.args, **sample.kwargs)


def recorded() -> dict[Any, list[Call]]:
    """Operator -> calls of it that torch's sample database leads to, and those of SAMPLES."""
    torch.manual_seed(0)
    with torch.no_grad(), warnings.catch_warnings(), _Recorder() as recorder:
        warnings.simplefilter("ignore")
        for call in database((torch.float32, torch.int64, torch.bool), 6):
            with contextlib.suppress(Exception):
                call()
    with recorder, torch.enable_grad():
        _trained()
    for op, calls in samples().items():
        recorder.calls.setdefault(op, []).extend(calls)
    return recorder.calls


class _Refused(TorchDispatchMode):
    """Notes the calls that work and that the table has no place for."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: set[str] = set()
        self.seen = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        results = func(*args, **kwargs)
        for op in {func, ops.copying(func) or func}:
            known = None if ops.is_mutating(op) or ops.is_view(op) else dtypes.constraint(op._schema)
            empty = any(
                isinstance(x, torch.Tensor) and not x.numel() for x in pytree.tree_leaves((args, kwargs))
            )
            if known is None or empty:
                continue
            row = dtypes.row(op._schema, args, kwargs, results)
            # Operands of different dtypes are cast before they meet.
            given = {letter for name, letter in zip(known.names, row, strict=True) if "__ret_" not in name}
            mixed = (
                ops.is_pointwise(op) and op not in dialects.MIXED and len(given - {"?", dtypes.ABSENT}) > 1
            )
            if mixed or {*row} & {dtypes.FOREIGN, dtypes.SEVERAL}:
                continue
            self.seen += 1
            kernel = kernel_of(op)
            runs = kernel is None or known.runs(row) or not _runs(op, kernel, args, kwargs, results)
            if not (known.takes(row) and runs):
                self.rows.add(f"{name_of(op)} {row}")
        return results


def wrongly_refused() -> tuple[int, set[str]]:
    """(how many calls of the database were looked at, operators and dtypes of those that work and are refused)."""
    torch.manual_seed(1)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mode = _Refused()
        for call in database(dtypes.DTYPES.values(), 12):
            with mode, contextlib.suppress(Exception):
                call()
    return mode.seen, mode.rows


def _trained() -> None:
    """Layers of which torch has backward operators, and others that the database does not reach in every rank."""
    f = torch.nn.functional
    table, norm = torch.rand(4, 2, requires_grad=True), torch.rand(2, requires_grad=True)
    line, image, volume = (torch.rand(1, 2, *[4] * rank, requires_grad=True) for rank in (1, 2, 3))
    results = [f.embedding(torch.tensor([1, 2]), table), f.layer_norm(table, [2], norm, norm)]
    for x, convolve, average, biggest, adapt in (
        (line, f.conv1d, f.avg_pool1d, f.max_pool1d, f.adaptive_avg_pool1d),
        (image, f.conv2d, f.avg_pool2d, f.max_pool2d, f.adaptive_avg_pool2d),
        (volume, f.conv3d, f.avg_pool3d, f.max_pool3d, f.adaptive_avg_pool3d),
    ):
        weight = torch.rand(2, 2, *[3] * (x.dim() - 2), requires_grad=True)
        results += [
            convolve(x, weight, norm),
            average(x, 2),
            biggest(x, 2),
            adapt(x, 2),
            f.group_norm(x, 1, norm, norm),
        ]
        results += [f.interpolate(x, scale_factor=2, mode=mode) for mode in ("nearest", "nearest-exact")]
    for mode in ("bilinear", "bicubic"):
        results += [
            f.interpolate(image, size=(8, 6), mode=mode, antialias=smooth) for smooth in (False, True)
        ]
    results.append(f.interpolate(volume, size=(8, 6, 4), mode="trilinear"))
    for y in results:
        y.sum().backward()


def samples() -> dict[Any, list[Call]]:
    """Calls of operators that eager on samples does not come by."""
    x = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    image = torch.arange(32.0).reshape(1, 2, 4, 4) + 1
    volume = torch.arange(64.0).reshape(1, 1, 4, 4, 4) + 1
    two = torch.tensor([1.0, 2.0])
    index = torch.tensor([[0, 1, 0]])
    square, pivots = torch.tensor([[2.0, 1.0], [1.0, 3.0]]), torch.tensor([1, 2], dtype=torch.int32)
    found: dict[Any, list[Call]] = {
        aten.linear.default: [((x, x, two), {}), ((x, x), {})],
        aten._native_batch_norm_legit.no_stats: [((image, two, two, True, 0.1, 1e-5), {})],
        aten._native_batch_norm_legit_no_training.default: [((image, two, two, two, two, 0.1, 1e-5), {})],
        aten.copy.default: [((x, x), {})],
        aten.div.Tensor_mode: [((x, x), {"rounding_mode": mode}) for mode in (None, "trunc", "floor")],
        aten.clamp_max.default: [((x, 2), {})],
        aten.fill.Tensor: [((x, torch.tensor(2.0)), {})],
        aten.avg_pool1d.default: [((x, [2]), {})],
        aten.adaptive_avg_pool1d.default: [((x, [2]), {})],
        aten._embedding_bag.default: [
            ((x, torch.tensor([0, 1]), torch.tensor([0]), False, 0, False, None), {})
        ],
        aten.col2im.default: [((torch.ones(1, 4, 4), [3, 3], [2, 2], [1, 1], [0, 0], [1, 1]), {})],
        aten.upsample_nearest2d.vec: [((image, [8, 8], None), {})],
        aten.upsample_bilinear2d.vec: [((image, [8, 8], False, None), {})],
        aten.scatter.value: [((x, 0, index, 2), {})],
        aten.searchsorted.Tensor: [
            ((two, x), {"out_int32": narrow, "sorter": order})
            for narrow in (False, True)
            for order in (None, torch.tensor([0, 1]))
        ],
        aten.scatter.value_reduce: [((x, 0, index, 2), {"reduce": "add"})],
        aten.var.default: [((x,), {})],
        aten.var.dim: [((x, [0]), {})],
        aten.reflection_pad2d.default: [((image, [1, 1, 1, 1]), {})],
        aten.reflection_pad3d.default: [((volume, [1, 1, 1, 1, 1, 1]), {})],
        aten.replication_pad2d.default: [((image, [1, 1, 1, 1]), {})],
        aten.replication_pad3d.default: [((volume, [1, 1, 1, 1, 1, 1]), {})],
        aten.linalg_lu_solve.default: [((square, pivots, square), {})],
        aten.linalg_ldl_solve.default: [((square, pivots, square), {})],
        aten.lu_unpack.default: [((square, pivots), {})],
        aten.linalg_solve_triangular.default: [((square, square), {"upper": True})],
        aten.ormqr.default: [((square, two, square), {})],
        ops.to_dim_order_copy: [((x,), {"dim_order": [0, 1]})],
        ops.clone_dim_order: [((x,), {"dim_order": [0, 1]})],
    }
    return found


def generic(op: torch._ops.OpOverload) -> list[Call]:
    """A call made from the schema alone, which is right for operators on elements."""
    values = {
        "Tensor": torch.tensor([[1.0, 2.0], [3.0, 4.0]]),
        "number": 2,
        "int": 0,
        "float": 1.0,
        "bool": False,
    }
    args: list[Any] = []
    kwargs = {}
    for argument in op._schema.arguments:
        if argument.has_default_value() or ops.writes(argument):
            continue
        value = values.get(str(argument.type))
        if str(argument.type) == "Optional[str]" and argument.name == "rounding_mode":
            value = "floor"
        if argument.kwarg_only:
            kwargs[argument.name] = value
        else:
            args.append(value)
    return [(tuple(args), kwargs)]


def variants(op: torch._ops.OpOverload, call: Call) -> Iterator[Call]:
    """A call in all dtypes: operands that pointwise operators combine change together, others one by one as well."""
    args, kwargs = call
    leaves, tree = pytree.tree_flatten((args, kwargs))
    numbers, typed = _numbers(op, args), _dtype_argument(op, args)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    lists = any("Tensor[]" in str(a) for a in op._schema.arguments)
    together = lists or (ops.is_pointwise(op) and op not in dialects.MIXED)
    for chosen in _dtypes_of(op, [leaves[i].dtype for i in at], together):
        cast = list(leaves)
        for i, dtype in zip(at, chosen, strict=True):
            cast[i] = _in_dtype(leaves[i], dtype)
        given, named = pytree.tree_unflatten(cast, tree)
        for position, number in numbers:
            changed = given if position is None else (*given[:position], number, *given[position + 1 :])
            yield changed, named
            for dtype in dtypes.DTYPES.values() if typed is not None else ():
                if isinstance(typed, int):
                    yield (*changed[:typed], dtype, *changed[typed + 1 :]), named
                else:
                    yield changed, {**named, typed: dtype}


def _dtype_argument(op: torch._ops.OpOverload, args: tuple) -> int | str | None:
    """Where a call says which dtype it wants: a position, a name, or nowhere."""
    for position, argument in enumerate(op._schema.arguments):
        if argument.name == "dtype":
            return position if position < len(args) and not argument.kwarg_only else "dtype"
    return None


def _numbers(op: torch._ops.OpOverload, args: tuple) -> list[tuple[int | None, Any]]:
    for position, argument in enumerate(op._schema.arguments[: len(args)]):
        if str(argument.type) == "number":
            return [(position, number) for number in (2, 2.5, True)]
    return [(None, None)]


def _dtypes_of(op: Any, before: list[torch.dtype], together: bool) -> Iterator[tuple[torch.dtype, ...]]:
    """The dtypes to give to tensors that have these in the sample. Two tensors get all pairs. More, or those of a
    pointwise operator, change with those that have the same dtype in the sample; where they need not be of one dtype,
    each of them also alone."""
    every = list(dtypes.DTYPES.values())
    if len(before) <= 2 and not together:
        yield from itertools.product(every, repeat=len(before))
        return
    groups = list(dict.fromkeys(before))[:2]
    rows = {}
    for chosen in itertools.product(every, repeat=len(groups)):
        row = tuple(dict(zip(groups, chosen, strict=True)).get(dtype, dtype) for dtype in before)
        rows[row] = None
        if not together and len(groups) == 1:
            for i, other in itertools.product(range(len(before)), every):
                rows[(*row[:i], other, *row[i + 1 :])] = None
    yield from rows


def _in_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if tensor.dtype == dtype:
        return tensor
    if not tensor.is_floating_point() or dtype.is_floating_point or dtype.is_complex:
        return tensor.to(dtype)
    # Whole numbers that can be divided by and raised to.
    return tensor.nan_to_num(1, 1, 1).abs().clamp(1, 100).to(dtype)


def probe(op: torch._ops.OpOverload, calls: Iterable[Call]) -> tuple[set[str], set[str]]:
    """(combinations that a kernel takes, those that eager takes) among the variants of some calls."""
    kernel = kernel_of(op)
    runs: set[str] = set()
    legal: set[str] = set()
    for call in calls:
        for args, kwargs in variants(op, call):
            try:
                results = op(*args, **kwargs)
            except Exception:  # what eager refuses is what this measures
                continue
            row = dtypes.row(op._schema, args, kwargs, results)
            if set(row) & {dtypes.FOREIGN, dtypes.SEVERAL}:
                continue
            legal.add(row)
            if kernel is not None and row not in runs and _runs(op, kernel, args, kwargs, results):
                runs.add(row)
    return runs, legal


def _runs(op: Any, kernel: str, args: tuple, kwargs: dict[str, Any], results: Any) -> bool:
    variant = ops.out_variant(op)
    several = isinstance(results, (list, tuple))
    outs = [torch.empty(out.shape, dtype=out.dtype) for out in (results if several else [results])]
    arguments = signature(variant)
    listed = several and sum(argument.is_out for argument in arguments) == 1
    try:
        given = [_given(a, i, args, kwargs) for i, a in enumerate(arguments) if not a.is_out]
        _native.call_kernel(kernel, *given, *([outs] if listed else outs))
    except (RuntimeError, ValueError):
        return False
    return True


def _given(argument: Any, position: int, args: tuple, kwargs: dict[str, Any]) -> Any:
    """An argument as a program in a file would give it to a kernel."""
    value = argument.default
    if argument.name in kwargs:
        value = kwargs[argument.name]
    elif not argument.by_name_only and position < len(args):
        value = args[position]
    if argument.kind.startswith("[") and value is not None and not isinstance(value, (list, tuple)):
        value = [value] * (argument.length or 1)
    if isinstance(value, (list, tuple)):
        return [v.contiguous() if isinstance(v, torch.Tensor) else v for v in value]
    return value.contiguous() if isinstance(value, torch.Tensor) else plain(value, argument.kind)


def table() -> str:
    """The text of dtypes.txt for this build."""
    calls = recorded()
    alike: dict[str, list[str]] = {}
    for op in edge_operators():
        runs, legal = probe(op, calls.get(op) or generic(op))
        # A kernel that no call reaches has an empty line: nothing is known of it, and nothing is refused.
        if legal or kernel_of(op):
            row = " ".join(("=", *sorted(runs), "/", *sorted(legal - runs)))
            alike.setdefault(row, []).append(name_of(op))
    lines = [f"{' '.join(sorted(names))} {row}" for row, names in alike.items()]
    return HEADER + "\n".join(sorted(lines)) + "\n"


def rows_of(text: str) -> set[tuple[str, str]]:
    """(operator, its row) of a table."""
    lines = [line.partition(" = ") for line in text.splitlines() if not line.startswith("#")]
    return {(name, row) for names, _, row in lines for name in names.split()}


def main() -> int:
    """Write the table, or with --check name the operators that are not as it says and what it refuses wrongly."""
    old, new = TABLE.read_text(), table()
    changed = sorted({name for name, _ in rows_of(old) ^ rows_of(new)})
    print(f"{len(rows_of(new))} operators, changed: {changed}")
    if "--check" not in sys.argv:
        TABLE.write_text(new)
        return 0
    seen, refused = wrongly_refused()
    print(f"{seen} calls, wrongly refused: {sorted(refused)}")
    return 1 if changed or refused or not seen else 0


if __name__ == "__main__":
    sys.exit(main())
