# SPDX-License-Identifier: BSD-3-Clause
# The results of a comparison, as data.
"""`DiffResult`: the difference of each operator of a file, the faults, and the stages from eager to the device."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from torchette import notebook
from torchette.devtools.diff.judge import EQUAL, Numbers
from torchette.devtools.inspect import Table
from torchette.units import counted

KINDS = {
    "kernel": "the runtime's kernel and torch's operator differ on the same inputs",
    "backend": "the backend and the operators that were delegated to it differ on the same inputs",
    "pass": "the compiler changed the result of the model",
    "weight": "a stored constant differs from the model's constant",
    "layout": "a tensor is read with another dim order than it was written with",
    "plan": "an instruction overwrites a value that is still needed",
    "quantization": "a scale or zero point differs from the model's value",
    "export": "the program that torch.export captured differs from the module",
    "run": "the method fails",
}


@dataclass
class Fault:
    """A location at which results depart.

    Attributes:
        kind: a key of `KINDS`.
        operator: the operator in the file, or the operator that the file lacks.
        instruction: index, as in `torchette inspect`; None if the file has no such instruction.
        source: line of the model.
        module: path of the module in the model, if known.
        node: name of the node in the compiler's graph, if known.
        reason: description of the difference.
        inputs: name of the inputs for which the fault was found.
        numbers: metrics of the difference.
    """

    kind: str
    operator: str
    instruction: int | None
    source: str
    reason: str
    inputs: str
    numbers: Numbers = EQUAL
    module: str = ""
    node: str = ""

    def __str__(self) -> str:
        at = "" if self.instruction is None else f"instruction {self.instruction}, "
        location = " in ".join(text for text in (self.source, self.module) if text)
        return f"{at}{self.operator}{f' at {location}' if location else ''}: {KINDS[self.kind]}: {self.reason} (on {self.inputs})"


@dataclass
class OperatorRow:
    """An instruction over all inputs and loop iterations: its largest difference from torch on the same inputs."""

    instruction: int
    operator: str
    source: str
    numbers: Numbers = EQUAL
    against_model: Numbers | None = None
    verdict: str = "not run"  # ok, departs, no reference, not run
    module: str = ""
    node: str = ""


@dataclass
class StageRow:
    """The results of a stage compared with eager: metrics of the worst output."""

    stage: str
    inputs: str
    numbers: Numbers


@dataclass
class DiffResult:
    """Result of `compare`. Prints as a table."""

    method: str
    faults: list[Fault] = field(default_factory=list)
    operators: list[OperatorRow] = field(default_factory=list)
    stages: list[StageRow] = field(default_factory=list)
    outputs: list[Numbers | None] = field(default_factory=list)  # file against eager, on the first inputs
    inputs: dict[str, str] = field(default_factory=dict)  # name -> "compared", or the reason why not
    random_inputs: list[str] = field(default_factory=list)  # name and type of each random input

    @property
    def equal(self) -> bool:
        """Whether there are no faults."""
        return not self.faults

    @property
    def first(self) -> Fault | None:
        """The first fault in execution order."""
        return self.faults[0] if self.faults else None

    def receipt_entries(self, seed: int | None = None) -> dict[str, Any]:
        """Returns the entries for a receipt: errors of the outputs, the compared inputs, and exceptions.

        Args:
            seed: seed of the inputs; None if the user passed them.
        """
        outputs = [
            {
                "output": index,
                "max_abs": numbers.max_abs,
                "snr_db": numbers.snr if math.isfinite(numbers.snr) else None,
            }
            for index, numbers in enumerate(self.outputs)
            if numbers is not None
        ]
        without = sorted({row.operator for row in self.operators if row.verdict == "no reference"})
        refused = [f"{name}: {text}" for name, text in self.inputs.items() if text != "compared"]
        return {
            "compared": [{"method": self.method, "inputs": {"seed": seed}, "outputs": outputs}]
            if outputs
            else [],
            "instructions_compared": sum(row.verdict == "ok" for row in self.operators),
            "inputs_compared": [name for name, text in self.inputs.items() if text == "compared"],
            "exceptions": [
                *(str(fault) for fault in self.faults),
                *(f"{operator}: no reference" for operator in without),
                *refused,
            ],
        }

    def to_dict(self) -> dict[str, Any]:
        """Returns dicts, lists, strings, numbers and None; values that are not finite are strings."""
        fields = {"equal": self.equal, **asdict(self)}
        result: dict[str, Any] = _finite(fields)
        return result

    def tables(self) -> list[Table]:
        """Returns the stages and the operators as tables."""
        tables: list[Table] = []
        if self.stages:
            stages: list[tuple[Any, ...]] = [
                (stage.stage, stage.inputs, *_cells(stage.numbers)) for stage in self.stages
            ]
            tables.append(
                Table("results of each stage, compared with eager", ("stage", "inputs", *_COLUMNS), stages)
            )
        with_model = any(row.against_model for row in self.operators)
        rows: list[list[Any]] = []
        for row in self.operators:
            model = [_number(row.against_model.max_abs) if row.against_model else ""] if with_model else []
            rows.append(
                [
                    row.instruction,
                    row.operator,
                    *_cells(row.numbers),
                    *model,
                    row.verdict,
                    row.module,
                    row.source,
                ]
            )
        columns = [
            "#",
            "operator",
            *_COLUMNS,
            *(["from model"] if with_model else []),
            "verdict",
            "module",
            "source",
        ]
        if not any(row.module for row in self.operators):
            columns.remove("module")
            rows = [[*row[:-2], row[-1]] for row in rows]
        title = f"{self.method}: operators, each on its actual inputs"
        tables.append(Table(title, tuple(columns), [tuple(row) for row in rows]))
        return tables

    def summary(self) -> str:
        """Returns one line if there are no faults, else one line per fault."""
        compared = sum(text == "compared" for text in self.inputs.values())
        judged = sum(row.verdict in ("ok", "departs") for row in self.operators)
        if self.equal:
            return f"nothing departs: {judged} of {len(self.operators)} instructions compared on {counted(compared, 'input')}"
        first, *other_faults = self.faults
        return "\n".join([f"first to depart: {first}", *(f"also: {fault}" for fault in other_faults)])

    def __str__(self) -> str:
        return "\n\n".join([self.summary(), *map(str, self.tables())])

    def _repr_html_(self) -> str:
        return notebook.tables(self.tables(), self.summary())


_COLUMNS = ["max abs", "SNR dB", "cosine", "ULP"]


def _cells(numbers: Numbers) -> list[str]:
    return [_number(numbers.max_abs), f"{numbers.snr:.1f}", f"{numbers.cosine:.6f}", _number(numbers.ulp)]


def _number(value: float) -> str:
    return "0" if value == 0 else f"{value:.3g}"


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
