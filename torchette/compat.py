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
    "devtools.bundled_program.config": dict.fromkeys(("MethodTestCase", "MethodTestSuite"), _BUNDLE),
    "devtools.bundled_program.core": {"BundledProgram": _BUNDLE},
    "devtools.bundled_program.serialize": {"serialize_from_bundled_program_to_flatbuffer": _BUNDLE},
    "extension.pybindings.portable_lib": dict.fromkeys(("BundledModule", "_load_bundled_program_from_buffer", "_load_for_executorch", "_load_for_executorch_from_buffer", "_load_for_executorch_from_bundled_program"), _BUNDLE),
    "exir.lowered_backend_module": {"LoweredBackendModule": _DELEGATE},
    "exir.graph_module": dict.fromkeys(("get_cond_while_submodules", "get_control_flow_submodules"), "torchette.exir.control_flow"),
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

_ROOT = "torchette."
_PACKAGES = {path.rsplit(".", depth)[0] for path in TABLE for depth in range(1, path.count(".") + 1)}


class _Finder:
    """Stands last among Python's finders: it is asked only for what is no file of ours. (Deriving from the classes of
    importlib.abc would import a dozen modules.)"""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        name = fullname.removeprefix(_ROOT)
        if name in MOVED and name != fullname:
            raise ModuleNotFoundError(f"{fullname} has moved: import {_ROOT}{MOVED[name]}", name=fullname)
        if name == fullname or (name not in TABLE and name not in _PACKAGES):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=name in _PACKAGES)  # type: ignore[arg-type]

    def create_module(self, spec: Any) -> None:
        """The import system makes it."""

    def exec_module(self, module: ModuleType) -> None:
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


def install() -> None:
    """Serve the table's paths; done when `torchette` is imported, and only once."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())
