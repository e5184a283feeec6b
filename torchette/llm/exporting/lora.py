# SPDX-License-Identifier: BSD-3-Clause
# In: the folder of a LoRA adapter of peft. Out: a model with adapter layers, and the .ptd file of the adapter's weights, which
# programs of such a model read at run time. Needs numpy; torch only for `adapted`.
"""LoRA adapters: `read`, `write`, `adapted`."""

from __future__ import annotations

import copy
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np

from torchette.errors import FormatError, InputError, ModelNotFoundError, UnsupportedError
from torchette.files import replacing
from torchette.format import ptd, pte
from torchette.runtime import xxh64

# Name of the named data with the shapes of an adapter: tensor -> shape, as JSON.
SHAPES = "adapter.json"
_FLOAT32 = 6
_WEIGHTS = "adapter_model.safetensors"


class Adapter(NamedTuple):
    """A LoRA adapter: adds x @ first @ second to the output of each of its layers."""

    name: str
    parts: dict[str, tuple[np.ndarray, np.ndarray]]
    """Layer -> (first [inputs, rank], second [rank, outputs]); second includes the scale of the adapter."""


def read(folder: str | os.PathLike[str]) -> Adapter:
    """Reads the adapter of a folder that peft saved.

    Raises:
        ModelNotFoundError: the folder contains no adapter.
        FormatError: a file of the adapter is damaged.
        UnsupportedError: the adapter has more than two matrices per layer; the message names the fields.
    """
    folder = Path(folder)
    stored = folder / _WEIGHTS
    try:
        config = json.loads((folder / "adapter_config.json").read_bytes())
        if not isinstance(config, dict):
            raise ValueError("adapter_config.json is not an object")
        tensors = _tensors(stored)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"{folder} has no {Path(error.filename).name}",
            hints=["the folder that peft's save_pretrained makes"],
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{folder} does not contain an adapter: {error}") from None
    _check(config, folder)
    parts: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    for name in tensors:
        layer, _, end = name.removeprefix("base_model.model.").partition(".lora_A.weight")
        if end or not name.endswith(".lora_A.weight"):
            if not name.endswith((".lora_A.weight", ".lora_B.weight")):
                raise UnsupportedError(f"{stored}: {name} is neither of the two matrices of a layer")
            continue
        first, second = tensors[name], tensors.get(name.replace(".lora_A.", ".lora_B."))
        if second is None or first.ndim != 2 or second.ndim != 2 or first.shape[0] != second.shape[1]:
            raise FormatError(f"{stored}: the two matrices of {layer} do not fit each other")
        rank = first.shape[0]
        expected = _of_layer(config, "rank_pattern", layer, config.get("r", rank))
        if expected != rank:
            raise FormatError(f"{stored}: {layer} has rank {rank}, and adapter_config.json says {expected}")
        alpha = _of_layer(config, "alpha_pattern", layer, config.get("lora_alpha", rank))
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)):
            raise FormatError(
                f"{folder}: adapter_config.json has lora_alpha {alpha!r}, which must be a number"
            )
        scale = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        parts[layer] = np.ascontiguousarray(first.T), np.ascontiguousarray(second.T * np.float32(scale))
    if not parts:
        raise FormatError(f"{stored} has no layer")
    return Adapter(folder.resolve().name, parts)


# Fields of adapter_config.json that name the adapter, that only training reads, or that `read` applies. Which layers have an
# adapter is in the file of its weights.
_KNOWN = frozenset((
    "alpha_pattern", "auto_mapping", "base_model_name_or_path", "bias", "corda_config", "ensure_weight_tying", "eva_config",
    "exclude_modules", "fan_in_fan_out", "inference_mode", "init_lora_weights", "layers_pattern", "layers_to_transform",
    "loftq_config", "lora_alpha", "lora_dropout", "lora_ga_config", "megatron_config", "megatron_core", "peft_type",
    "peft_version", "qalora_group_size", "r", "rank_pattern", "revision", "target_modules", "task_type", "use_rslora",
    "velora_config",
))  # fmt: skip
# Values of init_lora_weights with which training starts from other weights of the model.
_CHANGES_MODEL = ("pissa", "olora", "corda", "loftq", "lora_ga")


