# SPDX-License-Identifier: BSD-3-Clause
# What a user of ExecuTorch's XNNPACK partitioner can choose from: precisions, and operators by the names of its
# configuration classes.
"""`ConfigPrecisionType`, and one class per operator that a partitioner can be restricted to."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any, ClassVar

from torchette.exir.pass_base import PassType
from torchette.exir.program import EdgeCompileConfig, ExecutorchBackendConfig


class ConfigPrecisionType(Enum):
    """What a node computes in: floating point; integers with scales that are known; or scales that are chosen when the
    model runs."""

    FP32 = 1
    STATIC_QUANT = 2
    DYNAMIC_QUANT = 3


class XNNPartitionerConfig:
    """Stands for an operator, in ``XnnpackPartitioner(configs=[...])``.

    Attributes:
        target_name: the operator and its overload, without a namespace.
    """

    target_name: ClassVar[str] = ""


# Name of the class -> operator.
_CONFIGS = {
    "AbsConfig": "abs.default",
    "AddConfig": "add.Tensor",
    "AddmmConfig": "addmm.default",
    "AvgPoolingConfig": "avg_pool2d.default",
    "BMMConfig": "bmm.default",
    "BatchNormConfig": "_native_batch_norm_legit_no_training.default",
    "CatConfig": "cat.default",
    "CeilConfig": "ceil.default",
    "ChooseQParamsAffineConfig": "choose_qparams_affine.default",
    "ClampConfig": "clamp.default",
    "CloneConfig": "clone.default",
    "CloneDimOrderConfig": "_clone_dim_order.default",
    "ConstantPadConfig": "constant_pad_nd.default",
    "ConvolutionConfig": "convolution.default",
    "CosConfig": "cos.default",
    "DeQuantizeAffineConfig": "dequantize_affine.default",
    "DeQuantizedPerTensorConfig": "dequantize_per_tensor.default",
    "DivConfig": "div.Tensor",
    "EluConfig": "elu.default",
    "ExpConfig": "exp.default",
    "FloorConfig": "floor.default",
    "GeluConfig": "gelu.default",
    "HardswishConfig": "hardswish.default",
    "HardtanhConfig": "hardtanh.default",
    "LeakyReLUConfig": "leaky_relu.default",
    "LinearConfig": "linear.default",
    "LogConfig": "log.default",
    "MMConfig": "mm.default",
    "MaxDimConfig": "max.dim",
    "MaxPool2dConfig": "max_pool2d.default",
    "MaximumConfig": "maximum.default",
    "MeanDimConfig": "mean.dim",
    "MinimumConfig": "minimum.default",
    "MulConfig": "mul.Tensor",
    "NegConfig": "neg.default",
    "PermuteConfig": "permute_copy.default",
    "PowConfig": "pow.Tensor_Scalar",
    "PreluConfig": "prelu.default",
    "QuantizeAffineConfig": "quantize_affine.default",
    "QuantizedPerTensorConfig": "quantize_per_tensor.default",
    "ReLUConfig": "relu.default",
    "ReciprocalSquareRootConfig": "rsqrt.default",
    "SigmoidConfig": "sigmoid.default",
    "SinConfig": "sin.default",
    "SliceCopyConfig": "slice_copy.Tensor",
    "SoftmaxConfig": "_softmax.default",
    "SquareRootConfig": "sqrt.default",
    "SubConfig": "sub.Tensor",
    "TanhConfig": "tanh.default",
    "ToDimOrderCopyConfig": "_to_dim_order_copy.default",
    "UnsqueezeCopyConfig": "unsqueeze_copy.default",
    "UpsampleBilinear2dConfig": "upsample_bilinear2d.vec",
    "ViewCopyConfig": "view_copy.default",
}
ALL_PARTITIONER_CONFIGS: list[type[XNNPartitionerConfig]] = [
    type(name, (XNNPartitionerConfig,), {"target_name": target, "__module__": __name__})
    for name, target in _CONFIGS.items()
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


def operators(configs: Sequence[type[XNNPartitionerConfig]]) -> set[str]:
    """The operators, as our programs name them, that these stand for."""
    names = [config.target_name for config in configs]
    return set().union(*(OURS.get(name, {name}) for name in names))


def get_xnnpack_edge_compile_config(skip_dim_order: bool = False) -> EdgeCompileConfig:
    """For `to_edge`: no checks of what only the backend needs to understand."""
    return EdgeCompileConfig(_check_ir_validity=False, _skip_dim_order=skip_dim_order)


def get_transform_passes(additional_passes: Sequence[PassType] | None = None) -> list[PassType]:
    """For `to_edge_transform_and_lower`: the given passes; what ExecuTorch adds here our pipeline does by itself."""
    return list(additional_passes or ())


def get_xnnpack_executorch_backend_config(additional_passes: Any = None) -> ExecutorchBackendConfig:
    """For `to_executorch`: the given passes, and delegates' bytes in segments, which can be given back after loading."""
    return ExecutorchBackendConfig(passes=list(additional_passes or ()), extract_delegate_segments=True)
