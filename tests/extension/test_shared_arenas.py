# SPDX-License-Identifier: BSD-3-Clause
# Tests state that methods share: files of both compilers in both runtimes, with methods that are loaded at once or at their first
# call.

from __future__ import annotations

import threading
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.building import built, run  # noqa: E402
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge  # noqa: E402
from torchette.exir.memory.plan_memory import MemoryPlanningPass  # noqa: E402
from torchette.runtime import Runtime  # noqa: E402

CALLS = [("read", 1), ("write", 5), ("read", 1), ("add", 2), ("read", 1)]


class Stateful(torch.nn.Module):
    def __init__(self, first: float = 0, size: int = 4) -> None:
        super().__init__()
        self.register_buffer("state", torch.full((size,), float(first)))


class Write(Stateful):
    def forward(self, x):
        self.state.copy_(x)
        return self.state + 1


class Read(Stateful):
    def forward(self, x):
        return self.state + x


class Add(Stateful):
    def forward(self, x):
        self.state.add_(x)
        return self.state + 0


def exported(first: float) -> dict[str, torch.export.ExportedProgram]:
    methods = {"write": Write(first), "read": Read(first), "add": Add(first)}
    return {name: torch.export.export(each, (torch.ones(4),)) for name, each in methods.items()}


def compile_with_torchette(share: bool, first: float) -> bytes:
    planning = MemoryPlanningPass(share_mutable_buffers=share)
    return (
        to_edge(exported(first)).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer
    )


def compile_with_executorch(share: bool, first: float) -> bytes:
    exir = pytest.importorskip("executorch.exir")
    passes = pytest.importorskip("executorch.exir.passes")
    initialized = pytest.importorskip("executorch.exir.passes.init_mutable_pass")
    config = exir.ExecutorchBackendConfig(
        memory_planning_pass=passes.MemoryPlanningPass(share_mutable_buffers=share),
        passes=[initialized.InitializedMutableBufferPass(["state"])] if first else [],
    )
    return exir.to_edge(exported(first)).to_executorch(config).buffer


def results(runtime, file: Path, load_at_once: bool) -> list[float]:
    program = runtime.get().load_program(file)
    methods = {name: program.load_method(name) for name in ("write", "read", "add")} if load_at_once else {}
    sums = []
    for name, number in CALLS:
        if name not in methods:
            methods[name] = program.load_method(name)
        sums.append(float(methods[name].execute((torch.full((4,), float(number)),))[0][0]))
    return sums


def cpp_results(file: Path, mode: str, *calls: str) -> list[float]:
    calls = calls or tuple(f"{name}={number}" for name, number in CALLS)
    return [float(each) for each in run(built("torchette_shared_state"), file, mode, *calls).stdout.split()]


@pytest.mark.parametrize("first", [0, 7])
@pytest.mark.parametrize("compiler", [compile_with_torchette, compile_with_executorch])
def test_methods_share_state(compiler, first: float, tmp_path: Path) -> None:
    file = tmp_path / "shared.pte"
    file.write_bytes(compiler(True, first))
    expected = [first + 1, 6, 6, 7, 8]
    assert results(Runtime, file, True) == results(Runtime, file, False) == expected
    assert cpp_results(file, "share") == expected
    peer = pytest.importorskip("executorch.runtime").Runtime
    assert results(peer, file, True) == expected
    if first == 0:  # ExecuTorch's runtime writes stored initial values again when it loads another method
        assert results(peer, file, False) == expected


@pytest.mark.parametrize("compiler", [compile_with_torchette, compile_with_executorch])
def test_methods_keep_their_own_state_unless_it_is_shared(compiler, tmp_path: Path) -> None:
    file = tmp_path / "separate.pte"
    file.write_bytes(compiler(False, 7))
    expected = [8, 6, 8, 9, 8]
    assert results(Runtime, file, True) == results(Runtime, file, False) == expected
    assert cpp_results(file, "separate") == expected


class Scaled(Stateful):
    """Only reads the state, and computes a value that depends on nothing else."""

    def forward(self, x):
        return x + (2 * self.state[1:].clone()).sum()


