# SPDX-License-Identifier: BSD-3-Clause
# In: small random language models of transformers. Out: the compiled program generates the tokens of the model.
"""`torchette.llm.export`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import torchette
from tests.llm import double, families
from tests.models import zoo
from tests.sweep import sweep
from torchette.errors import (
    DelegationError,
    InputError,
    MissingPackageError,
    ModelNotFoundError,
    TorchetteError,
    UnsupportedError,
)
from torchette.exir.graph import calls
from torchette.quantization import LLM_SCHEMES

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")

llm = pytest.importorskip("torchette.llm")

CONTEXT = 300
ROOT = Path(__file__).parents[2]


def small_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=101,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
    )
    return transformers.LlamaForCausalLM(config).eval()


def greedy(program: Any, prompt: list[int], count: int) -> list[int]:
    """Returns the greedy tokens after a prompt."""
    tokens, chunk, start = list(prompt), list(prompt), 0
    for _ in range(count):
        logits = program(np.array([chunk]), np.array([start]))
        start += len(chunk)
        chunk = [int(np.asarray(logits)[0].argmax())]
        tokens += chunk
    return tokens


def expected(model: Any, prompt: list[int], count: int) -> list[int]:
    with torch.no_grad():
        return model.generate(
            torch.tensor([prompt]), max_new_tokens=count, do_sample=False, eos_token_id=None, pad_token_id=0
        )[0].tolist()


def test_tokens_equal_those_of_the_model_in_parts_and_after_a_rewind(tmp_path: Any) -> None:
    model = small_llama()
    path = llm.export(model, max_context=CONTEXT, max_prefill=32).save(tmp_path / "model.pte")
    program = torchette.load(path)
    prompt = [5, 17, 3, 99, 42]
    assert greedy(program, prompt, 256) == expected(model, prompt, 256)
    tokens = torch.randint(0, 101, (1, 20), generator=torch.Generator().manual_seed(1))
    for start, count in ((0, 7), (7, 1), (8, 12), (3, 16), (0, 1), (1, 4)):
        with torch.no_grad():
            reference = model(tokens[:, : start + count]).logits[:, -1]
        chunk = tokens[:, start : start + count].numpy()
        torch.testing.assert_close(
            torch.as_tensor(program(chunk, np.array([start]))), reference, rtol=1e-4, atol=1e-5
        )


def decoder_of(model: Any) -> Any:
    from torchette.llm.exporting.decoder import Decoder

    return Decoder(model, 8)


# Families with: windows and soft caps; no rotary embeddings; a convolution's state; a scan; chunks and experts.
@pytest.mark.parametrize(
    "family",
    sweep(
        (name for name in families.FAMILIES if name not in families.REFUSED),
        "gemma2",
        "gpt2",
        "lfm2",
        "mamba2",
        "llama4",
    ),
)
def test_families(family: str) -> None:
    model = families.build(family)
    program = llm.export(model, max_context=CONTEXT, max_prefill=32)
    prompt = [5, 17, 3, 99, 42, 7, 8]
    tokens = greedy(program, prompt, 256)
    assert tokens == expected(model, prompt, 256)
    with torch.no_grad():
        reference = model(torch.tensor([tokens])).logits[0]
    for start in range(0, len(tokens) - 29, 29):  # a prompt in parts, past the edge of windows
        logits = program(np.array([tokens[start : start + 29]]), np.array([start]))
        torch.testing.assert_close(torch.as_tensor(logits)[0], reference[start + 28], rtol=1e-4, atol=1e-4)
    session, known = llm.Session(program), len(prompt) + 60
    session.generate(tokens[:known], max_tokens=5, ignore_end=True, temperature=0).run()
    fork = session.fork()
    session.rewind(known - 40)  # continues with other tokens, which do not affect the fork
    session.generate([*tokens[: known - 40], 3, 4], max_tokens=5, ignore_end=True, temperature=0).run()
    rewound = 0 if decoder_of(model).is_recurrent else known - 40  # a recurrent state is computed again
    for one, shared in ((fork, known - 1), (session, rewound)):
        answer = one.generate(tokens[:known], max_tokens=30, ignore_end=True, temperature=0).run()
        assert answer.tokens == tokens[known : known + 30] and answer.statistics.reused_tokens >= shared


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("backend", ["auto", "xnnpack"])
def test_only_used_positions_of_a_cache_are_resident(backend: str, tmp_path: Path) -> None:
    positions = 1 << 17
    path = llm.export(small_llama(), max_context=positions, backend=backend).save(tmp_path / "long.pte")
    cache = 2 * 2 * positions * 2 * 16 * 4  # layers, keys and values, positions, heads, depth, bytes
    script = """
