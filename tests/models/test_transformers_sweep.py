# SPDX-License-Identifier: BSD-3-Clause
# Tests of `./dev sweep`. The whole sweep runs by hand; the others check a few architectures and the report.

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.models import transformers_sweep
from tests.models.transformers_sweep import Result, Route

pytest.importorskip("transformers")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("--backend", "xnnpack"), ("--backend", "vulkan"), ("--dynamic",), ("--exporter",), ("--skipped",)],
)
def test_every_architecture_equals_eager(options: tuple[str, ...]) -> None:
    assert transformers_sweep.main(options) == 0


@pytest.mark.parametrize("kind", ["bert", "deepseek_v3", "sam", "siglip2"])
def test_architecture_equals_eager(kind: str) -> None:
    result = transformers_sweep.measure(kind)
    assert (result.stage, result.why, result.faults()) == ("equal", "", []) and result.is_good()
    assert result.planned > 0 and 0 < result.lower < 60


@pytest.mark.parametrize("kind, sizes", [("bert", (3, 9)), ("mamba", (3, 12))])
def test_dynamic_sizes_equal_eager_at_second_sizes(kind: str, sizes: tuple[int, int]) -> None:
    """The capture unrolls the recurrence of Mamba, which fixes the number of tokens."""
    result = transformers_sweep.measure(kind, Route(dynamic=True))
    assert (result.stage, result.why, result.sizes) == ("equal", "", sizes)


def test_exporter_of_transformers_equals_eager() -> None:
    pytest.importorskip("transformers.exporters")
    result = transformers_sweep._child("gpt2", Route(exporter=True))  # the process imports us as executorch
    assert (result.stage, result.why, result.sizes, result.faults()) == ("equal", "", (3, 9), [])
    assert result.export > 0 and result.lower > 0 and result.has_maximum_sizes


def test_capture_that_exceeds_the_limit_is_not_our_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_sweep, "SECONDS", 0)
    result = transformers_sweep._child("gpt2", Route())
    assert (result.stage, result.why) == ("export", "torch.export needs more than 0 s") and result.is_good()


