# SPDX-License-Identifier: BSD-3-Clause
# In: calls of torch functions whose implementation reads tensor values, which torch.export cannot capture. Out:
# equivalent computations that it can capture. Active only while a module is captured.
"""`Rewrites`: replacements of torch functions that cannot be captured."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

import torch
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional
from torch.nn.attention import flex_attention
from torch.nn.modules import transformer
from torch.overrides import TorchFunctionMode


class Rewrites(TorchFunctionMode):
    """A mode in which the functions of TABLE replace torch functions, unless they return NotImplemented."""

    def __enter__(self) -> Rewrites:
        self._detect = transformer._detect_is_causal_mask
        transformer._detect_is_causal_mask = _is_causal_hint
        # Calls the operator directly instead of through torch.compile, so that TABLE applies to it.
        self._uncompiled = flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG
        flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = True
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        transformer._detect_is_causal_mask = self._detect
        flex_attention._FLEX_ATTENTION_DISABLE_COMPILE_DEBUG = self._uncompiled

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        rewritten = TABLE.get(func)
        result = NotImplemented if rewritten is None else rewritten(*args, **kwargs)
        return func(*args, **kwargs) if result is NotImplemented else result


def _is_causal_hint(
    mask: torch.Tensor | None, is_causal: bool | None = None, size: int | None = None
) -> bool:
    """Returns whether the mask is causal according to the caller's hint. torch would compare the values of the mask."""
    return bool(is_causal)


def _narrow(x: torch.Tensor, dim: int, start: object, length: int) -> Any:
    if not isinstance(start, torch.Tensor):
        return NotImplemented
    size = x.shape[dim]
    start = torch.where(start < 0, start + size, start)
    return x.index_select(dim, start + torch.arange(length))


def _equal(a: torch.Tensor, b: torch.Tensor) -> Any:
    return (a == b).all().item() if a.shape == b.shape else False


