# SPDX-License-Identifier: BSD-3-Clause
# The trees of a method's inputs and outputs: the text that a file holds comes in, functions between nested structures
# and flat lists go out. Knows torch's registered classes only where torch is loaded already.
"""Structures of values: `decode` a tree from a file, `flatten` a structure into a list, `unflatten` it back.

The text is torch's, which ExecuTorch stores too: JSON ``[1, {"type", "context", "children_spec"}]``, a leaf without type.
"""

from __future__ import annotations

import collections
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torchette.errors import FormatError, InputError

_VERSION = 1
_MAX_DEPTH = 64  # a file is not trusted to be shallow


@dataclass(frozen=True)
class Tree:
    """A node, or a leaf, which has no type.

    Attributes:
        type: the container's registered name, such as ``builtins.dict``.
        context: what the container needs besides its children: a dict's keys, a class's name, as parsed JSON.
        text: the context as it stands in the file.
        children: its members in order.
        is_complex: of a leaf, whether the method's value is the real view of a complex tensor: pairs in a last dimension of 2.
    """

    type: str | None = None
    context: Any = None
    text: str = ""
    children: tuple[Tree, ...] = ()
    num_leaves: int = field(default=1)
    is_complex: bool = False

    @property
    def is_leaf(self) -> bool:
        """Whether this stands for one value."""
        return self.type is None


LEAF = Tree()
COMPLEX_LEAF = Tree(is_complex=True)


def decode(text: str) -> Tree | None:
    """The tree that `text` describes; None if it is empty. FormatError if it is no such text."""
    if not text:
        return None
    try:
        version, record = json.loads(text)
        if version != _VERSION:
            raise ValueError(f"version {version}")
        return _decode(record, 0)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise FormatError(f"a method's tree of inputs or outputs cannot be read: {error}") from None


def _decode(record: dict[str, Any], depth: int) -> Tree:
    if depth > _MAX_DEPTH:
        raise ValueError(f"more than {_MAX_DEPTH} levels")
    kind, text = record["type"], record["context"]
    children = tuple(_decode(child, depth + 1) for child in record["children_spec"])
    if kind is None:
        return COMPLEX_LEAF if record.get("complex") is True else LEAF
    try:
        context = json.loads(text)
    except (TypeError, ValueError):
        context = text  # some classes store plain text
    if kind in _KEYED and len(keys(kind, context)) != len(children):
        raise ValueError(f"{kind} with {len(children)} members and other keys")
    return Tree(kind, context, text, children, sum(child.num_leaves for child in children))


_KEYED = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


def keys(kind: str, context: Any) -> list[Any]:
    """The keys of a dict-like node of that type and context."""
    result: list[Any] = context["dict_context"] if kind == "collections.defaultdict" else context
    return result


def _registered(kind: str) -> Any:
    """Torch's own record of that container, which can build it; None where torch is not loaded or does not know it."""
    torch_pytree = sys.modules.get("torch.utils._pytree")
    if torch_pytree is None:
        return None
    nodes = torch_pytree.SUPPORTED_NODES
    python_type = torch_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(kind)
    if python_type is None:  # a dataclass need not be registered under a name
        python_type = next((t for t in nodes if f"{t.__module__}.{t.__qualname__}" == kind), None)
    return None if python_type is None else nodes.get(python_type)


_NAMED_TUPLES = ("torch.return_types.", "collections.namedtuple.")


def _is_named_result(tree: Tree) -> bool:
    """Whether this is a tuple whose fields have the names in the context: a namedtuple, or the result of torch.topk and the
    like."""
    return tree.type is not None and tree.type.startswith(_NAMED_TUPLES)


def _named_result(tree: Tree, members: list[Any]) -> Any:
    """A tuple of torch's class if it is one of torch's and torch is loaded, else of a class with the same name and fields."""
    module, _, name = str(tree.type).rpartition(".")
    torch_class = getattr(sys.modules.get("torch.return_types"), name, None)
    try:
        if torch_class is not None and module == "torch.return_types":
            return torch_class(members)
        return collections.namedtuple(name, tree.context)(*members)
    except (TypeError, ValueError):  # names or a number of fields that a file made up
        return tuple(members)


def names(tree: Tree, root: str = "") -> Iterator[str]:
    """What to call each leaf: the way to it, such as ``args[1]['h']``."""
    if tree.is_leaf:
        yield root
        return
    for key, child in zip(_labels(tree), tree.children, strict=True):
        yield from names(child, root + key)


