# SPDX-License-Identifier: BSD-3-Clause
# Small programs are lowered, planned and emitted. The records are checked against the rules of the format. ExecuTorch's
# runtime also executes every file if it is installed, which proves that it reads the files.
from __future__ import annotations

import random

import pytest
import torch
import torch.utils._pytree as pytree
from torch import nn

from torchette.errors import EmitError
from torchette.exir.config import EdgeCompileConfig
from torchette.exir.emit import emit_program
from torchette.exir.memory.plan_memory import MemoryPlanningPass
from torchette.exir.pipeline import build
from torchette.format import pte


class Function(nn.Module):
    """A module with the given function as its forward."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *args, **kwargs):
        return self.function(*args, **kwargs)


def lower(module, args, kwargs=None, dynamic_shapes=None, planning=None, edge=None):
    """Returns a planned program."""
    if not isinstance(module, nn.Module):
        module = Function(module)
        dynamic_shapes = None if dynamic_shapes is None else (dynamic_shapes,)
    exported = torch.export.export(module.eval(), args, kwargs, dynamic_shapes=dynamic_shapes)
    return (planning or MemoryPlanningPass())(build(edge).until("exec").run(exported))


class Emitted:
    """An emitted program as records, as bytes, and as a function that the runtimes execute."""

    def __init__(self, methods, **kwargs):
        self.output = emit_program(methods, **kwargs)
        self.bytes = bytes(pte.write(self.output.program, self.output.constants, self.output.mutable_data))
        self.file = pte.read(self.bytes)
        self._runtimes = None

    def plan(self, name="forward"):
        return next(plan for plan in self.file.program.execution_plan if plan.name == name)

    def calls(self, name="forward"):
        """Returns (operator, values of its arguments) of each instruction."""
        plan = self.plan(name)
        result = []
        for instruction in plan.chains[0].instructions:
            op = plan.operators[instruction.instr_args.op_index]
            result.append((f"{op.name}.{op.overload}".rstrip("."), instruction.instr_args.args))
        return result

    def value(self, index, name="forward"):
        return self.plan(name).values[index].val

    def run(self, *inputs, name="forward"):
        """Returns the flat outputs of one execution, equal for all installed runtimes. State is kept between calls."""
        if self._runtimes is None:
            self._runtimes = [
                runtime for runtime in (_executorch(self.bytes), _torchette(self.bytes)) if runtime
            ]
        if not self._runtimes:
            pytest.skip("neither ExecuTorch's runtime nor Torchette's runtime is installed")
        first, *other_results = [runtime(name, inputs) for runtime in self._runtimes]
        for result in other_results:
            torch.testing.assert_close(result, first, rtol=1e-4, atol=1e-5)
        return first


def _executorch(data):
    try:
        from executorch.extension.pybindings import portable_lib
    except ImportError:
        return None
    return portable_lib._load_for_executorch_from_buffer(data).run_method


def _torchette(data):
    try:
        from torchette.runtime import Runtime

        program = Runtime.get().load_program(data)
    except ImportError:
        return None
    methods = {}

    def run(name, inputs):
        if name not in methods:
            methods[name] = program.load_method(name)
        outputs = methods[name].execute(inputs)
        return [torch.from_dlpack(value) if hasattr(value, "__dlpack__") else value for value in outputs]

    return run


def check(module, args, kwargs=None, dynamic_shapes=None, planning=None, more_inputs=()):
    """Compiles, executes on the installed runtimes, and compares with eager mode. Returns the emitted program."""
    emitted = Emitted(lower(module, args, kwargs, dynamic_shapes, planning))
    for inputs in (args, *more_inputs):
        expected = pytree.tree_leaves(module(*inputs, **(kwargs or {})))
        actual = emitted.run(*inputs, *(kwargs or {}).values())
        assert len(actual) == len(expected)
        for mine, theirs in zip(actual, expected, strict=True):
            if isinstance(theirs, torch.Tensor):
                assert mine.dtype == theirs.dtype
                torch.testing.assert_close(mine, theirs)
            else:
                assert mine == theirs and type(mine) is type(theirs)
    return emitted


def test_arguments_are_in_schema_order_with_defaults_and_repeated_result():
    emitted = check(lambda x, y: torch.add(x, y, alpha=2), (torch.randn(2, 3), torch.randn(2, 3)))
    ((name, (x, y, alpha, out, result)),) = emitted.calls()
    plan = emitted.plan()
    assert name == "aten::add.out" and out == result
    assert plan.inputs == [x, y] and plan.outputs == [out]
    assert emitted.value(alpha) == pte.Int(2)
    tensor = emitted.value(out)
    assert tensor.scalar_type == pte.ScalarType.FLOAT and list(tensor.sizes) == [2, 3]
    assert list(tensor.dim_order) == [0, 1] and tensor.data_buffer_idx == 0
    assert tensor.allocation_info.memory_id == 1
    assert list(plan.non_const_buffer_sizes) == [0, 96]


def test_integer_lists_contain_value_indices_and_are_deduplicated():
    emitted = check(
        lambda x: torch.permute(torch.permute(x, (2, 0, 1)).exp(), (2, 0, 1)), (torch.randn(2, 3, 4),)
    )
    (_, first), _, (_, second) = emitted.calls()
    assert first[1] == second[1]
    items = [emitted.value(index) for index in emitted.value(first[1]).items]
    assert items == [pte.Int(2), pte.Int(0), pte.Int(1)]


def test_several_results_precede_their_list():
    emitted = check(lambda x: x.max(1), (torch.randn(3, 4),))
    ((name, args),) = emitted.calls()
    assert name == "aten::max.dim_max" and len(args) == 6
    assert list(emitted.value(args[5]).items) == args[3:5] == list(emitted.plan().outputs)


def test_lists_of_tensors_and_of_optional_tensors():
    index = torch.tensor([2, 0])
    emitted = check(lambda x, y: torch.cat([x, y, x], 1)[:, index], (torch.randn(2, 3), torch.randn(2, 1)))
    (cat, cat_args), (_, index_args) = emitted.calls()
    assert cat == "aten::cat.out"
    x, y = emitted.plan().inputs
    assert list(emitted.value(cat_args[0]).items) == [x, y, x]
    assert next(iter(emitted.value(index_args[1]).items)) == -1


def test_results_of_an_operator_that_yields_a_list():
    check(lambda x: torch.split(x, [1, 3], 1)[1].exp() + torch.split(x, [3, 1], 1)[0], (torch.randn(2, 4),))


def test_constants_that_share_memory_or_bytes_are_stored_once():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.head = nn.Linear(16, 50, bias=False)
            self.head.weight = self.embedding.weight
            self.register_buffer("twin", self.embedding.weight.detach().clone())
            self.register_buffer("other", torch.randn(50, 16))

        def forward(self, ids):
            hidden = self.embedding(ids)
            return self.head(hidden), hidden @ self.twin.t(), hidden @ self.other.t()

    emitted = check(Tied(), (torch.tensor([[1, 2, 3]]),))
    stored = [memoryview(buffer).nbytes for buffer in emitted.output.constants]
    assert stored.count(50 * 16 * 4) == 2 and stored[0] == 0


def test_methods_share_weights_and_constant_methods_return_values():
    linear = nn.Linear(64, 64)
    methods = {
        "double": lower(nn.Sequential(linear, linear), (torch.randn(1, 64),)),
        "forward": lower(linear, (torch.randn(1, 64),)),
    }
    single = Emitted(methods["forward"])
    table = torch.arange(6.0).view(2, 3)
    emitted = Emitted(
        methods,
        constant_methods={"vocab": 32000, "eos": [1, 2], "name": "tiny", "scale": 0.5, "table": table},
    )
    assert [plan.name for plan in emitted.file.program.execution_plan] == [
        "double", "forward", "eos", "name", "scale", "table", "vocab"
    ]  # fmt: skip
    assert len(emitted.bytes) < 1.3 * len(single.bytes)
    x = torch.randn(1, 64)
    torch.testing.assert_close(emitted.run(x, name="double")[0], linear(linear(x)))
    torch.testing.assert_close(emitted.run(x)[0], linear(x))
    assert emitted.run(name="vocab") == [32000] and emitted.run(name="eos") == [1, 2]
    assert emitted.run(name="scale") == [0.5]
    assert emitted.value(0, "name") == pte.String("tiny")
    torch.testing.assert_close(emitted.run(name="table")[0], table)
    with pytest.raises(ValueError, match="both"):
        emit_program(methods, constant_methods={"double": 1})


class Counter(nn.Module):
    def __init__(self, start):
        super().__init__()
        self.register_buffer("count", start)

    def forward(self, x):
        self.count.add_(x)
        return self.count * 2


@pytest.mark.parametrize("start", [torch.full((4,), 3.0), torch.zeros(4), torch.tensor([0.0, 0, 0, 1])])
def test_state_has_its_initial_value_and_persists_between_calls(start):
    eager = Counter(start.clone())
    emitted = Emitted(lower(Counter(start.clone()), (torch.ones(4),)))
    assert bool(emitted.output.mutable_data) == bool(start.any())
    for step in range(5):
        x = torch.full((4,), float(step))
        torch.testing.assert_close(emitted.run(x)[0], eager(x))


def test_state_may_be_emitted_by_name():
    program = lower(
        Counter(torch.ones(4)), (torch.ones(4),), planning=MemoryPlanningPass(alloc_mutable_buffers=False)
    )
    with pytest.raises(EmitError, match="count"):
        emit_program(program)
    emitted = Emitted(program, emit_mutable_buffer_names=True)
    tensors = [value.val for value in emitted.plan().values if isinstance(value.val, pte.Tensor)]
    named = {t.extra_tensor_info.fully_qualified_name: t for t in tensors if t.extra_tensor_info}
    assert set(named) == {"count", "x"} and named["count"].allocation_info is None


def test_inputs_and_outputs_of_every_kind():
    def forward(x, number, flag, text, nothing, *, scale):
        return {"sum": x + number, "rest": (flag, None, 7, 2.5, scale), "same": x}

    args = (torch.randn(3), 2, True, "abc", None)
    emitted = Emitted(lower(forward, args, {"scale": 1.5}))
    plan = emitted.plan()
    assert [type(emitted.value(i)).__name__ for i in plan.inputs] == [
        "Tensor",
        "Int",
        "Bool",
        "String",
        "Null",
        "Double",
    ]
    values = [emitted.value(i) for i in plan.outputs[1:6]]
    assert values == [pte.Bool(True), pte.Null(), pte.Int(7), pte.Double(2.5), pte.Double(1.5)]
    assert plan.outputs[6] == plan.inputs[0]
    tree = pytree.treespec_loads(plan.container_meta_type.encoded_out_str)
    assert pytree.tree_unflatten(range(7), tree) == {"sum": 0, "rest": (1, 2, 3, 4, 5), "same": 6}
    assert pytree.treespec_loads(plan.container_meta_type.encoded_inp_str).num_leaves == 6


def test_the_same_output_twice_and_an_input_as_output():
    emitted = check(lambda x: (y := x.exp(), x, y), (torch.randn(3),))
    first, second, third = emitted.plan().outputs
    assert first == third and second == emitted.plan().inputs[0]


def test_a_constant_as_output():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(5), requires_grad=False)

        def forward(self, x):
            return x + 1, self.table

    check(Constant(), (torch.randn(2),))


@pytest.mark.parametrize("planned", [True, False])
def test_views_need_no_instruction_unless_the_caller_provides_memory(planned):
    planning = MemoryPlanningPass(alloc_graph_input=planned, alloc_graph_output=planned)
    emitted = check(lambda x: x.view(2, 6).exp().view(3, 4).sin(), (torch.randn(12),), planning=planning)
    names = [name for name, _ in emitted.calls()]
    assert names == (["executorch_prim::et_view.default"] if not planned else []) + [
        "aten::exp.out",
        "aten::sin.out",
    ]
    lent = emitted.value(emitted.plan().inputs[0]).allocation_info
    assert (lent is not None) == planned


def test_slice_has_an_offset_in_its_source():
    emitted = check(lambda x: x.exp()[1].sin(), (torch.randn(4, 8),))
    (_, exp), (name, sin) = emitted.calls()
    assert name == "aten::sin.out"
    source, part = emitted.value(exp[-1]).allocation_info, emitted.value(sin[0]).allocation_info
    assert part.memory_offset_low == source.memory_offset_low + 32


def test_views_of_constants_share_their_bytes():
    class Reshaped(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(torch.randn(12))

        def forward(self, x):
            return x + self.table.view(3, 4), self.table * 2

    edge = EdgeCompileConfig(disable_passes=("fold_constants",))
    emitted = Emitted(lower(Reshaped(), (torch.randn(3, 4),), edge=edge))
    assert [memoryview(b).nbytes for b in emitted.output.constants].count(48) == 1


def test_shapes_known_only_at_run_time():
    n = torch.export.Dim("n", min=2, max=12)

    def forward(x):
        rows = x.shape[0]
        return x.reshape(rows * 4).exp().view(rows, 4) + torch.arange(rows).view(rows, 1), rows

    emitted = check(
        forward,
        (torch.randn(3, 4),),
        dynamic_shapes=({0: n},),
        more_inputs=[(torch.randn(k, 4),) for k in (2, 7, 12)],
    )
    tensor = emitted.value(emitted.plan().inputs[0])
    assert list(tensor.sizes) == [12, 4] and tensor.shape_dynamism == pte.TensorShapeDynamism.DYNAMIC_BOUND
    names = [name for name, _ in emitted.calls()]
    # The number of elements is a product of sizes, or that of a tensor.
    assert "aten::sym_size.int" in names
    assert "executorch_prim::mul.Scalar" in names or "aten::sym_numel" in names


def test_arithmetic_on_shapes():
    n = torch.export.Dim("n", min=3, max=12)

    def forward(x):
        rows = x.shape[0]
        return x[1:] * (rows - 1), x.new_zeros(rows + 3), rows % 3, rows // 2

    check(
        forward, (torch.randn(5),), dynamic_shapes=({0: n},), more_inputs=[(torch.randn(k),) for k in (3, 12)]
    )


def test_sums_of_several_dimensions():
    dims = [torch.export.Dim(f"n{i}", min=2, max=9) for i in range(3)]

    def forward(x, y, z):
        return x.new_zeros(torch.sym_sum([x.shape[0], y.shape[0], z.shape[0]])), x + 1

    args = tuple(torch.randn(n) for n in (3, 4, 5))
    emitted = check(
        forward,
        args,
        dynamic_shapes=tuple({0: d} for d in dims),
        more_inputs=[tuple(torch.randn(n) for n in (9, 2, 9))],
    )
    assert [name for name, _ in emitted.calls()].count("executorch_prim::add.Scalar") == 2


def test_infinite_and_nan_scalars():
    emitted = check(lambda x: torch.clamp(x, -float("inf"), 1.0), (torch.randn(4),))
    assert emitted.calls()


def test_half_precision_and_boolean_constants():
    class Typed(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.tensor([True, False, True]))
            self.register_buffer("halves", torch.tensor([1.0, 2, 3], dtype=torch.float16))
            self.register_buffer("number", torch.tensor(5, dtype=torch.int64))

        def forward(self, x):
            return torch.where(self.mask, x, self.halves), self.number + 1, self.mask.logical_not()

    check(Typed(), (torch.randn(3, dtype=torch.float16),))


def test_weights_are_not_copied():
    linear = nn.Linear(32, 32)
    output = emit_program(lower(linear, (torch.randn(1, 32),)))
    places = {buffer.ctypes.data for buffer in output.constants[1:]}
    assert linear.weight.data_ptr() in places


def test_debug_handles_and_stack_traces():
    program = lower(lambda x: x.exp().sin(), (torch.randn(3),))
    for number, node in enumerate(n for n in program.graph.nodes if n.op == "call_function"):
        node.meta["debug_handle"] = 10 + number
    emitted = Emitted(program, emit_stacktrace=True)
    assert emitted.output.debug_handle_map == {"forward": {0: 10, 1: 11}}
    assert emitted.output.instruction_id_to_num_outs_map == {"forward": {0: 1, 1: 1}}
    exp, _ = emitted.plan().chains[0].stacktrace
    assert exp.items[-1].filename.endswith("test_emit.py") and exp.items[-1].context.startswith("return")
    assert len(Emitted(program).plan().chains[0].stacktrace) == 0


def test_source_lines_are_the_users_and_have_short_paths():
    class Layers(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

        def forward(self, x):
            return self.layers(x).exp()

    program = lower(Layers(), (torch.randn(2, 4),))
    emitted = Emitted(program, source_lines=True)
    lists = emitted.plan().chains[0].stacktrace
    assert len(lists) == len(emitted.plan().chains[0].instructions) > 2
    modules = [[(item.name, item.context) for item in each.items if not item.filename] for each in lists]
    assert modules[0] == [("layers.0", "Linear")] and modules[-1] == []  # exp belongs to the model itself
    places = {
        (item.filename, item.name, item.context) for each in lists for item in each.items if item.filename
    }
    ((file, function, text),) = places
    assert (
        file.endswith("exir/test_emit.py")
        and not file.startswith("/")
        and (function, text) == ("forward", "")
    )
    assert len(emitted.bytes) < 1.2 * len(Emitted(program).bytes)


def test_source_lines_are_equal_in_every_checkout(tmp_path, monkeypatch):
    text = (
        "import torch\n\nclass Net(torch.nn.Module):\n    def forward(self, x):\n        return x.exp() + 1\n"
    )
    names_and_files = []
    for folder in (tmp_path / "one" / "net", tmp_path / "another" / "net"):
        folder.mkdir(parents=True)
        (folder / "model.py").write_text(text)
        names = {}
        exec(compile(text, str(folder / "model.py"), "exec"), names)
        program = lower(names["Net"](), (torch.ones(3),))
        (tmp_path / "elsewhere").mkdir(exist_ok=True)
        for current in (folder, tmp_path / "elsewhere"):
            monkeypatch.chdir(current)
            emitted = Emitted(program, source_lines=True)
            names_and_files.append((emitted.plan().chains[0].stacktrace[0].items[0].filename, emitted.bytes))
    assert [name for name, _ in names_and_files] == ["model.py", "net/model.py"] * 2
    assert names_and_files[0] == names_and_files[2] and names_and_files[1] == names_and_files[3]


def test_all_unsupported_nodes_are_reported_together():
    program = lower(lambda x: (x.exp().sin(), x.cos()), (torch.randn(3),))
    for node in program.graph.nodes:
        if node.name in ("exp", "cos"):
            node.target = {"exp": print, "cos": len}[node.name]
    with pytest.raises(EmitError) as caught:
        emit_program(program)
    text = str(caught.value)
    assert "2 nodes" in text and "exp: " in text and "cos: " in text and "print" in text and "len" in text
    assert "test_emit.py" in text


def test_program_without_memory_plan_is_rejected():
    exported = (
        build().until("exec").run(torch.export.export(Function(lambda x: x.exp()).eval(), (torch.randn(3),)))
    )
    with pytest.raises(EmitError, match="no memory plan"):
        emit_program(exported)


def random_forward(rng):
    """Returns a function of pointwise operators, matmuls, views and reductions in random order, with random reuse."""
    steps = [
        (rng.choice("pppbvmsrk"), rng.random(), rng.random(), rng.randrange(4))
        for _ in range(rng.randint(4, 16))
    ]

    def forward(x, y):
        live = [x, y, x @ y]
        for kind, first, second, which in steps:
            a, b = live[int(first * len(live))], live[int(second * len(live))]
            if kind == "p":
                live.append((torch.sin, torch.neg, torch.sigmoid, torch.tanh)[which](a))
            elif kind == "b":
                live.append((torch.add, torch.mul, torch.maximum, torch.sub)[which](a, b))
            elif kind == "v":
                live.append((a.view(4, 4, 4) + b.view(4, 4, 4)).view(8, 8))
            elif kind == "m":
                live.append(a @ b * 0.1)
            elif kind == "s":
                live.append(a + b[which])
            elif kind == "r":
                live.append(a * b.sum(which % 2, keepdim=True))
            else:
                live.append(a.unsqueeze(0).exp().tanh().squeeze(0))
        return live[-1], live[-2], live[-1].view(-1)[:8].cos()

    return forward


@pytest.mark.parametrize("planned", [True, False])
def test_random_programs_equal_eager_call_after_call(planned):
    rng = random.Random(17 + planned)
    torch.manual_seed(3)
    for _ in range(8):
        planning = MemoryPlanningPass(alloc_graph_input=planned, alloc_graph_output=planned)
        args = (torch.randn(8, 8), torch.randn(8, 8))
        check(
            random_forward(rng),
            args,
            planning=planning,
            more_inputs=[(torch.randn(8, 8), torch.randn(8, 8))] * 2,
        )


def test_two_compilations_yield_equal_bytes():
    def once():
        torch.manual_seed(0)
        module = nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4)
        )
        return Emitted(lower(module, (torch.randn(1, 3, 8, 8),))).bytes

    assert once() == once()
