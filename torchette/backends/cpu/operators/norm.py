from __future__ import annotations
import torch
from torchette.backends.cpu.operators._library import LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

@bind_pattern_to_op(LIBRARY, "layer_norm(Tensor input, Tensor? weight, Tensor? bias, int[] shape, float eps) -> Tensor")
def layer_norm(input, weight, bias, shape, eps):
    return torch.nn.functional.layer_norm(input, shape, weight, bias, eps)
@bind_pattern_to_op(LIBRARY, "rms_norm(Tensor input, Tensor? weight, int[] shape, float eps) -> Tensor")
def rms_norm(input, weight, shape, eps):
    return torch.nn.functional.rms_norm(input, shape, weight, eps)
