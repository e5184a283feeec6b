# SPDX-License-Identifier: BSD-3-Clause
# Models that the compiler must refuse, and the message: the user's line, an error code, a remedy.

from pathlib import Path

import pytest
import torch
from torch import nn

import torchette
from torchette import errors
from torchette.capture import capture
from torchette.exir import EdgeCompileConfig, to_edge

X = torch.randn(4, 3)
SOURCE = Path(__file__)


class Model(nn.Module):
    """A module with the given function as its forward."""

    def __init__(self, function, **parts):
        super().__init__()
        self.function = function
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *args, **kwargs):
        return self.function(self, *args, **kwargs)


def data_dependent_branch(self, x):
    if x.sum() > 0:  # here: data_dependent_branch
        return x * 2
    return x


def data_dependent_loop(self, x):
    for _ in range(x.long().max().item()):  # here: data_dependent_loop
        x = x * 2
    return x


def leaves_for_numpy(self, x):
    return torch.from_numpy(x.numpy() * 2)  # here: leaves_for_numpy


def wrong_shapes(self, x):
    return x @ x  # here: wrong_shapes


def fixed_length(self, x):
    return x.view(4, 3) + torch.ones(4, 3)  # here: fixed_length


# torch records only the lines of functions called `forward`.
class FunctionalDropout(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.5, training=True)  # here: FunctionalDropout


class NoDecomposition(nn.Module):
    def forward(self, x):
        return torch.linalg.eigvals(torch.complex(x, x)).real  # here: NoDecomposition


def line_of(function):
    name = function.__name__
    return next(
        n for n, line in enumerate(SOURCE.read_text().splitlines(), 1) if line.endswith(f"# here: {name}")
    )


def refused(call, kind, code=None):
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error, errors.TorchetteError)
    assert error.code == (code or kind.code) and error.hints
    return error


CAPTURE = {
    data_dependent_branch: (None, "control flow depends on the values of a tensor", "torch.cond("),
    data_dependent_loop: (None, "control flow depends on the values of a tensor", "torch._check("),
    leaves_for_numpy: (None, "a tensor leaves PyTorch", "torch operators instead of numpy functions"),
    wrong_shapes: (None, "tracing it with the example inputs failed", "draft_export"),
}


@pytest.mark.parametrize("function", CAPTURE, ids=lambda f: f.__name__)
def test_capture_error_has_line_and_remedy(function):
    shapes, reason, hint = CAPTURE[function]
    error = refused(
        lambda: capture(Model(function).eval(), (X,), None, shapes, "forward"), errors.ExportError
    )
    text = str(error)
    assert text.startswith("torch.export cannot capture the model: ") and reason in text.splitlines()[0]
    assert error.where[0].startswith(f"{SOURCE}:{line_of(function)}, in {function.__name__}: "), error.where
    assert any(hint in each for each in error.hints), error.hints
    assert error.__cause__ is not None


def test_disallowed_dynamic_shapes_are_refused():
    shapes = {"args": ({0: torch.export.Dim("n", max=8)},)}
    error = refused(
        lambda: capture(Model(fixed_length).eval(), (X,), None, shapes, "encode"), errors.ExportError
    )
    assert "(method 'encode'): the model does not allow these dynamic shapes" in str(error)


def test_wrong_example_inputs_are_refused():
    error = refused(
        lambda: capture(nn.Linear(3, 2).eval(), (X, X), None, None, "forward"), errors.ExportError
    )
    assert "the example inputs do not match the signature of forward" in str(error)


def test_training_mode_names_the_modules():
    model = nn.Sequential(nn.Linear(3, 3), nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.1)), nn.Dropout(0.0))
    error = refused(lambda: torchette.compile(model, (X,)), errors.TrainModeError)
    assert error.where == ("1.0: BatchNorm1d", "1.1: Dropout") and error.hints == (
        "call model.eval() before compiling",
        "if intended, as for Monte Carlo dropout: torchette.compile(..., edge=EdgeCompileConfig(train_mode=True))",
    )
    assert isinstance(error, (ValueError, errors.ExportError))


def test_functional_training_mode_is_refused():
    error = refused(lambda: torchette.compile(FunctionalDropout().eval(), (X,)), errors.TrainModeError)
    assert f"{SOURCE}:{line_of(FunctionalDropout)}" in error.where[0]
    exported = torch.export.export(FunctionalDropout().eval(), (X,))
    error = refused(lambda: to_edge(exported), errors.DialectError, "train-mode")
    assert "call model.eval() before export" in str(error)


@pytest.mark.parametrize(
    ("module", "code", "remedy"),
    [
        (NoDecomposition, "not-core", "rewrite that line"),
    ],
)
def test_operator_outside_core_is_refused(module, code, remedy):
    exported = torch.export.export(module().eval(), (torch.randn(3, 3),))
    with pytest.raises(errors.DialectError) as caught:
        to_edge(exported)
    violation = next(v for v in caught.value.violations if v.code == code)
    assert violation.place.startswith(f"{SOURCE}:{line_of(module)}, in forward: ")
    assert remedy in str(violation)


def test_missing_kernels_are_listed_with_lines(monkeypatch):
    known = {"aten::add.out"}
    monkeypatch.setattr("torchette.runtime.operator_names", lambda: known)

    def forward(self, x):
        return x.sin().cos() + 1

    error = refused(lambda: torchette.compile(Model(forward).eval(), (X,)), errors.MissingKernelError)
    assert error.operators == ("aten::cos.out", "aten::sin.out")
    operands = " of (float32 0 1)"  # dtype and dim order
    assert [where.partition(": ")[0] for where in error.where] == [
        name + operands for name in error.operators
    ]
    assert all(f"{SOURCE}:" in where and "x.sin().cos()" in where for where in error.where)
    assert isinstance(error, LookupError)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: torchette.compile(lambda x: x, (X,)),
            "expected a torch.nn.Module or an ExportedProgram, got function",
        ),
        (
            lambda: torchette.compile(nn.ReLU(), X),
            "args must be a tuple of the module's positional arguments, got a tensor",
        ),
        (lambda: torchette.compile({"a": nn.ReLU()}, (X,)), "each method requires its own example inputs"),
    ],
    ids=["function", "tensor", "several"],
)
def test_wrong_arguments(call, message):
    error = refused(call, errors.InputTypeError)
    assert message in str(error) and isinstance(error, TypeError)


def test_unknown_pass_is_refused():
    error = refused(
        lambda: torchette.compile(
            nn.ReLU().eval(), (X,), edge=EdgeCompileConfig(disable_passes=["fuse_everything"])
        ),
        errors.PassError,
        "unknown-pass",
    )
    assert "fold_constants" in str(error)
