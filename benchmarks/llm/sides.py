# SPDX-License-Identifier: BSD-3-Clause
# In: the name of a side and its file. Out: seconds of a prefill and of decode steps, with the fewest calls that the engine's API
# allows. This module runs in the side's virtual environment, so every import is local.
"""One class per side; `SIDES` contains them by name."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llm.model import CONTEXT, SHAPE, VOCABULARY, prepare

# Tokens that one measurement decodes.
TOKENS = 16


def tokens(count: int) -> Any:
    """Returns the tokens of a prompt."""
    return np.random.default_rng(count).integers(1, VOCABULARY, (1, count), dtype=np.int64)


def timed(call: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


class Side:
    """An engine. `file` is the name of the file that `convert` writes, or of a file that the model's folder contains."""

    requires: Sequence[str] = ()
    file = "model.gguf"

    @staticmethod
    def prepare() -> None:
        """Imports the engine; this time is not measured."""

    @staticmethod
    def convert(folder: Path, bits: int) -> None:
        """Writes `file` to the model's folder."""

    def __init__(self, path: Path, threads: int) -> None:
        raise NotImplementedError

    def prefill(self, count: int) -> float:
        """Returns the seconds from a prompt to its logits or to the next token."""
        raise NotImplementedError

    def decode(self, position: int) -> float:
        """Returns the seconds of a token, from a position."""
        raise NotImplementedError


class Calls(Side):
    """A program with the inputs tokens and position of the first token."""

    call: Callable[[Any, int], Any]

    def prefill(self, count):
        prompt = tokens(count)
        return timed(lambda: self.call(prompt, 0))

    def decode(self, position):
        self.call(tokens(position), 0)
        following = tokens(TOKENS)
        return (
            timed(lambda: [self.call(following[:, i : i + 1], position + i) for i in range(TOKENS)]) / TOKENS
        )


class Ours(Calls):
    file = "ours.pte"

    @staticmethod
    def prepare():
        import torchette.runtime  # noqa: F401

    @staticmethod
    def convert(folder, bits):
        prepare()
        from torchette import llm

        program = llm.export(
            folder / "model.gguf", "8da4w", max_context=CONTEXT, max_prefill=512, cache="float16"
        )
        program.save(folder / "ours.pte")

    def __init__(self, path, threads):
        from torchette.runtime import Runtime

        method = Runtime.get().load_program(path).load_method("forward", threads=threads)
        self.call = lambda token_ids, position: method.execute((token_ids, np.array([position])))


class ExecuTorch(Calls):
    file = "executorch.pte"

    @staticmethod
    def prepare():
        prepare()
        import executorch.extension.llm.custom_ops.custom_ops
        import executorch.extension.pybindings.portable_lib  # noqa: F401

    @staticmethod
    def convert(folder, bits):
        prepare()
        import torch
        from executorch.examples.models.llama.export_llama_lib import export_llama
        from executorch.extension.llm.export.config.llm_config import LlmConfig, ModelType
        from safetensors.torch import load_file

        parts = {
            "model.layers": "layers", "model.embed_tokens": "tok_embeddings", "model.norm": "norm",
            "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk", "self_attn.v_proj": "attention.wv",
            "self_attn.o_proj": "attention.wo", "mlp.gate_proj": "feed_forward.w1", "mlp.up_proj": "feed_forward.w3",
            "mlp.down_proj": "feed_forward.w2", "input_layernorm": "attention_norm",
            "post_attention_layernorm": "ffn_norm",
        }  # fmt: skip
        state = {}
        for name, tensor in load_file(folder / "hf" / "model.safetensors").items():
            for theirs, name_of_peer in parts.items():
                name = name.replace(theirs, name_of_peer)
            state[name] = tensor
        state["output.weight"] = state["tok_embeddings.weight"]
        torch.save(state, folder / "executorch.pth")
        described = {
            "dim": SHAPE["hidden_size"], "hidden_dim": SHAPE["intermediate_size"], "n_layers": SHAPE["num_hidden_layers"],
            "n_heads": SHAPE["num_attention_heads"], "n_kv_heads": SHAPE["num_key_value_heads"],
            "norm_eps": SHAPE["rms_norm_eps"], "rope_theta": SHAPE["rope_theta"], "vocab_size": VOCABULARY,
            "use_hf_rope": True, "use_scaled_rope": False, "bos_idx": 0, "eos_idx": 0,
        }  # fmt: skip
        (folder / "executorch.json").write_text(json.dumps(described))
        config = LlmConfig()
        config.base.model_class = ModelType.smollm2
        config.base.checkpoint = str(folder / "executorch.pth")
        config.base.params = str(folder / "executorch.json")
        config.model.use_kv_cache = config.model.use_sdpa_with_kv_cache = True
        config.export.max_seq_length = config.export.max_context_length = CONTEXT
        config.export.output_name = str(folder / "executorch.pte")
        config.backend.xnnpack.enabled = config.backend.xnnpack.extended_ops = True
        config.quantization.qmode, config.quantization.group_size = f"8da{bits}w", 32
        config.quantization.embedding_quantize = "4,32" if bits == 4 else "8,0"
        export_llama(config)

    def __init__(self, path, threads):
        import torch
        from executorch.extension.pybindings import portable_lib

        portable_lib._unsafe_reset_threadpool(threads)
        module = portable_lib._load_for_executorch(str(path))
        self.call = lambda token_ids, position: module.forward(
            (torch.from_numpy(token_ids), torch.tensor([position])), clone_outputs=False
        )


