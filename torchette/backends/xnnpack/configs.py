# SPDX-License-Identifier: BSD-3-Clause
# What a user of ExecuTorch's XNNPACK partitioner can choose from: precisions, and operators by the names of its
# configuration classes.
"""`ConfigPrecisionType`, and one class per operator that a partitioner can be restricted to."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import Any, ClassVar

import torch
from torch.export import ExportedProgram
from torch.fx import Node

from torchette.backends.xnnpack.operators import why_not
from torchette.exir.graph import constants
from torchette.exir.pass_base import PassType
from torchette.exir.pass_manager import transform
from torchette.exir.program import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.schema import xnnpack


class ConfigPrecisionType(Enum):
    """What a node computes in: floating point; integers with scales that are known; or scales that are chosen when the
    model runs."""

    FP32 = 1
    STATIC_QUANT = 2
    DYNAMIC_QUANT = 3


class XNNPartitionerConfig:
    """Stands for an operator, in ``XnnpackPartitioner(configs=[...])``. A class derived from one of these restricts
    further which of its nodes are taken.

    Attributes:
        target_name: the operator and its overload, without a namespace.
    """

    target_name: ClassVar[str] = ""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """What its nodes may compute in."""
        return list(ConfigPrecisionType)

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        """Whether the library can run a node of the program."""
        return why_not(node, constants(ep)) is None

    def get_original_aten(self) -> torch._ops.OpOverload | None:
        """The operator to be kept whole for it, if it would be decomposed otherwise."""
        return None


class GEMMConfig(XNNPartitionerConfig):
    """Products with weights."""


class GenericNodePartitionerConfig(XNNPartitionerConfig):
    """What has no weights."""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """No scales that are chosen when the model runs: rows are quantized for linear layers only."""
        return [ConfigPrecisionType.FP32, ConfigPrecisionType.STATIC_QUANT]


class QDQAffineConfigs(XNNPartitionerConfig):
    """Torchao's own quantization, of rows and weights of linear layers."""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """What torchao quantizes so."""
        return [ConfigPrecisionType.DYNAMIC_QUANT]

    def get_original_aten(self) -> torch._ops.OpOverload | None:
        """Torchao's operator; None where torchao is not imported, as no program can have it then."""
        return getattr(getattr(torch.ops.torchao, self.target_name.split(".")[0], None), "default", None)


# Name of the class -> operator.
_CONFIGS = {
    **{row.config: row.target for row in (*xnnpack.UNARY, *xnnpack.BINARY)},
    "AddmmConfig": "addmm.default",
    "AvgPoolingConfig": "avg_pool2d.default",
    "BMMConfig": "bmm.default",
    "BatchNormConfig": "_native_batch_norm_legit_no_training.default",
    "CatConfig": "cat.default",
    "ChooseQParamsAffineConfig": "choose_qparams_affine.default",
    "ClampConfig": "clamp.default",
    "CloneConfig": "clone.default",
    "CloneDimOrderConfig": "_clone_dim_order.default",
    "ConstantPadConfig": "constant_pad_nd.default",
    "ConvolutionConfig": "convolution.default",
    "DeQuantizeAffineConfig": "dequantize_affine.default",
    "DeQuantizedPerTensorConfig": "dequantize_per_tensor.default",
    "EluConfig": "elu.default",
    "GeluConfig": "gelu.default",
    "HardtanhConfig": "hardtanh.default",
    "LeakyReLUConfig": "leaky_relu.default",
    "LinearConfig": "linear.default",
    "MMConfig": "mm.default",
    "MaxDimConfig": "max.dim",
    "MaxPool2dConfig": "max_pool2d.default",
    "MeanDimConfig": "mean.dim",
    "PermuteConfig": "permute_copy.default",
    "PowConfig": "pow.Tensor_Scalar",
    "PreluConfig": "prelu.default",
    "QuantizeAffineConfig": "quantize_affine.default",
    "QuantizedPerTensorConfig": "quantize_per_tensor.default",
    "ReLUConfig": "relu.default",
    "SliceCopyConfig": "slice_copy.Tensor",
    "SoftmaxConfig": "_softmax.default",
    "ToDimOrderCopyConfig": "_to_dim_order_copy.default",
    "UnsqueezeCopyConfig": "unsqueeze_copy.default",
    "UpsampleBilinear2dConfig": "upsample_bilinear2d.vec",
    "ViewCopyConfig": "view_copy.default",
}
_GEMMS = {"AddmmConfig", "ConvolutionConfig", "LinearConfig", "MMConfig"}


def _base(name: str) -> type[XNNPartitionerConfig]:
    if name in _GEMMS:
        return GEMMConfig
    return QDQAffineConfigs if name.endswith("AffineConfig") else GenericNodePartitionerConfig


ALL_PARTITIONER_CONFIGS: list[type[XNNPartitionerConfig]] = [
    type(name, (_base(name),), {"target_name": target, "__module__": __name__, "__doc__": f"{target}."})
    for name, target in sorted(_CONFIGS.items())
]
globals().update((config.__name__, config) for config in ALL_PARTITIONER_CONFIGS)

# Where our Edge programs hold another operator for what ExecuTorch's hold.
OURS = {
    "addmm.default": {"addmm.default", "linear.default"},
    "mm.default": {"mm.default", "linear.default"},
    "max_pool2d.default": {"max_pool2d_with_indices.default"},
    "_to_dim_order_copy.default": {"_to_copy.default"},
    "_clone_dim_order.default": {"clone.default"},
}


def by_operator(configs: Sequence[type[XNNPartitionerConfig]]) -> dict[str, XNNPartitionerConfig]:
    """One of each class, by the operators, as our programs name them, that it stands for."""
    return {
        name: config() for config in configs for name in OURS.get(config.target_name, {config.target_name})
    }


def get_xnnpack_edge_compile_config(skip_dim_order: bool = False) -> EdgeCompileConfig:
    """For `to_edge`: no checks of what only the backend needs to understand."""
    return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=skip_dim_order)


def get_transform_passes(additional_passes: Sequence[PassType] | None = None) -> list[PassType]:
    """For `to_edge_transform_and_lower`: the given passes; what ExecuTorch adds here our pipeline does by itself."""
    return list(additional_passes or ())


def get_input_node(node: Node, input_index: int) -> Node:
    """The node that an argument of a call is. TypeError where it is none."""
    found = node.args[input_index]
    if not isinstance(found, Node):
        raise TypeError(f"argument {input_index} of {node} is no node but {found!r}")
    return found


class XNNPACKPassManager:
    """Runs passes on a program. ExecuTorch's runs many of its own before it writes a payload; none are needed here.

    Args:
        exported_program: it is left as it is.
        passes: passes as `EdgeProgramManager.transform` takes them, or their classes, which are called with the program where
            they want one.
    """

    def __init__(self, exported_program: ExportedProgram, passes: Sequence[Any] | None = None) -> None:
        self.exported_program = exported_program
        self.passes = list(passes or ())

    def transform(self) -> ExportedProgram:
        """The program that the passes leave."""
        program = self.exported_program
        for given in self.passes:
            made: Any = given
            if inspect.isclass(given):
                whole = "exported_program" in inspect.signature(given).parameters
                made = made(program) if whole else made()
            program = transform(program, made)
        return program


def get_xnnpack_executorch_backend_config(
    additional_passes: Iterable[Any] | None = None,
) -> ExecutorchBackendConfig:
    """For `to_executorch`: the given passes, and delegates' bytes in segments, which can be given back after loading."""
    return ExecutorchBackendConfig(passes=list(additional_passes or ()), extract_delegate_segments=True)
