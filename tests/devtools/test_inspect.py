# SPDX-License-Identifier: BSD-3-Clause
# `describe` and `torchette inspect` on files of Torchette and ExecuTorch with known content.

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from torchette import cli
from torchette.devtools.inspect import describe, json_schema
from torchette.format import pte


def validate(value: Any, schema: dict[str, Any], root: dict[str, Any], path: str = "$") -> None:
    """Checks a JSON value against the part of JSON Schema that `json_schema` uses, and fails on any other part."""
    known = {
        "$schema",
        "$defs",
        "$ref",
        "description",
        "type",
        "properties",
        "required",
        "additionalProperties",
    }
    assert set(schema) <= known | {"items", "anyOf"}, (
        f"{path}: the validator does not know {set(schema) - known}"
    )
    if "$ref" in schema:
        validate(value, root["$defs"][schema["$ref"].rpartition("/")[2]], root, path)
    if "anyOf" in schema:
        failures = []
        for choice in schema["anyOf"]:
            try:
                validate(value, choice, root, path)
                break
            except AssertionError as error:
                failures.append(str(error))
        else:
            raise AssertionError(failures)
    types = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}
    if "type" in schema:
        assert isinstance(value, types[schema["type"]]) and not isinstance(value, bool), f"{path}: {value!r}"
    for name in schema.get("required", ()):
        assert name in value, f"{path} has no {name}"
    if isinstance(value, dict):
        for name, item in value.items():
            inner = schema.get("properties", {}).get(name, schema.get("additionalProperties", {}))
            assert inner is not False, f"{path} has an unknown {name}"
            validate(item, inner, root, f"{path}.{name}")
    if isinstance(value, list):
        for index, item in enumerate(value):
            validate(item, schema.get("items", {}), root, f"{path}[{index}]")


def scaled_sum() -> bytes:
    """Two methods with a shared weight: x[2, 3] + w, planned, with a stored source line; and a constant method."""

    def tensor(**arguments: Any) -> Any:
        return pte.EValue(
            pte.Tensor(scalar_type=pte.ScalarType.FLOAT, sizes=[2, 3], dim_order=[0, 1], **arguments)
        )

    weight = pte.ExtraTensorInfo(fully_qualified_name="layer.weight")
    plan = pte.ExecutionPlan(
        name="forward",
        container_meta_type=pte.ContainerMetadata(
            '[1, {"type": "builtins.tuple", "context": "null", "children_spec": [{"type": "builtins.tuple", "context": '
            '"null", "children_spec": []}, {"type": "builtins.dict", "context": "[\\"x\\"]", "children_spec": '
            '[{"type": null, "context": null, "children_spec": []}]}]}]',
            "not a tree",
        ),
        values=[
            tensor(data_buffer_idx=1, extra_tensor_info=weight),
            tensor(shape_dynamism=pte.TensorShapeDynamism.DYNAMIC_BOUND),
            pte.EValue(pte.Double(float("-inf"))),
            tensor(allocation_info=pte.AllocationDetails(1, 64)),
        ],
        inputs=[1],
        outputs=[3],
        chains=[
            pte.Chain(
                instructions=[pte.Instruction(pte.KernelCall(0, [1, 0, 2, 3, 3]))],
                stacktrace=[
                    pte.FrameList(
                        [
                            pte.Frame("/home/me/model.py", 12, "forward", "return self.layer(x)"),
                            pte.Frame("/v/site-packages/torch/nn/modules/linear.py", 3, "forward", "..."),
                        ]
                    )
                ],
            )
        ],
        operators=[pte.Operator("aten::add", "out")],
        non_const_buffer_sizes=[0, 1024],
    )
    number = pte.ExecutionPlan(name="answer", values=[pte.EValue(pte.Int(42))], outputs=[0])
    named = tensor(extra_tensor_info=pte.ExtraTensorInfo(fully_qualified_name="image"))
    twice = pte.ExecutionPlan(
        name="weight", values=[tensor(data_buffer_idx=1), named], inputs=[1], outputs=[0]
    )
    return bytes(pte.write(pte.Program(execution_plan=[plan, number, twice]), [b"", bytes(24)]))


