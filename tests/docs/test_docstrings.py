# SPDX-License-Identifier: BSD-3-Clause
# In: the names that the public packages export. Out: each has a Google-style docstring with every parameter, the result, the
# errors and an example, and all examples run.

from __future__ import annotations

import ast
import contextlib
import doctest
import importlib
import importlib.util
import inspect
import io
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm import double
from tests.test_docs import save_smollm

torch = pytest.importorskip("torch")

PACKAGES = ("torchette", "torchette.exir", "torchette.runtime", "torchette.llm", "torchette.devtools")
# Classes that functions return. Their constructors are internal.
RETURNED = {
    "BackendRegistry", "BoundMethod", "CompiledModel", "EdgeProgramManager", "ExecutorchProgramManager", "Generation",
    "Method", "MethodMeta", "Model", "OperatorRegistry", "Program", "Runtime", "TensorInfo",
}  # fmt: skip
# Classes that no package exports, which exported functions return.
RESULTS = {"torchette.CompiledModel": "torchette._compile", "torchette.BoundMethod": "torchette.model"}
# Examples that are not run, and the tests that run such code.
NOT_RUN = {
    "torchette.load_library": "tests/test_custom_ops.py builds the library",
    "torchette.quantize": "tests/quantization/test_quantize.py; torchao is optional",
    "torchette.runtime.load_kernels": "tests/test_custom_ops.py builds the library",
    "torchette.llm.write_adapter": "tests/llm/exporting/test_lora.py exports the model",
}
SECTION = re.compile(r"^(Args|Attributes|Example|Raises|Returns|Yields):$", re.M)


def exported() -> dict[str, Any]:
    """Returns the functions and classes that the packages export, by qualified name, and RESULTS; without those of torch."""
    values = {
        name: getattr(importlib.import_module(home), name.rpartition(".")[2])
        for name, home in RESULTS.items()
    }
    for package in PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            if callable(value) and value.__module__.startswith("torchette"):
                values[f"{package}.{name}"] = value
    return values


def members(cls: type) -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    """Yields the name, the descriptor and the function of each public method and property that a class defines."""
    for name, value in vars(cls).items():
        function = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(function) and (not name.startswith("_") or name == "__call__"):
            yield name, value, function


def sections(text: str) -> dict[str, str]:
    """Returns the text of each section of a docstring; the text before them has the key ""."""
    head, *parts = SECTION.split(inspect.cleandoc(text))
    return {"": head, **dict(zip(parts[::2], parts[1::2], strict=True))}


def documented(text: str) -> set[str]:
    """Returns the names that a section of arguments or attributes describes."""
    heads = re.findall(r"^ {4}((?:\*{0,2}\w+, )*\*{0,2}\w+):", text, re.M)
    return {name.lstrip("*") for head in heads for name in head.split(", ")}


def raises(function: Callable[..., Any]) -> bool:
    if function.__code__.co_filename == "<string>":  # the constructor of a dataclass
        return False
    tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    return any(isinstance(node, ast.Raise) for node in ast.walk(tree))


def missing(function: Callable[..., Any], text: str, is_property: bool = False) -> list[str]:
    """Returns what the docstring of a function lacks."""
    text_by_section, lacks = sections(text), []
    signature = inspect.signature(function)
    if not is_property:
        names = {name for name in signature.parameters if name not in ("self", "cls") and name[0] != "_"}
        undescribed = names - documented(
            text_by_section.get("Args", "") + text_by_section.get("Attributes", "")
        )
        lacks += [f"Args: {name}" for name in sorted(undescribed)]
        has_result = signature.return_annotation not in (None, "None")
        if (
            has_result
            and not {"Returns", "Yields"} & text_by_section.keys()
            and not text_by_section[""].startswith("Returns ")
        ):
            lacks.append("Returns")
    if raises(function) and "Raises" not in text:
        lacks.append("Raises")
    return lacks


