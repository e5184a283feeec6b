# SPDX-License-Identifier: BSD-3-Clause
# ONE table: module paths of ExecuTorch -> where their names live here. An import of `torchette.<their path>` that is no
# file of ours is served from it.
"""ExecuTorch's module paths under our root, so that a migration is a change of the import root.

>>> from torchette.exir.backend.partitioner import Partitioner       # is torchette.exir.delegation.delegate.Partitioner
"""

from __future__ import annotations

import importlib
import importlib.machinery
import sys
from types import ModuleType
from typing import Any

_BUNDLE = "torchette.devtools.bundle"
_ETDUMP = "torchette.format.etdump"
_INSPECTOR = "torchette.devtools.inspector"
_COMPARATOR = "torchette.devtools.inspector.numerical_comparator"
_DELEGATE = "torchette.exir.delegation.delegate"
_PARTITIONERS = "torchette.exir.delegation.partitioners"
_XNNPACK = "torchette.backends.xnnpack"
_CONFIGS = "torchette.backends.xnnpack.configs"
_XNNPACK_RECIPES = dict.fromkeys(
    ("XNNPACKRecipeProvider", "XNNPackRecipeType"), "torchette.backends.xnnpack.recipe_provider"
)

# Path below the root -> name -> our module that has it; or one module of ours that has them all.
TABLE: dict[str, dict[str, str] | str] = {
    "exir.backend.backend_api": dict.fromkeys(("to_backend", "LoweredBackendModule", "MethodProgramsPartitionerSpec"), _DELEGATE),
    "exir.backend.backend_details": dict.fromkeys(("BackendDetails", "CompileSpec", "ExportedProgram", "PreprocessResult"), _DELEGATE),
    "exir.backend.compile_spec_schema": {"CompileSpec": _DELEGATE},
    "exir.backend.partitioner": dict.fromkeys(("DelegationSpec", "Partitioner", "PartitionResult"), _DELEGATE),
    "exir.backend.utils": {
        "tag_constant_data": _DELEGATE,
        "tag_mutated_buffer": _DELEGATE,
        **dict.fromkeys(("DelegateMappingBuilder", "WhyNoPartition", "format_delegated_graph", "get_delegates", "get_non_lowered_nodes", "is_shape_dynamic", "print_delegated_graph"), _PARTITIONERS),
    },
    "exir.backend.canonical_partitioners.all_node_partitioner": {"AllNodePartitioner": _PARTITIONERS},
    "exir.backend.canonical_partitioners.pattern_op_partitioner": {
        "generate_partitions_from_list_of_nodes": _PARTITIONERS,
        "generate_pattern_op_partitions": _PARTITIONERS,
    },
    "util.activation_memory_profiler": {"generate_memory_trace": "torchette.devtools.memory_trace"},
    "util.collect_env": dict.fromkeys(("get_env_info", "get_pretty_env_info", "main"), "torchette.cli.doctor"),
    "devtools.bundled_program.config": dict.fromkeys(("MethodTestCase", "MethodTestSuite"), _BUNDLE),
    "devtools.bundled_program.core": {"BundledProgram": _BUNDLE},
    "devtools.bundled_program.serialize": {"serialize_from_bundled_program_to_flatbuffer": _BUNDLE},
    "devtools.etdump.schema_flatcc": dict.fromkeys(("AllocationEvent", "Allocator", "Bool", "DebugEvent", "Double", "Event", "Float", "Int", "Null", "ProfileEvent", "RunData", "ScalarType", "String", "Tensor", "TensorList", "Value", "ValueType"), _ETDUMP),
    "devtools.etrecord._etrecord": dict.fromkeys(("ETRecord", "generate_etrecord", "parse_etrecord"), "torchette.devtools.etrecord"),
    "devtools.inspector._inspector": dict.fromkeys(("Event", "EventBlock", "Inspector", "PerfData", "TimeScale"), _INSPECTOR),
    "devtools.inspector._inspector_utils": {**dict.fromkeys(("TimeScale", "compare_results"), _INSPECTOR), "DebugHandle": _COMPARATOR},
    "devtools.inspector.inspector_cli": {"main": "torchette.cli.inspector"},
    "devtools.inspector.numerical_comparator.l1_numerical_comparator": {"L1Comparator": _COMPARATOR},
    "devtools.inspector.numerical_comparator.mse_numerical_comparator": {"MSEComparator": _COMPARATOR},
    "devtools.inspector.numerical_comparator.numerical_comparator_base": dict.fromkeys(("IntermediateOutputMapping", "NumericalComparatorBase"), _COMPARATOR),
    "devtools.inspector.numerical_comparator.snr_numerical_comparator": {"SNRComparator": _COMPARATOR},
    "extension.pybindings.portable_lib": dict.fromkeys(("BundledModule", "_load_bundled_program_from_buffer", "_load_for_executorch", "_load_for_executorch_from_buffer", "_load_for_executorch_from_bundled_program"), _BUNDLE),
    "exir.lowered_backend_module": {"LoweredBackendModule": _DELEGATE},
    "exir.graph_module": dict.fromkeys(("get_cond_while_submodules", "get_control_flow_submodules"), "torchette.exir.control_flow"),
    "exir.passes.quantize_io_pass": dict.fromkeys(("QuantizeInputs", "QuantizeOutputs", "extract_io_quant_params", "get_config_method_name", "quantize_input", "quantize_output"), "torchette.exir.passes.quantize_io"),
    "exir.program._program": dict.fromkeys(("EdgeProgramManager", "ExecutorchProgramManager", "to_edge", "to_edge_transform_and_lower"), "torchette.exir.program"),
    "exir._serialize._named_data_store": {
        "NamedDataStore": _DELEGATE,
        "NamedDataStoreOutput": _DELEGATE,
    },
    "backends.xnnpack.partition.xnnpack_partitioner": dict.fromkeys(
        ("XnnpackPartitioner", "XnnpackDynamicallyQuantizedPartitioner", "XnnpackFloatingPointPartitioner", "XnnpackQuantizedPartitioner"), _XNNPACK
    ),
    "backends.xnnpack.partition.config": _CONFIGS,
    "backends.xnnpack.partition.config.gemm_configs": _CONFIGS,
    "backends.xnnpack.partition.config.generic_node_configs": _CONFIGS,
    "backends.xnnpack.partition.config.node_configs": _CONFIGS,
    "backends.xnnpack.partition.config.quant_affine_configs": _CONFIGS,
    "backends.xnnpack.partition.config.xnnpack_config": _CONFIGS,
    "backends.xnnpack.utils.configs": _CONFIGS,
    "backends.xnnpack.quantizer.xnnpack_quantizer": dict.fromkeys(("QuantPattern", "XNNPACKQuantizer", "get_symmetric_quantization_config"), f"{_XNNPACK}.pt2e_quantizer"),
    "backends.xnnpack.quantizer.xnnpack_quantizer_utils": {
        **dict.fromkeys(("OperatorConfig", "OperatorPatternType", "QuantizationConfig", "QuantizationSpec", "get_bias_qspec", "get_input_act_qspec", "get_output_act_qspec", "get_weight_qspec"), "torchao.quantization.pt2e.quantizer"),
        **dict.fromkeys(("OP_TO_ANNOTATOR", "propagate_annotation"), f"{_XNNPACK}.pt2e_quantizer"),
    },
    "backends.xnnpack.xnnpack_preprocess": dict.fromkeys(("ExternalMeta", "XnnpackBackend", "assert_default_dim_order", "generate_node_to_external_map"), f"{_XNNPACK}.preprocess"),
    "backends.xnnpack.recipes": _XNNPACK_RECIPES,
    "backends.xnnpack.recipes.xnnpack_recipe_provider": _XNNPACK_RECIPES,
    "backends.xnnpack.recipes.xnnpack_recipe_types": {"XNNPackRecipeType": "torchette.backends.xnnpack.recipe_provider"},
    "backends.vulkan.partitioner.vulkan_partitioner": {"VulkanPartitioner": "torchette.backends.vulkan.partitioner"},
    "backends.vulkan.serialization.vulkan_graph_schema": dict.fromkeys(("VkMemoryLayout", "VkStorageType"), "torchette.backends.vulkan.payload"),
    "backends.vulkan.vulkan_preprocess": {"VulkanBackend": "torchette.backends.vulkan.preprocess"},
    "exir.capture._config": dict.fromkeys(("EdgeCompileConfig", "ExecutorchBackendConfig"), "torchette.exir.config"),
    "exir.dynamic_shape": {"DynamicMemoryPlanningMode": "torchette.exir.config"},
    "exir.memory_planning": "torchette.exir.memory.algorithms",
    "export.recipe_provider": {"BackendRecipeProvider": "torchette.export.recipe_registry"},
    # where the delegation interface was in its first releases
    "backends.backend_api": {"to_backend": _DELEGATE},
    "backends.backend_details": dict.fromkeys(("BackendDetails", "CompileSpec", "PreprocessResult"), _DELEGATE),
    "backends.partitioner": dict.fromkeys(("DelegationSpec", "Partitioner", "PartitionResult"), _DELEGATE),
}  # fmt: skip

