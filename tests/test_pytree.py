# SPDX-License-Identifier: BSD-3-Clause
# Structures that torch flattens come back from its text form, with torch at hand and without.

from __future__ import annotations

import collections
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchette import pytree
from torchette.errors import FormatError, InputError

Pair = collections.namedtuple("Pair", ["first", "second"])

STRUCTURES = [
    1,
    None,
    (),
    (1,),
    [1, (2, [3])],
    {"b": 1, "a": (2, {"c": [3]})},
    {3: 1, "x": 2},
    collections.OrderedDict([("z", 1), ("y", [2])]),
    collections.defaultdict(list, {"k": [1, 2]}),
    collections.deque([1, 2]),
    ((1, 2), {"flag": True}),
]


@pytest.mark.parametrize("value", STRUCTURES, ids=repr)
def test_structures_of_torch_are_read(value: Any) -> None:
    torch_pytree = pytest.importorskip("torch.utils._pytree")
    leaves, spec = torch_pytree.tree_flatten(value)
    tree = pytree.decode(torch_pytree.treespec_dumps(spec))
    assert tree is not None and tree.num_leaves == len(leaves)
    flat: list[Any] = []
    pytree.flatten(tree, value, "args", flat)
    assert flat == leaves
    again = pytree.unflatten(tree, leaves)
    assert again == value
    assert len(list(pytree.names(tree))) == len(leaves)


def test_classes_that_torch_knows_come_back_as_they_were() -> None:
    torch_pytree = pytest.importorskip("torch.utils._pytree")
    transformers = pytest.importorskip("transformers.modeling_outputs")
    output = transformers.BaseModelOutput(last_hidden_state=1, attentions=2)
    leaves, spec = torch_pytree.tree_flatten(output)
    tree = pytree.decode(torch_pytree.treespec_dumps(spec))
    assert tree is not None
    again = pytree.unflatten(tree, leaves)
    assert type(again) is type(output) and again.attentions == 2


LEAF = {"type": None, "context": None, "children_spec": []}
OUTPUT = {
    "type": "some.module.Output",
    "context": '["logits", "state"]',
    "children_spec": [LEAF] * 2,
}


def test_classes_that_nobody_knows_become_dicts() -> None:
    tree = pytree.decode(json.dumps([1, OUTPUT]))
    assert tree is not None
    assert pytree.unflatten(tree, [1, 2]) == {"logits": 1, "state": 2}
    assert list(pytree.names(tree, "out")) == ["out.logits", "out.state"]


def named(name: str, fields: str, count: int = 2) -> pytree.Tree:
    record = {"type": f"torch.return_types.{name}", "context": fields, "children_spec": [LEAF] * count}
    tree = pytree.decode(json.dumps([1, record]))
    assert tree is not None
    return tree


def test_named_results_have_their_names_without_torch() -> None:
    result = pytree.unflatten(named("not_in_torch", '["values", "indices"]'), [1, 2])
    assert result == (1, 2) and result.values == 1 and type(result).__name__ == "not_in_torch"
    assert list(pytree.names(named("topk", '["values", "indices"]'), "out")) == ["out.values", "out.indices"]


@pytest.mark.parametrize(
    "tree",
    [named("x", '["a", "a"]'), named("x", "7"), named("a b", '["a", "b"]'), named("topk", '["values"]', 3)],
    ids=["twice", "no names", "no identifier", "too many"],
)
def test_made_up_names_leave_a_tuple(tree: pytree.Tree) -> None:
    pytest.importorskip("torch")
    assert pytree.unflatten(tree, list(range(tree.num_leaves))) == tuple(range(tree.num_leaves))


def test_torch_is_not_imported() -> None:
    script = f"""
import json, sys
sys.modules["torch"] = None
from torchette import pytree
tree = pytree.decode({json.dumps([1, OUTPUT])!r})
assert pytree.unflatten(tree, [1, 2]) == {{"logits": 1, "state": 2}}
"""
    subprocess.run([sys.executable, "-c", script], check=True, cwd=Path(__file__).parents[1])


def test_empty_text_is_not_a_structure() -> None:
    assert pytree.decode("") is None


def nested(depth: int) -> dict:
    record = LEAF
    for _ in range(depth):
        record = {"type": "builtins.tuple", "context": "null", "children_spec": [record]}
    return record


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "3",
        "[1]",
        "[2, {}]",
        "[1, {}]",
        '[1, "x"]',
        json.dumps([1, {"type": "builtins.dict", "context": '["a"]', "children_spec": []}]),
        json.dumps([1, {"type": "builtins.dict", "context": "7", "children_spec": [LEAF]}]),
        json.dumps([1, {"type": "collections.defaultdict", "context": "[]", "children_spec": [LEAF]}]),
        json.dumps([1, nested(100)]),
        "[" * 100000,
    ],
)
def test_damaged_text_is_rejected(text: str) -> None:
    with pytest.raises(FormatError, match="tree"):
        pytree.decode(text)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1, "args must be a tuple, got int"),
        ((1,), "args must have 2 members, got 1"),
        ((1, 2), r"args\[1\] must be a dict"),
        ((1, {"a": 1}), r"args\[1\] must have the keys \['a', 'b'\], \['b'\] missing"),
        ((1, {"a": 1, "b": 2, "c": 3}), r"\['c'\] unknown"),
    ],
)
def test_other_structures_are_rejected(value: Any, words: str) -> None:
    dictionary = {"type": "builtins.dict", "context": '["a", "b"]', "children_spec": [LEAF, LEAF]}
    pair = {"type": "builtins.tuple", "context": "null", "children_spec": [LEAF, dictionary]}
    tree = pytree.decode(json.dumps([1, pair]))
    assert tree is not None
    with pytest.raises(InputError, match=words):
        pytree.flatten(tree, value, "args", [])
    with pytest.raises(FormatError, match="3 leaves for 1"):
        pytree.unflatten(tree, [1])


Result = collections.namedtuple("Result", ["value", "parts"])


def test_a_named_tuple_keeps_its_names_and_the_containers_in_it(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    import torchette

    class Model(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return Result(x + 1, {"twice": x * 2, "pair": [Result(x, (x - 1,))]})

    x = torch.ones(2)
    compiled = torchette.compile(Model(), (x,))
    compiled.save(tmp_path / "model.pte")
    for result in (compiled(x), torchette.load(tmp_path / "model.pte")(x)):
        assert type(result).__name__ == "Result" and result._fields == Result._fields
        (inner,) = result.parts["pair"]
        leaves = (result.value, result.parts["twice"], inner.value, inner.parts[0])
        for leaf, expected in zip(leaves, (x + 1, x * 2, x, x - 1), strict=True):
            assert torch.equal(torch.as_tensor(leaf), expected)


def test_a_named_tuple_is_read_without_torch() -> None:
    text = json.dumps(
        [1, {"type": "collections.namedtuple.Pair", "context": '["first", "second"]', "children_spec": [
            {"type": None, "context": None, "children_spec": []} for _ in range(2)
        ]}]
    )  # fmt: skip
    tree = pytree.decode(text)
    assert tree is not None and list(pytree.names(tree, "r")) == ["r.first", "r.second"]
    assert pytree.unflatten(tree, [1, 2]) == Pair(1, 2) and pytree.unflatten(tree, [1, 2]).second == 2
    out: list[Any] = []
    pytree.flatten(tree, Pair(3, 4), "inputs", out)
    assert out == [3, 4]
