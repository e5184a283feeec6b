# SPDX-License-Identifier: BSD-3-Clause
# In: a graph of out variants. Out: every tensor in it has a TensorSpec with a lifetime, a memory id and an offset.
# The graph is read here and the arithmetic is done by memory.py, or by the user's own algorithm, whose result is
# checked all the same.
"""Memory planning of an ExportedProgram in the EXEC dialect.

What a node says about its storage:

* ``meta["alias"] = (source, byte_offset)``: the same bytes as a part of `source`, and no instruction. Where the file
  cannot express that (a part of a constant, an output that the caller owns), the planner drops the alias
  and the node's operator runs as a copy.
* ``meta["in_place"] = (source, byte_offset)``: an instruction that writes its result into `source`'s bytes, as do
  operators whose schema says so (``copy_``).

In addition, an operator that is pointwise or updates a part may overwrite an operand of the same shape
that nothing reads afterwards; both then count as one tensor. That lowers the peak itself, not only the distance from it.
"""

from __future__ import annotations

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
from torchette.exir.tensor import ALIGNMENT, TensorShapeDynamism, TensorSpec
from torchette.units import byte_count

# ---- specs ----


def assign_specs(program: ExportedProgram) -> ExportedProgram:
    """Give every node that yields a tensor a fresh `meta["spec"]`, made from its `meta["val"]`."""
    for node in _nodes(program.graph_module):
        node.meta.pop("spec", None)
    assign_missing_specs(program.graph_module, program.graph_signature)
    return program


def _nodes(graph_module: GraphModule) -> Iterator[Node]:
    """The nodes of a graph and of its branches."""
    for module in control_flow.graphs(graph_module):
        yield from module.graph.nodes


def assign_missing_specs(graph_module: GraphModule, signature: ExportGraphSignature | None) -> None:
    """Give specs to the nodes that have none; those that are there stay, with the memory id a user may have set."""
    constants = GraphInterface.of(graph_module, signature).constants
    _assign(graph_module, constants, {})


def _assign(graph_module: GraphModule, constants: Container[Node], wanted: dict[Any, TensorSpec]) -> None:
    """Specs for one graph and its branches; `wanted` are those of results with a given place: a node, or a node
    and the number of one of its results."""
    for node in graph_module.graph.nodes:
        if "spec" in node.meta or node.op not in ("placeholder", "call_function"):
            pass
        elif node in wanted:
            node.meta["spec"] = wanted[node]
        elif control_flow.name(node.target) == "while_loop":
            # A carried value is in the place of its first value.
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
                result: TensorSpec = base  # written in place: the very same tensor
                return result
            spec.base, spec.base_offset = base, source[1]
            return spec
    spec = TensorSpec.from_tensor(value, const=const)
    if node.meta.get("grows") and spec.is_static_shape_tensor:
        spec.shape_dynamism = TensorShapeDynamism.DYNAMIC_BOUND
    return spec


