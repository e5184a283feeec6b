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


def test_a_side_without_figures_has_no_line() -> None:
    assert report.summary({"a": {"sides": {"cpu": {"error": "no compiler"}}}}) == []


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
