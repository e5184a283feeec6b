# SPDX-License-Identifier: BSD-3-Clause
# In: an operator. Out: its properties, derived from torch's schemas and tags. Also declares, with torch.library, the
# few operators that ExecuTorch's format has and torch lacks.
"""Properties of operators: out variant, view, pointwise, random, and the name in the file."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeGuard

import torch
from torch._ops import HigherOrderOperator, OpOverload, OpOverloadPacket
from torch.fx import Node

from torchette.errors import MissingOutVariantError
from torchette.exir.arguments import overload

aten = torch.ops.aten

# Arguments of a functional overload that an out overload does not have, because the out tensor implies them.
IMPLIED_BY_OUT = frozenset({"dtype", "layout", "device", "pin_memory"})

# Functions of Python and `math` that a graph may call, on symbolic integers and floats only.
SYMBOLIC_FUNCTIONS: frozenset[Any] = frozenset(
    {
        operator.add, operator.sub, operator.mul, operator.floordiv, operator.truediv, operator.mod, operator.neg,
        operator.pow, operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.and_,
        operator.or_, operator.xor, operator.lshift, operator.rshift, operator.abs, abs, operator.not_, operator.pos, round,
        torch.sym_int, torch.sym_float, torch.sym_ite, torch.sym_max, torch.sym_min, torch.sym_not, torch.sym_sqrt,
        torch.sym_sum,
    }
    | {math.ceil, math.floor, math.trunc}
)  # fmt: skip

# Operators on shapes, and assertions. They yield no tensor.
SYMBOLIC_OPERATORS: frozenset[Any] = frozenset(
    {
        aten.sym_size.int, aten.sym_numel.default, aten.sym_stride.int, aten.sym_storage_offset.default,
        aten._local_scalar_dense.default, aten.sym_constrain_range.default,
        aten.sym_constrain_range_for_size.default, aten._assert_scalar.default,
        aten._assert_async.msg, aten._assert_async.default, aten._assert_tensor_metadata.default,
    }
)  # fmt: skip

# The only assertion from the Edge dialect on. Its operands are a number or condition that must not be false, and a
# text.
assert_scalar: OpOverload = aten._assert_scalar.default

ASSERTIONS: frozenset[Any] = frozenset(
    {
        assert_scalar, aten._assert_async.msg, aten._assert_async.default, aten._assert_tensor_metadata.default,
        aten.sym_constrain_range.default, aten.sym_constrain_range_for_size.default,
    }
)  # fmt: skip


# Operators outside torch's core set that are not decomposed. `linear` reads its weight in the stored layout. The others
# have a kernel, and their decomposition is slower or does not exist.
EXTRAS: frozenset[OpOverload] = frozenset(
    {
        aten.linear.default, aten.masked_select.default, aten.unfold.default, aten.bitwise_left_shift.Tensor,
        aten.bitwise_left_shift.Tensor_Scalar, aten.bitwise_right_shift.Tensor,
        aten.bitwise_right_shift.Tensor_Scalar, aten.adaptive_max_pool2d.default, aten.adaptive_max_pool3d.default,
        aten.upsample_nearest1d.default, aten.upsample_nearest3d.default, aten._upsample_nearest_exact1d.default,
        aten._upsample_nearest_exact2d.default, aten._upsample_nearest_exact3d.default,
        aten.upsample_linear1d.default, aten.upsample_bilinear2d.default, aten.upsample_trilinear3d.default,
        aten.upsample_bicubic2d.default, aten._upsample_bilinear2d_aa.default, aten._upsample_bicubic2d_aa.default,
        aten.grid_sampler_3d.default, aten.scatter.reduce, aten.scatter.value_reduce, aten.index_reduce.default,
        aten._embedding_bag_forward_only.default,
        aten.angle.default, aten.copysign.Tensor, aten.digamma.default, aten.erfc.default, aten.erfinv.default,
        aten.fmax.default, aten.fmin.default, aten.gcd.default, aten.hypot.default, aten.i0.default, aten.igamma.default,
        aten.igammac.default, aten.lcm.default, aten.lgamma.default, aten.nextafter.default, aten.polygamma.default,
        aten.signbit.default, aten._linalg_eigh.default, aten._linalg_svd.default, aten.geqrf.default,
        aten.linalg_cholesky_ex.default, aten.linalg_ldl_factor_ex.default, aten.linalg_ldl_solve.default,
        aten.linalg_lu_factor_ex.default, aten.linalg_lu_solve.default, aten.linalg_matrix_exp.default,
        aten.linalg_solve_triangular.default, aten.lu_unpack.default, aten.ormqr.default, aten.randint.default, aten.randint.low,
        aten.special_airy_ai.default, aten.special_bessel_j0.default, aten.special_bessel_j1.default,
        aten.special_bessel_y0.default, aten.special_bessel_y1.default,
        aten.special_scaled_modified_bessel_k0.default, aten.special_scaled_modified_bessel_k1.default,
        aten.special_spherical_bessel_j0.default,
        aten.special_chebyshev_polynomial_t.default,
        aten.special_chebyshev_polynomial_u.default,
        aten.special_chebyshev_polynomial_v.default,
        aten.special_chebyshev_polynomial_w.default,
        aten.special_hermite_polynomial_h.default,
        aten.special_hermite_polynomial_he.default,
        aten.special_laguerre_polynomial_l.default,
        aten.special_legendre_polynomial_p.default,
        aten.special_erfcx.default, aten.special_i0e.default, aten.special_i1.default,
        aten.special_i1e.default, aten.special_ndtri.default, aten.special_zeta.default, aten.var_mean.correction,
        aten.view_as_complex.default, aten.view_as_real.default,
        aten.cummax.default, aten.cummin.default, aten.cumprod.default, aten.logcumsumexp.default,
        aten.kthvalue.default, aten.median.default, aten.median.dim, aten.mode.default, aten.nanmedian.default,
        aten.nanmedian.dim, aten.searchsorted.Scalar, aten.searchsorted.Tensor, aten.bucketize.Scalar,
        aten.bucketize.Tensor, aten.histc.default, aten.bincount.default, aten._unique2.default,
        aten.unique_dim.default, aten.unique_consecutive.default, aten.nonzero_static.default,
        aten.repeat_interleave.Tensor, aten.hash_tensor.default,
    }
)  # fmt: skip


def is_operator(target: object) -> TypeGuard[OpOverload]:
    """Returns whether the target is one overload of a registered operator. A graph may call no other function on
    tensors."""
    return isinstance(target, OpOverload)


def is_symbolic(target: object) -> bool:
    """Returns whether the target operates on symbolic scalars and yields no tensor."""
    return target in SYMBOLIC_FUNCTIONS or target in SYMBOLIC_OPERATORS


def is_higher_order(target: object) -> bool:
    """Returns whether the target calls subgraphs, such as `torch.cond`, `map` and `while_loop`."""
    return isinstance(target, HigherOrderOperator)


def is_flat_apply(target: object) -> bool:
    """Returns whether the target applies a Python function inside `torch.vmap`. Its function and the structure of its
    arguments are attributes, but not tensors. Decomposition traces the function."""
    return isinstance(target, HigherOrderOperator) and bool(target.name() == "flat_apply")


def is_delegate(target: object) -> bool:
    """Returns whether the target is the call of a delegate."""
    return isinstance(target, HigherOrderOperator) and bool(target.name() == "executorch_call_delegate")


@functools.cache
def is_view(op: OpOverload) -> bool:
    """Returns whether the result shares its input's memory. The Edge dialect has no such operators."""
    return isinstance(op, OpOverload) and not is_mutating(op) and any(_aliases(r) for r in op._schema.returns)


