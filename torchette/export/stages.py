# SPDX-License-Identifier: BSD-3-Clause
# Which step may follow which, and what each of them leaves.
"""The order of the stages, and `PipelineArtifact`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torchette.export.types import StageType

# Stage -> those that it may follow; None among them: it may be the first.
FOLLOWS: dict[StageType, tuple[StageType | None, ...]] = {
    StageType.SOURCE_TRANSFORM: (None,),
    StageType.QUANTIZE: (None, StageType.SOURCE_TRANSFORM),
    StageType.TORCH_EXPORT: (None, StageType.SOURCE_TRANSFORM, StageType.QUANTIZE),
    StageType.TO_EDGE_TRANSFORM_AND_LOWER: (None, StageType.TORCH_EXPORT),
    StageType.TO_EDGE: (None, StageType.TORCH_EXPORT),
    StageType.EDGE_PROGRAM_MANAGER_TRANSFORM: (StageType.TO_EDGE, StageType.TO_EDGE_TRANSFORM_AND_LOWER),
    StageType.TO_BACKEND: (StageType.TO_EDGE, StageType.EDGE_PROGRAM_MANAGER_TRANSFORM),
    StageType.TO_EXECUTORCH: (
        StageType.TO_EDGE_TRANSFORM_AND_LOWER,
        StageType.TO_BACKEND,
        StageType.EDGE_PROGRAM_MANAGER_TRANSFORM,
        StageType.TO_EDGE,
    ),
}


@dataclass
class PipelineArtifact:
    """What a stage gave: method -> model, or a manager; and beside it what is known about it."""

    data: Any
    context: dict[str, Any] = field(default_factory=dict)

    def get_context(self, key: str, default: Any = None) -> Any:
        """What is known by that name."""
        return self.context.get(key, default)
