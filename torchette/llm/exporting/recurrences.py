# SPDX-License-Identifier: BSD-3-Clause
# In: a model of transformers with recurrent layers. Out: the same model with this file's recurrences, which continue from a state,
# accept any number of tokens and stay loops in the program. The loops of transformers are unrolled by torch.export.
"""Convolutions and scans of recurrent layers, which replace those of transformers while a model is exported."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._higher_order_ops.scan import scan_op
from torch.nn import functional
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache

import torchette.backends.engine.operators  # noqa: F401
from torchette.llm.exporting.experts import llama4_experts


def causal_convolution(
    inputs: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **kwargs: object,
) -> Tensor:
    """Returns a depthwise convolution without padding.

    Args:
        inputs: float32 [1, channels, kernel size - 1 + n]: the earlier inputs, then the new ones.
        weight: float32 [channels, kernel size].
        bias: float32 [channels].
        activation: a name of transformers.

    Returns:
        float32 [1, channels, n].
    """
    result = functional.conv1d(inputs, weight.unsqueeze(1), bias, groups=weight.shape[0])
    return result if activation is None else ACT2FN[activation](result)


def _scan(
    step: Callable[..., tuple[Tensor, Tensor]], state: Tensor, inputs: tuple[Tensor, ...], *shared: Tensor
) -> tuple[Tensor, Tensor]:
    """Calls step(state, *inputs of a token, *shared) -> (state, output) for each token.

    Args:
        state: the first state.
        inputs: tensors [n, ...].
        shared: tensors that each call receives.

    Returns:
        The last state and the outputs [n, ...].
    """
    last, outputs = scan_op(lambda *args: list(step(*args)), [state], list(inputs), shared)
    return last, outputs


def _linear_recurrence(
    query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The operator cpu::linear_recurrence, or a scan with the same arguments in a portable program."""
    if not _runs[-1].portable:
        result: tuple[Tensor, Tensor] = torch.ops.cpu.linear_recurrence(query, key, value, decay, beta, state)
        return result
    heads = value.shape[1] // key.shape[1]
    query, key = (x.repeat_interleave(heads, dim=1) if heads > 1 else x for x in (query, key))

    def step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, *beta: Tensor) -> Any:
        state = decay * state
        delta = v if not beta else (v - torch.bmm(k.transpose(1, 2), state)) * beta[0]
        state = state + k * delta
        return state, torch.bmm(q, state).squeeze(1)

    per_token = [query.unsqueeze(2), key.unsqueeze(3), value.unsqueeze(2), decay.unsqueeze(3)]
    if beta is not None:
        per_token.append(beta[..., None, None])
    state, outputs = _scan(step, state, tuple(per_token))
    return outputs, state


