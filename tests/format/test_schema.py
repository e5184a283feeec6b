# SPDX-License-Identifier: BSD-3-Clause
# The schema parser, the generated C++ header, and a comparison with ExecuTorch's schema.

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from torchette.format import schema

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / "torchette" / "schema" / "program.fbs"

SMALL = """
namespace a.b;
file_identifier "TEST";
enum Colour : ubyte { RED, GREEN = 4, BLUE }  // BLUE is 5
table Leaf { number: long = -3; }
/* a comment
   of two lines */
union Any { Leaf, Root }
table Root {
  flag: bool = true;
  colour: Colour = GREEN;
  any: Any;
  leaves: [Leaf] (omit_empty);
  bytes: [ubyte] (force_align: 32);
  ratio: float = 0.5;
}
root_type Root;
"""


def test_parses_defaults_slots_and_attributes() -> None:
    parsed = schema.parse(SMALL)
    assert (parsed.root, parsed.identifier, parsed.namespace) == ("Root", b"TEST", "a.b")
    assert parsed.types["Colour"].BLUE == 5
    assert [tag.name for tag in parsed.types["Any"]] == ["NONE", "Leaf", "Root"]
    offsets = {field.name: field.offset for field in parsed.tables["Root"]}
    # a union has two entries, the tag first
    assert offsets == {"flag": 4, "colour": 6, "any": 10, "leaves": 12, "bytes": 14, "ratio": 16}
    root = parsed.types["Root"]()
    assert (root.flag, root.colour, root.any, root.leaves, root.bytes, root.ratio) == (
        True,
        4,
        None,
        [],
        b"",
        0.5,
    )
    assert parsed.types["Leaf"]().number == -3
    fields = {field.name: field for field in parsed.tables["Root"]}
    assert fields["leaves"].omit_empty and not fields["bytes"].omit_empty
    assert fields["bytes"].force_align == 32


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("table A {\n x: int\n}", "line 3: expected ;"),
        ("table A { x: Unknown; }", "x: unknown type Unknown"),
        ("struct A { x: int; }", "line 1: unexpected struct"),
        ("enum A : int { X = 1", "found the end"),
    ],
)
def test_syntax_error_names_line(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        schema.parse(text)


def test_schema_equals_executorch_schema() -> None:
    """Every table, field, slot, type, default, alignment, enum value and union tag."""
    package = importlib.util.find_spec("executorch")
    if package is None or package.submodule_search_locations is None:
        pytest.skip("executorch is not installed")
    folder = Path(package.submodule_search_locations[0]) / "exir" / "_serialize"
    text = (folder / "program.fbs").read_text()
    assert 'include "scalar_type.fbs";' in text
    text = text.replace('include "scalar_type.fbs";', (folder / "scalar_type.fbs").read_text())
    peer, torchette_schema = schema.parse(text), schema.load(PROGRAM)

    def wire(parsed: schema.Schema) -> dict[str, object]:
        numbers = {
            name: {m.name: m.value for m in parsed.types[name]} for name in [*parsed.enums, *parsed.unions]
        }
        # whether an empty vector is written is up to the writer, not part of the format
        tables = {
            name: [
                (f.name, f.kind, f.offset, f.type, f.item, f.code, f.default, f.force_align)
                for f in fields
                if f.offset < 64  # later fields are extensions of Torchette, which other readers ignore
            ]
            for name, fields in parsed.tables.items()
        }
        return {"root": parsed.root, "identifier": parsed.identifier, "numbers": numbers, "tables": tables}

    # ExecuTorch's records (exir/schema.py) have these types, its schema does not
    expected = wire(peer)
    expected["numbers"]["ScalarType"] |= {"COMPLEX32": 8, "COMPLEX64": 9, "COMPLEX128": 10}  # type: ignore[index]
    assert wire(torchette_schema) == expected


@pytest.mark.parametrize("path", sorted(PROGRAM.parent.glob("*.fbs")), ids=lambda path: path.stem)
def test_cmake_writes_the_same_header(path: Path, tmp_path: Path) -> None:
    """A C++ build needs no Python."""
    cmake = shutil.which("cmake")
    if cmake is None:
        pytest.skip("no cmake")
    header = tmp_path / "header.h"
    script = path.parent / "header.cmake"
    for _ in range(2):
        before = header.stat().st_mtime_ns if header.exists() else None
        subprocess.run([cmake, f"-DSCHEMA={path}", f"-DHEADER={header}", "-P", script], check=True)
        assert header.read_text() == schema.cpp_header(schema.load(path), path.name)
        assert before in (None, header.stat().st_mtime_ns)


def test_cpp_header_compiles_and_has_the_slots(tmp_path: Path) -> None:
    header = tmp_path / "program_schema.h"
    script = ROOT / "torchette" / "format" / "schema.py"
    # by path and isolated: a C++ build must not need the package
    subprocess.run([sys.executable, "-I", script, PROGRAM, "--cpp", header], check=True, cwd=tmp_path)
    text = header.read_text()
    assert 'kFileIdentifier[] = "ET12"' in text
    before = header.stat().st_mtime_ns
    subprocess.run([sys.executable, "-I", script, PROGRAM, "--cpp", header], check=True, cwd=tmp_path)
    assert header.stat().st_mtime_ns == before, "an unchanged header must not cause a rebuild"
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    (tmp_path / "check.cpp").write_text(
        '#include "program_schema.h"\n'
        "using namespace torchette::schema;\n"
        "static_assert(Program::kVersion == 4 && Program::kNamedData == 18);\n"
        "static_assert(EValue::kValType == 4 && EValue::kVal == 6);\n"
        "static_assert(Tensor::kExtraTensorInfo == 22 && ExtraTensorInfo::kDeviceTypeDefault == DeviceType::CPU);\n"
        "static_assert(static_cast<int>(KernelTypes::OptionalTensorList) == 11);\n"
        "static_assert(sizeof(ScalarType) == 1 && static_cast<int>(ScalarType::BOOL) == 11);\n"
    )
    flags = ["-std=c++17", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"]
    subprocess.run([compiler, *flags, "check.cpp"], check=True, cwd=tmp_path)