class LlamaCpp(Calls):
    requires = ("llama-cpp-python==0.3.36",)

    @staticmethod
    def prepare():
        import llama_cpp  # noqa: F401

    def __init__(self, path, threads):
        import llama_cpp

        engine = llama_cpp.Llama(
            str(path), n_ctx=CONTEXT, n_threads=threads, n_threads_batch=threads, n_batch=512, n_ubatch=512,
            n_gpu_layers=0, verbose=False,
        )  # fmt: skip

        def call(token_ids, position):
            engine.n_tokens = position
            engine.eval(token_ids[0].tolist())

        self.call = call


class OpenVino(Side):
    requires = ("openvino-genai==2026.4.1.0", "openvino-tokenizers==2026.4.1.0", "openvino==2026.4.1")

    @staticmethod
    def prepare():
        import openvino_genai  # noqa: F401

    def __init__(self, path, threads):
        import openvino_genai

        self.pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)

    def generate(self, count, following):
        import openvino
        import openvino_genai

        config = openvino_genai.GenerationConfig()
        config.max_new_tokens = config.min_new_tokens = following
        config.ignore_eos, config.do_sample = True, False
        return self.pipeline.generate(openvino.Tensor(tokens(count)), config).perf_metrics

    def prefill(self, count):
        return self.generate(count, 1).get_ttft().mean / 1000

    def decode(self, position):
        return self.generate(position, TOKENS).get_tpot().mean / 1000


class OnnxRuntime(Side):
    requires = (
        *("onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx==1.23.2", "onnx-ir", "onnxscript"),
        "ml_dtypes",
    )
    file = "onnx"

    @staticmethod
    def prepare():
        import onnxruntime_genai  # noqa: F401

    @staticmethod
    def convert(folder, bits):
        import onnxruntime_genai

        builder = Path(onnxruntime_genai.__file__).parent / "models" / "builder.py"
        arguments = ["-i", folder / "hf", "-o", folder / "onnx", "-p", f"int{bits}", "-e", "cpu"]
        arguments += ["-c", folder / "cache", "--extra_options", "accuracy_level=4", "block_size=32"]
        run = "import runpy, sys; from benchmarks.llm.model import prepare; prepare(); "
        run += f"sys.path.insert(0, {str(builder.parent)!r}); runpy.run_path({str(builder)!r}, run_name='__main__')"
        subprocess.run([sys.executable, "-c", run, *map(str, arguments)], check=True)

    def __init__(self, path, threads):
        import onnxruntime_genai

        config = onnxruntime_genai.Config(str(path))
        options = {"intra_op_num_threads": threads, "inter_op_num_threads": 1}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": options}}}))
        self.model = onnxruntime_genai.Model(config)

    def generator(self):
        import onnxruntime_genai

        parameters = onnxruntime_genai.GeneratorParams(self.model)
        parameters.set_search_options(max_length=CONTEXT, min_length=CONTEXT, do_sample=False)
        return onnxruntime_genai.Generator(self.model, parameters)

    def prefill(self, count):
        generator, prompt = self.generator(), tokens(count)[0].astype(np.int32)

        def call():
            generator.append_tokens(prompt)
            generator.generate_next_token()

        return timed(call)

    def decode(self, position):
        generator = self.generator()
        generator.append_tokens(tokens(position)[0].astype(np.int32))
        generator.generate_next_token()
        return timed(lambda: [generator.generate_next_token() for _ in range(TOKENS)]) / TOKENS


SIDES: dict[str, type[Side]] = {
    "ours": Ours,
    "executorch": ExecuTorch,
    "llama.cpp": LlamaCpp,
    "openvino": OpenVino,
    "onnxruntime": OnnxRuntime,
}


def resident() -> int:
    """Returns the resident bytes of this process."""
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * 4096


def main(job: str, name: str, path: str, number: str, pipe: str = "") -> None:
    """Runs `convert NAME FOLDER BITS`, or `run NAME FILE THREADS PIPE`.

    `run` answers the lines "prefill N" and "decode N" with seconds. The answers go to PIPE, because some engines write to the
    standard output.
    """
    side = SIDES[name]
    if job == "convert":
        side.convert(Path(path), int(number))
        return
    side.prepare()
    tokens(1)  # imports NumPy's generators
    before, begin = resident(), time.perf_counter()
    engine = side(Path(path), int(number))
    ready = {"load": time.perf_counter() - begin, "first": engine.prefill(128)}
    engine.decode(500)
    with open(int(pipe), "w", buffering=1) as answer:
        print(json.dumps(ready | {"memory": resident() - before}), file=answer)
        for line in sys.stdin:
            method, count = line.split()
            print(getattr(engine, method)(int(count)), file=answer)


if __name__ == "__main__":
    main(*sys.argv[1:])
