# SPDX-License-Identifier: BSD-3-Clause
# In: a small Llama, exported by ExecuTorch 1.5.1 with its script and by Torchette for portable kernels. Out:
# Torchette's session matches transformers on ExecuTorch's files, and ExecuTorch's runtime matches it on Torchette's
# files.
"""Language model files run in both projects."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.llm import double
from tests.llm.exporting.test_export import expected
from tests.models import zoo
from torchette.llm import Session

_LIBRARY = zoo.declare_torchvision_operators()
transformers = pytest.importorskip("transformers")

PROMPT, COUNT = [5, 17, 3, 99, 42], 24
# Runs in a separate process, because their library registers operator names that Torchette also uses.
EXPORT = """
import json, sys, torch
from tests.models import zoo
kept = zoo.declare_torchvision_operators()
from executorch.examples.models.llama.export_llama_lib import export_llama
from executorch.extension.llm.export.config.llm_config import LlmConfig, ModelType
folder = sys.argv[1]
config = LlmConfig()
config.base.model_class = ModelType.smollm2
config.base.checkpoint, config.base.params = folder + "/model.pth", folder + "/model.json"
config.base.metadata = '{"get_bos_id": 1, "get_eos_ids": [2]}'
config.model.use_kv_cache = True
if sys.argv[2] != "plain":
    config.model.use_sdpa_with_kv_cache = True
if sys.argv[2] == "8da4w":
    config.backend.xnnpack.enabled = config.backend.xnnpack.extended_ops = True
    config.quantization.qmode, config.quantization.group_size = "8da4w", 32
    # a 4-bit table has values on a grid, which dynamic quantization may round either way
config.export.max_seq_length = config.export.max_context_length = 64
config.export.output_name = folder + "/model.pte"
export_llama(config)
"""
RUN = """
import json, sys, torch
from executorch.extension.pybindings import portable_lib
import executorch.extension.llm.custom_ops.custom_ops, executorch.kernels.quantized
program = portable_lib._load_for_executorch(sys.argv[1])
tokens = json.loads(sys.argv[2])
given, start = list(tokens), 0
for _ in range(int(sys.argv[3])):
    logits = program.forward((torch.tensor([given]), torch.tensor([start])))[0]
    start, given = start + len(given), [int(logits[0].argmax())]
    tokens += given
facts = {name: program.run_method(name)[0] for name in ("get_max_seq_len", "get_max_context_len", "use_kv_cache", "get_bos_id")}
print("SAID", json.dumps([tokens, facts, program.run_method("get_eos_ids")]))
"""

# Each token is a separate word, so that any generated text is valid.
RUNNER = """
import json, sys
import executorch.extension.llm.custom_ops.custom_ops
from executorch.extension.llm.runner import GenerationConfig, TextLLMRunner
from tokenizers import Tokenizer, models, pre_tokenizers, decoders
words = ["<unk>", "<s>", "</s>", *"helo", *(f"x{i}" for i in range(7, int(sys.argv[4])))]
made = Tokenizer(models.BPE({word: i for i, word in enumerate(words)}, []))
made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
made.add_special_tokens(words[:3])
made.save(sys.argv[2])
config = GenerationConfig()
config.max_new_tokens, config.temperature, config.echo = int(sys.argv[3]), 0.0, False
said = []
TextLLMRunner(sys.argv[1], sys.argv[2]).generate("hello", config, said.append)
print("SAID", json.dumps([words.index(word) for word in said if word in words]))
"""


def peer(code: str, *arguments: Any) -> str:
    pytest.importorskip("executorch")
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    return done.stdout


def small_llama() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=double.SIZE, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


@pytest.mark.slow
@pytest.mark.parametrize("how", ["plain", "attention as an operator", "8da4w"])
def test_our_session_runs_peer_files(tmp_path: Path, how: str) -> None:
    model = small_llama()
    parts = {
        "model.layers": "layers", "model.embed_tokens": "tok_embeddings", "model.norm": "norm", "lm_head": "output",
        "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
        "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    state = {}
    for name, tensor in model.state_dict().items():
        for theirs, name_of_ours in parts.items():
            name = name.replace(theirs, name_of_ours)
        state[name] = tensor
    torch.save(state, tmp_path / "model.pth")
    described = {
        "dim": 64, "hidden_dim": 96, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "norm_eps": 1e-5, "rope_theta": 10000.0,
        "vocab_size": double.SIZE, "use_hf_rope": True, "use_scaled_rope": False, "bos_idx": 1, "eos_idx": 2,
    }  # fmt: skip
    (tmp_path / "model.json").write_text(json.dumps(described))
    peer(EXPORT, tmp_path, how)
    session = Session(tmp_path / "model.pte")
    if how == "8da4w":  # quantized weights: compare with the peer's runtime
        printed = peer(RUN, tmp_path / "model.pte", json.dumps(PROMPT), COUNT).split("SAID")[1]
        answer = session.generate(PROMPT, max_tokens=COUNT, ignore_end=True, temperature=0).run()
        assert [*PROMPT, *answer.tokens] == json.loads(printed)[0]
        return
    answer = session.generate(PROMPT, max_tokens=COUNT, ignore_end=True, temperature=0).run()
    assert [*PROMPT, *answer.tokens] == expected(model, PROMPT, COUNT)
    session.rewind(len(PROMPT))
    again = session.generate([*PROMPT, 7], max_tokens=8, ignore_end=True, temperature=0).run()
    assert [*PROMPT, 7, *again.tokens] == expected(model, [*PROMPT, 7], 8)


@pytest.mark.slow
def test_peer_runtime_runs_our_files(tmp_path: Path) -> None:
    from torchette import llm

    model = small_llama()
    program = llm.export(model, max_context=64, max_prefill=16, backend="portable")
    assert not any(name.startswith("cpu::") for name in program.program.operators())
    program.save(tmp_path / "model.pte")
    printed = peer(RUN, tmp_path / "model.pte", json.dumps(PROMPT), COUNT).split("SAID")[1]
    tokens, facts, ends = json.loads(printed)
    assert tokens == expected(model, PROMPT, COUNT)
    assert facts == {"get_max_seq_len": 16, "get_max_context_len": 64, "use_kv_cache": True, "get_bos_id": 1}
    assert ends == [2]

    runner = peer(RUNNER, tmp_path / "model.pte", tmp_path / "tokenizer.json", 8, double.SIZE).split("SAID")[
        1
    ]
    prompt = [3, 4, 5, 5, 6]
    assert json.loads(runner) == expected(model, prompt, 8)[len(prompt) :]
