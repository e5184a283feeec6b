# SPDX-License-Identifier: BSD-3-Clause
# In: one of the float32 models, named with the suffix _int8. Out: the file of each side in static int8 with per-channel weights,
# quantized by the side's own tool and calibrated on the arguments of the measured call.
"""The int8 quantization of each side of `./dev bench peers`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.peers.sides import SIDES

SUFFIX = "_int8"
NAMES = [f"{name}{SUFFIX}" for name in ("mobilenet_v2", "resnet50", "vit_tiny", "minilm")]
# Maximum error relative to the maximum of eager in float32; larger than for float32 engines, which differ only in summation order.
TOLERANCE = 0.5


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


CONVERTERS: dict[str, Callable[[Any, tuple[Any, ...], Path], None]] = {
    "cpu": _cpu,
    "executorch": _executorch,
    "onnxruntime": _onnxruntime,
    "openvino": SIDES["openvino"].convert,  # converts the file of ONNX Runtime
}
