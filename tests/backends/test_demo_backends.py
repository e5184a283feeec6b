# SPDX-License-Identifier: BSD-3-Clause
# Reads ExecuTorch's demo backends and partitioners from its installed package and changes only the import root. demo_backends.cpp
# implements their device parts.
"""Backends for ExecuTorch lower and run after a change of the import root."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch.export import export

from tests.building import ROOT, built, program
from torchette.backends.null import NullPartitioner
from torchette.errors import DelegationWarning
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import executorch_call_delegate, to_backend
from torchette.exir.graph import calls
from torchette.format import etdump, pte
from torchette.runtime import Runtime

DEMOS = "torchette.exir.backend.test"


class _ChangedRoot(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds `torchette.exir.backend.test` in ExecuTorch's package."""

    def __init__(self, package: Path) -> None:
        self.package = package

    def _path(self, name: str) -> Path:
        return self.package.joinpath(*name.split(".")[1:])

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname != DEMOS and not fullname.startswith(DEMOS + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=self._path(fullname).is_dir())

    def create_module(self, spec: Any) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        file = self._path(module.__name__).with_suffix(".py")
        if file.is_file():
            source = re.sub(r"\bexecutorch(?=\.)", "torchette", file.read_text(encoding="utf-8"))
            exec(compile(source, str(file), "exec"), module.__dict__)


@pytest.fixture(scope="module")
def demos() -> Iterator[Any]:
    """Returns a function: path below the demos -> module."""
    spec = importlib.util.find_spec("executorch")
    package = Path(next(iter(spec.submodule_search_locations))) if spec else None
    if package is None or not (package / "exir/backend/test/op_partitioner_demo.py").exists():
        pytest.skip("ExecuTorch's demo backends are not installed")
    finder = _ChangedRoot(package)
    sys.meta_path.insert(0, finder)
    try:
        yield lambda path: importlib.import_module(f"{DEMOS}.{path}")
    finally:
        sys.meta_path.remove(finder)
        for name in [name for name in sys.modules if name == DEMOS or name.startswith(DEMOS + ".")]:
            del sys.modules[name]  # other tests import these names, which only ExecuTorch has


@pytest.fixture(scope="module")
def on_the_device(tmp_path_factory: pytest.TempPathFactory) -> None:
    archive = built("torchette_static").with_name("libtorchette.a")
    folder = tmp_path_factory.mktemp("demo")
    registry = Runtime.get().backend_registry
    for name, options in (("BackendWithCompilerDemo", []), ("ExecutorBackend", ["-DWHOLE_PROGRAM"])):
        if registry.is_available(name):
            continue
        library = folder / f"{name}.so"
        program(
            *(library, [ROOT / "tests/backends/demo_backends.cpp"], f"-I{ROOT}", *options),
            *("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-fvisibility=hidden"),
            link=["-shared", archive, "-lpthread", "-ldl"],
        )
        assert registry.load(library) == name


