# SPDX-License-Identifier: BSD-3-Clause
# Invalid command lines: the error message, the exit code, and the page that the error refers to.

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.conftest import MODEL
from torchette import cli

# (command line, code and words of the first line, a remedy, the page)
MISTAKES = [
    # files and folders
    ("run nett.pte", "[no-such-file] no file nett.pte; did you mean net.pte?", "", "no-such-file"),
    ("size none.pte", "[no-such-file] no file none.pte", "", "no-such-file"),
    ("inspect else/net.pte", "[no-such-folder] no folder else", "", "no-such-folder"),
    ("run .", "[bad-file] . is a folder, not a file", "", "bad-file"),
    ("size .", "[bad-file] . is a folder, not a file", "", "bad-file"),
    ("run model.py", "[bad-file] not a .pte file", "torchette compile model.py:NAME -o model.pte", "bad-file"),
    ("run net.pte --inputs none.npy", "[no-such-file] no file none.npy", "", "no-such-file"),
    ("run net.pte --output else/y.npz", "[no-such-folder] no folder else", "", "no-such-folder"),
    ("size net.pte --csv else/y.csv", "[no-such-folder] no folder else", "", "no-such-folder"),
    (
        "compile model.py:Net -o else/net.pte",
        "[no-such-folder] no folder else",
        "mkdir -p else",
        "no-such-folder",
    ),
    (
        "compile model.py:Net --quantize int8 --calibration days.npz",
        "[no-such-file] no file days.npz; did you mean day.npz?",
        "",
        "no-such-file",
    ),
    ("compile modell.py:Net", "[no-such-file] no file modell.py; did you mean model.py?", "", "no-such-file"),
    # inputs
    (
        "run net.pte --inputs 3x4",
        "[bad-input] input 0 (x) of method 'forward' has shape (3, 4), expected (1, 4)",
        "torchette compile --dynamic 0:0=n0:1..3",
        "bad-input",
    ),
    (
        "run net.pte --inputs 1x4:int64",
        "[bad-input] input 0 (x) of method 'forward' has dtype int64, expected float32",
        "x.astype('float32')",
        "bad-input",
    ),
    (
        "run net.pte --inputs 1x4 --inputs 1x4",
        "[bad-usage] method 'forward' expects 1 input (x: float32[1, 4]), got 2",
        "",
        "run --help",
    ),
    ("run net.pte --inputs net.pte", "[bad-usage] 'net.pte' is neither a shape", "", "run --help"),
    ("run net.pte --inputs 1x4:float23", "[bad-usage] '1x4:float23': no dtype 'float23'", "", "run --help"),
    # names
    ("rnu net.pte", "[bad-usage] no command 'rnu'; did you mean run?", "", "--help"),
    ("run net.pte --thread 2", "[bad-usage] unknown option --thread", "", "run --help"),
    ("run net.pte --metod=go", "[bad-usage] unknown option --metod; did you mean --method?", "", "run --help"),
    ("llm compil m", "[bad-usage] no command 'compil'; did you mean compile?", "", "llm --help"),
    ("llm compile m -o n.pte --cach x", "[bad-usage] unknown option --cach; did you mean --cache?", "", "llm compile --help"),
    ("size net.pte more.pte", "[bad-usage] unexpected argument more.pte", "", "size --help"),
    ("run", "[bad-usage] the following arguments are required: MODEL.pte", "", "run --help"),
    ("run net.pte --seed two", "[bad-usage] argument --seed: invalid int value: 'two'", "", "run --help"),
    (
        "compile model.py:Net --quantize int88",
        "[bad-input] no quantization scheme 'int88'; did you mean int8?",
        "",
        "bad-input",
    ),
    ("compile model.py:net", "[bad-usage] model.py has no 'net'; it defines ", "", "compile --help"),
    ("compile model.py", "[bad-usage] model.py does not name a model; use model.py:Net, ", "", "compile --help"),
    ("compile net.pte", "[bad-usage] 'net.pte' is not a model", "torchette run net.pte", "compile --help"),
    ("compile model.py:Net --until edg", "[bad-usage] no stage 'edg'; did you mean edge?", "", "compile --help"),
    ("compile model.py:Net --budget rma=1K", "[bad-usage] --budget rma=1K: unknown limit 'rma'", "", "compile --help"),
    ("run net.pte --method forwrad", "[bad-usage] net.pte has no method 'forwrad'; it has forward; did you mean forward?", "", "run --help"),
    (
        "build --target aarch64-linx -o made",
        "[no-such-target] no target 'aarch64-linx'; did you mean aarch64-linux?",
        "targets: host",
        "no-such-target",
    ),
    ("memory net.pte --target cortexm4", "[bad-input] no target 'cortexm4'; did you mean cortex-m4?", "", "bad-input"),
    (
        "new mcu made net.pte --board mps2-an38",
        "[no-such-board] no board 'mps2-an38'; did you mean mps2-an386?",
        "boards: mps2-an386",
        "no-such-board",
    ),
    (
        "compile model.py:Net --backend xnpack",
        "[unknown-backend] no backend 'xnpack'; did you mean xnnpack?",
        "known backends: portable, cpu",
        "unknown-backend",
    ),
    (
        "compile model.py:Net --disable fold_constant",
        "[unknown-pass] cannot disable fold_constant; did you mean fold_constants?",
        "",
        "unknown-pass",
    ),
    (
        "compile model.py:Branches",
        "[export-failed] torch.export cannot capture the model: control flow depends on the values of a tensor",
        "torch.cond",
        "export-failed",
    ),
    (
        "verify model.py:Branches",
        "[export-failed] torch.export cannot capture the model: control flow depends on the values of a tensor",
        "torch.cond",
        "export-failed",
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("mistakes")
    (folder / "model.py").write_text(MODEL)
    np.savez(folder / "day.npz", np.ones((1, 4), np.float32))
    assert cli.main(["compile", f"{folder}/model.py:Net", "-o", f"{folder}/net.pte"]) == 0
    return folder


@pytest.mark.parametrize(("line", "message", "remedy", "page"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_mistake(
    line: str,
    message: str,
    remedy: str,
    page: str,
    model_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(model_folder)
    try:
        code = cli.main(shlex.split(line))
    except SystemExit as exit_:
        code = exit_.code
    out, error = capsys.readouterr()
    first, *_, last = error.splitlines()
    command, _, text = first.partition(": ")
    start, _, words = message.partition("] ")
    assert text.startswith(f"{start}] ") and words in text, first
    assert line.startswith(command.removeprefix("torchette").strip()), command
    assert remedy in error and "Traceback" not in error and not out
    if page.endswith("--help"):
        assert last == f"see torchette {page}"
    else:
        assert last == f"see docs/errors.md#{page}"
    compile_error = page in ("unknown-backend", "unknown-pass", "export-failed")
    assert code == (1 if compile_error else 2)


def test_torchs_log_is_shown_on_request(
    model_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("torch._subclasses.fake_tensor")
    monkeypatch.setattr(log, "handlers", [handler])
    (model_folder / "wrong.py").write_text(
        MODEL.replace("torch.tensor([[1.0, -2.0, 3.0, 4.0]])", "torch.ones(1, 5)")
    )
    assert cli.main(["compile", f"{model_folder}/wrong.py:Net"]) == 1
    out, error = capsys.readouterr()
    assert error.startswith("torchette compile: [export-failed]") and not lines and not out
    monkeypatch.setenv("TORCHETTE_TRACEBACK", "1")
    from torchette.errors import ExportError

    with pytest.raises(ExportError):
        cli.main(["compile", f"{model_folder}/wrong.py:Net"])
    assert any("failed while attempting to run meta" in line for line in lines)


def test_system_error_is_reported(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(options: object) -> int:
        raise PermissionError(13, "Permission denied", "net.pte")

    monkeypatch.setattr(sys.modules["torchette.cli.size"], "run", refuse)
    assert cli.main(["size", "net.pte"]) == 2
    expected = "torchette size: [system-error] net.pte: Permission denied\nsee docs/errors.md#system-error\n"
    assert capsys.readouterr().err == expected
