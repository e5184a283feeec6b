# SPDX-License-Identifier: BSD-3-Clause
# The stages of the compiler for every reference model: each yields a valid FX graph that computes the results of eager.

from __future__ import annotations

import warnings

import pytest
import torch

from tests.models import artifacts, zoo
from tests.models.artifacts import each_kind_of_model
from torchette.exir import to_edge


@each_kind_of_model
def test_edge_program_is_sound_and_equals_eager(name: str) -> None:
    program = artifacts.exported(name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        manager = to_edge(program)
    program = manager.exported_program()
    assert isinstance(program.graph_module, torch.fx.GraphModule)
    program.graph_module.graph.lint()
    with torch.no_grad():
        artifacts.assert_equal_to_eager(program.module()(*artifacts.args(name)), name)


@each_kind_of_model
def test_final_graph_is_sound(name: str) -> None:
    manager = to_edge(artifacts.exported(name)).to_executorch()
    program = manager.exported_program()
    assert isinstance(program.graph_module, torch.fx.GraphModule)
    program.graph_module.graph.lint()


def test_methods_share_a_file() -> None:
    """A dict of programs yields a program with one method per entry."""
    from torchette.runtime import Runtime

    names = ["digits", "keyword_spotting"]
    contents = to_edge({name: artifacts.exported(name) for name in names}).to_executorch().buffer
    program = Runtime.get().load_program(contents)
    assert program.method_names == set(names)
    for name in names:
        (output,) = program.load_method(name).execute(artifacts.args(name))
        artifacts.assert_equal_to_eager(output, name)


@pytest.mark.parametrize("strict", [False, True])
def test_strict_export_yields_the_same_program(strict: bool) -> None:
    module, args = zoo.build("digits")
    manager = to_edge(torch.export.export(module, args, strict=strict)).to_executorch()
    from torchette.runtime import Runtime

    (output,) = Runtime.get().load_program(manager.buffer).load_method("forward").execute(args)
    artifacts.assert_equal_to_eager(output, "digits")
