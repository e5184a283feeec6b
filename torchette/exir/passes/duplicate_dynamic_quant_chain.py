# SPDX-License-Identifier: BSD-3-Clause
# In: a PT2E graph in which several layers read one dynamically quantized activation. Out: each layer has separate
# choose_qparams, quantize and dequantize calls, so that a backend can fuse them with the layer.
"""`DuplicateDynamicQuantChainPass`, under ExecuTorch's name."""

from __future__ import annotations

import operator

from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult


class DuplicateDynamicQuantChainPass(PassBase):
    """Gives each user of a dynamically quantized activation a separate chain of quantization calls."""

    def call(self, graph_module: GraphModule) -> PassResult:
        """Edits the graph. The results do not change."""
        visited: set[Node] = set()
        copied = 0
        for node in list(graph_module.graph.nodes):
            chain = _chain(node)
            if chain is None:
                continue
            for user in list(node.users):
                if chain[0] not in visited:
                    visited.add(chain[0])
                    continue
                user.replace_input_with(node, _copy(chain, user))
                copied += 1
        if copied:
            graph_module.graph.eliminate_dead_code()
            graph_module.recompile()
        return PassResult(graph_module, copied > 0)


def _copy(chain: list[Node], before: Node) -> Node:
    """Copies the chain and returns the last node of the copy."""
    copies: dict[Node, Node] = {}
    with before.graph.inserting_before(before):
        for part in chain:
            copies[part] = before.graph.node_copy(part, lambda node: copies.get(node, node))
    return copies[chain[-1]]


def _chain(dequantize: Node) -> list[Node] | None:
    """Returns choose_qparams, its results, quantize and the given dequantize; None if the node ends no such chain."""
    if dequantize.op != "call_function" or "dequantize" not in str(dequantize.target):
        return None
    quantize = dequantize.args[0]
    if not isinstance(quantize, Node) or "quantize" not in str(quantize.target):
        return None
    results = [arg for arg in quantize.args[1:] if isinstance(arg, Node) and arg.target is operator.getitem]
    sources = {result.args[0] for result in results}
    choose = next(iter(sources), None)
    if len(sources) != 1 or not isinstance(choose, Node) or "choose_qparams" not in str(choose.target):
        return None
    return [choose, *results, quantize, dequantize]