def test_second_sizes_are_in_the_ranges_of_the_program_and_need_no_other_constants() -> None:
    class Double(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * x

    dims = {0: torch.export.Dim("batch", max=8), 1: torch.export.Dim("tokens", min=10, max=20)}
    program = torch.export.export(Double(), (torch.zeros(2, 12),), dynamic_shapes=(dims,))
    calls = [(torch.zeros(2, 12),), *((torch.zeros(*sizes),) for sizes in transformers_sweep.SECOND_SIZES)]
    result = Result("a", "compile")
    transformers_sweep._choose_sizes(program, calls, result, required=True)
    assert result.sizes == (3, 12)
    with pytest.raises(ValueError, match="fixed sizes"):
        transformers_sweep._choose_sizes(program, [*calls[:3], None], result, required=True)


def test_wrong_result_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = transformers_sweep._compiled

    def wrong(*arguments: Any) -> Any:
        run = compiled(*arguments)
        return lambda inputs: [result + 0.01 for result in run(inputs)]

    monkeypatch.setattr(transformers_sweep, "_compiled", wrong)
    result = transformers_sweep.measure("bert")
    assert result.stage == "compare" and "from float64" in result.why


def test_capture_with_other_results_is_detected() -> None:
    """Without a mask, the eager model of transformers has bidirectional attention, the captured one causal attention."""
    result = transformers_sweep.measure("paligemma")
    assert result.stage == "export" and "the captured program, run by torch, is" in result.why


def test_order_of_equal_scores_makes_an_architecture_unstable(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tokens have fewer visible tokens than the indexer selects: all other scores are -inf."""
    from tests.models import tiny

    monkeypatch.setitem(tiny.OVERRIDES, "glm_moe_dsa", {"index_topk": 2})
    result = transformers_sweep.measure("glm_moe_dsa")
    assert (result.stage, result.why) == ("unstable", "eager depends on the order of equal scores in topk")


def test_architecture_without_tiny_model_has_a_reason() -> None:
    result = transformers_sweep.measure("dinat")
    assert (result.stage, result.why) == ("build", "requires natten")


def test_model_class_has_its_own_head_and_inputs() -> None:
    from tests.models import tiny

    model, inputs = tiny.build("BigBirdForMultipleChoice")
    assert type(model).__name__ == "BigBirdForMultipleChoice" and inputs["input_ids"].shape == (2, 2, 12)
    model, inputs = tiny.build("SplinterForPreTraining")
    assert (inputs["input_ids"] == model.config.question_token_id).any(1).all()


def test_skipped_classes_exist() -> None:
    import transformers

    assert len(set(transformers_sweep.SKIPPED)) == len(transformers_sweep.SKIPPED) == 63
    assert all(hasattr(transformers, name) for name in transformers_sweep.SKIPPED)


@pytest.mark.parametrize("kind", ["efficientnet", "hgnet_v2", "mobilenet_v2"])
def test_results_do_not_vanish(kind: str) -> None:
    from tests.models import tiny

    model, inputs = tiny.build(kind)
    with torch.no_grad():
        assert all(output.abs().max() > 1e-3 for output in tiny.tensors(model(**inputs)))


def test_vision_model_has_precomputed_positions() -> None:
    from tests.models import tiny

    model, inputs = tiny.build("qwen3_vl_vision")
    module = tiny.Positional(model, inputs)
    assert {"hidden_states", "grid_thw", "cu_seqlens", "position_ids"} <= set(module.names)
    assert module.constants.keys() == {"max_seqlen"}
    assert all(output.isfinite().all() for output in module(*module.args(inputs)))


def test_page_lists_what_is_wrong() -> None:
    results = [
        Result("a", "equal", difference=1e-7, lower=1.0, planned=100, weights=100),
        Result("b", "equal", lower=99.0, planned=9 << 20, weights=1 << 20),
        Result("c", "export", "ValueError: x | y"),
        Result("d", "run", "ExecutionError: z"),
        Result("e", "equal", planned=2_000_000_000, weights=100, has_maximum_sizes=True),
    ]
    assert [result.is_good() for result in results] == [True, False, True, False, False]
    text = transformers_sweep.page(results)
    assert (
        "5 model types: equal 3, export 1, run 1; 75.0% of the 4 that torch.export captures equal eager"
        in text
    )
    assert "| `b` | limit | 99 s of lowering; planned memory is 9.0 of the weights |" in text
    assert "| `c` | export | ValueError: x / y |" in text and "Equal: `a`, `b`, `e`" in text
    assert "| `e` | limit | 2.0 GB of planned memory |" in text


def test_planned_memory_may_exceed_the_weights_up_to_the_peak_of_eager() -> None:
    below = Result("a", "equal", planned=9 << 20, weights=1 << 20, eager=10 << 20)
    above = Result("b", "equal", planned=9 << 20, weights=1 << 20, eager=8 << 20)
    assert below.is_good() and above.faults() == ["planned memory is 9.0 of the weights, 1.12 of eager"]
    assert transformers_sweep.explained([below, above]).endswith(
        "eager: `a` (9.0 of the weights, 0.90 of eager)."
    )


def test_peak_of_eager_counts_live_results() -> None:
    class Wide(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x[:, None] + x).exp().sum()  # the sum of x and the exponentials are live

    count = 512
    peak = transformers_sweep._peak(Wide(), (torch.randn(count),))
    assert peak == pytest.approx(2 * 4 * count**2, rel=0.01)


def test_page_keeps_the_sections_of_other_routes() -> None:
    text = transformers_sweep.page([Result("a", "equal")])
    text = transformers_sweep.page([Result("b", "equal", sizes=(3, 9))], Route(exporter=True), text)
    text = transformers_sweep.page([Result("c", "equal")], before=text)
    assert [line for line in text.splitlines() if line.startswith("## ")] == [
        "## ExecutorchExporter of transformers",
        "## cpu",
    ]
    assert "Equal: `b`" in text and "Equal: `c`" in text and "`a`" not in text
    assert "1 also equal it at a second batch or sequence size" in text