def test_describes_known_file() -> None:
    data = scaled_sum()
    description = describe(data)
    forward, answer, _ = description.methods
    assert [(port.name, port.text) for port in forward.inputs] == [("x", "float32[2, 3] at most")]
    assert [port.name for port in description.methods[2].inputs] == ["image"]
    assert [(port.name, port.text) for port in forward.outputs] == [("output[0]", "float32[2, 3]")]
    (instruction,) = forward.instructions
    assert (instruction.op, instruction.inputs, instruction.outputs) == ("aten::add.out", [1, 0, 2], [3])
    assert (instruction.source[0].file, instruction.source[0].line) == ("/home/me/model.py", 12)
    out = forward.values[3].tensor
    assert out is not None
    assert (out.storage, out.memory_id, out.memory_offset, out.nbytes) == ("planned", 1, 64, 24)
    assert [(buffer.id, buffer.nbytes) for buffer in forward.planned_buffers] == [(1, 1024)]
    assert answer.values[0].value == 42
    (weight,) = description.constants
    assert (weight.nbytes, weight.uses, weight.names) == (24, 2, ["layer.weight"])
    assert description.bytes_by_use["weights"] == 24
    assert sum(description.bytes_by_use.values()) == description.nbytes == len(data)
    (segment,) = description.segments
    assert (segment.offset, segment.nbytes, segment.holds) == (len(data) - 24, 24, "weights")


def test_modules_and_parts_of_delegates_are_frames_without_a_file() -> None:
    delegate = pte.FrameList(
        [
            pte.Frame("", 7, "layers.0", "Linear"),
            pte.Frame("net.py", 3, "forward", ""),
            pte.Frame("", 8, "layers.1", "ReLU"),
            pte.Frame("", 0, "layers", "Sequential"),
            pte.Frame("net.py", 9, "forward", ""),
        ]
    )
    top = pte.FrameList([pte.Frame("net.py", 12, "forward", "x + 1")])
    only_parts = pte.FrameList([pte.Frame("", 2, "a", "B")])
    plan = pte.ExecutionPlan(
        name="forward",
        values=[pte.EValue(pte.Int(1))],
        chains=[
            pte.Chain(
                instructions=[pte.Instruction(pte.MoveCall(0, 0))] * 3,
                stacktrace=[delegate, top, only_parts],
            )
        ],
        non_const_buffer_sizes=[0],
    )
    first, second, third = (
        describe(bytes(pte.write(pte.Program(execution_plan=[plan])))).methods[0].instructions
    )
    assert [(part.handle, part.module, part.module_type, len(part.source)) for part in first.parts] == [
        (7, "layers.0", "Linear", 1),
        (8, "layers.1", "ReLU", 0),
    ]
    assert (first.module, first.module_type, first.source[0].line) == ("layers", "Sequential", 9)
    assert (second.module, second.parts, second.source[0].code) == ("", [], "x + 1")
    assert (third.module, third.source, third.parts[0].handle) == ("", [], 2)


def test_text_contains_main_values() -> None:
    text = str(describe(scaled_sum()))
    (line,) = (line for line in text.splitlines() if "aten::add.out" in line)
    assert "%1 float32[2, 3] at most unplanned, %0 float32[2, 3] constant 1, '-inf'" in line
    assert "%3 float32[2, 3] @1+64" in line
    assert line.endswith("model.py:12")


def test_control_characters_in_names_are_escaped() -> None:
    plan = pte.ExecutionPlan(name="\x1b[2Jforward\n", values=[], non_const_buffer_sizes=[0])
    text = str(describe(bytes(pte.write(pte.Program(execution_plan=[plan])))))
    assert "\x1b" not in text and "method \\x1b[2Jforward\\n" in text


