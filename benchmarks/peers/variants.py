# SPDX-License-Identifier: BSD-3-Clause
# In: one of the float32 models, named with a suffix. Out: the file of each side. _int8: per-channel weights, quantized by the
# side's own tool and calibrated on the arguments of the measured call. The recipe is the fastest one with correct results.
# _bfloat16: matmuls and convolutions in bfloat16.
"""The int8 and bfloat16 forms of the models of `./dev bench peers`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers.sides import SIDES, OpenVino

Converter = Callable[[Any, tuple[Any, ...], Path], None]
# Models with attention, for which other engines have separate int8 recipes.
TRANSFORMERS = ("vit_tiny", "minilm")
# The file next to ONNX Runtime's int8 file, which OpenVINO reads.
FLOAT_ONNX = "float.onnx"


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


def _is_transformer(path: Path) -> bool:
    return base(path.parents[1].name) in TRANSFORMERS


def _quantized(module: Any, args: tuple[Any, ...], quantizers: Any, path: Path) -> Any:
    """Quantizes all operators; of MiniLM only the linear layers, because one scale for its residuals has an error of 0.6."""
    import torch
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    quantizer = quantizers.XNNPACKQuantizer()
    config = quantizers.get_symmetric_quantization_config(is_per_channel=True)
    if base(path.parents[1].name) == "minilm":
        quantizer.set_operator_type(torch.ops.aten.linear.default, config)
    else:
        quantizer.set_global(config)
    graph_module = torch.export.export(module, args).module()
    _keep_integers(graph_module.graph)
    prepared = prepare_pt2e(graph_module, quantizer)
    prepared(*args)
    return convert_pt2e(prepared)


def _keep_integers(graph: Any) -> None:
    """Writes additions and multiplications of integer tensors and scalars in the form that ExecuTorch's quantizer ignores.

    It replaces the scalar of the other form by a float32 tensor, and tensors of indices then are float32.
    """
    import torch

    aten = torch.ops.aten
    forms = {aten.add.Tensor: aten.add.Scalar, aten.mul.Tensor: aten.mul.Scalar}
    for node in graph.nodes:
        if (
            node.target in forms
            and isinstance(node.args[1], int)
            and not node.meta["val"].is_floating_point()
        ):
            node.target = forms[node.target]


def _cpu(module: Any, args: tuple[Any, ...], path: Path) -> None:
    from torchette.backends.xnnpack import pt2e_quantizer

    SIDES["cpu"].convert(_quantized(module, args, pt2e_quantizer, path), args, path)


def _executorch(module: Any, args: tuple[Any, ...], path: Path) -> None:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer

    SIDES["executorch"].convert(_quantized(module, args, xnnpack_quantizer, path), args, path)


def _onnxruntime(module: Any, args: tuple[Any, ...], path: Path) -> None:
    """Quantizes as ONNX Runtime's documentation recommends for x86: static with unsigned activations, signed weights and the QDQ
    form; for transformers dynamic, which is also faster. Keeps the float32 file for OpenVINO."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_dynamic, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    plain, ready = path.with_name(FLOAT_ONNX), path.with_name("ready.onnx")
    SIDES["onnxruntime"].convert(module, args, plain)
    # ONNX's own shape inference is sufficient for static shapes; the symbolic one fails on MiniLM's Expand.
    quant_pre_process(plain, ready, skip_symbolic_shape=True)
    if _is_transformer(path):
        quantize_dynamic(
            ready,
            path,
            per_channel=True,
            weight_type=QuantType.QInt8,
            op_types_to_quantize=["MatMul", "Gemm"],
        )
        ready.unlink()
        return
    ports = InferenceSession(ready, providers=["CPUExecutionProvider"]).get_inputs()

    class Once(CalibrationDataReader):
        def __init__(self) -> None:
            self._left = [{port.name: arg.numpy() for port, arg in zip(ports, args, strict=True)}]

        def get_next(self) -> Any:
            return self._left.pop() if self._left else None

    quantize_static(
        ready, path, Once(), per_channel=True, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8
    )
    ready.unlink()


def _openvino(module: Any, args: tuple[Any, ...], path: Path) -> None:
    """Quantizes with NNCF, which OpenVINO's documentation recommends, and its options for transformers."""
    import nncf
    import openvino

    source = str(Path(module).with_name(FLOAT_ONNX)) if isinstance(module, str) else module
    quantized = nncf.quantize(
        OpenVino.read(source, args),
        nncf.Dataset([[arg.numpy() for arg in args]]),
        model_type=nncf.ModelType.TRANSFORMER if _is_transformer(path) else None,
        subset_size=1,
    )
    openvino.save_model(quantized, path, compress_to_fp16=False)


def _litert(module: Any, args: tuple[Any, ...], path: Path) -> None:
    """Quantizes all operators; in transformers only those with weights, because int8 attention is slower than float32 attention.

    Inputs and results stay float32, as on the other sides.
    """
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer.algorithm_manager import AlgorithmName
    from ai_edge_quantizer.qtyping import TFLOperationName as Name
    from ai_edge_quantizer.quantizer import Quantizer

    plain = path.with_name("float.tflite")
    SIDES["litert"].convert(module, args, plain)
    interpreter = Interpreter(model_path=str(plain))
    signature, ports = next(iter(interpreter.get_signature_list().items()))
    details = interpreter.get_signature_runner(signature).get_input_details()
    quantizer = Quantizer(str(plain))
    chosen = [Name.CONV_2D, Name.FULLY_CONNECTED] if _is_transformer(path) else [Name.ALL_SUPPORTED]
    for name in chosen:
        quantizer.add_static_config(".*", name, activation_num_bits=8, weight_num_bits=8)
    for name in (Name.INPUT, Name.OUTPUT):
        quantizer.update_quantization_recipe(".*", name, algorithm_key=AlgorithmName.NO_QUANTIZE)
    arrays = {
        port: arg.numpy().astype(details[port]["dtype"])
        for port, arg in zip(ports["inputs"], args, strict=True)
    }
    calibration = quantizer.calibrate({signature: [arrays]}, num_threads=1)
    quantizer.quantize(calibration).export_model(str(path), overwrite=True)
    plain.unlink()


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
            "openvino": _openvino,
            "litert": _litert,
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