@functools.cache
def is_mutating(op: OpOverload) -> bool:
    """Returns whether the operator writes to one of its arguments: an in-place or an out overload."""
    return isinstance(op, OpOverload) and any(writes(argument) for argument in op._schema.arguments)


@functools.cache
def is_out_variant(op: OpOverload) -> bool:
    """Returns whether the operator writes its results to keyword-only arguments, and to no other argument."""
    if not isinstance(op, OpOverload):
        return False
    written = [argument for argument in op._schema.arguments if writes(argument)]
    return bool(written) and all(argument.kwarg_only for argument in written)


@functools.cache
def is_pointwise(op: OpOverload) -> bool:
    """Returns whether each element of the result depends only on the same element of the (broadcast) inputs."""
    return isinstance(op, OpOverload) and torch.Tag.pointwise in op.tags


# Each operator reads and writes only the elements that the other operands select. The other elements of `self` are
# unchanged, so that a result in the storage of `self` needs no copy.
PARTIAL_UPDATES: frozenset[Any] = frozenset(
    {
        aten.index_put.default, aten.slice_scatter.default, aten.select_scatter.default,
        aten.scatter.src, aten.scatter.value, aten.scatter_add.default,
    }
)  # fmt: skip


# Operator of a target -> names of the arguments whose storage its kernel may overwrite with the result.
OVERWRITABLE: dict[Any, tuple[str, ...]] = {}


