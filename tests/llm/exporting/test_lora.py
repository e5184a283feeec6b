# SPDX-License-Identifier: BSD-3-Clause
# In: adapters in the format of peft. Out: a session generates the tokens of the model with the adapter merged into its weights.
"""`torchette.llm.exporting.lora`."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.llm import families
from tests.llm.exporting.test_export import expected
from tests.models import zoo
from torchette import cli
from torchette.errors import FormatError, InputError, ModelNotFoundError, TorchetteError, UnsupportedError
from torchette.llm.exporting import lora
from torchette.llm.serve import Server

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

llm = pytest.importorskip("torchette.llm")


def adapter(
    folder: Path, model: Any, rank: int, layers: tuple[str, ...], seed: int, **config: Any
) -> tuple[Path, Any]:
    """Writes a folder like peft; returns it with the model into which the adapter is merged."""
    merged, tensors = copy.deepcopy(model), {}
    random = torch.Generator().manual_seed(seed)
    config = {
        "peft_type": "LORA",
        "r": rank,
        "lora_alpha": 2 * rank,
        "target_modules": list(layers),
        "bias": "none",
        **config,
    }
    scale = config["lora_alpha"] / (rank**0.5 if config.get("use_rslora") else rank)
    for name, part in merged.named_modules():
        if name.endswith(layers):
            first = torch.randn(rank, part.in_features, generator=random)
            second = torch.randn(part.out_features, rank, generator=random) * 0.1
            tensors |= {
                f"base_model.model.{name}.lora_{k}.weight": v for k, v in (("A", first), ("B", second))
            }
            part.weight.data += scale * second @ first
    folder.mkdir()
    safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder, merged


def test_adapters_are_swapped_at_run_time(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    model = families.build("llama")
    pirate, as_pirate = adapter(tmp_path / "pirate", model, 4, ("q_proj", "v_proj", "down_proj"), 1)
    poet, as_poet = adapter(tmp_path / "poet", model, 3, ("v_proj",), 2, use_rslora=True)
    path = llm.export(model, max_context=100, max_prefill=16, lora=pirate).save(tmp_path / "model.pte")
    assert cli.main(["llm", "adapter", str(path), str(poet), "-o", str(tmp_path / "poet.ptd")]) == 0
    prompt = [5, 17, 3]
    session = llm.Session(path)

    def says(session: Any) -> list[int]:
        return [
            *prompt,
            *session.generate(prompt, max_tokens=64, temperature=0, ignore_end=True).run().tokens,
        ]

    answers = [expected(one, prompt, 64) for one in (model, as_pirate, as_poet)]
    assert len({tuple(answer) for answer in answers}) == 3
    assert says(session) == answers[0]
    session.save(tmp_path / "state")
    fork = session.fork()
    for active, answer in (
        (tmp_path / "pirate.ptd", 1),
        (tmp_path / "poet.ptd", 2),
        (poet, 2),
        (None, 0),
        (pirate, 1),
    ):
        session.set_adapter(active)
        assert session.tokens == () and says(session) == answers[answer]
    with pytest.raises(FormatError, match="belongs to another model"):
        session.load(tmp_path / "state")
    assert says(llm.Session(path, adapter=tmp_path / "poet.ptd").new()) == answers[2]
    assert says(fork) == answers[0]
    # An adapter that does not fit is named, and the session does not change.
    large, _ = adapter(tmp_path / "large", model, 8, ("q_proj",), 3)
    wide, _ = adapter(tmp_path / "wide", model, 2, ("k_proj",), 3)
    for bad, text in (
        (large, "has room for"),
        (wide, r"no room for the adapter of model\.layers\.0\.self_attn\.k_proj"),
    ):
        with pytest.raises(InputError, match=text):
            session.set_adapter(bad)
    with pytest.raises(TorchetteError):
        session.set_adapter(path)  # not an adapter
    assert says(session) == answers[1]
    # The server has a model for each adapter.
    served: list[list[list[int]]] = []
    monkeypatch.setattr(
        Server,
        "serve_forever",
        lambda self: served.append([says(one) for models in self.models.values() for one in models]),
    )
    options = ["--port", "0", "--adapter", str(tmp_path / "poet.ptd"), "--adapter", f"jack={pirate}"]
    capsys.readouterr()
    assert cli.main(["serve", str(path), "--sessions", "2", *options]) == 0
    assert served == [[answers[0]] * 2 + [answers[2]] * 2 + [answers[1]] * 2]
    assert '"model", "poet", "jack" at http' in capsys.readouterr().err
    for wrong in (["--adapter", f"model={pirate}"], ["--max-body", "0"], ["--sessions", "0"]):
        assert cli.main(["serve", str(path), *wrong]) == 2
    assert "torchette serve: " in capsys.readouterr().err and len(served) == 1


@pytest.mark.slow
def test_adapter_on_quantized_weights(tmp_path: Path) -> None:
    model = families.build("llama")
    pirate, _ = adapter(tmp_path / "pirate", model, 4, ("q_proj", "down_proj"), 1)
    session = llm.Session(llm.export(model, "int8-weight-only", max_context=40, max_prefill=8, lora=pirate))
    base = llm.Session(llm.export(model, "int8-weight-only", max_context=40, max_prefill=8))
    options = {"max_tokens": 20, "temperature": 0, "ignore_end": True}
    without = base.generate([5, 17, 3], **options).run().tokens
    assert session.generate([5, 17, 3], **options).run().tokens == without
    session.set_adapter(pirate)
    assert session.generate([5, 17, 3], **options).run().tokens != without
    with pytest.raises(InputError, match="exported without adapters"):
        base.set_adapter(pirate)


def test_invalid_adapters_are_named(tmp_path: Path) -> None:
    model = families.build("llama")
    with pytest.raises(ModelNotFoundError, match=r"has no adapter_config\.json"):
        lora.read(tmp_path)
    folder, _ = adapter(tmp_path / "x", model, 4, ("q_proj",), 1)
    config, weights = folder / "adapter_config.json", folder / "adapter_model.safetensors"
    good = json.loads(config.read_text())
    for change in (
        {"use_dora": True}, {"bias": "all"}, {"peft_type": "IA3"}, {"modules_to_save": ["lm_head"]}, {"lora_bias": True},
        {"layer_replication": [[0, 2]]}, {"trainable_token_indices": [1]}, {"target_parameters": ["x"]}, {"use_qalora": True},
        {"alora_invocation_tokens": [3]}, {"init_lora_weights": "pissa_niter_4"}, {"init_lora_weights": "olora"},
        {"a_field_of_the_future": 1},
    ):  # fmt: skip
        config.write_text(json.dumps({**good, **change}))
        with pytest.raises(UnsupportedError, match=f"{next(iter(change))} .*only LoRA with two") as refused:
            lora.read(folder)
        assert "merge_and_unload" in str(refused.value)
    config.write_text("[]")
    with pytest.raises(FormatError, match=r"adapter_config\.json is not an object"):
        lora.read(folder)
    original = weights.read_bytes()
    config.write_text(json.dumps(good))
    weights.write_bytes((2).to_bytes(8, "little") + b"[]")
    with pytest.raises(FormatError, match="does not contain an adapter"):
        lora.read(folder)
    weights.write_bytes(original)
    for change, text in (
        ({"alpha_pattern": {"(": 3}}, "alpha_pattern .*not a map of regular expressions"),
        ({"rank_pattern": [1]}, "rank_pattern .*not a map"),
        ({"rank_pattern": {".*q_proj": 3}}, "q_proj has rank 4, and adapter_config.json says 3"),
        ({"lora_alpha": None}, "lora_alpha None, which must be a number"),
    ):
        config.write_text(json.dumps({**good, **change}))
        with pytest.raises(FormatError, match=text):
            lora.read(folder)
    config.write_text(json.dumps(good))
    content, random = weights.read_bytes(), np.random.default_rng(2)
    head, refused = 8 + int.from_bytes(content[:8], "little"), 0
    for trial in range(300):
        data = bytearray(content)
        data[int(random.integers(head))] = random.integers(256)
        weights.write_bytes(data[: random.integers(len(data))] if trial % 4 == 0 else data)
        try:
            lora.read(folder)
        except TorchetteError:
            refused += 1
    assert refused > 100
    weights.write_bytes(content)
    with pytest.raises(InputError, match=r"the model has no layer model\.layers\.0\.self_attn\.q_proj"):
        llm.export(families.build("gpt2"), max_context=40, lora=folder)


LAYERS = [
    f"model.layers.{i}.self_attn.{name}" for i in (0, 1, 10, 11) for name in ("q_proj", "k_proj", "v_proj")
]
PATTERNS = [
    {}, {"q_proj": 3}, {"self_attn.q_proj": 3}, {"attn.q_proj": 3}, {"model.layers.1.self_attn.q_proj": 5},
    {r".*\.layers\.1\..*": 7}, {r"layers\.(0|11)\.self_attn\.[qv]_proj": 2, "q_proj": 9}, {r"^model\.layers\.0\.self_attn\.k_proj": 6},
    {"proj": 8}, {".*proj": 8}, {r"layers\.1\d\..*": 2.5, r".*k_proj$": 4},
]  # fmt: skip


@pytest.mark.parametrize("patterns", PATTERNS, ids=str)
def test_patterns_match_layers_as_in_peft(patterns: dict[str, float], tmp_path: Path) -> None:
    """The scale of each layer, with ranks by the same patterns."""

    def chosen(values: dict[str, float], layer: str, default: float) -> float:
        return next((value for key, value in values.items() if re.match(rf"(.*\.)?({key})$", layer)), default)

    ranks = {key: int(value) for key, value in patterns.items()}
    for use_rslora in (False, True):
        tensors, expected = {}, {}
        for layer in LAYERS:
            rank, alpha = int(chosen(ranks, layer, 4)), chosen(patterns, layer, 16)
            tensors[f"base_model.model.{layer}.lora_A.weight"] = torch.ones(rank, 3)
            tensors[f"base_model.model.{layer}.lora_B.weight"] = torch.ones(2, rank)
            expected[layer] = alpha / (rank**0.5 if use_rslora else rank)
        safetensors.save_file(tensors, tmp_path / "adapter_model.safetensors")
        config = {
            "peft_type": "LORA",
            "r": 4,
            "lora_alpha": 16,
            "alpha_pattern": patterns,
            "rank_pattern": ranks,
        }
        (tmp_path / "adapter_config.json").write_text(json.dumps({**config, "use_rslora": use_rslora}))
        parts = lora.read(tmp_path).parts
        assert {layer: pytest.approx(parts[layer][1][0, 0]) for layer in LAYERS} == expected


def test_fields_and_patterns_are_those_of_peft() -> None:
    peft = pytest.importorskip("peft")
    plain = peft.LoraConfig().to_dict()
    plain["peft_type"] = "LORA"
    lora._check(plain, Path("x"))  # each default of the installed peft is known or disabled
    for layer in LAYERS:
        for patterns in PATTERNS:
            key = peft.utils.other.get_pattern_key(patterns.keys(), layer)
            assert lora._of_layer({"p": patterns}, "p", layer, 1) == patterns.get(key, 1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_output_equals_that_of_peft(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = families.build("llama")
    config = peft.LoraConfig(
        r=4,
        lora_alpha=16,
        target_modules=["q_proj", "up_proj"],
        alpha_pattern={r"layers\.0\..*up_proj": 3},
        rank_pattern={r".*\.1\..*q_proj": 2},
    )
    theirs = peft.get_peft_model(copy.deepcopy(model), config)
    for name, parameter in theirs.named_parameters():
        if ".lora_B." in name:
            torch.nn.init.normal_(parameter, std=0.1)
    theirs.save_pretrained(tmp_path / "theirs")
    session = llm.Session(
        llm.export(model, max_context=100, max_prefill=16, lora=tmp_path / "theirs"),
        adapter=tmp_path / "theirs",
    )
    answer = session.generate([5, 17, 3], max_tokens=64, temperature=0, ignore_end=True).run().tokens
    assert [5, 17, 3, *answer] == expected(theirs.eval(), [5, 17, 3], 64) != expected(model, [5, 17, 3], 64)