def lacks_of(name: str, value: Any) -> Iterator[str]:
    """Yields what the docstrings of an exported name and of its members lack."""
    short, text = name.rpartition(".")[2], value.__doc__ or ""
    if not text or text.startswith(f"{short}("):  # the text that dataclasses and named tuples generate
        yield f"{name}: docstring"
    if ">>> " not in text:
        yield f"{name}: example"
    if not inspect.isclass(value):
        yield from (f"{name}: {lack}" for lack in missing(value, text))
        return
    constructor = vars(value).get("__init__")
    if inspect.isfunction(constructor) and short not in RETURNED:
        yield from (f"{name}: {lack}" for lack in missing(constructor, text))
    for member, descriptor, function in members(value):
        if not function.__doc__:
            yield f"{name}.{member}: docstring"
        lacks = missing(function, function.__doc__ or "", isinstance(descriptor, property))
        yield from (f"{name}.{member}: {lack}" for lack in lacks)


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_have_every_section(package: str) -> None:
    lacks = [
        lack
        for name, value in exported().items()
        if name.rpartition(".")[0] == package
        for lack in lacks_of(name, value)
    ]
    assert not lacks, "\n".join(lacks)


def test_exceptions_are_exported_names() -> None:
    names = exported()
    assert NOT_RUN.keys() <= names.keys() and {name.rpartition(".")[2] for name in names} >= RETURNED


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the examples use. In `llm`, model.pte is a language model."""
    import torchette
    from torchette.exir import save, to_edge

    folder = tmp_path_factory.mktemp("examples")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        edge = to_edge(torch.export.export(*small_model()), generate_etrecord=True)
        save(edge.exported_program(), "edge.pt2")
        program = edge.to_executorch()
        program.save("model.pte")
        program.save("net.pte")
        program.get_etrecord().save("net.etrecord")
        loaded = torchette.runtime.Runtime.get().load_program("net.pte", enable_etdump=True)
        loaded.load_method("forward").execute([torch.ones(1, 4)])
        loaded.write_etdump_result_to_file("net.etdp")
        Path("llm").mkdir()
        Path("llm/model.pte").write_bytes(double.program())
        if importlib.util.find_spec("transformers"):
            save_smollm(Path("llm/smollm"))
    return folder


def small_model() -> tuple[Any, tuple[Any, ...]]:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 2), torch.nn.ReLU()).eval(), (torch.ones(1, 4),)


def namespace(package: str) -> dict[str, Any]:
    """Returns the names that the examples of a package use without an import."""
    import numpy

    from torchette.backends.engine.partitioner import CpuPartitioner
    from torchette.devtools.bundle import MethodTestCase, MethodTestSuite
    from torchette.exir import to_edge

    model, example_inputs = small_model()
    module = importlib.import_module(package)
    names = {name: getattr(module, name) for name in module.__all__ if not name.startswith("_")}
    program = torch.export.export(model, example_inputs)
    names |= {
        "CpuPartitioner": CpuPartitioner, "MethodTestCase": MethodTestCase, "MethodTestSuite": MethodTestSuite,
        "Path": Path, "edge": to_edge(program), "example_inputs": example_inputs, "exported": program, "model": model,
        "numpy": numpy, "program": to_edge(program).to_executorch(), "to_edge": to_edge, "torch": torch,
        "torchette": importlib.import_module("torchette"), "x": example_inputs[0],
    }  # fmt: skip
    if package == "torchette.llm":
        names["session"] = names["Session"]("model.pte")
    return names


def run(example: doctest.Example, names: dict[str, Any]) -> str:
    """Runs a statement; returns the text that an interactive interpreter prints."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(example.source, "<example>", "single"), names)
    return out.getvalue()


@pytest.mark.parametrize("package", PACKAGES)
@pytest.mark.filterwarnings(
    "default::torchette.errors.DelegationWarning", "default::torchette.errors.MissingKernelWarning"
)
def test_examples_run(package: str, reader: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reader / "llm" if package == "torchette.llm" else reader)
    monkeypatch.setattr(sys, "displayhook", sys.__displayhook__)
    names, parser, checker = namespace(package), doctest.DocTestParser(), doctest.OutputChecker()
    not_run = {
        *NOT_RUN,
        *(() if Path("smollm").exists() else ("torchette.llm.export",)),
    }  # transformers is optional
    count = 0
    for name, value in exported().items():
        if name.rpartition(".")[0] != package or name in not_run:
            continue
        functions = [function for _, _, function in members(value)] if inspect.isclass(value) else []
        texts = [one.__doc__ for one in (value, *functions)]
        names_of_example = dict(names)
        for example in (one for text in texts for one in parser.get_examples(text or "")):
            try:
                printed = run(example, names_of_example)
            except Exception as error:
                raise AssertionError(f"{name}: {example.source.strip()}: {error!r}") from error
            agrees = checker.check_output(
                example.want, printed, doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
            )
            assert not example.want or agrees, f"{name}: {example.source}printed {printed}"
            count += 1
    assert count
