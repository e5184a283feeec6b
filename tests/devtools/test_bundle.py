# SPDX-License-Identifier: BSD-3-Clause
# Bundled programs in Python are written, run and compared with their expected outputs; ExecuTorch reads them.

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torchette  # noqa: E402
from torchette.devtools.bundle import (  # noqa: E402
    BundledModule,
    BundledProgram,
    MethodTestCase,
    MethodTestSuite,
    Module,
    load_bundled_program,
)
from torchette.errors import ExecutionError, FormatError, InputError, ModelNotFoundError  # noqa: E402
from torchette.format import bundled  # noqa: E402


class Mixed(torch.nn.Module):
    def forward(self, x, n):
        return x.transpose(0, 1) * 2, n > 3


INPUTS = (torch.arange(6.0).reshape(2, 3), torch.tensor([1, 5]))


@pytest.fixture(scope="module")
def program() -> bytes:
    return torchette.compile(Mixed().eval(), INPUTS).program.buffer


@pytest.fixture(scope="module")
def contents(program: bytes) -> bytes:
    right, wrong = Mixed()(*INPUTS), (Mixed()(*INPUTS)[0] + torch.eye(3, 2), INPUTS[1] > 3)
    cases = [MethodTestCase(INPUTS, right), MethodTestCase(INPUTS, wrong), MethodTestCase(INPUTS)]
    return BundledProgram(program, [MethodTestSuite("forward", cases)]).serialize()


def test_outputs_are_compared_with_the_case(contents: bytes, tmp_path: Path) -> None:
    (tmp_path / "net.bpte").write_bytes(contents)
    bundle = load_bundled_program(tmp_path / "net.bpte")
    module = Module(bundle.program)
    outputs = module.verify_result_with_bundled_expected_output(bundle, "forward", 0)
    assert torch.equal(outputs[0], INPUTS[0].t() * 2) and outputs[1].tolist() == [False, True]
    with pytest.raises(
        ExecutionError, match=r"case 1 .*output 0 differs in 2 of 6 elements; largest difference 1"
    ) as caught:
        module.verify_result_with_bundled_expected_output(bundle, "forward", 1)
    assert caught.value.code == "output-differs"
    module.verify_result_with_bundled_expected_output(bundle, "forward", 1, atol=1.1)
    module.load_bundled_input(bundle, "forward", 2)
    assert torch.equal(module.plan_execute("forward")[0], outputs[0])
    assert module.method_names() == ["forward"] and module.method_meta("forward").num_inputs() == 2


def test_bundle_verifies_its_own_program(contents: bytes) -> None:
    bundle = BundledModule(contents)
    (first, _) = bundle.verify_result_with_bundled_expected_output("forward", 0)
    assert torch.equal(first, INPUTS[0].t() * 2)
    with pytest.raises(ExecutionError, match=r"case 1 .*output 0 differs in 2 of 6 elements"):
        bundle.verify_result_with_bundled_expected_output("forward", 1)
    bundle.verify_result_with_bundled_expected_output("forward", 1, atol=1.1)


def test_errors_name_the_problem(contents: bytes, program: bytes, tmp_path: Path) -> None:
    bundle = BundledModule(contents)
    module = Module(program)
    with pytest.raises(InputError, match="has 3 cases for method 'forward'; index 3 is out of range"):
        module.load_bundled_input(bundle, "forward", 3)
    with pytest.raises(InputError, match="has 0 cases for method 'other'"):
        bundle.case("other", 0)
    with pytest.raises(InputError, match="case 2 of method 'forward' has no expected outputs"):
        module.verify_result_with_bundled_expected_output(bundle, "forward", 2)
    with pytest.raises(InputError, match="case 0 of method 'forward' has 1 input, expected 2"):
        BundledProgram(program, [MethodTestSuite("forward", [MethodTestCase(INPUTS[:1])])])
    with pytest.raises(InputError, match="one program"):
        BundledProgram(program, [], tmp_path / "net.pte")
    with pytest.raises(ModelNotFoundError):
        load_bundled_program(tmp_path / "none.bpte")
    with pytest.raises(FormatError, match="not a bundled program"):
        BundledModule(program)
    record = bundled.read(contents)
    record.method_test_suites[0].test_cases[0].inputs[0].val.sizes = [2, 5]
    with pytest.raises(FormatError, match="has 24 bytes for"):
        BundledModule(bundled.write(record)).case("forward", 0)


def test_executorch_reads_bundle(contents: bytes, program: bytes) -> None:
    theirs = pytest.importorskip("executorch.devtools.bundled_program.serialize")
    record = theirs.deserialize_from_flatbuffer_to_bundled_program(contents)
    assert bytes(record.program) == program
    (suite,) = record.method_test_suites
    assert suite.method_name == "forward" and [len(case.expected_outputs) for case in suite.test_cases] == [
        2,
        2,
        0,
    ]
    tensor, count = (value.val for value in suite.test_cases[0].inputs)
    assert (tensor.sizes, bytes(tensor.data)) == ([2, 3], INPUTS[0].numpy().tobytes())
    assert (count.sizes, bytes(count.data)) == ([2], INPUTS[1].numpy().tobytes())


def test_a_bundle_is_read_back_as_records(contents: bytes, program: bytes) -> None:
    from torchette.devtools.bundled_program.schema import BundledProgram as Record
    from torchette.devtools.bundled_program.serialize import deserialize_from_flatbuffer_to_bundled_program

    record = deserialize_from_flatbuffer_to_bundled_program(contents)
    assert isinstance(record, Record) and bytes(record.program) == program
    assert bundled.write(record) == contents
