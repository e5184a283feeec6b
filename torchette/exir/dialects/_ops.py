# SPDX-License-Identifier: BSD-3-Clause
# ExecuTorch's spelling of operators. Its Edge operators wrap torch's; ours are torch's, so the names lead there.
"""`ops.edge.aten.add.Tensor`, as ExecuTorch's users write it, is `torch.ops.aten.add.Tensor` itself."""

from __future__ import annotations

import torch
from torch._ops import OpOverload

EdgeOpOverload = OpOverload
BackendOpOverload = OpOverload


class _Operators:
    """All namespaces lead to torch's own operators, so `node.target == ops.edge.aten.add.Tensor` just works."""

    edge = torch.ops
    backend = torch.ops

    def __getattr__(self, name: str) -> object:
        return getattr(torch.ops, name)

    def __repr__(self) -> str:
        return "torchette's operators (ops.edge and ops.backend are torch.ops)"


ops = _Operators()

__all__ = ["BackendOpOverload", "EdgeOpOverload", "ops"]
