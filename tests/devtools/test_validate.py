# SPDX-License-Identifier: BSD-3-Clause
# Bundled programs run through commands: the runner of this machine with a prefix, and an emulated runner if available.

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.build.images import emulated, named  # noqa: E402
from tests.building import built  # noqa: E402
from torchette import cli, targets  # noqa: E402
from torchette.devtools.bundle import BundledProgram, MethodTestCase, MethodTestSuite  # noqa: E402
from torchette.devtools.validate import validate  # noqa: E402
from torchette.errors import ExecutionError, FormatError, ModelNotFoundError  # noqa: E402
from torchette.format import bundled  # noqa: E402


class Net(torch.nn.Module):
    """Outputs of several kinds, one with a permuted dim order."""

    def forward(self, x: torch.Tensor, n: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int]:
        return x.sin(), (x > 0).t(), x.to(memory_format=torch.channels_last) if x.dim() == 4 else x.sum(), n


X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture(scope="module")
def runner() -> str:
    return str(built("executor_runner"))


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    right = list(Net()(X, 3))
    wrong = [right[0] + torch.tensor([0, 0, 0.5]), *right[1:]]
    image = torch.linspace(0, 1, 24).reshape(1, 2, 3, 4)
    methods = {"forward": (Net().eval(), (X, 3)), "image": (torch.nn.Softmax(1).eval(), (image,))}
    suites = [
        MethodTestSuite("forward", [MethodTestCase((X, 3), right), MethodTestCase((X, 3), wrong)]),
        MethodTestSuite("image", [MethodTestCase((image,), image.softmax(1)), MethodTestCase((image,))]),
    ]
    path = tmp_path_factory.mktemp("validate") / "net.bpte"
    path.write_bytes(BundledProgram(torchette.compile(methods).program, suites).serialize())
    return path


@pytest.mark.parametrize("copy", [False, True])
def test_every_case_is_compared(bundle: Path, runner: str, copy: bool) -> None:
    comparisons = validate(bundle, ["env", "LC_ALL=C", runner], copy=copy)
    assert [(comparison.method, comparison.case, comparison.output) for comparison in comparisons] == [
        *(("forward", case, output) for case in (0, 1) for output in range(4)),
        ("image", 0, 0),
        ("image", 1, None),
    ]
    (differs,) = (comparison for comparison in comparisons if not comparison.fits)
    assert (differs.case, differs.output, differs.elements, differs.mismatches) == (1, 0, 6, 2)
    assert differs.largest_difference == pytest.approx(0.5)
    assert all(comparison.fits for comparison in validate(bundle, [runner], copy=copy, atol=1.0))


def test_failing_runner_is_reported(bundle: Path, runner: str, tmp_path: Path) -> None:
    (first, *_) = validate(bundle, [runner], there=str(tmp_path / "nowhere.bpte"))
    assert not first.fits and "exit code 2" in first.problem and "nowhere.bpte" in first.problem
    noisy = [sys.executable, "-c", "print('booting ...')"]
    assert "another program prints there" in validate(bundle, noisy)[0].problem
    slow = [sys.executable, "-c", "import time; time.sleep(9)"]
    assert "no result within 0.2 s" in validate(bundle, slow, timeout=0.2)[0].problem
    with pytest.raises(ExecutionError, match="cannot be started"):
        validate(bundle, [str(tmp_path / "nothing")])


def test_invalid_bundle_raises(bundle: Path, runner: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        validate(tmp_path / "nowhere.bpte", [runner])
    path = tmp_path / "cut.bpte"
    for data in (b"", b"not a bundle", bundle.read_bytes()[:200]):
        path.write_bytes(data)
        with pytest.raises(FormatError):
            validate(path, [runner])


def test_the_command(bundle: Path, runner: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["validate", str(bundle), "--on", "env A=1", "--runner", runner, "--copy"]) == 1
    assert "differs" in capsys.readouterr().out
    assert (
        cli.main(["validate", str(bundle), "--on", "env", "--runner", runner, "--atol", "1", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["fits"]
    assert cli.main(["validate", str(bundle), "--atol", "1"]) == 0, "this machine's runner"
    assert cli.main(["validate", str(bundle), "--copy", "--there", "/x"]) == 2


@pytest.mark.gate
def test_in_an_emulator(bundle: Path, tmp_path: Path) -> None:
    target = targets.find("aarch64-linux")
    qemu, compiler = shlex.join(emulated(target)), named(target, "gcc")
    model = tmp_path / "net.pte"
    model.write_bytes(bundled.read(bundle.read_bytes()).program)
    words = ["build", "--target", target.name, "--compiler", str(compiler), str(model)]
    assert cli.main([*words, "-o", str(tmp_path / "arm")]) == 0
    runner = next(tmp_path.rglob("executor_runner"))
    assert (
        cli.main(["validate", str(bundle), "--on", qemu, "--runner", str(runner), "--copy", "--atol", "1"])
        == 0
    )