import re, sys
from torchette.llm import Session
def resident(): return 1024 * int(re.search(r"RssAnon:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = resident()
session = Session(sys.argv[1])
session.generate(list(range(1, 100)), max_tokens=3).run()
fork = session.fork()
fork.save(sys.argv[2])
session.new().load(sys.argv[2])
print(resident() - before)
"""
    command = [sys.executable, "-c", script, str(path), str(tmp_path / "state")]
    grown = int(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=60).stdout)
    assert grown < cache / 4


@pytest.mark.parametrize("family", sweep(["llama4", "minimax"], "llama4"))
def test_portable_programs_of_chunks_and_linear_attention(family: str) -> None:
    model = families.build(family)
    program = llm.export(model, max_context=64, max_prefill=32, backend="portable")
    tokens = torch.randint(0, 101, (1, 60), generator=torch.Generator().manual_seed(1))
    for start, count in ((0, 30), (30, 1), (31, 29)):  # chunks have 24 positions
        with torch.no_grad():
            reference = model(tokens[:, : start + count]).logits[:, -1]
        logits = program(tokens[:, start : start + count].numpy(), np.array([start]))
        torch.testing.assert_close(torch.as_tensor(np.asarray(logits)), reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [0, 5, -5, 1, -1])
def test_masks_are_recognized(window: int) -> None:
    from transformers import masking_utils

    from torchette.llm.exporting.decoder import _window

    mask = masking_utils.causal_mask_function
    if window > 0:
        mask = masking_utils.sliding_window_causal_mask_function(window)
    if window < 0:
        mask = masking_utils.chunked_causal_mask_function(-window, torch.zeros(1, dtype=torch.int64))
    expected = 1 if window == -1 else window  # chunks of one position are windows of one position
    assert _window(mask, 300) == expected
    assert _window(mask, 5) == (0 if abs(window) == 5 else expected)
    with pytest.raises(UnsupportedError, match="neither causal nor a sliding window"):
        _window(masking_utils.bidirectional_mask_function, 300)
    padded = masking_utils.chunked_causal_mask_function(7, torch.ones(1, dtype=torch.int64))
    with pytest.raises(UnsupportedError, match="neither causal nor a sliding window"):
        _window(padded, 300)


@pytest.mark.parametrize(
    ("options", "count"), [({}, 2), pytest.param({"backend": "portable"}, 0, marks=pytest.mark.slow)]
)
def test_scan_of_mamba_is_one_call_for_each_layer(options: dict[str, Any], count: int) -> None:
    model = families.build("mamba")
    program = llm.export(model, max_context=64, max_prefill=16, **options)
    called = [str(node.target) for node in calls(program.program.exported_program())]
    assert called.count("cpu.selective_scan.out") == count
    tokens = torch.randint(0, 101, (1, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        reference = model(tokens).logits[0, -1]
    for start, end in ((0, 5), (5, 6), (6, 9)):
        logits = torch.as_tensor(program(tokens[:, start:end].numpy(), np.array([start])))
    torch.testing.assert_close(logits[0], reference, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["longrope", "dynamic"])
def test_positions_that_depend_on_the_length_are_those_of_the_context(kind: str) -> None:
    """For contexts up to the original length, and for longer contexts when the text is longer too."""
    lists = {
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + 0.3 * i for i in range(8)],
    }
    sizes = {"max_position_embeddings": 64} if kind == "dynamic" else {"original_max_position_embeddings": 64}
    scaling = {"rope_type": kind, **(lists if kind == "longrope" else {"factor": 4.0})}
    model = families.build("phi3" if kind == "longrope" else "llama", rope_scaling=scaling, **sizes)
    program = llm.export(model, max_context=64, max_prefill=16)
    assert greedy(program, [5, 17, 3], 60) == expected(model, [5, 17, 3], 60)
    rope = model.model.rotary_emb
    assert rope.rope_type == kind and torch.equal(rope.inv_freq, rope.original_inv_freq)
    tokens = torch.randint(0, 101, (1, 150), generator=torch.Generator().manual_seed(2))
    program = llm.export(model, max_context=150, max_prefill=150)
    with torch.no_grad():
        reference = model(tokens).logits[:, -1]
    actual = torch.as_tensor(np.asarray(program(tokens.numpy(), np.array([0]))))
    torch.testing.assert_close(actual, reference, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", families.REFUSED)
def test_models_without_a_plain_cache_are_rejected(family: str) -> None:
    with pytest.raises(TorchetteError, match=families.REFUSED[family]):
        llm.export(families.build(family), max_context=CONTEXT)


def test_text_model_of_an_unsupported_vision_model_is_named() -> None:
    text = {
        **families.FAMILIES["qwen3_5"][1],
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "num_heads": 2,
        "out_hidden_size": 64,
        "num_position_embeddings": 1,  # smaller than a block of patches
    }
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, image_token_id=100)
    with pytest.raises(
        UnsupportedError, match="structure of Qwen3_5ForConditionalGeneration is not supported"
    ) as caught:
        llm.export(transformers.Qwen3_5ForConditionalGeneration(config), max_context=CONTEXT)
    assert "AutoModelForCausalLM" in caught.value.hints[0]


@pytest.mark.parametrize("scheme", sweep([*LLM_SCHEMES], "8da4w", "int8-dynamic"))
def test_quantized_layers_compute_as_torch(scheme: str) -> None:
    from torchette.llm.exporting.decoder import Decoder
    from torchette.llm.exporting.quantized import quantize_weights

    model = families.build("llama3")  # its table is the last layer's weight
    program = llm.export(model, scheme, max_context=64, max_prefill=32)
    assert "cpu::scaled_embedding.out" in program.program.operators()
    tokens = torch.randint(0, 101, (1, 30), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        ours = Decoder(quantize_weights(model, scheme), 64)(tokens, torch.tensor([0]))
        floats = model(tokens).logits[:, -1]
    program(tokens[:, :20].numpy(), np.array([0]))
    logits = torch.as_tensor(program(tokens[:, 20:].numpy(), np.array([20])))
    # If inputs are quantized too, a difference in the last bit of a float may change an integer by one.
    assert (logits - ours).norm() < floats.norm() * (1e-4 if scheme.endswith("weight-only") else 0.05)
    assert (logits - floats).norm() < floats.norm() * (0.06 if scheme.startswith("int8") else 0.7)
    assert type(model.get_input_embeddings()) is torch.nn.Embedding  # the given model stays
    sizes = {name: len(part) for name, part in program.program.named_data.items()}
    stored = sum(p.numel() for p in model.parameters()) * (9 if scheme.startswith("int8") else 6) // 8
    assert program.nbytes < stored + sum(sizes.values()) + 40_000


@pytest.mark.parametrize("family", sweep(["lfm2", "falcon_h1", "qwen3_next"], "qwen3_next"))
@pytest.mark.parametrize(
    "options",
    sweep(
        [{"quantize": "int8-weight-only", "cache": "int8"}, {"cache": "float16"}, {"backend": "portable"}],
        {"quantize": "int8-weight-only", "cache": "int8"},
        {"backend": "portable"},
    ),
)
def test_recurrent_states_stay_float32(family: str, options: dict[str, Any]) -> None:
    model = families.build(family)
    program = llm.export(model, max_context=64, max_prefill=1, **options)
    assert program.get_max_seq_len() == 2  # models have a separate path for one token
    tokens = torch.randint(0, 101, (1, 9), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(tokens).logits[0, -1]
    for start, count in ((0, 2), (2, 1), (3, 2), (5, 2), (7, 2)):
        logits = torch.as_tensor(
            np.array(program(tokens[:, start : start + count].numpy(), np.array([start])))
        )
    bound = 0.06 if "quantize" in options else 1e-3
    assert (logits[0] - expected).norm() < bound * expected.norm()
    states = re.findall(rb'"recurrent_\w+", "(\w+)"', llm.Session(program)._runner.state())
    assert states and set(states) == {b"float32"}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "llama4"])
def test_experts_are_quantized_to_8_bits(family: str) -> None:
    model = families.build(family)
    program = llm.export(model, "int8-weight-only", max_context=64, max_prefill=32)
    tokens = torch.randint(0, 101, (1, 30), generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        floats = model(tokens).logits[:, -1]
    logits = torch.as_tensor(program(tokens.numpy(), np.array([0])))
    assert (logits - floats).norm() < floats.norm() * 0.06
    named = sum(len(part) for part in program.program.named_data.values())
    matrices = sum(p.numel() for p in model.parameters() if p.dim() > 1)
    assert program.nbytes - named < 1.3 * matrices + 80_000


# Families with grouped heads; with windows and soft caps; with sinks; with chunks.
@pytest.mark.parametrize("family", sweep(["llama3", "gemma2", "gpt_oss", "llama4"], "llama3"))
@pytest.mark.parametrize(
    ("cache", "bound", "saved"), sweep([("float16", 2e-3, 2), ("int8", 0.05, 2.5)], ("int8", 0.05, 2.5))
)
def test_float16_and_int8_caches(family: str, cache: str, bound: float, saved: float) -> None:
    model = families.build(family)
    bound *= 2 if family == "gpt_oss" else 1  # a small difference may select another expert
    float_program, program = (
        llm.export(model, max_context=256, max_prefill=32, cache=one) for one in ("float32", cache)
    )
    # 256 positions of two layers with heads of 16; int8 has a scale and a zero point for each row of a head
    numbers = 2 * 2 * 256 * model.config.num_key_value_heads * model.config.head_dim
    assert float_program.planned_bytes - program.planned_bytes >= saved * numbers
    tokens = torch.randint(0, 101, (1, 160), generator=torch.Generator().manual_seed(3)).numpy()
    for start, count in ((0, 32), (32, 1), (33, 30), (63, 32), (95, 32), (127, 32), (159, 1)):
        args = tokens[:, start : start + count], np.array([start])
        exact, ours = (torch.as_tensor(np.array(one(*args))) for one in (float_program, program))
        assert (ours - exact).abs().max() <= bound * exact.abs().max()
        assert not torch.equal(ours, exact) or start == 0


def test_program_has_the_metadata_of_runners(tmp_path: Any) -> None:
    model = small_llama()
    model.save_pretrained(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes(double.tokenizer_json())
    program = llm.export(tmp_path, max_context=40, max_prefill=8)
    assert (program.get_vocab_size(), program.get_n_layers(), program.get_bos_id()) == (101, 2, 1)
    assert list(program.get_eos_ids()) == [2] and program.use_kv_cache() is True
    assert bytes(program.program.named_data["tokenizer.json"]) == double.tokenizer_json()
    assert {"config.json", "generation_config.json"} < set(program.program.named_data)
    # Attention reads the written part of a cache in place, so no buffer of its size is copied.
    assert "4 buffers updated in place, 0 copied back" in str(program.report())
    with pytest.raises(TorchetteError, match="is out of range for size 40"):
        program(np.array([[1, 2]]), np.array([39]))
    assert np.isfinite(np.asarray(program(np.array([[1, 2]]), np.array([38])))).all()


def test_the_command_compiles_a_folder_and_prints_no_warning(tmp_path: Any) -> None:
    """Runs in a separate process, because there nothing declares the operators of torchvision, as in a user's environment."""
    model = small_llama()
    model.save_pretrained(tmp_path / "llama")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "torchette", "llm", "compile", "llama", "-o", "llama.pte"),
            *("--quantize", "4w", "--max-context", "32"),
        ],
        capture_output=True, text=True, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    progress = re.compile(
        r"(load|check|capture|core|edge|export|optimize|target|exec|plan|quantize)( again)?: "
    )
    messages = [line for line in done.stderr.splitlines() if not progress.match(line)]
    assert (done.returncode, messages) == (0, [])  # a slow machine prints the steps
    assert "int4-weight-only" in done.stdout
    program = torchette.load(tmp_path / "llama.pte")
    assert torch.as_tensor(program(np.array([[1, 2]]), np.array([0]))).shape == (1, 101)


