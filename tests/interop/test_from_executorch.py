# SPDX-License-Identifier: BSD-3-Clause
# CLAIMS maps each claim of docs/from-executorch*.md to the tests that check it. This file contains the tests of imports,
# missing names, and differences that no other test checks.

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from tests.building import CXX, run  # noqa: E402
from torchette.errors import InputError, TorchetteError  # noqa: E402
from torchette.exir import to_edge  # noqa: E402
from torchette.format import ptd, pte  # noqa: E402

ROOT = Path(__file__).parents[2]
PAGES = ("from-executorch.md", "from-executorch-python.md", "from-executorch-cpp.md")
PAGE = "\n\n".join((ROOT / "docs" / name).read_text() for name in PAGES)
IMPORTS = re.findall(r"`from executorch\.([\w.]+) import ([\w, ]+)`", PAGE)
FIRST = ["backends.arm", "exir._serialize._cord", "exir.passes.reinplace", "exir.passes.insert_write_back_for_buffers_pass", "extension.flat_tensor", "devtools.pte_tool"]  # fmt: skip


HERE, CPP, BLOCKS = (
    "interop/test_from_executorch.py::",
    "interop/test_from_executorch.py::test_cpp_names",
    "test_docs.py::test_python_blocks_run",
)
IMPORT = HERE + "test_documented_import_works"
ABSENT = "compat/test_compat.py::test_missing_path_names_alternative"
# The beginning of a claim on the page (a row, a list item, a paragraph) -> the tests that check it.
CLAIMS: dict[str, str] = {
    "Torchette reads and writes": "interop/test_interop.py::test_our_runtime_runs_peer_file interop/test_interop.py::test_peer_runtime_runs_our_file",
    "`from executorch.": IMPORT,
    "`from executorch.exir.passes.external_constants_pass": IMPORT + " compat/test_inner.py::test_delegated_weights_are_stored_in_tagged_files",
    "`exir.capture(": "compat/test_exir_program.py::test_2023_snippet_runs_with_one_warning",
    "`import org.pytorch.executorch": "extension/test_bindings.py::test_java extension/test_bindings.py::test_swift",
    "`diff_pte.py`": "devtools/test_pte_diff.py::test_the_command devtools/test_size.py::test_the_command",
    "The shorter form is": BLOCKS + " interop/test_interop.py::test_peer_runtime_runs_our_zero_copy_file",
    "The path after": IMPORT,
    "Use ExecuTorch's recipes": BLOCKS,
    "Use Torchette in a program": "compat/test_compat.py::test_alias_executorch",
    "All of `executorch.*` is then": (
        "compat/test_compat.py::test_alias_after_import_of_executorch_raises interop/test_clients.py::test_transformers_exporter "
        "interop/test_clients.py::test_transformers_decoder_with_cache interop/test_clients.py::test_torchao_quantizer "
        "interop/test_clients.py::test_optimum interop/test_clients.py::test_ultralytics"
    ),
    "Edge graphs of `to_edge`": HERE + "test_edge_graphs_print_like_executorch_under_alias",
    "Of ExecuTorch 1.5.1's own": HERE + "test_executorch_tests_pass",
    "An import of a missing name": ABSENT
    + " compat/test_compat.py::test_every_executorch_module_is_served_or_names_alternative"
    + " compat/test_compat.py::test_missing_name_names_alternative",
    "`executorch.exir._serialize.*`": ABSENT + " interop/test_from_executorch.py::test_documented_file_modules_read_files",
    "passes of ExecuTorch's pipeline": ABSENT,
    "`executorch.extension.pybindings.aten_lib`": HERE + "test_unserved_paths_raise runtime/test_aten.py::test_reference_models_equal_their_graph runtime/test_aten.py::test_program_of_guide_builds_with_package",
    "`executorch.extension.llm` except": HERE + "test_unserved_paths_raise llm/exporting/test_custom_ops.py::test_operators_equal_those_of_executorch",
    "`executorch.extension.training`": "extension/test_training.py::test_executorch_names_are_aliases",
    "`executorch.backends.*` except": ABSENT,
    "tools such as": ABSENT,
    "The complete list is": "compat/test_compat.py::test_every_executorch_module_is_served_or_names_alternative",
    "The targets of an Edge program": (
        "exir/test_edge_operators.py::test_every_operator_of_an_edge_program_is_an_edge_operator "
        "exir/test_edge_operators.py::test_there_is_one_object_per_overload_and_it_equals_torchs exir/test_edge_operators.py::test_schemas_report_dtypes"
    ),
    "In eager mode the operator": "exir/test_backend_operators.py::test_operator_runs_by_its_pattern exir/test_backend_operators.py::test_compiling_without_a_kernel_warns",
    "A recipe defines": BLOCKS + " export/test_export.py::test_a_session_step_by_step",
    "A bundled program is": BLOCKS + " devtools/test_bundle.py::test_executorch_reads_bundle",
    "The legacy profiler of ExecuTorch": "devtools/test_profile_blocks.py::test_blocks_have_the_events_of_their_executions",
    "Rotary embeddings, spectrograms": "exir/passes/test_split_complex.py::test_complex_results",
    "compiled model, `torchette.load`": "exir/passes/test_split_complex.py::test_each_python_interface_returns_complex_results",
    "`Method.execute(": "exir/passes/test_split_complex.py::test_file_stores_the_real_view",
    "`MethodMeta.output_is_complex": "exir/passes/test_split_complex.py::test_a_signature_tells_which_outputs_are_complex",
    "`python -m torchette.profiler": "devtools/test_profile_blocks.py::test_the_command_reads_a_stored_sample",
    "Programs for ExecuTorch's C++ runtime compile": (
        "extension/test_compat.py::test_a_program_for_executorch_runs_a_model extension/test_compat.py::test_every_header_compiles_separately "
        "extension/test_compat.py::test_every_public_name_exists extension/test_compat.py::test_executorch_headers_have_the_same_names"
    ),
    "`find_package(executorch)`": (
        "extension/test_compat_package.py::test_find_package_executorch extension/test_compat_package.py::test_selected_and_custom_kernels_in_cmake"
    ),
    "Compile programs for": "extension/test_compat_package.py::test_find_package_executorch",
    "The legacy profiler, `executorch": "extension/test_compat.py::test_first_profiler_blocks_have_executorch_layout",
    "`Module`, `BundledModule`": CPP + " extension/test_compat.py::test_tracing_backend_has_executorch_names extension/test_guides.py::test_cmake_options_of_both_projects",
    "Kernels that are written": (
        "extension/test_compat.py::test_executorch_kernel_runs_on_torchette_tensors "
        "extension/test_compat.py::test_same_kernel_runs_on_torch_tensors extension/test_compat.py::test_torch_and_torchette_tensors_share_memory "
        "runtime/test_aten.py::test_cpp_program_with_torch_library_operator"
    ),
    "boxed kernels as lambdas": CPP,
    "`KernelKey`": CPP,
    "`CompileSpec::value`": CPP,
    "`register_backend(const": CPP,
    "`NamedDataMap::get_tensor_layout`": CPP + " extension/test_compat.py::test_custom_named_data_map",
    "`ETDumpGen` logs": CPP + " extension/test_etdump.py::test_dump_contains_all_kinds_of_events",
    "`ET_CHECK`": CPP + " extension/test_compat.py::test_a_program_for_executorch_runs_a_model",
    "`LoadBackendOptionsMap`": CPP,
    "virtual functions of `Module`": CPP,
    "`BundledModule(const void*)`": "extension/test_compat.py::test_every_public_name_exists",
    "`ET_SWITCH_COMPLEX_TYPES`": CPP,
    "`extract_scalar_tensor`": CPP,
    "`MergedDataMap::load`": "extension/test_data_files.py::test_module_and_executor_runner",
    "`Program::get_named_data_map()`": CPP,
    "`EValue::tag`": CPP,
    "`et_pal_log_level_t::kError`": "extension/test_compat.py::test_every_public_name_exists",
    "a `Device` other": "extension/test_extension.py::test_cpp",
    "`FunctionRef`": CPP,
    "internal headers of ExecuTorch": "extension/test_compat.py::test_every_header_compiles_separately",
    "`pytorch/tokenizers/*.h`": CPP,
    "`pytree::unflatten`": CPP + " extension/test_pytree.py::test_structures_match_torch",
    "`Layout`, `MemoryFormat`": CPP + " runtime/test_aten.py::test_operator_without_torchette_kernel",
    "**Kernels are fast": "cli/test_doctor.py::test_environment_as_values",
    "**Views cost nothing": "exir/passes/test_exec_passes.py::test_views_without_movement_are_aliases",
    "**Structure is kept": HERE + "test_structure_is_kept",
    "**Inputs are checked": "rejects/test_inputs.py::test_each_dimension_has_its_own_bound rejects/test_inputs.py::test_channels_last_is_never_read_in_the_wrong_order",
    "**`while_loop` compiles": "interop/test_control_flow.py::test_peer_runtime_executes_every_branch exir/test_control_flow.py::test_golden_listing",
    "**Complex numbers compile": "exir/passes/test_split_complex.py::test_complex_results",
    "**Damaged files cause errors": HERE + "test_damaged_file_raises runtime/test_fuzz.py::test_fuzzed_files_cause_no_undefined_behaviour",
    "**Unfinished quantization": "exir/passes/test_check_quantization.py::test_missing_calibration_is_detected exir/passes/test_check_quantization.py::test_remaining_observers_are_detected",
    "**`torchette.compile` leaves": HERE + "test_only_to_executorch_plans_inputs",
    "Integer kernels on": "interop/test_interop.py::test_our_runtime_runs_peer_quantized_kernels",
    "A Python package for systems": "test_package.py::test_dev_wheel_writes_a_manylinux_wheel",
    "`HintBasedSymShapeEvalPass`": "exir/passes/test_graph_module_passes.py::test_configuration_selects_how_sizes_are_bounded",
    "ExecuTorch's runtime does not run": HERE + "test_runtime_differences_raise",
    "tensors of unbounded size": HERE + "test_runtime_differences_raise",
    "[arithmetic on sizes]": HERE + "test_peer_lacks_arithmetic_on_sizes",
    "unplanned outputs": HERE + "test_only_to_executorch_plans_inputs",
    "Our runtime does not run": "runtime/test_runtime.py::test_missing_backend_is_named",
}  # fmt: skip


