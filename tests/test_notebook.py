# SPDX-License-Identifier: BSD-3-Clause
# Results in three forms: dicts, tables, HTML for notebooks. C++ libraries print nothing.

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tests.devtools.report_programs import encoder
from torchette import notebook
from torchette.devtools.device_memory import bills
from torchette.devtools.diff.judge import Numbers
from torchette.devtools.diff.result import DiffResult, OperatorRow, StageRow
from torchette.devtools.inspect import describe
from torchette.devtools.profile import Operation, Profile
from torchette.devtools.pte_diff import compare
from torchette.devtools.size import sizes
from torchette.runtime import Runtime

ROOT = Path(__file__).resolve().parents[1]


class Checker(HTMLParser):
    """Checks that every element is closed in order, and that no script runs and no file is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        assert {name for name, _ in attrs} <= {"style", "class"}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def checked(html: str) -> Checker:
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert not checker.open and checker.tags <= {"div", "table", "thead", "tbody", "tr", "th", "td"}
    # colours are inherited from the notebook, which may be light or dark
    assert not re.search(r"#[0-9a-f]{3,6}\b|\brgba?\(|:\s*(?:white|black)\b", html)
    return checker


def profile(data: bytes) -> Profile:
    return Profile(
        "net.pte, forward", 2, [Operation("aten::add.out", 0, None, "net.py:3", [1e-3, 2e-3], 2)], []
    )


def departs(data: bytes) -> DiffResult:
    numbers = Numbers(max_abs=0.5, snr=float("inf"), cosine=0.9, ulp=3.0)
    row = OperatorRow(0, "aten::add.out", "net.py:3", numbers, verdict="departs", module="layers.0")
    return DiffResult("forward", operators=[row], stages=[StageRow("edge", "given", numbers)])


@pytest.mark.parametrize(
    "make",
    [
        describe,
        lambda data: bills(data, "cortex-m4")[0],
        profile,
        sizes,
        lambda data: compare(data, encoder(2)),
        departs,
    ],
    ids=["description", "bill", "profile", "sizes", "differences", "diff"],
)
def test_results_of_devtools_have_three_forms(make: Any) -> None:
    result = make(encoder(1))
    json.dumps(result.to_dict(), allow_nan=False)
    assert len(str(result).splitlines()) > 1 and "object at 0x" not in str(result)
    assert "<table" in result._repr_html_() and checked(result._repr_html_()).text


def test_programs_and_methods_show_their_signature() -> None:
    torchette = pytest.importorskip("torchette")
    data = encoder(1)
    program = Runtime.get().load_program(data)
    method = program.load_method("forward")
    model = torchette.load(data)
    for shown in (program, method, program.metadata("forward"), model, model.methods["forward"]):
        assert "float32[64, 64]" in checked(shown._repr_html_()).text


def test_results_of_the_compiler_have_three_forms() -> None:
    torch = pytest.importorskip("torch")
    import torchette
    from torchette.exir import to_edge

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()).eval()
    edge = to_edge(torch.export.export(net, (torch.ones(1, 4),)))
    program = edge.to_executorch()
    for shown in (edge, program, edge.delegation(), program.report()):
        assert checked(shown._repr_html_()).text
    for result in (edge.delegation(), program.report()):
        json.dumps(result.to_dict(), allow_nan=False)
        assert len(str(result).splitlines()) > 1
    model = torchette.compile(net, (torch.ones(1, 4),))
    assert "float32[1, 4]" in checked(model._repr_html_()).text
    assert set(model.delegations) == {"forward"}


def test_names_are_text() -> None:
    evil = '<script>alert("1")</script>'
    html = notebook.tables([(evil, (evil,), [(evil,)])], evil)
    assert "<script" not in html and checked(html).text.count(evil) == 4
    assert "&lt;script" in describe(encoder(1, name=evil))._repr_html_()


def test_long_tables_are_cut() -> None:
    html = notebook.tables([("", ("n",), [(n,) for n in range(1000)])])
    assert html.count("<tr") == notebook.ROWS + 1 and "and 988 more rows" in html


def test_tables_for_pandas_and_csv() -> None:
    table = describe(encoder(1)).data("instructions")
    assert table.to_csv().splitlines()[0] == "method,index,kind,operator,module,source,inputs,outputs"
    assert "forward,0,kernel,aten::mm.out,layers.0.attention.query,encoder.py:10," in table.to_csv()
    assert {len(describe(encoder(1)).data(table_name).rows) for table_name in ("values", "constants")} == {
        19,
        6,
    }
    with pytest.raises(ValueError, match="constants"):
        describe(encoder(1)).data("weights")
    pandas = pytest.importorskip("pandas")
    frame = describe(encoder(2)).to_dataframe()
    assert isinstance(frame, pandas.DataFrame) and len(frame) == 22
    assert profile(b"").to_dataframe().share.sum() == 1


def test_only_dataframes_import_pandas() -> None:
    code = (
        "import sys; import torchette.devtools.inspect, torchette.devtools.profile, torchette.devtools.report;"
        "sys.exit('pandas' in sys.modules or 'torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Sources that may write to a terminal: programs, the log of a platform, which a library may replace, and functions for printing.
SPEAKERS = {
    "torchette/llm/engine/runner/llm_runner.cpp",
    "torchette/llm/engine/stats.cpp",
    "torchette/extension/runner/executor_runner.cpp",
    "torchette/runtime/platform_posix.cpp",
}
SPEAKS = re.compile(
    r"\b(?:std::)?(?:v?f?printf|vprintf|dprintf|f?puts|putchar|f?putc|perror)\s*\(|std::(?:cout|cerr|clog)\b|<iostream>"
)


def test_no_library_of_ours_prints() -> None:
    files = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "torchette").rglob("*")
        if path.suffix in (".cpp", ".h", ".c", ".def")
        for line in path.read_text(encoding="utf-8").splitlines()
        if SPEAKS.search(line.partition("//")[0])
    }
    assert files == SPEAKERS


def test_failures_print_nothing() -> None:
    """Damaged files, wrong inputs and failing calls raise, and write neither to standard output nor to standard error."""
    code = """
import numpy as np, logging, sys
sys.path.insert(0, ".")
from tests.devtools.report_programs import encoder
from torchette.errors import TorchetteError
from torchette.runtime import Runtime
logging.getLogger("torchette").addHandler(logging.NullHandler())
data, failed = encoder(1), 0
for attempt in (
    lambda: Runtime.get().load_program(data[:200]),
    lambda: Runtime.get().load_program(data).load_method("forward").execute([np.ones((1, 1), np.float32)]),
    lambda: Runtime.get().load_program(data).load_method("backward"),
):
    try:
        attempt()
    except (TorchetteError, KeyError):
        failed += 1
sys.exit(failed)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")
