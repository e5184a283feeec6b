from __future__ import annotations
import torch
from torchette.backends.cpu.operators._library import LIBRARY
from torchette.exir.dialects._ops import bind_pattern_to_op, ops

@bind_pattern_to_op(LIBRARY, "rotary(Tensor input, Tensor cos, Tensor sin, bool interleaved) -> Tensor")
def rotary(input, cos, sin, interleaved):
    a,b=input.chunk(2,-1)
    return input*cos.unsqueeze(2)+torch.cat([-b,a],-1)*sin.unsqueeze(2)
