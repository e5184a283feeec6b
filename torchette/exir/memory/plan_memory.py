# SPDX-License-Identifier: BSD-3-Clause
# In: a graph of out variants. Out: every tensor in it has a TensorSpec with a lifetime, a memory id and an offset. This
# file reads the graph; torchette/exir/memory or the user's algorithm computes the offsets, and every result is checked.
"""Memory planning of an ExportedProgram in the EXEC dialect.

The metadata of a node describes its storage:

* ``meta["alias"] = (source, byte_offset)``: the result shares a part of the storage of `source`, and no instruction is
  emitted. If the file cannot express the alias (a part of a constant, an output in memory of the caller), the planner
  removes it and the node's operator runs as a copy.
* ``meta["in_place"] = (source, byte_offset)``: an instruction that writes its result into the storage of `source`. The
  same applies to operators with such a schema (``copy_``).

In addition, a pointwise operator, or one that updates a part of a tensor, may overwrite an operand of the same shape
after its last use. Both tensors then have one spec. This lowers the peak itself.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.pass_base import PassResult

from torchette.errors import InputError, PlanError
from torchette.exir import control_flow, memory, ops
from torchette.exir.arguments import node_arg, overload
from torchette.exir.graph import place, same_shape
from torchette.exir.interface import GraphInterface, specs_of, storage_source, view_sizes
from torchette.exir.memory.algorithms import (
    Algorithm,
    MemoryAlgoResult,
    MemoryPlanningAlgorithmSuite,
    apply_result,
    check_plan,
    interval,
)
from torchette.exir.tensor import ALIGNMENT, TensorShapeDynamism, TensorSpec, stride_from_dim_order
from torchette.units import byte_count

# ---- specs ----


def assign_specs(program: ExportedProgram) -> ExportedProgram:
    """Sets a new `meta["spec"]` on every node that yields a tensor, computed from its `meta["val"]`."""
    for node in _nodes(program.graph_module):
        node.meta.pop("spec", None)
    assign_missing_specs(program.graph_module, program.graph_signature)
    return program


def _nodes(graph_module: GraphModule) -> Iterator[Node]:
    """Yields the nodes of a graph and of its branches."""
    for module in control_flow.graphs(graph_module):
        yield from module.graph.nodes


def assign_missing_specs(graph_module: GraphModule, signature: ExportGraphSignature | None) -> None:
    """Sets specs on the nodes without one. Existing specs stay, with the memory id that a user may have set."""
    constants = GraphInterface.of(graph_module, signature).constants
    _assign(graph_module, constants, {})


def _assign(graph_module: GraphModule, constants: Container[Node], wanted: dict[Any, TensorSpec]) -> None:
    """Sets specs in one graph and its branches. `wanted` contains the specs of results with a given storage; its keys
    are a node, or a node and the index of a result."""
    for node in graph_module.graph.nodes:
        if "spec" in node.meta or node.op not in ("placeholder", "call_function"):
            pass
        elif node in wanted:
            node.meta["spec"] = wanted[node]
        elif control_flow.name(node.target) == "while_loop":
            # A carried value uses the storage of its initial value.
            node.meta["spec"] = tuple(_operand_spec(value) for value in control_flow.carried(node))
        else:
            value = node.meta.get("val")
            if isinstance(value, torch.Tensor):
                node.meta["spec"] = _spec(node, value, node in constants)
            elif isinstance(value, (tuple, list)):
                node.meta["spec"] = tuple(
                    wanted.get((node, index), TensorSpec.from_tensor(item))
                    if isinstance(item, torch.Tensor)
                    else None
                    for index, item in enumerate(value)
                )
        if control_flow.form(node) is not None:
            _assign_branches(node)


def _assign_branches(node: Node) -> None:
    operands = [*control_flow.carried(node), *control_flow.shared(node)]
    for branch in control_flow.branches(node):
        for placeholder, operand in zip(control_flow.inputs(branch), operands, strict=True):
            spec = _operand_spec(operand)
            if spec is not None:
                placeholder.meta["spec"] = spec
        places: dict[Any, TensorSpec] = {}
        if control_flow.name(node.target) == "cond":
            for value, spec in zip(control_flow.results(branch), node.meta["spec"], strict=True):
                if spec is not None:
                    places[value] = spec
                    if value.target is operator.getitem:
                        places[value.args] = spec
        _assign(branch, (), places)


def _operand_spec(value: object) -> TensorSpec | None:
    spec = value.meta.get("spec") if isinstance(value, Node) else None
    return spec if isinstance(spec, TensorSpec) else None


def _spec(node: Node, value: torch.Tensor, const: bool) -> TensorSpec:
    if node.op == "call_function":
        if node.target is operator.getitem:
            element = node_arg(node).meta["spec"][node.args[1]]
            assert isinstance(element, TensorSpec)
            return element
        source = storage_source(node)
        if source is not None:
            base = source[0].meta["spec"]
            spec = TensorSpec.from_tensor(value)
            same = source[1] == 0 and spec.shape == base.shape and spec.dtype == base.dtype
            if same and "alias" not in node.meta:
                result: TensorSpec = base  # written in place: the same tensor
                return result
            spec.base, spec.base_offset = base, source[1]
            is_larger = source[1] == 0 and spec.is_upper_bound_tensor and spec.nbytes() > base.nbytes()
            if (spec.is_dynamic_unbound_tensor or is_larger) and not base.is_dynamic_unbound_tensor:
                _bound_by_base(spec, value)
            return spec
    spec = TensorSpec.from_tensor(value, const=const)
    if node.meta.get("grows") and spec.is_static_shape_tensor:
        spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND
    return spec


def _bound_by_base(spec: TensorSpec, value: torch.Tensor) -> None:
    """Sets the maximum shape of an alias to the number of elements of its bounded base, if a size has no bound or the maximum
    sizes multiply to more elements."""
    assert spec.base is not None
    elements = spec.base.nbytes() // spec.dtype.itemsize
    sizes = [size if isinstance(size, int) else 1 for size in value.shape]
    dynamic = next(dim for dim, size in enumerate(value.shape) if not isinstance(size, int))
    sizes[dynamic] = elements // max(1, math.prod(sizes))
    spec.shape, spec.stride = sizes, stride_from_dim_order(sizes, spec.dim_order)
    spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND


def update_all_tensors_lifetime(
    graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None
) -> list[TensorSpec]:
    """Sets [first, last] of every spec that owns storage. Returns these specs in order of first appearance.

    The time scale is the order of the program's steps, including those of branches; see `control_flow.timeline`.

    * Inputs are live from 0, outputs to the end. Mutable buffers and inputs that are written to are always live.
    * An alias is live as long as the spec that owns its storage.
    * A tensor that several concurrent chains use is live during their whole stage.
    * The branches of a cond never both run. The second one follows the first one in time.
    * A tensor that is created outside a loop and read in it is live until the last iteration ends.
    """
    interface = GraphInterface.of(graph_module, graph_signature)
    steps, loops = control_flow.timeline(graph_module)
    first: dict[TensorSpec, int] = {}
    last: dict[TensorSpec, int] = {}
    for time, step in enumerate(steps):
        for source in step.reads:
            for spec in specs_of(source):
                if spec is not None:
                    root = spec.root
                    ends = (loops[loop][1] for loop in step.loops if first.get(root, time) < loops[loop][0])
                    last[root] = max(last.get(root, time), next(ends, time))
        for spec in specs_of(step.node) if step.writes else ():
            if spec is not None:
                first.setdefault(spec.root, 0 if step.node in interface.inputs else time)
                last[spec.root] = max(last.get(spec.root, time), time)
    end = len(steps) - 1
    for node in (*interface.mutable_buffers, *(target for _, target in interface.updates)):
        for spec in specs_of(node):
            if spec is not None:
                first[spec.root], last[spec.root] = 0, end
    for spec, begin in first.items():
        spec.lifetime = [begin, last[spec]]
    for stage in _concurrent(steps):
        for spec in stage.shared(first):
            a, b = spec.lifetime[0], spec.lifetime[1]
            assert a is not None and b is not None
            spec.lifetime = [
                stage.begin if stage.begin <= a <= stage.end else a,
                stage.end if stage.begin <= b <= stage.end else b,
            ]
    for node in _nodes(graph_module):
        for spec in specs_of(node):
            if spec is not None and spec.base is not None:
                spec.lifetime = list(spec.root.lifetime)
    return list(first)


# ---- chains that may run at the same time ----


class _Stage(NamedTuple):
    """A stage with several chains: its first and last time, and the tensors that each chain uses."""

    begin: int
    end: int
    used: dict[int, set[TensorSpec]]

    def own(self, number: int) -> Iterator[TensorSpec]:
        """Yields the tensors that only this chain uses and that are not live outside the stage."""
        others = set().union(*(specs for other, specs in self.used.items() if other != number))
        for spec in self.used[number] - others:
            first, last = spec.lifetime
            if first is not None and last is not None and self.begin <= first and last <= self.end:
                yield spec

    def shared(self, order: Iterable[TensorSpec]) -> list[TensorSpec]:
        """Returns the other tensors of the chains, in the given order. They are live during the whole stage."""
        own = {spec for number in self.used for spec in self.own(number)}
        used = set().union(*self.used.values())
        return [spec for spec in order if spec in used and spec not in own]


def _concurrent(steps: Sequence[control_flow.Step]) -> list[_Stage]:
    """Returns the stages with several chains, from the metadata that `split_chains` set."""
    stages: dict[int, _Stage] = {}
    for time, step in enumerate(steps):
        chain = step.node.meta.get("chain")
        if chain is None:
            continue
        stage = stages.setdefault(chain.stage, _Stage(time, time, {}))._replace(end=time)
        stages[chain.stage] = stage
        used = stage.used.setdefault(chain.number, set())
        for node in (step.node, *step.reads):
            used |= {spec.root for spec in specs_of(node) if spec is not None}
    return [stage for stage in stages.values() if len(stage.used) > 1]


class _ChainTensors(NamedTuple):
    """Tensors of one chain that are planned together. The surrounding plan contains them as one tensor."""

    combined: TensorSpec
    members: list[TensorSpec]
    offsets: list[int]


def _plan_chains(
    graph_module: GraphModule, specs: Sequence[TensorSpec], alignment: int
) -> tuple[list[TensorSpec], list[_ChainTensors]]:
    """Replaces the private tensors of each chain by one tensor that is live during the whole stage. Returns the specs
    to plan and the replaced tensors.

    The lifetimes of the private tensors count the steps of their chain and are not comparable between chains.
    """
    left, found = list(specs), []
    for stage in _concurrent(control_flow.timeline(graph_module).steps):
        for number in stage.used:
            by_memory: dict[int | None, list[TensorSpec]] = {}
            own = set(stage.own(number))
            for spec in specs:
                if spec in own:
                    by_memory.setdefault(spec.mem_id, []).append(spec)
            for mem_id, members in by_memory.items():
                plan = memory.plan([interval(spec) for spec in members], alignment)
                combined = TensorSpec(torch.uint8, [plan.size])
                combined.mem_id, combined.lifetime = mem_id, [stage.begin, stage.end]
                combined.realign(alignment)
                taken = set(members)
                left = [*(spec for spec in left if spec not in taken), combined]
                found.append(_ChainTensors(combined, members, list(plan.offsets)))
    return left, found


# ---- the pass ----


class MemoryPlanningPass:
    """Assigns a memory location to every tensor of a program. The arguments are ExecuTorch's.

    Args:
        memory_planning_algo: see `torchette.exir.memory.algorithms`; the default is the best of the built-in
            algorithms.
        allow_lifetime_and_storage_overlap: skip the check that live tensors are disjoint.
        alloc_graph_input: place inputs in planned memory, to which the runtime copies them. Otherwise the caller
            provides the memory, and no copy is made.
        alloc_graph_output: place outputs in planned memory. Otherwise the caller provides the memory.
        alloc_mutable_buffers: place state that persists between calls in planned memory.
        share_mutable_buffers: share the state between the methods of a program, in memory id 2. Requires a call of
            `run_multimethod` after the pass ran on all methods.
        alignment: offsets are multiples of this number of bytes.
        overwrite_operands: let pointwise operators overwrite an operand after its last use.
        at_actual_size: do not plan tensors of dynamic shape for their maximum size. The runtime allocates their actual
            size from the caller's `DynamicAllocator`. This always applies to tensors without a maximum size.
        arenas: several memories, fastest first: name -> size in bytes (``65536``, ``"64K"``), or None for no limit.
            They become memory ids 1, 2, ... A tensor with no `mem_id` in its spec is placed in the fastest memory with
            enough room; tensors with the most traffic for their size are placed first.

    The pass sets these keys in ``graph_module.meta``:

    * "non_const_buffer_sizes": the size of each memory id in bytes (0 is reserved);
    * "memory_bounds": in the same order, the lower bound of any plan in bytes;
    * "arenas": the names of memory ids 1, 2, ..., if there are arenas;
    * "separate_state": whether the file must state that methods do not share the state in memory ids from 2.

    Example:
        >>> config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(alloc_graph_input=False))
    """

    def __init__(
        self,
        memory_planning_algo: Algorithm | None = None,
        allow_lifetime_and_storage_overlap: bool = False,
        alloc_graph_input: bool = True,
        alloc_graph_output: bool = True,
        alloc_mutable_buffers: bool = True,
        share_mutable_buffers: bool = False,
        alignment: int = ALIGNMENT,
        *,
        overwrite_operands: bool = True,
        at_actual_size: bool = False,
        arenas: Mapping[str, int | str | None] | None = None,
    ) -> None:
        if share_mutable_buffers and not alloc_mutable_buffers:
            raise ValueError("share_mutable_buffers=True requires alloc_mutable_buffers=True")
        self.memory_planning_algo = memory_planning_algo or MemoryPlanningAlgorithmSuite()
        self.allow_lifetime_and_storage_overlap = allow_lifetime_and_storage_overlap
        self.alloc_graph_input = alloc_graph_input
        self.alloc_graph_output = alloc_graph_output
        self.alloc_mutable_buffers = alloc_mutable_buffers
        self.share_mutable_buffers = share_mutable_buffers
        self.alignment = alignment
        self.overwrite_operands = overwrite_operands
        self.at_actual_size = at_actual_size
        self.arenas = {name: _capacity(name, size) for name, size in (arenas or {}).items()}
        self._shared: list[tuple[GraphModule, dict[str, TensorSpec], dict[str, TensorSpec]]] = []

    def __call__(self, program: ExportedProgram | GraphModule) -> Any:
        """Plans a program and returns it, or plans a graph module and returns a `PassResult`."""
        if isinstance(program, ExportedProgram):
            assign_specs(program)
            self.run(program.graph_module, program.graph_signature)
            return program
        return self.run(program)

    def run(
        self, graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None
    ) -> PassResult:
        """Plans one graph. Existing specs of its nodes, and the memory ids set in them, are kept.

        Raises:
            PlanError: the plan of a user's algorithm would corrupt data, or tensors do not fit in the arenas (code
                "does-not-fit"). The message contains the number of missing bytes.
        """
        assign_missing_specs(graph_module, graph_signature)
        _reset_overwrites(graph_module)
        interface = GraphInterface.of(graph_module, graph_signature)
        unplanned = self._unplanned(interface)
        self._own(graph_module, interface, unplanned)
        self._remove_aliases(graph_module, interface, unplanned)
        if self.overwrite_operands:
            self._overwrite_operands(graph_module, graph_signature, interface, unplanned)
        owners = update_all_tensors_lifetime(graph_module, graph_signature)
        specs = [spec for spec in owners if not spec.const and spec not in unplanned]
        names = _names(graph_module)
        for spec in specs:
            spec.mem_offset = spec.mem_obj_id = None
            spec.realign(self.alignment)
        if self.arenas:
            self._choose_arenas(graph_module, specs)

        planned, chain_tensors = _plan_chains(graph_module, specs, self.alignment)
        bufsizes = self.memory_planning_algo(self.alignment, planned, graph_module, graph_signature, 0)
        if isinstance(bufsizes, MemoryAlgoResult):
            apply_result(bufsizes)
            bufsizes = bufsizes.bufsizes
        sizes = [0, *bufsizes[1:]] if len(bufsizes) > 1 else [0, 0]
        for combined, members, offsets in chain_tensors:
            for spec, offset in zip(members, offsets, strict=True):
                assert combined.mem_offset is not None
                spec.mem_id, spec.mem_offset = combined.mem_id, combined.mem_offset + offset
        check_plan(specs, sizes, self.alignment, names, self.allow_lifetime_and_storage_overlap)
        if self.arenas:
            sizes += [0] * (1 + len(self.arenas) - len(sizes))
            graph_module.meta["arenas"] = list(self.arenas)
            self._refuse_too_large(graph_module, interface, specs, sizes)

        _place_aliases(graph_module)
        _free_after_last_use(graph_module, interface)
        graph_module.meta["non_const_buffer_sizes"] = sizes
        graph_module.meta["memory_bounds"] = [
            memory.lower_bound([interval(spec) for spec in planned if spec.mem_id == mem_id], self.alignment)
            for mem_id in range(len(sizes))
        ]
        graph_module.meta["separate_state"] = not self.share_mutable_buffers and len(sizes) > 2
        if self.share_mutable_buffers:
            self._record_shared(graph_module, graph_signature, interface)
        return PassResult(graph_module, True)

    def run_multimethod(self) -> None:
        """Assigns the state that methods share to the same location, after `run` has processed all methods."""
        if not self.share_mutable_buffers:
            return
        mutable = {name for _, written, _ in self._shared for name in written}
        offsets: dict[str, int] = {}
        size = 0
        for _, written, read in self._shared:
            for name, spec in {**read, **written}.items():
                if name not in mutable:
                    continue
                if name not in offsets:
                    offsets[name], size = size, size + memory.align(spec.nbytes(), self.alignment)
                spec.const = False
                spec.mem_id, spec.mem_offset = 2, offsets[name]
        for graph_module, _, _ in self._shared:
            _place_aliases(graph_module)
            graph_module.meta["non_const_buffer_sizes"].append(size)
            graph_module.meta["memory_bounds"].append(size)
        self._shared.clear()

    def _unplanned(self, interface: GraphInterface) -> set[TensorSpec]:
        """Returns the specs with storage that the caller provides."""
        nodes: list[Any] = []
        if not self.alloc_graph_input:
            nodes += interface.inputs
        if not self.alloc_mutable_buffers or self.share_mutable_buffers:
            nodes += interface.mutable_buffers
        if not self.alloc_graph_output:
            stored = {*interface.mutable_buffers, *interface.inputs}
            nodes += [node for node in interface.outputs if node not in stored]
        return {spec for node in nodes for spec in specs_of(node) if spec is not None and spec.base is None}

    def _own(self, graph_module: GraphModule, interface: GraphInterface, unplanned: set[TensorSpec]) -> None:
        """Marks the tensors that are allocated while the method runs. They share no storage and are not planned."""
        stored = {spec for node in (*interface.inputs, *interface.mutable_buffers) for spec in specs_of(node)}
        for node in _nodes(graph_module):
            vals = node.meta.get("val")
            for spec, val in zip(
                specs_of(node), vals if isinstance(vals, (list, tuple)) else [vals], strict=False
            ):
                if spec is None or spec.base is not None or spec.const or not _is_dynamic(val):
                    continue
                if spec not in stored:
                    spec.owned = self.at_actual_size or spec.is_dynamic_unbound_tensor
                if spec.owned or spec.is_dynamic_unbound_tensor:
                    unplanned.add(spec)  # an input without a bound uses memory of the caller

    def _remove_aliases(
        self, graph_module: GraphModule, interface: GraphInterface, unplanned: set[TensorSpec]
    ) -> None:
        """Converts an alias to a copy if the file cannot express the alias."""
        outputs = {node for node in interface.outputs if isinstance(node, Node)}
        for node in _nodes(graph_module):
            spec = node.meta.get("spec")
            if "alias" not in node.meta or not isinstance(spec, TensorSpec):
                continue
            if spec.base is None:  # its spec has separate storage, as in a decomposed ctc_loss
                _copy(node)
                continue
            root = spec.root
            from_caller = root in unplanned
            if root.const:
                copied = spec.root_offset != 0 or spec.is_dynamic_shape_tensor
            elif node in outputs and (from_caller or not self.alloc_graph_output):
                copied = True
            elif from_caller:
                combined = (
                    spec.root_offset == 0 and spec.nbytes() == root.nbytes() and spec.dtype == root.dtype
                )
                # The runtime refuses a view that it creates as an argument of a delegate, which might write to it.
                copied = (
                    not combined
                    or view_sizes(node) is None
                    or any(ops.is_delegate(user.target) for user in node.users)
                )
            else:
                copied = spec.is_dynamic_shape_tensor and (spec.root_offset != 0 or view_sizes(node) is None)
            if copied:
                spec.base, spec.base_offset = None, 0
                _copy(node)
                if spec.is_dynamic_unbound_tensor or (self.at_actual_size and spec.is_upper_bound_tensor):
                    spec.owned = True
                    unplanned.add(spec)
                if node in outputs and not self.alloc_graph_output:
                    unplanned.add(spec)

    def _overwrite_operands(
        self,
        graph_module: GraphModule,
        signature: ExportGraphSignature | None,
        interface: GraphInterface,
        unplanned: set[TensorSpec],
    ) -> None:
        """Places the result of an operator in the storage of an operand that it reads last."""
        update_all_tensors_lifetime(graph_module, signature)
        # Inputs and state must survive a call, because the caller may execute again without setting them.
        kept = {
            spec.root
            for node in (*interface.inputs, *interface.constants, *interface.mutable_buffers)
            for spec in specs_of(node)
            if spec is not None
        } | {spec for spec in unplanned if not spec.owned}
        aliases: dict[TensorSpec, list[TensorSpec]] = {}
        for spec in {spec for node in _nodes(graph_module) for spec in specs_of(node) if spec is not None}:
            if spec.base is not None:
                aliases.setdefault(spec.base, []).append(spec)
        sharing = Counter(
            spec for node in _nodes(graph_module) for spec in specs_of(node) if spec is not None
        )
        for time, step in enumerate(control_flow.timeline(graph_module).steps):
            node = step.node
            result = node.meta.get("spec")
            if not isinstance(result, TensorSpec) or result.base is not None or result in kept:
                continue
            if result.lifetime[0] != time:
                continue  # the other branch of a cond also computes it, and may still read the operand
            if storage_source(node) is not None:
                continue
            operands = [
                spec for source in node.all_input_nodes for spec in specs_of(source) if spec is not None
            ]
            for source in ops.overwritable(node):
                operand = source.meta.get("spec")
                if not isinstance(operand, TensorSpec):
                    continue
                root = operand.root
                if (
                    root not in kept
                    and root.lifetime[1] == time
                    and root.nbytes() == result.nbytes()
                    and root.mem_id == result.mem_id
                    and (operand.dtype, operand.dim_order) == (result.dtype, result.dim_order)
                    and same_shape(source.meta["val"].shape, node.meta["val"].shape)
                    and sum(spec.root is root for spec in operands) == 1
                ):
                    if not result.owned and not operand.owned:
                        result.base = operand
                    elif result.owned and operand.owned and operand.base is None and sharing[result] == 1:
                        node.meta["spec"] = operand  # one value of the file, which keeps its memory
                        for alias in aliases.pop(result, ()):
                            alias.base = operand
                            aliases.setdefault(operand, []).append(alias)
                    else:
                        continue
                    root.lifetime[1] = result.lifetime[1]
                    break

    def _choose_arenas(self, graph_module: GraphModule, specs: list[TensorSpec]) -> None:
        """Sets the memory id of the specs without one."""
        traffic = dict.fromkeys(specs, 0)
        for node in _nodes(graph_module):
            if node.op != "call_function" or "alias" in node.meta or node.target is operator.getitem:
                continue
            for each in (node, *node.all_input_nodes):
                for spec in specs_of(each):
                    if spec is not None and spec.root in traffic:
                        traffic[spec.root] += spec.nbytes()
        chosen = memory.place(
            [interval(spec) for spec in specs],
            [traffic[spec] for spec in specs],
            list(self.arenas.values()),
            self.alignment,
            [None if spec.mem_id is None else spec.mem_id - 1 for spec in specs],
        )
        for spec, number in zip(specs, chosen, strict=True):
            spec.mem_id = number + 1

    def _refuse_too_large(
        self,
        graph_module: GraphModule,
        interface: GraphInterface,
        specs: list[TensorSpec],
        sizes: Sequence[int],
    ) -> None:
        for mem_id, (name, capacity) in enumerate(self.arenas.items(), 1):
            if capacity is None or sizes[mem_id] <= capacity:
                continue
            here = [spec for spec in specs if spec.mem_id == mem_id]
            spans = {spec: interval(spec) for spec in here}
            live = {
                time: [spec for spec in here if spans[spec].first <= time <= spans[spec].last]
                for time in {span.first for span in spans.values()}
            }
            peak = max(sorted(live), key=lambda time: sum(spec.nbytes() for spec in live[time]))
            makers = {spec: node for node in reversed([*_nodes(graph_module)]) for spec in specs_of(node)}
            hints = [f"increase {name} to {sizes[mem_id]:,} bytes"]
            ports = [(self.alloc_graph_input, interface.inputs), (self.alloc_graph_output, interface.outputs)]
            from_caller = {
                spec
                for planned, nodes in ports
                if planned
                for node in nodes
                if isinstance(node, Node)
                for spec in specs_of(node)
            }
            kept = memory.plan([spans[spec] for spec in here if spec not in from_caller], self.alignment)
            if kept.size < sizes[mem_id]:
                hints.append(
                    f"let the caller provide the memory of inputs and outputs, which leaves {kept.size:,} bytes here"
                )
            hints.append(
                "reduce the size of these tensors, or assign them to another memory: mem_id in their specs"
            )
            raise PlanError(
                f"the tensors do not fit: {name} has {capacity:,} bytes, {sizes[mem_id]:,} are needed, "
                f"{sizes[mem_id] - capacity:,} more. The largest tensors at its peak:",
                where=[
                    f"{spec.nbytes():,} bytes: {place(makers[spec])}"
                    for spec in sorted(live[peak], key=lambda spec: -spec.nbytes())[:8]
                ],
                hints=hints,
                code="does-not-fit",
            )

    def _record_shared(
        self, graph_module: GraphModule, signature: ExportGraphSignature | None, interface: GraphInterface
    ) -> None:
        if len(graph_module.meta["non_const_buffer_sizes"]) != 2:
            raise PlanError(
                "mutable buffers can be shared only if all other tensors are in memory id 1",
                hints=["do not set mem_id, or set share_mutable_buffers=False"],
            )
        buffers = {
            spec.target
            for spec in (signature.input_specs if signature else ())
            if spec.kind is InputKind.BUFFER
        }
        written = {name: node.meta["spec"] for node, name in interface.mutable_buffers.items()}
        read = {name: node.meta["spec"] for node, name in interface.constants.items() if name in buffers}
        self._shared.append((graph_module, written, read))


def _capacity(name: str, size: int | str | None) -> int | None:
    try:
        return byte_count(size) if isinstance(size, str) else size
    except ValueError as error:
        raise InputError(f"arena {name}: {error}") from None


def _is_dynamic(val: object) -> bool:
    return isinstance(val, torch.Tensor) and not all(isinstance(size, int) for size in val.shape)


def _names(graph_module: GraphModule) -> dict[TensorSpec, str]:
    names: dict[TensorSpec, str] = {}
    for node in _nodes(graph_module):
        specs = specs_of(node)
        for number, spec in enumerate(specs):
            if spec is not None:
                names.setdefault(spec, node.name if len(specs) == 1 else f"{node.name}[{number}]")
    return names


def _reset_overwrites(graph_module: GraphModule) -> None:
    """Reverts the decisions of an earlier plan."""
    for node in _nodes(graph_module):
        spec = node.meta.get("spec")
        if isinstance(spec, TensorSpec) and spec.base is not None and storage_source(node) is None:
            spec.base = None


def _free_after_last_use(graph_module: GraphModule, interface: GraphInterface) -> None:
    """Lists at each node, in meta["frees"], the separately allocated tensors after their last use."""
    steps = control_flow.timeline(graph_module).steps
    depth = {module.graph: level for level, module in enumerate(control_flow.graphs(graph_module))}
    kept = {spec.root for node in interface.outputs for spec in specs_of(node) if spec is not None}
    owner_graphs: dict[TensorSpec, Graph] = {}
    ends: dict[Graph, list[tuple[int, Node]]] = {}
    for time, step in enumerate(steps):
        node = step.node
        node.meta.pop("frees", None)
        if step.writes:
            ends.setdefault(node.graph, []).append((time, node))
            for spec in specs_of(node):
                if spec is not None and spec.owned and spec not in kept:
                    # The branches of a cond write its result, which belongs to the enclosing graph.
                    owner_graph = owner_graphs.setdefault(spec, node.graph)
                    owner_graphs[spec] = min(owner_graph, node.graph, key=depth.__getitem__)
    for spec, graph in owner_graphs.items():
        last = spec.lifetime[1]
        assert last is not None
        following = (node for time, node in ends[graph] if time >= last and node.op == "call_function")
        after = next(following, None)
        if after is not None:
            after.meta.setdefault("frees", []).append(spec)


def _copy(node: Node) -> None:
    """Converts an alias to a call of its out variant."""
    if not ops.is_out_variant(node.target):
        out = ops.out_variant(overload(node))
        assert out is not None
        node.target = out


def _place_aliases(graph_module: GraphModule) -> None:
    for node in _nodes(graph_module):
        for spec in specs_of(node):
            if spec is not None and spec.base is not None:
                place = spec.root.mem_offset
                spec.mem_id = spec.root.mem_id
                spec.mem_offset = None if place is None else place + spec.root_offset
