# SPDX-License-Identifier: BSD-3-Clause
# `torchette doctor` on a whole installation, and on installations where something is missing.

from __future__ import annotations

import importlib.metadata
import json
import sys

import pytest

from torchette.cli import _parser, doctor, main
from torchette.runtime import Runtime

Capture = pytest.CaptureFixture[str]


def test_nothing_is_missing_here(capsys: Capture) -> None:
    assert _parser().parse_args(["env"]).run is doctor.run
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["missing"] == {}
    assert facts["kernels use"] in ("v1", "v3", "v4", "baseline")
    assert "NullBackend" in facts["backends"]
    assert facts["threads"].startswith(f"{Runtime.get().num_threads}, the physical cores")
    assert "GFLOP/s" in facts["1 thread can do"] and "from memory" in facts["1 thread can do"]
    assert facts["numpy"] == importlib.metadata.version("numpy")


def test_a_missing_native_module_fails_and_names_the_fix(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchette.runtime._native", None)
    assert main(["doctor"]) == 1
    assert "./dev setup" in capsys.readouterr().out


def test_a_missing_torch_is_no_failure(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "torch" else "1.0")
    assert main(["doctor"]) == 0
    assert "pip install 'torchette[export]'" in capsys.readouterr().out


def test_another_torch_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "2.9.1")
    assert main(["doctor"]) == 0
    assert "torch is 2.9.1, Torchette is tested with 2.13" in capsys.readouterr().out


def test_limits_are_measured_again_if_asked_for(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(doctor, "limits", lambda threads, again: asked.append((threads, again)) or "a lot")
    assert main(["doctor", "--measure"]) == 0 and main(["doctor"]) == 0
    assert {again for _, again in asked} == {True, False} and min(asked)[0] == 1
    assert "1 thread can do   a lot" in capsys.readouterr().out
