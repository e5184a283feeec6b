# SPDX-License-Identifier: BSD-3-Clause
# In: every import and #include of the tree. Out: the location of each that violates the order of rooms, or is in a cycle.
# The tables below are the architecture; docs/architecture.md describes the rooms.
"""Rooms and their order, checked by reading the sources; no module is imported or built here."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]

# The rooms, from the ground up: a module may import from its own room and from the rooms on the lines above its own.
# A name covers the modules below it, the longest match counts; "NAME.__init__" is the file of a package alone, if its names
# lead to upper rooms.
ROOMS: dict[str, tuple[str, ...]] = {
    "base": (
        "torchette.cache",
        "torchette.compat.__init__",  # imports modules by the names in a table
        "torchette.errors",
        "torchette.files",
        "torchette.methods",
        "torchette.notebook",
        "torchette.packages",
        "torchette.progress",
        "torchette.pytree",
        "torchette.units",
    ),
    "machines": ("torchette.device", "torchette.targets"),
    "format": ("torchette.format", "torchette.schema"),
    "build": ("torchette.build",),
    "runtime": ("torchette.model", "torchette.runtime"),  # compiles ATen mode on demand
    "devtools": ("torchette.devtools", "torchette.receipt"),
    "images": ("torchette.build.bare", "torchette.build.kernel_list", "torchette.build.make"),
    "codegen": ("torchette.codegen",),
    "llm": ("torchette.llm", "torchette.llm.exporting.lora", "torchette.llm.exporting.vocabularies"),
    "exir": ("torchette.exir",),
    "capture": ("torchette.capture",),
    "export": ("torchette.export",),
    "backends": ("torchette.backends",),  # the compiler imports a backend by its name
    "compile": ("torchette._compile", "torchette.custom_ops", "torchette.fit"),
    "inspection": ("torchette.devtools.__init__", "torchette.devtools.diff", "torchette.devtools.inspector"),
    "quantization": ("torchette.quantization",),
    "llm export": (
        "torchette.llm.__init__",
        "torchette.llm.exporting",
    ),
    "extension": ("torchette.extension",),
    "compat": ("torchette.compat",),
    "surface": ("torchette.__init__",),
    "cli": ("torchette.__main__", "torchette.cli"),
}
FLOORS = {room: floor for floor, room in enumerate(ROOMS)}
ROOM_OF = {name: room for room, names in ROOMS.items() for name in names}

# The import of these modules must not import torch: they need only numpy. An import inside a function may.
TORCH_FREE = (
    *(
        name
        for room in ("base", "machines", "format", "build", "runtime", "devtools", "images", "codegen", "llm")
        for name in ROOMS[room]
    ),
    "torchette.__init__",
    "torchette.cli",
    "torchette.devtools.__init__",
    "torchette.devtools.inspector",
    "torchette.exir.__init__",
    "torchette.exir.etrecord",
    "torchette.exir.memory.__init__",
    "torchette.llm.__init__",
)

# C++, from the ground up: files without suffix, or folders. A file includes its own header, files of the same folder if the
# table names the folder, and lower floors. The longest match counts.
CPP_FLOORS = (
    ("runtime/compiler",),
    ("runtime/platform", "schema/dtypes", "schema/engine", "schema/kernels", "schema/limits"),
    ("runtime/error", "runtime/span"),
    ("runtime/dtype", "runtime/result", "runtime/threads"),
    ("runtime/memory", "runtime/selected"),
    (
        "runtime/flat",
        "runtime/loader",
        "runtime/tensor",
        "schema/",
    ),  # schema/: the build makes headers of slots there
    (
        "extension/buffer_data_loader",
        "extension/malloc_dynamic_allocator",
        "runtime/data_map",
        "runtime/value",
    ),
    ("runtime/tracer",),
    ("runtime/kernel",),
    ("codegen/", "kernels/", "runtime/kernel_registry", "runtime/program"),
    ("runtime/backend", "runtime/method_meta"),
    ("runtime/backend_options",),
    ("runtime/method",),
    ("backends/",),
    ("build/bare/", "extension/", "runtime/method_loading"),
    ("llm/text/",),
    ("llm/grammar/", "llm/media/"),
    ("llm/engine/",),
    ("build/", "llm/", "runtime/"),  # runtime/: the platforms, method_load.cpp
    ("pybindings/",),
)
CPP = {f"torchette/{name}": floor for floor, names in enumerate(CPP_FLOORS) for name in names}
# Files outside do not include from these folders: the caller passes kernels and backends to the core.
CPP_CLOSED = ("torchette/kernels/", "torchette/backends/")


class Line(NamedTuple):
    """An import: the importing module, the imported module, its location, and whether it is deferred to a call."""

    source: str
    target: str
    place: str
    deferred: bool


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES: dict[str, Path] = {name_of(path): path for path in sorted((ROOT / "torchette").rglob("*.py"))}


def imported_names(node: ast.AST, module: str, path: Path) -> Iterator[str]:
    """Yields every dotted name that the statement imports, including the names imported from a module."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
            package = package[: len(package) - node.level + 1]
            base = ".".join([*package, node.module] if node.module else package)
        yield from (f"{base}.{alias.name}" for alias in node.names)