@pytest.mark.parametrize("backend", ["portable", "cpu", "xnnpack"])
def test_reading_method_does_not_store_values_of_the_shared_state(backend: str, tmp_path: Path) -> None:
    methods = {"read": (Scaled(7), (torch.ones(4),)), "add": (Add(7), (torch.ones(4),))}
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    file = tmp_path / "scaled.pte"
    torchette.compile(methods, backend=backend, config=config).save(file)
    calls = [("read", 1), ("add", 2), ("read", 1), ("add", 1), ("read", 3)]
    expected = [1 + 6 * 7, 9, 1 + 6 * 9, 10, 3 + 6 * 10]
    model = torchette.load(file)
    assert [float(model.methods[name](torch.full((4,), float(n)))[0]) for name, n in calls] == expected
    if backend != "xnnpack":  # the C++ program has no backend
        assert cpp_results(file, "share", *(f"{name}={n}" for name, n in calls)) == expected


def test_shared_statistics_of_a_batch_norm_are_not_folded() -> None:
    class Norm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = torch.nn.Conv2d(2, 2, 1), torch.nn.BatchNorm2d(2)

        def forward(self, x):
            return self.norm(self.layer(x))

    module, x = Norm(), torch.randn(4, 2, 3, 3)
    methods = {
        "train": torch.export.export(module.train(), (x,)),
        "infer": torch.export.export(module.eval(), (x,)),
    }
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    edge = to_edge(methods, compile_config=EdgeCompileConfig(train_mode=True))
    file = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer
    model = torchette.load(file)
    model.train(x)
    module.train()(x)
    torch.testing.assert_close(model.infer(x), module.eval()(x))


def test_values_of_separate_state_are_computed_ahead_of_time() -> None:
    methods = {"read": (Scaled(7), (torch.ones(4),)), "add": (Add(7), (torch.ones(4),))}
    model = torchette.compile(methods, backend="portable")
    assert model.methods["read"].meta.num_instructions == 1
    assert float(model.add(torch.ones(4))[0]) == 8 and float(model.read(torch.ones(4))[0]) == 1 + 6 * 7


def test_reset_gives_a_method_its_first_state(tmp_path: Path) -> None:
    class Both(Stateful):
        def __init__(self) -> None:
            super().__init__(7)
            self.register_buffer("before", torch.full((4,), 3.0))

        def forward(self, x):
            self.before.add_(x)
            self.state.add_(x)
            return self.before + self.state

    methods = {"both": Both(), "add": Add(7)}
    programs = {name: torch.export.export(each, (torch.ones(4),)) for name, each in methods.items()}
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    edge = to_edge(programs)
    file = tmp_path / "two.pte"
    edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).save(file)
    expected = [(3 + 1) + (7 + 1), 8 + 2, (4 + 1) + (7 + 1)]
    assert cpp_results(file, "share", "both=1", "add=2", "add", "both=1") == expected
    program = Runtime.get().load_program(file)
    both, add = program.load_method("both"), program.load_method("add")
    one = torch.ones(4)
    outputs = [both.execute((one,)), add.execute((2 * one,))]
    add.reset()
    assert [float(each[0][0]) for each in (*outputs, both.execute((one,)))] == expected


def test_arenas_of_several_methods_are_separate(tmp_path: Path) -> None:
    class Count(Stateful):
        def forward(self, x):
            self.state.add_(x)
            return self.state[:1] + 0

    programs = {name: torch.export.export(Count(0, 4096), (torch.ones(1),)) for name in ("one", "two")}
    planning = MemoryPlanningPass(arenas={"fast": "1K", "slow": None})
    file = tmp_path / "arenas.pte"
    to_edge(programs).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).save(file)
    program = Runtime.get().load_program(file)
    one, two = program.load_method("one"), program.load_method("two")
    assert [float(each.execute((torch.ones(1),))[0]) for each in (one, two, one)] == [1, 1, 2]


def test_methods_that_share_state_take_turns() -> None:
    programs = {name: torch.export.export(Add(0, 1 << 16), (torch.ones(1),)) for name in ("add", "again")}
    planning = MemoryPlanningPass(share_mutable_buffers=True)
    buffer = to_edge(programs).to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning)).buffer
    program = Runtime.get().load_program(buffer)
    methods = [program.load_method(name) for name in programs]

    def count(method) -> None:
        for _ in range(200):
            method.execute((torch.ones(1),))

    threads = [threading.Thread(target=count, args=(each,)) for each in methods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (state,) = methods[0].execute((torch.zeros(1),))
    assert float(state.min()) == float(state.max()) == 400
