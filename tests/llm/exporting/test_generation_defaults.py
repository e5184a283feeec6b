# SPDX-License-Identifier: BSD-3-Clause
# In: generation configurations. Out: the defaults in a program, or an error that names the unsupported fields.
"""`torchette.llm.exporting.generation_defaults`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.llm import families
from tests.models import zoo
from torchette import cli
from torchette.errors import InputError, UnsupportedError
from torchette.llm.exporting.generation_defaults import APPLIED, REFUSED, WITHOUT_EFFECT, generation_json

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")


def test_each_field_of_transformers_is_applied_refused_or_without_effect() -> None:
    fields = transformers.GenerationConfig().to_dict().keys()
    assert fields <= {*APPLIED, *REFUSED, *WITHOUT_EFFECT}
    assert len({*APPLIED, *REFUSED, *WITHOUT_EFFECT}) == len(APPLIED) + len(REFUSED) + len(WITHOUT_EFFECT)


VALUES = {
    "num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "constraints": [1], "force_words_ids": [[1]], "penalty_alpha": 0.6,
    "dola_layers": "low", "guidance_scale": 1.5, "encoder_repetition_penalty": 1.2, "encoder_no_repeat_ngram_size": 3,
    "token_healing": True, "watermarking_config": {"bias": 2.0},
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_a_field_that_changes_tokens_is_refused_by_name(name: str) -> None:
    fields = {name: VALUES[name], "temperature": 0.5}
    with pytest.raises(UnsupportedError, match=f"{name} .*not supported") as refused:
        generation_json(fields)
    assert f"--ignore {name}" in str(refused.value)
    assert json.loads(generation_json(fields, [name])) == {"temperature": 0.5}
    for off in (None, *REFUSED[name]):
        assert json.loads(generation_json({name: off})) == {name: off}


def test_biases_of_sequences_are_pairs_in_json() -> None:
    for key in ((1, 22), "(1, 22)"):
        assert json.loads(generation_json({"sequence_bias": {key: 0.5}})) == {
            "sequence_bias": [[[1, 22], 0.5]]
        }


def test_an_unknown_field_cannot_be_ignored() -> None:
    with pytest.raises(InputError, match="'beams', which is not a field") as refused:
        generation_json({}, ["beams"])
    assert "num_beams" in str(refused.value)


def test_programs_contain_the_defaults_of_the_folder(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from torchette import llm

    model: Any = families.build("llama")
    model.save_pretrained(tmp_path / "model")
    file = tmp_path / "model" / "generation_config.json"
    file.write_text(
        json.dumps({"eos_token_id": [2, 5], "suppress_tokens": [1], "num_beams": 3, "lang_to_id": {"a": 1}})
    )
    with pytest.raises(UnsupportedError, match="num_beams 3"):
        llm.export(tmp_path / "model", max_context=16, max_prefill=4)
    command = [
        "llm",
        "compile",
        str(tmp_path / "model"),
        "-o",
        str(tmp_path / "x.pte"),
        "--max-context",
        "16",
    ]
    assert cli.main(command) == 1
    assert "--ignore num_beams" in capsys.readouterr().err
    assert cli.main([*command, "--ignore", "num_beams"]) == 0
    from torchette.format import pte

    stored = json.loads(bytes(pte.load_file(tmp_path / "x.pte").named()["generation_config.json"]))
    assert {name: stored[name] for name in ("eos_token_id", "suppress_tokens", "lang_to_id")} == {
        "eos_token_id": [2, 5], "suppress_tokens": [1], "lang_to_id": {"a": 1},
    }  # fmt: skip
    assert "num_beams" not in stored
