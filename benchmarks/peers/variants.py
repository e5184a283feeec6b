# SPDX-License-Identifier: BSD-3-Clause
# In: one of the float32 models, named with a suffix. Out: the file of each side. _int8: static int8 with per-channel weights,
# quantized by the side's own tool and calibrated on the arguments of the measured call. _bfloat16: products in bfloat16.
"""The int8 and bfloat16 forms of the models of `./dev bench peers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.sides import SIDES

Converter = Callable[[Any, tuple[Any, ...], Path], None]


@dataclass(frozen=True)
class Variant:
    """A form of models.

    Attributes:
        suffix: the suffix of their names.
        names: the names of the float32 models.
        tolerance: maximum error relative to the maximum of eager in float32; larger than for float32 engines, which differ only in
            summation order.
        converters: the conversion for each side that has one.
    """

    suffix: str
    names: tuple[str, ...]
    tolerance: float
    converters: Mapping[str, Converter]


def variant(model: str) -> Variant | None:
    """Returns the variant that a model's name selects, or None for float32."""
    return next((each for each in VARIANTS if model.endswith(each.suffix)), None)


def base(model: str) -> str:
    """Returns the name of the float32 model."""
    each = variant(model)
    return model.removesuffix(each.suffix) if each else model


def _quantized(module: Any, args: tuple[Any, ...], quantizers: Any) -> Any:
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = quantizers.XNNPACKQuantizer()
    quantizer.set_global(quantizers.get_symmetric_quantization_config(is_per_channel=True))
    prepared = prepare_pt2e(torch.export.export(module, args).module(), quantizer)
    prepared(*args)
    return convert_pt2e(prepared)


def _cpu(module: Any, args: tuple[Any, ...], path: Path) -> None:
    from torchette.backends.xnnpack import pt2e_quantizer

    SIDES["cpu"].convert(_quantized(module, args, pt2e_quantizer), args, path)


def _executorch(module: Any, args: tuple[Any, ...], path: Path) -> None:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer

    SIDES["executorch"].convert(_quantized(module, args, xnnpack_quantizer), args, path)


def _onnxruntime(module: Any, args: tuple[Any, ...], path: Path) -> None:
    """Quantizes as ONNX Runtime's documentation recommends for x86: unsigned activations, signed weights, QDQ form."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, ready = path.with_name("float.onnx"), path.with_name("ready.onnx")
    SIDES["onnxruntime"].convert(module, args, plain)
    quant_pre_process(plain, ready)
    ports = InferenceSession(ready, providers=["CPUExecutionProvider"]).get_inputs()

    class Once(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = [{port.name: arg.numpy() for port, arg in zip(ports, args, strict=True)}]

        def get_next(self) -> Any:
            return self._left.pop() if self._left else None

    quantize_static(
        ready, path, Once(), per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
    )
    plain.unlink()
    ready.unlink()


def _bfloat16(module: Any, args: tuple[Any, ...], path: Path) -> None:
    import torchette

    torchette.compile(module, args, precision="bfloat16").save(path)


VARIANTS = (
    Variant(
        "_int8",
        ("mobilenet_v2", "resnet50", "vit_tiny", "minilm"),
        0.5,
        {
            "cpu": _cpu,
            "executorch": _executorch,
            "onnxruntime": _onnxruntime,
            "openvino": SIDES["openvino"].convert,  # converts the file of ONNX Runtime
        },
    ),
    Variant(
        "_bfloat16",
        ("mobilenet_v2", "resnet50", "vit_tiny", "minilm", "llama_prefill", "llama_decode"),
        0.2,
        {
            "cpu": _bfloat16,
            "onnxruntime": SIDES["onnxruntime"].convert,  # float32
            "openvino": SIDES["openvino"].convert,  # the option is set when the file is loaded
        },
    ),
)
NAMES = [name + each.suffix for each in VARIANTS for name in each.names]
