# SPDX-License-Identifier: BSD-3-Clause
# In: every import and #include of the tree. Out: the two files of each line that goes up instead of down.
# The tables below are the architecture: a unit may know the units on its line and nothing else of ours.
"""Who may know whom, held by reading the sources; nothing is imported or built here."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# The compiler, from the ground up: a module may know everything on the floors below its own, and the errors.
COMPILER_FLOORS = (
    ("memory", "size_relations"),
    ("tensor",),
    ("control_flow",),
    ("graph", "ops", "delegation.cost"),
    ("interface", "dialects", "check", "assertion_prover", "copy_shape_env", "delegation.partition"),
    ("pass_base", "delegation.delegate"),
    (
        "pass_manager",
        "memory.algorithms",
        "decompositions",
        "delegation.explain",
        "delegation.share_weights",
        "serde",
    ),
    ("memory.plan_memory",),
    ("passes",),
    ("config",),
    ("emit", "pipeline"),
    ("program",),
)
COMPILER = tuple(f"torchette.exir.{name}" for floor in COMPILER_FLOORS for name in floor)

# Every unit: a module name, which covers what lies below it (the longest match counts) -> the units it may know.
# "torchette" alone is the public surface, `torchette/__init__.py`.
PYTHON: dict[str, tuple[str, ...]] = {
    "torchette.cache": (),
    "torchette.errors": (),
    "torchette.files": (),
    "torchette.notebook": (),
    "torchette.progress": (),
    "torchette.units": (),
    "torchette.pytree": ("torchette.errors",),
    "torchette.methods": ("torchette.errors",),
    "torchette.extension": (),
    "torchette.extension.portable_lib": ("torchette.devtools", "torchette.errors", "torchette.runtime"),
    "torchette.extension.training": (
        "torchette.devtools",
        "torchette.errors",
        "torchette.files",
        "torchette.format",
        "torchette.schema",
    ),
    "torchette.schema": (),
    "torchette.format": ("torchette.errors",),
    "torchette.devtools": (
        "torchette.cache",
        "torchette.errors",
        "torchette.files",
        "torchette.format",
        "torchette.notebook",
        "torchette.pytree",
        "torchette.runtime",
        "torchette.schema",
        "torchette.targets",
    ),
    # What stores and runs the compiler's graphs knows them, where it does so.
    "torchette.devtools.etrecord": (
        "torchette.devtools",
        "torchette.errors",
        "torchette.exir.graph",
        "torchette.exir.passes",
        "torchette.exir.serde",
        "torchette.methods",
    ),
    "torchette.devtools.inspector": (
        "torchette.devtools",
        "torchette.devtools.etrecord",
        "torchette.errors",
        "torchette.format",
        "torchette.notebook",
        "torchette.schema",
    ),
    # What runs the compiler to compare a file with it; the rest of devtools never does.
    "torchette.devtools.diff": (
        "torchette._compile",
        "torchette.devtools",
        "torchette.devtools.inspector",
        "torchette.errors",
        "torchette.exir",
        *COMPILER,
        "torchette.format",
        "torchette.notebook",
        "torchette.runtime",
        "torchette.schema",
    ),
    # ATen mode is compiled when it is asked for.
    "torchette.runtime": (
        "torchette.build.aten",
        "torchette.errors",
        "torchette.notebook",
        "torchette.schema",
    ),
    "torchette.build.aten": (
        "torchette.build",
        "torchette.cache",
        "torchette.errors",
        "torchette.progress",
        "torchette.targets",
    ),
    "torchette.targets": ("torchette.errors", "torchette.runtime"),
    "torchette.receipt": (
        "torchette.devtools",
        "torchette.errors",
        "torchette.format",
        "torchette.runtime",
    ),
    "torchette.build": (
        "torchette.cache",
        "torchette.errors",
        "torchette.format",
        "torchette.devtools",
        "torchette.runtime",
        "torchette.schema",
        "torchette.targets",
    ),
    "torchette.codegen": (
        "torchette.build",
        "torchette.devtools",
        "torchette.errors",
        "torchette.format",
        "torchette.runtime",
        "torchette.schema",
    ),
    "torchette.model": (
        "torchette.errors",
        "torchette.files",
        "torchette.notebook",
        "torchette.pytree",
        "torchette.runtime",
    ),
    "torchette.custom_ops": ("torchette.errors", "torchette.exir.ops", "torchette.runtime"),
    **{
        f"torchette.exir.{name}": (
            "torchette.compat",
            "torchette.errors",
            *(("torchette.units",) if name == "memory.plan_memory" else ()),
            *(("torchette.notebook",) if name in ("delegation.explain", "pipeline", "program") else ()),
            *(f"torchette.exir.{lower}" for below in COMPILER_FLOORS[:height] for lower in below),
            *(("torchette.format", "torchette.pytree") if name in ("emit", "program") else ()),
            *(("torchette.methods",) if name == "program" else ()),
            *(("torchette.schema",) if name in ("dialects", "emit") else ()),
            # which kernels there are, and a record of the stages where one is asked for
            *(("torchette.runtime", "torchette.devtools.etrecord") if name == "program" else ()),
        )
        for height, floor in enumerate(COMPILER_FLOORS)
        for name in floor
    },
    "torchette.exir": ("torchette.compat", "torchette.errors", *COMPILER),
    "torchette.capture": ("torchette.errors", "torchette.exir.passes"),
    "torchette.compat": ("torchette.errors",),  # a table of names: what it serves is imported on demand
    **{
        f"torchette.compat.{name}": (*COMPILER, "torchette.errors")
        for name in ("banks", "error", "exir_program", "export_util", "partitioners", "verifier")
    },
    "torchette.compat.inner": (
        *COMPILER,
        "torchette.compat.transforms",
        "torchette.errors",
        "torchette.exir",
        "torchette.format",
    ),
    "torchette.compat.transforms": (*COMPILER, "torchette.errors", "torchette.exir"),
    # A backend knows the door of the compiler; the compiler finds it by name.
    "torchette.backends": (
        "torchette.errors",
        *COMPILER,
        "torchette.export",
        "torchette.format",
        "torchette.runtime",
        "torchette.schema",
    ),
    "torchette._compile": (
        "torchette.capture",
        "torchette.device",
        "torchette.devtools",
        "torchette.errors",
        "torchette.exir",
        *COMPILER,
        "torchette.fit",
        "torchette.format",
        "torchette.methods",
        "torchette.model",
        "torchette.pytree",
        "torchette.receipt",
        "torchette.runtime",
    ),
    "torchette.export": (
        "torchette.capture",
        "torchette.errors",
        *COMPILER,
        "torchette.methods",
        "torchette.runtime",
    ),
    "torchette.llm.custom_cache": ("torchette.llm.custom_ops",),
    "torchette.llm.custom_ops": (),
    "torchette.device": ("torchette.errors", "torchette.targets", "torchette.units"),
    "torchette.fit": (
        "torchette.device",
        "torchette.devtools",
        "torchette.errors",
        *COMPILER,
        "torchette.format",
    ),
    "torchette.quantization": (),
    "torchette.quantization.recipes": (
        "torchette.backends",
        "torchette.capture",
        "torchette.errors",
        "torchette.exir.graph",
        "torchette.quantization",
    ),
    "torchette.quantization.table": ("torchette.devtools", "torchette.notebook"),
    "torchette.quantization.knapsack": (),
    "torchette.quantization.measurements": ("torchette.errors",),
    # What compiles and runs whole models to choose between them; the rest of the folder is below the compiler's door.
    "torchette.quantization.quantize": (
        "torchette.capture",
        "torchette._compile",
        "torchette.build",
        "torchette.devtools.inspector",
        "torchette.errors",
        "torchette.progress",
        "torchette.quantization",
        "torchette.quantization.knapsack",
        "torchette.quantization.measurements",
        "torchette.quantization.recipes",
        "torchette.quantization.table",
        "torchette.runtime",
    ),
    # Running a language model is below the compiler, making one above it.
    "torchette.llm": (
        "torchette.errors",
        "torchette.files",
        "torchette.format",
        "torchette.llm._export",
        "torchette.llm.vocabularies",
        "torchette.runtime",
    ),
    "torchette.llm._export": (
        "torchette._compile",
        "torchette.errors",
        *COMPILER,
        "torchette.llm",
        "torchette.llm.checkpoints",
        "torchette.llm.decoder",
        "torchette.llm.encoders",
        "torchette.llm.gguf",
        "torchette.llm.quantized",
        "torchette.llm.vocabularies",
    ),
    "torchette.llm.checkpoints": ("torchette.errors", "torchette.llm.quantized"),
    "torchette.llm.decoder": ("torchette.backends", "torchette.errors"),
    "torchette.llm.encoders": ("torchette.errors", "torchette.llm.decoder"),
    "torchette.llm.gguf": ("torchette.errors", "torchette.llm.quantized", "torchette.llm.vocabularies"),
    "torchette.llm.quantized": ("torchette.backends",),
    "torchette.llm.vocabularies": ("torchette.errors",),
    "torchette": (
        "torchette.compat",
        "torchette._compile",
        "torchette.custom_ops",
        "torchette.device",
        "torchette.errors",
        "torchette.exir",
        "torchette.model",
        "torchette.quantization.quantize",
        "torchette.runtime",
    ),
    "torchette.cli": (
        "torchette",
        "torchette.backends",
        "torchette.build",
        "torchette.capture",
        "torchette.codegen",
        "torchette._compile",
        "torchette.devtools",
        "torchette.devtools.diff",
        "torchette.devtools.inspector",
        "torchette.errors",
        "torchette.exir",
        *COMPILER,
        "torchette.format",
        "torchette.llm",
        "torchette.model",
        "torchette.progress",
        "torchette.pytree",
        "torchette.quantization",
        "torchette.quantization.recipes",
        "torchette.quantization.table",
        "torchette.receipt",
        "torchette.runtime",
        "torchette.schema",
        "torchette.targets",
    ),
}

# Modules whose import must not import torch: what runs on numpy alone. Inside a function it is their own business.
TORCH_FREE = (
    "torchette",
    "torchette.cache",
    "torchette.compat",
    "torchette.device",
    "torchette.errors",
    "torchette.files",
    "torchette.notebook",
    "torchette.progress",
    "torchette.pytree",
    "torchette.methods",
    "torchette.receipt",
    "torchette.units",
    "torchette.format",
    "torchette.schema",
    "torchette.devtools",
    "torchette.devtools.etrecord",
    "torchette.devtools.inspector",
    "torchette.build",
    "torchette.codegen",
    "torchette.runtime",
    "torchette.llm",
    "torchette.llm.vocabularies",
    "torchette.model",
    "torchette.targets",
    "torchette.cli",
    "torchette.exir.memory",
)

# C++: a file without its suffix, or a folder -> floor. A file includes its own header, files of its own folder where the
# table names the folder, and lower floors. The longest match counts.
CPP: dict[str, int] = {
    "torchette/runtime/compiler": -1,
    "torchette/runtime/platform": 0,
    "torchette/runtime/error": 1,
    "torchette/runtime/threads": 2,
    "torchette/runtime/span": 1,
    "torchette/runtime/dtype": 2,
    "torchette/runtime/selected": 3,
    "torchette/runtime/result": 2,
    "torchette/runtime/memory": 3,
    "torchette/runtime/flat": 4,
    "torchette/schema/dtypes": 0,
    "torchette/schema/engine": 0,
    "torchette/schema/kernels": 0,
    "torchette/schema/limits": 0,
    "torchette/schema/": 4,  # headers of slot constants, made from the schemas by the build
    "torchette/runtime/tensor": 4,
    "torchette/runtime/loader": 4,
    "torchette/runtime/data_map": 5,
    "torchette/runtime/value": 5,
    "torchette/runtime/tracer": 6,
    "torchette/runtime/kernel": 7,
    "torchette/kernels/": 8,
    "torchette/codegen/": 8,  # what generated code stands on
    "torchette/runtime/kernel_registry": 8,
    "torchette/runtime/program": 8,
    "torchette/runtime/backend": 9,
    "torchette/runtime/backend_options": 10,
    "torchette/backends/": 11,
    "torchette/runtime/method_meta": 9,
    "torchette/runtime/method": 11,
    "torchette/runtime/method_loading": 12,
    "torchette/extension/": 12,
    "torchette/build/": 13,
    "torchette/build/bare/": 12,
    "torchette/pybindings/": 14,
    "torchette/runtime/": 13,  # the platforms, method_load.cpp
}
# Folders that nobody outside includes from: the core is given its kernels and backends, it does not name them.
CPP_CLOSED = ("torchette/kernels/", "torchette/backends/")


class Line(NamedTuple):
    """One thing knows another: which, where it says so, and whether that runs at import time."""

    source: str
    target: str
    place: str
    deferred: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: dict[str, Path] = {name_of(path): path for path in sorted((ROOT / "torchette").rglob("*.py"))}


def imported_names(node: ast.AST, module: str, path: Path) -> Iterator[str]:
    """Every dotted name that the statement reaches for, ours or not, longest reading first."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            package = package[: len(package) - node.level + 1]
            base = ".".join([*package, node.module] if node.module else package)
        yield from (f"{base}.{alias.name}" for alias in node.names)
    elif (
        isinstance(node, ast.Call)
        and ast.unparse(node.func).endswith("import_module")
        and isinstance(node.args[0], ast.Constant)
    ):
        yield str(node.args[0].value)


