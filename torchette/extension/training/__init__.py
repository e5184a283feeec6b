# SPDX-License-Identifier: BSD-3-Clause
# In: a program with a method that returns a loss and gradients. Out: its parameters, updated in the method's memory, and
# checkpoints. The names are those of ExecuTorch; docs/training.md has an example.
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
        module: a program that `torchette.extension.pybindings.portable_lib` has loaded.

    Raises:
        InputError: no method of the program returns gradients.
    """

    def __init__(self, module: Module) -> None:
        self.model = module
        start = f"{_PREFIX}fqn_"
        self._methods = [name[len(start) :] for name in module.method_names() if name.startswith(start)]
        self._last_method = ""
        self._gradients: list[Any] = []
        self._parameters: dict[str, Any] = {}
        self._numpy = "torch" not in sys.modules
        if not self._methods:
            raise InputError(
                "this program has no method that returns gradients",
                hints=[
                    "export it with torch.export.experimental._export_forward_backward; see docs/training.md"
                ],
            )

    def _metadata(self, kind: str, method_name: str) -> list[Any]:
        if method_name not in self._methods:
            raise InputError(
                f"method {method_name!r} returns no gradients",
                hints=[f"methods with gradients: {', '.join(self._methods)}"],
            )
        return self.model.run_method(f"{_PREFIX}{kind}_{method_name}")

    def forward_backward(self, method_name: str, inputs: Sequence[Any]) -> list[Any]:
        """Runs a method and stores its gradients.

        Args:
            method_name: name of the method in the program, such as "forward".
            inputs: one value for each input of the method: tensors, or NumPy arrays.

        Returns:
            The loss and the model's other outputs.

        Raises:
            InputError: the method returns no gradients, or the inputs do not match it.
            ExecutionError: as for `torchette.runtime.Method.execute`.
        """
        first, end = (self._metadata(f"{kind}_index", method_name)[0] for kind in ("gradients", "parameters"))
        outputs = run(self.model.method(method_name), inputs)
        self._numpy = not any(type(value).__module__.startswith("torch") for value in outputs)
        self._last_method, self._gradients = method_name, outputs[first:end]
        return outputs[:first]

    def named_gradients(self) -> dict[str, Any]:
        """Returns the gradients of the last `forward_backward`.

        Returns:
            A dict from the name of a parameter to its gradient, which has the parameter's shape and dtype.

        Raises:
            InputError: `forward_backward` has not run.
        """
        if not self._last_method:
            raise InputError(
                "no gradients yet: forward_backward has not run", hints=["call forward_backward(...) first"]
            )
        return dict(zip(self._metadata("fqn", self._last_method), self._gradients))

    def named_parameters(self) -> dict[str, Any]:
        """Returns the parameters of the method that ran last, or of the first method.

        The tensors share the method's memory, so the method uses values that are written to them.

        Returns:
            A dict from name to parameter: torch tensors if torch is in use, else NumPy arrays.

        Raises:
            ExecutionError: the parameters are in the read-only memory of a data file.
        """
        name = self._last_method or self._methods[0]
        if name not in self._parameters:
            names, start = self._metadata("fqn", name), self._metadata("parameters_index", name)[0]
            tensors = [self.model.method(name).output_in_place(start + i) for i in range(len(names))]
            if any(tensor is None for tensor in tensors):
                raise ExecutionError(
                    f"the parameters of method {name!r} are read-only",
                    hints=[
                        "plan memory for them: MemoryPlanningPass(alloc_mutable_buffers=True), the default"
                    ],
                )
            self._parameters[name] = dict(zip(names, tensors))
        parameters = self._parameters[name]
        return dict(parameters) if self._numpy else dict(zip(parameters, torch_s(list(parameters.values()))))

    def save(self, path: str | os.PathLike[str], optimizer: _Optimizer | None = None) -> None:
        """Writes a checkpoint: a .ptd file with the parameters and the state of the optimizer.

        The new file replaces an older one atomically, so a device that loses power keeps one of the two files.

        Args:
            path: the file to write.
            optimizer: the optimizer with the state to store; None stores only the parameters.
        """
        arrays = {**self.named_parameters(), **(optimizer.state if optimizer else {})}
        named = {}
        for name, value in arrays.items():
            array = _array(value)
            order = sorted(range(array.ndim), key=lambda d: -array.strides[d])
            dtype = next(item.number for item in DTYPES if item.torch_name == array.dtype.name)
            layout = ptd.layout(dtype, list(array.shape), bytes(order))
            named[name] = ptd.NamedBytes(array.transpose(order).tobytes(), layout)
        with replacing(path) as file:
            file.write(ptd.write(named))

    def load(self, path: str | os.PathLike[str], optimizer: _Optimizer | None = None) -> None:
        """Loads a checkpoint into the parameters and the optimizer.

        Args:
            path: a file that `save` has written.
            optimizer: the optimizer that receives the stored state; None ignores the state.

        Raises:
            FormatError: the file is damaged or is not a checkpoint of this program. Parameters and state are unchanged.
        """
        import numpy

        parameters = {name: _array(value) for name, value in self.named_parameters().items()}
        read: dict[str, Any] = {}
        state: dict[str, Any] = {}
        for name, (data, layout) in ptd.read(Path(path).read_bytes()).items():
            if layout is None:
                continue
            sizes, order = list(layout.sizes or ()), list(layout.dim_order or ())
            dtype = next((item.torch_name for item in DTYPES if item.number == layout.scalar_type), "")
            if sorted(order) != [*range(len(sizes))] or dtype not in ("float32", "float64", "int64"):
                raise FormatError(
                    f"{os.fspath(path)}: entry {name} is not a checkpoint tensor of float32, float64 or int64"
                )
            try:
                flat = numpy.frombuffer(data, dtype).reshape([sizes[d] for d in order])
            except ValueError:
                raise FormatError(
                    f"{os.fspath(path)}: {name} has {len(data)} bytes, which does not match {dtype}{sizes}"
                ) from None
            array = flat.transpose([order.index(d) for d in range(len(sizes))])
            (read if name in parameters else state)[name] = array
        for name, value in parameters.items():
            if name not in read or (read[name].shape, read[name].dtype) != (value.shape, value.dtype):
                raise FormatError(
                    f"{os.fspath(path)} is not a checkpoint of this program: {name} must be {value.dtype.name}"
                    f"{list(value.shape)}, {'the file has another shape or dtype' if name in read else 'which the file lacks'}"
                )
        for name, value in parameters.items():
            value[...] = read[name]
        if optimizer:
            optimizer.state = {name: array.copy() for name, array in state.items() if "@" in name}


def _array(value: object) -> Any:
    return value.detach().numpy() if hasattr(value, "detach") else value


class _Optimizer:
    """Base class of the optimizers. `state` maps "parameter@name", such as "weight@momentum", to an array."""

    def __init__(self, named_parameters: Mapping[str, Any], lr: float, **options: float) -> None:
        self.parameters = {name: _array(value) for name, value in named_parameters.items()}
        self.lr = lr
        self.options = options
        self.state: dict[str, Any] = {}
        invalid = {name: value for name, value in {"lr": lr, **options}.items() if not value >= 0}
        if invalid:
            raise InputError(
                f"invalid optimizer options: {invalid}", hints=["each option must be 0 or greater"]
            )

    def step(self, named_gradients: Mapping[str, Any]) -> None:
        """Updates the parameters by one optimization step.

        Args:
            named_gradients: gradients by the name of their parameter, each with the parameter's shape.

        Raises:
            InputError: a gradient has no parameter of its name and shape. The parameters are unchanged.
        """
        gradients = {name: _array(value) for name, value in named_gradients.items()}
        for name, gradient in gradients.items():
            if name not in self.parameters or self.parameters[name].shape != gradient.shape:
                raise InputError(
                    f"the gradient {name} of shape {list(gradient.shape)} matches no parameter",
                    hints=[f"parameters: {', '.join(self.parameters)}"],
                )
        self._begin()
        for name, gradient in gradients.items():
            parameter = self.parameters[name]
            if decay := self.options["weight_decay"]:
                gradient = gradient + decay * parameter
            parameter -= self._change(name, gradient)

    def _begin(self) -> None:
        """Is called once at the start of a step."""

    def _change(self, name: str, gradient: np.ndarray) -> Any:
        raise NotImplementedError


class ExecuTorchSGD(_Optimizer):
    """Stochastic gradient descent, with the update rule of torch.optim.SGD."""

    def _change(self, name: str, gradient: np.ndarray) -> Any:
        momentum, key = self.options["momentum"], f"{name}@momentum"
        if momentum:
            if key in self.state:
                buffer = momentum * self.state[key] + (1 - self.options["dampening"]) * gradient
            else:
                buffer = gradient.copy()
            self.state[key] = buffer
            gradient = gradient + momentum * buffer if self.options["nesterov"] else buffer
        return self.lr * gradient


class Adam(_Optimizer):
    """Adam, with the update rule of torch.optim.Adam."""

    def _begin(self) -> None:
        import numpy

        self.state["@step"] = numpy.asarray(int(self.state.get("@step", 0)) + 1)

    def _change(self, name: str, gradient: np.ndarray) -> Any:
        step, (beta1, beta2) = int(self.state["@step"]), (self.options["beta1"], self.options["beta2"])
        mean = beta1 * self.state.get(f"{name}@mean", 0) + (1 - beta1) * gradient
        square = beta2 * self.state.get(f"{name}@square", 0) + (1 - beta2) * gradient * gradient
        self.state[f"{name}@mean"], self.state[f"{name}@square"] = mean, square
        root = (square / (1 - beta2**step)) ** 0.5
        return self.lr / (1 - beta1**step) * mean / (root + self.options["eps"])


def get_sgd_optimizer(
    named_parameters: Mapping[str, Any],
    lr: float,
    momentum: float = 0,
    dampening: float = 0,
    weight_decay: float = 0,
    nesterov: bool = False,
) -> ExecuTorchSGD:
    """Creates an optimizer with the update rule and options of torch.optim.SGD.

    Args:
        named_parameters: the parameters to update, such as `TrainingModule.named_parameters()`.
        lr: learning rate; the attribute `lr` may be changed between steps.
        momentum: factor of the momentum buffer.
        dampening: dampening of the momentum.
        weight_decay: factor of the L2 penalty.
        nesterov: whether to use Nesterov momentum.

    Returns:
        The optimizer.

    Raises:
        InputError: an option is negative or NaN.
    """
    decays = {"momentum": momentum, "dampening": dampening, "weight_decay": weight_decay}
    return ExecuTorchSGD(named_parameters, lr, nesterov=nesterov, **decays)


def get_adam_optimizer(
    named_parameters: Mapping[str, Any],
    lr: float = 1e-3,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0,
) -> Adam:
    """Creates an optimizer with the update rule and options of torch.optim.Adam.

    Args:
        named_parameters: the parameters to update, such as `TrainingModule.named_parameters()`.
        lr: learning rate; the attribute `lr` may be changed between steps.
        betas: decay rates of the running averages of the gradient and of its square.
        eps: term added to the denominator.
        weight_decay: factor of the L2 penalty.

    Returns:
        The optimizer.

    Raises:
        InputError: an option is negative or NaN.
    """
    return Adam(named_parameters, lr, beta1=betas[0], beta2=betas[1], eps=eps, weight_decay=weight_decay)


def _load_for_executorch_for_training(
    path: str | os.PathLike[str], data_path: str | os.PathLike[str] | None = None
) -> TrainingModule:
    """Loads a program for training.

    Args:
        path: the .pte file.
        data_path: a .ptd file with the parameters that are stored outside the program, such as a checkpoint.
    """
    return TrainingModule(Module(Path(path), data_path=data_path))


def _load_for_executorch_for_training_from_buffer(buffer: bytes) -> TrainingModule:
    return TrainingModule(Module(buffer))
