# SPDX-License-Identifier: BSD-3-Clause
"""The names in ExecuTorch's documentation and examples exist at their paths."""

from __future__ import annotations

import dataclasses
import importlib

import pytest

# Path, or path:class -> names.
NAMES = {
    "exir": "to_edge to_edge_transform_and_lower EdgeProgramManager ExecutorchProgramManager EdgeCompileConfig ExecutorchBackendConfig CaptureConfig capture CallSpec ExirExportedProgram ExecutorchProgram ExirDynamoConfig emit_program EmitterOutput edge_to_executorch_passes load save ExportedProgram ExportGraphSignature Value",
    "exir:EdgeProgramManager": "methods config_methods exported_program transform to_backend to_executorch",
    "exir:ExecutorchProgramManager": "buffer write_to_file save write_tensor_data_to_file executorch_program exported_program methods config_methods dump_executorch_program debug_handle_map delegate_map instruction_id_to_num_outs_map get_etrecord",
    "exir:EdgeCompileConfig": "_check_ir_validity _skip_dim_order _core_aten_ops_exception_list preserve_ops",
    "exir:ExecutorchBackendConfig": "passes memory_planning_pass propagate_device_config to_out_var_pass dynamic_memory_planning_mode emit_stacktrace extract_delegate_segments segment_alignment constant_tensor_alignment delegate_alignment sym_shape_eval_pass remove_view_copy external_constants external_mutable_weights emit_mutable_buffer_names do_quant_fusion_and_const_prop run_reinplace_pass enable_non_cpu_memory_planning reinplace_extra_ops",
    "exir.passes": "MemoryPlanningPass ToOutVarPass SpecPropPass ConstraintBasedSymShapeEvalPass HintBasedSymShapeEvalPass",
    "exir.passes.quantize_io_pass": "QuantizeInputs QuantizeOutputs",
    "exir.passes.init_mutable_pass": "InitializedMutableBufferPass",
    "exir.passes.external_constants_pass": "external_constants_pass external_mutable_weights_pass delegate_external_constants_pass_unlifted",
    "exir.pass_base": "ExportPass PassBase PassResult ProxyValue NodeMetadata",
    "exir.pass_manager": "PassManager PassType",
    "exir.memory_planning": "greedy naive MemoryPlanningAlgorithmSuite Verifier",
    "exir.memory": "alloc free view",
    "exir.tensor": "TensorSpec",
    "exir.backend.backend_api": "to_backend LoweredBackendModule disable_validation MethodProgramsPartitionerSpec",
    "exir.backend.backend_details": "BackendDetails PreprocessResult CompileSpec ExportedProgram",
    "exir.backend.partitioner": "Partitioner PartitionResult DelegationSpec",
    "exir.backend.canonical_partitioners.pattern_op_partitioner": "generate_pattern_op_partitions generate_partitions_from_list_of_nodes",
    "exir.backend.canonical_partitioners.all_node_partitioner": "AllNodePartitioner",
    "exir.backend.canonical_partitioners.config_partitioner": "ConfigerationBasedPartitioner PartitionerConfig format_target_name",
    "exir.backend.canonical_partitioners.group_partitioner": "GroupBasedPartitioner",
    "exir.backend.canonical_partitioners.duplicate_constant_node_pass": "duplicate_constant_node",
    "exir.backend.canonical_partitioners.duplicate_dequant_node_pass": "DuplicateDequantNodePass",
    "exir.backend.utils": "get_delegates get_non_lowered_nodes print_delegated_graph format_delegated_graph tag_constant_data tag_mutated_buffer is_shape_dynamic DelegateMappingBuilder WhyNoPartition WhyNoPartitionReporter is_identical_graph replace_quantized_partition_with_op",
    "exir.dialects._ops": "ops bind_pattern_to_op",
    "exir.verification.verifier": "EXIRATenDialectVerifier EXIREdgeDialectVerifier",
    "export": "export ExportSession ExportRecipe QuantizationRecipe AOQuantizationConfig LoweringRecipe RecipeType BackendRecipeProvider recipe_registry StageType",
    "backends.xnnpack": "XnnpackPartitioner XnnpackDynamicallyQuantizedPartitioner XnnpackFloatingPointPartitioner XnnpackQuantizedPartitioner XnnpackBackend get_xnnpack_edge_compile_config get_xnnpack_executorch_backend_config",
    "backends.xnnpack.partition.xnnpack_partitioner": "XnnpackPartitioner",
    "backends.xnnpack.quantizer.xnnpack_quantizer": "XNNPACKQuantizer get_symmetric_quantization_config",
    "backends.xnnpack.recipes": "XNNPackRecipeType",
    "backends.vulkan": "VulkanPartitioner",
    "extension.export_util.utils": "export_to_edge save_pte_program",
    "devtools": "Inspector ETRecord generate_etrecord parse_etrecord BundledProgram",
    "devtools.bundled_program.config": "MethodTestCase MethodTestSuite",
    "devtools.bundled_program.serialize": "serialize_from_bundled_program_to_flatbuffer deserialize_from_flatbuffer_to_bundled_program",
    "devtools.backend_debug": "get_delegation_info print_delegation_info",
    "devtools.visualization": "visualize visualize_graph",
    "devtools.visualization.visualization_utils": "visualize_with_clusters",
    "devtools.intermediate_output_tap": "tap_compare tap_intermediate_outputs_ strip_taps_ TapSpec StatReducer STATS",
    "devtools.inspector": "Event EventBlock PerfData TimeScale compare_results Inspector",
    "devtools.inspector.numerical_comparator": "L1Comparator MSEComparator SNRComparator NumericalComparatorBase",
    "sdk": "Inspector BundledProgram",
    "util.activation_memory_profiler": "generate_memory_trace",
    "util.collect_env": "main",
    "runtime": "Runtime Program Method BackendRegistry OperatorRegistry Verification MethodMeta TensorInfo",
    "runtime:Runtime": "get load_program",
    "runtime:Program": "method_names load_method metadata write_etdump_result_to_file",
    "runtime:Method": "execute metadata",
    "runtime:BackendRegistry": "registered_backend_names is_available",
    "runtime:OperatorRegistry": "operator_names",
    "runtime:Verification": "Minimal InternalConsistency",
    "runtime:MethodMeta": "name num_inputs num_outputs num_attributes input_tensor_meta output_tensor_meta attribute_tensor_meta",
    "runtime:TensorInfo": "sizes dtype nbytes is_memory_planned",
    "extension.pybindings.portable_lib": "_load_for_executorch _load_for_executorch_from_buffer _load_for_executorch_from_bundled_program _load_for_executorch_from_data_loader _load_bundled_program_from_buffer _load_program _load_program_from_buffer _get_operator_names _get_registered_backend_names _is_available _create_profile_block _dump_profile_results _reset_profile_results _unsafe_reset_threadpool _threadpool_get_thread_count ExecuTorchModule ExecuTorchProgram ExecuTorchMethod",
    "extension.pybindings.portable_lib:ExecuTorchModule": "__call__ forward run_method plan_execute method_meta method_names has_etdump write_etdump_result_to_file load_bundled_input verify_result_with_bundled_expected_output",
    "extension.pybindings.portable_lib:ExecuTorchMethod": "set_inputs execute get_outputs call get_attribute",
    "extension.pybindings.data_loader": "PyDataLoader",
    "extension.pytree": "tree_flatten tree_unflatten tree_map from_str broadcast_to_and_flatten register_custom TreeSpec",
    "extension.training": "_load_for_executorch_for_training TrainingModule get_sgd_optimizer",
    "exir.backend.backend_api:LoweredBackendModule": "buffer program processed_bytes",
}  # fmt: skip


@pytest.mark.parametrize("path", NAMES)
def test_documented_names_exist(path: str) -> None:
    module, _, owner = path.partition(":")
    target = importlib.import_module(f"torchette.{module}")
    target = getattr(target, owner) if owner else target
    fields = (
        {field.name for field in dataclasses.fields(target)} if dataclasses.is_dataclass(target) else set()
    )
    assert [name for name in NAMES[path].split() if name not in fields and not hasattr(target, name)] == []
