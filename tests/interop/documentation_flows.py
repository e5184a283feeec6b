# SPDX-License-Identifier: BSD-3-Clause
# `results(ROOT)` runs the steps of the Python pages of ExecuTorch's documentation with the import root ROOT and returns
# flow name -> result. The docstring of a flow names the page.
"""Flows of ExecuTorch's documentation, versions 1.0 to 1.5, that run under both import roots."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import json
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.fx import subgraph_rewriter, symbolic_trace
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.infra.pass_base import PassResult
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.matcher_utils import SubgraphMatcher
from torch.fx.passes.utils.source_matcher_utils import get_source_partitions

Module = Callable[[str], Any]  # module path below the root -> module
FLOWS: dict[str, Callable[[Module], Any]] = {}


def flow(run: Callable[[Module], Any]) -> Callable[[Module], Any]:
    """Adds a flow to the table."""
    FLOWS[run.__name__] = run
    return run


class Classifier(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.Linear(512, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.conv(x)).flatten(1))


class AddMul(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x + y) * y


class Named(torch.nn.Module):
    """One operator of two arguments, in torch's notation."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.add(x, y)


torch.manual_seed(0)
MODEL, X, Y, Z = Classifier().eval(), torch.randn(1, 3, 8, 8), torch.randn(3, 3), torch.randn(3, 3)
EXPECTED = MODEL(X).detach()


def captured(model: torch.nn.Module = MODEL, args: tuple[Any, ...] = (X,), **options: Any) -> Any:
    return torch.export.export(model, args, **options)


def close(result: Any, expected: torch.Tensor = EXPECTED) -> bool:
    return torch.allclose(torch.as_tensor(result), expected, atol=1e-4)


def called(module: Any) -> list[str]:
    """Returns the names of the operators that a graph calls."""
    schemas = (node.target._schema for node in module.graph.nodes if node.op == "call_function")
    return [f"{schema.name}.{schema.overload_name}" for schema in schemas]


