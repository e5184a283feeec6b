# SPDX-License-Identifier: BSD-3-Clause
# Trained networks for quantization tests. Returns a small network of a given name with trained weights and held-out
# data, and, for the name of a recipe, the arguments of `torchette.compile`. Everything is seeded; nothing is
# downloaded.
"""Networks trained here in seconds, and integer recipes: ``train("digits_cnn") -> Trained``."""

from __future__ import annotations

import copy
import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.models import zoo
from torchette.errors import InputError, MissingPackageError

BATCH = 64  # examples per training step
_STEPS, _RATE = 600, 3e-3
_STEPS_IN_INTEGERS, _RATE_IN_INTEGERS = 66, 3e-4  # three epochs of the digits
_OBSERVED = 64

Data = tuple[Tensor, Tensor]  # inputs [n, ...] and labels int64 [n]
Call = tuple[Tensor, ...]


@dataclass(frozen=True)
class Trained:
    """A network in eval mode.

    Attributes:
        observed: arguments of calls for calibration, from the training data.
        held_back: arguments of calls for evaluation.
        labels: int64 [n], the labels of `held_back`; None if the network is not a classifier.
        tolerance: maximum distance from the label at which a class counts as correct.
        last: the name of the last layer.
        training_data: the training data; None if it is not available.
    """

    module: nn.Module
    observed: list[Call]
    held_back: list[Call]
    labels: Tensor | None = None
    tolerance: int = 0
    last: str = "last"
    training_data: Data | None = None

    def outputs(self, model: Callable[..., Any]) -> Tensor:
        """Returns the concatenated outputs of all held-out calls."""
        with torch.no_grad():
            return torch.cat([torch.as_tensor(model(*call)) for call in self.held_back])