def overwritable(node: Node) -> list[Node]:
    """Returns the operands whose storage a call may overwrite with its result if nothing else reads them then or
    later."""
    target = node.meta.get("functional", node.target)
    if target in OVERWRITABLE:
        candidates = _nodes_in([argument(node, name) for name in OVERWRITABLE[target]])
        every = _nodes_in((node.args, node.kwargs))
        # Exclude an operand that is also another argument, which is read in another order: x + convolution(x).
        return [one for one in candidates if every.count(one) == candidates.count(one)]
    if target in PARTIAL_UPDATES:
        return [node.args[0]] if isinstance(node.args[0], Node) else []
    return node.all_input_nodes if is_pointwise(target) else []


def _nodes_in(arguments: object) -> list[Node]:
    return [one for one in torch.utils._pytree.tree_leaves(arguments) if isinstance(one, Node)]


@functools.cache
def is_core(op: OpOverload) -> bool:
    """Returns whether the operator is in torch's core ATen operator set."""
    return isinstance(op, OpOverload) and torch.Tag.core in op.tags


@functools.cache
def is_random(op: OpOverload) -> bool:
    """Returns whether each call yields another result."""
    return isinstance(op, OpOverload) and torch.Tag.nondeterministic_seeded in op.tags


@functools.cache
def is_pure(op: OpOverload) -> bool:
    """Returns whether calls can be folded, merged or removed: the result depends on the arguments and there is no side
    effect."""
    return (
        isinstance(op, OpOverload)
        and not is_mutating(op)
        and not is_random(op)
        and op not in ASSERTIONS
        and not op._schema.name.endswith(("::empty", "::empty_like", "::empty_strided", "::empty_permuted"))
    )


@functools.cache
def functional(op: OpOverload) -> OpOverload:
    """Returns the functional overload of an in-place overload: `aten::relu.default` for `aten::relu_.default`. Returns
    any other overload unchanged."""
    if not (isinstance(op, OpOverload) and is_mutating(op)):
        return op
    namespace, name = op._schema.name.split("::")
    if not name.endswith("_"):
        return op
    twin = getattr(getattr(torch.ops, namespace), name[:-1], None)
    return getattr(twin, op._overloadname, op)


@functools.cache
def copying(op: OpOverload) -> OpOverload | None:
    """Returns the copying variant of a view operator, such as `view_copy` for `view`; None if torch has none."""
    namespace, name = op._schema.name.split("::")
    packet = getattr(getattr(torch.ops, namespace), _TWINS.get(name, f"{name}_copy"), None)
    return getattr(packet, op._overloadname, None) if isinstance(packet, OpOverloadPacket) else None


@functools.cache
def is_copying(op: OpOverload) -> bool:
    """Returns whether the operator is the copying variant of a view operator."""
    namespace, _, name = op._schema.name.partition("::")
    if not name.endswith("_copy") or is_mutating(op):
        return False
    view = getattr(getattr(torch.ops, namespace), name.removesuffix("_copy"), None)
    viewing = getattr(view, op._overloadname, None) if isinstance(view, OpOverloadPacket) else None
    return viewing is not None and is_view(viewing)