def _claims() -> list[str]:
    """Returns the claims of the page without code: table rows, list items, paragraphs."""
    claims: list[str] = []
    for block in re.split(r"\n\s*\n", re.sub(r"```.*?```", "", PAGE, flags=re.DOTALL)):
        if block.strip().startswith("|"):
            claims += [row.split("|")[1].strip() for row in block.strip().splitlines()[2:]]
        elif block.strip().startswith("* "):
            claims += re.split(r"\n\* ", block.strip()[2:])
        elif block.strip() and not block.strip().startswith("#"):
            claims.append(block.strip())
    return claims


def test_every_claim_is_a_test() -> None:
    claims, held = _claims(), set()
    for claim in claims:
        held |= {beginning for beginning in CLAIMS if claim.startswith(beginning)}
    assert [c[:60] for c in claims if not c.startswith(tuple(CLAIMS))] == []
    assert set(CLAIMS) - held == set(), "claims that the page no longer makes"
    for place in {place for tests in CLAIMS.values() for place in tests.split()}:
        path, _, name = place.partition("::")
        assert f"def {name}(" in (ROOT / "tests" / path).read_text(), place


def test_cpp_names(tmp_path: Path) -> None:
    folder = ROOT / "torchette" / "extension" / "compat"
    run("cmake", f"-DDESTINATION={tmp_path}", "-P", folder / "executorch.cmake")
    run(CXX, "-std=c++17", "-fsyntax-only", f"-I{tmp_path}", f"-I{ROOT}", ROOT / "tests/interop/claims.cpp")