def _labels(tree: Tree) -> list[str]:
    if tree.type in _KEYED:
        return [f"[{key!r}]" for key in keys(tree.type, tree.context)]
    # A dataclass: the fields that there are, and those that are None.
    is_nested = isinstance(tree.context, list) and [*map(type, tree.context)] == [list, list]
    fields = tree.context[0] if is_nested else tree.context
    if isinstance(fields, list) and [*map(type, fields)] == [str] * len(tree.children):
        return [f".{name}" for name in fields]
    return [f"[{i}]" for i in range(len(tree.children))]


def leaves(tree: Tree) -> Iterator[Tree]:
    """The leaves in order."""
    if tree.is_leaf:
        yield tree
    for child in tree.children:
        yield from leaves(child)


def flatten(tree: Tree, value: object, where: str, out: list[Any]) -> None:
    """Appends the leaves of `value`, which must have the structure `tree`, to `out`. InputError that names the place, a way
    from `where`."""
    if tree.is_leaf:
        out.append(value)
        return
    members = _members(tree, value, where)
    for label, child, member in zip(_labels(tree), tree.children, members, strict=True):
        flatten(child, member, where + label, out)


def _members(tree: Tree, value: object, where: str) -> Sequence[Any]:
    if tree.type in _KEYED:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be a dict, not {type(value).__name__}")
        wanted = keys(tree.type, tree.context)
        missing, unknown = [k for k in wanted if k not in value], [k for k in value if k not in wanted]
        if missing or unknown:
            raise InputError(
                f"{where} must have the keys {wanted}"
                + (f", {missing} missing" if missing else "")
                + (f", {unknown} unknown" if unknown else "")
            )
        return [value[key] for key in wanted]
    sequences = ("builtins.tuple", "builtins.list", "collections.namedtuple", "collections.deque")
    if tree.type in sequences or _is_named_result(tree):
        if not isinstance(value, (tuple, list, collections.deque)):
            kind = str(tree.type).rpartition(".")[2]
            raise InputError(f"{where} must be a {kind}, not {type(value).__name__}")
        members: Sequence[Any] = list(value)
    else:
        node = _registered(tree.type or "")
        if node is not None:
            members = list(node.flatten_fn(value)[0])
        elif isinstance(value, dict):
            members = list(value.values())
        else:
            raise InputError(f"{where} must be a {tree.type}, which is known only after importing its module")
    if len(members) != len(tree.children):
        raise InputError(f"{where} must have {len(tree.children)} members, not {len(members)}")
    return members


def unflatten(tree: Tree, values: Sequence[Any]) -> Any:
    """The structure `tree` with `values`, as many as it has leaves, in their places.

    Containers are the types that they were where Python or the loaded torch knows them; other classes become dicts
    of their fields, or tuples.
    """
    if len(values) != tree.num_leaves:
        raise FormatError(f"a method's tree has {tree.num_leaves} leaves for {len(values)} values")
    source = iter(values)
    return _unflatten(tree, lambda: next(source))


def _unflatten(tree: Tree, take: Callable[[], Any]) -> Any:
    if tree.is_leaf:
        return take()
    members = [_unflatten(child, take) for child in tree.children]
    kind = tree.type or ""
    if kind == "builtins.tuple":
        return tuple(members)
    if kind == "builtins.list":
        return members
    if kind in ("builtins.dict", "collections.defaultdict"):
        return dict(zip(keys(kind, tree.context), members, strict=True))
    if kind == "collections.OrderedDict":
        return collections.OrderedDict(zip(tree.context, members, strict=True))
    if kind == "collections.deque":
        return collections.deque(members)
    if _is_named_result(tree):
        return _named_result(tree, members)
    built = _build(tree, members)
    if built is not None:
        return built
    labels = _labels(tree)
    return (
        {label[1:]: m for label, m in zip(labels, members, strict=True)}
        if labels[:1] and labels[0][0] == "."
        else tuple(members)
    )


def _build(tree: Tree, members: list[Any]) -> Any:
    """A container of a class that torch has registered, if it has."""
    node = _registered(tree.type or "")
    torch_pytree = sys.modules.get("torch.utils._pytree")
    if node is None or torch_pytree is None:
        return None
    definition = torch_pytree.SUPPORTED_SERIALIZED_TYPES.get(node.type)
    context = tree.context
    if definition is not None and definition.from_dumpable_context is not None:
        try:
            context = definition.from_dumpable_context(tree.text)
        except Exception:  # a class that cannot be imported: its fields are worth something all the same
            return None
    try:
        return node.unflatten_fn(members, context)
    except Exception:  # a class that has other fields than the file says
        return None
