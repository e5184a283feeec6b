# SPDX-License-Identifier: BSD-3-Clause
# The structures of a method's inputs and outputs. Decodes them from a file's text, and converts between nested
# structures and flat lists. Uses classes that are registered with torch only if torch is already imported.
"""Structures of values: `decode` a tree from a file, `flatten` a structure into a list, `unflatten` it back.

The text has torch's format, which ExecuTorch also stores: JSON ``[1, {"type", "context", "children_spec"}]``. Leaves have no
type.
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
_MAX_DEPTH = 64  # limits the recursion on untrusted files


@dataclass(frozen=True)
class Tree:
    """A node of a structure. A leaf has no type.

    Attributes:
        type: the registered name of the container, such as ``builtins.dict``.
        context: additional data of the container as parsed JSON, such as the keys of a dict or a class name.
        text: the context as text, as stored in the file.
        children: the members in order.
        is_complex: of a leaf: whether the value is the real view of a complex tensor, with pairs in a last dimension of
            2.
    """

    type: str | None = None
    context: Any = None
    text: str = ""
    children: tuple[Tree, ...] = ()
    num_leaves: int = field(default=1)
    is_complex: bool = False

    @property
    def is_leaf(self) -> bool:
        """Whether the node is a leaf."""
        return self.type is None


LEAF = Tree()
COMPLEX_LEAF = Tree(is_complex=True)


def decode(text: str) -> Tree | None:
    """Decodes a tree, or returns None if `text` is empty.

    Raises:
        FormatError: if `text` is not a valid tree.
    """
    if not text:
        return None
    try:
        version, record = json.loads(text)
        if version != _VERSION:
            raise ValueError(f"unknown version {version}")
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
        context = text  # some classes store text that is not JSON
    if kind in _KEYED and len(keys(kind, context)) != len(children):
        raise ValueError(f"{kind} with {len(children)} members and other keys")
    return Tree(kind, context, text, children, sum(child.num_leaves for child in children))


_KEYED = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


def keys(kind: str, context: Any) -> list[Any]:
    """Returns the keys of a dict-like node with this type and context."""
    result: list[Any] = context["dict_context"] if kind == "collections.defaultdict" else context
    return result


def _registered(kind: str) -> Any:
    """Returns torch's registration of a container type, or None if torch is not imported or does not know the type."""
    torch_pytree = sys.modules.get("torch.utils._pytree")
    if torch_pytree is None:
        return None
    nodes = torch_pytree.SUPPORTED_NODES
    python_type = torch_pytree.SERIALIZED_TYPE_TO_PYTHON_TYPE.get(kind)
    if python_type is None:  # dataclasses may be registered without a name
        python_type = next((t for t in nodes if f"{t.__module__}.{t.__qualname__}" == kind), None)
    return None if python_type is None else nodes.get(python_type)


_NAMED_TUPLES = ("torch.return_types.", "collections.namedtuple.")


def _is_named_result(tree: Tree) -> bool:
    """Whether the context lists the field names of a tuple: a namedtuple, or a result of operators such as
    torch.topk.
    """
    return tree.type is not None and tree.type.startswith(_NAMED_TUPLES)


def _named_result(tree: Tree, members: list[Any]) -> Any:
    """Creates a tuple of torch's class if torch is imported and has it, else of a new class with the same name and
    fields.
    """
    module, _, name = str(tree.type).rpartition(".")
    torch_class = getattr(sys.modules.get("torch.return_types"), name, None)
    try:
        if torch_class is not None and module == "torch.return_types":
            return torch_class(members)
        return collections.namedtuple(name, tree.context)(*members)
    except (TypeError, ValueError):  # invalid names or a wrong field count in the file
        return tuple(members)


def names(tree: Tree, root: str = "") -> Iterator[str]:
    """Yields a display name for each leaf, the path to it, such as ``args[1]['h']``."""
    if tree.is_leaf:
        yield root
        return
    for key, child in zip(_labels(tree), tree.children, strict=True):
        yield from names(child, root + key)


def _labels(tree: Tree) -> list[str]:
    if tree.type in _KEYED:
        return [f"[{key!r}]" for key in keys(tree.type, tree.context)]
    # A dataclass stores its fields and the names of the fields that are None.
    is_nested = isinstance(tree.context, list) and [*map(type, tree.context)] == [list, list]
    fields = tree.context[0] if is_nested else tree.context
    if isinstance(fields, list) and [*map(type, fields)] == [str] * len(tree.children):
        return [f".{name}" for name in fields]
    return [f"[{i}]" for i in range(len(tree.children))]


def leaves(tree: Tree) -> Iterator[Tree]:
    """Yields the leaves in order."""
    if tree.is_leaf:
        yield tree
    for child in tree.children:
        yield from leaves(child)


def flatten(tree: Tree, value: object, where: str, out: list[Any]) -> None:
    """Appends the leaves of `value` to `out`.

    Raises:
        InputError: if `value` does not have the structure `tree`. The message contains the path, starting with `where`.
    """
    if tree.is_leaf:
        out.append(value)
        return
    members = _members(tree, value, where)
    for label, child, member in zip(_labels(tree), tree.children, members, strict=True):
        flatten(child, member, where + label, out)


def _members(tree: Tree, value: object, where: str) -> Sequence[Any]:
    if tree.type in _KEYED:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be a dict, got {type(value).__name__}")
        expected = keys(tree.type, tree.context)
        missing, unknown = [k for k in expected if k not in value], [k for k in value if k not in expected]
        if missing or unknown:
            raise InputError(
                f"{where} must have the keys {expected}"
                + (f", {missing} missing" if missing else "")
                + (f", {unknown} unknown" if unknown else "")
            )
        return [value[key] for key in expected]
    sequences = ("builtins.tuple", "builtins.list", "collections.namedtuple", "collections.deque")
    if tree.type in sequences or _is_named_result(tree):
        if not isinstance(value, (tuple, list, collections.deque)):
            kind = str(tree.type).rpartition(".")[2]
            raise InputError(f"{where} must be a {kind}, got {type(value).__name__}")
        members: Sequence[Any] = list(value)
    else:
        node = _registered(tree.type or "")
        if node is not None:
            members = list(node.flatten_fn(value)[0])
        elif isinstance(value, dict):
            members = list(value.values())
        else:
            raise InputError(f"{where} must be a {tree.type}; import the module that defines this class")
    if len(members) != len(tree.children):
        raise InputError(f"{where} must have {len(tree.children)} members, got {len(members)}")
    return members


def unflatten(tree: Tree, values: Sequence[Any]) -> Any:
    """Builds the structure `tree` with `values`, one for each leaf.

    Containers have their original types if Python or the imported torch knows them. Other classes become dicts of their
    fields, or tuples.
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
    """Builds a container of a class that is registered with torch, or returns None."""
    node = _registered(tree.type or "")
    torch_pytree = sys.modules.get("torch.utils._pytree")
    if node is None or torch_pytree is None:
        return None
    definition = torch_pytree.SUPPORTED_SERIALIZED_TYPES.get(node.type)
    context = tree.context
    if definition is not None and definition.from_dumpable_context is not None:
        try:
            context = definition.from_dumpable_context(tree.text)
        except Exception:  # the class cannot be imported; the caller returns its fields instead
            return None
    try:
        return node.unflatten_fn(members, context)
    except Exception:  # the fields of the class do not match those in the file
        return None