LEFT = [
    "backends.xnnpack._passes.fuse_batch_norm",
    "extension.pybindings.aten_lib",
    "extension.llm.export.builder",
]


@pytest.mark.parametrize("path", LEFT)
def test_unserved_paths_raise(path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="Try: "):
        importlib.import_module(f"torchette.{path}")


def test_documented_file_modules_read_files(tmp_path: Path) -> None:
    """For files of both compilers: `format.pte` replaces `_serialize`, `format.ptd` replaces `flat_tensor`."""
    exir = pytest.importorskip("executorch.exir")
    linear = torch.nn.Linear(3, 2)
    exported = torch.export.export(linear, (torch.ones(1, 3),))
    for compiler in (torchette.exir, exir):
        config = compiler.ExecutorchBackendConfig(external_constants=True)
        program = compiler.to_edge(exported).to_executorch(config)
        program.write_tensor_data_to_file(str(tmp_path))
        (data,) = tmp_path.glob("*.ptd")
        stored = ptd.read(data.read_bytes())
        assert {tuple(entry.layout.sizes) for entry in stored.values() if entry.layout} == {(2, 3), (2,)}
        assert pte.read(program.buffer).program.execution_plan[0].name == "forward"
        data.unlink()


def test_runtime_differences_raise() -> None:
    """ExecuTorch rejects a tensor without a bound; Torchette rejects a backend that it does not have."""
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    program = torchette.compile(
        torch.nn.ReLU(), (torch.ones(3),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},), backend="portable"
    )
    with pytest.raises(RuntimeError):
        peer._load_for_executorch_from_buffer(bytes(program)).forward([torch.ones(3)])
    assert torch.equal(torch.as_tensor(torchette.load(bytes(program))(-torch.ones(5))), torch.zeros(5))