def all_aten() -> Iterator[OpOverload]:
    """Yields every overload of ATen, sorted by name."""
    # dir(torch.ops.aten) would list only the operators that were used before.
    for full in sorted(torch._C._dispatch_get_all_op_names()):
        namespace, _, qualified = full.partition("::")
        name, _, overload = qualified.partition(".")
        op = getattr(getattr(aten, name, None), overload or "default", None) if namespace == "aten" else None
        if isinstance(op, OpOverload):
            yield op


# View operators whose copying variant is not called `<name>_copy`.
_TWINS = {"_unsafe_view": "view_copy", "_reshape_alias": "view_copy"}


@functools.cache
def tensor_overload(op: OpOverload) -> OpOverload | None:
    """Returns the overload with a tensor operand in place of a scalar one, such as `mul.Tensor` for `mul.Scalar`.
    Returns None if the operator is not pointwise or has no such overload."""
    if (
        not is_pointwise(op)
        or "Scalar" not in op._overloadname
        or op._overloadname.startswith("Scalar_Tensor")
    ):
        return None
    name = op._overloadname.replace("Tensor_Scalar", "Tensor").replace("Scalar", "Tensor")
    twin = getattr(op.overloadpacket, name, None)
    if twin is None or not is_core(twin) or is_mutating(op):
        return None
    ours, theirs = op._schema.arguments, twin._schema.arguments
    same = len(ours) == len(theirs) and all(
        a.name == b.name
        and (str(a.type) == str(b.type) or (str(a.type), str(b.type)) == ("number", "Tensor"))
        for a, b in zip(ours, theirs, strict=True)
    )
    return twin if same else None


@functools.cache
def scalar_overload(op: OpOverload) -> OpOverload | None:
    """Returns the inverse of `tensor_overload`, such as `mul.Scalar` for `mul.Tensor`; None if there is none."""
    for name in op.overloadpacket.overloads():
        twin = getattr(op.overloadpacket, name)
        if "Scalar" in name and tensor_overload(twin) == op:
            result: OpOverload | None = twin
            return result
    return None


@functools.cache
def out_variant(op: OpOverload) -> OpOverload | None:
    """Returns the overload of the same operator that writes its results to tensors of the caller.

    Its schema has the same arguments, without those that the out tensors imply, and one out argument per result or one
    list of them. Returns None if there is no such overload.
    """
    if is_out_variant(op):
        return op
    candidates = (getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads())
    matching = [c for c in candidates if is_out_variant(c) and _is_out_twin(op._schema, c._schema)]
    return min(matching, key=lambda c: len(c._schema.arguments), default=None)


@functools.cache
def functional_overload(op: OpOverload) -> OpOverload | None:
    """Returns the functional overload that an out variant belongs to; None if there is none."""
    candidates = (getattr(op.overloadpacket, name) for name in op.overloadpacket.overloads())
    return next((one for one in candidates if not is_mutating(one) and out_variant(one) == op), None)


def written_arguments(node: torch.fx.Node) -> list[torch.fx.Node]:
    """Returns the tensors that a call writes to."""
    values = [
        argument(node, declared.name) for declared in overload(node)._schema.arguments if writes(declared)
    ]
    flat = [one for value in values for one in (value if isinstance(value, (list, tuple)) else [value])]
    return [one for one in flat if isinstance(one, torch.fx.Node)]


def _is_out_twin(functional: torch.FunctionSchema, out: torch.FunctionSchema) -> bool:
    expected = [a for a in functional.arguments if a.name not in IMPLIED_BY_OUT]
    outs = [a for a in out.arguments if writes(a)]
    offered = [a for a in out.arguments if not writes(a) and a.name not in IMPLIED_BY_OUT]
    if [(a.name, _kind(a)) for a in expected] != [(a.name, _kind(a)) for a in offered]:
        return False
    returns = [str(r.type) for r in functional.returns]
    if returns == ["List[Tensor]"]:
        return [str(a.type) for a in outs] == ["List[Tensor]"]
    return len(outs) == len(returns) and all(str(a.type) == "Tensor" for a in outs)


