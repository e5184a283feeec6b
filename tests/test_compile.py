# SPDX-License-Identifier: BSD-3-Clause
# torchette.compile from the module to results of the real runtime.

import gc
import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import torchette
from torchette import errors, receipt
from torchette.backends.null import NullPartitioner
from torchette.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from torchette.exir.memory.plan_memory import MemoryPlanningPass

pytest.importorskip("torchette.runtime._native", reason="the runtime is not built: ./dev setup")

X = torch.randn(2, 4)


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x, *, shift):
        y = self.linear(x["value"])
        return {"sum": y + shift, "parts": (y - shift, [y * 2])}


def test_the_shortest_program(tmp_path):
    module = nn.Linear(4, 2)  # in training mode, which makes no difference to it
    model = torchette.compile(module, (X,))
    torch.testing.assert_close(model(X), module(X))
    model.save(tmp_path / "linear.pte")
    torch.testing.assert_close(torchette.load(tmp_path / "linear.pte")(X), module(X))
    assert "float32[2, 4]" in repr(model) and "to_out_variants" in str(model.report())
    assert model.planned_bytes >= model.lower_bound_bytes >= 0


def test_one_line_on_the_command_line(tmp_path):
    line = "import torchette,torch; c=torchette.compile(torch.nn.Linear(4,2),(torch.ones(1,4),)); c.save('l.pte'); print(c(torch.ones(1,4)))"
    line = line.replace("torch;", "torch; torch.manual_seed(3);")
    done = subprocess.run(
        [sys.executable, "-c", line], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    torch.manual_seed(3)
    with torch.no_grad():
        assert done.stdout.strip() == str(nn.Linear(4, 2)(torch.ones(1, 4)))
    assert (tmp_path / "l.pte").exists()


class Sum(nn.Module):
    def forward(self, x, y):
        return x + y


@pytest.mark.parametrize(
    ("backend", "delegated"),
    [
        ("auto", False),
        ("portable", False),
        ("null", True),
        (NullPartitioner(), True),
        (["portable", "null"], True),
        ({"forward": "null"}, True),
    ],
    ids=["auto", "portable", "name", "partitioner", "list", "by method"],
)
def test_a_backend_is_a_name_or_a_partitioner(backend, delegated):
    model = torchette.compile(Sum(), (X, X), backend=backend)
    assert bool(model.program.executorch_program.execution_plan[0].delegates) is delegated
    assert model(X, X).equal(X + X)


def test_moved_arguments_name_their_replacement():
    with pytest.raises(errors.InputTypeError, match="no longer has the argument 'partitioner'") as caught:
        torchette.compile(nn.ReLU(), (X,), partitioner=NullPartitioner())
    assert caught.value.hints == ("backend=",)
    with pytest.raises(TypeError, match="unexpected keyword argument 'colour'"):
        torchette.compile(nn.ReLU(), (X,), colour="red")


def test_arenas_are_the_device_or_the_planner():
    both = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    with pytest.raises(errors.InputError, match="both given"):
        torchette.compile(nn.ReLU(), (X,), config=both, device=torchette.Device(arenas={"A": None}))


def test_weights_in_a_file_of_their_own(tmp_path):
    apart = ExecutorchBackendConfig(external_constants=lambda node: "weights")
    model = torchette.compile(Structured().eval(), ({"value": X},), {"shift": X}, config=apart)
    eager = model({"value": X}, shift=X)
    model.save(tmp_path / "net.pte")
    weights = tmp_path / "weights.ptd"
    again = torchette.load(tmp_path / "net.pte", data_files=[weights])
    torch.testing.assert_close(again({"value": X}, shift=X), eager)
    with pytest.raises(errors.RuntimeLoadError):
        torchette.load(tmp_path / "net.pte")


def test_the_folder_of_weights_is_removed_with_the_model():
    """The folder is removed without a warning of a finalizer."""
    model = torchette.compile(
        nn.Linear(4, 2), (torch.ones(1, 4),), config=ExecutorchBackendConfig(external_constants=True)
    )
    (weights,) = model._data_files
    assert weights.exists()
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        del model
        gc.collect()
    assert not weights.parent.exists()


class WithoutTorchao:
    """Makes the import of torchao fail."""

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "torchao":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def test_quantize_without_torchao(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] == "torchao"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [WithoutTorchao(), *sys.meta_path])
    with pytest.raises(errors.MissingPackageError, match="needs torchao") as caught:
        torchette.compile(nn.ReLU(), (X,), quantizer=object())
    assert caught.value.hints == ("pip install 'torchao>=0.18'",)