def test_peer_lacks_arithmetic_on_sizes() -> None:
    peer = pytest.importorskip("executorch.extension.pybindings.portable_lib")

    class Distance(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * abs(x.shape[0] - 5)

    shapes = ({0: torch.export.Dim("n", min=2, max=9)},)
    program = torchette.compile(Distance(), (torch.ones(3),), dynamic_shapes=shapes, backend="portable")
    with pytest.raises(RuntimeError):
        peer._load_for_executorch_from_buffer(bytes(program)).forward([torch.ones(3)])
    loaded = torchette.load(bytes(program))
    for n in (3, 8):
        assert torch.equal(torch.as_tensor(loaded(torch.ones(n))), Distance()(torch.ones(n)))


@pytest.mark.parametrize(("path", "names"), IMPORTS, ids=[path for path, _ in IMPORTS])
def test_documented_import_works(path: str, names: str) -> None:
    module = importlib.import_module(f"torchette.{path}")
    assert [name for name in names.split(", ") if not hasattr(module, name.partition(" as ")[0])] == []


@pytest.mark.parametrize("path", FIRST)
def test_documented_absent_name_names_alternative(path: str) -> None:
    with pytest.raises(ModuleNotFoundError, match="Try: "):
        importlib.import_module(f"torchette.{path}")


PRINTED = """
from torchette.compat import alias_executorch
alias_executorch()
import torch
from executorch.exir import to_edge
from executorch.exir.dialects._ops import ops
class Sum(torch.nn.Module):
    def forward(self, x):
        return x + 1 + x
edge = to_edge(torch.export.export(Sum(), (torch.ones(2),)))
program = edge.exported_program()
print(program.graph_module.code)
nodes = [node for node in program.graph.nodes if node.op == "call_function"]
assert [node.name for node in nodes] == ["aten_add_tensor", "aten_add_tensor_1"], nodes
assert all(node.target == ops.edge.aten.add.Tensor for node in nodes)
assert program.graph_signature.user_outputs == ("aten_add_tensor_1",)
torch.testing.assert_close(program.module()(torch.ones(2)), torch.full((2,), 3.0))
assert len(edge.to_executorch().buffer) > 100
"""


def test_edge_graphs_print_like_executorch_under_alias() -> None:
    done = subprocess.run([sys.executable, "-c", PRINTED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("executorch_exir_dialects_edge__ops_aten_add_Tensor(") == 2


def test_edge_calls_have_executorch_names() -> None:
    class Sum(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 + x

    edge = to_edge(torch.export.export(Sum(), (torch.ones(2),)))

    def names(manager: Any) -> list[str]:
        nodes = manager.exported_program().graph.nodes
        return [node.name for node in nodes if node.op == "call_function"]

    def doubled(module: torch.fx.GraphModule) -> None:
        node = module.graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor)[-1]
        with module.graph.inserting_after(node):
            new = module.graph.call_function(torch.ops.aten.mul.Tensor, (node, node))
        node.replace_all_uses_with(new, lambda user: user is not new)

    assert names(edge) == ["aten_add_tensor", "aten_add_tensor_1"]
    assert names(edge.transform([doubled])) == ["aten_add_tensor", "aten_add_tensor_1", "aten_mul_tensor"]
    assert edge._edge_programs["forward"] is edge.exported_program()


def test_code_follows_the_passes() -> None:
    class Twice(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.clone() * 2

    module = to_edge(torch.export.export(Twice(), (torch.ones(2),))).exported_program().graph_module
    assert "clone" not in module.code and "aten.mul.Tensor" in module.code


class Named(torch.nn.Module):
    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scaled": x * scale, "sum": x.sum()}


def test_structure_is_kept() -> None:
    x, scale = torch.ones(2), torch.tensor(3.0)
    compiled = torchette.compile(Named(), (x,), kwargs={"scale": scale})
    result = torchette.load(bytes(compiled))(x, scale=scale)
    assert list(result) == ["scaled", "sum"] and torch.equal(torch.as_tensor(result["scaled"]), x * 3)


def test_only_to_executorch_plans_inputs() -> None:
    model, x = torch.nn.Linear(4, 2).eval(), torch.ones(1, 4)

    def planned(data: bytes) -> list[bool]:
        plan = pte.read(data).program.execution_plan[0]
        return [plan.values[i].val.allocation_info is not None for i in (*plan.inputs, *plan.outputs)]

    program = to_edge(torch.export.export(model, (x,))).to_executorch()
    assert planned(program.buffer) == [True, True]
    assert planned(bytes(torchette.compile(model, (x,), backend="portable"))) == [False, False]


def test_channels_last_tensor_never_gives_wrong_result() -> None:
    model = torch.nn.Conv2d(3, 4, 1).eval()
    x = torch.randn(1, 3, 4, 4)
    program = torchette.load(bytes(torchette.compile(model, (x,))))
    y = x.to(memory_format=torch.channels_last)
    torch.testing.assert_close(torch.as_tensor(program(y)), model(x))
    with pytest.raises(InputError, match="shape"):
        program(torch.ones(1, 3, 4, 5))


def test_result_stays_channels_last_if_model_requests_it() -> None:
    class Asked(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (x + 1).to(memory_format=torch.channels_last)

    x = torch.arange(24.0).reshape(1, 2, 3, 4)
    compiled = torchette.compile(Asked(), (x,))
    for result in (compiled(x), torch.as_tensor(torchette.load(bytes(compiled))(x))):
        assert result.stride() == Asked()(x).stride() and torch.equal(result, x + 1)


def test_damaged_file_raises() -> None:
    data = bytes(torchette.compile(torch.nn.ReLU(), (torch.ones(2),)))
    with pytest.raises(TorchetteError):
        torchette.load(data[:200])


# Minimum number of passing tests in these folders, measured with executorch 1.5.1.
PASS = {
    "runtime/test": 14, "exir/program": 18, "exir/emit": 31, "exir/backend": 66, "exir/tests/test_banked": 45,
    "exir/tests/test_passes": 37, "backends/xnnpack/test/ops/test_conv": 38,
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("folder", PASS)
def test_executorch_tests_pass(folder: str, tmp_path: Path) -> None:
    pytest.importorskip("executorch")
    command = [sys.executable, "-m", "tests.interop.executorch_tests", str(tmp_path / "out.json"), folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    passed = int(re.search(r'"passed": (\d+)', done.stdout.splitlines()[-1])[1])  # type: ignore[index]
    assert passed >= PASS[folder]
