# SPDX-License-Identifier: BSD-3-Clause
# The functions of ExecuTorch's examples, from a module to a file.

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn
from torchette.extension.export_util import export_to_edge, export_to_exec_prog, save_pte_program

from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.runtime import Runtime

NET, X = nn.Sequential(nn.Linear(4, 2), nn.Dropout()).eval(), torch.ones(1, 4)


def test_export_to_file(tmp_path: Path) -> None:
    program = export_to_exec_prog(
        NET, (X,), backend_config=ExecutorchBackendConfig(external_constants=True), strict=False
    )
    path = save_pte_program(program, "net", str(tmp_path))
    assert path == str(tmp_path / "net.pte")
    (data,) = tmp_path.glob("*.ptd")
    method = Runtime.get().load_program(path, data_path=data).load_method("forward")
    torch.testing.assert_close(method.execute([X])[0], NET(X))
    assert save_pte_program(export_to_exec_prog(NET, (X,)), str(tmp_path / "other.pte")) == str(
        tmp_path / "other.pte"
    )


def test_export_to_edge() -> None:
    shapes = ({0: torch.export.Dim("n", max=4)},)
    edge = export_to_edge(
        NET,
        (torch.ones(2, 4),),
        dynamic_shapes=shapes,
        edge_constant_methods={"limit": 4},
        edge_compile_config=EdgeCompileConfig(_check_ir_validity=False),
        generate_etrecord=True,
    )
    assert edge.methods == {"forward"} and edge.config_methods == {"limit"}
    assert edge.to_executorch().get_etrecord() is not None
