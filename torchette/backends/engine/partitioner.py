# SPDX-License-Identifier: BSD-3-Clause
# The engine compiles no delegates. Its partitioner returns a list of passes.
"""`CpuPartitioner`: selects the CPU engine in `to_edge_transform_and_lower`."""

from __future__ import annotations

import functools
from collections.abc import Callable

from torch.export import ExportedProgram

from torchette.backends.engine.passes.attention import place_attention
from torchette.backends.engine.passes.chains import place_chains
from torchette.backends.engine.passes.concatenations import fuse_concatenations
from torchette.backends.engine.passes.convolutions import place_convolutions
from torchette.backends.engine.passes.dynamic_linears import place_dynamic_linears
from torchette.backends.engine.passes.fuse_epilogues import fuse_epilogues
from torchette.backends.engine.passes.images import place_images
from torchette.backends.engine.passes.integers import place_integers
from torchette.backends.engine.passes.layouts import move_permutes
from torchette.backends.engine.passes.linears import place_linears
from torchette.backends.engine.passes.narrow import compute_in_float32, fold_around_weights, store_widened
from torchette.backends.engine.passes.norms import place_norms
from torchette.backends.engine.passes.pairs import PRECISIONS, TOLERANCE, compute_in_bfloat16
from torchette.backends.engine.passes.quantize_points import settle_quantize
from torchette.backends.engine.passes.recurrent import place_recurrent
from torchette.backends.engine.passes.rotary import place_rotary
from torchette.backends.engine.passes.split_linears import split_linears
from torchette.backends.engine.passes.weight_only import place_weight_only
from torchette.errors import InputError
from torchette.exir.delegation.delegate import Partitioner, PartitionResult
from torchette.exir.passes.merge_common_subexpressions import merge_common_subexpressions
from torchette.exir.passes.remove_dead_code import remove_dead_code
from torchette.exir.passes.spell_out_quantization import spell_out_quantization


class CpuPartitioner(Partitioner):
    """Lowers the operators that other partitioners leave to fused kernels with packed weights.

    The fused operators are calls in the graph, not delegates. They are planned, profiled and debugged like all other
    operators. The file requires Torchette's runtime. `replace_backend_with_edge` converts the calls back to edge
    operators.
    """

    # The engine's passes that a user may disable. Legalization passes and torchette.exir.pipeline.OPTIONAL are
    # excluded.
    optional_passes = frozenset(
        {
            "compute_in_float32", "fold_around_weights", "fuse_concatenations", "fuse_epilogues", "move_permutes", "place_attention",
            "place_chains", "place_convolutions", "place_dynamic_linears", "place_images", "place_integers",
            "place_linears", "place_norms", "place_recurrent", "place_rotary", "place_weight_only", "settle_quantize",
            "split_linears", "store_widened",
        }
    )  # fmt: skip

    def __init__(self, precision: str = "float32", tolerance: float = TOLERANCE) -> None:
        """Selects the engine.

        Args:
            precision, tolerance: see `torchette.compile`.

        Raises:
            InputError: the precision is unknown, or the tolerance is not positive.
        """
        if precision not in PRECISIONS:
            raise InputError(
                f"the CPU engine has no precision {precision!r}",
                hints=[f"precisions: {', '.join(PRECISIONS)}"],
            )
        if not tolerance > 0:
            raise InputError(f"the tolerance must be positive, got {tolerance}")
        self._precision, self._tolerance = precision, tolerance

    def capture_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        """Returns the pass for recurrent layers, which must run before the decompositions remove these layers."""
        return (place_recurrent,)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Returns the program unchanged; nothing is delegated."""
        return PartitionResult(exported_program, {})

    def target_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        """Returns the engine's passes in execution order."""
        return (
            compute_in_float32,
            place_integers,
            spell_out_quantization,
            place_dynamic_linears,
            place_weight_only,
            fold_around_weights,
            place_attention,
            place_convolutions,
            place_images,
            move_permutes,
            settle_quantize,
            merge_common_subexpressions,
            remove_dead_code,
            place_norms,
            place_rotary,
            split_linears,
            place_linears,
            store_widened,
            fuse_epilogues,
            remove_dead_code,
            place_chains,
            *self._reducing_passes(),
            fuse_concatenations,
        )

    def _reducing_passes(self) -> tuple[Callable[[ExportedProgram], ExportedProgram], ...]:
        if self._precision == "float32":
            return ()
        reduce = functools.partial(compute_in_bfloat16, precision=self._precision, tolerance=self._tolerance)
        return functools.update_wrapper(reduce, compute_in_bfloat16), remove_dead_code
