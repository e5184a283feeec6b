# SPDX-License-Identifier: BSD-3-Clause
# In: a captured graph and quantizers. Out: a graph with quantized operators. torchao annotates, observes and converts;
# only this file calls it.
"""PT2E quantization: annotate, calibrate or train, convert."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from torchette.errors import InputError, InputTypeError
from torchette.exir.passes.check_quantization import refuse_unobserved
from torchette.packages import quietly, require

GraphPasses = Sequence[Callable[[GraphModule], GraphModule]] | None


def check_quantizers(quantizers: Sequence[Any]) -> Any:
    """Returns torchao's module of quantizers.

    Raises:
        MissingPackageError: torchao is not installed.
        InputTypeError: a quantizer is not a torchao quantizer.
    """
    kinds = require("torchao.quantization.pt2e.quantizer", "quantizing")
    for one in quantizers:
        if not isinstance(one, kinds.Quantizer):
            raise InputTypeError(
                f"expected a torchao quantizer, got {type(one).__name__}",
                hints=["pass an instance of a subclass of torchao.quantization.pt2e.quantizer.Quantizer"],
            )
    return kinds


def quantize(
    graph: GraphModule,
    quantizers: Sequence[Any],
    calibration: Iterable[tuple[tuple[Any, ...], Mapping[str, Any]]] = (),
    *,
    train: Callable[[GraphModule], None] | None = None,
    pre_prepare: GraphPasses = None,
    post_prepare: GraphPasses = None,
    pre_convert: GraphPasses = None,
    post_convert: GraphPasses = None,
) -> GraphModule:
    """Quantizes a captured graph.

    Args:
        graph: the result of `ExportedProgram.module()`; in training mode if `train` is given.
        quantizers: PT2E quantizers of torchao. They annotate in sequence.
        calibration: the inputs to observe, each as (args, kwargs).
        train: trains the prepared graph with fake quantization. Replaces calibration.
        pre_prepare, post_prepare, pre_convert, post_convert: passes from graph module to graph module around the steps.

    Raises:
        MissingPackageError: torchao is not installed.
        InputTypeError: a quantizer is not a torchao quantizer, or a pass returns another type than a graph module.
        InputError: `calibration` is empty.
        QuantizationError: code "not-calibrated": an observer saw no value.
    """
    pt2e = require("torchao.quantization.pt2e", "quantizing")
    steps = require("torchao.quantization.pt2e.quantize_pt2e", "quantizing")
    kinds = check_quantizers(quantizers)
    quantizer = quantizers[0] if len(quantizers) == 1 else kinds.ComposableQuantizer(list(quantizers))
    prepare = steps.prepare_pt2e if train is None else steps.prepare_qat_pt2e
    graph = _apply_passes(graph, pre_prepare)
    # torchao also converts the bodies of loops, in place, but torch cannot lower what it makes of them.
    bodies = {name: child for name, child in graph.named_children() if isinstance(child, GraphModule)}
    for name, body in bodies.items():
        setattr(graph, name, copy.deepcopy(body))
    with quietly():
        graph = prepare(graph, quantizer)
    graph = _apply_passes(graph, post_prepare)
    if train is not None:
        pt2e.allow_exported_model_train_eval(graph)
        pt2e.move_exported_model_to_train(graph)
        train(graph)
        pt2e.move_exported_model_to_eval(graph)
    else:
        observed = 0
        with torch.no_grad():
            for args, kwargs in calibration:
                graph(*args, **kwargs)
                observed += 1
        if not observed:
            raise InputError(
                "calibration is empty; at least one input is required", hints=["calibration=[(x,), ...]"]
            )
    graph = _apply_passes(graph, pre_convert)
    refuse_unobserved(graph)
    with quietly():
        graph = steps.convert_pt2e(graph)
    for name, body in bodies.items():
        setattr(graph, name, body)
    return _apply_passes(graph, post_convert)


def _apply_passes(graph: GraphModule, passes: GraphPasses) -> GraphModule:
    for run in passes or ():
        graph = run(graph)
        if not isinstance(graph, GraphModule):
            raise InputTypeError(
                f"the pass {getattr(run, '__name__', run)!r} returned {type(graph).__name__}, expected a graph module"
            )
    return graph
