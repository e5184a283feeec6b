# SPDX-License-Identifier: BSD-3-Clause
# The architectures of the zoo on XNNPACK and Vulkan. For the given names, counts delegate calls and the operators
# outside of them, and compares the results with eager. These are the rows of benchmarks/delegate-calls.md and
# benchmarks/vulkan-calls.md.
"""Delegate calls of each architecture; ``python -m tests.models.delegates [--vulkan] [NAME ...]`` updates them."""

from __future__ import annotations

import collections
import re
import statistics
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.export import export

from tests.models import architectures
from torchette.backends.vulkan import VulkanPartitioner
from torchette.backends.xnnpack import XnnpackPartitioner
from torchette.errors import DelegationWarning
from torchette.exir import to_edge_transform_and_lower
from torchette.exir.delegation.delegate import is_delegate_call
from torchette.exir.graph import calls
from torchette.runtime import Runtime

FOLDER = Path(__file__).parents[2] / "benchmarks"
PAGE, VULKAN_PAGE = FOLDER / "delegate-calls.md", FOLDER / "vulkan-calls.md"
_PARTITIONERS = {PAGE: XnnpackPartitioner, VULKAN_PAGE: VulkanPartitioner}
_WHAT = {
    PAGE: (
        "XNNPACK's calls",
        "Operators outside of the calls are not supported by XNNPACK; most process integers such as token ids. MACs: the share",
        "of multiply-adds that the calls compute.",
        "",
    ),
    VULKAN_PAGE: (
        "Vulkan's calls",
        "Operators outside of the calls have no shader or need 64-bit arithmetic. MACs: the share of multiply-adds that the calls",
        "compute.",
        "--vulkan",
    ),
}
_ROW = re.compile(r"^\| `([\w/.-]+)` \| (\d+) \| ([\d.]+) % \| (\d+) \| (.*) \|$", re.M)
_NAMED = 4  # maximum number of operators listed in a row


@dataclass
class Row:
    """The result of an architecture.

    Attributes:
        calls: number of delegate calls.
        share: multiply-adds that the delegate calls compute, in percent.
        outside: number of operator calls outside of delegates.
        why: the most frequent of these operators with their counts.
        difference: difference from eager relative to its largest value; 0 if the model was not run.
    """

    name: str
    calls: int
    share: float
    outside: int
    why: str
    difference: float = 0.0


def measure(name: str, where: Path = PAGE, max_macs: float = float("inf")) -> Row:
    """Lowers one architecture for the backend of a page. Runs and compares it unless it exceeds `max_macs`."""
    module, args = architectures.build(name)
    expected = architectures.reference(module, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DelegationWarning)
        edge = to_edge_transform_and_lower(export(module, args), partitioner=_PARTITIONERS[where]())
    placements = edge.delegation().placements
    left = [item for item in placements if item.backend is None]
    macs = sum(item.macs for item in placements)
    share = 100 * (1 - sum(item.macs for item in left) / macs) if macs else 100.0
    counts = collections.Counter(item.op.removeprefix("aten.").partition(".")[0] for item in left)
    named = ", ".join(f"{op} {count}" for op, count in counts.most_common(_NAMED))
    count = sum(map(is_delegate_call, calls(edge.exported_program())))
    if macs > max_macs:
        return Row(name, count, share, len(left), named)
    method = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    actual = torch.as_tensor(method.execute(list(args))[0])
    scale = max(expected.abs().max().item(), 1e-6)
    difference = (actual - expected).abs().max().item() / scale
    return Row(name, count, share, len(left), named, difference)


def rows(where: Path = PAGE) -> dict[str, Row]:
    """Reads the rows of a page."""
    text = where.read_text(encoding="utf-8") if where.exists() else ""
    return {
        name: Row(name, int(count), float(share), int(outside), why)
        for name, count, share, outside, why in _ROW.findall(text)
    }


def page(row_by_name: dict[str, Row], where: Path = PAGE) -> str:
    """Returns the text of a page."""
    title, first, second, option = _WHAT[where]
    known = [row_by_name[name] for name in architectures.NAMES if name in row_by_name]
    counts = [row.calls for row in known]
    lines = [
        f"# {title}",
        "",
        f"`{_PARTITIONERS[where].__name__}` lowers {len(known)} architectures: {counts.count(1)} become one call; the median is {statistics.median(counts):g}.",
        first,
        second,
        "",
        f"`{f'python -m tests.models.delegates {option}'.strip()}` writes this page; `./dev test --full` tests it.",
        "",
        "| architecture | calls | MACs | outside | of these |",
        "|---|---:|---:|---:|---|",
        *(f"| `{r.name}` | {r.calls} | {r.share:.1f} % | {r.outside} | {r.why} |" for r in known),
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    names = [name for name in sys.argv[1:] if name != "--vulkan"]
    target, most = (VULKAN_PAGE, 0.0) if "--vulkan" in sys.argv else (PAGE, float("inf"))
    table = rows(target)
    for each in names or architectures.NAMES:
        table[each] = measure(each, target, most)
        print(table[each], flush=True)
        target.write_text(page(table, target), encoding="utf-8")
