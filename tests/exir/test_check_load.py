# SPDX-License-Identifier: BSD-3-Clause
# A file that no runtime loads is refused while it is compiled.
from __future__ import annotations

from pathlib import Path

import pytest
import torch
from graphs import export
from torch import nn
from torch.export import Dim

import torchette
from torchette import runtime
from torchette.cli import main
from torchette.devtools.migrate import migrate
from torchette.errors import CompileError, FormatError, MissingKernelWarning
from torchette.exir import ExecutorchBackendConfig, to_edge
from torchette.exir.emit import calls, records
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.format import pte
from torchette.runtime.verification import load_faults

X = torch.ones(5, 3)


class Outer(nn.Module):
    def forward(self, x):
        return (x @ x.transpose(0, 1)).relu()


class Double(nn.Module):
    def forward(self, x):
        return x + x


@pytest.fixture
def without_limit(monkeypatch):
    """The compiler does not know the runtime's maximum number of elements."""
    monkeypatch.setattr(records, "MAX_ELEMENTS", 2**62)
    monkeypatch.setattr("torchette.exir.tensor.MAX_ELEMENTS", 2**62)


def large_outer():
    return export(Outer(), (X,), dynamic_shapes=({0: Dim("n", max=50_000)},))


def test_too_large_upper_bound_is_refused_with_operator_and_line(without_limit):
    with pytest.raises(CompileError, match=r"method 'forward' does not load: .*too large") as caught:
        to_edge(large_outer()).to_executorch()
    error = caught.value
    assert error.code == "does-not-load" and "maximum of a dynamic dimension" in error.hints[0]
    assert "aten.mm" in error.where[0] and "return (x @ x.transpose(0, 1)).relu()" in error.where[0]


def test_refused_instruction_is_located(monkeypatch):
    kernel = calls.kernel

    def without_results(tables, node, op):
        kernel(tables, node, op)
        del tables.code.instructions[-1].instr_args.args[-2:]

    monkeypatch.setattr(calls, "kernel", without_results)
    with pytest.raises(CompileError, match=r"is called with \d arguments") as caught:
        to_edge(export(Double(), (X,))).to_executorch()
    assert "aten.add" in caught.value.where[0] and "return x + x" in caught.value.where[0]


class SmallerPlan(MemoryPlanningPass):
    """States fewer bytes of planned memory than the tensors occupy."""

    def run(self, graph_module, graph_signature=None):
        result = super().run(graph_module, graph_signature)
        graph_module.meta["non_const_buffer_sizes"] = [0, 16]
        return result


def test_every_method_is_checked():
    programs = {"a": export(Double(), (X,)), "b": export(Double(), (X,))}
    planning = {"a": MemoryPlanningPass(), "b": SmallerPlan()}
    with pytest.raises(CompileError, match=r"method 'b' does not load: .*outside planned buffer"):
        to_edge(programs).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))


def test_refused_file_is_not_written(without_limit, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.export.save(large_outer(), "outer.pt2")
    with pytest.raises(CompileError, match="does not load"):
        torchette.compile(
            large_outer(),
            backend="portable",
            config=ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass()),
        ).save("outer.pte")
    assert (
        main(["compile", "outer.pt2", "-o", "outer.pte", "--budget", "ram=1G", "--backend", "portable"]) == 1
    )
    assert "does not load" in capsys.readouterr().err
    assert [path.name for path in Path().iterdir()] == ["outer.pt2"]


def test_migrated_file_is_checked(tmp_path):
    program = to_edge(export(Double(), (X,))).to_executorch()
    program.executorch_program.execution_plan[0].non_const_buffer_sizes = [0, 16]
    (tmp_path / "old.pte").write_bytes(bytes(pte.write(program.executorch_program)))
    with pytest.raises(FormatError, match=r"old.pte: method 'forward' does not load"):
        migrate(tmp_path / "old.pte", tmp_path / "new.pte")
    assert not (tmp_path / "new.pte").exists()


def test_missing_kernel_is_no_error():
    with torch.library._scoped_library("load_check", "FRAGMENT") as library:
        library.define("triple(Tensor x) -> Tensor")
        library.define("triple.out(Tensor x, *, Tensor(a!) out) -> Tensor(a!)")
        library.impl("triple", lambda x: 3 * x, "CompositeExplicitAutograd")

        class Triple(nn.Module):
            def forward(self, x):
                return torch.ops.load_check.triple(x)

        with pytest.warns(MissingKernelWarning):
            program = to_edge(export(Triple(), (X,))).to_executorch()
        with pytest.raises(torchette.TorchetteError, match="no kernel"):
            torchette.load(program.buffer)


def test_missing_backend_is_no_error():
    program = torchette.compile(Double(), (X,), backend="null").program
    for plan in program.executorch_program.execution_plan:
        for delegate in plan.delegates:
            delegate.id = "elsewhere"
    file = pte.write(program.executorch_program, delegate_data=program._output.delegate_data)
    assert file.nbytes and not load_faults(file.chunks[0], file.nbytes)


def test_compilation_works_without_the_runtime(monkeypatch):
    def missing():
        raise torchette.errors.NativeModuleError("not built")

    monkeypatch.setattr(runtime.native, "module", missing)
    assert to_edge(export(Double(), (X,))).to_executorch().buffer


def test_weights_are_not_read():
    model = nn.Linear(256, 256)
    program = to_edge(export(model, (torch.ones(1, 256),))).to_executorch()
    head, size = bytes(program._pte.chunks[0]), program._pte.nbytes
    assert len(head) < size // 10 and not load_faults(head, size)
    (fault,) = load_faults(head, len(head))
    assert fault.method == "" and "truncated" in fault.reason


def test_weights_of_data_files_are_not_needed():
    config = ExecutorchBackendConfig(external_constants=True)
    program = to_edge(export(nn.Linear(4, 4), (torch.ones(1, 4),))).to_executorch(config)
    assert program.has_tensor_data


def test_maximum_beyond_the_runtimes_limit_is_no_maximum():
    huge = export(Double(), (X,), dynamic_shapes=({0: Dim("n", max=2**40)},))
    model = torchette.compile(huge)
    assert torch.equal(model(X), X + X)
