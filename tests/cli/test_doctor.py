# SPDX-License-Identifier: BSD-3-Clause
# `torchette doctor` on complete and incomplete installations.

from __future__ import annotations

import importlib.metadata
import json
import re
import sys

import pytest

from torchette.cli import _parser, doctor, main
from torchette.devtools.limits import Limits, Store
from torchette.packages import PACKAGES
from torchette.runtime import Runtime, native

Capture = pytest.CaptureFixture[str]


def test_environment_as_values(capsys: Capture) -> None:
    assert _parser().parse_args(["env"]).run is doctor.run
    assert main(["doctor", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["problems"] == {}
    module = facts["native module"]
    assert module["kernels"] in ("v1", "v3", "v4", "baseline")
    assert "NullBackend" in module["backends"]
    assert module["threads"] == Runtime.get().num_threads
    assert module["limits"][0]["threads"] == 1 and module["limits"][0]["arithmetic"] > 1e8
    assert facts["numpy"] == importlib.metadata.version("numpy")
    assert facts["packages"]["torchao"] == importlib.metadata.version("torchao")


def test_every_optional_package_is_listed_with_its_command(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: None if name in ("torch", "torchao") else "1.0")
    assert main(["doctor"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for package in PACKAGES.values():
        (line,) = [line for line in lines if line.startswith(f"{package.name} ")]
        assert package.enables in line and package.install in line
        assert ("not installed" in line) == (package.name in ("torch", "torchao"))


def test_a_missing_native_module_fails_and_names_the_fix(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torchette.runtime._native", None)
    native.module.cache_clear()
    assert main(["doctor"]) == 1
    assert "./dev setup" in capsys.readouterr().out


def test_another_torch_is_named(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version", lambda name: "2.9.1")
    assert main(["doctor"]) == 0
    assert "torch is 2.9.1; Torchette is tested with torch 2.13 to 2." in capsys.readouterr().out


def test_limits_are_measured_again_on_request(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def measured(threads: int, again: bool) -> Limits:
        requests.append((threads, again))
        return Limits("a processor", "v3", threads, 7e9, (Store("memory", None, 1e9),))

    monkeypatch.setattr(doctor, "limits", measured)
    assert main(["doctor", "--measure"]) == 0 and main(["doctor"]) == 0
    assert {again for _, again in requests} == {True, False} and min(requests)[0] == 1
    assert re.search(r"limit of 1 thread +7 GFLOP/s", capsys.readouterr().out)
