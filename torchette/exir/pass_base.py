# SPDX-License-Identifier: BSD-3-Clause
# In: a user's pass in ExecuTorch's style, which works unchanged: it overrides methods that are called for every node of
# the graph. Out: a new graph of the calls that the methods make. Only calls that differ from the original are
# evaluated.
"""`ExportPass`, `PassResult`, `ProxyValue`, `NodeMetadata`: ExecuTorch's interface for passes."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node
from torch.fx._lazy_graph_module import _LazyGraphModule
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils import _pytree as pytree

from torchette import compat
from torchette.errors import PassError
from torchette.exir import ops

__getattr__ = compat.attributes(__name__)  # for ExecuTorch's names

PassType = Callable[[GraphModule], PassResult | None]


class NodeMetadata:
    """The `meta` of the original node of a call. The `meta` that is passed to a new call becomes that of its node."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = dict(data)

    def __getitem__(self, key: str) -> Any:
        return self.data[key]

    def __setitem__(self, key: str, value: object) -> None:
        self.data[key] = value

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def get(self, key: str, default: object = None) -> Any:
        """Returns the entry of this name, or a default."""
        return self.data.get(key, default)

    def copy(self) -> NodeMetadata:
        """Returns a copy whose entries can be changed independently."""
        return NodeMetadata(self.data)

    def __repr__(self) -> str:
        return f"NodeMetadata({', '.join(self.data)})"


class ProxyValue:
    """A value of the graph that is being built.

    Attributes:
        data: the value at compile time: a fake tensor, a symbolic or plain scalar, or a tuple of them.
        node: the node of the new graph that yields the value. Plain values have no node.
    """

    def __init__(self, data: Any, proxy: Node | Any) -> None:
        self.data = data
        self.proxy = proxy

    @property
    def node(self) -> Node:
        """The node of the new graph that yields this value."""
        return self.proxy if isinstance(self.proxy, Node) else self.proxy.node

    def to_tensor(self) -> torch.Tensor:
        """Returns the fake tensor. Raises TypeError if the value is not a tensor."""
        if not isinstance(self.data, torch.Tensor):
            raise TypeError(f"{self.node.name} is a {type(self.data).__name__}, not a tensor")
        return self.data

    def is_tensor(self) -> bool:
        """Returns whether this is one tensor."""
        return isinstance(self.data, torch.Tensor)

    def __iter__(self) -> Any:
        with_key = self.node.graph.call_function
        for key, item in enumerate(self.data):
            node = with_key(operator.getitem, (self.node, key))
            node.meta["val"] = item
            yield ProxyValue(item, node)

    def _number(self, context: str) -> Any:
        if (
            isinstance(self.data, (torch.SymInt, torch.SymFloat, torch.SymBool))
            and not self.data.node.is_constant()
        ):
            raise PassError(f"the size {self.data} is known at run time: it cannot be {context}")
        return self.data

    def __bool__(self) -> bool:
        return bool(self._number("used in boolean context"))

    def __int__(self) -> int:
        return int(self._number("converted to int"))

    def __float__(self) -> float:
        return float(self._number("converted to float"))

    def __index__(self) -> int:
        return operator.index(self._number("used in index context"))

    def __repr__(self) -> str:
        return f"ProxyValue({self.proxy}: {self.data})"