def _kind(argument: torch.Argument) -> str:
    # Some schemas print `SymInt` for the type that others print as `int`. The file has one integer type.
    return str(argument.type).replace("SymInt", "int")


def out_names(op: OpOverload) -> tuple[str, ...]:
    """Returns the names of the out arguments of an out variant, in the order of its results."""
    return tuple(argument.name for argument in op._schema.arguments if writes(argument))


def tensor_arguments(
    op: OpOverload, args: Sequence[Any], kwargs: dict[str, Any]
) -> Iterable[tuple[int | str, Any]]:
    """Yields (position or name, value) of the arguments whose schema type is a tensor or an optional tensor."""
    for index, argument in enumerate(op._schema.arguments):
        if str(argument.type) in ("Tensor", "Optional[Tensor]"):
            if index < len(args):
                yield index, args[index]
            elif argument.name in kwargs:
                yield argument.name, kwargs[argument.name]


def argument(node: torch.fx.Node, name: str, default: object = None) -> Any:
    """Returns the value of a call's argument: given by position, given by name, or the default of the schema."""
    for index, declared in enumerate(overload(node)._schema.arguments):
        if declared.name == name:
            if not declared.kwarg_only and index < len(node.args):
                return node.args[index]
            if name in node.kwargs:
                return node.kwargs[name]
            return declared.default_value if declared.has_default_value() else default
    return default


def kernel_name(target: OpOverload) -> tuple[str, str]:
    """Returns the (name, overload) of the operator in the file: ('aten::add', 'out')."""
    namespace, name = target._schema.name.split("::")
    return f"{FILE_NAMESPACES.get(namespace, namespace)}::{name}", target._schema.overload_name


def out_schema(op: OpOverload) -> str:
    """Returns the schema, without the namespace, of the out variant that an operator lacks."""
    text = str(op._schema)
    declarations = _split(text[text.index("(") + 1 : text.rindex(") ->")])
    declarations = [a for a in declarations if a.split("=")[0].split()[-1] not in IMPLIED_BY_OUT]
    if "*" not in declarations:
        declarations.append("*")
    outs = _new_out_names(op)
    lists = [str(r.type) == "List[Tensor]" for r in op._schema.returns]
    marks = [f"Tensor({chr(97 + i)}!){'[]' if lists[i] else ''}" for i in range(len(outs))]
    declared = ", ".join([*declarations, *(f"{mark} {out}" for mark, out in zip(marks, outs, strict=True))])
    returned = ", ".join(marks) if not any(lists) else ""
    returned = returned if len(outs) == 1 and not any(lists) else f"({returned})"
    return f"{_new_out_variant(op)}({declared}) -> {returned}"


def declare_out_variant(op: OpOverload, kernel: Callable[..., Any] | None = None) -> OpOverload | None:
    """Declares and returns the out variant of a functional operator that has none.

    Args:
        kernel: implementation of the out variant. By default it calls the operator and copies the results.

    Returns:
        The out variant, or None if it cannot be declared: the operator belongs to torch, or it returns something other
        than new tensors.
    """
    namespace = op._schema.name.partition("::")[0]
    returns = op._schema.returns
    tensors = (
        ["List[Tensor]"]
        if len(returns) == 1 and str(returns[0].type) == "List[Tensor]"
        else ["Tensor"] * len(returns)
    )
    if namespace in ("aten", "prim", "prims") or not returns or [str(r.type) for r in returns] != tensors:
        return None
    if any(_aliases(item) for item in (*op._schema.arguments, *returns)):
        return None
    library = torch.library.Library(namespace, "FRAGMENT")
    _declared.append(library)
    schema = out_schema(op)
    library.define(schema)
    library.impl(
        schema.split("(")[0], kernel or functools.partial(_copy_to_outs, op), "CompositeExplicitAutograd"
    )
    out_variant.cache_clear()
    return out_variant(op)


_declared: list[torch.library.Library] = []  # a declaration is removed when its Library object is destroyed


