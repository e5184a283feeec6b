# SPDX-License-Identifier: BSD-3-Clause
"""Errors of backends name the unsupported or unknown item, in the compiler and on the device. Afterwards other programs still
run."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import export

from tests.backends.xnnpack_cases import of_the_library
from tests.building import built, run
from torchette.backends.null import NullPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.backends.xnnpack.payload import SCHEMA
from torchette.errors import DelegationError, DelegationWarning, InputError, RuntimeLoadError
from torchette.exir import to_edge, to_edge_transform_and_lower
from torchette.exir.delegation.delegate import CompileSpec, to_backend
from torchette.format import flatbuffer
from torchette.runtime import Method, Runtime

X = torch.linspace(-2, 2, 6).reshape(2, 3)


class _Of(nn.Module):
    def __init__(self, function: Callable) -> None:
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


def _edge(partitioner):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        return to_edge_transform_and_lower(export(_Of(lambda x: x * x + x), (X,)), partitioner=partitioner)


def _load(data: bytes) -> Method:
    return Runtime.get().load_program(data).load_method("forward")


def _refused(data: bytes) -> str:
    with pytest.raises(RuntimeLoadError) as error:
        _load(data)
    return str(error.value)


@pytest.fixture(params=["NullBackend", "XnnpackBackend"])
def sound(request: pytest.FixtureRequest) -> Iterator[tuple[str, bytes]]:
    """Yields a backend's id and a program for it, which must still run after the test."""
    if not Runtime.get().backend_registry.is_available(request.param):
        pytest.skip(f"{request.param} is not in this build")
    data = (
        _edge(NullPartitioner() if request.param == "NullBackend" else XnnpackPartitioner())
        .to_executorch()
        .buffer
    )
    yield request.param, data
    torch.testing.assert_close(torch.as_tensor(_load(data).execute([X])[0]), X * X + X)


def test_unknown_backend_is_named_in_the_error(sound: tuple[str, bytes], tmp_path: Path) -> None:
    name, data = sound
    absent = data.replace(name.encode() + b"\0", b"?" + name[1:].encode() + b"\0")
    text = _refused(absent)
    assert f"needs the backend ?{name[1:]}, which is not registered" in text
    assert f"{name}" in text.partition("registered backends")[2] and "portable_fallback=True" in text
    (tmp_path / "absent.pte").write_bytes(absent)
    text = run(built("executor_runner"), "--model_path", tmp_path / "absent.pte", status=1).stderr
    assert f"needs the backend ?{name[1:]}, which is not registered" in text
    assert name in text.partition("registered backends: ")[2].partition(";")[0]
    program = to_edge(export(_Of(torch.sin), (X,))).exported_program()
    with pytest.raises(DelegationError, match="NobodyBackend") as error:
        to_backend("NobodyBackend", program, [])
    assert error.value.code == "unknown-backend" and name in str(error.value)


def test_payload_of_another_version_is_refused(sound: tuple[str, bytes]) -> None:
    name, data = sound
    marks = {"NullBackend": (b"NUL1",), "XnnpackBackend": (b"XN01", b"XH00")}[name]
    for mark in marks:
        assert data.count(mark) == 1
        text = _refused(data.replace(mark, mark[:2] + b"99"))
        assert "of this version" in text and f"{name} refused delegate 0" in text


def test_payload_of_another_backend_is_refused() -> None:
    null = _edge(NullPartitioner()).to_executorch().buffer
    xnnpack_edge = _edge(XnnpackPartitioner())
    (part,) = (
        c for c in xnnpack_edge.exported_program().graph_module.children() if hasattr(c, "processed_bytes")
    )
    blob = bytes(part.processed_bytes)
    data = xnnpack_edge.to_executorch().buffer
    at = null.index(b"NUL1")
    for name, bytes_of, place in (("XnnpackBackend", data, data.index(blob)), ("NullBackend", null, at)):
        if Runtime.get().backend_registry.is_available(name):
            source = null[at : at + 64] if name == "XnnpackBackend" else blob[:64]
            mixed = bytes_of[:place] + source + bytes_of[place + 64 :]
            assert f"{name} refused delegate 0" in _refused(mixed)


@pytest.mark.parametrize("name", ["NullBackend", "XnnpackBackend"])
def test_preprocess_names_unsupported_operators_and_dtypes(name: str) -> None:
    def text(function: Callable, x: torch.Tensor) -> str:
        program = to_edge(export(_Of(function), (x,))).exported_program()
        with pytest.raises(DelegationError) as error:
            to_backend(name, program, [])
        assert error.value.code == "preprocess-failed" and "test_bad_input.py" in str(error.value.where)
        return str(error.value)

    assert name in text(lambda x: torch.cumsum(x, 0), X) and "aten.cumsum" in text(
        lambda x: torch.cumsum(x, 0), X
    )
    assert "float64" in text(lambda x: x + x, X.double())