def test_a_quantized_model_runs_without_a_backend():
    pt2e = pytest.importorskip("torchao.quantization.pt2e.quantizer")
    from torchao.quantization.pt2e import MinMaxObserver

    spec = pt2e.QuantizationSpec(torch.int8, MinMaxObserver, -128, 127, torch.per_tensor_symmetric)

    class EveryRelu(pt2e.Quantizer):
        def annotate(self, model):
            for node in model.graph.nodes:
                if node.target is torch.ops.aten.relu.default:
                    node.meta["quantization_annotation"] = pt2e.QuantizationAnnotation(
                        {node.args[0]: spec}, output_qspec=spec, _annotated=True
                    )
            return model

        def validate(self, model):
            pass

    with pytest.raises(errors.InputTypeError, match="expected a torchao quantizer, got str"):
        torchette.compile(nn.ReLU(), (X,), quantizer="int8")
    x = torch.linspace(-1, 1, 8)
    model = torchette.compile(nn.ReLU(), (x,), quantizer=EveryRelu())
    torch.testing.assert_close(model(x), x.relu(), rtol=0, atol=1 / 120)
    assert model.verify() < 1e-6
    wide = torchette.compile(nn.ReLU(), (x,), quantizer=EveryRelu(), calibration=[(100 * x,), {"input": x}])
    torch.testing.assert_close(wide(100 * x), (100 * x).relu(), rtol=0, atol=100 / 120)
    with pytest.raises(errors.InputError, match="calibration is given for backward, which is not a method"):
        torchette.compile(nn.ReLU(), (x,), quantizer=EveryRelu(), calibration={"backward": [x]})
    with pytest.raises(errors.InputError, match="calibration is empty"):
        torchette.compile(nn.ReLU(), (x,), quantizer=EveryRelu(), calibration=[])
    with pytest.raises(
        errors.InputTypeError, match="calibration must be a list of inputs or 'random', got 'all'"
    ):
        torchette.compile(nn.ReLU(), (x,), quantizer=EveryRelu(), calibration="all")
    assert (model.calibration, wide.calibration) == (
        {"forward": "the example inputs"},
        {"forward": "2 inputs"},
    )
    assert str(model.report()).endswith("calibration: the example inputs")
    random = torchette.compile(nn.ReLU(), (x,), quantizer=EveryRelu(), calibration="random", verify=True)
    assert random.methods["forward_calibration"]() == random.report().to_dict()["calibration"]
    assert "accuracy is meaningless" in receipt.read(bytes(random)).facts["calibration"]["forward"]
    with pytest.raises(errors.InputTypeError, match="forward_calibration: another method has this name"):
        torchette.compile(
            nn.ReLU(), (x,), quantizer=EveryRelu(), calibration="random",
            constant_methods={"forward_calibration": 1},
        )  # fmt: skip


def test_structures_and_keywords_come_back():
    module, x, shift = Structured().eval(), {"value": X}, torch.ones(4)
    model = torchette.compile(module, (x,), {"shift": shift})
    ours, eager = model(x, shift=shift), module(x, shift=shift)
    assert (
        ours.keys() == eager.keys()
        and isinstance(ours["parts"], tuple)
        and isinstance(ours["parts"][1], list)
    )
    torch.testing.assert_close(ours, eager)


