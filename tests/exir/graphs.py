# SPDX-License-Identifier: BSD-3-Clause
# Small modules, and functions that export and lower them, for all tests of the compiler.

from __future__ import annotations

import torch
from torch import nn

from torchette.exir.check import evaluate
from torchette.exir.config import EdgeCompileConfig
from torchette.exir.graph import outputs
from torchette.exir.pipeline import Report, build


class Function(nn.Module):
    """A module with the given function as its forward."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args):
        return self.function(*args)


class ConvNet(nn.Module):
    """conv - batch norm - relu - pool - linear, with statistics that change the values."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 4)
        with torch.no_grad():
            self.norm.running_mean.uniform_(-1, 1)
            self.norm.running_var.uniform_(0.5, 2)
            self.norm.weight.uniform_(0.5, 2)
            self.norm.bias.uniform_(-1, 1)

    def forward(self, x):
        x = torch.relu_(self.norm(self.conv(x)))
        return self.head(nn.functional.adaptive_avg_pool2d(x, 1).flatten(1))


class Counter(nn.Module):
    """A module with state: adds its input to a buffer and returns twice the buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.ones(4))

    def forward(self, x):
        self.count.add_(x)
        return self.count * 2


def export(module, args, **kwargs):
    """Exports a module or function. Copies repeated tensors, because torch.export treats them as one input."""
    module = module if isinstance(module, nn.Module) else Function(module)
    distinct = tuple(
        arg.clone() if any(arg is previous for previous in args[:number]) else arg
        for number, arg in enumerate(args)
    )
    return torch.export.export(module.eval(), distinct, **kwargs)


def lower(module, args, stage="exec", dynamic_shapes=None, **options):
    """Returns (program after a stage, report). The results are compared with eager mode after every pass."""
    module = module if isinstance(module, nn.Module) else Function(module)
    if dynamic_shapes is not None and isinstance(module, Function):
        dynamic_shapes = (dynamic_shapes,)
    report = Report()
    extra = options.pop("extra_passes", {})
    options.setdefault("check_passes", True)
    pipeline = build(EdgeCompileConfig(**options)).until(stage)
    for name, passes in extra.items():
        pipeline = pipeline.insert(name, *passes)
    return pipeline.run(export(module, args, dynamic_shapes=dynamic_shapes), report), report


def results(program, args):
    """Returns the user outputs of a program's graph for these inputs."""
    values = evaluate(program, args)
    is_user_output = [spec.kind.name == "USER_OUTPUT" for spec in program.graph_signature.output_specs]
    return [
        values[value] if isinstance(value, torch.fx.Node) else value
        for value, user in zip(outputs(program), is_user_output, strict=True)
        if user
    ]


def called(program):
    """Returns the calls of a graph in order, such as `add.out`. Aliases end in `@`, in-place writes in `!`."""
    names = []
    for node in program.graph.nodes:
        if node.op == "call_function":
            name = (
                str(node.target).removeprefix("aten.")
                if hasattr(node.target, "_schema")
                else node.target.__name__
            )
            names.append(name + "@" * ("alias" in node.meta) + "!" * ("in_place" in node.meta))
    return names
