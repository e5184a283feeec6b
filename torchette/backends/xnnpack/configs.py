# SPDX-License-Identifier: BSD-3-Clause
# The options of ExecuTorch's XNNPACK partitioner: precisions, and operators by the names of its configuration classes.
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
    """The precision of a node: floating point, integers with constant scales, or integers with scales chosen at run time."""

    FP32 = 1
    STATIC_QUANT = 2
    DYNAMIC_QUANT = 3


class XNNPartitionerConfig:
    """Selects an operator in ``XnnpackPartitioner(configs=[...])``. A derived class may select fewer of its nodes.

    Attributes:
        target_name: the operator and its overload without a namespace, for example "add.Tensor".
    """

    target_name: ClassVar[str] = ""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """Returns the precisions that nodes of this operator may have."""
        return list(ConfigPrecisionType)

    def check_constraints(self, node: Node, ep: ExportedProgram) -> bool:
        """Returns whether XNNPACK can run a node of the program."""
        return why_not(node, constants(ep)) is None

    def get_original_aten(self) -> torch._ops.OpOverload | None:
        """Returns the operator that must not be decomposed, or None."""
        return None


class GEMMConfig(XNNPartitionerConfig):
    """Selects a matrix multiplication or convolution with weights."""


class GenericNodePartitionerConfig(XNNPartitionerConfig):
    """Selects an operator without weights."""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """Returns all precisions except DYNAMIC_QUANT, which only layers with weights have."""
        return [ConfigPrecisionType.FP32, ConfigPrecisionType.STATIC_QUANT]


class QDQAffineConfigs(XNNPartitionerConfig):
    """Selects an operator of torchao's quantization of rows and weights of linear layers."""

    def supported_precision_types(self) -> list[ConfigPrecisionType]:
        """Returns DYNAMIC_QUANT only."""
        return [ConfigPrecisionType.DYNAMIC_QUANT]

    def get_original_aten(self) -> torch._ops.OpOverload | None:
        """Returns torchao's operator, or None if torchao is not imported: then no program contains it."""
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

# Operators of ExecuTorch's Edge programs -> the operators that our Edge programs have instead.
_OUR_OPERATORS = {
    "addmm.default": {"addmm.default", "linear.default"},
    "mm.default": {"mm.default", "linear.default"},
    "max_pool2d.default": {"max_pool2d_with_indices.default"},
    "_to_dim_order_copy.default": {"_to_copy.default"},
    "_clone_dim_order.default": {"clone.default"},
}


def by_operator(configs: Sequence[type[XNNPartitionerConfig]]) -> dict[str, XNNPartitionerConfig]:
    """Returns an instance of each class by the names of its operators in our programs."""
    return {
        name: config()
        for config in configs
        for name in _OUR_OPERATORS.get(config.target_name, {config.target_name})
    }


def get_xnnpack_edge_compile_config(skip_dim_order: bool = False) -> EdgeCompileConfig:
    """Returns options for `to_edge` without the check of the dialect, because only the backend reads the program."""
    return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=skip_dim_order)


def get_transform_passes(additional_passes: Sequence[PassType] | None = None) -> list[PassType]:
    """Returns the given passes for `to_edge_transform_and_lower`. Our pipeline does what ExecuTorch's additional passes do."""
    return list(additional_passes or ())


def get_input_node(node: Node, input_index: int) -> Node:
    """Returns the node that is an argument of a call.

    Raises:
        TypeError: the argument is not a node.
    """
    source = node.args[input_index]
    if not isinstance(source, Node):
        raise TypeError(f"argument {input_index} of {node} must be a node, got {source!r}")
    return source


class XNNPACKPassManager:
    """Runs passes on a program. ExecuTorch's pass manager also runs passes that its payloads need; ours need none.

    Args:
        exported_program: the program; it is not changed.
        passes: passes as `EdgeProgramManager.transform` accepts them, or their classes. A class with a parameter
            `exported_program` is called with the program, any other class without arguments.
    """

    def __init__(self, exported_program: ExportedProgram, passes: Sequence[Any] | None = None) -> None:
        self.exported_program = exported_program
        self.passes = list(passes or ())

    def transform(self) -> ExportedProgram:
        """Returns the program after all passes."""
        program = self.exported_program
        for pass_type in self.passes:
            pass_: Any = pass_type
            if inspect.isclass(pass_type):
                needs_program = "exported_program" in inspect.signature(pass_type).parameters
                pass_ = pass_(program) if needs_program else pass_()
            program = transform(program, pass_)
        return program


def get_xnnpack_executorch_backend_config(
    additional_passes: Iterable[Any] | None = None,
) -> ExecutorchBackendConfig:
    """Returns options for `to_executorch`: the given passes, and delegates' bytes in segments, which can be freed after loading."""
    return ExecutorchBackendConfig(passes=list(additional_passes or ()), extract_delegate_segments=True)