def test_a_package_that_breaks_transformers_is_named(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken_vision.py").write_text(
        "raise RuntimeError('operator torchvision::nms does not exist')"
    )
    (tmp_path / "transformers").mkdir()
    (tmp_path / "transformers/part.py").write_text("import broken_vision")
    (tmp_path / "transformers/__init__.py").write_text(
        "def __getattr__(name):\n"
        "    try:\n"
        "        import transformers.part\n"
        "    except Exception as error:\n"
        "        raise ModuleNotFoundError(f'Could not import module {name!r}') from error\n"
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "transformers"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "torchette.llm.exporting.export", raising=False)
    monkeypatch.delitem(vars(llm), "export", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        MissingPackageError, match=r"needs transformers.* broken_vision raised RuntimeError: op"
    ) as caught:
        llm.export  # noqa: B018
    assert "pip uninstall broken_vision" in caught.value.hints[0]


def test_invalid_arguments_are_named(tmp_path: Any) -> None:
    with pytest.raises(InputError, match="the KV cache has no type 'int7'"):
        llm.export(small_llama(), cache="int7")
    with pytest.raises(InputError, match="no quantization scheme 'int3'"):
        llm.export(small_llama(), "int3")
    with pytest.raises(InputError, match="ambiguous") as caught:
        llm.export(small_llama(), "int8")
    assert [hint.partition(":")[0] for hint in caught.value.hints] == ["int8-weight-only", "int8-dynamic"]
    with pytest.raises(InputError, match="do not support the scheme 'bfloat16'"):
        llm.export(small_llama(), "bf16")
    with pytest.raises(InputError, match=r"max_context .* must be at least 1, got 0"):
        llm.export(small_llama(), max_context=0)
    with pytest.raises(ModelNotFoundError, match=r"neither a folder with a config\.json"):
        llm.export(tmp_path / "nothing")
    with pytest.raises(DelegationError, match="there is no backend 'tpu'"):
        llm.export(tmp_path / "nothing", backend="tpu")