def test_unknown_types_and_values_are_refused() -> None:
    if not Runtime.get().backend_registry.is_available("XnnpackBackend"):
        pytest.skip("XnnpackBackend is not in this build")
    edge = _edge(XnnpackPartitioner())
    (part,) = (c for c in edge.exported_program().graph_module.children() if hasattr(c, "processed_bytes"))
    blob, data = bytes(part.processed_bytes), edge.to_executorch().buffer
    at, size = (int.from_bytes(blob[i : i + 4], "little") for i in (10, 14))

    def changed(edit: Callable) -> bytes:
        graph = flatbuffer.decode(SCHEMA, blob[at : at + size])
        edit(graph)
        written = bytes(flatbuffer.encode(SCHEMA, graph))
        assert len(written) == size
        return data.replace(blob, blob[:at] + written + blob[at + size :])

    def unknown_type(graph) -> None:
        graph.xvalues[0].xvalue_union.datatype = 99

    def unknown_value(graph) -> None:
        graph.xnodes[0].xnode_union.output_id = 77

    assert "value 0 of XNNPACK's graph has type number 99" in _refused(changed(unknown_type))
    assert "77" in _refused(changed(unknown_value))


@pytest.mark.parametrize("name", ["NullBackend", "XnnpackBackend", "VulkanBackend"])
def test_unknown_compile_specs_are_named_with_the_known_ones(name: str) -> None:
    program = to_edge(export(_Of(lambda x: x + x), (X,))).exported_program()
    known = {"XnnpackBackend": "external_tag", "VulkanBackend": "force_fp16"}.get(name)
    with pytest.raises(InputError) as error:
        to_backend(name, program, [CompileSpec((known or "speed") + "s", b"1")])
    assert error.value.code == "bad-backend-option"
    meant = f"there is no {name} option '{known}s'; did you mean {known}?"
    assert str(error.value).startswith(meant if known else f"there is no {name} option 'speeds'")
    assert re.search(rf"its options: .*\b{known or 'none'}\b", str(error.value))


@pytest.mark.parametrize(
    ("name", "option", "words"),
    [
        ("VulkanBackend", {"devise": ""}, "no option devise that can be set; it has device, cache_folder"),
        ("VulkanBackend", {"device": 1}, "Vulkan's device must be a string"),
        ("VulkanBackend", {"device": "gpu7"}, 'or "none" (the processor), not "gpu7"'),
        ("NullBackend", {"speed": 1}, "option speed of NullBackend: it has no such option"),
        ("VulkanBacked", {"device": ""}, "there is no such backend; did you mean VulkanBackend?"),
    ],
)
def test_unknown_runtime_options_are_refused(name: str, option: dict[str, object], words: str) -> None:
    registry = Runtime.get().backend_registry
    with pytest.raises(InputError, match=re.escape(words)) as error:
        registry.set_option(name, **option)
    assert error.value.code == "bad-backend-option"


@of_the_library
def test_invalid_thread_counts_are_refused() -> None:
    registry = Runtime.get().backend_registry
    if not registry.is_available("XnnpackBackend"):
        pytest.skip("XnnpackBackend is not in this build")
    before = registry.get_option("XnnpackBackend", "num_threads")
    for value, words in (
        (100_000, "XNNPACK's num_threads must be an integer from 1 to "),
        (0, "XNNPACK's num_threads must be an integer from 1 to "),
        (10**20, "does not accept the value"),
        ("many", "XNNPACK's num_threads must be an integer from 1 to "),
    ):
        with pytest.raises(InputError, match=words) as error:
            registry.set_option("XnnpackBackend", num_threads=value)
        assert error.value.code == "bad-backend-option" and "num_threads" in str(error.value)
    assert registry.get_option("XnnpackBackend", "num_threads") == before
    with pytest.raises(InputError, match="option num_threads of NullBackend: it has no such option"):
        registry.set_option("NullBackend", num_threads=1)
    with pytest.raises(InputError, match="of Nobody: there is no such backend"):
        registry.set_option("Nobody", num_threads=1)
    done = run(built("executor_runner"), "--model_path", "none.pte", "--cpu_threads", "many", status=2)
    assert "--cpu_threads must be an integer" in done.stderr
