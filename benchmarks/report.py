# SPDX-License-Identifier: BSD-3-Clause
# Out: the size of a report with thousands of instructions, and the time in which a browser opens and draws it.
"""The report of encoders of 110, 1,100 and 5,500 instructions, in a headless Chromium."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from statistics import median

ROUNDS = 5


def main(arguments: list[str] | None = None) -> int:
    from tests.build.chromium import Chromium
    from tests.devtools.report_programs import encoder
    from torchette.devtools.report import write_report

    argparse.ArgumentParser(prog="./dev bench report", description=__doc__).parse_args(arguments)
    timed = "(() => { const start = performance.now(); %s; return performance.now() - start; })()"
    shown = "(() => { const it = performance.getEntriesByType('navigation')[0]; return it.duration; })()"
    steps = {
        "graph": timed % "report.show('graph')",
        "open all": timed % "report.graph.foldAll(true)",
        "memory": timed % "report.show('memory')",
        "search": timed % "report.search.find()",
    }
    print(
        f"{'instructions':>12}{'page kB':>10}{'write ms':>10}{'open ms':>10}"
        + "".join(f"{step + ' ms':>13}" for step in steps)
    )
    with tempfile.TemporaryDirectory() as folder, Chromium(1280, 800) as browser:
        for layers in (10, 100, 500):
            data = encoder(layers)
            start = time.perf_counter()
            page = write_report(data, Path(folder, f"{layers}.html"), source_folders=[])
            written = (time.perf_counter() - start) * 1e3
            times: dict[str, list[float]] = {name: [] for name in ("open", *steps)}
            for _ in range(ROUNDS):
                browser.open("about:blank", "true")
                browser.open(page.as_uri(), "!!window.report")
                times["open"].append(browser.value(shown))
                for name, expression in steps.items():
                    times[name].append(browser.value(expression))
            cells = "".join(
                f"{median(held):>{10 if name == 'open' else 13}.0f}" for name, held in times.items()
            )
            print(f"{layers * 11:>12,}{page.stat().st_size / 1e3:>10.0f}{written:>10.0f}{cells}")
    return 0
