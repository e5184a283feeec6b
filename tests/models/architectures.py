# SPDX-License-Identifier: BSD-3-Clause
# Coverage of model architectures: one small member of each family of torchvision, timm and transformers. Builds the
# model of a given name with seeded random weights, compiles it, runs it on the runtime and compares it with eager.
# Downloads nothing. Images and configurations are small, because the purpose is operator coverage.
"""The zoo of architectures: ``measure("timm/levit_128s")``; ``python -m tests.models.architectures`` writes its page."""

from __future__ import annotations

import math
import os
import re
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import torchette
from tests.models import zoo
from torchette.devtools.inspect import describe
from torchette.format import pte

PAGE = Path(__file__).parents[2] / "benchmarks" / "architectures.md"

# torchvision: the smallest member of every classification family -> image size in pixels.
TORCHVISION = {
    "alexnet": 64, "convnext_tiny": 64, "densenet121": 64, "efficientnet_b0": 64, "efficientnet_v2_s": 64,
    "googlenet": 64, "inception_v3": 96, "maxvit_t": 224, "mnasnet0_5": 64, "mobilenet_v2": 64,
    "mobilenet_v3_small": 64, "regnet_x_400mf": 64, "regnet_y_400mf": 64, "resnet18": 64, "resnext50_32x4d": 64,
    "shufflenet_v2_x0_5": 64, "squeezenet1_1": 64, "swin_t": 64, "swin_v2_t": 64, "vgg11_bn": 64, "vit_b_32": 64,
    "wide_resnet50_2": 64,
}  # fmt: skip

# timm: a small member of each of these families -> image size; None uses the default of the architecture.
TIMM = {
    "beit_base_patch16_224": None, "cait_xxs24_224": None, "coat_lite_tiny": None, "coatnet_nano_rw_224": None,
    "convmixer_768_32": 64, "convnextv2_atto": 64, "crossvit_tiny_240": None, "cspresnet50": 64, "davit_tiny": 64,
    "deit_tiny_patch16_224": None, "dla46_c": 64, "dpn48b": 64, "edgenext_xx_small": 64, "efficientformer_l1": None,
    "efficientvit_b0": 64, "eva02_tiny_patch14_224": None, "fastvit_t8": 64, "focalnet_tiny_srf": 64,
    "gcvit_xxtiny": None, "ghostnet_050": 64, "gmlp_ti16_224": None, "halonet26t": 256, "hgnetv2_b0": 64,
    "hrnet_w18_small": 64, "inception_next_tiny": 64, "lcnet_050": 64, "levit_128s": None, "mambaout_femto": 64,
    "mixer_s32_224": None, "mobilenetv4_conv_small": 64, "mobileone_s0": 64, "mobilevit_xxs": 64,
    "mobilevitv2_050": 64, "nest_tiny": None, "nf_resnet26": 64, "pit_ti_224": None, "poolformer_s12": 64,
    "pvt_v2_b0": 64, "regnety_002": 64, "repvgg_a0": 64, "res2net50_14w_8s": 64, "resmlp_12_224": None,
    "resnest14d": 64, "rexnet_100": 64, "sequencer2d_s": 64, "skresnet18": 64, "starnet_s1": 64, "tinynet_e": 64,
    "tiny_vit_5m_224": None, "twins_svt_small": 64, "visformer_tiny": None, "vovnet39a": 64,
    "xcit_nano_12_p16_224": None,
}  # fmt: skip

_TEXT = {
    "vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
_GROUPED = {**_TEXT, "num_key_value_heads": 2, "head_dim": 8}
_IMAGES = {
    "image_size": 32, "patch_size": 8, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
    "intermediate_size": 64, "num_channels": 3,
}  # fmt: skip
# Encoder-decoder models name the inputs of their two parts.
_HALVES = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "max_position_embeddings": 64,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
}  # fmt: skip