def python_lines(path: Path) -> Iterator[Line]:
    module = name_of(path)
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    deferred = {
        id(inner) for node in ast.walk(tree) if isinstance(node, functions) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):  # what only a type checker reads is deferred too
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            deferred |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    for node in ast.walk(tree):
        for name in imported_names(node, module, path):
            place = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            target = name
            while target not in MODULES and target not in PYTHON and "." in target:
                target = target.rpartition(".")[0]
            yield Line(module, target, place, id(node) in deferred)


LINES: list[Line] = [line for path in MODULES.values() for line in python_lines(path)]


def unit_of(module: str, units: Mapping[str, object]) -> str | None:
    """The longest unit name that covers the module. The bare surface covers only itself."""
    candidates = [u for u in units if module == u or (u != "torchette" and module.startswith(u + "."))]
    return max(candidates, key=len, default=None)


def python_violations(lines: list[Line]) -> list[str]:
    found = []
    for line in lines:
        if not line.target.startswith("torchette"):
            continue
        source, target = unit_of(line.source, PYTHON), unit_of(line.target, PYTHON)
        if source is None or target is None:
            found.append(
                f"{line.place}: {line.source if source is None else line.target} stands on no floor of PYTHON"
            )
        elif source != target and target not in PYTHON[source]:
            found.append(f"{line.place}: {line.source} may not know {line.target}")
    return found


