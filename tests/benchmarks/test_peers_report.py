# SPDX-License-Identifier: BSD-3-Clause
# The lines that `./dev bench peers` prints for its bars.

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.peers import report


def entry(ours: dict[str, float], peers: dict[str, dict[str, float]]) -> dict[str, Any]:
    """Returns the figures of a model from milliseconds by number of threads."""
    return {
        "sides": {
            name: {"threads": {t: {"latency": ms / 1e3, "clean": True} for t, ms in times.items()}}
            for name, times in {"cpu": ours, **peers}.items()
        }
    }


def test_each_bar_has_a_line_with_the_models_above_it() -> None:
    peers = {"openvino": {"1": 10.0, "2": 8.0}, "executorch": {"1": 20.0, "2": 5.0}}
    lines = report.summary(
        {
            "a": entry({"1": 8.0, "2": 4.0}, peers),
            "b": entry({"1": 10.0, "2": 6.0}, peers),
            "a_int8": entry({"1": 8.0, "2": 5.0}, peers),
            "a_bfloat16": entry({"1": 4.0, "2": 2.0}, peers),
        }
    )
    assert lines[0].startswith(
        "[red]float32 / best peer, 1 thread: 0.89 on average, at most 1.00 (b); bar 0.85"
    )
    assert lines[2].endswith("above: b 0.60") and "models over 2 ms: 0.55 on average" in lines[2]
    assert [line for line in lines if line.startswith("[green]")] == [
        "[green]int8 / best peer, 1 thread: 0.80 on average, at most 0.80 (a_int8); bar 0.9[/]",
        "[green]bfloat16 / best peer, 1 thread: 0.40 on average, at most 0.40 (a_bfloat16); bar 1[/]",
        "[green]bfloat16 / best peer, 2 threads: 0.40 on average, at most 0.40 (a_bfloat16); bar 1[/]",
        "[green]bfloat16 / float32, 1 thread: 0.50 on average, at most 0.50 (a_bfloat16); bar 0.6[/]",
    ]
    assert any(line.startswith("[red]int8 / best peer, 2 threads: 1.00 on average") for line in lines)


def test_groups_of_float32_models_have_their_own_lines() -> None:
    peers = {"openvino": {"1": 10.0, "2": 10.0}}
    lines = report.summary(
        {"minilm": entry({"1": 9.0}, peers), "vocoder": entry({"1": 4.0, "2": 9.0}, peers)}
    )
    assert [line.partition(" on average")[0] for line in lines if "best peer" in line] == [
        "[green]float32 / best peer, 1 thread: 0.60",
        "[red]transformers / best peer, 1 thread: 0.90",
        "[green]speech / best peer, 1 thread: 0.40",
        "[green]float32 / best peer, 2 threads: 0.90",
        "[green]speech / best peer, 2 threads: 0.90",
    ]


def test_other_costs_have_lines() -> None:
    figures = {"a": entry({"1": 10.0}, {"openvino": {"1": 10.0}})}
    figures["a"]["sides"]["cpu"] |= {"load": 0.001, "first": 0.02, "memory": 50}
    figures["a"]["sides"]["openvino"] |= {"load": 0.004, "first": 0.01, "memory": 100}
    assert report.summary(figures)[1:] == [
        "[green]load, ms: 1.00 on average, at most 1.00 (a); bar 2[/]",
        "[red]first / later call: 2.00 on average, at most 2.00 (a); bar 1.5[/]; above: a 2.00",
        "[green]memory / smallest peer: 0.50 on average, at most 0.50 (a); bar 1[/]",
    ]


def test_a_failed_side_is_reported_with_its_reason(capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"a": {"sides": {"cpu": {"error": "[/x] no compiler"}, "litert": {"error": "no kernel [1]"}}}}
    machine = {"processor": "p", "level": "v4", "cores": 2, "clock": "wall", "date": "2026-11-29 10:00"}
    assert report.summary(figures) == ["[red]Without figures of Torchette: a[/]"]
    report.print_tables({"a": {"machine": machine, **figures["a"]}})
    printed = capsys.readouterr().out
    assert "a, cpu: [/x] no compiler" in printed and "a, litert: no kernel [1]" in printed
    assert "failed" in printed


@pytest.mark.parametrize("name", ["vocoder", "bilstm", "voice_activity", "conformer"])
def test_speech_models_compile_and_equal_eager(name: str) -> None:
    import torch

    import torchette
    from benchmarks.peers import models

    module, args = models.build(name)
    expected, results = module(*args), torchette.compile(module, args)(*args)
    expected, results = (
        [each] if isinstance(each, torch.Tensor) else list(each) for each in (expected, results)
    )
    for result, exact in zip(results, expected, strict=True):
        assert exact.abs().max() > 1e-3
        torch.testing.assert_close(result, exact, rtol=1e-4, atol=1e-4)