class Cnn(nn.Module):
    """Convolutions (one depthwise) with batch norms and a residual: [n, rows, columns] to logits [n, classes]."""

    def __init__(self, classes: int) -> None:
        super().__init__()

        def layer(inputs: int, outputs: int, size: int, groups: int = 1) -> nn.Module:
            convolution = nn.Conv2d(inputs, outputs, size, padding=size // 2, groups=groups, bias=False)
            return nn.Sequential(convolution, nn.BatchNorm2d(outputs), nn.ReLU())

        self.stem = nn.Sequential(layer(1, 16, 3), layer(16, 32, 3), nn.MaxPool2d(2))
        self.branch = nn.Sequential(layer(32, 32, 3, groups=32), layer(32, 32, 1))
        self.last = nn.Linear(32, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x.unsqueeze(1))
        return self.last((x + self.branch(x)).mean((2, 3)))


class _Block(nn.Module):
    """Attention with 4 heads and an MLP, each after a layer norm and added to its input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.attend, self.join = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        n, rows, width = x.shape
        heads = self.attend(self.norms[0](x)).view(n, rows, 3, 4, width // 4).permute(2, 0, 3, 1, 4)
        read = functional.scaled_dot_product_attention(heads[0], heads[1], heads[2])
        x = x + self.join(read.transpose(1, 2).reshape(n, rows, width))
        return x + self.narrow(functional.gelu(self.widen(self.norms[1](x))))


class Transformer(nn.Module):
    """An encoder with rows as tokens: [n, rows, columns] to logits [n, classes]."""

    def __init__(self, rows: int, columns: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embed, self.places = nn.Linear(columns, width), nn.Parameter(torch.zeros(rows, width))
        self.blocks = nn.Sequential(_Block(width), _Block(width))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.norm(self.blocks(self.embed(x) + self.places).mean(1)))


class Mlp(nn.Module):
    """Mostly weights of large linear layers: [n, rows, columns] to logits [n, classes]."""

    def __init__(self, inputs: int, classes: int, width: int = 512) -> None:
        super().__init__()
        self.first, self.middle = nn.Linear(inputs, width), nn.Linear(width, width)
        self.last = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(self.first(x.flatten(1)).relu()).relu())


def digits() -> tuple[Data, Data]:
    """scikit-learn's handwritten digits, images [n, 8, 8] in 0 to 1: 1,437 for training, 360 held out."""
    parts = [zoo.digits_data(held_back) for held_back in (False, True)]
    training, held_back = ((images.view(-1, 8, 8), labels) for images, labels in parts)
    return training, held_back


def vowels() -> tuple[Data, Data]:
    """Japanese vowels of nine speakers (Kudo et al., 1999), 12 linear prediction coefficients at up to 29 time steps,
    zero-padded: [n, 29, 12], with the speaker as label. 270 for training, 370 held out. Read from the aeon wheel."""
    folder = folder_of("aeon") / "datasets" / "data" / "JapaneseVowels"
    return _recordings(folder / "JapaneseVowels_TRAIN.ts"), _recordings(folder / "JapaneseVowels_TEST.ts")


def folder_of(package: str) -> Path:
    """Returns the directory of a package without importing it.

    Raises:
        MissingPackageError: The package is not installed.
    """
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise MissingPackageError(
            f"the data are in the package {package}, which is not installed: pip install --no-deps {package}"
        )
    return Path(spec.origin).parent


def _recordings(path: Path) -> Data:
    """Reads one example per line: its series separated by colons, then its label, counted from 1."""
    lines = [line.split(":") for line in path.read_text().partition("@data")[2].split()]
    series_of_examples = torch.zeros(len(lines), 29, 12)
    for example, (*series, _) in zip(series_of_examples, lines):
        for place, numbers in enumerate(series):
            values = torch.tensor([float(number) for number in numbers.split(",")])
            example[: len(values), place] = values
    return series_of_examples, torch.tensor([int(line[-1]) - 1 for line in lines])


# Name -> the data, and the untrained network.
_NETWORKS: dict[str, tuple[Callable[[], tuple[Data, Data]], Callable[[], nn.Module]]] = {
    "digits_cnn": (digits, lambda: Cnn(10)),
    "digits_transformer": (digits, lambda: Transformer(8, 8, 10)),
    "digits_mlp": (digits, lambda: Mlp(64, 10)),
    "vowels_cnn": (vowels, lambda: Cnn(9)),
    "vowels_transformer": (vowels, lambda: Transformer(29, 12, 9)),
}


def names() -> list[str]:
    """Returns the names of all networks."""
    return list(_NETWORKS)


@functools.cache
def train(name: str) -> Trained:
    """Trains a network once per process, always to the same weights.

    Raises:
        MissingPackageError: The package with its data is not installed.
    """
    data, build = _NETWORKS[name]
    training_data, (inputs, labels) = data()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        module = build()
    _learn(module, training_data, _STEPS, _RATE)
    module.eval().requires_grad_(False)
    return Trained(
        module, _calls(training_data[0][:_OBSERVED]), _calls(inputs), labels, training_data=training_data
    )


def _calls(inputs: Tensor) -> list[Call]:
    return [(one,) for one in inputs.split(1)]


def _learn(module: nn.Module, training_data: Data, steps: int, rate: float) -> None:
    """Trains in place on random batches, with a learning rate that decreases to zero."""
    inputs, labels = training_data
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    draws = torch.Generator().manual_seed(0)
    for _ in range(steps):
        chosen = torch.randint(len(inputs), (BATCH,), generator=draws)
        optimizer.zero_grad()
        functional.cross_entropy(module(inputs[chosen]), labels[chosen]).backward()
        optimizer.step()
        schedule.step()


# ---- recipes ----


def prepare(trained: Trained, recipe: str) -> dict[str, Any]:
    """Returns the arguments of `torchette.compile` (without the backend) that quantize a network by a recipe."""
    return {"module": trained.module, "args": trained.held_back[0]} | RECIPES[recipe](trained)


def _quantizer(**how: bool) -> Any:
    from torchette.backends.xnnpack import XNNPACKQuantizer, get_symmetric_quantization_config

    return XNNPACKQuantizer().set_global(get_symmetric_quantization_config(is_per_channel=True, **how))


def _static(trained: Trained) -> dict[str, Any]:
    return {"quantizer": _quantizer(), "calibration": trained.observed}


def _dynamic(trained: Trained) -> dict[str, Any]:
    return {"quantizer": _quantizer(is_dynamic=True), "calibration": trained.observed[:1]}


def _hybrid(trained: Trained) -> dict[str, Any]:
    return _static(trained) | {"quantizer": _quantizer().set_module_name(trained.last, None)}


def by_recipe(name: str) -> Callable[[Trained], dict[str, Any]]:
    """Quantizes all supported layers with a recipe of `torchette.quantize`."""

    def prepared(trained: Trained) -> dict[str, Any]:
        from torchette.quantization import recipes

        recipe, module = recipes.recipe_named(name), trained.module
        observed = [(call, {}) for call in trained.observed]
        program = torch.export.export(module, trained.held_back[0]) if recipe.in_graph else None
        wide = recipes.wide_results(recipe, program, observed)
        layers = dict.fromkeys(recipes.layers_of(recipe, module, program), recipe.bits)
        return {"module": recipes.apply(recipe, module, program, layers, layers, observed, wide)}

    return prepared


def _trained_in_integers(trained: Trained) -> dict[str, Any]:
    from torchette.capture import pt2e

    training_data = trained.training_data
    if training_data is None:
        raise InputError("the training data are not available")
    module = copy.deepcopy(trained.module).train().requires_grad_(True)
    batch = torch.export.Dim("batch", min=1)
    program = torch.export.export(module, (training_data[0][:BATCH],), dynamic_shapes=({0: batch},))

    def learn(graph: nn.Module) -> None:
        _learn(graph, training_data, _STEPS_IN_INTEGERS, _RATE_IN_INTEGERS)

    return {"module": pt2e.quantize(program.module(), [_quantizer(is_qat=True)], train=learn)}


# Name -> function that returns the changed arguments of `torchette.compile`.
RECIPES: dict[str, Callable[[Trained], dict[str, Any]]] = {
    "float32": lambda trained: {},
    "static int8": _static,
    "dynamic int8": _dynamic,
    "recipe int8": by_recipe("int8"),
    "8da4w": by_recipe("8da4w"),
    "weight-only int8": by_recipe("int8-weight-only"),
    "bfloat16": by_recipe("bfloat16"),
    "float16": by_recipe("float16"),
    "hybrid": _hybrid,
    "QAT": _trained_in_integers,
}