def _check(config: Mapping[str, Any], folder: Path) -> None:
    """Raises UnsupportedError if an adapter has more than two matrices per layer; the message names the fields."""
    kind, start = config.get("peft_type"), config.get("init_lora_weights")
    unsupported = [f"{name} {value!r}" for name, value in config.items() if value and name not in _KNOWN]
    if config.get("bias", "none") != "none":
        unsupported.append(f"bias {config['bias']!r}")
    if isinstance(start, str) and start.startswith(_CHANGES_MODEL):
        unsupported.append(f"init_lora_weights {start!r}, which changes the weights of the model")
    if kind != "LORA":
        unsupported.insert(0, f"peft_type {kind!r}")
    if unsupported:
        raise UnsupportedError(
            f"{folder}: adapter_config.json has {', '.join(unsupported)}; only LoRA with two matrices for each layer is supported",
            hints=[
                "merge the adapter into the model: peft's merge_and_unload(), then save_pretrained(), and compile that folder"
            ],
        )


def _of_layer(config: Mapping[str, Any], name: str, layer: str, default: Any) -> Any:
    """Returns the value of the first regular expression that matches the full name of a layer, or its end after a dot."""
    try:
        patterns = (config.get(name) or {}).items()
        return next((value for key, value in patterns if re.match(rf"(.*\.)?({key})$", layer)), default)
    except (re.error, AttributeError) as error:
        raise FormatError(
            f"{name} of adapter_config.json is not a map of regular expressions: {error}"
        ) from None


def _tensors(path: Path) -> dict[str, np.ndarray]:
    """Reads a safetensors file as float32. Raises ValueError, KeyError or TypeError if it is damaged."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise ValueError(f"{path.name} has {len(data)} bytes, and a header of {start} bytes")
    kinds = {"F32": "<f4", "F16": "<f2", "F64": "<f8", "BF16": "<u2"}
    tensors = {}
    for name, info in json.loads(data[8:start]).items():
        if name == "__metadata__":
            continue
        begin, end = info["data_offsets"]
        if not 0 <= begin <= end <= len(data) - start:
            raise ValueError(f"{name} exceeds the end of {path.name}")
        array = np.frombuffer(data[start + begin : start + end], kinds[info["dtype"]]).reshape(info["shape"])
        if info["dtype"] == "BF16":
            array = (array.astype(np.uint32) << 16).view(np.float32)
        tensors[name] = array.astype(np.float32)
    return tensors


def write(adapter: Adapter | None, max_shapes: Mapping[str, list[int]], path: str | os.PathLike[str]) -> None:
    """Writes the .ptd file of an adapter.

    Args:
        adapter: the adapter; None for an adapter of zeros.
        max_shapes: tensor -> maximum shape, from `shapes`.
        path: the .ptd file.

    Raises:
        InputError: the program has no room for a layer or the rank of the adapter.
    """
    parts = dict(adapter.parts) if adapter else {}
    named = {}
    for name, (_, *shape) in max_shapes.items():
        layer, _, matrix = name.removeprefix("model.").rpartition(".")
        values: np.ndarray = np.zeros((1, *shape), np.float32)
        if layer in parts:
            matrix_values = parts[layer][matrix == "second"]
            if any(a > b for a, b in zip(matrix_values.shape, shape)):
                raise InputError(
                    f"the adapter's {name} is {list(matrix_values.shape)}, the program has room for {shape}"
                )
            values[0, : matrix_values.shape[0], : matrix_values.shape[1]] = matrix_values
        named[name] = ptd.NamedBytes(values, ptd.layout(_FLOAT32, [1, *shape]))
    unknown = set(parts) - {name.removeprefix("model.").rpartition(".")[0] for name in max_shapes}
    if unknown:
        raise InputError(
            f"the program has no room for the adapter of {sorted(unknown)[0]}",
            hints=["export(..., lora=) creates a program for the layers of its adapter"],
        )
    with replacing(path) as file:
        file.write(ptd.write(named))


def write_adapter(
    model: str | os.PathLike[str], adapter: str | os.PathLike[str] | None, output: str | os.PathLike[str]
) -> None:
    """Writes the .ptd file of a LoRA adapter for a program.

    Args:
        model: the .pte file, exported with `lora`.
        adapter: the folder that peft's save_pretrained wrote; None for an adapter without effect.
        output: the .ptd file.

    Raises:
        InputError: the program was exported without adapters, or has no room for a layer or the rank of the adapter.
        ModelNotFoundError: the folder contains no adapter.
        FormatError: a file is damaged.
        UnsupportedError: the adapter has more than two matrices per layer.

    Example:
        >>> write_adapter("model.pte", "adapter", "adapter.ptd")
    """
    if not (max_shapes := shapes(pte.load_file(Path(model)).named())):
        raise InputError(f"{os.fspath(model)} was exported without adapters", hints=["export(..., lora=)"])
    write(None if adapter is None else read(adapter), max_shapes, output)


def shapes(files: Mapping[str, Any]) -> dict[str, list[int]]:
    """Returns tensor -> maximum shape of adapters, from a program's named data; empty if it accepts no adapters."""
    try:
        recorded = json.loads(bytes(files.get(SHAPES, b"{}")))
        return {
            str(name): [int(one), int(rows), int(columns)] for name, (one, rows, columns) in recorded.items()
        }
    except (ValueError, TypeError, AttributeError) as error:
        raise FormatError(f"{SHAPES} of the file is damaged: {error}") from None


