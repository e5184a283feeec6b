# SPDX-License-Identifier: BSD-3-Clause
# Stored programs compute the same results after loading, with the same debug handles. tests/interop loads them with
# ExecuTorch.

from __future__ import annotations

import io
import json
import operator

import pytest

torch = pytest.importorskip("torch")

from torch.export import Dim, export  # noqa: E402

from torchette.backends.null import NullPartitioner  # noqa: E402
from torchette.errors import FormatError, UnsupportedError  # noqa: E402
from torchette.exir import to_edge, to_edge_transform_and_lower  # noqa: E402
from torchette.exir.dialects.edge._ops import EdgeOpOverload  # noqa: E402
from torchette.exir.graph import calls  # noqa: E402
from torchette.exir.serde import serialize as serde  # noqa: E402


class Everything(torch.nn.Module):
    """Several results, a list of results, a branch, an infinity, None, a dtype, state, and a dynamic size."""

    def __init__(self):
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x, y):
        self.count.add_(1)
        a, b = self.norm(x).chunk(2, 1)
        c = torch.cond(y.sum() > 0, lambda a: a.sin() + 1, lambda a: torch.nn.functional.gelu(a), (a,))
        return c, b.clamp(max=float("inf")).to(torch.float64), x.new_zeros(x.shape[0]) + self.count


ARGS = (torch.randn(3, 4), torch.ones(2))


@pytest.fixture(scope="module")
def exported():
    return export(Everything().eval(), ARGS, dynamic_shapes=({0: Dim("n", min=2)}, None))


def leaves(program, *args):
    return torch.utils._pytree.tree_leaves(program.module()(*args))


def same(first, second, *args) -> bool:
    pairs = zip(leaves(first, *args), leaves(second, *args), strict=True)
    return all(torch.equal(a, b) and a.dtype == b.dtype for a, b in pairs)


@pytest.mark.parametrize("stage", ["captured", "edge"])
def test_programs_survive_the_round_trip(exported, stage):
    program = exported if stage == "captured" else to_edge(exported).exported_program()
    back = serde.deserialize(serde.serialize(program))
    assert same(program, back, *ARGS) and same(program, back, torch.randn(7, 4), -ARGS[1])
    handles = [
        [(str(n.target), n.meta.get("debug_handle")) for n in calls(p) if n.target is not operator.getitem]
        for p in (program, back)
    ]
    assert handles[0] == handles[1] and any(number for _, number in handles[0]) == (stage == "edge")
    operators = [n.target for n in calls(back) if hasattr(n.target, "_schema")]
    assert all(isinstance(op, EdgeOpOverload) for op in operators) == (stage == "edge")
    again = to_edge(back).to_executorch()
    assert again.operators().keys() == to_edge(exported).to_executorch().operators().keys()


def test_delegates_survive_the_round_trip():
    class Net(torch.nn.Module):
        def forward(self, x):
            return (x + x) * x, x - x

    x = torch.randn(2, 3)
    program = to_edge_transform_and_lower(
        export(Net(), (x,)), partitioner=[NullPartitioner()]
    ).exported_program()
    back = serde.deserialize(serde.serialize(program))
    assert same(program, back, x)
    (original,), (restored,) = (
        [module for name, module in p.graph_module.named_children() if name.startswith("lowered")]
        for p in (program, back)
    )
    assert restored.processed_bytes == original.processed_bytes and restored.backend_id == original.backend_id


def test_files_store_additional_texts(exported, tmp_path):
    serde.save(exported, tmp_path / "net.pt2", extra_files={"note": "grüezi"})
    texts = {}
    assert same(exported, serde.load(tmp_path / "net.pt2", extra_files=texts), *ARGS)
    assert texts == {"note": "grüezi"}
    with pytest.raises(FormatError, match="not a stored program"):
        serde.load(io.BytesIO(b"nothing"))


def test_unreadable_program_raises(exported):
    artifact = serde.serialize(exported)
    record = json.loads(artifact.exported_program)
    with pytest.raises(FormatError, match=r"version 9\.1"):
        changed = {**record, "schema_version": {"major": 9, "minor": 1}}
        serde.deserialize(artifact._replace(exported_program=json.dumps(changed).encode()))
    record["graph_module"]["graph"]["nodes"][0]["target"] = "torch.ops.nobody.knows.default"
    with pytest.raises(FormatError, match="cannot be read") as caught:
        serde.deserialize(artifact._replace(exported_program=json.dumps(record).encode()))
    assert "library" in caught.value.hints[0]
    with pytest.raises(FormatError, match="cannot be read"):
        serde.deserialize(artifact._replace(state_dict=artifact.state_dict[:100]))


def test_unstorable_program_raises():
    program = export(torch.nn.ReLU(), (torch.ones(1),))
    del next(node for node in program.graph.nodes if node.op == "call_function").meta["val"]
    with pytest.raises(UnsupportedError, match="cannot be stored"):
        serde.serialize(program)
