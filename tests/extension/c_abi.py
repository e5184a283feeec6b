# SPDX-License-Identifier: BSD-3-Clause
# In: torchette/extension/c_api.h and the shared library. Out: c_api.abi, the binary interface as text with one entry per line. A
# test compares it with the build. After an intended change, `python -m tests.extension.c_abi` writes it again.

from __future__ import annotations

import re
import tempfile
from pathlib import Path

from tests.building import BUILD, CC, ROOT, built, run

STORED = Path(__file__).with_name("c_api.abi")
HEADER = ROOT / "torchette/extension/c_api.h"


def exported(library: Path) -> list[str]:
    """Returns the C symbols that the library exports."""
    listed = run("nm", "-D", "--defined-only", library).stdout.splitlines()
    return sorted(name for line in listed if not (name := line.split()[-1]).startswith("_"))


def declared() -> dict[str, str]:
    """Returns the prototype of each function of the header by name."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
    matches = re.findall(r"^TORCHETTE_API ([^;]+?\b(torchette_\w+)\([^;]*\));", text, re.M)
    return {name: " ".join(prototype.split()) for prototype, name in matches}


def measured() -> list[str]:
    """Returns the values of constants, the sizes of structs and the offsets of their members from the C compiler."""
    text = re.sub(r"/\*.*?\*/", "", HEADER.read_text(encoding="utf-8"), flags=re.S)
    constants = re.findall(r"#define (TORCHETTE_\w+) [0-9]", text)
    for body in re.findall(r"enum \{(.*?)\};", text, re.S):
        constants += re.findall(r"(TORCHETTE_\w+) =", body)
    lines = [f'printf("constant {name} %ld\\n", (long)({name}));' for name in constants]
    for body, struct in re.findall(r"typedef struct \{(.*?)\} (\w+);", text, re.S):
        lines.append(f'printf("struct {struct} %zu\\n", sizeof({struct}));')
        for statement in body.split(";")[:-1]:
            member = re.search(r"\(\*(\w+)\)|(\w+)(?:\[\w+\])?\s*$", statement)
            assert member, statement
            name = member[1] or member[2]
            lines.append(
                f'printf("member {struct}.{name} %zu %zu\\n", offsetof({struct}, {name}),'
                f" sizeof((({struct}*)0)->{name}));"
            )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "measure.c")
        source.write_text(
            f'#include <stdio.h>\n#include "{HEADER.relative_to(ROOT)}"\nint main(void) {{ {"".join(lines)} }}'
        )
        run(CC, "-std=c99", "-Wall", "-Werror", "-I", ROOT, source, "-o", Path(folder, "measure"))
        return run(Path(folder, "measure")).stdout.splitlines()


def dump(library: Path) -> str:
    prototypes = declared()
    functions = [f"function {prototypes.get(name, name)}" for name in exported(library)]
    return "".join(f"{line}\n" for line in (*functions, *measured()))


if __name__ == "__main__":
    built("torchette_shared")
    STORED.write_text(dump(BUILD / "libtorchette.so"), encoding="utf-8")