def update_all_tensors_lifetime(
    graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None
) -> list[TensorSpec]:
    """Set [first, last] on every spec that owns bytes; returns those specs in order of first appearance.

    The scale is the order of the program's steps, including those of branches: see `control_flow.timeline`.
    Inputs live from 0, outputs to the end, mutable buffers and inputs that are written to throughout. What shares bytes
    lives in the lifetime of the spec that owns them. What chains that may run at the same time have in common lives as long
    as their stage. The two sides of a cond never run both, and so follow each other
    here too. What a loop reads but does not make is needed until its last turn ends.
    """
    interface = GraphInterface.of(graph_module, graph_signature)
    moments, loops = control_flow.timeline(graph_module)
    first: dict[TensorSpec, int] = {}
    last: dict[TensorSpec, int] = {}
    for time, moment in enumerate(moments):
        for source in moment.reads:
            for spec in specs_of(source):
                if spec is not None:
                    root = spec.root
                    ends = (loops[loop][1] for loop in moment.loops if first.get(root, time) < loops[loop][0])
                    last[root] = max(last.get(root, time), next(ends, time))
        for spec in specs_of(moment.node) if moment.writes else ():
            if spec is not None:
                first.setdefault(spec.root, 0 if moment.node in interface.inputs else time)
                last[spec.root] = max(last.get(spec.root, time), time)
    end = len(moments) - 1
    for node in (*interface.mutable_buffers, *(target for _, target in interface.updates)):
        for spec in specs_of(node):
            if spec is not None:
                first[spec.root], last[spec.root] = 0, end
    for spec, begin in first.items():
        spec.lifetime = [begin, last[spec]]
    for stage in _concurrent(moments):
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
    """A stage of several chains: its first and last time, and the memory that each chain uses."""

    begin: int
    end: int
    used: dict[int, set[TensorSpec]]

    def own(self, number: int) -> Iterator[TensorSpec]:
        """Memory that only this chain uses, and that is not needed before or after."""
        others = set().union(*(specs for other, specs in self.used.items() if other != number))
        for spec in self.used[number] - others:
            first, last = spec.lifetime
            if first is not None and last is not None and self.begin <= first and last <= self.end:
                yield spec

    def shared(self, order: Iterable[TensorSpec]) -> list[TensorSpec]:
        """The other memory of the chains, in this order: it lives throughout the stage."""
        own = {spec for number in self.used for spec in self.own(number)}
        used = set().union(*self.used.values())
        return [spec for spec in order if spec in used and spec not in own]


def _concurrent(moments: Sequence[control_flow.Moment]) -> list[_Stage]:
    """The stages with several chains, read from what `split_chains` wrote at the nodes."""
    stages: dict[int, _Stage] = {}
    for time, moment in enumerate(moments):
        chain = moment.node.meta.get("chain")
        if chain is None:
            continue
        stage = stages.setdefault(chain.stage, _Stage(time, time, {}))._replace(end=time)
        stages[chain.stage] = stage
        used = stage.used.setdefault(chain.number, set())
        for node in (moment.node, *moment.reads):
            used |= {spec.root for spec in specs_of(node) if spec is not None}
    return [stage for stage in stages.values() if len(stage.used) > 1]


class _Together(NamedTuple):
    """Tensors of one chain, planned among themselves: one tensor to the plan around them."""

    whole: TensorSpec
    members: list[TensorSpec]
    offsets: list[int]


def _plan_chains(
    graph_module: GraphModule, specs: Sequence[TensorSpec], alignment: int
) -> tuple[list[TensorSpec], list[_Together]]:
    """What is left to plan, where the tensors that a chain has for itself are one, which lives throughout its stage.

    Their lifetimes count the chain's own steps; to other chains of the stage they say nothing.
    """
    left, found = list(specs), []
    for stage in _concurrent(control_flow.timeline(graph_module).moments):
        for number in stage.used:
            by_memory: dict[int | None, list[TensorSpec]] = {}
            own = set(stage.own(number))
            for spec in specs:
                if spec in own:
                    by_memory.setdefault(spec.mem_id, []).append(spec)
            for mem_id, members in by_memory.items():
                plan = memory.plan([interval(spec) for spec in members], alignment)
                whole = TensorSpec(torch.uint8, [plan.size])
                whole.mem_id, whole.lifetime = mem_id, [stage.begin, stage.end]
                whole.realign(alignment)
                taken = set(members)
                left = [*(spec for spec in left if spec not in taken), whole]
                found.append(_Together(whole, members, list(plan.offsets)))
    return left, found


# ---- the pass ----