def test_several_methods_and_constants():
    encoder, decoder = nn.Linear(4, 3).eval(), nn.Sequential(nn.Linear(3, 4), nn.ReLU()).eval()
    model = torchette.compile(
        {"encode": (encoder, (X,)), "decode": torch.export.export(decoder, (torch.randn(2, 3),))},
        constant_methods={"width": 3},
    )
    torch.testing.assert_close(model.decode(model.encode(X)), decoder(encoder(X)))
    assert model.width() == 3 and set(model.methods) == {"encode", "decode", "width"}


def test_dynamic_shapes_and_state():
    class Mean(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("calls", torch.full((1,), 2.0))

        def forward(self, x):
            self.calls.add_(1)
            return torch.relu(x).view(-1, 2) * self.calls

    n = torch.export.Dim("n", max=6)
    model = torchette.compile(Mean().eval(), (torch.randn(3, 4),), dynamic_shapes=({0: n},))
    eager = Mean()
    for rows in (3, 6, 1, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(model(x), eager(x))


def test_options_reach_the_pipeline(tmp_path):
    steps = []

    def relu_to_abs(graph_module):
        for node in graph_module.graph.nodes:
            if node.target == torch.ops.aten.relu.default:
                node.target = torch.ops.aten.abs.default

    model = torchette.compile(
        nn.ReLU(), (X,), edge=EdgeCompileConfig(disable_passes=["fold_constants"], dump=tmp_path, progress=lambda *step: steps.append(step)), config=ExecutorchBackendConfig(passes=[relu_to_abs], memory_planning_pass=MemoryPlanningPass()), )  # fmt: skip
    torch.testing.assert_close(model(X), X.abs())
    assert steps[0] == ("export", "torch.export") and ("user", "relu_to_abs") in steps
    assert "fold_constants" not in {name for _, name in steps} and any(tmp_path.iterdir())
    assert model.planned_bytes >= 2 * X.nbytes
    assert bytes(model) == model.program.buffer


def test_verify_compares_with_the_captured_module():
    model = torchette.compile(Structured().eval(), ({"value": X},), {"shift": torch.ones(4)})
    assert 0 <= model.verify() < 1e-5

    def relu_to_neg(graph_module):
        for node in graph_module.graph.nodes:
            if node.target == torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default

    with pytest.raises(errors.CompileError, match="'forward': output 0 differs by up to") as caught:
        torchette.compile(nn.ReLU(), (X,), config=ExecutorchBackendConfig(passes=[relu_to_neg])).verify()
    assert caught.value.code == "results-differ"


def test_pass_that_changes_results_is_named():
    def relu_to_neg(graph_module):
        for node in graph_module.graph.nodes:
            if node.target == torch.ops.aten.relu.default:
                node.target = torch.ops.aten.neg.default

    with pytest.raises(errors.PassError, match="pass relu_to_neg of stage user changed the result") as caught:
        torchette.compile(
            nn.ReLU(),
            (X,),
            edge=EdgeCompileConfig(check_passes=True),
            config=ExecutorchBackendConfig(passes=[relu_to_neg]),
        )
    assert caught.value.pass_name == "relu_to_neg" and "first node to differ is relu" in str(caught.value)


def test_compile_is_a_thin_layer_over_to_edge():
    module = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).eval()
    staged = to_edge(torch.export.export(module, (X,))).to_executorch()
    config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass())
    one_call = torchette.compile(module, (X,), backend="portable", config=config)
    assert bytes(one_call) == staged.buffer


def test_import_is_cheap_and_free_of_torch():
    code = "import sys, torchette; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; print(torchette.__version__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == torchette.__version__
    assert set(torchette.__all__) <= set(dir(torchette))
    with pytest.raises(AttributeError, match="no attribute 'compil'"):
        torchette.compil  # noqa: B018


def test_one_tensor_given_twice_is_two_inputs():
    class Weighted(nn.Module):
        def forward(self, x, y, *, more):
            return x + 2 * y + 4 * more["z"]

    one = torch.ones(2)
    model = torchette.compile(Weighted(), (one, one), {"more": {"z": one}})
    result = model(one, one * 2, more={"z": one * 3})
    torch.testing.assert_close(torch.as_tensor(result), one * 17)