def circle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """A path that comes back to where it started, or None."""
    state: dict[str, int] = {}

    def visit(node: str, trail: list[str]) -> list[str] | None:
        state[node] = 1
        for following in sorted(edges.get(node, ())):
            if state.get(following) == 1:
                return [*trail[trail.index(following) :], following]
            if following not in state:
                found = visit(following, [*trail, following])
                if found:
                    return found
        state[node] = 2
        return None

    for start in sorted(edges):
        if start not in state:
            found = visit(start, [start])
            if found:
                return found
    return None


def cpp_includes() -> Iterator[tuple[str, str, str]]:
    for path in sorted((ROOT / "torchette").rglob("*")):
        if path.suffix in {".h", ".cpp", ".def"}:
            for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                match = re.match(r'\s*#\s*include\s+"([^"]+)"', text)
                if match:
                    yield path.relative_to(ROOT).as_posix(), match[1], f"{path.relative_to(ROOT)}:{number}"


def unit_of_file(path: str) -> str | None:
    stem = path.rpartition(".")[0]
    candidates = [unit for unit in CPP if stem == unit or (unit.endswith("/") and path.startswith(unit))]
    return max(candidates, key=len, default=None)


def cpp_violation(source: str, target: str) -> str | None:
    here, there = unit_of_file(source), unit_of_file(target)
    if here is None or there is None:
        return f"{source if here is None else target} stands on no floor of CPP"
    if here == there:
        return None
    if there in CPP_CLOSED:
        return f"{source} may not know {target}: {there} is closed to the outside"
    if CPP[there] >= CPP[here]:
        return f"{source} (floor {CPP[here]}) may not include {target} (floor {CPP[there]})"
    return None