def _copy_to_outs(op: OpOverload, *args: object, **kwargs: Any) -> Any:
    """Calls an operator and copies its results to the out arguments."""
    variant = out_variant(op)
    assert variant is not None
    outs = [kwargs.pop(name) for name in out_names(variant)]
    results = op(*args, **kwargs)
    if isinstance(outs[0], (list, tuple)):
        outs = list(outs[0])
    for out, result in zip(outs, results if isinstance(results, (list, tuple)) else [results], strict=True):
        out.copy_(result)
    return outs[0] if len(variant._schema.returns) == 1 else tuple(outs)


def _new_out_names(op: OpOverload) -> list[str]:
    count = len(op._schema.returns)
    return ["out"] if count == 1 else [f"out{i}" for i in range(count)]


def _new_out_variant(op: OpOverload) -> str:
    name = op._schema.name.partition("::")[2]
    return f"{name}.{op._schema.overload_name}_out" if op._schema.overload_name else f"{name}.out"


def registration_snippet(op: OpOverload) -> str:
    """Returns Python code that declares the missing out variant of an operator."""
    namespace, name = op._schema.name.split("::")
    variant, outs = _new_out_variant(op), _new_out_names(op)
    count = len(outs)
    lists = [str(r.type) == "List[Tensor]" for r in op._schema.returns]
    parameters, passed = [], []
    for argument in op._schema.arguments:
        if argument.name in IMPLIED_BY_OUT:
            passed += [f"dtype={outs[0]}.dtype"] if argument.name == "dtype" else []
            continue
        if argument.kwarg_only and "*" not in parameters:
            parameters.append("*")
        default = f"={argument.default_value!r}" if argument.has_default_value() else ""
        parameters.append(argument.name + default)
        passed.append(f"{argument.name}={argument.name}" if argument.kwarg_only else argument.name)
    parameters += outs if "*" in parameters else ["*", *outs]
    call = f"torch.ops.{namespace}.{name}({', '.join(passed)})"
    if count == 1 and not any(lists):
        body = [f"    return out.copy_({call})"]
    else:
        body = [
            f"    for out, value in zip({'out' if any(lists) else '(' + ', '.join(outs) + ')'}, {call}):",
            "        out.copy_(value)",
            f"    return {'()' if any(lists) else ', '.join(outs)}",
        ]
    return "\n".join(
        [
            f'library = torch.library.Library("{namespace}", "FRAGMENT")',
            f'library.define("{out_schema(op)}")',
            f'@torch.library.impl(library, "{variant}", "CompositeExplicitAutograd")',
            f"def {variant.replace('.', '_')}({', '.join(parameters)}):",
            *body,
        ]
    )


def _split(arguments: str) -> list[str]:
    """Splits the arguments of a schema at commas outside brackets."""
    parts, depth = [""], 0
    for character in arguments:
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts if part.strip()]


def missing_out_variants(operators_and_places: Sequence[tuple[OpOverload, str]]) -> MissingOutVariantError:
    """Returns one error for all operators without an out variant: (operator, source location) of each."""
    operators = list(dict.fromkeys(op for op, _ in operators_and_places))
    names = [str(op).removesuffix(".default") for op in operators]
    error = MissingOutVariantError(
        f"{len(names)} operator{'s have' if len(names) > 1 else ' has'} no out variant: {', '.join(names)}. "
        "The runtime writes every result into planned memory, so each operator needs an overload with an `out` argument",
        where=[f"{op}: {place}" for op, place in dict.fromkeys(operators_and_places)],
        hints=[f"declare it before compiling:\n{registration_snippet(op)}" for op in operators],
    )
    error.operators = tuple(names)
    return error


def _aliases(item: torch.Argument) -> bool:
    return item.alias_info is not None


def writes(item: torch.Argument) -> bool:
    """Returns whether a call writes to this argument of a schema."""
    return item.alias_info is not None and item.alias_info.is_write


