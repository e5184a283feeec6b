# SPDX-License-Identifier: BSD-3-Clause
# In: a name. Out: one of the fifteen float32 models that all sides run, in eval mode, and the arguments of one call. Seven are
# reference models.
"""The models of `./dev bench peers`: ``build("llama_decode") -> (module, args)``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.peers import speech
from tests.models import zoo

NAMES = [
    "mlp",
    "keyword_spotting",
    "mobilenet_v3_small",
    "mobilenet_v2",
    "efficientnet_b0",
    "resnet18",
    "resnet50",
    "vit_tiny",
    "minilm",
    "llama_prefill",
    "llama_decode",
    *speech.BUILDERS,
]
# Tokens of a prompt, and maximum number of earlier tokens of a decoder.
TOKENS = 128
LAYERS, HEADS, HEAD_DIM, VOCABULARY = 30, 3, 64, 49152


def build(name: str) -> zoo.Built:
    """Returns one of `NAMES` with the same weights and arguments in every process."""
    if name in zoo.names():
        return zoo.build(name)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module, args = _BUILDERS[name]()
    return module.eval().requires_grad_(False), args


class Llama(nn.Module):
    """Returns a Llama with 135 million random parameters and the shape of SmolLM2-135M."""

    def __init__(self) -> None:
        super().__init__()
        zoo.declare_torchvision_operators()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=9 * HEAD_DIM,
            intermediate_size=1536,
            num_hidden_layers=LAYERS,
            num_attention_heads=9,
            num_key_value_heads=HEADS,
            head_dim=HEAD_DIM,
            tie_word_embeddings=True,
            initializer_range=0.04,
            attn_implementation="sdpa",
        )
        self.model = LlamaForCausalLM(config)


class Prefill(Llama):
    """Prefill: token ids int64 [1, 128] -> logits of the last token, float32 [1, 1, vocabulary]."""

    def forward(self, tokens: Tensor) -> Tensor:
        mask = torch.full((TOKENS, TOKENS), -1e9).triu(1)[None, None]
        positions = torch.arange(TOKENS)[None]
        outputs = self.model(tokens, mask, positions, use_cache=False, logits_to_keep=1)
        return outputs.logits


class Decode(Llama):
    """One token after up to 128 others: id int64 [1, 1], position int64 [1], keys and values float32
    [layers, 1, heads, 128, 64] to logits [1, 1, vocabulary] and the new keys and values [layers, 1, heads, 1, 64].

    The caller writes these to the cache, because not every side supports state.
    """

    def forward(
        self, token: Tensor, position: Tensor, keys: Tensor, values: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        slots = torch.arange(TOKENS + 1)
        is_visible = (slots < position) | (slots == TOKENS)
        mask = torch.where(is_visible, 0.0, -1e9)[None, None, None]
        cache = _Columns(keys, values)
        outputs = self.model(token, mask, position[None], past_key_values=cache, use_cache=True)
        return outputs.logits, torch.stack(cache.new_keys), torch.stack(cache.new_values)


class _Columns:
    """The part of transformers' cache protocol that Llama calls: stores the new keys and values and appends them to the given ones."""

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        self._keys, self._values = keys, values
        self.new_keys: list[Tensor] = []
        self.new_values: list[Tensor] = []

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: object) -> tuple[Tensor, Tensor]:
        self.new_keys.append(keys)
        self.new_values.append(values)
        return torch.cat((self._keys[layer], keys), 2), torch.cat((self._values[layer], values), 2)


def _decode() -> zoo.Built:
    cache = torch.randn(2, LAYERS, 1, HEADS, TOKENS, HEAD_DIM) / 2
    return Decode(), (
        torch.randint(VOCABULARY, (1, 1)),
        torch.tensor([100]),
        cache[0].clone(),
        cache[1].clone(),
    )


_BUILDERS = {
    **speech.BUILDERS,
    "mlp": lambda: (
        nn.Sequential(nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)),
        (torch.randn(1, 784),),
    ),
    "resnet50": lambda: zoo.vision("resnet50"),
    "llama_prefill": lambda: (Prefill(), (torch.randint(VOCABULARY, (1, TOKENS)),)),
    "llama_decode": _decode,
}
