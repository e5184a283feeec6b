# SPDX-License-Identifier: BSD-3-Clause
# Models that cannot be compiled, one per cause that users meet. Each message has a line of the user's code, a documented error
# code, and a remedy.

from __future__ import annotations

import inspect
import math
import re
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchette
from torchette import Device, errors
from torchette.backends.xnnpack import XNNPACKQuantizer
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig
from torchette.exir.dialects.page import page as dialects_page
from torchette.exir.memory.plan_memory import MemoryPlanningPass

ROOT = Path(__file__).parents[2]
X = torch.linspace(-1, 1, 12).reshape(4, 3)
N = torch.export.Dim("n", min=2, max=8)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # such tensors are deprecated
    QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)


class Case(NamedTuple):
    """A model that fails: its class, the error code, phrases of the message, and the arguments of `compile`."""

    model: type[nn.Module]
    code: str
    words: tuple[str, ...]
    arguments: dict[str, Any]


CORPUS: list[Case] = []


def fails(code: str, *words: str, **arguments: Any):
    """Adds a model to the corpus. The line that causes the error ends in `# here`."""

    def enter(model: type[nn.Module]) -> type[nn.Module]:
        CORPUS.append(Case(model, code, words, arguments))
        return model

    return enter


# ---- unsupported by torch.export ----


@fails("export-failed", "control flow depends on the values of a tensor", "torch.cond(")
class BranchOnAValue(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # here
            return x * 2
        return x


@fails("export-failed", "control flow depends on the values of a tensor")
class LoopUntilAValue(nn.Module):
    def forward(self, x):
        while x.max() < 10:  # here
            x = x * 2
        return x


@fails("export-failed", "is assigned other memory", "x.copy_(value)")
class ReplacesItsData(nn.Module):
    def forward(self, x):
        x.data = x * 2  # here
        return x + 1


@fails("export-failed", "control flow depends on the values of a tensor", "torch._check(")
class LoopCountedByAValue(nn.Module):
    def forward(self, x):
        for _ in range(int(x.max())):  # here
            x = x * 2
        return x


@fails("export-failed", "control flow depends on the values of a tensor")
class NumberToPython(nn.Module):
    def forward(self, x):
        return x * math.sqrt(x.sum())  # here


@fails("export-failed", "a tensor leaves PyTorch", "torch operators instead of numpy functions")
class ThroughNumpy(nn.Module):
    def forward(self, x):
        return torch.from_numpy(np.sin(x.numpy()))  # here


@fails("export-failed", "a tensor leaves PyTorch", "custom_op")
class ReadsThePointer(nn.Module):
    def forward(self, x):
        return x + x.data_ptr()  # here


@fails("export-failed", "the shape of a result depends on the values", "linalg_lstsq")
class ShapeFromValues(nn.Module):
    def forward(self, x):
        return torch.linalg.lstsq(x, x[:, :1], driver="gelsd").solution  # here


@fails("export-failed", "tracing it with the example inputs failed", "same reduction dim", "draft_export")
class ShapesThatDoNotFit(nn.Module):
    def forward(self, x):
        return x @ x  # here


@fails("export-failed", "tracing it with the example inputs failed", "ValueError: expected an image")
class RaisesItself(nn.Module):
    def forward(self, x):
        raise ValueError("expected an image")  # here


@fails("export-failed", "tracing it with the example inputs failed", "AssertionError: one at a time")
class AssertsItself(nn.Module):
    def forward(self, x):
        assert x.shape[0] == 1, "one at a time"  # here
        return x


@fails("export-failed", "tracing it with the example inputs failed", "no attribute 'scale'")
class LacksAnAttribute(nn.Module):
    def forward(self, x):
        return self.scale * x  # here


@fails("export-failed", "tracing it with the example inputs failed", "RecursionError")
class CallsItself(nn.Module):
    def forward(self, x):
        return self.forward(x)  # here


@fails("export-failed", "it requires gradients", "torch.func.grad")
class TakesAGradient(nn.Module):
    def forward(self, x):
        x = x.requires_grad_()
        return torch.autograd.grad((x * x).sum(), x)[0]  # here


@fails("export-failed", "it requires gradients", "implement the derivative explicitly")
class DifferentiatesAFunction(nn.Module):
    def forward(self, x):  # here
        return torch.func.grad(lambda y: (y**3).sum())(x)


@fails("export-failed", "not on the CPU", "module.cpu()")
class OnAnotherDevice(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, device="meta"))

    def forward(self, x):
        return x + self.weight  # here


