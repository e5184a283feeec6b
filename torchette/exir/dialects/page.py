# SPDX-License-Identifier: BSD-3-Clause
# In: the dialects. Out: the page about them. `./dev docs` runs `python -m torchette.exir.dialects`.
"""The page about dialects, printed from their tables."""

from __future__ import annotations

from torchette.exir.dialects import DIALECTS, Check, ProgramCheck, core_operators, edge_extras
from torchette.exir.dialects._refused import REFUSED


def page() -> str:
    """Returns the page in Markdown."""
    lines = [
        "# Dialects",
        "",
        "A dialect is a set of rules that a program satisfies after a stage of the compiler. `torchette verify` and",
        "`torchette.exir.verify(program, name)` check them and report every violation at once: its code, the node with",
        "its neighbours, the line of your model, and a remedy. The compiler checks the dialect after each stage.",
        "",
        "This page is generated from `torchette/exir/dialects/`: `python -m torchette.exir.dialects`.",
    ]
    rules: dict[str, tuple[str, str, list[str]]] = {}
    checks: tuple[Check | ProgramCheck, ...]
    for dialect in DIALECTS.values():
        code, _, remedy = dialect.refusal
        lines += ["", f"## {dialect.name}", "", dialect.sentence]
        rules[code] = (f"Calls have targets that {dialect.name} accepts.", remedy, [dialect.name])
        checks = (*dialect.checks, *dialect.program_checks)
        for check in checks:
            rules.setdefault(check.code, (check.sentence, check.remedy, []))[2].append(dialect.name)
    lines += ["", "## Rules", "", "| code | rule | dialects | remedy |", "|---|---|---|---|"]
    for code, (sentence, remedy, names) in rules.items():
        where = "all" if len(names) == len(DIALECTS) else ", ".join(names)
        lines.append(f'| <a id="{code}"></a>`{code}` | {sentence} | {where} | {remedy} |')
    names = core_operators()
    lines += ["", f"## The {len(names)} core ATen operators", "", ", ".join(f"`{name}`" for name in names)]
    extras = edge_extras()
    lines += [
        "",
        f"## The {len(extras)} additional operators of edge",
        "",
        ", ".join(f"`{n}`" for n in extras),
    ]
    lines += [
        "",
        f"## The {len(REFUSED)} operators of torch.nn.functional that are rejected",
        "",
        "All other operators of `torch.nn.functional` are decomposed to operators of the two lists above.",
        "",
        "| operator | reason |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"