# transformers: model type -> (configuration, input names).
TRANSFORMERS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "albert": ({**_TEXT, "embedding_size": 16}, ("input_ids", "attention_mask")),
    "bert": (_TEXT, ("input_ids", "attention_mask")),
    "convbert": ({**_TEXT, "embedding_size": 32}, ("input_ids",)),
    "deberta-v2": (_TEXT, ("input_ids", "attention_mask")),
    "distilbert": (_TEXT, ("input_ids", "attention_mask")),
    "electra": ({**_TEXT, "embedding_size": 16}, ("input_ids", "attention_mask")),
    "fnet": (_TEXT, ("input_ids",)),
    "mobilebert": ({**_TEXT, "embedding_size": 32, "intra_bottleneck_size": 32}, ("input_ids",)),
    "modernbert": ({**_TEXT, "attn_implementation": "sdpa"}, ("input_ids", "attention_mask")),
    "mpnet": (_TEXT, ("input_ids", "attention_mask")),
    "roberta": (_TEXT, ("input_ids", "attention_mask")),
    "squeezebert": ({**_TEXT, "embedding_size": 32}, ("input_ids",)),
    "bloom": ({**_TEXT, "n_head": 4, "n_layer": 2}, ("input_ids",)),
    "falcon": ({**_TEXT, "num_kv_heads": 2, "new_decoder_architecture": True}, ("input_ids",)),
    "gemma": (_GROUPED, ("input_ids",)),
    "gemma2": (_GROUPED, ("input_ids",)),
    "gpt2": ({"vocab_size": 99, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}, ("input_ids",)),
    "gpt_neo": ({**_TEXT, "num_heads": 4, "num_layers": 2, "attention_types": [[["global", "local"], 1]]}, ("input_ids",)),
    "gpt_neox": (_TEXT, ("input_ids",)),
    "llama": (_GROUPED, ("input_ids",)),
    "mamba": ({"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}, ("input_ids",)),
    "mistral": ({**_GROUPED, "sliding_window": 8}, ("input_ids",)),
    "olmo2": (_GROUPED, ("input_ids",)),
    "opt": ({**_TEXT, "ffn_dim": 64, "word_embed_proj_dim": 32}, ("input_ids",)),
    "phi": (_TEXT, ("input_ids",)),
    "qwen2": (_GROUPED, ("input_ids",)),
    "qwen3": (_GROUPED, ("input_ids",)),
    "stablelm": ({**_TEXT, "num_key_value_heads": 2}, ("input_ids",)),
    "bart": (_HALVES, ("input_ids", "decoder_input_ids")),
    "marian": (_HALVES, ("input_ids", "decoder_input_ids")),
    "t5": ({"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "decoder_start_token_id": 0}, ("input_ids", "decoder_input_ids")),
    "whisper": ({**_HALVES, "num_mel_bins": 20, "max_source_positions": 32, "max_target_positions": 32}, ("input_features", "decoder_input_ids")),
    "wav2vec2": ({**_TEXT, "conv_dim": [16, 16], "conv_stride": [4, 4], "conv_kernel": [8, 8], "num_feat_extract_layers": 2, "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 4}, ("input_values",)),
    "clip_vision_model": (_IMAGES, ("pixel_values",)),
    "convnext": ({"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1]}, ("pixel_values",)),
    "dinov2": (_IMAGES, ("pixel_values",)),
    "mobilevit": ({"hidden_sizes": [16, 24, 32], "neck_hidden_sizes": [8, 8, 16, 16, 24, 32, 32], "image_size": 32, "num_attention_heads": 4}, ("pixel_values",)),
    "segformer": ({"hidden_sizes": [8, 16, 24, 32], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 1, 2, 2], "decoder_hidden_size": 32}, ("pixel_values",)),
    "swin": ({"image_size": 32, "patch_size": 2, "embed_dim": 16, "depths": [1, 1], "num_heads": [2, 2], "window_size": 4}, ("pixel_values",)),
    "vit": (_IMAGES, ("pixel_values",)),
}  # fmt: skip

NAMES = [
    *(f"torchvision/{name}" for name in TORCHVISION),
    *(f"timm/{name}" for name in TIMM),
    *(f"transformers/{name}" for name in TRANSFORMERS),
]

# Architectures that cannot be compiled, with the error code.
FAILS: dict[str, str] = {}

# Maximum difference from eager, relative to the largest value of eager.
TOLERANCE = 1e-4
SPREAD = 1e-6  # minimum standard deviation of a reference


@dataclass
class Row:
    """The result of an architecture. Bytes and difference are None if it does not compile."""

    name: str
    status: str
    calls: str = ""
    file_bytes: int | None = None
    arena_bytes: int | None = None
    difference: float | None = None

    def line(self) -> str:
        """Formats the row of the table."""
        numbers = ["" if n is None else f"{n:,}" for n in (self.file_bytes, self.arena_bytes)]
        difference = "" if self.difference is None else f"{self.difference:.1e}"
        status = self.status.replace("|", " ")
        return f"| `{self.name}` | {' | '.join(numbers)} | {difference} | {status} | {self.calls} |"


class First(nn.Module):
    """Wraps a transformers model: accepts tensors by position and returns the first result."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, *args: Tensor) -> Tensor:
        return self.model(**dict(zip(self.names, args)), return_dict=False)[0]


def build(name: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Returns a model in eval mode and the arguments of one call, the same in every process."""
    zoo.declare_torchvision_operators()
    os.environ["HF_HUB_OFFLINE"] = "1"
    library, _, architecture = name.partition("/")
    with torch.random.fork_rng(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        module, args = globals()[f"_{library}"](architecture)
        module = without_zero_weights(module.eval().requires_grad_(False))
    return module, args


def without_zero_weights(model: nn.Module) -> nn.Module:
    """Replaces weights that are initialized to zero with random weights, because a zero head or branch hides all layers
    before it."""
    for name, weight in model.named_parameters():
        if weight.dim() > 1 and not name.endswith("bias") and not weight.any():
            nn.init.normal_(weight, std=0.05)
    return model


def reference(module: nn.Module, args: tuple[Tensor, ...]) -> Tensor:
    """Returns the result of eager.

    Raises:
        ValueError: The result is almost constant, so that a comparison would be meaningless, or is not finite.
    """
    with torch.no_grad():
        expected = module(*args)
    spread = expected.double().std().item()
    if not spread > SPREAD:  # also true for NaN
        raise ValueError(f"the reference is almost constant: its standard deviation is {spread:.1e}")
    return expected


def _torchvision(architecture: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    import torchvision

    # The auxiliary training heads of these two models require larger images.
    options = {"aux_logits": False} if architecture in ("googlenet", "inception_v3") else {}
    if architecture == "vit_b_32":
        options = {"image_size": TORCHVISION[architecture]}
    model = torchvision.models.get_model(architecture, weights=None, num_classes=10, **options)
    if isinstance(getattr(model, "classifier", None), nn.Sequential) and architecture.startswith(
        ("alexnet", "vgg")
    ):
        # The two largest layers of the classifier contain most of the weights.
        first, second = (
            layer for layer in model.classifier if isinstance(layer, nn.Linear) and layer.out_features == 4096
        )
        first.weight, first.bias = (
            nn.Parameter(first.weight[:64].clone()),
            nn.Parameter(first.bias[:64].clone()),
        )
        first.out_features = second.in_features = 64
        second.weight = nn.Parameter(second.weight[:, :64].clone())
    edge = TORCHVISION[architecture]
    return _settled(model, edge)


def _timm(architecture: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    import timm

    model = timm.create_model(architecture, num_classes=10)
    return _settled(model, TIMM[architecture] or model.default_cfg["input_size"][-1])


def _settled(model: nn.Module, edge: int) -> tuple[nn.Module, tuple[Tensor, ...]]:
    args = (torch.randn(1, 3, edge, edge),)
    # Statistics of few values would amplify rounding errors.
    return zoo._settle_batch_norms(model, torch.randn(8 if edge < 200 else 2, 3, edge, edge)), args


def _transformers(architecture: str) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import AutoConfig, AutoModel

    options, names = TRANSFORMERS[architecture]
    config = AutoConfig.for_model(architecture, **options)
    config.use_cache = False
    inputs = {
        "input_ids": torch.randint(3, 99, (1, 16)),
        "decoder_input_ids": torch.randint(3, 99, (1, 8)),
        "attention_mask": torch.tensor([[1] * 12 + [0] * 4]),
        "pixel_values": torch.randn(1, 3, 32, 32),
        "input_values": torch.randn(1, 1600),
        "input_features": torch.randn(1, 20, 64),
    }
    model = First(AutoModel.from_config(config), names)
    if names == ("pixel_values",):
        zoo._settle_batch_norms(model, torch.randn(8, 3, 32, 32))
    return model, tuple(inputs[name] for name in names)


def measure(name: str) -> Row:
    """Builds, compiles, runs and compares one architecture."""
    module, args = build(name)
    expected = reference(module, args)
    try:
        model = torchette.compile(module, args)
    except torchette.TorchetteError as error:
        return Row(name, f"{error.code}: {_cause(error)}")
    actual = torch.as_tensor(model(*args))
    difference, status = difference_of(actual, expected), "equal"
    if not difference <= TOLERANCE:
        with torch.no_grad():
            exact = module.double()(*(arg.double() if arg.is_floating_point() else arg for arg in args))
        ours, theirs = difference_of(actual, exact), difference_of(expected, exact)
        status = (
            f"{'equal' if ours <= theirs else 'results differ'}: from float64 {ours:.1e}, eager {theirs:.1e}"
        )
    return Row(
        name,
        status,
        _calls(model),
        model.nbytes,
        model.planned_bytes,
        difference,
    )


def _calls(model: torchette.CompiledModel) -> str:
    """Formats the number of calls per operator: engine operators first, then portable operators."""
    (method,) = describe(pte.read(model.program.buffer)).methods
    called = [each.op.partition(".")[0].split("::") for each in method.instructions if each.kind == "kernel"]
    kinds = []
    for namespace in ("cpu", "aten"):
        counts = Counter(name for space, name in called if space == namespace)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        kinds.append(", ".join(f"{name} {count}" for name, count in ranked) or "none")
    return "; portable: ".join(kinds)


def difference_of(actual: Tensor, expected: Tensor) -> float:
    """Returns the maximum absolute difference relative to the largest value, or infinity if the shapes differ."""
    if actual.shape != expected.shape:
        return math.inf
    if expected.numel() == 0:
        return 0.0
    actual, expected = actual.double(), expected.double()
    return (actual - expected).abs().max().item() / max(expected.abs().max().item(), 1e-6)


def _cause(error: torchette.TorchetteError) -> str:
    violations = getattr(error, "violations", ())
    return "; ".join(dict.fromkeys(v.message for v in violations)) or str(error).splitlines()[0]


def page(lines: list[str]) -> str:
    """Returns the text of benchmarks/architectures.md for the lines of its table."""
    equal = sum("| equal" in line for line in lines)
    head = [
        "# Architectures",
        "",
        f"`python -m tests.models.architectures` compiles {len(lines)} architectures with random weights and small inputs for the CPU",
        f"engine, compares each with eager, and writes this page: {equal} equal eager. With names, it measures only those rows.",
        "`./dev test --full` repeats the comparison.",
        "",
        "The difference is absolute, relative to the largest value of eager. A result is equal if its difference is at most",
        f"{TOLERANCE:g}, or if it is at most as far from the float64 result as eager; then the row contains both distances. Weights",
        "that are initialized to zero are random here. `alexnet` and `vgg11_bn` have 64 units between their last layers.",
        "",
        "| architecture | file bytes | arena bytes | difference | status | calls |",
        "|---|---:|---:|---:|---|---|",
    ]
    return "\n".join([*head, *lines]) + "\n"


def main(names: list[str]) -> None:
    """Measures all architectures, or the given ones, and writes the page."""
    lines = dict(re.findall(r"^(?=\| `([\w/.-]+)`)(.*)$", PAGE.read_text(encoding="utf-8"), re.M))
    for name in names or NAMES:
        lines[name] = measure(name).line()
        print(lines[name], flush=True)
    PAGE.write_text(page([lines[name] for name in NAMES]), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
