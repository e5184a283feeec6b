# SPDX-License-Identifier: BSD-3-Clause
# In: a program whose method returns a loss and gradients. Out: its parameters, stepped where they lie in the method's memory,
# and checkpoints of them. The names are ExecuTorch's; docs/training.md shows all of it.
"""Training on a device.

>>> module = _load_for_executorch_for_training("net.pte")
>>> optimizer = get_sgd_optimizer(module.named_parameters(), lr=0.1)
>>> loss, *_ = module.forward_backward("forward", (x, y))
>>> optimizer.step(module.named_gradients())
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torchette.devtools.bundle import Module, run, torch_s
from torchette.errors import ExecutionError, FormatError, InputError
from torchette.files import replacing
from torchette.format import ptd
from torchette.schema import DTYPES

if TYPE_CHECKING:
    import numpy as np

__all__ = ["Adam", "ExecuTorchSGD", "TrainingModule", "get_adam_optimizer", "get_sgd_optimizer"]

_PREFIX = "__et_training_"


class TrainingModule:
    """A program that computes gradients, with its parameters.

    Args:
        module: as `torchette.extension.pybindings.portable_lib` loads it.
    """

    def __init__(self, module: Module) -> None:
        self.model = module
        start = f"{_PREFIX}fqn_"
        self._methods = [name[len(start) :] for name in module.method_names() if name.startswith(start)]
        self._ran = ""
        self._gradients: list[Any] = []
        self._parameters: dict[str, Any] = {}
        self._numpy = "torch" not in sys.modules
        if not self._methods:
            raise InputError(
                "no method of this program returns gradients",
                hints=[
                    "export it with torch.export.experimental._export_forward_backward; see docs/training.md"
                ],
            )

    def _told(self, what: str, method_name: str) -> list[Any]:
        if method_name not in self._methods:
            raise InputError(
                f"method {method_name!r} returns no gradients", hints=[f"there is {', '.join(self._methods)}"]
            )
        return self.model.run_method(f"{_PREFIX}{what}_{method_name}")

    def forward_backward(self, method_name: str, inputs: Sequence[Any]) -> list[Any]:
        """Runs a method; returns the loss and what else the model returns, and keeps the gradients.

        Raises as `torchette.runtime.Method.execute`; InputError for a method without gradients.
        """
        first, end = (self._told(f"{what}_index", method_name)[0] for what in ("gradients", "parameters"))
        outputs = run(self.model.method(method_name), inputs)
        self._numpy = not any(type(value).__module__.startswith("torch") for value in outputs)
        self._ran, self._gradients = method_name, outputs[first:end]
        return outputs[:first]

    def named_gradients(self) -> dict[str, Any]:
        """Parameter -> its gradient in the last `forward_backward`. InputError where none ran."""
        if not self._ran:
            raise InputError("there are no gradients yet", hints=["forward_backward(...) computes them"])
        return dict(zip(self._told("fqn", self._ran), self._gradients))

    def named_parameters(self) -> dict[str, Any]:
        """Name -> the parameter itself: what is written there is what the method computes with.

        They are those of the method that ran last, or of the first one. ExecutionError where a program keeps them in the
        read-only memory of its data file.
        """
        name = self._ran or self._methods[0]
        if name not in self._parameters:
            names, start = self._told("fqn", name), self._told("parameters_index", name)[0]
            places = [self.model.method(name).output_in_place(start + i) for i in range(len(names))]
            if any(place is None for place in places):
                raise ExecutionError(
                    f"the parameters of method {name!r} are read-only",
                    hints=[
                        "plan memory for them: MemoryPlanningPass(alloc_mutable_buffers=True), the default"
                    ],
                )
            self._parameters[name] = dict(zip(names, places))
        found = self._parameters[name]
        return dict(found) if self._numpy else dict(zip(found, torch_s(list(found.values()))))

    def save(self, path: str | os.PathLike[str], optimizer: _Optimizer | None = None) -> None:
        """Writes a checkpoint, a .ptd file with the parameters and what the optimizer remembers. It takes the place of an
        older one at once, so that a device that loses power keeps one of them."""
        arrays = {**self.named_parameters(), **(optimizer.state if optimizer else {})}
        named = {}
        for name, value in arrays.items():
            array = _array(value)
            order = sorted(range(array.ndim), key=lambda d: -array.strides[d])
            dtype = next(known.number for known in DTYPES if known.torch_name == array.dtype.name)
            layout = ptd.layout(dtype, list(array.shape), bytes(order))
            named[name] = ptd.NamedBytes(array.transpose(order).tobytes(), layout)
        with replacing(path) as file:
            file.write(ptd.write(named))

    def load(self, path: str | os.PathLike[str], optimizer: _Optimizer | None = None) -> None:
        """Goes on from a checkpoint.

        Raises:
            FormatError: the file is damaged, or is no checkpoint of this program; nothing has changed then.
        """
        import numpy

        parameters = {name: _array(value) for name, value in self.named_parameters().items()}
        read: dict[str, Any] = {}
        state: dict[str, Any] = {}
        for name, (data, layout) in ptd.read(Path(path).read_bytes()).items():
            if layout is None:
                continue
            sizes, order = list(layout.sizes or ()), list(layout.dim_order or ())
            dtype = next((known.torch_name for known in DTYPES if known.number == layout.scalar_type), "")
            if sorted(order) != [*range(len(sizes))] or dtype not in ("float32", "float64", "int64"):
                raise FormatError(f"{os.fspath(path)}: {name} is no tensor of a checkpoint")
            try:
                flat = numpy.frombuffer(data, dtype).reshape([sizes[d] for d in order])
            except ValueError:
                raise FormatError(f"{os.fspath(path)}: {name} has {len(data)} bytes for {sizes}") from None
            array = flat.transpose([order.index(d) for d in range(len(sizes))])
            (read if name in parameters else state)[name] = array
        for name, value in parameters.items():
            if name not in read or (read[name].shape, read[name].dtype) != (value.shape, value.dtype):
                raise FormatError(
                    f"{os.fspath(path)} is no checkpoint of this program: {name} must be {value.dtype.name}"
                    f"{list(value.shape)}, {'it is another tensor' if name in read else 'and is not there'}"
                )
        for name, value in parameters.items():
            value[...] = read[name]
        if optimizer:
            optimizer.state = {name: array.copy() for name, array in state.items() if "@" in name}


def _array(value: object) -> Any:
    return value.detach().numpy() if hasattr(value, "detach") else value


class _Optimizer:
    """Steps parameters against their gradients. `state` is what it remembers: "parameter@what" -> array."""

    def __init__(self, named_parameters: Mapping[str, Any], lr: float, **options: float) -> None:
        self.parameters = {name: _array(value) for name, value in named_parameters.items()}
        self.lr = lr
        self.options = options
        self.state: dict[str, Any] = {}
        wrong = {name: value for name, value in {"lr": lr, **options}.items() if not value >= 0}
        if wrong:
            raise InputError(f"an optimizer cannot have {wrong}", hints=["numbers from 0"])

    def step(self, named_gradients: Mapping[str, Any]) -> None:
        """Goes one step down. InputError for a gradient of no parameter; nothing has changed then."""
        gradients = {name: _array(value) for name, value in named_gradients.items()}
        for name, gradient in gradients.items():
            if name not in self.parameters or self.parameters[name].shape != gradient.shape:
                raise InputError(
                    f"{name} is no parameter of {list(gradient.shape)}", hints=[", ".join(self.parameters)]
                )
        self._begin()
        for name, gradient in gradients.items():
            parameter = self.parameters[name]
            if decay := self.options["weight_decay"]:
                gradient = gradient + decay * parameter
            parameter -= self._change(name, gradient)

    def _begin(self) -> None:
        """Once for a step."""

    def _change(self, name: str, gradient: np.ndarray) -> Any:
        raise NotImplementedError


class ExecuTorchSGD(_Optimizer):
    """As torch.optim.SGD."""

    def _change(self, name: str, gradient: np.ndarray) -> Any:
        momentum, key = self.options["momentum"], f"{name}@momentum"
        if momentum:
            if key in self.state:
                kept = momentum * self.state[key] + (1 - self.options["dampening"]) * gradient
            else:
                kept = gradient.copy()
            self.state[key] = kept
            gradient = gradient + momentum * kept if self.options["nesterov"] else kept
        return self.lr * gradient


class Adam(_Optimizer):
    """As torch.optim.Adam."""

    def _begin(self) -> None:
        import numpy

        self.state["@step"] = numpy.asarray(int(self.state.get("@step", 0)) + 1)

    def _change(self, name: str, gradient: np.ndarray) -> Any:
        step, (one, two) = int(self.state["@step"]), (self.options["beta1"], self.options["beta2"])
        mean = one * self.state.get(f"{name}@mean", 0) + (1 - one) * gradient
        square = two * self.state.get(f"{name}@square", 0) + (1 - two) * gradient * gradient
        self.state[f"{name}@mean"], self.state[f"{name}@square"] = mean, square
        root = (square / (1 - two**step)) ** 0.5
        return self.lr / (1 - one**step) * mean / (root + self.options["eps"])


def get_sgd_optimizer(
    named_parameters: Mapping[str, Any],
    lr: float,
    momentum: float = 0,
    dampening: float = 0,
    weight_decay: float = 0,
    nesterov: bool = False,
) -> ExecuTorchSGD:
    """Stochastic gradient descent as torch.optim.SGD does it. `lr` may be changed from step to step."""
    decays = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    return ExecuTorchSGD(named_parameters, lr, nesterov=nesterov, **decays)


def get_adam_optimizer(
    named_parameters: Mapping[str, Any],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
) -> Adam:
    """As torch.optim.Adam."""
    return Adam(named_parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)


def _load_for_executorch_for_training(
    path: str | os.PathLike[str], data_path: str | os.PathLike[str] | None = None
) -> TrainingModule:
    """`data_path`: the .ptd file of a program whose parameters are outside; a checkpoint is one."""
    return TrainingModule(Module(Path(path), data_path=data_path))


def _load_for_executorch_for_training_from_buffer(buffer: bytes) -> TrainingModule:
    return TrainingModule(Module(buffer))