# ExecuTorch's dim-order operators have a dim order in place of a memory format. They are registered in another
# namespace here, so that a process can also import ExecuTorch, which defines `dim_order_ops`.
FILE_NAMESPACES = {"torchette_dim_order": "dim_order_ops", "torchette_prim": "executorch_prim"}
_library = torch.library.Library("torchette_dim_order", "DEF")
for _schema in (
    "_to_dim_order_copy(Tensor self, *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, "
    "bool? pin_memory=None, bool non_blocking=False, int[]? dim_order=None) -> Tensor",
    "_to_dim_order_copy.out(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) "
    "-> Tensor(a!)",
    "_clone_dim_order(Tensor self, *, bool non_blocking=False, int[]? dim_order=None) -> Tensor",
    "_clone_dim_order.out(Tensor self, *, bool non_blocking=False, int[]? dim_order=None, Tensor(a!) out) "
    "-> Tensor(a!)",
):
    _library.define(_schema)


def _copied(tensor: torch.Tensor, dtype: torch.dtype | None, dim_order: Sequence[int] | None) -> torch.Tensor:
    order = list(dim_order) if dim_order is not None else list(range(tensor.dim()))
    result = torch.empty_permuted(tensor.shape, order, dtype=dtype or tensor.dtype, device=tensor.device)
    return result.copy_(tensor)


def _implement(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    return torch.library.impl(_library, name, "CompositeExplicitAutograd")


@_implement("_to_dim_order_copy")
def _to_dim_order_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    dim_order: Sequence[int] | None = None,
    **_: object,
) -> torch.Tensor:
    return _copied(self, dtype, dim_order)


@_implement("_clone_dim_order")
def _clone_dim_order(
    self: torch.Tensor, *, dim_order: Sequence[int] | None = None, **_: object
) -> torch.Tensor:
    return _copied(self, None, dim_order)


@_implement("_to_dim_order_copy.out")
@_implement("_clone_dim_order.out")
def _copied_out(self: torch.Tensor, *, out: torch.Tensor, **_: object) -> torch.Tensor:
    return out.copy_(self)


# Torchette's own operators: the ATen operators return complex tensors.
_own = torch.library.Library("torchette", "DEF")
_own.define("eig(Tensor self) -> (Tensor values, Tensor vectors)")
_own.define(
    "eig.out(Tensor self, *, Tensor(a!) values, Tensor(b!) vectors) -> (Tensor(a!) values, Tensor(b!) vectors)"
)


@torch.library.impl(_own, "eig", "CompositeExplicitAutograd")
def _eig(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.view_as_real(part) for part in aten.linalg_eig.default(x))


eig: OpOverload = torch.ops.torchette.eig.default
"""linalg.eig of real matrices. The results are real pairs in a last dimension of size 2."""

_own.define("grouped_mm(Tensor self, Tensor mat2, Tensor offs) -> Tensor")
_own.define("grouped_mm.out(Tensor self, Tensor mat2, Tensor offs, *, Tensor(a!) out) -> Tensor(a!)")


@torch.library.impl(_own, "grouped_mm", "CompositeExplicitAutograd")
def _grouped_mm(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    result, start = x.new_zeros(x.shape[0], weights.shape[2]), 0
    for weight, end in zip(weights, ends.tolist(), strict=True):
        result[start:end] = x[start:end] @ weight
        start = end
    return result


def _fake_grouped_mm(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], weights.shape[2])


torch.library.register_fake("torchette::grouped_mm", _fake_grouped_mm, lib=_own)


grouped_mm: OpOverload = torch.ops.torchette.grouped_mm.default
"""Multiplies the rows of [rows, k] by one of the matrices [groups, k, n]: rows ends[g - 1] to ends[g] by matrix g. The rows
after the last end become zero."""

# One iteration of a map: writes a slice of the map's result.
_prim = torch.library.Library("torchette_prim", "DEF")
_prim.define("et_copy_index.tensor(Tensor(a!) to, Tensor source, SymInt index) -> Tensor(a!)")


@torch.library.impl(_prim, "et_copy_index.tensor", "CompositeExplicitAutograd")
def _copy_index(to: torch.Tensor, source: torch.Tensor, index: int) -> torch.Tensor:
    to[index] = source
    return to


copy_index: OpOverload = torch.ops.torchette_prim.et_copy_index.tensor
to_dim_order_copy: OpOverload = torch.ops.torchette_dim_order._to_dim_order_copy.default
clone_dim_order: OpOverload = torch.ops.torchette_dim_order._clone_dim_order.default