class _Of(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


SQUARES = tuple(x.clone() for x in torch.randn(3, 2, 2, generator=torch.Generator().manual_seed(0)))


def _lower(function: Any, partitioner: Any, args: tuple = SQUARES) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return to_edge_transform_and_lower(export(_Of(function), args), partitioner=partitioner)


def _ids(edge: Any) -> list[str]:
    return [
        getattr(node.graph.owning_module, str(node.args[0].target)).backend_id
        for node in calls(edge.exported_program(), executorch_call_delegate)
    ]


def _check(edge: Any, function: Any, args: tuple = SQUARES) -> None:
    (result,) = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward").execute(args)
    torch.testing.assert_close(torch.as_tensor(result), function(*args))


def test_backend_runs_a_program(demos: Any, on_the_device: None) -> None:
    demos("backend_with_compiler_demo")
    program = to_edge(export(_Of(torch.sin), (torch.ones(1),))).exported_program()
    lowered = to_backend("BackendWithCompilerDemo", program, [])
    assert re.fullmatch(
        rb"1version:0#op:demo::aten\.sin\.default, numel:1, dtype:torch\.float32<debug_handle>\d+#",
        lowered.processed_bytes,
    )
    args = (torch.tensor([0.5]),)
    _check(to_edge(export(_Of(lowered), args)), torch.sin, args)


def _product_and_sum(a, x, b):
    return torch.mm(a, x) + b - a


def test_backend_runs_a_part_of_a_program(demos: Any, on_the_device: None) -> None:
    edge = _lower(_product_and_sum, demos("op_partitioner_demo").AddMulPartitionerDemo())
    assert _ids(edge) == ["BackendWithCompilerDemo"]
    _check(edge, _product_and_sum)


def test_etdump_contains_events_and_values_of_a_delegate(
    demos: Any, on_the_device: None, tmp_path: Path
) -> None:
    """Events and values have the ids of the debug_handle_map of the backend's preprocess."""

    def function(a, x, b):
        return torch.mm(a, x) + b

    edge = _lower(function, demos("op_partitioner_demo").AddMulPartitionerDemo())
    (node,) = calls(edge.exported_program(), executorch_call_delegate)
    lowered = getattr(node.graph.owning_module, str(node.args[0].target))
    program = Runtime.get().load_program(
        edge.to_executorch().buffer, enable_etdump=True, debug_buffer_size=10_000
    )
    program.load_method("forward").execute(SQUARES)
    program.write_etdump_result_to_file(tmp_path / "a.etdp", tmp_path / "a.bin")
    run = etdump.load(tmp_path / "a.etdp").run_data[-1]
    timed = [event.profile_event.delegate_debug_id_int for event in run.events if event.profile_event]
    logged = [event.debug_event for event in run.events if event.debug_event]
    parts = [event for event in logged if event.delegate_debug_id_int != -1]
    handles = sorted(lowered.meta["debug_handle_map"])
    assert [event.delegate_debug_id_int for event in parts] == handles == [id for id in timed if id != -1]
    data, (a, x, b) = (tmp_path / "a.bin").read_bytes(), SQUARES
    for event, expected in zip(parts, (a @ x, a @ x + b), strict=True):
        tensor = event.debug_entry.tensor
        array = torch.frombuffer(bytearray(data), dtype=torch.float32, count=4, offset=tensor.offset)
        torch.testing.assert_close(array.reshape(tensor.sizes), expected)


def test_two_backends_run_one_graph(demos: Any, on_the_device: None) -> None:
    def function(a, x, b):
        return (torch.mm(a, x) + b) * a

    edge = _lower(function, [demos("op_partitioner_demo").AddMulPartitionerDemo(), NullPartitioner()])
    assert _ids(edge) == ["BackendWithCompilerDemo", "NullBackend"]
    _check(edge, function)


def test_branches_contain_delegates(demos: Any, on_the_device: None) -> None:
    def function(a, x, b):
        return torch.cond(a.sum() > 0, _product_and_sum, lambda a, x, b: torch.mm(x, a) - b, (a, x, b))

    edge = _lower(function, demos("op_partitioner_demo").AddMulPartitionerDemo())
    assert _ids(edge) == ["BackendWithCompilerDemo"] * 2
    for args in (SQUARES, tuple(-x for x in SQUARES)):
        _check(edge, function, args)


def test_delegate_contains_a_program_with_a_delegate(demos: Any, on_the_device: None) -> None:
    def function(a, x, b):
        a = x - b
        return torch.mm(a, x) + b

    partitioners = [
        demos("op_partitioner_demo").AddMulPartitionerDemo(),
        demos("demos.rpc.executor_backend_partitioner").ExecutorBackendPartitioner(),
    ]
    edge = _lower(function, partitioners)
    assert _ids(edge) == ["ExecutorBackend"]
    (outer,) = [
        child for child in edge.exported_program().graph_module.children() if hasattr(child, "backend_id")
    ]
    (inner,) = pte.read(outer.processed_bytes).program.execution_plan[0].delegates
    assert inner.id == "BackendWithCompilerDemo"
    _check(edge, function)


def test_delegate_contains_branches(demos: Any, on_the_device: None) -> None:
    def function(a, x, b):
        return torch.cond(a.sum() > 0, _product_and_sum, lambda a, x, b: torch.mm(x, a) - b, (a, x, b)) * 2

    edge = _lower(function, demos("op_partitioner_demo").AllNodesPartitionerDemo())
    assert _ids(edge) == ["ExecutorBackend"]
    for args in (SQUARES, tuple(-x for x in SQUARES)):
        _check(edge, function, args)


def test_delegate_contains_a_network(demos: Any, on_the_device: None) -> None:
    demos("demos.rpc.executor_backend_preprocess")
    model = torch.nn.Sequential(torch.nn.Linear(4, 25), torch.nn.Sigmoid(), torch.nn.Linear(25, 3)).eval()
    args = (torch.randn(5, 4),)
    lowered = to_backend("ExecutorBackend", to_edge(export(model, args)).exported_program(), [])
    _check(to_edge(export(_Of(lowered), args)), model, args)


def test_filter_keeps_operators_from_decomposition(demos: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2, bias=False)).eval()
    edge = _lower(model, demos("op_partitioner_demo").NonDecompTestPartitioner(), SQUARES[:1])
    (part,) = [
        child for child in edge.exported_program().graph_module.children() if hasattr(child, "backend_id")
    ]
    assert b"1version:0#op:demo::aten.linear.default" in part.processed_bytes
    left = [item for item in edge.delegation().placements if item.backend is None]
    assert [(item.op, list(item.reasons)) for item in left] == [
        ("aten.linear.default", ["NonDecompTestPartitioner"])
    ]
    torch.testing.assert_close(edge.exported_program().module()(SQUARES[0]), model(SQUARES[0]))


def test_preprocess_all_receives_all_methods(demos: Any) -> None:
    partitioner = demos("backend_with_preprocess_all_demo").BackendWithPreprocessAllPartitioner()
    methods = {
        "one": export(_Of(lambda x: (x + x).cos() - x), (torch.ones(2),)),
        "two": export(_Of(lambda x: torch.sin(x) + x), (torch.ones(2),)),
    }
    edge = to_edge_transform_and_lower(methods, partitioner=partitioner)
    texts = {
        name: [
            child.processed_bytes.decode()
            for child in edge.exported_program(name).graph_module.children()
            if hasattr(child, "backend_id")
        ]
        for name in methods
    }
    assert texts == {
        "one": [
            "FirstBackendWithPreprocessAll#3#aten.add.Tensor:#add:b'\\x00';",
            "SecondBackendWithPreprocessAll#2#aten.cos.default:aten.sub.Tensor:#cos:b'\\x03';sub:b'\\x02';",
        ],
        "two": [
            "FirstBackendWithPreprocessAll#3#aten.sin.default:aten.add.Tensor:#sin:b'\\x01';add:b'\\x00';"
        ],
    }
    assert len(edge.to_executorch().buffer) > 0


def test_preprocess_stores_named_data(demos: Any) -> None:
    edge = _lower(
        lambda a, x, b: torch.sin(a + x) * b, demos("backend_with_named_data_map").BackendWithNDMPartitioner()
    )
    named = pte.read(edge.to_executorch().buffer).named()
    assert {key: len(bytes(value)) for key, value in named.items()} == {
        "aten.sin.default": 0,
        "aten.add.Tensor": 1,
        "aten.mul.Tensor": 3,
    }
