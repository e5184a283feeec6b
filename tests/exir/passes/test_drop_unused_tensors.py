# SPDX-License-Identifier: BSD-3-Clause
# A stored tensor that no file can represent causes an error only in models that read it.

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn

import torchette
from torchette.exir import to_edge

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # sparse CSR tensors are in beta state
    SPARSE_ROWS = torch.eye(3).to_sparse_csr()
TENSORS = {
    "sparse": torch.eye(3).to_sparse(),
    "sparse rows": SPARSE_ROWS,
    "complex": torch.eye(3) * 1j,
    "float8": torch.eye(3).to(torch.float8_e4m3fn),
    "without values": torch.empty(3, 3, device="meta"),
    "of 20 dimensions": torch.zeros((1,) * 20),
}


class Holds(nn.Module):
    def __init__(self, tensor: torch.Tensor, how: str) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        if how == "parameter":
            self.held = nn.Parameter(tensor, requires_grad=False)
        else:
            self.register_buffer("held", tensor)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x)


@pytest.mark.parametrize("how", ["parameter", "buffer"])
@pytest.mark.parametrize("kind", TENSORS)
def test_unused_tensors_cause_no_error(kind: str, how: str) -> None:
    model, x = Holds(TENSORS[kind], how).eval(), torch.randn(2, 3)
    compiled = torchette.compile(model, (x,))
    torch.testing.assert_close(compiled(x), model(x).detach())
    program = torch.export.export(model, (x,))
    edge = to_edge(program)
    assert set(edge.exported_program().state_dict) == {"linear.weight", "linear.bias"}
    assert "held" in program.state_dict  # the given program is unchanged


def test_used_unsupported_tensor_is_rejected_with_its_line() -> None:
    class Reads(Holds):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.sparse.mm(self.held, self.linear(x))

    with pytest.raises(torchette.TorchetteError, match=r"(?s)not-dense.*torch.sparse.mm\(self.held"):
        torchette.compile(Reads(TENSORS["sparse"], "buffer").eval(), (torch.randn(3, 3),))
