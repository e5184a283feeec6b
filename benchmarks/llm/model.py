# SPDX-License-Identifier: BSD-3-Clause
# Out: a folder of transformers and GGUF files of a Llama with 135 million random parameters. The floats of the folder are the
# dequantized weights of the GGUF file with the same number of bits.
"""The model of `./dev bench llm`, in the format of each side."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

VOCABULARY = 49152
CONTEXT = 1024
SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "vocab_size": VOCABULARY,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
# Bits of a weight -> GGUF type with one scale per 32 weights.
TYPES = {4: "Q4_0", 8: "Q8_0"}


def prepare() -> None:
    """Declares the operators of torchvision; without them transformers cannot be imported if torchvision was built for another
    torch."""
    from tests.models.zoo import declare_torchvision_operators

    declare_torchvision_operators()


def tokenizer() -> tuple[list[str], list[list[str]]]:
    """Returns the tokens and merges of a byte-level BPE: an end token, all bytes, then pairs of them."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    characters = list(bytes_to_unicode().values())
    pairs = [[a, b] for a in characters for b in characters][: VOCABULARY - 257]
    return ["<|endoftext|>", *characters, *("".join(pair) for pair in pairs)], pairs


def write(folder: Path, bits: int) -> None:
    """Writes `folder`/model.gguf and `folder`/hf."""
    prepare()
    import gguf
    import numpy as np
    import torch
    from gguf.quants import dequantize, quantize
    from transformers import LlamaConfig, LlamaForCausalLM

    from torchette.llm.exporting.gguf import tensor_name

    torch.manual_seed(0)
    kind = gguf.GGMLQuantizationType[TYPES[bits]]
    model = LlamaForCausalLM(LlamaConfig(**SHAPE, dtype="float32")).eval()
    out = gguf.GGUFWriter(folder / "model.gguf", "llama")
    out.add_name("random")
    out.add_file_type(gguf.LlamaFileType[f"MOSTLY_{TYPES[bits]}"])
    out.add_vocab_size(VOCABULARY)
    out.add_context_length(CONTEXT)
    out.add_embedding_length(SHAPE["hidden_size"])
    out.add_block_count(SHAPE["num_hidden_layers"])
    out.add_feed_forward_length(SHAPE["intermediate_size"])
    out.add_head_count(SHAPE["num_attention_heads"])
    out.add_head_count_kv(SHAPE["num_key_value_heads"])
    out.add_layer_norm_rms_eps(SHAPE["rms_norm_eps"])
    out.add_rope_freq_base(SHAPE["rope_theta"])
    out.add_rope_dimension_count(SHAPE["hidden_size"] // SHAPE["num_attention_heads"])
    tokens, merges = tokenizer()
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(tokens)
    out.add_token_types([3] + [1] * (VOCABULARY - 1))
    out.add_token_merges([" ".join(pair) for pair in merges])
    out.add_bos_token_id(0)
    out.add_eos_token_id(0)
    heads = {"q_proj": SHAPE["num_attention_heads"], "k_proj": SHAPE["num_key_value_heads"]}
    for name, parameter in model.named_parameters():
        array = parameter.detach().numpy()
        if array.ndim == 1:
            out.add_tensor(tensor_name(name), array)
            continue
        blocks = quantize(array, kind)
        parameter.data = torch.from_numpy(np.array(dequantize(blocks, kind)))
        count = heads.get(name.split(".")[-2])
        if count is not None:  # GGUF has adjacent pairs, transformers the two halves of a head
            blocks = blocks.reshape(count, 2, -1, blocks.shape[-1]).swapaxes(1, 2).reshape(blocks.shape)
        out.add_tensor(tensor_name(name), np.ascontiguousarray(blocks), raw_dtype=kind)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()
    model.save_pretrained(folder / "hf")
    _write_tokenizer(folder / "hf", tokens, merges)


def _write_tokenizer(folder: Path, tokens: list[str], merges: list[list[str]]) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    tokenizer = Tokenizer(
        models.BPE({token: i for i, token in enumerate(tokens)}, [tuple(m) for m in merges])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(tokens[:1])
    tokenizer.save(str(folder / "tokenizer.json"))
    described: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": CONTEXT}
    described |= dict.fromkeys(("bos_token", "eos_token"), tokens[0])
    (folder / "tokenizer_config.json").write_text(json.dumps(described))


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    write(Path(sys.argv[1]), int(sys.argv[2]))