def test_json_validates_against_its_schema() -> None:
    schema = json_schema()
    for data in (scaled_sum(), bytes(pte.write(pte.Program()))):
        validate(json.loads(describe(data).to_json()), schema, schema)
    broken = json.loads(describe(scaled_sum()).to_json())
    broken["methods"][0]["values"][0]["tensor"]["sizes"] = ["2"]
    with pytest.raises(AssertionError, match=r"sizes"):
        validate(broken, schema, schema)


@pytest.mark.parametrize(
    "name", ["stateful", "initialised", "dynamic", "bare", "convolutions", "delegated", "mixed"]
)
def test_describes_executorch_files(name: str) -> None:
    pytest.importorskip("executorch.exir")
    from tests.format.peer_files import peer_file

    description = describe(peer_file(name))
    schema = json_schema()
    validate(json.loads(description.to_json()), schema, schema)
    assert [method.name for method in description.methods] == ["forward", "version"]
    forward = description.methods[0]
    assert sum(description.bytes_by_use.values()) == description.nbytes
    for instruction in forward.instructions:
        assert (instruction.outputs and not set(instruction.outputs) & set(instruction.inputs)) or (
            instruction.op == "aten::copy_"
        )
    inputs, outputs = [[port.name for port in ports] for ports in (forward.inputs, forward.outputs)]
    if name == "mixed":
        assert inputs == ["args[0]", "scale"]
        assert outputs == [f"output[{index}]" for index in range(4)]
        topk = next(item for item in forward.instructions if item.op == "aten::topk.values")
        assert topk.outputs and len(topk.outputs) == 2 and len(topk.inputs) == 5
    if name == "delegated":
        assert [(item.backend, item.nbytes > 100) for item in forward.delegates] == [("XnnpackBackend", True)]
        (call,) = (item for item in forward.instructions if item.kind == "delegate")
        assert call.op == "XnnpackBackend" and call.inputs == [forward.inputs[0].index]
        assert description.bytes_by_use["delegates"] > 0 and description.named_data
    if name == "initialised":
        (count,) = (
            value.tensor for value in forward.values if value.tensor and value.tensor.storage == "initialised"
        )
        assert (count.sizes, count.memory_id) == ([4], 1)
        assert [item.kind for item in description.constants if item.kind == "initial"] == ["initial"]
    if name == "convolutions":
        assert outputs == ["output['map']", "output['flat']"]
        assert "peer_files.py:" in str(description)


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.pte"
    path.write_bytes(scaled_sum())
    assert cli.main(["inspect", str(path)]) == 0
    assert "aten::add.out" in capsys.readouterr().out
    assert cli.main(["inspect", str(path), "--brief"]) == 0
    assert "model.py" not in capsys.readouterr().out
    assert cli.main(["inspect", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == describe(path).to_dict()
    assert cli.main(["inspect", "--schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()
    path.write_bytes(scaled_sum()[:100])
    assert cli.main(["inspect", str(path)]) == 2
    assert "model.pte" in capsys.readouterr().err
    assert cli.main(["inspect"]) == 2


def test_inputs_of_a_compiled_model_have_their_arguments_names() -> None:
    torch = pytest.importorskip("torch")
    from torchette.exir import to_edge

    class Net(torch.nn.Module):
        def forward(self, image: Any, sizes: dict[str, Any], *, scale: Any) -> Any:
            return image * sizes["h"] * scale

    one = torch.ones(2, 3)
    exported = torch.export.export(Net(), (one, {"h": one.clone()}), {"scale": one.clone()})
    forward = describe(bytes(to_edge(exported).to_executorch().buffer)).methods[0]
    assert [port.name for port in forward.inputs] == ["image", "args[1]['h']", "scale"]
    assert [port.text for port in forward.inputs] == ["float32[2, 3]"] * 3