# Paths of our own that have moved -> where they are now.
MOVED = {
    **{
        f"exir.{name}": f"exir.delegation.{name}"
        for name in ("cost", "delegate", "explain", "partition", "partitioners")
    },
    "checks": "capture.checks",
    "compilation": "_compile",
    "custom": "custom_ops",
    "exir.budget": "exir.fit.propose",
    "exir.passes.plan_memory": "exir.memory.plan_memory",
    "exir.recipes": "export.recipe",
    "fitting": "exir.fit",
    "rewrites": "capture.rewrites",
    "session": "export",
}

# Tools of ExecuTorch that are not here -> what there is instead.
ABSENT = {
    "devtools.backend_debug": "EdgeProgramManager.delegation(method) says where each call runs, and why",
    "devtools.bundled_program.schema": "torchette.format.bundled has the records of bundled programs",
    "devtools.debug_format": "ETRecord.nodes() has the calls of a recorded graph, with their modules and lines",
    "devtools.etdump.serialize": "torchette.format.etdump has load and dumps",
    "devtools.inspector._intermediate_output_capturer": "Inspector.calculate_numeric_gap runs the recorded graph",
    "devtools.inspector.vgf_neural_statistics": "there is no VGF backend",
    "devtools.intermediate_output_tap": "torchette diff MODEL FILE, and torchette debug FILE --dump for the values",
    "devtools.pte_tool": "torchette pte-diff A B, and torchette.devtools.pte_diff",
    "devtools.scripts": "torchette profile FILE --json",
    "devtools.size_analysis_tool": "torchette size FILE, and torchette.devtools.size",
    "devtools.visualization": "torchette report FILE -o page.html; --model-explorer writes Model Explorer's JSON",
    "util.python_profiler": "python -m cProfile",
}