def test_python_imports_go_down() -> None:
    assert not python_violations(LINES), "\n".join(python_violations(LINES))


def test_python_has_no_circle() -> None:
    edges: dict[str, set[str]] = {}
    for line in LINES:
        if line.target in MODULES and line.target != line.source and not line.deferred:
            edges.setdefault(line.source, set()).add(line.target)
    found = circle(edges)
    assert found is None, " -> ".join(str(MODULES[name].relative_to(ROOT)) for name in found or ())


def test_numpy_half_does_not_import_torch() -> None:
    units = dict.fromkeys((*TORCH_FREE, *PYTHON))
    found = [
        f"{line.place}: {line.source} must import without torch"
        for line in LINES
        if line.target.split(".")[0] == "torch"
        and not line.deferred
        and unit_of(line.source, units) in TORCH_FREE
    ]
    assert not found, "\n".join(found)


def test_cpp_includes_go_down() -> None:
    found = [
        f"{place}: {text}"
        for source, target, place in cpp_includes()
        if (text := cpp_violation(source, target))
    ]
    assert not found, "\n".join(found)


def test_cpp_has_no_circle() -> None:
    edges: dict[str, set[str]] = {}
    for source, target, _ in cpp_includes():
        edges.setdefault(source, set()).add(target)
    found = circle(edges)
    assert found is None, " -> ".join(found or ())


def test_the_tables_bite() -> None:
    """A line up, an unknown module, a circle and an include of the core's upper floors are each found."""
    up = Line("torchette.format.pte", "torchette.exir.emit", "torchette/format/pte.py:1", True)
    assert python_violations([up]) == [
        "torchette/format/pte.py:1: torchette.format.pte may not know torchette.exir.emit"
    ]
    stray = Line("torchette.misc", "torchette.errors", "torchette/misc.py:1", False)
    assert "stands on no floor" in python_violations([stray])[0]
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) is None
    assert cpp_violation("torchette/kernels/add.cpp", "torchette/runtime/method.h")
    assert cpp_violation("torchette/runtime/method.cpp", "torchette/kernels/simd.h")
    assert cpp_violation("torchette/runtime/tensor.h", "torchette/runtime/value.h")
    assert not cpp_violation("torchette/runtime/method.h", "torchette/runtime/program.h")
    assert not cpp_violation("torchette/kernels/add.cpp", "torchette/runtime/kernel.h")