def _allclose(
    a: torch.Tensor, b: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> Any:
    return torch.isclose(a, b, rtol, atol, equal_nan).all().item()


def _cov(
    x: torch.Tensor, *, correction: int = 1, fweights: torch.Tensor | None = None,
    aweights: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    rows = x.reshape(1, -1) if x.dim() < 2 else x
    observations = rows.shape[1]
    weights = fweights
    if aweights is not None:
        weights = aweights if fweights is None else fweights * aweights
    total: Any = observations
    if weights is None:
        mean = rows.sum(1, keepdim=True) / observations
        freedom: Any = observations - correction
    else:
        total = weights.sum()
        mean = (rows * weights).sum(1, keepdim=True) / total
        used = total
        if aweights is not None and correction:
            used = (weights * aweights).sum() / total
            freedom = total - correction * used
        else:
            freedom = total - correction
    freedom = freedom.clamp(min=0) if isinstance(freedom, torch.Tensor) else max(freedom, 0)
    centred = rows - mean
    weighted = centred if weights is None else centred * weights
    product = weighted @ centred.T.conj() / freedom
    result: torch.Tensor = product.squeeze()
    return result


def _corrcoef(x: torch.Tensor) -> torch.Tensor:
    product = _cov(x)
    if product.dim() == 0:
        return product / product
    deviation = product.diag().sqrt()
    return (product / deviation.unsqueeze(1) / deviation.unsqueeze(0)).clamp(-1, 1)


def _combinations(x: torch.Tensor, r: int = 2, with_replacement: bool = False) -> Any:
    make: Callable[..., Iterable[Any]] = (
        itertools.combinations_with_replacement if with_replacement else itertools.combinations
    )
    if not isinstance(x.shape[0], int):
        return NotImplemented
    indices = torch.tensor(list(make(range(x.shape[0]), r)), dtype=torch.int64).reshape(-1, r)
    return x[indices] if r else x.new_empty(0)


def _one_hot(x: torch.Tensor, num_classes: int = -1) -> Any:
    if num_classes != -1:
        return NotImplemented
    count = (x.max() + 1).item()
    torch._check(count >= 0)
    return (x.unsqueeze(-1) == torch.arange(count)).to(torch.int64)


def _gaussian_nll(
    input: torch.Tensor, target: torch.Tensor, var: float | torch.Tensor, full: bool = False, eps: float = 1e-6,
    reduction: str = "mean",
) -> torch.Tensor:  # fmt: skip
    if isinstance(var, torch.Tensor):
        if var.size() != input.size() and input.size()[:-1] == var.size():
            var = var.unsqueeze(-1)
        var = var.clamp(min=eps)
    else:
        var = torch.full((), max(var, eps), dtype=input.dtype)
    loss = 0.5 * (torch.log(var) + (input - target) ** 2 / var)
    loss = loss + 0.5 * math.log(2 * math.pi) if full else loss
    return _reduced(loss, reduction)


def _reduced(loss: torch.Tensor, reduction: str) -> torch.Tensor:
    return loss if reduction == "none" else loss.mean() if reduction == "mean" else loss.sum()


def _ctc_loss(
    log_probs: torch.Tensor, targets: torch.Tensor, input_lengths: torch.Tensor | Sequence[int], target_lengths: torch.Tensor | Sequence[int], blank: int = 0,
    reduction: str | int = "mean", zero_infinity: bool = False,
) -> torch.Tensor:  # fmt: skip
    """CTC loss with forward variables (Graves et al., 2006): one row per sample, one column per label or blank."""
    single = log_probs.dim() == 2
    probs = log_probs.unsqueeze(1) if single else log_probs
    steps, batch, _ = probs.shape
    inputs = torch.as_tensor(input_lengths, dtype=torch.int64).reshape(-1)
    lengths = torch.as_tensor(target_lengths, dtype=torch.int64).reshape(-1)
    if targets.dim() == 1 and not single:  # concatenated targets
        longest = targets.shape[0]
        starts = torch.cumsum(lengths, 0) - lengths
        indices = (starts.unsqueeze(1) + torch.arange(longest)).clamp(max=max(longest - 1, 0))
        labels = targets[indices]
    else:
        labels = targets.reshape(batch, -1)
        longest = labels.shape[1]
    columns = torch.arange(2 * longest + 1)
    padded = torch.cat([labels, torch.full((batch, 1), blank, dtype=labels.dtype)], 1).to(torch.int64)
    is_blank = columns % 2 == 0
    states = torch.where(is_blank, blank, padded[:, columns // 2])
    # States beyond a sample's labels have no effect, but must be valid class indices.
    states = torch.where(columns <= 2 * lengths.unsqueeze(1), states, blank)
    before = torch.cat([torch.full((batch, 2), blank), states[:, :-2]], 1)[:, : 2 * longest + 1]
    skips = ~is_blank & (states != before)
    impossible = torch.full((batch, 2 * longest + 1), -math.inf, dtype=probs.dtype)
    alpha = torch.where(columns < 2, probs[0].gather(1, states), impossible)

    def shifted(by: int, values: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.full((batch, by), -math.inf, dtype=values.dtype), values], 1)[
            :, : 2 * longest + 1
        ]

    def running(step: torch.Tensor, *_: torch.Tensor) -> torch.Tensor:
        return step < steps

    def advanced(
        step: torch.Tensor, alpha: torch.Tensor, probs: torch.Tensor, states: torch.Tensor, skips: torch.Tensor,
        inputs: torch.Tensor,
    ) -> tuple[Any, ...]:  # fmt: skip
        ways = torch.stack([alpha, shifted(1, alpha), torch.where(skips, shifted(2, alpha), -math.inf)])
        emitted = probs.index_select(0, step.reshape(1)).squeeze(0).gather(1, states)
        is_active = (step < inputs).unsqueeze(1)
        return step + 1, torch.where(is_active, torch.logsumexp(ways, 0) + emitted, alpha)

    first = torch.ones((), dtype=torch.int64)
    loop = torch.ops.higher_order.while_loop
    alpha = loop(running, advanced, (first, alpha), (probs, states, skips, inputs))[1]
    last = 2 * lengths.unsqueeze(1)
    ends = [alpha.gather(1, last), alpha.gather(1, (last - 1).clamp(min=0))]
    ends[1] = torch.where(last > 0, ends[1], -math.inf)
    loss = -torch.logsumexp(torch.stack(ends), 0).squeeze(1)
    # Without input steps, the loss is 0 if there are no labels, and infinite otherwise.
    loss = torch.where(inputs > 0, loss, torch.where(lengths > 0, math.inf, 0.0).to(loss.dtype))
    loss = torch.where(loss == math.inf, 0.0, loss) if zero_infinity else loss
    loss = loss.squeeze(0) if single else loss
    if reduction in ("mean", 1):
        return (loss / lengths.clamp(min=1).to(loss.dtype).reshape(loss.shape)).mean()
    names: dict[str | int, str] = {0: "none", 2: "sum"}
    return _reduced(loss, names.get(reduction, str(reduction)))


def _lstsq(a: torch.Tensor, b: torch.Tensor, rcond: float | None = None, *, driver: str | None = None) -> Any:
    """Computes least squares with a singular value decomposition. For two of the drivers, the shape of the residuals
    depends on the rank, which is not known at capture."""
    rows, columns = a.shape[-2:]
    by_rank = driver in ("gelss", "gelsd")
    if a.is_complex() or (by_rank and rows > columns):
        return NotImplemented
    of_vectors = b.dim() == 1 or b.shape == a.shape[:-1]
    right = b.unsqueeze(-1) if of_vectors else b
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    least = torch.finfo(a.dtype).eps * max(rows, columns) if rcond is None else rcond
    is_nonzero = s > least * (s.amax(-1, keepdim=True) if s.shape[-1] else 0)
    inverse = torch.where(is_nonzero, s.reciprocal(), 0.0)
    x = vh.mT @ (inverse.unsqueeze(-1) * (u.mT @ right))
    residuals = ((a @ x - right) ** 2).sum(-2) if driver == "gels" and rows > columns else a.new_empty(0)
    rank = torch.empty(0, dtype=torch.int64) if driver == "gels" else is_nonzero.sum(-1)
    values = s if by_rank else a.new_empty(0)
    kind: Any = torch.return_types  # torch adds its members at import
    return kind.linalg_lstsq((x.squeeze(-1) if of_vectors else x, residuals, rank, values))


def _never_nested(*_: object, **__: object) -> bool:
    """Returns whether an encoder may remove padding (nested tensors): false. In eager mode this depends on the values
    of the mask. It changes only the results at padded positions, which are then zero."""
    return False


def _instance_norm(
    x: torch.Tensor, running_mean: torch.Tensor | None = None, running_var: torch.Tensor | None = None,
    weight: torch.Tensor | None = None, bias: torch.Tensor | None = None, use_input_stats: bool = True, momentum: float = 0.1,
    eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Each channel is a group. torch's instance_norm branches on the number of elements, which may depend on data."""
    if not use_input_stats or running_mean is not None or not free_unbacked_symbols(x):
        return NotImplemented
    count = math.prod(x.shape[2:])
    torch._check_value(count != 1, lambda: f"Expected more than 1 spatial element, got input size {x.shape}")
    return functional.group_norm(x, x.shape[1], weight, bias, eps)


# Mode -> the operator for signals, with the output size and the scale as arguments. Images keep the overload of torch, which
# XNNPACK and Vulkan match.
_RESIZES: dict[str, Any] = {
    "nearest": torch.ops.aten.upsample_nearest1d.default,
    "linear": torch.ops.aten.upsample_linear1d.default,
}


def _interpolate(
    x: torch.Tensor, size: object = None, scale_factor: object = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """Computes dynamic sizes of signals with integers. torch multiplies by a float, about which torch.export can prove
    nothing."""
    resize = _RESIZES.get(mode)
    if resize is None or x.dim() != 3 or isinstance(x.shape[2], int) or size is not None:
        return NotImplemented
    factors = list(scale_factor) if isinstance(scale_factor, Sequence) else [scale_factor]
    is_plain = len(factors) == 1 and isinstance(factors[0], (int, float))
    if (
        not is_plain
        or recompute_scale_factor
        or antialias
        or (mode == "nearest" and align_corners is not None)
    ):
        return NotImplemented
    length = _scaled_size(x.shape[2], factors[0])
    if length is None:
        return NotImplemented
    corners = () if mode == "nearest" else (bool(align_corners),)
    return resize(x, [length], *corners, float(factors[0]))


def _scaled_size(size: torch.SymInt, factor: float) -> torch.SymInt | None:
    """Returns floor(size * factor) without a float operation, or None if the factor is neither an integer nor 1 / integer."""
    if factor == int(factor):
        return size * int(factor)
    divisor = round(1 / factor)
    # If the float is smaller than 1 / divisor by more, its multiples may be rounded to less than the integer.
    error = Fraction(factor) * divisor - 1
    return size // divisor if -Fraction(1, 2**54) <= error <= Fraction(1, 2**52) else None


def _get_data(x: torch.Tensor) -> torch.Tensor:
    """Returns `x.detach()`, which shares the memory of `x.data`. torch would capture `x.data` as a constant."""
    return x.detach()


def _set_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """Accepts `x.data += 1`, which assigns the same memory. torch would ignore any other assignment."""
    if not _same_memory(x, value):
        raise RuntimeError("the data of a tensor is assigned to")


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.stride() == b.stride()
        and a.storage_offset() == b.storage_offset()
        and a.untyped_storage()._cdata == b.untyped_storage()._cdata
    )


def _flex_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, change: Callable[..., Any], block_mask: tuple[Any, ...], scale: float,
    _options: object, change_buffers: tuple[Any, ...] = (), mask_buffers: tuple[Any, ...] = (),
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:  # fmt: skip
    """Attention with functions that modify and mask the scores. They are called once with all indices."""
    batch, heads, rows, _ = query.shape
    key, value = (
        x.repeat_interleave(heads // x.shape[1], 1).expand(batch, heads, *x.shape[2:]) for x in (key, value)
    )
    sizes = (batch, heads, rows, key.shape[2])
    indices = [torch.arange(n).reshape([-1] + [1] * (3 - at)) for at, n in enumerate(sizes)]
    scores = change(query @ key.transpose(-2, -1) * scale, *indices, *change_buffers)
    scores = torch.where(block_mask[-1](*indices, *mask_buffers), scores, -math.inf)
    unused = torch.all(scores == -math.inf, -1, keepdim=True)
    weights = torch.softmax(scores.masked_fill(unused, 0), -1).masked_fill(unused, 0)
    # torch returns both in base 2.
    sums = torch.logsumexp(scores, -1) / math.log(2)
    return weights.to(query.dtype) @ value, sums, scores.amax(-1) / math.log(2)


_DATA: Any = torch.Tensor.data  # a descriptor
TABLE: dict[Any, Callable[..., Any]] = {
    torch.ops.higher_order.flex_attention: _flex_attention,
    _DATA.__get__: _get_data,
    _DATA.__set__: _set_data,
    torch.narrow: _narrow,
    torch.Tensor.narrow: _narrow,
    torch.equal: _equal,
    torch.Tensor.equal: _equal,
    torch.allclose: _allclose,
    torch.Tensor.allclose: _allclose,
    torch.cov: _cov,
    torch.Tensor.cov: _cov,
    torch.corrcoef: _corrcoef,
    torch.Tensor.corrcoef: _corrcoef,
    torch.combinations: _combinations,
    torch.linalg.lstsq: _lstsq,
    functional.one_hot: _one_hot,
    functional.gaussian_nll_loss: _gaussian_nll,
    functional.instance_norm: _instance_norm,
    functional.interpolate: _interpolate,
    functional.ctc_loss: _ctc_loss,
    torch.ctc_loss: _ctc_loss,
    torch._nested_tensor_from_mask_left_aligned: _never_nested,
}