# A package under another name of ours: the name that it had in ExecuTorch's first releases.
ALIASES = {"sdk": "devtools"}

_ROOT = "torchette."
_PACKAGES = {path.rsplit(".", depth)[0] for path in TABLE for depth in range(1, path.count(".") + 1)}


class _Finder:
    """Stands last among Python's finders: it is asked only for what is no file of ours. (Deriving from the classes of
    importlib.abc would import a dozen modules.)"""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        name = fullname.removeprefix(_ROOT)
        if name in MOVED and name != fullname:
            raise ModuleNotFoundError(f"{fullname} has moved: import {_ROOT}{MOVED[name]}", name=fullname)
        absent = next((path for path in ABSENT if f"{name}.".startswith(f"{path}.")), None)
        if absent is not None and name != fullname:
            raise ModuleNotFoundError(f"{fullname} is not there. Try: {ABSENT[absent]}", name=fullname)
        if name == fullname or (name not in TABLE and name not in _PACKAGES and _renamed(name) is None):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=name in _PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        """The import system makes it."""

    def exec_module(self, module: ModuleType) -> None:
        renamed = _renamed(module.__name__.removeprefix(_ROOT))
        if renamed is not None:  # the module itself, under both names
            sys.modules[module.__name__] = importlib.import_module(_ROOT + renamed)
            return
        names = TABLE.get(module.__name__.removeprefix(_ROOT), {})

        def lookup(name: str) -> Any:
            ours = (None if name.startswith("_") else names) if isinstance(names, str) else names.get(name)
            if ours is None:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            value = getattr(importlib.import_module(ours), name)
            setattr(module, name, value)
            return value

        module.__doc__ = "ExecuTorch's module path; see torchette.compat."
        module.__getattr__ = lookup  # type: ignore[method-assign]
        listed = (
            (lambda: dir(importlib.import_module(names))) if isinstance(names, str) else lambda: sorted(names)
        )
        module.__dir__ = listed  # type: ignore[method-assign]
        for name in () if isinstance(names, str) else names:
            # A module of the package that is called like a name of it: imported later, it would stand in its place.
            if f"{module.__name__}.{name}".removeprefix(_ROOT) in TABLE:
                importlib.import_module(f"{module.__name__}.{name}")
                delattr(module, name)

    def get_code(self, fullname: str) -> Any:
        """For `python -m`: run the path's `main`."""
        names = TABLE.get(fullname.removeprefix(_ROOT), {})
        if isinstance(names, str) or "main" not in names:
            return None
        return compile(f"import sys\nfrom {names['main']} import main\nsys.exit(main())", fullname, "exec")


def _renamed(name: str) -> str | None:
    """The path of ours that a path under an alias means."""
    first, dot, rest = name.partition(".")
    return ALIASES[first] + dot + rest if first in ALIASES else None


def install() -> None:
    """Serve the table's paths; done when `torchette` is imported, and only once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