@contextmanager
def file_for(adapter: str | os.PathLike[str] | None, files: Mapping[str, Any]) -> Iterator[list[Path]]:
    """Yields the .ptd files of an adapter (a .ptd file, peft's folder, or None) for a program with this named data."""
    if not (max_shapes := shapes(files)):
        if adapter is not None:
            raise InputError("the model was exported without adapters", hints=["export(..., lora=)"])
        yield []
    elif adapter is not None and Path(adapter).is_file():
        yield [Path(adapter)]
    else:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "adapter.ptd"
            write(None if adapter is None else read(adapter), max_shapes, path)
            yield [path]


def identity(adapter: str | os.PathLike[str] | None) -> list[str]:
    """Returns a key that identifies an adapter."""
    if adapter is None:
        return []
    path = Path(adapter)
    return [str(xxh64((path / _WEIGHTS if path.is_dir() else path).read_bytes()))]


def adapted(model: Any, adapter: Adapter) -> tuple[Any, dict[str, list[int]]]:
    """Returns a copy of the model with the adapter, which shares the model's weights, and the shapes of the adapter.

    Raises:
        InputError: the model lacks a layer of the adapter.
    """
    import torch

    class Adapted(torch.nn.Module):
        """A layer with an adapter."""

        first: torch.Tensor
        second: torch.Tensor

        def __init__(self, layer: torch.nn.Module, first: np.ndarray, second: np.ndarray) -> None:
            super().__init__()
            self.layer = layer
            for name, values in (("first", first), ("second", second)):
                setattr(
                    self, name, torch.nn.Parameter(torch.from_numpy(values[None].copy()), requires_grad=False)
                )

        @property
        def weight(self) -> torch.Tensor:
            return self.layer.get_parameter("weight")

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            rows = x.reshape(1, -1, x.shape[-1])
            result = self.layer(x)
            outcome: torch.Tensor = result + torch.bmm(torch.bmm(rows, self.first), self.second).view_as(
                result
            )
            return outcome

    model = copy.deepcopy(model, {id(p): p for p in (*model.parameters(), *model.buffers())})
    max_shapes: dict[str, list[int]] = {}
    for name, (first, second) in adapter.parts.items():
        owner, _, last = name.rpartition(".")
        try:
            parent = model.get_submodule(owner)
            layer = parent.get_submodule(last)
        except AttributeError:
            raise InputError(f"the model has no layer {name}, which adapter {adapter.name} changes") from None
        setattr(parent, last, Adapted(layer, first, second))
        max_shapes |= {f"{name}.first": [1, *first.shape], f"{name}.second": [1, *second.shape]}
    return model, max_shapes
