# SPDX-License-Identifier: BSD-3-Clause
# torchette diff on a device that is accessed through a command: its ETDump contains the values.

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

import torchette
from tests.building import BUILD
from torchette import cli
from torchette.devtools.diff import compare
from torchette.devtools.diff.remote import Remote
from torchette.devtools.inspect import describe
from torchette.errors import ExecutionError, TargetError
from torchette.runtime import Runtime

X = torch.randn(2, 4)
RUNNER = BUILD / "executor_runner"
needs_runner = pytest.mark.skipif(not RUNNER.exists(), reason="not built by ./dev setup")


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)

    def forward(self, x):
        y = self.linear(x).relu()
        for _ in range(2):
            y = y + y.sum(1, keepdim=True)
        return torch.softmax(y, 1), y


@pytest.fixture(scope="module")
def data() -> bytes:
    torch.manual_seed(0)
    return bytes(torchette.compile(Net().eval(), (X,)))


@needs_runner
@pytest.mark.parametrize("copy", [False, True], ids=["files", "pipes"])
def test_values_match_this_process(data: bytes, copy: bool) -> None:
    here: list = []
    there: list = []
    local = Runtime.get().load_program(data).load_method("forward", tracing=True)
    expected = local.execute([X], here.append)
    outputs = Remote(data, "forward", ["env", str(RUNNER)], copy=copy).execute([X], there.append)
    assert len(here) > 4 and [row[:5] for row in there] == [row[:5] for row in here]
    for one, remote in zip([*here, *expected], [*there, *outputs], strict=True):
        torch.testing.assert_close(
            getattr(remote, "value", remote), torch.as_tensor(getattr(one, "value", one))
        )


# A runner that changes the value of the third instruction in its dump.
WRONG = """\
import subprocess, sys
done = subprocess.run([sys.argv[1], *sys.argv[2:]])
path = sys.argv[sys.argv.index("--debug_output_path") + 1]
values = bytearray(open(path, "rb").read())
values[OFFSET:OFFSET + 4] = b"\\0\\0\\0\\x42"
open(path, "wb").write(values)
sys.exit(done.returncode)
"""


@needs_runner
def test_wrong_kernel_on_device_is_named(data: bytes, tmp_path: Path) -> None:
    program = tmp_path / "wrong.py"
    (method,) = describe(data).methods
    sums = [instruction for instruction in method.instructions if instruction.op.startswith("aten::sum")]
    values: list = []
    local = Runtime.get().load_program(data).load_method("forward", tracing=True)
    local.execute([X], values.append)
    before = [instruction for instruction in values if instruction.instruction < sums[0].index]
    offset = sum(instruction.value.nbytes for instruction in before)
    program.write_text(WRONG.replace("OFFSET", str(offset)))
    device = Remote(data, "forward", [sys.executable, str(program), str(RUNNER)])
    result = compare(None, data, (X,), search=False, device=device)
    assert result.first is not None and (result.first.kind, result.first.operator) == ("kernel", sums[0].op)


@needs_runner
def test_command_compares_on_device(data: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.pte"
    path.write_bytes(data)
    words = ["diff", str(path), "--on", "env", "--runner", str(RUNNER), "--copy", "--no-search"]
    assert cli.main(words) == 0
    assert "nothing departs" in capsys.readouterr().out
    assert cli.main([*words[:-2], "--no-search", "--data-file", "weights.ptd"]) == 2


def test_errors_on_the_device_are_reported(data: bytes) -> None:
    with pytest.raises(TargetError, match="cannot be started"):
        Remote(data, "forward", ["/nowhere/ssh"]).execute([X], print)
    with pytest.raises(TargetError, match="exited with code 255: no route"):
        Remote(data, "forward", ["sh", "-c", "echo no route >&2; exit 255", "-"]).execute([X], print)
    with pytest.raises(TargetError, match="did not write an ETDump to"):
        Remote(data, "forward", ["true"]).execute([X], print)
    with pytest.raises(TargetError, match="is not an ETDump of executor_runner"):
        Remote(data, "forward", ["echo", "hello"], copy=True).execute([X], print)
    with pytest.raises(ExecutionError, match="no such method"):
        Remote(
            data, "forward", ["sh", "-c", "echo 'executor_runner: no such method' >&2; exit 1", "-"]
        ).execute([X], print)
