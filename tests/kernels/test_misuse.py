# SPDX-License-Identifier: BSD-3-Clause
# Fuzzes every kernel of the table under sanitizers with arguments that match its signature but little else. A kernel
# either rejects them with a message that names the argument, or computes a result without accessing memory outside of
# its tensors.

from __future__ import annotations

import re
import subprocess
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import torchette.backends.engine.operators  # noqa: F401
from tests.backends.engine import test_operators as engine
from tests.backends.engine.draw import Draw
from tests.building import built
from tests.kernels import samples
from tests.kernels.test_table import NAMESPACES, OTHERS
from torchette.exir.emit.records import scalar_type
from torchette.runtime import _native

pytestmark = [pytest.mark.safety, pytest.mark.xdist_group("sanitized")]


@pytest.fixture(scope="module")
def misuse() -> Path:
    return built("torchette_misuse", tree="asan")


def word(value: Any) -> str:
    """Formats an argument for misuse.cpp."""
    if value is None:
        return "-"
    if isinstance(value, torch.Tensor):
        sizes = ",".join(map(str, value.shape))
        code = (
            9 if value.dtype == torch.complex64 else int(scalar_type(value.dtype))
        )  # no file contains complex64
        data = value.contiguous().reshape(-1).view(torch.uint8)  # numpy has no bfloat16
        return f"T{code}:{sizes}:{data.numpy().tobytes().hex()}"
    if isinstance(value, bool):
        return f"b{value:d}"
    if isinstance(value, (int, float)):
        return f"{'i' if isinstance(value, int) else 'd'}{value}"
    if isinstance(value, str):
        return f"S{value}".replace(" ", "~")
    if any(isinstance(item, torch.Tensor) for item in value):
        return "L" + "|".join(map(word, value))
    kind = (
        "B"
        if any(isinstance(item, bool) for item in value)
        else "D"
        if any(isinstance(item, float) for item in value)
        else "I"
    )
    return kind + ",".join(f"{item:d}" if kind != "D" else str(item) for item in value)


def size_of(case: Any) -> int:
    """Returns the bytes of all tensors."""
    return sum(leaf.nbytes for leaf in pytree.tree_leaves(case) if isinstance(leaf, torch.Tensor))


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Writes valid calls, for kernels that random arguments seldom or never satisfy."""
    lines = []
    for name, calls in (*samples.CALLS.items(), *samples.VECTORS.items()):
        for call in calls:
            results = samples.results(name, call)
            outs = [results] if isinstance(results, (list, torch.Tensor)) else list(results)
            lines.append(" ".join([name, *map(word, [*samples.arguments(name, call), *outs])]))
    for name, right in samples.QUANTIZED.items():
        lines += [" ".join([name, *map(word, call)]) for call in right]
    for name in engine.OPERATORS:
        cases = list(engine.cases_of(name)(Draw(zlib.crc32(name.encode()))))
        for case in sorted(cases, key=size_of)[:6]:
            call = f"cpu::{name}.out", (case, {})
            outs = pytree.tree_leaves(engine.OPERATORS[name](*case))
            lines.append(" ".join([call[0], *map(word, [*samples.arguments(*call), *outs])]))
    path = tmp_path_factory.mktemp("misuse") / "examples.txt"
    path.write_text("\n".join(lines) + "\n")
    return path


def argument_names(kernel: str) -> list[str]:
    """Returns the argument names of torch's schema, or nothing if torch has no such operator."""
    namespace, _, qualified = kernel.partition("::")
    if kernel in OTHERS or namespace == "executorch_prim":
        return []
    operator, _, overload = qualified.partition(".")
    packet = getattr(getattr(torch.ops, NAMESPACES.get(namespace, namespace)), operator)
    return [argument.name for argument in getattr(packet, overload or "default")._schema.arguments]


def names_an_argument(message: str, names: list[str]) -> bool:
    """Whether the message contains an argument's name or index."""
    return "argument N" in message or any(re.search(rf"\b{re.escape(name)}\b", message) for name in names)


def check(misuse: Path, examples: Path, calls: int, seed: int) -> None:
    command = [misuse, str(calls), str(seed), examples]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-300:] + done.stderr[:6000]
    counts = {
        name: (int(ran), int(refused))
        for name, ran, refused in re.findall(r"(\S+): (\d+) ran, (\d+)", done.stdout)
    }
    assert set(counts) == {name for name, _ in _native.operators()}
    ran = [name for name, (ran, _) in counts.items() if ran]
    refusing = [name for name, (_, refused) in counts.items() if refused]
    # Otherwise the calls are too wild or too tame to be meaningful.
    assert len(ran) > 0.95 * len(counts) and len(refusing) > 0.9 * len(counts)
    blaming, kernel = [], ""
    for line in done.stdout.splitlines():
        if not line.startswith("  "):
            kernel, names = line.rpartition(": ")[0], argument_names(line.rpartition(": ")[0])
        elif names and "scratch memory" not in line and not names_an_argument(line, names):
            blaming.append(f"{kernel}:{line}")
    assert not blaming, "rejections without an argument name:\n" + "\n".join(blaming)


def test_kernels_survive_invalid_arguments(misuse: Path, examples: Path) -> None:
    check(misuse, examples, 1000, 2)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [2, 3])
def test_kernels_survive_a_long_run(seed: int, misuse: Path, examples: Path) -> None:
    check(misuse, examples, 20000, seed)
