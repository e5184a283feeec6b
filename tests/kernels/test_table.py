# SPDX-License-Identifier: BSD-3-Clause
# The kernel table compared with torch's schemas. A name that torch does not know, or an argument at another position or
# of another type, fails here instead of crashing in C++.
from __future__ import annotations

import re

import pytest
import torch

import torchette.backends.engine.operators  # noqa: F401  declares the engine's
from torchette.build import kernels
from torchette.cli.ops import coverage
from torchette.exir import ops  # noqa: F401  declares the dim order operators
from torchette.runtime import _native

OPERATORS = dict(_native.operators())
CODES = {
    "Tensor": "T", "number": "s", "int": "i", "SymInt": "i", "ScalarType": "i", "MemoryFormat": "i", "Layout": "i",
    "float": "d", "bool": "b", "str": "S", "List[int]": "I", "List[SymInt]": "I", "List[float]": "D",
    "List[bool]": "B", "List[Tensor]": "L", "List[Optional[Tensor]]": "O",
}  # fmt: skip
NAMESPACES = {"dim_order_ops": "torchette_dim_order"}
# Operators without a torch schema. The quantized ones are those of ExecuTorch's kernels/quantized/quantized.yaml.
OTHERS = {
    "quantized_decomposed::add.out": "TdiiiTdiiidiiit",
    "quantized_decomposed::mixed_mm.out": "TTT?Tt",
    "quantized_decomposed::mixed_linear.out": "TTT?T?it",
    "quantized_decomposed::quantize_per_tensor.out": "Tdiiiit",
    "quantized_decomposed::quantize_per_tensor.Tensor_out": "TTTiiit",
    "quantized_decomposed::dequantize_per_tensor.out": "Tdiiii?it",
    "quantized_decomposed::dequantize_per_tensor.Tensor_out": "TTTiii?it",
    "quantized_decomposed::quantize_per_channel.out": "TTTiiiit",
    "quantized_decomposed::dequantize_per_channel.out": "TT?Tiiii?it",
    "quantized_decomposed::quantize_per_token.out": "TTTiiit",
    "quantized_decomposed::dequantize_per_token.out": "TTTiiiit",
    "quantized_decomposed::choose_qparams.Tensor_out": "Tiiditt",
    "quantized_decomposed::choose_qparams_per_token_asymmetric.out": "Titt",
    **{
        f"quantized_decomposed::embedding_{kind}.{overload}": f"TT?TiiT{more}t"
        for kind in ("byte", "4bit", "2bit")
        for overload, more in (("out", ""), ("dtype_out", "?i"))
    },
    "llama::custom_sdpa.out": "TTTi?Tdb?dt",
    "llama::sdpa_with_kv_cache.out": "TTTttii?Tdb?dt",
    "llama::update_cache.out": "Ttit",
    "llama::update_cache_with_indices.out": "TtiTt",
    "dim_order_ops::_empty_dim_order.out": "I?It",
    "et_copy::_d2h_copy.out": "Tt",
    "et_copy::_h2d_copy.out": "Tt",
    "executorch_prim::et_view.default": "TIt",
    "executorch_prim::et_copy_index.tensor": "tTi",
}


def code_of(argument: torch.Argument) -> str:
    kind = str(argument.type)
    optional = kind.startswith("Optional[")
    if optional:
        kind = kind.removeprefix("Optional[").removesuffix("]")
    code = CODES[kind]
    if code == "T" and argument.alias_info is not None and argument.alias_info.is_write:
        return "t"
    return "?" * optional + code


def signature_of(schema: torch.FunctionSchema) -> str:
    codes = "".join(code_of(argument) for argument in schema.arguments)
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in schema.arguments)
    return codes if writes else codes + "v" * len(schema.returns)


@pytest.mark.parametrize(
    "name", [n for n in OPERATORS if not n.startswith("executorch_prim::") and n not in OTHERS]
)
def test_signature_is_the_schema(name: str) -> None:
    namespace, _, qualified = name.partition("::")
    operator, _, overload = qualified.partition(".")
    packet = getattr(getattr(torch.ops, NAMESPACES.get(namespace, namespace)), operator)
    op = getattr(packet, overload or "default")
    assert OPERATORS[name] == signature_of(op._schema), op._schema


@pytest.mark.parametrize(
    "name", [n for n in OPERATORS if n.startswith("executorch_prim::") and n not in OTHERS]
)
def test_scalar_operators_accept_scalars_and_return_one(name: str) -> None:
    assert set(OPERATORS[name][:-1]) == {"s"} and OPERATORS[name][-1] in "vm"


@pytest.mark.parametrize("name", OTHERS)
def test_signature_of_the_formats_own_operators(name: str) -> None:
    assert OPERATORS[name] == OTHERS[name]


def test_names_are_unique() -> None:
    names = [name for name, _ in _native.operators()]
    assert len(names) == len(set(names))


def test_every_operator_of_the_peer_exists() -> None:
    """ExecuTorch files contain the same operator names."""
    portable = pytest.importorskip("executorch.extension.pybindings.portable_lib")
    assert set(portable._get_operator_names()) - set(OPERATORS) == set()


def test_every_core_operator_runs() -> None:
    assert [row["operator"] for row in coverage(set(OPERATORS)) if not row["runs as"]] == []


def test_a_family_has_the_name_of_its_source() -> None:
    """The build generates the list of families from file names, regardless of directories."""
    names = [source.rpartition("/")[2] for source in kernels.sources()]
    assert len(set(names)) == len(names)
    assert set(kernels.library()) == set(OPERATORS)
    for source in kernels.families():
        text = (kernels.KERNELS / source).read_text(encoding="utf-8")
        (registered,) = re.findall(
            r"^TORCHETTE_(?:KERNELS|KERNELS_ONCE|KERNELS_NARROW|FAMILY)\(\s*(\w+)", text, re.M
        )
        assert f"{registered}.cpp" == source.rpartition("/")[2]
