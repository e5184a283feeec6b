# SPDX-License-Identifier: BSD-3-Clause
# Compares pytrees in C++ with those of torch: random structures, damaged texts, and the outputs of a file that ExecuTorch wrote.

from __future__ import annotations

import collections
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.building import built, run


def structure(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.choice(["leaf", "leaf", "tuple", "list", "dict", "ordered", "default"])
    if kind == "leaf" or depth > 4:
        return 0
    members = [structure(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind in ("tuple", "list"):
        return tuple(members) if kind == "tuple" else members
    names = ["a", 'b"\\', "ü€😀", "\t", 7]
    pairs = dict(zip(rng.sample(names, len(members)), members))
    return {
        "dict": pairs,
        "ordered": collections.OrderedDict(pairs),
        "default": collections.defaultdict(list, pairs),
    }[kind]


def shown(value: Any, leaves: Iterator[int]) -> str:
    """Returns the text that pytree_test.cpp prints for a structure."""
    if isinstance(value, int):
        return str(next(leaves))
    name = f"{type(value).__module__}.{type(value).__name__}"
    if isinstance(value, dict):
        return f"{name}({', '.join(f'{key}: {shown(member, leaves)}' for key, member in value.items())})"
    return f"{name}({', '.join(shown(member, leaves) for member in value)})"


def test_structures_match_torch() -> None:
    torch_pytree = pytest.importorskip("torch.utils._pytree")
    rng = random.Random(0)
    values = [structure(rng) for _ in range(300)]
    texts = [torch_pytree.treespec_dumps(torch_pytree.tree_flatten(value)[1]) for value in values]
    assert len(set(texts)) > 100
    lines = run(
        built("torchette_pytree_test"), input="".join(f"{text}\n" for text in texts)
    ).stdout.splitlines()
    assert lines == [f"{shown(value, itertools.count())}\t{text}" for value, text in zip(values, texts)]


def test_a_complex_leaf_is_marked() -> None:
    leaves = [
        '{"type": null, "context": null, "children_spec": []' + end for end in (', "complex": true}', "}")
    ]
    text = '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [' + ", ".join(leaves) + "]}]"
    lines = run(built("torchette_pytree_test"), input=f"{text}\n").stdout.splitlines()
    assert lines == [f"builtins.tuple(0i, 1)\t{text}"]


def test_damaged_texts_are_refused() -> None:
    torch_pytree = pytest.importorskip("torch.utils._pytree")
    serialized = torch_pytree.treespec_dumps(
        torch_pytree.tree_flatten({"a": (1, [2]), "ü": collections.defaultdict(int, k=3)})[1]
    )
    leaf = '{"type": null, "context": null, "children_spec": []}'
    deep = '{"type": "builtins.tuple", "context": "null", "children_spec": ['
    texts = [
        *(serialized[:cut] for cut in range(len(serialized))),
        serialized + "]",
        serialized.replace("[1,", "[2,"),
        serialized.replace('"children_spec": []', '"children_spec": [[]]'),
        f"[1, {deep * 100}{leaf}{']}' * 100}]",
        f"[1, {'[' * 100000}",
        '[1, {"type": "builtins.dict", "context": "[\\"a\\"]", "children_spec": []}]',
        '[1, {"type": "builtins.dict", "context": "\\ud800", "children_spec": []}]',
        '[1, {"context": "null", "children_spec": []}]',
        '[1, {"type": "builtins.tuple", "type": null, "context": "null", "children_spec": []}]',
    ]
    lines = run(
        built("torchette_pytree_test"), input="".join(f"{text}\n" for text in texts)
    ).stdout.splitlines()
    assert lines == ["refused"] * len(texts)


def test_outputs_of_a_file_that_executorch_wrote(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    theirs = pytest.importorskip("executorch.exir")

    class Net(torch.nn.Module):
        def forward(self, x):
            return {"sum": x + x, "both": (x * 3, [x - x])}

    program = theirs.to_edge(torch.export.export(Net(), (torch.ones(2),))).to_executorch()
    (tmp_path / "peer.pte").write_bytes(program.buffer)
    printed = run(built("torchette_pytree_test"), tmp_path / "peer.pte").stdout
    two, three, none = (f"tensor(sizes=[2], [{n}, {n}])" for n in (2, 3, 0))
    both = f"builtins.tuple({three}, builtins.list({none}))"
    assert printed == f"builtins.dict(sum: {two}, both: {both})"


def test_python_names() -> None:
    pytest.importorskip("torch")
    from torchette.extension import pytree

    value = {"a": (1, [2]), "b": 3}
    leaves, spec = pytree.tree_flatten(value)
    assert leaves == [1, 2, 3] and isinstance(spec, pytree.TreeSpec)
    assert pytree.tree_unflatten(leaves, spec) == value
    assert pytree.tree_map(str, value) == {"a": ("1", ["2"]), "b": "3"}
    assert pytree.broadcast_to_and_flatten({"a": 0, "b": 5}, spec) == [0, 0, 5]
    from torch.utils._pytree import treespec_dumps

    assert pytree.from_str(treespec_dumps(spec)) == spec

    class Box:
        def __init__(self, held):
            self.held = held

    pytree.register_custom(Box, lambda box: ([box.held], None), lambda members, _: Box(*members))
    assert pytree.tree_map(lambda x: x + 1, Box((1, 2))).held == (2, 3)
