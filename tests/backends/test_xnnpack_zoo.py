# SPDX-License-Identifier: BSD-3-Clause
"""Models of the zoo that ExecuTorch's XnnpackPartitioner lowered run here and equal eager: on XNNPACK's library if this build has
it, else on our kernels."""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch.export import export

from tests.models import architectures
from tests.sweep import sweep
from torchette.runtime import Runtime

# Tolerance relative to the maximum magnitude. Some networks amplify rounding errors, see benchmarks/architectures.md.
TOLERANCE = 3e-4
NETWORKS = (
    "torchvision/squeezenet1_1", "transformers/distilbert", "torchvision/mobilenet_v2", "transformers/llama",
    "torchvision/efficientnet_b0", "torchvision/mobilenet_v3_small", "torchvision/resnet18",
    "transformers/bert", "transformers/gpt2", "transformers/wav2vec2", "transformers/whisper",
    "torchvision/convnext_tiny", "torchvision/densenet121", "torchvision/regnet_y_400mf",
    "torchvision/shufflenet_v2_x0_5", "torchvision/swin_t", "torchvision/vit_b_32",
    "timm/deit_tiny_patch16_224", "timm/ghostnet_050", "timm/mobilevit_xxs",
    "transformers/mobilevit", "transformers/segformer",
)  # fmt: skip


# ExecuTorch needs up to half a minute to lower each of the other models.
@pytest.mark.parametrize("name", sweep(NETWORKS, "torchvision/squeezenet1_1"))
def test_zoo_lowered_by_executorch_equals_eager(name: str) -> None:
    partitioners = pytest.importorskip("executorch.backends.xnnpack.partition.xnnpack_partitioner")
    from executorch.exir import to_edge_transform_and_lower

    if importlib.util.find_spec(name.partition("/")[0]) is None:
        pytest.skip(f"{name.partition('/')[0]} is not installed")
    module, args = architectures.build(name)
    expected = architectures.reference(module, args)
    edge = to_edge_transform_and_lower(export(module, args), partitioner=[partitioners.XnnpackPartitioner()])
    method = Runtime.get().load_program(bytes(edge.to_executorch().buffer)).load_method("forward")
    assert set(method.metadata.backend_names) == {"XnnpackBackend"}
    got = torch.as_tensor(method.execute(list(args))[0])
    assert (got - expected).abs().max() <= TOLERANCE * expected.abs().max()