class ExportPass(PassBase):
    """A pass that calls a method for every node. Override the methods of the calls to change.

    Each `call_...` method returns the value that replaces the result of the node. The methods of this class add the
    call unchanged to the new graph. Branches of control flow are visited through `call_submodule`.

    Example:
        >>> class ReluToGelu(ExportPass):
        ...     def call_operator(self, op, args, kwargs, meta):
        ...         relu, gelu = torch.ops.aten.relu.default, torch.ops.aten.gelu.default
        ...         return super().call_operator(gelu if op is relu else op, args, kwargs, meta)
    """

    def __init__(self) -> None:
        super().__init__()
        self._graph: torch.fx.Graph | None = None
        self._root: dict[str, Any] = {}
        self._original: Node | None = None
        self._mode: Any = None
        self._branch_changed = False

    # ---- to override ----

    def placeholder(self, name: str, arg: object, meta: NodeMetadata) -> ProxyValue:
        """Adds an input of the graph."""
        node = self._building.create_node("placeholder", name, name=name)
        node.meta = dict(meta.data)
        return ProxyValue(arg, node)

    def call_operator(
        self, op: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        """Adds a call of an operator."""
        return self._call(op, args, kwargs, meta)

    def call_sym(self, target: Callable[..., Any], args: tuple[Any, ...], meta: NodeMetadata) -> ProxyValue:
        """Adds a call of a function on symbolic scalars."""
        return self._call(target, args, {}, meta)

    def call_getitem(self, value: ProxyValue, key: int, meta: NodeMetadata) -> ProxyValue:
        """Selects one of several results."""
        return self._call(operator.getitem, (value, key), {}, meta)

    def call_cond(
        self, pred: object, true_fn: object, false_fn: object, inputs: object, meta: NodeMetadata
    ) -> ProxyValue:
        """Adds a call of `torch.cond`."""
        return self._higher_order((pred, true_fn, false_fn, inputs), meta)

    def call_map(self, f: object, mapped_args: object, operands: object, meta: NodeMetadata) -> ProxyValue:
        """Adds a call of `map`, which iterates over dimension 0."""
        return self._higher_order((f, mapped_args, operands), meta)

    def call_while(
        self,
        cond_fn: object,
        body_fn: object,
        carried_inputs: object,
        additional_inputs: object,
        meta: NodeMetadata,
    ) -> ProxyValue:
        """`while_loop`."""
        return self._higher_order((cond_fn, body_fn, carried_inputs, additional_inputs), meta)

    def call_scan(
        self, combine_fn: object, init: object, xs: object, additional_inputs: object, meta: NodeMetadata
    ) -> ProxyValue:
        """`scan`."""
        return self._higher_order((combine_fn, init, xs, additional_inputs), meta)

    def call_delegate(
        self, lowered_module: object, args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        """Adds a call of a delegate, which a backend runs."""
        return self._higher_order((lowered_module, *args), meta)

    def output(self, results: list[Any], meta: NodeMetadata) -> Any:
        """Sets the results of the graph."""
        node = self._building.output(self._to_nodes(results))
        node.meta = dict(meta.data)
        return results

    def call_submodule(self, graph_module: GraphModule, inputs: tuple[Any, ...]) -> PassResult:
        """Transforms a branch of control flow, or the whole graph."""
        return self._transform(graph_module)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Transforms the whole graph. Override it to edit the graph directly."""
        return self._transform(graph_module)

    # ---- implementation ----

    @property
    def _building(self) -> torch.fx.Graph:
        if self._graph is None:
            raise PassError(f"{type(self).__name__}: this method works only while the pass runs")
        return self._graph

    def _transform(self, module: GraphModule) -> PassResult:
        outer = (self._graph, self._root, self._original, self._branch_changed)
        self._branch_changed = False
        graph = self._graph = torch.fx.Graph()
        graph.set_codegen(
            module.graph._codegen
        )  # of a captured module: the structure of its arguments and results
        self._root = {}
        if self._mode is None:
            self._mode = _fake_mode(module)
        values: dict[Node, Any] = {}
        modified = False
        try:
            for node in module.graph.nodes:
                self._original = node
                values[node] = self._visit(module, node, values)
            modified = _differs(module.graph, graph) or self._branch_changed
            result = _LazyGraphModule(self._root, graph)
            result.meta = dict(module.meta)
        finally:
            self._graph, self._root, self._original, self._branch_changed = outer
        return PassResult(result, modified)

    def _visit(self, module: GraphModule, node: Node, values: dict[Node, Any]) -> Any:
        mapped: Any = torch.fx.node.map_arg((node.args, node.kwargs), values.__getitem__)
        args, kwargs = mapped
        meta = NodeMetadata(node.meta)
        if node.op == "placeholder":
            return self.placeholder(node.name, node.meta.get("val"), meta)
        if node.op == "get_attr":
            return self._attribute(module, node)
        if node.op == "output":
            return self.output(args[0], meta)
        if (
            node.op == "call_module" and node.target == "_guards_fn"
        ):  # a captured module checks its inputs with it
            self._root[node.target] = module.get_submodule(node.target)
            return ProxyValue(None, self._building.call_module(node.target, self._to_nodes(args)))
        if node.op != "call_function":
            raise PassError(f"{node.name}: a graph may contain only calls of operators, not a {node.op}")
        target = node.target
        if target is operator.getitem:
            return self.call_getitem(args[0], args[1], meta)
        if ops.is_higher_order(target):
            name = getattr(target, "__name__", "")
            known: dict[str, Callable[..., ProxyValue]] = {
                "cond": self.call_cond,
                "map_impl": self.call_map,
                "while_loop": self.call_while,
                "scan": self.call_scan,
            }
            if name == "executorch_call_delegate":
                return self.call_delegate(args[0], args[1:], kwargs, meta)
            if name in known:
                return known[name](*args, meta)
            return self._higher_order(args, meta)
        assert callable(target)
        if target in ops.SYMBOLIC_FUNCTIONS:
            return self.call_sym(target, args, meta)
        return self.call_operator(target, args, dict(kwargs), meta)

    def _attribute(self, module: GraphModule, node: Node) -> ProxyValue:
        name = str(node.target)
        value = module.get_parameter(name) if name in dict(module.named_parameters()) else _get(module, name)
        if isinstance(value, GraphModule):
            inputs = tuple(n.meta.get("val") for n in value.graph.nodes if n.op == "placeholder")
            result = self.call_submodule(value, inputs)
            value = result.graph_module
            self._branch_changed |= result.modified
        self._root[name] = value
        copied = self._building.create_node("get_attr", name, name=node.name)
        copied.meta = dict(node.meta)
        return ProxyValue(node.meta.get("val", value), copied)

    def _higher_order(self, args: tuple[Any, ...], meta: NodeMetadata) -> ProxyValue:
        original = self._original
        assert original is not None
        node = self._building.create_node("call_function", original.target, self._to_nodes(args), {})
        node.meta = dict(meta.data)
        return ProxyValue(node.meta.get("val"), node)

    def _call(
        self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], meta: NodeMetadata
    ) -> ProxyValue:
        name = None
        original = self._original
        if original is not None and original.target is target:
            name = original.name
        node = self._building.create_node(
            "call_function", target, self._to_nodes(args), self._to_nodes(kwargs), name=name
        )
        node.meta = {k: v for k, v in meta.data.items() if k != "val"}
        node.meta["val"] = self._value(target, args, kwargs)
        return ProxyValue(node.meta["val"], node)

    def _value(self, target: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        original = self._original
        if original is not None and original.target is target and "val" in original.meta:
            current = _flat_data((args, kwargs))
            before = _flat_data((original.args, dict(original.kwargs)))
            if len(current) == len(before) and all(_same(a, b) for a, b in zip(current, before, strict=True)):
                return original.meta["val"]
        data_args, data_kwargs = pytree.tree_map(_data, (tuple(args), dict(kwargs)))
        if self._mode is None:
            return target(*data_args, **data_kwargs)
        with self._mode:
            return target(*data_args, **data_kwargs)

    def _to_nodes(self, value: object) -> Any:
        def node_of(item: object) -> Any:
            if isinstance(item, torch.Tensor):
                name = f"_tensor_constant{len(self._root)}"
                self._root[name] = item
                return self._building.get_attr(name)
            return item.node if isinstance(item, ProxyValue) else item

        return pytree.tree_map(node_of, value)


@dataclass(frozen=True)
class ExportedProgramPassResult:
    """The result of a pass over a whole program, and whether the pass changed anything."""

    exported_program: ExportedProgram
    modified: bool


class ExportedProgramPassBase(ABC):
    """A pass over a whole program: graph, signature and stored tensors."""

    def __call__(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Runs the pass between its checks `requires` and `ensures`."""
        self.requires(exported_program)
        result = self.call(exported_program)
        self.ensures(exported_program)
        return result

    @abstractmethod
    def call(self, exported_program: ExportedProgram) -> ExportedProgramPassResult:
        """Implements the pass. Edits or replaces the program."""

    def requires(self, exported_program: ExportedProgram) -> None:  # noqa: B027
        """Checks the input of the pass. Override to add checks."""

    def ensures(self, exported_program: ExportedProgram) -> None:  # noqa: B027
        """Checks the result of the pass. Override to add checks."""


def _data(value: object) -> Any:
    return value.data if isinstance(value, ProxyValue) else value


def _flat_data(value: object) -> list[Any]:
    leaves = pytree.tree_leaves(value, is_leaf=lambda v: isinstance(v, (Node, ProxyValue)))
    return [v.meta.get("val") if isinstance(v, Node) else _data(v) for v in leaves]


def _same(a: object, b: object) -> bool:
    if a is b:
        return True
    plain = (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)
    return type(a) is type(b) and isinstance(a, plain) and a == b


def _differs(before: torch.fx.Graph, after: torch.fx.Graph) -> bool:
    if len(before.nodes) != len(after.nodes):
        return True
    return any(
        a.op != b.op or a.target != b.target or str(a.args) != str(b.args) or str(a.kwargs) != str(b.kwargs)
        for a, b in zip(before.nodes, after.nodes, strict=True)
    )


def _get(module: object, name: str) -> Any:
    for part in name.split("."):
        module = getattr(module, part)
    return module


def _fake_mode(module: GraphModule) -> Any:
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch._subclasses.FakeTensor):
            return value.fake_mode
    return None


ExportPassBaseError = PassError

__all__ = [
    "ExportPass", "ExportPassBaseError", "ExportedProgramPassBase", "ExportedProgramPassResult", "NodeMetadata", "PassBase",
    "PassResult", "PassType", "ProxyValue",
]  # fmt: skip
