# SPDX-License-Identifier: BSD-3-Clause
# Training in the runtime, compared with eager mode step by step: losses, parameters, checkpoints and errors.

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.export.experimental import _export_forward_backward

from tests.building import built, run
from torchette.errors import ExecutionError, FormatError, InputError
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from torchette.exir.passes import MemoryPlanningPass
from torchette.extension import training
from torchette.extension.training import (
    TrainingModule,
    _load_for_executorch_for_training,
    _load_for_executorch_for_training_from_buffer,
    get_adam_optimizer,
    get_sgd_optimizer,
)
from torchette.format import ptd
from torchette.model import load


class WithLoss(nn.Module):
    """The module that is exported for training. Returns the loss and then other outputs for the device."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scores = self.net(x)
        return nn.functional.cross_entropy(scores, labels), scores.detach().argmax(dim=1)


def xor() -> WithLoss:
    torch.manual_seed(0)
    return WithLoss(nn.Sequential(nn.Linear(2, 10), nn.Sigmoid(), nn.Linear(10, 2)))


XOR = (torch.tensor([[0.0, 0], [0, 1], [1, 0], [1, 1]]), torch.tensor([0, 1, 1, 0]))


def digits() -> WithLoss:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(128, 10)]
    return WithLoss(nn.Sequential(*layers))


@functools.cache
def digits_batch() -> tuple[torch.Tensor, torch.Tensor]:
    from sklearn.datasets import load_digits

    data = load_digits()
    return torch.tensor(data.images[:, None] / 16, dtype=torch.float32), torch.tensor(data.target)


def exported(model: nn.Module, inputs: tuple[Any, ...], **config: Any) -> Any:
    joint = _export_forward_backward(torch.export.export(model, inputs))
    edge = to_edge(joint, compile_config=EdgeCompileConfig(check_passes=True))
    return edge.to_executorch(ExecutorchBackendConfig(**config))


@pytest.fixture(scope="module")
def xor_program() -> bytes:
    return exported(xor(), XOR).buffer


@pytest.fixture(scope="module")
def xor_files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("xor")
    program = exported(xor(), XOR, external_mutable_weights=True)
    program.save(folder / "xor.pte")
    program.write_tensor_data_to_file(folder)
    return folder / "xor.pte", next(folder.glob("*.ptd"))


def eager_steps(model: nn.Module, optimizer: Any, batches: Any) -> list[float]:
    losses = []
    for batch in batches:
        optimizer.zero_grad()
        loss = model(*batch)[0]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def steps(module: TrainingModule, optimizer: Any, batches: Any) -> list[float]:
    losses = []
    for batch in batches:
        losses.append(float(module.forward_backward("forward", batch)[0]))
        optimizer.step(module.named_gradients())
    return losses


OPTIMIZERS = {
    "sgd": (torch.optim.SGD, get_sgd_optimizer, {"lr": 0.5}),
    "momentum": (torch.optim.SGD, get_sgd_optimizer, {"lr": 0.3, "momentum": 0.9, "dampening": 0.1}),
    "nesterov": (
        torch.optim.SGD,
        get_sgd_optimizer,
        {"lr": 0.3, "momentum": 0.9, "weight_decay": 1e-3, "nesterov": True},
    ),
    "adam": (torch.optim.Adam, get_adam_optimizer, {"lr": 0.02, "weight_decay": 1e-3}),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_xor_trains_as_in_eager(kind: str, xor_program: bytes) -> None:
    theirs, ours, options = OPTIMIZERS[kind]
    model = xor()
    module = _load_for_executorch_for_training_from_buffer(xor_program)
    batches = [XOR] * 200
    expected = eager_steps(model, theirs(model.parameters(), **options), batches)
    losses = steps(module, ours(module.named_parameters(), **options), batches)
    # The two sides add float32 values in different orders, which is a relative error of 1e-7 of each gradient per step. Over 200
    # steps of a smooth model it grows to at most 200 times that and a factor for the curvature. A wrong update rule differs by more
    # than 1e-2 after one step.
    np.testing.assert_allclose(losses, expected, rtol=1e-3, atol=1e-5)
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(module.named_parameters()[name], parameter.detach(), rtol=2e-3, atol=2e-4)


def test_xor_training_converges(xor_files: tuple[Path, Path]) -> None:
    module = _load_for_executorch_for_training(*xor_files)
    optimizer = get_adam_optimizer(module.named_parameters(), lr=0.05)
    assert steps(module, optimizer, [XOR] * 300)[-1] < 0.05
    loss, guesses = module.forward_backward("forward", XOR)
    assert guesses.tolist() == XOR[1].tolist() and loss < 0.05


def test_digits_train_as_in_eager() -> None:
    images, labels = digits_batch()
    batches = [(images[i : i + 64], labels[i : i + 64]) for i in range(0, 1600, 64)] * 2
    model = digits()
    module = _load_for_executorch_for_training_from_buffer(exported(model, batches[0]).buffer)
    before = module.forward_backward("forward", batches[0])[0]
    torch.testing.assert_close(before, model(*batches[0])[0].detach(), rtol=1e-5, atol=1e-6)
    expected = eager_steps(model, torch.optim.Adam(model.parameters(), lr=0.01), batches)
    optimizer = get_adam_optimizer(module.named_parameters(), lr=0.01)
    losses = steps(module, optimizer, batches)
    # As for XOR, over 50 steps. If the inputs of a maximum or a ReLU are equal within rounding, its gradient may differ.
    np.testing.assert_allclose(losses, expected, rtol=1e-2, atol=1e-3)
    assert np.mean(losses[25:]) < 0.7 < losses[0] / 3


@pytest.mark.parametrize("external", [False, True])
def test_training_resumes_from_a_checkpoint(
    external: bool, xor_program: bytes, xor_files: Any, tmp_path: Path
) -> None:
    def fresh() -> TrainingModule:
        if external:
            return _load_for_executorch_for_training(*xor_files)
        return _load_for_executorch_for_training_from_buffer(xor_program)

    path = tmp_path / "checkpoint.ptd"
    module = fresh()
    optimizer = get_adam_optimizer(module.named_parameters(), lr=0.05)
    steps(module, optimizer, [XOR] * 10)
    module.save(path, optimizer)
    expected = steps(module, optimizer, [XOR] * 10)

    resumed = fresh()
    optimizer = get_adam_optimizer(resumed.named_parameters(), lr=0.05)
    resumed.load(path, optimizer)
    assert steps(resumed, optimizer, [XOR] * 10) == expected  # bitwise equal
    assert [one.name for one in tmp_path.iterdir()] == ["checkpoint.ptd"]
    if external:  # a checkpoint is a data file of the program, and of a program for inference
        again = _load_for_executorch_for_training(xor_files[0], path)
        assert float(again.forward_backward("forward", XOR)[0]) == expected[0]
        weights = ExecutorchBackendConfig(
            external_constants=lambda node: "weights" if node.name.startswith("p_") else None
        )
        program = to_edge(torch.export.export(xor(), XOR)).to_executorch(weights)
        program.save(tmp_path / "infer.pte")
        inferred = load(tmp_path / "infer.pte", data_files=[path])(*XOR)
        torch.testing.assert_close(inferred[0].item(), expected[0], rtol=1e-5, atol=0)


def test_training_works_without_torch(xor_files: Any) -> None:
    module = _load_for_executorch_for_training(*xor_files)
    inputs = [value.numpy() for value in XOR]
    first = module.forward_backward("forward", inputs)[0]
    parameters, gradients = module.named_parameters(), module.named_gradients()
    assert all(isinstance(value, np.ndarray) for value in (first, *parameters.values(), *gradients.values()))
    get_sgd_optimizer(parameters, 0.5).step(gradients)
    assert module.forward_backward("forward", inputs)[0] < first


def test_parameters_share_the_memory_of_the_method(xor_program: bytes) -> None:
    module = _load_for_executorch_for_training_from_buffer(xor_program)
    names = [name for name, _ in xor().named_parameters()]
    assert list(module.named_parameters()) == names
    module.named_parameters()["net.2.bias"].copy_(torch.tensor([5.0, -5.0]))
    assert module.forward_backward("forward", XOR)[1].tolist() == [0, 0, 0, 0]
    assert list(module.named_gradients()) == names


def test_a_frozen_layer_has_no_gradient() -> None:
    model = xor()
    model.net[0].requires_grad_(False)
    module = _load_for_executorch_for_training_from_buffer(exported(model, XOR).buffer)
    module.forward_backward("forward", XOR)
    assert list(module.named_gradients()) == ["net.2.weight", "net.2.bias"] == list(module.named_parameters())


def test_executorch_names_are_aliases(xor_program: bytes) -> None:
    from torchette.extension.training.pybindings import _training_lib, _training_module

    assert _training_lib.get_sgd_optimizer is training.get_sgd_optimizer
    assert _training_module.TrainingModule is TrainingModule
    assert training.ExecuTorchSGD(training.TrainingModule(
        _load_for_executorch_for_training_from_buffer(xor_program).model
    ).named_parameters(), 0.1, momentum=0, dampening=0, weight_decay=0, nesterov=False).state == {}  # fmt: skip


def test_parameters_of_a_mapped_data_file_are_read_only(tmp_path: Path) -> None:
    unplanned = MemoryPlanningPass(alloc_mutable_buffers=False)
    program = exported(xor(), XOR, external_mutable_weights=True, memory_planning_pass=unplanned)
    program.save(tmp_path / "xor.pte")
    program.write_tensor_data_to_file(tmp_path)
    module = _load_for_executorch_for_training(tmp_path / "xor.pte", next(tmp_path.glob("*.ptd")))
    assert module.forward_backward("forward", XOR)[0] > 0
    with pytest.raises(ExecutionError, match="read-only"):
        module.named_parameters()


def test_mismatched_gradients_and_checkpoints_are_errors(
    xor_program: bytes, xor_files: Any, tmp_path: Path
) -> None:
    plain = to_edge(torch.export.export(xor(), XOR)).to_executorch()
    with pytest.raises(InputError, match="returns gradients"):
        _load_for_executorch_for_training_from_buffer(plain.buffer)
    module = _load_for_executorch_for_training_from_buffer(xor_program)
    with pytest.raises(InputError, match="no gradients yet"):
        module.named_gradients()
    with pytest.raises(InputError, match="'backward' returns no gradients"):
        module.forward_backward("backward", XOR)
    with pytest.raises(InputError, match="expects 2 inputs"):
        module.forward_backward("forward", XOR[:1])
    with pytest.raises(InputError, match="lr"):
        get_sgd_optimizer(module.named_parameters(), -1.0)
    optimizer = get_sgd_optimizer(module.named_parameters(), 0.1)
    before = {name: value.clone() for name, value in module.named_parameters().items()}
    with pytest.raises(InputError, match=r"net\.9\.bias .* matches no parameter"):
        optimizer.step({"net.2.bias": torch.ones(2), "net.9.bias": torch.ones(2)})
    with pytest.raises(FormatError, match=r"not a \.ptd file"):
        module.load(xor_files[0])
    ptd_bytes = xor_files[1].read_bytes()
    named = ptd.read(ptd_bytes)
    misshapen = {"net.0.bias": ptd.NamedBytes(named["net.0.bias"].data, ptd.layout(6, [2, 5]))}
    for entries, message in (
        ({}, "which the file lacks"),
        ({**named, **misshapen}, "another shape or dtype"),
    ):
        (tmp_path / "other.ptd").write_bytes(ptd.write(entries))
        with pytest.raises(FormatError, match=message):
            module.load(tmp_path / "other.ptd")
    odd = {**named, "net.0.bias@momentum": ptd.NamedBytes(b"12345", ptd.layout(6, [10]))}
    (tmp_path / "odd.ptd").write_bytes(ptd.write(odd))
    with pytest.raises(FormatError, match="has 5 bytes"):
        module.load(tmp_path / "odd.ptd")
    assert all(torch.equal(value, before[name]) for name, value in module.named_parameters().items())


@pytest.mark.parametrize("kind", ["sgd", "nesterov", "adam"])
def test_cpp(kind: str, xor_program: bytes, xor_files: tuple[Path, Path], tmp_path: Path) -> None:
    """Trains in C++ and loads its checkpoint in Python."""
    (tmp_path / "inside.pte").write_bytes(xor_program)
    command = (built("torchette_training_test"), tmp_path / "inside.pte", *xor_files, tmp_path, kind)
    *losses, first, checkpoint = map(float, run(*command).stdout.split())
    optimizer = {
        "sgd": lambda parameters: torch.optim.SGD(parameters, 0.3, 0.9, 0.1, 0.001),
        "nesterov": lambda parameters: torch.optim.SGD(parameters, 0.3, 0.9, nesterov=True),
        "adam": lambda parameters: torch.optim.Adam(parameters, 0.05),
    }[kind]
    expected = eager_steps(model := xor(), optimizer(model.parameters()), [XOR] * 20)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    assert (first, checkpoint) == (losses[0], losses[10])
    module = _load_for_executorch_for_training_from_buffer(xor_program)
    ours = (get_adam_optimizer if kind == "adam" else get_sgd_optimizer)(module.named_parameters(), lr=0.05)
    module.load(tmp_path / "checkpoint.ptd", ours)
    assert np.float32(module.forward_backward("forward", XOR)[0]) == np.float32(losses[10])
    keys = {"@step", "net.0.bias@mean", "net.0.bias@square"} if kind == "adam" else {"net.0.bias@momentum"}
    assert keys <= set(ours.state) and (kind != "adam" or int(ours.state["@step"]) == 10)


# ---- compared with ExecuTorch ----

peer = pytest.importorskip(
    "executorch.extension.pybindings.portable_lib", reason="executorch is not installed"
)


def executorch_files(folder: Path) -> tuple[bytes, Path, Path]:
    from executorch import exir

    def edge() -> Any:
        return exir.to_edge(_export_forward_backward(torch.export.export(xor(), XOR)))

    outside = edge().to_executorch(exir.ExecutorchBackendConfig(external_mutable_weights=True))
    (folder / "theirs.pte").write_bytes(outside.buffer)
    outside.write_tensor_data_to_file(str(folder))
    return edge().to_executorch().buffer, folder / "theirs.pte", next(folder.glob("*.ptd"))


def test_files_train_on_either_runtime(xor_program: bytes, xor_files: Any, tmp_path: Path) -> None:
    inside, outside, data = executorch_files(tmp_path)
    expected = eager_steps(model := xor(), torch.optim.SGD(model.parameters(), lr=0.5), [XOR] * 20)
    module = _load_for_executorch_for_training_from_buffer(inside)
    losses = steps(module, get_sgd_optimizer(module.named_parameters(), 0.5), [XOR] * 20)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    module = _load_for_executorch_for_training(outside, data)
    losses = steps(module, get_sgd_optimizer(module.named_parameters(), 0.5), [XOR] * 20)
    np.testing.assert_allclose(losses, expected, rtol=1e-4)

    from executorch.extension import training as theirs

    module = theirs._load_for_executorch_for_training_from_buffer(xor_program)
    first = float(module.forward_backward("forward", XOR)[0])  # the parameters are available after a run
    optimizer = theirs.get_sgd_optimizer(module.named_parameters(), 0.5)
    optimizer.step(module.named_gradients())
    np.testing.assert_allclose([first, *steps(module, optimizer, [XOR] * 19)], expected, rtol=1e-4)
    outputs = peer._load_for_executorch(str(xor_files[0]), str(xor_files[1])).forward(XOR)
    assert outputs[0].item() == pytest.approx(expected[0], rel=1e-5)
