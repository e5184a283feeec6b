# SPDX-License-Identifier: BSD-3-Clause
# In: a language model in the form of Hugging Face or GGUF. Out: one .pte file for `torchette chat` and `serve`.
"""Language models: compile a folder or a GGUF file to one program

`compile` compiles a language model. `adapter` converts a LoRA adapter to a file for a compiled model.

examples:
  torchette llm compile SmolLM2-135M-Instruct -o model.pte
  torchette llm adapter model.pte poet -o poet.ptd
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from torchette.cli import DONE
from torchette.cli._console import print_values
from torchette.cli._parser import command, complete, output_argument
from torchette.progress import Progress
from torchette.quantization import LLM_SCHEMES, scheme_named, schemes_text

_COMPILE = """Compile a causal model of transformers or of a GGUF file

The model is a folder that transformers saved, or a GGUF file. The program has its own KV cache, and contains the
tokenizer, the chat template and the configuration. Compiling requires torch and transformers.

examples:
  torchette llm compile SmolLM2-135M-Instruct -o model.pte
  torchette llm compile SmolLM2-135M-Instruct -o model.pte --quantize 8da4w --max-context 4096
  torchette llm compile model.Q4_0.gguf -o model.pte        # keeps its quantized weights
  torchette llm compile llama -o model.pte --lora pirate    # also writes pirate.ptd
"""
_ADAPTER = """Write the .ptd file of a LoRA adapter

The program must have been compiled with --lora. Without a folder, writes an adapter that changes nothing.

examples:
  torchette llm adapter model.pte poet -o poet.ptd
  torchette llm adapter model.pte -o nothing.ptd
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="COMMAND", required=True)
    compiling = command(actions, "compile", _COMPILE, _compile)
    compiling.epilog = schemes_text(LLM_SCHEMES)
    compiling.add_argument(
        "model", metavar="FOLDER|FILE.gguf", type=Path, help="the model: a folder or a GGUF file"
    )
    output_argument(compiling, "MODEL.pte", "the file to write", required=True)
    scheme = compiling.add_argument(
        "--quantize",
        metavar="SCHEME",
        help="quantize linear layers and the embedding table (default: keep the weights); the schemes are below",
    )
    complete(scheme, LLM_SCHEMES)
    compiling.add_argument(
        "--max-context",
        metavar="TOKENS",
        type=int,
        help="capacity of the KV cache (default: that of the model, at most 2048)",
    )
    compiling.add_argument(
        "--max-prefill",
        metavar="TOKENS",
        type=int,
        default=128,
        help="maximum number of tokens per call (default: 128)",
    )
    compiling.add_argument(
        "--cache",
        choices=("float32", "float16", "int8"),
        default="float32",
        help="dtype of the KV cache (default: float32)",
    )
    compiling.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="of linear layers that are not quantized (default: float32)",
    )
    compiling.add_argument(
        "--full-logits",
        action="store_true",
        help="return the logits of all tokens of a call, so that tokens of a draft model are verified in one step",
    )
    compiling.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=Path,
        help="a tokenizer.json, SentencePiece or tiktoken file, instead of the model's tokenizer",
    )
    compiling.add_argument(
        "--ignore",
        metavar="FIELD",
        action="append",
        default=[],
        help="ignore a field of generation_config.json, such as num_beams; may be repeated",
    )
    compiling.add_argument(
        "--lora",
        metavar="FOLDER",
        type=Path,
        help="a LoRA adapter that peft saved; its weights are written to a .ptd file, which other adapters can replace",
    )
    adapting = command(actions, "adapter", _ADAPTER, _adapter)
    adapting.add_argument("model", metavar="MODEL.pte", type=Path, help="a program compiled with --lora")
    adapting.add_argument(
        "adapter",
        metavar="FOLDER",
        type=Path,
        nargs="?",
        help="an adapter that peft saved (default: an adapter that changes nothing)",
    )
    output_argument(adapting, "ADAPTER.ptd", "the file to write", required=True)


def _adapter(options: argparse.Namespace) -> int:
    from torchette import llm

    llm.write_adapter(options.model, options.adapter, options.output)
    return DONE


def _compile(options: argparse.Namespace) -> int:
    from torchette import llm

    began = time.perf_counter()
    scheme = options.quantize and scheme_named(options.quantize, LLM_SCHEMES).name
    with Progress() as progress:
        model = llm.export(
            options.model,
            scheme,
            max_context=options.max_context,
            max_prefill=options.max_prefill,
            full_logits=options.full_logits,
            lora=options.lora,
            cache=options.cache,
            tokenizer=options.tokenizer,
            ignore=options.ignore,
            precision=options.precision,
            progress=progress,
        )
        model.save(options.output)
    named = model.program.named_data
    print_values(
        [
            ("file", str(options.output)),
            ("bytes", model.nbytes),
            ("vocabulary", model.get_vocab_size()),
            ("layers", model.get_n_layers()),
            ("context", model.get_max_context_len()),
            ("tokens per call", model.get_max_seq_len()),
            ("weights", scheme or "unchanged"),
            *(
                []
                if "tokenizer.json" in named
                else [("tokenizer", "none: chat and serve require --tokenizer FILE")]
            ),
            ("named data", ", ".join(sorted(named))),
            ("seconds", round(time.perf_counter() - began, 1)),
        ]
    )
    return DONE
