# SPDX-License-Identifier: BSD-3-Clause
# The dialects come in, the page goes out: `python -m torchette.exir.dialects`, which `./dev docs` runs.
"""The page about dialects, printed from their tables."""

from __future__ import annotations

from torchette.exir.dialects import DIALECTS, Check, ProgramCheck, core_operators, edge_extras
from torchette.exir.dialects._refused import REFUSED


def page() -> str:
    """The page in Markdown."""
    lines = [
        "# Dialects",
        "",
        "A dialect is the set of rules that a program keeps after a stage of the compiler. `torchette verify` and",
        "`torchette.exir.verify(program, name)` check them and report every violation at once: its code, the node with",
        "its neighbours, the line of your model, and what to try. The compiler checks after each stage.",
        "",
        "This page is printed from `torchette/exir/dialects/`: `python -m torchette.exir.dialects`.",
    ]
    rules: dict[str, tuple[str, str, list[str]]] = {}
    checks: tuple[Check | ProgramCheck, ...]
    for dialect in DIALECTS.values():
        code, _, remedy = dialect.refusal
        lines += ["", f"## {dialect.name}", "", dialect.sentence]
        rules[code] = (f"Calls have the targets that {dialect.name} accepts.", remedy, [dialect.name])
        checks = (*dialect.checks, *dialect.program_checks)
        for check in checks:
            rules.setdefault(check.code, (check.sentence, check.remedy, []))[2].append(dialect.name)
    lines += ["", "## Rules", "", "| code | rule | in | what to try |", "|---|---|---|---|"]
    for code, (sentence, remedy, names) in rules.items():
        where = "all" if len(names) == len(DIALECTS) else ", ".join(names)
        lines.append(f'| <a id="{code}"></a>`{code}` | {sentence} | {where} | {remedy} |')
    names = core_operators()
    lines += ["", f"## The {len(names)} core ATen operators", "", ", ".join(f"`{name}`" for name in names)]
    extras = edge_extras()
    lines += [
        "",
        f"## The {len(extras)} operators that edge accepts besides",
        "",
        ", ".join(f"`{n}`" for n in extras),
    ]
    lines += [
        "",
        f"## The {len(REFUSED)} operators of torch.nn.functional that are refused",
        "",
        "Everything else that `torch.nn.functional` calls becomes operators of the two lists above.",
        "",
        "| operator | why |",
        "|---|---|",
        *(f"| `{name}` | {reason} |" for name, reason in REFUSED.items()),
    ]
    return "\n".join(lines) + "\n"
