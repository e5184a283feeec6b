# SPDX-License-Identifier: BSD-3-Clause
# Models that must be refused ahead of time. Each test checks the message: the problem, the user's line, a remedy.

from __future__ import annotations

import inspect
from pathlib import Path

import pytest
import torch

import torchette
from torchette import cli
from torchette.errors import CompileError, DialectError, ExportError, MissingKernelError, TrainModeError
from torchette.exir import EdgeCompileConfig

HERE = Path(__file__).name


def line_of(function: object, text: str) -> str:
    """Returns `file:line` of the line of a function that contains a text."""
    lines, start = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return f"{HERE}:{start + next(i for i, line in enumerate(lines) if text in line)}"


class Exotic(torch.nn.Module):
    """Calls an operator twice that is neither core nor, for a complex matrix, decomposed."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.linalg.eigvals(torch.complex(x, x)).real
        vectors = torch.linalg.eig(torch.complex(x + 1, x))[1].real
        return values + 1, vectors


class Kept(torch.nn.Module):
    """Calls two operators that have no kernel unless they are decomposed, and one operator with a kernel."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        determinant = torch.linalg.det(x)
        lower = torch.linalg.lu(x).L
        return determinant + 1, lower


class Branching(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.sum() > 0:
            return x + 1
        return x - 1


class Normalized(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(3)
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.drop(self.norm(x))


# Both have an out variant, so without decomposition they reach the kernels, and are unlikely to get kernels.
KEPT = [torch.ops.aten._linalg_det.default, torch.ops.aten.linalg_lu.default]


def test_operators_outside_dialects_are_listed_with_user_lines() -> None:
    with pytest.raises(DialectError) as caught:
        torchette.compile(Exotic().eval(), (torch.eye(3),))
    message = str(caught.value)
    assert len(caught.value.violations) == 2
    assert "linalg_eig" in message
    assert line_of(Exotic.forward, "linalg.eigvals") in message
    assert line_of(Exotic.forward, "linalg.eig(") in message


def test_missing_kernels_are_listed_with_user_lines() -> None:
    with pytest.raises(MissingKernelError) as caught:
        torchette.compile(Kept().eval(), (torch.eye(3),), edge=EdgeCompileConfig(preserve_ops=KEPT))
    message = str(caught.value)
    assert caught.value.operators == ("aten::_linalg_det.result", "aten::linalg_lu.out")
    assert "_linalg_det" in message and "linalg_lu" in message
    assert line_of(Kept.forward, "linalg.det") in message
    assert line_of(Kept.forward, "linalg.lu") in message


def test_train_mode_model() -> None:
    with pytest.raises(TrainModeError, match=r"\.eval\(\)") as caught:
        torchette.compile(Normalized().train(), (torch.ones(1, 3, 4, 4),))
    assert "norm" in str(caught.value) and "drop" in str(caught.value)  # the submodules
    assert torchette.compile(Normalized().eval(), (torch.ones(1, 3, 4, 4),)) is not None


def test_graph_break() -> None:
    with pytest.raises(ExportError) as caught:
        torchette.compile(Branching().eval(), (torch.ones(3),))
    message = str(caught.value)
    assert line_of(Branching.forward, "if x.sum()") in message
    assert "torch.cond" in message
    assert len(message.splitlines()) < 20, "the message must fit on one screen"


def test_wrong_arguments_for_the_module() -> None:
    with pytest.raises(CompileError, match="forward"):
        torchette.compile(Branching().eval(), (torch.ones(3), torch.ones(3)))


def test_not_a_module() -> None:
    with pytest.raises((CompileError, TypeError), match=r"nn\.Module"):
        torchette.compile(lambda x: x, (torch.ones(3),))  # type: ignore[arg-type]


def test_command_line_shows_same_message(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    source = tmp_path / "mine.py"
    source.write_text(
        "import torch\n"
        "class Mine(torch.nn.Module):\n"
        "    def forward(self, x):\n"
        "        return torch.linalg.eigvals(torch.complex(x, x)).real\n"
        "model = Mine().eval()\n"
        "model.example_inputs = (torch.eye(3),)\n"
    )
    assert cli.main(["compile", f"{source}:model", "-o", str(tmp_path / "mine.pte")]) == 1
    message = capsys.readouterr().err
    assert "linalg_eig" in message and "mine.py:4" in message
    assert "Traceback" not in message


class Part(torch.nn.Module):
    """A layer that a test scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).relu()


class Container(torch.nn.Module):
    def __init__(self, part: torch.nn.Module) -> None:
        super().__init__()
        self.parts = torch.nn.ModuleList([torch.nn.ReLU(), part])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parts[1](self.parts[0](x))  # the call of the scripted part


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_submodule_is_named() -> None:
    x = torch.randn(2, 4)
    with pytest.raises(
        ExportError, match=r"its submodule 'parts\.1' \(Part\) is scripted by torch\.jit\.script"
    ) as caught:
        torchette.compile(Container(torch.jit.script(Part())).eval(), (x,))
    assert line_of(Container.forward, "the call of the scripted part") in str(caught.value)
    assert "was scripted from" in caught.value.hints[0]
    assert "args is a tuple" not in str(caught.value)
    traced = Container(torch.jit.trace(Part().eval(), x)).eval()
    torch.testing.assert_close(torchette.compile(traced, (x,))(x), traced(x), rtol=1e-4, atol=1e-5)


def test_wrong_call_of_python_submodule_is_reported() -> None:
    class Caller(Container):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.parts[1](x, x)

    with pytest.raises(ExportError, match="do not match the signature of forward"):
        torchette.compile(Caller(Part()).eval(), (torch.randn(2, 4),))