@fails("export-failed", "a branch or body of its control flow", "equal shapes and dtypes")
class BranchesOfTwoShapes(nn.Module):
    def forward(self, x):
        return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x[0] * 2, (x,))  # here


# ---- custom operators ----


@torch.library.custom_op("corpus::shapeless", mutates_args=())
def shapeless(x: Tensor) -> Tensor:
    return x.clone()


# A list among other results: no out variant can be generated for it.
_library = torch.library.Library("corpus", "FRAGMENT")
_library.define("outless(Tensor x) -> (Tensor, Tensor[])")
_library.impl("outless", lambda x: (x.clone(), [x.clone()]), "CompositeExplicitAutograd")


@fails("export-failed", "an operator that is not registered", "'corpus' object has no attribute 'nothing'")
class UnregisteredOperator(nn.Module):
    def forward(self, x):
        return torch.ops.corpus.nothing(x)  # here


@fails("export-failed", "does not declare the shape of its result", "register_fake")
class OperatorWithoutAShape(nn.Module):
    def forward(self, x):
        return shapeless(x)  # here


@fails("missing-out-variant", "corpus.outless", 'library.define("outless.out(')
class OperatorWithoutAnOutVariant(nn.Module):
    def forward(self, x):
        return torch.ops.corpus.outless(x)[0]  # here


# ---- operators without an implementation ----