def lowered(root: Module) -> Any:
    partitioner = root("backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner
    return root("exir").to_edge_transform_and_lower(captured(), partitioner=[partitioner()])


KEPT: list[bytes] = []  # ExecuTorch's modules do not keep the bytes of their file alive


def loaded(root: Module, buffer: bytes, **options: Any) -> Any:
    KEPT.append(buffer)
    return root("extension.pybindings.portable_lib")._load_for_executorch_from_buffer(buffer, **options)


def plain(root: Module, **options: Any) -> Any:
    exir = root("exir")
    return exir.to_edge(captured()).to_executorch(exir.ExecutorchBackendConfig(**options))


# ---- getting-started, using-executorch-export, runtime-python-api-reference ----


@flow
def export_lower_and_run(root: Module) -> Any:
    """getting-started: a model for XNNPACK, in a file, run through the runtime."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.pte"
        path.write_bytes(lowered(root).to_executorch().buffer)
        program = root("runtime").Runtime.get().load_program(path)
        method = program.load_method("forward")
        return [close(method.execute(inputs)[0]) for inputs in ([X], (X,), X)]


@flow
def runtime_python_api(root: Module) -> Any:
    """runtime-python-api-reference: metadata and registries."""
    runtime = root("runtime")
    KEPT.append(plain(root).buffer)
    program = runtime.Runtime.get().load_program(KEPT[-1], verification=runtime.Verification.Minimal)
    meta = program.metadata("forward")
    info, loaded_runtime = meta.input_tensor_meta(0), runtime.Runtime.get()
    backends = loaded_runtime.backend_registry
    return [
        sorted(program.method_names), meta.num_inputs(), list(info.sizes()), info.nbytes(), info.is_memory_planned(),
        "aten::add.out" in loaded_runtime.operator_registry.operator_names, backends.is_available("XnnpackBackend"),
        backends.is_available("NoBackend"),
    ]  # fmt: skip


@flow
def dynamic_shapes(root: Module) -> Any:
    """using-executorch-export: dynamic batch size."""
    sizes = {"x": {0: torch.export.Dim("batch", max=8)}}
    program = captured(args=(torch.randn(2, 3, 8, 8),), dynamic_shapes=sizes)
    module = loaded(root, root("exir").to_edge(program).to_executorch().buffer)
    return [list(module.forward((torch.randn(batch, 3, 8, 8),))[0].shape) for batch in (1, 5)]


@flow
def several_methods(root: Module) -> Any:
    """using-executorch-export: several methods and constant methods in one file."""
    x = torch.ones(3)
    programs = {"encode": captured(AddMul(), (x, x * 2)), "decode": captured(torch.nn.ReLU(), (x,))}
    edge = root("exir").to_edge(programs, constant_methods={"bos": 1})
    module = loaded(root, edge.to_executorch().buffer)
    return [
        sorted(edge.methods), module.run_method("encode", (x, x))[0].tolist(), module.run_method("decode", [-x])[0].tolist(),
        module.run_method("bos", ()), sorted(module.method_names()),
    ]  # fmt: skip


@flow
def external_weights(root: Module) -> Any:
    """using-executorch-export and ptd-file-format: external weights."""
    program = plain(root, external_constants=True)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "model.pte").write_bytes(program.buffer)
        program.write_tensor_data_to_file(folder)
        (data,) = Path(folder).glob("*.ptd")
        load = root("extension.pybindings.portable_lib")._load_for_executorch
        return close(load(f"{folder}/model.pte", str(data)).forward((X,))[0])


@flow
def a_recipe(root: Module) -> Any:
    """using-executorch-export and backends-xnnpack: a recipe and its session."""
    export, recipes = root("export"), root("backends.xnnpack.recipes")
    recipe = export.ExportRecipe.get_recipe(recipes.XNNPackRecipeType.FP32)
    session = export.export(model=MODEL, example_inputs=[(X,)], export_recipe=recipe)
    return close(session.run_method("forward", (X,))[0])


@flow
def tutorial_configuration(root: Module) -> Any:
    """export-to-executorch-tutorial: passes, memory planning and dynamic shapes in the configuration."""
    passes, planning = root("exir.passes"), root("exir.memory_planning")
    shapes = root("exir.passes.sym_shape_eval_pass").ConstraintBasedSymShapeEvalPass()
    suite = planning.MemoryPlanningAlgorithmSuite(algo_list=[planning.greedy])
    program = plain(
        root,
        passes=[],
        memory_planning_pass=passes.MemoryPlanningPass(memory_planning_algo=suite, alloc_graph_input=False),
        to_out_var_pass=passes.ToOutVarPass(ignore_to_out_var_failure=True),
        sym_shape_eval_pass=shapes,
        extract_delegate_segments=True,
    )
    module = loaded(root, program.buffer)
    return close(module.forward([X])[0])


@flow
def saved_programs(root: Module) -> Any:
    """export-to-executorch-tutorial: save and load before lowering."""
    exir = root("exir")
    with tempfile.TemporaryDirectory() as folder:
        exir.save(captured(), f"{folder}/model.pt2")
        return close(exir.load(f"{folder}/model.pt2").module()(X))


# ---- compiler-memory-planning ----


@flow
def custom_planning_pass(root: Module) -> Any:
    """compiler-memory-planning: a subclass that selects the memory of each tensor."""
    planning, base = root("exir.memory_planning"), root("exir.passes").MemoryPlanningPass

    class Placed(base):  # type: ignore[misc, valid-type]
        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            for node in graph_module.graph.nodes:
                for spec in planning.get_node_tensor_specs(node):
                    spec.mem_id = 1
            return super().run(graph_module, graph_signature)

    plan = plain(
        root,
        memory_planning_pass=Placed(
            memory_planning_algo=planning.MemoryPlanningAlgorithmSuite([planning.greedy])
        ),
    )
    return len(plan.executorch_program.execution_plan[0].non_const_buffer_sizes)


@flow
def memory_trace(root: Module) -> Any:
    """memory-planning-inspection."""
    with tempfile.TemporaryDirectory() as folder:
        root("util.activation_memory_profiler").generate_memory_trace(
            executorch_program_manager=plain(root),
            chrome_trace_filename=f"{folder}/memory.json",
            enable_memory_offsets=True,
        )
        return len(json.loads(Path(f"{folder}/memory.json").read_text())["traceEvents"]) > 0


# ---- compiler-custom-compiler-passes ----


@flow
def operator_replacement(root: Module) -> Any:
    """compiler-custom-compiler-passes, level 1: also one-to-many and many-to-none rewrites."""
    base, ops = root("exir.pass_base").ExportPass, root("exir.dialects._ops").ops

    class MulSub(base):  # type: ignore[misc, valid-type]
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            if op != torch.ops.aten.add.Tensor:
                return super().call_operator(op, args, kwargs, meta)
            product = super().call_operator(torch.ops.aten.mul.Tensor, args, {}, meta)
            return super().call_operator(torch.ops.aten.sub.Tensor, (product, args[1]), {}, meta)

    class NoDetach(base):  # type: ignore[misc, valid-type]
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            if op not in (torch.ops.aten.detach.default, torch.ops.aten.detach_copy.default):
                return super().call_operator(op, args, kwargs, meta)
            return args[0]

    class Sigmoid(base):  # type: ignore[misc, valid-type]
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            if op == ops.edge.aten.relu.default:
                op = ops.edge.aten.sigmoid.default
            return super().call_operator(op, args, kwargs, meta)

    class Detached(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.detach() + 1

    one = MulSub()(captured(Named(), (Y, Z)).graph_module).graph_module
    none = NoDetach()(captured(Detached(), (Y,)).graph_module).graph_module
    edge = root("exir").to_edge(captured()).transform([Sigmoid()]).exported_program()
    names = [node.name for node in edge.graph.nodes if "sigmoid" in node.name or "relu" in node.name]
    return [called(one), close(one(Y, Z)[0], Y * Z - Z), called(none), names]


@flow
def scalars_to_tensors(root: Module) -> Any:
    """compiler-custom-compiler-passes, level 1: arguments according to the operator's schema."""

    class ScalarToTensor(root("exir.pass_base").ExportPass):  # type: ignore[misc]
        def call_operator(self, op: Any, args: Any, kwargs: Any, meta: Any) -> Any:
            is_tensor = [type(argument.type) == torch.TensorType for argument in op._schema.arguments]  # noqa: E721
            args = tuple(
                torch.tensor(value) if tensor and isinstance(value, (int, float)) else value
                for value, tensor in zip(args, is_tensor)
            )
            return super().call_operator(op, args, kwargs, meta)

    class Scaled(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 + 1.5

    module = ScalarToTensor()(captured(Scaled(), (Y,)).graph_module).graph_module
    kinds = [node.op for node in module.graph.nodes]
    return [kinds.count("get_attr"), called(module), close(module(Y)[0], Y * 2 + 1.5)]


@flow
def torch_rewriter_and_matchers(root: Module) -> Any:
    """compiler-custom-compiler-passes, level 2 and partitioners: torch's tools on Edge graphs."""
    exir, ops = root("exir"), root("exir.dialects._ops").ops
    module = captured(AddMul(), (Y, Z)).module()
    replaced = subgraph_rewriter.replace_pattern_with_filters(
        module,
        lambda x, y: torch.ops.aten.mul.Tensor(torch.ops.aten.add.Tensor(x, y), y),
        lambda x, y: torch.ops.aten.sub.Tensor(x, y),
    )

    class Linear(torch.nn.Module):
        def __init__(self, size: int) -> None:
            super().__init__()
            self.weight, self.bias = (torch.nn.Parameter(torch.ones(size, size)) for _ in range(2))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.ops.aten.addmm.default(self.bias, x, self.weight)

    def graph(size: int) -> Any:
        edge = exir.to_edge(captured(Linear(size), (torch.ones(size, size),)))
        return edge.exported_program().graph_module.graph

    class Support(OperatorSupportBase):
        def is_node_supported(self, submodules: Any, node: Any) -> bool:
            return node.op == "call_function" and node.target in [ops.edge.aten.add.Tensor, ops.edge.aten.mul.Tensor]  # fmt: skip

    edge = exir.to_edge(captured(AddMul(), (Y, Z))).exported_program().graph_module
    partitions = CapabilityBasedPartitioner(edge, Support()).propose_partitions()
    combined = root("exir.backend.canonical_partitioners.pattern_op_partitioner")
    again = combined.generate_pattern_op_partitions(edge, op_support=Support())
    layers = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU(), torch.nn.Linear(3, 5))
    flat = exir.to_edge(captured(layers, (Y,))).exported_program().graph_module.graph
    sources = get_source_partitions(flat, [torch.nn.Linear, torch.nn.ReLU])
    return [
        len(replaced), len(SubgraphMatcher(graph(5)).match(graph(3))),
        [sorted(node.name for node in each.nodes) for each in (*partitions, *again)],
        sorted((kind.__name__, len(partitions_of_kind)) for kind, partitions_of_kind in sources.items()),
    ]  # fmt: skip


@flow
def manual_passes(root: Module) -> Any:
    """compiler-custom-compiler-passes, level 3 and pass manager: conditions and custom checks."""
    base, manager = root("exir.pass_base").PassBase, root("exir.pass_manager").PassManager

    class Replace(base):  # type: ignore[misc, valid-type]
        def __init__(self, old: Any, new: Any) -> None:
            super().__init__()
            self.old, self.new = old, new

        def call(self, graph_module: Any) -> PassResult:
            for node in graph_module.graph.nodes:
                node.target = self.new if node.target == self.old else node.target
            graph_module.recompile()
            return PassResult(graph_module, True)

        def requires(self, graph_module: Any) -> None:
            if all(node.target != self.old for node in graph_module.graph.nodes):
                raise ValueError("nothing to replace")

        def ensures(self, graph_module: Any) -> None: ...

    def only_add(graph_module: Any) -> None:
        if any(node.op == "call_function" and node.target != torch.add for node in graph_module.graph.nodes):
            raise ValueError("something else than add")

    def outcome(run: Any) -> str:
        try:
            return type(run()).__name__
        except Exception:
            return "error"

    divide, multiply = Replace(torch.add, torch.div), Replace(torch.div, torch.mul)
    both = manager(passes=[divide, multiply], run_checks_after_each_pass=True, suppress_check_failures=False)
    checked = manager(passes=[divide, multiply], run_checks_after_each_pass=True)
    checked.add_checks(only_add)
    unchecked = manager([divide])
    unchecked.add_checks(only_add)
    return [
        close(both(symbolic_trace(Named())).graph_module(Y, Z), Y * Z), outcome(lambda: multiply(symbolic_trace(Named()))),
        outcome(lambda: checked(symbolic_trace(Named()))), outcome(lambda: unchecked(symbolic_trace(Named()))),
        outcome(lambda: unchecked(divide(symbolic_trace(Named())).graph_module)),
        outcome(lambda: unchecked.add_checks(lambda one, two: None)),
    ]  # fmt: skip


# ---- compiler-delegate-and-partitioner, backend-delegates-integration ----


@flow
def manual_lowering(root: Module) -> Any:
    """compiler-delegate-and-partitioner: a complete program, a partitioner, and the lowered modules of a graph."""
    exir, api = root("exir"), root("exir.backend.backend_api")
    partitioner = root("backends.xnnpack.partition.xnnpack_partitioner").XnnpackPartitioner
    edge = exir.to_edge(captured(), compile_config=exir.EdgeCompileConfig(_check_ir_validity=False))
    managed = edge.to_backend(partitioner()).to_executorch()
    program = api.to_backend(exir.to_edge(captured()).exported_program(), partitioner())
    (lowered,) = root("exir.lowered_backend_module").get_lowered_submodules(program.graph_module)
    alone = loaded(root, lowered[1].buffer())
    with api.validation_disabled():
        again = api.to_backend(exir.to_edge(captured()).exported_program(), partitioner())
    delegates = root("exir.backend.utils").get_delegates(again.graph)
    module = loaded(root, managed.buffer)
    return [
        lowered[1].backend_id, len(lowered[1].processed_bytes) > 100, alone.method_names(), len(delegates),
        close(module.forward([X])[0]), [one.id for one in lowered[1].program().execution_plan[0].delegates],
    ]  # fmt: skip


@flow
def operator_rules(root: Module) -> Any:
    """backend-delegates-integration: a partitioner with one configuration for each operator, for XNNPACK."""
    rules = root("exir.backend.canonical_partitioners.config_partitioner")
    spec = root("exir.backend.partitioner").DelegationSpec("XnnpackBackend", [])

    class Multiply(rules.PartitionerConfig):  # type: ignore[misc]
        target_name = "mul.Tensor"

        def check_constraints(self, node: Any, ep: Any) -> bool:
            return len(node.all_input_nodes) == 2

        def get_original_aten(self) -> Any:
            return torch.ops.aten.mul.Tensor

        def get_partition(self, node: Any, ep: Any) -> Any:
            return [node]

    class Rules(rules.ConfigerationBasedPartitioner):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__(spec, [Multiply()])

    edge = root("exir").to_edge(captured(AddMul(), (Y, Z)))
    operators, filter_op = Rules().ops_to_not_decompose(edge.exported_program())
    module = edge.to_backend(Rules()).exported_program().graph_module
    (node,) = [node for node in edge.exported_program().graph.nodes if "mul" in node.name]
    info = root("devtools.backend_debug").get_delegation_info(module)
    return [
        list(map(str, operators)), filter_op(node), info.num_delegated_subgraphs, info.num_delegated_nodes,
        rules.format_target_name("aten.add.Tensor"), rules.format_target_name("add.Tensor"),
    ]  # fmt: skip


@flow
def delegation_info(root: Module) -> Any:
    """debug-backend-delegate: counts, a table and the graph as text."""
    module = lowered(root).exported_program().graph_module
    info = root("devtools.backend_debug").get_delegation_info(module)
    text = root("exir.backend.utils").format_delegated_graph(module)
    table = info.get_operator_delegation_dataframe()
    return [info.num_delegated_subgraphs, list(table.columns), "XnnpackBackend" in text]


@flow
def duplicated_constants(root: Module) -> Any:
    """compiler-delegate-and-partitioner, common issues: constants and dequantize calls that several partitions read."""

    class Shared(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.ones(3, 3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + self.table) * self.table

    duplicate = root(
        "exir.backend.canonical_partitioners.duplicate_constant_node_pass"
    ).duplicate_constant_node
    program = root("exir").to_edge(captured(Shared(), (Y,))).exported_program()
    new = duplicate(program, "b_table")
    reporter = root("exir.backend.utils").WhyNoPartitionReporter()
    empty = reporter.get_table_report()
    for node in program.graph.nodes:
        if node.op == "call_function":
            reporter.report_reject(node, "the first reason")
            reporter.report_reject(node, "the second reason")
    report = reporter.get_table_report()
    stored = [spec for spec in program.graph_signature.input_specs if spec.target is not None]
    return [
        len(new), len(stored), close(program.module()(Y), Y + 1), empty, report.count("the first reason"),
        "the second reason" in report,
    ]  # fmt: skip


# ---- bundled-io, etrecord, model-inspector, model-debugging ----


@flow
def bundles(root: Module) -> Any:
    """bundled-io: cases of a method, written and read."""
    config, serialize = root("devtools.bundled_program.config"), root("devtools.bundled_program.serialize")
    cases = [
        config.MethodTestCase(inputs=(X * i,), expected_outputs=(MODEL(X * i).detach(),)) for i in (1, 2)
    ]
    suites = [config.MethodTestSuite(method_name="forward", test_cases=cases)]
    bundle = root("devtools").BundledProgram(plain(root), suites)
    data = serialize.serialize_from_bundled_program_to_flatbuffer(bundle)
    (suite,) = serialize.deserialize_from_flatbuffer_to_bundled_program(data).method_test_suites
    return [suite.method_name, len(suite.test_cases)]


@flow
def etrecord_and_inspector(root: Module) -> Any:
    """etrecord, etdump and model-inspector: a record, a run, a table of times, and the times of modules."""
    exir, devtools = root("exir"), root("devtools")
    edge = exir.to_edge(captured(), generate_etrecord=True)
    copied = copy.deepcopy(edge)
    program = edge.to_executorch()
    module = loaded(root, program.buffer, enable_etdump=True, debug_buffer_size=1 << 20)
    module.forward((X,))
    with tempfile.TemporaryDirectory() as folder:
        record, dump, values = (f"{folder}/{name}" for name in ("etrecord.bin", "dump.etdp", "debug.bin"))
        module.write_etdump_result_to_file(dump, values)
        program.get_etrecord().save(record)
        inspector = devtools.Inspector(etdump_path=dump, etrecord=record, debug_buffer_path=values)
        with contextlib.redirect_stdout(io.StringIO()):
            inspector.print_data_tabular()
        events = [event.name for block in inspector.event_blocks for event in block.events]
        devtools.generate_etrecord(f"{folder}/second.bin", copied, program)
        second = devtools.parse_etrecord(f"{folder}/second.bin")
    convolution = sum("convolution" in name for name in events)
    modules = [bool(inspector.find_total_for_module(name) > 0) for name in ("conv", "head", "no module")]
    return [[block.name for block in inspector.event_blocks], convolution, second.edge_dialect_program is not None, modules]  # fmt: skip


@flow
def intermediate_values(root: Module) -> Any:
    """model-debugging of 1.5: taps selected by rules, and a table of both sides."""
    tap, partitioner = root("devtools.intermediate_output_tap"), root("backends.xnnpack").XnnpackPartitioner
    relu = tap.select_not(
        tap.select_any(tap.select_by_op_type("linear.default"), tap.select_by_module_path("conv"))
    )
    program = captured()
    _, specs = tap.tap_intermediate_outputs_(
        program, [(relu, "STATS"), (tap.select_by_module_class("Linear"), tap.FULL_TENSOR)]
    )
    edge = root("exir").to_edge_transform_and_lower(program, partitioner=[partitioner()])
    tap.strip_taps_(edge)
    module = loaded(root, edge.to_executorch().buffer)
    table, table_of_tap = tap.tap_compare(MODEL, (X,), partitioner=[partitioner()])
    rows = table.drop(columns="output_index").values.tolist()
    return [
        [(spec.node_name, spec.op_target, spec.output_index, spec.reducer_name, list(spec.fields), spec.module_path, spec.module_class) for spec in (*specs, *table_of_tap)],
        len(module.forward([X])), list(table.columns), close(torch.tensor([row[5::2] for row in rows]), torch.tensor([row[6::2] for row in rows])),
        [row[:5] + row[5::2] for row in rows],
    ]  # fmt: skip


# ---- older pages ----


@flow
def programs_as_text(root: Module) -> Any:
    """debugging pages of 1.0: print a program."""
    program = plain(root)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        root("exir.print_program").pretty_print(program.executorch_program)
        program.dump_executorch_program(verbose=True)
    return len(out.getvalue()) > 500


@flow
def export_util(root: Module) -> Any:
    """examples of 1.0: the helpers of extension.export_util."""
    utils = root("extension.export_util.utils")
    with tempfile.TemporaryDirectory() as folder:
        utils.save_pte_program(utils.export_to_edge(MODEL, (X,)).to_executorch(), "net", folder)
        return sorted(path.name for path in Path(folder).iterdir())


@flow
def pipeline_passes(root: Module) -> Any:
    """ir-exir and compiler entry points of 1.0: the passes to the last dialect, and emission."""
    exir, memory = root("exir"), root("exir.memory")
    passes = exir.edge_to_executorch_passes(exir.ExecutorchBackendConfig())
    manager = exir.to_edge(captured()).to_executorch()
    output = exir.emit_program(manager.exported_program())
    (plan,) = output.program.execution_plan
    tensor, pair = memory.alloc(((2, 3), torch.float32)), memory.alloc([((2,), torch.int8), ((), torch.bool)])
    return [
        len(passes) > 3, type(output).__name__, plan.name, sorted(output.method_to_delegate_debug_id_map), list(tensor.shape),
        [str(one.dtype) for one in pair], list(memory.view(tensor, [6]).shape), memory.free(None),
        list(exir.CallSpec(1, 2)._fields),
    ]  # fmt: skip


@flow
def verifiers(root: Module) -> Any:
    """ir-exir: the dialects' verifiers."""
    verifier_module = root("exir.verification.verifier")

    def accepts(verifier: Any, module: Any) -> bool:
        try:
            verifier(module)
        except Exception as error:
            assert type(error).__name__ == "SpecViolationError", error
            return False
        return True

    aten = verifier_module.EXIRATenDialectVerifier()
    core = captured().run_decompositions()
    edge = root("exir").to_edge(captured()).exported_program()
    return [accepts(aten, captured().graph_module), accepts(aten, core.graph_module), accepts(verifier_module.EXIREdgeDialectVerifier(), edge.graph_module)]  # fmt: skip


@flow
def edge_operators(root: Module) -> Any:
    """ir-exir: ATen calls become Edge calls, by the pass of that name."""
    passes = root("exir.passes.replace_aten_with_edge_pass")
    add = torch.ops.aten.add.Tensor
    module = passes.OpReplacePass()(captured(AddMul(), (Y, Z)).graph_module).graph_module
    kinds = {type(node.target).__name__ for node in module.graph.nodes if node.op == "call_function"}
    return [
        passes.aten_to_edge(add)._schema.name,
        [passes.should_lower_to_edge(op) for op in (add, torch.add, torch.ops.aten._assert_scalar.default)], sorted(kinds),
        close(module(Y, Z)[0], (Y + Z) * Z),
    ]  # fmt: skip


def results(root: str) -> dict[str, Any]:
    """Runs all flows under one root. Returns their results as JSON has them, without tuples."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return json.loads(json.dumps({title: _outcome(run, root) for title, run in FLOWS.items()}))


def _outcome(run: Callable[[Module], Any], name: str) -> Any:
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return run(lambda path: importlib.import_module(f"{name}.{path}"))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