class MemoryPlanningPass:
    """Gives every tensor of a program its place in memory. The arguments are ExecuTorch's.

    Args:
        memory_planning_algo: see `torchette.exir.memory.algorithms`; by default the best of our own.
        allow_lifetime_and_storage_overlap: do not check that live tensors are disjoint.
        alloc_graph_input: inputs are in planned memory, into which the runtime copies them; otherwise the caller
            provides the memory and nothing is copied.
        alloc_graph_output: outputs are in planned memory; otherwise the caller provides it.
        alloc_mutable_buffers: state that lives from call to call is in planned memory.
        share_mutable_buffers: methods of one program see the same state, in memory id 2; needs `run_multimethod`
            after the pass has run on all of them.
        alignment: offsets are multiples of this many bytes.
        overwrite_operands: let pointwise operators write their result over an operand that dies there.
        at_actual_size: tensors of dynamic shape are not planned for their greatest size but take memory while the method
            runs, as much as they need, from the caller's `DynamicAllocator`. Tensors without a greatest size always do.
        arenas: several memories, the fastest first: name -> bytes (``65536``, ``"64K"``), or None for as many as it
            takes. They become memory ids 1, 2, ... A tensor whose spec has no `mem_id` yet goes to the fastest memory
            that has room for it, those with the most traffic for their size first.

    Leaves in ``graph_module.meta``: "non_const_buffer_sizes", the bytes of each memory id (0 is reserved),
    "memory_bounds", in the same order, the least bytes that any plan would need, and, where there are arenas, "arenas",
    the names of memory ids 1, 2, ...; and "separate_state", whether the file must say that state in memory ids from 2 is
    not shared.
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
            raise ValueError("share_mutable_buffers means nothing unless alloc_mutable_buffers is True")
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
        """Plan a program, which is returned, or a bare graph module, which comes back as a `PassResult`."""
        if isinstance(program, ExportedProgram):
            assign_specs(program)
            self.run(program.graph_module, program.graph_signature)
            return program
        return self.run(program)

    def run(
        self, graph_module: GraphModule, graph_signature: ExportGraphSignature | None = None
    ) -> PassResult:
        """Plan one graph; existing specs of its nodes are used, with the memory ids set in them.

        Raises:
            PlanError: a user's algorithm whose plan would corrupt data, or tensors that do not fit into the arenas
                (code "does-not-fit"): names how many bytes are missing.
        """
        assign_missing_specs(graph_module, graph_signature)
        _forget_overwrites(graph_module)
        interface = GraphInterface.of(graph_module, graph_signature)
        unplanned = self._unplanned(interface)
        self._own(graph_module, interface, unplanned)
        self._take_back_aliases(graph_module, interface, unplanned)
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

        planned, together = _plan_chains(graph_module, specs, self.alignment)
        bufsizes = self.memory_planning_algo(self.alignment, planned, graph_module, graph_signature, 0)
        if isinstance(bufsizes, MemoryAlgoResult):
            apply_result(bufsizes)
            bufsizes = bufsizes.bufsizes
        sizes = [0, *bufsizes[1:]] if len(bufsizes) > 1 else [0, 0]
        for whole, members, offsets in together:
            for spec, offset in zip(members, offsets, strict=True):
                assert whole.mem_offset is not None
                spec.mem_id, spec.mem_offset = whole.mem_id, whole.mem_offset + offset
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
            self._remember_shared(graph_module, graph_signature, interface)
        return PassResult(graph_module, True)

    def run_multimethod(self) -> None:
        """Give the state that methods share one place, after `run` has seen all of them."""
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
        """The specs whose bytes the caller provides."""
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
        """Mark the tensors that allocate memory while the method runs; they share nothing and are not planned."""
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
                    unplanned.add(spec)  # an input without a bound uses the caller's memory

    def _take_back_aliases(
        self, graph_module: GraphModule, interface: GraphInterface, unplanned: set[TensorSpec]
    ) -> None:
        """Make an alias a copy if the file cannot say that it shares bytes."""
        outputs = {node for node in interface.outputs if isinstance(node, Node)}
        for node in _nodes(graph_module):
            spec = node.meta.get("spec")
            if "alias" not in node.meta or not isinstance(spec, TensorSpec):
                continue
            if spec.base is None:  # its specification gave it memory of its own, as in a decomposed ctc_loss
                _copy(node)
                continue
            root = spec.root
            lent = root in unplanned
            if root.const:
                copied = spec.root_offset != 0 or spec.is_dynamic_shape_tensor
            elif node in outputs and (lent or not self.alloc_graph_output):
                copied = True
            elif lent:
                whole = spec.root_offset == 0 and spec.nbytes() == root.nbytes() and spec.dtype == root.dtype
                copied = not whole or view_sizes(node) is None
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
        """Put the result of an operator into the bytes of an operand that it reads last."""
        update_all_tensors_lifetime(graph_module, signature)
        # Inputs and state outlive a call: the caller may execute again without setting them.
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
        for time, moment in enumerate(control_flow.timeline(graph_module).moments):
            node = moment.node
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
        """Set the memory id of the specs that have none."""
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
            hints = [f"give {name} {sizes[mem_id]:,} bytes"]
            ports = [(self.alloc_graph_input, interface.inputs), (self.alloc_graph_output, interface.outputs)]
            lent = {
                spec
                for planned, nodes in ports
                if planned
                for node in nodes
                if isinstance(node, Node)
                for spec in specs_of(node)
            }
            kept = memory.plan([spans[spec] for spec in here if spec not in lent], self.alignment)
            if kept.size < sizes[mem_id]:
                hints.append(
                    f"let the caller lend the memory of inputs and outputs: {kept.size:,} bytes are then needed here"
                )
            hints.append(
                "make smaller what lives at that moment, or give it a memory of its own: mem_id in its spec"
            )
            raise PlanError(
                f"the tensors do not fit: {name} has {capacity:,} bytes, {sizes[mem_id]:,} are needed, "
                f"{sizes[mem_id] - capacity:,} more. When it is fullest, these live there:",
                where=[
                    f"{spec.nbytes():,} bytes: {place(makers[spec])}"
                    for spec in sorted(live[peak], key=lambda spec: -spec.nbytes())[:8]
                ],
                hints=hints,
                code="does-not-fit",
            )

    def _remember_shared(
        self, graph_module: GraphModule, signature: ExportGraphSignature | None, interface: GraphInterface
    ) -> None:
        if len(graph_module.meta["non_const_buffer_sizes"]) != 2:
            raise PlanError(
                "mutable buffers can be shared only if all other tensors are in memory id 1",
                hints=["leave mem_id alone, or give share_mutable_buffers=False"],
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


def _forget_overwrites(graph_module: GraphModule) -> None:
    """Undo the decisions of an earlier plan."""
    for node in _nodes(graph_module):
        spec = node.meta.get("spec")
        if isinstance(spec, TensorSpec) and spec.base is not None and storage_source(node) is None:
            spec.base = None


def _free_after_last_use(graph_module: GraphModule, interface: GraphInterface) -> None:
    """List at each node, in meta["frees"], the tensors with their own memory that are no longer read."""
    moments = control_flow.timeline(graph_module).moments
    depth = {module.graph: level for level, module in enumerate(control_flow.graphs(graph_module))}
    kept = {spec.root for node in interface.outputs for spec in specs_of(node) if spec is not None}
    homes: dict[TensorSpec, Graph] = {}
    ends: dict[Graph, list[tuple[int, Node]]] = {}
    for time, moment in enumerate(moments):
        node = moment.node
        node.meta.pop("frees", None)
        if moment.writes:
            ends.setdefault(node.graph, []).append((time, node))
            for spec in specs_of(node):
                if spec is not None and spec.owned and spec not in kept:
                    # The result of a cond is written in its branches and belongs to the graph around them.
                    home = homes.setdefault(spec, node.graph)
                    homes[spec] = min(home, node.graph, key=depth.__getitem__)
    for spec, graph in homes.items():
        last = spec.lifetime[1]
        assert last is not None
        following = (node for time, node in ends[graph] if time >= last and node.op == "call_function")
        after = next(following, None)
        if after is not None:
            after.meta.setdefault("frees", []).append(spec)


def _copy(node: Node) -> None:
    """Let an alias be computed after all."""
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