@fails("not-core", "linalg_eig", "no decomposition", args=(torch.eye(3),))
class NotCore(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(torch.complex(x, x)).real  # here


# It has an out variant, so without decomposition it reaches the kernels, and is unlikely to get a kernel.
@fails(
    "missing-kernel",
    "aten::_linalg_det.result",
    "torchette ops",
    args=(torch.eye(3),),
    edge=EdgeCompileConfig(preserve_ops=[torch.ops.aten._linalg_det.default]),
)
class WithoutAKernel(nn.Module):
    def forward(self, x):
        return torch.linalg.det(x)  # here


@fails("train-mode", "model.eval()")
class DropsInForward(nn.Module):
    def forward(self, x):
        return F.dropout(x, 0.5, training=True)  # here


@fails("train-mode", "norm: BatchNorm1d", "drop: Dropout", "2 of its modules", "model.eval()", train=True)
class InTrainingMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.drop = nn.BatchNorm1d(3), nn.Dropout()

    def forward(self, x):  # here
        return self.drop(self.norm(x))


# ---- tensors that the runtime does not support ----


@fails("unsupported-dtype", "torch.float8_e4m3fn", "cast to a supported dtype")
class Float8(nn.Module):
    def forward(self, x):
        return x.to(torch.float8_e4m3fn).to(torch.float32)  # here


@fails("unsupported-dtype", "torch.uint32")
class Unsigned(nn.Module):
    def forward(self, x):
        return x.to(torch.uint32)  # here


@fails("not-dense", "torch.sparse_coo", ".to_dense()")
class Sparse(nn.Module):
    def forward(self, x):
        return torch.sparse.mm(x.to_sparse(), x.T)  # here


@fails("not-dense", "x is torch.sparse_coo", "x, first used at", args=(X.to_sparse(),))
class SparseInput(nn.Module):
    def forward(self, x):
        return x * 2  # here


@fails("not-core", "quantize_per_tensor", "dequantize")
class Quantized(nn.Module):
    def forward(self, x):
        return torch.quantize_per_tensor(x, 0.1, 0, torch.qint8).dequantize()  # here


@fails(
    "export-failed",
    "a quantized or nested tensor",
    "x.dequantize()",
    args=(QUANTIZED,),
)
class QuantizedInput(nn.Module):
    def forward(self, x):  # here
        return x.dequantize()


@fails("rank-limit", "18 dimensions", "16", "flatten some")
class TooManyDimensions(nn.Module):
    def forward(self, x):
        return x.reshape((4, 3) + (1,) * 16) + 1  # here


@fails("reshaped-in-place", "aten.t_.default changes the shape of x", "x.t()")
class TurnsItsInput(nn.Module):
    def forward(self, x):
        x.t_()  # here
        return x + 1


# ---- inputs and outputs ----


class Thing:
    """A class that is not registered as a container."""

    def __init__(self, x):
        self.x = x


@fails("export-failed", "forward returns a value", "Thing", "register_dataclass")
class ReturnsAnObject(nn.Module):
    def forward(self, x):  # here
        return Thing(x)


@fails("export-failed", "an example input is not a tensor", "Thing", args=(Thing(X),))
class TakesAnObject(nn.Module):
    def forward(self, thing):  # here
        return thing.x


@fails("export-failed", "an example input is not a tensor", "torch.from_numpy", args=(X.numpy(),))
class TakesAnArray(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails("export-failed", "the example inputs do not match the signature of forward", "too many", args=(X, X))
class TooManyInputs(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails(
    "export-failed",
    "the example inputs do not match the signature of forward",
    "missing a required argument: 'x'",
    args=(),
)
class TooFewInputs(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails("export-failed", "the example inputs do not match the signature of forward", "'y'", kwargs={"y": X})
class UnknownInput(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails(
    "bad-input-type",
    "args must be a tuple of the module's positional arguments, got a tensor",
    "torchette.compile(module, (x,))",
    args=X,
)
class InputsNotInATuple(nn.Module):
    def forward(self, x):  # here
        return x * 2


# ---- dynamic shapes ----


@fails("export-failed", "does not allow these dynamic shapes", "['y']", dynamic_shapes={"y": {0: N}})
class UnknownDynamicInput(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails("export-failed", "does not allow these dynamic shapes", dynamic_shapes={"x": {5: N}})
class NoSuchDimension(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails("export-failed", "does not allow these dynamic shapes", "'batch'", dynamic_shapes={"x": {0: "batch"}})
class NotADimension(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails(
    "export-failed",
    "does not allow these dynamic shapes",
    "4 not in range [2, 3]",
    dynamic_shapes={"x": {0: torch.export.Dim("n", min=2, max=3)}},
)
class ExampleOutOfRange(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails("export-failed", "n as dynamic", "constant (4)", "torch suggests: n = 4", dynamic_shapes={"x": {0: N}})
class FixedByTheModel(nn.Module):
    def forward(self, x):  # here
        return x.view(4, 3) + 1


@fails(
    "export-failed",
    "constant (1)",
    "at least 2 elements (this one has 1): torch.export makes a size of 0 or 1 a constant",
    args=(torch.randn(1, 3),),
    dynamic_shapes={"x": {0: N}},
)
class ExampleOfOneRow(nn.Module):
    def forward(self, x):  # here
        return x * 2


@fails("export-failed", "torch suggests: n = Dim('n', min=4, max=8)", dynamic_shapes={"x": {0: N}})
class BranchOnAShape(nn.Module):
    def forward(self, x):  # here
        return x * 2 if x.shape[0] > 3 else x


def fault(model: type[nn.Module]) -> tuple[int, str]:
    """Returns (number, text) of the line of a model that is marked as the cause."""
    lines, start = inspect.getsourcelines(model)
    offset = next(i for i, line in enumerate(lines) if line.endswith("# here\n"))
    return start + offset, lines[offset].strip()


def documented_codes() -> set[str]:
    pages = (ROOT / "docs" / "errors.md").read_text() + dialects_page()
    return set(re.findall(r'^\| <a id="([\w-]+)"></a>`\1`', pages, re.M))


def test_corpus_covers_many_causes():
    assert len(CORPUS) >= 40 and len({case.code for case in CORPUS}) >= 10


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.model.__name__)
def test_message_has_line_code_and_remedy(case):
    arguments = {"args": (X,), **case.arguments}
    model = case.model().train(arguments.pop("train", False))
    with pytest.raises(errors.TorchetteError) as caught:
        torchette.compile(model, **arguments)
    error, message = caught.value, str(caught.value)
    assert vars(errors)[type(error).__name__] is type(error)  # public
    assert error.code == case.code
    assert error.code in documented_codes()
    number, text = fault(case.model)
    assert f"{__file__}:{number}, in forward: {text.partition('  #')[0]}" in message, message
    assert error.hints and all(error.hints)
    assert not [word for word in case.words if word not in message], message
    assert len(message.splitlines()) <= 40 and max(map(len, message.splitlines()[:2])) < 500


class ManyFaults(nn.Module):
    def forward(self, x):
        a = torch.linalg.eigvals(torch.complex(x, x)).real
        b = torch.linalg.eig(torch.complex(x + 1, x))[1].real
        c = torch.linalg.eigvals(torch.complex(x.T, x)).real
        return a, b, c


def test_all_errors_of_a_stage_are_reported():
    with pytest.raises(errors.DialectError) as caught:
        torchette.compile(ManyFaults().eval(), (torch.eye(3),))
    lines, start = inspect.getsourcelines(ManyFaults.forward)
    for offset in (1, 2, 3):
        assert f"{__file__}:{start + offset}, in forward: {lines[offset].strip()}" in str(caught.value)


# ---- arguments of compile, without a line of a model ----

_PLANNED = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ({"module": lambda x: x}, "bad-input-type", ["nn.Module", "function"]),
        ({"module": {"a": nn.ReLU()}}, "bad-input-type", ["each method requires its own example inputs"]),
        ({"constant_methods": {"config": object()}}, "emit-failed", ["constant method 'config'"]),
        ({"constant_methods": {"forward": 3}}, "bad-input-type", ["forward", "constant method"]),
        ({"config": ExecutorchBackendConfig(passes=[3])}, "not-a-pass", ["3 is not a pass"]),
        ({"edge": EdgeCompileConfig(disable_passes=["all"])}, "unknown-pass", ["all", "fold_constants"]),
        (
            {"edge": EdgeCompileConfig(preserve_ops=["aten::relu"])},
            "bad-input-type",
            ["'aten::relu'", "torch.ops.aten.relu.default"],
        ),
        ({"fit": True}, "bad-input-type", ["no longer has the argument 'fit'", "Device(ram=..., fit=True)"]),
        ({"backend": "tpu"}, "unknown-backend", ["there is no backend 'tpu'", "portable", "xnnpack"]),
        ({"backend": {"back": "cpu"}}, "bad-input-type", ["backend is given for back", "methods: forward"]),
        ({"backend": ["cpu", 3]}, "bad-input-type", ["expected a Partitioner, got 3"]),
        ({"calibration": [(X,)]}, "bad-input", ["without a quantizer"]),
        ({"quantizer": "int8"}, "bad-input-type", ["expected a torchao quantizer, got str"]),
        ({"quantizer": XNNPACKQuantizer(), "calibration": {"back": [(X,)]}}, "bad-input-type", ["for back"]),
        (
            {"quantizer": XNNPACKQuantizer(), "calibration": "all"},
            "bad-input-type",
            ["calibration must be a list of inputs or 'random', got 'all'"],
        ),
        ({"io": "int16"}, "bad-input", ["io='int16'", "io='int8'"]),
        (
            {"device": Device(arenas={"SRAM": 64}), "config": _PLANNED},
            "bad-input",
            ["arenas and a memory planning pass are both given"],
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_arguments_of_compile_are_refused_before_the_export(arguments, code, words, monkeypatch):
    monkeypatch.setattr(torch.export, "export", lambda *_, **__: pytest.fail("the model was exported"))
    with pytest.raises(errors.TorchetteError) as caught:
        torchette.compile(**{"module": nn.ReLU().eval(), "args": (X,), **arguments})
    assert caught.value.code == code in documented_codes()
    assert caught.value.hints
    assert not [word for word in words if word not in str(caught.value)], str(caught.value)
