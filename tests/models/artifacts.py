# SPDX-License-Identifier: BSD-3-Clause
# Artifacts of the reference models for the end-to-end and interop tests: eager results, our files and the peer's files.
# Each artifact is created once per process. Tests of one model are grouped (`each_model`), so that a single process
# creates it. Files are cached for all processes until a source that they depend on changes.

from __future__ import annotations

import copy
import fcntl
import functools
import hashlib
import importlib.metadata
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import torchette
from tests.models import zoo
from torchette._compile import CompiledModel
from torchette.cache import cache_folder

# Tolerance for float32. Other dtypes must be equal bit by bit.
RTOL, ATOL = 1e-4, 1e-5

each_model = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in zoo.names()]
)
# Models for tests that compile repeatedly or wait for ExecuTorch; --full runs the others.
ONE_OF_EACH_KIND = {"digits", "keyword_spotting", "mobilenet_v2", "llama"}
each_kind_of_model = pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.xdist_group(name), *([] if name in ONE_OF_EACH_KIND else [pytest.mark.slow])],
        )
        for name in zoo.names()
    ],
)


def assert_equal_to_eager(actual: Any, name: str) -> None:
    torch.testing.assert_close(torch.as_tensor(actual), eager(name), rtol=RTOL, atol=ATOL)


@functools.cache
def built(name: str) -> zoo.Built:
    """Returns the module and its arguments. Never call this module, which may have state; use `fresh_module`."""
    return zoo.build(name)


def fresh_module(name: str) -> torch.nn.Module:
    """Returns a copy of the module in its initial state."""
    return copy.deepcopy(built(name)[0])


def args(name: str) -> tuple[Tensor, ...]:
    return built(name)[1]


@functools.cache
def eager(name: str) -> Tensor:
    """Returns the result of the module for its arguments, in its initial state."""
    with torch.no_grad():
        return fresh_module(name)(*args(name))


@functools.cache
def compiled(name: str, backend: str = "auto") -> CompiledModel:
    """Compiles the model with `torchette.compile`."""
    return torchette.compile(built(name)[0], args(name), backend=backend)


@functools.cache
def our_file(name: str) -> bytes:
    """Returns the .pte file of our compiler through ExecuTorch's API, with planned inputs and outputs."""
    from torchette.exir import to_edge

    return _kept(f"{name}-{_ours()}", lambda: to_edge(exported(name)).to_executorch().buffer)


@functools.cache
def peer_file(name: str) -> bytes:
    """Returns the .pte file of ExecuTorch's compiler, without a delegate."""

    def make() -> bytes:
        from executorch.exir import to_edge

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return to_edge(exported(name)).to_executorch().buffer

    return _kept(f"{name}-peer-{_models()}", make)


def _kept(key: str, make: Callable[[], bytes]) -> bytes:
    """Returns the result of `make`, cached across processes and runs."""
    path = cache_folder() / "models" / f"{key}.pte"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists():
            return path.read_bytes()
        contents = make()
        path.with_suffix(".new").write_bytes(contents)
        path.with_suffix(".new").replace(path)
    return contents


@functools.cache
def _models() -> str:
    """Returns a digest of the sources of eager models and of the peer's files."""
    installed = {one.name: one.version for one in importlib.metadata.distributions()}
    versions = [f"{name} {installed.get(name)}" for name in ("torch", "executorch", "transformers")]
    return _digest([Path(zoo.__file__), *Path(zoo.__file__).parent.glob("*.py")], *versions)


@functools.cache
def _ours() -> str:
    """Returns a digest of the sources of our files: the above, the compiler, schemas, tables, and the kernels."""
    package = Path(torchette.__file__).parent
    kinds = {".py", ".txt", ".json", ".fbs", ".def", ".so", ".yaml"}
    return _digest([path for path in package.rglob("*") if path.suffix in kinds], _models())


def _digest(paths: list[Path], *more: str) -> str:
    digest = hashlib.sha256("\0".join(more).encode())
    for path in sorted(set(paths)):
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


def exported(name: str) -> torch.export.ExportedProgram:
    """Captures the model anew, because a compiler may modify an exported program."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about the weights of its LSTM
        return torch.export.export(built(name)[0], args(name))