def _selective_scan(
    x: Tensor, dt: Tensor, rates: Tensor, b: Tensor, c: Tensor, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The operator cpu::selective_scan, or a scan with the same arguments in a portable program."""
    if not _runs[-1].portable:
        result: tuple[Tensor, Tensor] = torch.ops.cpu.selective_scan(x, dt, rates, b, c, state)
        return result

    def step(state: Tensor, x: Tensor, dt: Tensor, b: Tensor, c: Tensor, rates: Tensor) -> Any:
        state = torch.exp(dt * rates) * state + (dt * x) * b
        return state, torch.mv(state, c)

    state, outputs = _scan(step, state, (x.unsqueeze(-1), dt.unsqueeze(-1), b, c), rates)
    return outputs, state


def selective_scan(
    inputs: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    **kwargs: object,
) -> Any:
    """Mamba's scan: state = exp(dt A) state + dt B x, y = C state + D x.

    The first state is that of `set_initial_state`.

    Args:
        inputs: x, float32 [1, channels, n].
        dt: [1, channels, n].
        A: [channels, size of the state].
        B: [1, size of the state, n].
        C: [1, size of the state, n].
        D: [channels].
        z: [1, channels, n], multiplies y after silu.
        delta_bias: [channels], added to dt.
        delta_softplus: whether dt is the softplus of the argument.
        return_last_state: whether to return the last state, too.

    Returns:
        y, [1, channels, n], and the state [1, channels, size of the state].
    """
    if delta_bias is not None:
        dt = dt + delta_bias.unsqueeze(-1)
    if delta_softplus:
        dt = functional.softplus(dt)

    initial = _initial_states.pop(0) if _initial_states else torch.zeros_like(A)
    x, dt, b, c = (each.squeeze(0).transpose(0, 1) for each in (inputs, dt, B, C))
    outputs, state = _selective_scan(x, dt, A, b, c, initial)
    result = outputs.transpose(0, 1).unsqueeze(0)
    if D is not None:
        result = result + inputs * D.unsqueeze(-1)
    if z is not None:
        result = result * functional.silu(z)
    return (result, state.unsqueeze(0)) if return_last_state else result


def state_space_scan(
    inputs: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    chunk_size: int,
    D: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    **kwargs: object,
) -> Any:
    """Mamba 2's scan: state = exp(dt A) state + dt B x, y = C state + D x, with one A for each head.

    Args:
        inputs: x, float32 [1, n, heads, depth].
        dt: [1, n, heads].
        A: [heads].
        B: [1, n, groups, size of the state]; each group serves adjacent heads.
        C: [1, n, groups, size of the state].
        chunk_size: ignored.
        D: [heads].
        dt_bias: [heads], added to dt.
        initial_states: [1, heads, size of the state, depth], not transposed as in transformers; None: zeros.
        dt_softplus: whether dt is the softplus of the argument.
        dt_limit: the smallest and the largest dt.
        return_final_states: whether to return the last state, too.

    Returns:
        y, [1, n, heads, depth], and the state, which has the form of `initial_states`.
    """
    if dt_bias is not None:
        dt = dt + dt_bias
    if dt_softplus:
        dt = functional.softplus(dt)
    dt = torch.clamp(dt, dt_limit[0], dt_limit[1]).squeeze(0)
    x = inputs.squeeze(0)
    initial = x.new_zeros(x.shape[1], B.shape[3], x.shape[2]) if initial_states is None else initial_states[0]
    outputs, state = _linear_recurrence(
        C.squeeze(0), B.squeeze(0), x * dt.unsqueeze(-1), torch.exp(dt * A).unsqueeze(-1), None, initial
    )
    if D is not None:
        outputs = outputs + x * D.unsqueeze(-1)
    result = outputs.unsqueeze(0)
    return (result, state.unsqueeze(0)) if return_final_states else result


def gated_delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    chunk_size: int = 64,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: object,
) -> tuple[Tensor, Tensor | None]:
    """The gated delta rule: state = exp(g) state + k (beta (v - k exp(g) state)), y = q state.

    Args:
        query: float32 [1, n, key heads, depth], scaled here.
        key: [1, n, key heads, depth]; a key head serves adjacent value heads.
        value: [1, n, value heads, value depth].
        g: logarithm of the decay, [1, n, value heads], or [1, n, value heads, depth].
        beta: [1, n, value heads].
        chunk_size: ignored.
        initial_state: [1, value heads, depth, value depth]; None: zeros.
        output_final_state: whether to return the last state.
        use_qk_l2norm_in_kernel: whether queries and keys are normalized here.

    Returns:
        y, [1, n, value heads, value depth], and the state or None.
    """
    if use_qk_l2norm_in_kernel:
        query, key = (x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6) for x in (query, key))
    q, k, v, decay = (x.squeeze(0) for x in (query * query.shape[3] ** -0.5, key, value, torch.exp(g)))
    initial = v.new_zeros(v.shape[1], k.shape[2], v.shape[2]) if initial_state is None else initial_state[0]
    outputs, state = _linear_recurrence(
        q, k, v, decay if decay.dim() == 3 else decay.unsqueeze(-1), beta.squeeze(0), initial
    )
    return outputs.unsqueeze(0), state.unsqueeze(0) if output_final_state else None


def _scan_from_cache(
    layer: int,
    step: Callable[..., tuple[Tensor, Tensor]],
    zeros: Tensor,
    inputs: tuple[Tensor, ...],
    *shared: Tensor,
) -> tuple[Tensor, Tensor]:
    """Calls `_scan` with the state of a layer in the running cache, and updates it. The first state is `zeros`."""
    cache = _running_cache()
    initial = cache.get_recurrent_state(layer)
    state, outputs = _scan(step, zeros if initial is None else initial.squeeze(0), inputs, *shared)
    cache.update_recurrent_state(state.unsqueeze(0), layer)
    return state, outputs


def gated_recurrence(
    self: Any,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
    *args: object,
) -> tuple[Tensor, Tensor]:
    """RecurrentGemma's recurrence: state = gate state + input. The first state is that of the running cache.

    Args:
        self: the module RecurrentGemmaRglru; `layer_idx` is its layer.
        hidden_states: inputs, float32 [1, n, channels].
        recurrent_gate: [1, n, channels].
        reset: bool [1, n, 1], true if the state before the token is zero.
        recurrent_states: ignored.
        args: ignored.

    Returns:
        The states after each token, [1, n, channels], and the last one, [1, channels].
    """

    def step(state: Tensor, x: Tensor, gate: Tensor) -> tuple[Tensor, Tensor]:
        state = gate * state + x
        return state, state.clone()

    x, gate = hidden_states.squeeze(0), (recurrent_gate * ~reset).squeeze(0)
    state, outputs = _scan_from_cache(self.layer_idx, step, x.new_zeros(x.shape[1]), (x, gate))
    return outputs.unsqueeze(0), state.unsqueeze(0)


def recurrent_gemma_block(
    self: Any, input_states: Tensor, position_ids: Tensor, *args: object, **kwargs: object
) -> tuple[Tensor, None]:
    """RecurrentGemmaRecurrentBlock with the convolution's state in the running cache.

    Args:
        self: the module; `layer_idx` is its layer.
        input_states: float32 [1, n, size].
        position_ids: int64 [1, n].
        args: ignored.
        kwargs: ignored.

    Returns:
        float32 [1, n, size], and None.
    """
    inputs = _running_cache().update_conv_state(
        self.linear_x(input_states).transpose(1, 2), self.layer_idx, conv_kernel_size=self.conv1d_width
    )
    x = causal_convolution(inputs, self.conv_1d.weight.squeeze(1), self.conv_1d.bias).transpose(1, 2)
    x = self.rg_lru(x, position_ids)
    self.rg_lru.recurrent_states = None  # the module stores the result of gated_recurrence
    return self.linear_out(x * self.act_fn(self.linear_y(input_states))), None


def _mix_with_previous(self: Any, hidden: Tensor, state_idx: int, *names: str) -> list[Tensor]:
    """Returns RWKV's mixtures of each token with the token before it, by the names of their weights."""
    inputs = _running_cache().update_conv_state(
        hidden.transpose(1, 2), self.layer_id, state_idx, conv_kernel_size=2
    )
    previous = inputs[..., : inputs.shape[-1] - 1].transpose(1, 2)
    weights = [getattr(self, f"time_mix_{name}") for name in names]
    return [hidden * weight + previous * (1 - weight) for weight in weights]


def rwkv_attention(self: Any, hidden: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, None]:
    """RwkvSelfAttention with its state in the running cache: numerator, denominator and the logarithm of their scale.

    Args:
        self: the module.
        hidden: float32 [1, n, size].
        args: ignored.
        kwargs: ignored.

    Returns:
        float32 [1, n, size], and None.
    """
    mixed = _mix_with_previous(self, hidden, 0, "key", "value", "receptance")
    key, value, receptance = (
        layer(x).squeeze(0) for layer, x in zip((self.key, self.value, self.receptance), mixed, strict=True)
    )

    def step(state: Tensor, k: Tensor, v: Tensor, decay: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        num, den, scale = state.unbind()
        scale = torch.where(den > 0, scale, -1e38)  # before the first token the state is zero
        top = torch.maximum(scale, k + first)
        old, new = torch.exp(scale - top), torch.exp(k + first - top)
        output = (old * num + new * v) / (old * den + new)
        top = torch.maximum(scale + decay, k)
        old, new = torch.exp(scale + decay - top), torch.exp(k - top)
        return torch.stack([old * num + new * v, old * den + new, top]), output

    zeros, shared = key.new_zeros(3, key.shape[1]), (-torch.exp(self.time_decay), self.time_first)
    _, outputs = _scan_from_cache(self.layer_id, step, zeros, (key, value), *shared)
    return self.output(torch.sigmoid(receptance) * outputs).unsqueeze(0), None


def rwkv_feed_forward(self: Any, hidden: Tensor, *args: object, **kwargs: object) -> tuple[Tensor, None]:
    """RwkvFeedForward with its state in the running cache.

    Args:
        self: the module.
        hidden: float32 [1, n, size].
        args: ignored.
        kwargs: ignored.

    Returns:
        float32 [1, n, size], and None.
    """
    key, receptance = _mix_with_previous(self, hidden, 1, "key", "receptance")
    value = self.value(torch.square(torch.relu(self.key(key))))
    return torch.sigmoid(self.receptance(receptance)) * value, None


def matrix_memory(
    self: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    igate: Tensor,
    fgate: Tensor,
    c_initial: int,
    *args: object,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """xLSTM's recurrence with its state in the running cache: memory, normalizer and the logarithm of their scale.

    Args:
        self: the module xLSTMBackend.
        query: float32 [1, heads, n, depth], scaled here.
        key: [1, heads, n, depth].
        value: [1, heads, n, value depth].
        igate: [1, heads, n].
        fgate: [1, heads, n].
        c_initial: the layer, from `LayerIndices`.
        args: ignored.
        kwargs: ignored.

    Returns:
        float32 [1, heads, n, value depth], and None.
    """
    heads, depth, width = query.shape[1], query.shape[3], value.shape[3]
    q, k, v = (x.squeeze(0).transpose(0, 1) for x in (query * depth**-0.5, key, value))
    # The column after the values is 1: its memory is the normalizer. The column after it stores the scale.
    v = torch.cat([v, torch.ones_like(v[..., :1])], -1)
    gates = [x.squeeze(0).transpose(0, 1)[..., None, None] for x in (igate, functional.logsigmoid(fgate))]

    def step(state: Tensor, q: Tensor, k: Tensor, v: Tensor, i: Tensor, f: Tensor) -> tuple[Tensor, Tensor]:
        memory, scale = state[..., : width + 1], state[:, :1, width + 1 :]
        top = torch.maximum(f + scale, i)
        memory = torch.exp(f + scale - top) * memory + torch.exp(i - top) * k * v
        rows = torch.bmm(q, memory).squeeze(1)
        limit = torch.maximum(rows[:, width:].abs(), torch.exp(-top).squeeze(-1)) + 1e-6
        state = torch.cat([memory, top.expand(heads, depth, 1)], -1)
        return state, rows[:, :width] / limit

    rows = q.unsqueeze(2), k.unsqueeze(3), v.unsqueeze(2), *gates
    _, outputs = _scan_from_cache(c_initial, step, q.new_zeros(heads, depth, width + 2), rows)
    return outputs.transpose(0, 1).unsqueeze(0), None


def lightning_attention(
    self: Any,
    hidden_states: Tensor,
    position_embeddings: object = None,
    attention_mask: object = None,
    cache: object = None,
    **kwargs: object,
) -> tuple[Tensor, None]:
    """MiniMaxLightningAttention: a linear recurrence with one decay per head, with its state in the cache.

    Args:
        self: the module.
        hidden_states: float32 [1, n, size].
        position_embeddings: ignored.
        attention_mask: ignored.
        cache: ignored.
        kwargs: ignored.

    Returns:
        float32 [1, n, size], and None.
    """
    heads, depth = self.num_attention_heads, self.head_dim
    rows = self.act_fn(self.qkv_proj(hidden_states)).squeeze(0).unflatten(1, (heads, 3 * depth))
    query, key, value = rows.split(depth, dim=2)
    decay = torch.exp(-self.slope_rate).view(1, heads, 1).expand(rows.shape[0], heads, 1)
    running = _running_cache()
    initial = running.get_recurrent_state(self.layer_idx)
    initial = value.new_zeros(heads, depth, depth) if initial is None else initial.squeeze(0)
    outputs, state = _linear_recurrence(query, key, value, decay, None, initial)
    running.update_recurrent_state(state.unsqueeze(0), self.layer_idx)
    result = torch.sigmoid(self.output_gate(hidden_states)) * self.norm(outputs.flatten(1).unsqueeze(0))
    return self.out_proj(result), None


class LayerIndices:
    """The attribute `rnn_state` of xLSTM's cache: passes the index of the layer to `matrix_memory`."""

    def __getitem__(self, layer: int) -> tuple[int, None, None]:
        return layer, None, None


# The states of the calls of `selective_scan` in the current layer: transformers does not pass them.
_initial_states: list[Tensor] = []


def set_initial_state(state: Tensor) -> None:
    """Sets the state of the next calls of `selective_scan`: [1, channels, size], or [1, heads, channels, size] for a call per head."""
    _initial_states[:] = [state.squeeze(0)] if state.dim() == 3 else state.squeeze(0).unbind()


# Function of transformers' modeling files -> replacement.
REPLACEMENTS: dict[str, Callable[..., Any]] = {
    "causal_conv1d_fn": causal_convolution,
    "mamba_selective_scan": selective_scan,
    "mamba2_chunk_scan": state_space_scan,
    "torch_chunk_gated_delta_rule": gated_delta_rule,
    "chunk_kimi_delta_attention": gated_delta_rule,
    "RecurrentGemmaRecurrentBlock.forward": recurrent_gemma_block,
    "RecurrentGemmaRglru._rnn_scan": gated_recurrence,
    "RwkvSelfAttention.forward": rwkv_attention,
    "RwkvFeedForward.forward": rwkv_feed_forward,
    "xLSTMBackend.forward": matrix_memory,
    "MiniMaxCache": Cache,  # the model rejects caches of other classes
    "MiniMaxLightningAttention.forward": lightning_attention,
    "Llama4TextMoe.forward": llama4_experts,
}


class _Run(NamedTuple):
    """The arguments of `stateful_recurrences`, for modules to which transformers does not pass them."""

    cache: Any
    portable: bool


_runs: list[_Run] = []


def _running_cache() -> Any:
    return _runs[-1].cache


@contextlib.contextmanager
def stateful_recurrences(model: torch.nn.Module, cache: object, portable: bool) -> Iterator[None]:
    """Replaces the functions and methods of the model's modeling files while the model runs.

    Args:
        model: the model.
        cache: the cache of the run, with transformers' methods for states.
        portable: whether to use torch's operators only.
    """
    replaced: list[tuple[Any, str, Any]] = []
    for name in {type(part).__module__ for part in model.modules()}:
        for path, replacement in REPLACEMENTS.items():
            *classes, attribute = path.split(".")
            owner: Any = sys.modules[name]
            owner = getattr(owner, classes[0], None) if classes else owner
            if name.startswith("transformers.") and hasattr(owner, attribute):
                replaced.append((owner, attribute, getattr(owner, attribute)))
                setattr(owner, attribute, replacement)
    _number_layers(model)
    _initial_states.clear()
    _runs.append(_Run(cache, portable))
    try:
        yield
    finally:
        _runs.pop()
        for owner, attribute, original in replaced:
            setattr(owner, attribute, original)


def _number_layers(model: torch.nn.Module) -> None:
    """Sets `layer_idx` of RecurrentGemma's recurrent modules."""
    for name, part in model.named_modules():
        if type(part).__name__ in ("RecurrentGemmaRecurrentBlock", "RecurrentGemmaRglru"):
            part.layer_idx = next(int(step) for step in name.split(".") if step.isdigit())
