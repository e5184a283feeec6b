# SPDX-License-Identifier: BSD-3-Clause
# A model with an index out of range fails at run time. Every interface reports the source line of the model.

from __future__ import annotations

import inspect
import json
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.building import built, run  # noqa: E402
from torchette.cli import main  # noqa: E402
from torchette.devtools.inspect import describe  # noqa: E402
from torchette.errors import ExecutionError, TorchetteError  # noqa: E402
from torchette.exir import ExecutorchBackendConfig, to_edge  # noqa: E402
from torchette.runtime import Runtime  # noqa: E402


class Rows(torch.nn.Module):
    """A model with two branches, which may be two chains. One branch reads rows of a table."""

    def forward(self, table, index):
        first = (table * 2 + 1).exp().sum()
        rows = table.exp()[index]
        return first, rows


TABLE, INDEX = torch.ones(3, 2), torch.tensor([2, 0])
OUTSIDE = torch.tensor([0, 7])


def lower(**config) -> bytes:
    exported = torch.export.export(Rows().eval(), (TABLE, INDEX))
    return to_edge(exported).to_executorch(ExecutorchBackendConfig(**config)).buffer


def line_of(text: str) -> str:
    """Returns the location of a line of `Rows` in the format of a file."""
    lines, start = inspect.getsourcelines(Rows)
    number = start + next(i for i, line in enumerate(lines) if text in line)
    return f"{Path(__file__).name}:{number}"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("rows")
    (folder / "rows.pte").write_bytes(lower())
    np.save(folder / "table.npy", TABLE.numpy())
    np.save(folder / "outside.npy", OUTSIDE.numpy())
    return folder / "rows.pte"


@pytest.mark.parametrize("threads", [1, 2])
def test_python_names_the_line(threads: int) -> None:
    program = Runtime.get().load_program(lower(parallel=threads))
    method = program.load_method("forward", threads=threads)
    with pytest.raises(ExecutionError) as caught:
        method.execute([TABLE, OUTSIDE])
    assert f"{line_of('[index]')}, in forward" in str(caught.value)
    assert torch.equal(method.execute([TABLE, INDEX])[1], TABLE.exp()[INDEX])


def test_error_reports_the_instruction_without_source_lines() -> None:
    method = Runtime.get().load_program(lower(source_lines=False)).load_method("forward")
    with pytest.raises(ExecutionError, match="instruction") as caught:
        method.execute([TABLE, OUTSIDE])
    assert "test_source_lines" not in str(caught.value)


def test_stack_trace_reports_the_innermost_line_outside_torch() -> None:
    method = Runtime.get().load_program(lower(emit_stacktrace=True)).load_method("forward")
    with pytest.raises(ExecutionError) as caught:
        method.execute([TABLE, OUTSIDE])
    assert f"{line_of('[index]')}, in forward: rows = table.exp()[index]" in str(caught.value)


@pytest.mark.parametrize("config", [{}, {"emit_stacktrace": True}])
def test_the_module_is_named_with_its_line(config: dict) -> None:
    class Outer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lookups = torch.nn.ModuleList([Rows()])

        def forward(self, table, index):
            return self.lookups[0](table, index)

    exported = torch.export.export(Outer().eval(), (TABLE, INDEX))
    data = to_edge(exported).to_executorch(ExecutorchBackendConfig(**config)).buffer
    with pytest.raises(ExecutionError) as caught:
        Runtime.get().load_program(data).load_method("forward").execute([TABLE, OUTSIDE])
    assert f"{line_of('[index]')}, in forward of lookups.0" in str(caught.value)
    modules = {
        (instruction.module, instruction.module_type)
        for instruction in describe(data).methods[0].instructions
    }
    assert modules == {("lookups.0", "Rows")}


def test_cancelled_execution_reports_no_line(model: Path) -> None:
    method = Runtime.get().load_program(model).load_method("forward")
    method.cancel()
    with pytest.raises(ExecutionError, match="cancelled") as caught:
        method.execute([TABLE, INDEX])
    assert "test_source_lines" not in str(caught.value)


def test_the_runner_names_the_line(model: Path) -> None:
    files = f"{model.with_name('table.npy')},{model.with_name('outside.npy')}"
    text = run(built("executor_runner"), "--model_path", model, "--inputs", files, status=1).stderr
    assert f"{line_of('[index]')}, in forward" in text


def test_profile_run_and_inspect_name_the_line(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = [
        word for name in ("table.npy", "outside.npy") for word in ("--inputs", str(model.with_name(name)))
    ]
    for verb in ("profile", "run"):
        assert main([verb, str(model), *inputs]) == 2
        assert f"{line_of('[index]')}, in forward" in capsys.readouterr().err
    assert main(["profile", str(model), "--json", "-n", "2"]) == 0
    rows = {row["name"]: row["source"] for row in json.loads(capsys.readouterr().out)}
    assert rows["aten::index.Tensor_out"].endswith(line_of("[index]"))
    assert main(["inspect", str(model)]) == 0
    assert line_of("[index]") in capsys.readouterr().out
    (method,) = describe(model).methods
    assert all(item.source for item in method.instructions)


def test_damaged_source_lines_do_not_crash() -> None:
    """Overwritten bytes in the records of source lines cause an error and not a crash."""
    data = lower()
    name = data.index(Path(__file__).name.encode())
    for at in range(name - 160, name + 60):
        for value in (0, 0x7F, 0xFF):
            damaged = bytearray(data)
            damaged[at] = value
            try:
                method = Runtime.get().load_program(bytes(damaged)).load_method("forward")
                method.execute([TABLE, OUTSIDE])
            except TorchetteError as error:
                assert str(error)