def python_lines(path: Path, source: str | None = None) -> Iterator[Line]:
    """Yields the imports of a file, including deferred ones, those for the type checker and those by importlib."""
    module = name_of(path)
    source = path.read_text(encoding="utf-8") if source is None else source
    tree = ast.parse(source, str(path))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    deferred = {
        id(inner) for node in ast.walk(tree) if isinstance(node, functions) for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            deferred |= {id(inner) for statement in node.body for inner in ast.walk(statement)}
    by_name, file = "import_module" in source, path.relative_to(ROOT)
    for node in ast.walk(tree):
        if not isinstance(node, ast.Import | ast.ImportFrom | ast.Constant):
            continue
        place = f"{file}:{node.lineno}"
        for name in imported_names(node, module, path):
            target = name
            while target not in MODULES and "." in target:
                target = target.rpartition(".")[0]
            yield Line(module, target, place, id(node) in deferred)
        # In a file that imports by name, a string that names a module is an import: tables of lazy names.
        if by_name and isinstance(node, ast.Constant) and isinstance(node.value, str):
            target = node.value.partition(":")[0]
            if "." in target and target in MODULES:
                yield Line(module, target, place, True)


@functools.cache
def all_lines() -> list[Line]:
    """Returns the imports of every module. Parsing needs seconds, so only the process that runs these tests does it."""
    return [line for path in MODULES.values() for line in python_lines(path)]


def entry_of(module: str, entries: Collection[str]) -> str | None:
    """Returns the entry of a table that covers the module."""
    if f"{module}.__init__" in entries:
        return f"{module}.__init__"
    return max((e for e in entries if module == e or module.startswith(f"{e}.")), key=len, default=None)


def python_violations(lines: list[Line]) -> list[str]:
    violations = []
    for line in lines:
        if line.target.split(".")[0] != "torchette":
            continue
        rooms = [ROOM_OF.get(entry_of(module, ROOM_OF) or "") for module in (line.source, line.target)]
        for module, room in zip((line.source, line.target), rooms, strict=True):
            if room is None:
                violations.append(f"{line.place}: {module} is in no room of ROOMS")
        if None not in rooms and FLOORS[str(rooms[0])] < FLOORS[str(rooms[1])]:
            violations.append(
                f"{line.place}: {line.source} ({rooms[0]}) may not import {line.target}, which is above it ({rooms[1]})"
            )
    return violations


def python_edges(lines: list[Line]) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {}
    for line in lines:
        if line.target in MODULES and line.target != line.source:
            edges.setdefault(line.source, set()).add(line.target)
    return edges


def torch_violations(lines: list[Line]) -> list[str]:
    return [
        f"{line.place}: {line.source} must import without torch"
        for line in lines
        if line.target.split(".")[0] == "torch"
        and not line.deferred
        and entry_of(line.source, {*ROOM_OF, *TORCH_FREE}) in TORCH_FREE
    ]


def circle(edges: Mapping[str, set[str]]) -> list[str] | None:
    """Returns a path that ends at its start, or None."""
    state: dict[str, int] = {}

    def visit(node: str, trail: list[str]) -> list[str] | None:
        state[node] = 1
        for following in sorted(edges.get(node, ())):
            if state.get(following) == 1:
                return [*trail[trail.index(following) :], following]
            if following not in state:
                cycle = visit(following, [*trail, following])
                if cycle:
                    return cycle
        state[node] = 2
        return None

    for start in sorted(edges):
        if start not in state:
            cycle = visit(start, [start])
            if cycle:
                return cycle
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
        return f"{source if here is None else target} is on no floor of CPP"
    if here == there:
        return None
    if there in CPP_CLOSED:
        return f"{source} may not know {target}: {there} is closed to the outside"
    if CPP[there] >= CPP[here]:
        return f"{source} (floor {CPP[here]}) may not include {target} (floor {CPP[there]})"
    return None


def test_python_imports_go_down() -> None:
    assert not python_violations(all_lines()), "\n".join(python_violations(all_lines()))


def test_python_has_no_circle() -> None:
    cycle = circle(python_edges(all_lines()))
    assert cycle is None, " -> ".join(str(MODULES[name].relative_to(ROOT)) for name in cycle or ())


def test_every_room_has_modules() -> None:
    used = {entry_of(module, ROOM_OF) for module in MODULES}
    assert not set(ROOM_OF) - used, "ROOMS has names of modules that are gone"


def test_the_architecture_page_has_these_rooms() -> None:
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    table = text[text.index("| room |") : text.index("The rooms base")]
    assert re.findall(r"^\| ([a-z ]+) \| `", table, re.MULTILINE) == list(ROOMS)
    sources = [path for suffix in ("py", "h", "cpp") for path in (ROOT / "torchette").rglob(f"*.{suffix}")]
    parts = {path.relative_to(ROOT / "torchette").parts[0] for path in sources}
    assert not [part for part in parts if (part if part.endswith(".py") else f"torchette/{part}") not in text]
    named = set(re.findall(r"`(torchette/[\w/.]+)`", text))
    assert not [path for path in named if not (ROOT / path).exists()]


def test_numpy_half_does_not_import_torch() -> None:
    assert not torch_violations(all_lines()), "\n".join(torch_violations(all_lines()))


def test_cpp_includes_go_down() -> None:
    violations = [
        f"{place}: {text}"
        for source, target, place in cpp_includes()
        if (text := cpp_violation(source, target))
    ]
    assert not violations, "\n".join(violations)


def test_cpp_has_no_circle() -> None:
    edges: dict[str, set[str]] = {}
    for source, target, _ in cpp_includes():
        edges.setdefault(source, set()).add(target)
    cycle = circle(edges)
    assert cycle is None, " -> ".join(cycle or ())


def test_the_tables_bite() -> None:
    """An import of an upper room, an unknown module, a cycle, torch and an include from above the core are each found."""
    path = ROOT / "torchette/format/pte.py"
    for source in (
        "from torchette.exir import emit",
        "def f():\n    import torchette.exir.emit",
        "if TYPE_CHECKING:\n    from torchette.exir.emit import EmitterOutput",
        "importlib.import_module('torchette.exir.emit')",
        "from importlib import import_module\nNAMES = {'emit': 'torchette.exir.emit:EmitterOutput'}",
    ):
        (up,) = (line for line in python_lines(path, source) if line.target.startswith("torchette"))
        assert "may not import torchette.exir.emit, which is above it" in python_violations([up])[0], source
    stray = Line("torchette.misc", "torchette.errors", "torchette/misc.py:1", False)
    assert "is in no room" in python_violations([stray])[0]
    there_and_back = [
        *python_lines(path, "import torchette.format.ptd"),
        *python_lines(path.with_name("ptd.py"), "def f():\n    from torchette.format.pte import read"),
    ]
    assert circle(python_edges(there_and_back))
    assert torch_violations(list(python_lines(path, "import torch.nn")))
    assert not torch_violations(list(python_lines(path, "def f():\n    import torch")))
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]
    assert circle({"a": {"b", "c"}, "b": {"c"}}) is None
    assert cpp_violation("torchette/kernels/add.cpp", "torchette/runtime/method.h")
    assert cpp_violation("torchette/runtime/method.cpp", "torchette/kernels/simd.h")
    assert cpp_violation("torchette/runtime/tensor.h", "torchette/runtime/value.h")
    assert not cpp_violation("torchette/runtime/method.h", "torchette/runtime/program.h")
    assert not cpp_violation("torchette/kernels/add.cpp", "torchette/runtime/kernel.h")
