# SPDX-License-Identifier: BSD-3-Clause
# In: a causal language model of transformers. Out: a module (tokens, start_pos) -> logits of the last token, with the KV cache in
# its buffers. transformers calls a cache object, an attention function and a mask function that are chosen by name. This file
# implements all three, so it contains no code for a particular model.
"""`Decoder`: a language model as a module with a KV cache."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator
from types import CellType, FunctionType
from typing import Any, NamedTuple

import torch
from torch._subclasses import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import torchette.backends.engine.operators  # noqa: F401
from torchette.errors import UnsupportedError
from torchette.llm.exporting.recurrences import LayerIndices, set_initial_state, stateful_recurrences

# The name under which the attention function is registered in transformers.
ATTENTION_NAME = "torchette"
# The first part of the names of recurrent states; the engine recognizes them by it.
RECURRENT = "recurrent_"
# The types of the KV cache.
CACHES = {"float32": torch.float32, "float16": torch.float16, "int8": torch.int8}


class _MaskSpec(NamedTuple):
    """Passed to the attention function instead of a mask tensor.

    Attributes:
        start: int64 [1], position of the first query; None without a KV cache.
        window: length of the sliding window; 0: a query sees all positions before it; negative: the length of chunks, and a query
            sees the earlier positions of its chunk.
        blocks: int64 [queries, 2], first and last position of the block of each query, which it sees in both directions.
        portable: whether to use torch's operators only.
    """

    start: torch.Tensor | None
    window: int
    blocks: torch.Tensor | None = None
    portable: bool = False


class ShapeRecorder(Cache):  # type: ignore[misc]
    """Records the keys, values and recurrent states of each layer during one run of the model."""

    def __init__(self) -> None:
        super().__init__(layers=[])
        self.recorded: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.states: dict[str, torch.Tensor] = {}
        self.rnn_state, self.seqlen_offset = LayerIndices(), 0

    @property
    def layer_indices(self) -> set[int]:
        """The layers with keys and values or a recurrent state."""
        return {*self.recorded, *(int(name.split("_")[2]) for name in self.states)}

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *args: object, **kwargs: object
    ) -> Any:
        """Records the arguments and returns them."""
        self.recorded[layer] = key, value
        return key, value

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Returns None: no tokens precede the run."""

    get_recurrent_state = get_conv_state

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Returns False: no tokens precede the run."""
        return False

    def update_conv_state(
        self,
        new: torch.Tensor,
        layer_idx: int,
        state_idx: int = 0,
        *,
        conv_kernel_size: int,
        **kwargs: object,
    ) -> torch.Tensor:
        """Records the inputs [1, channels, n] of a convolution; returns them after zeros for the earlier inputs."""
        earlier = new.new_zeros(1, conv_kernel_size - 1, new.shape[1])
        self.states[f"{RECURRENT}conv_{layer_idx}_{state_idx}"] = earlier
        return torch.cat([earlier.transpose(1, 2), new], -1)

    def update_recurrent_state(
        self, state: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> torch.Tensor:
        """Records a state and returns it."""
        self.states[f"{RECURRENT}state_{layer_idx}_{state_idx}"] = state
        return state

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Returns 0: no tokens precede the run."""
        return 0

    def get_mask_sizes(self, query_length: object, layer_idx: int = 0) -> tuple[Any, int]:
        """Returns the number of new tokens and the offset 0."""
        return query_length, 0


class BufferCache(Cache):  # type: ignore[misc]
    """The cache object that the model receives: reads and writes the decoder's buffers at the positions of the new tokens."""

    def __init__(self, decoder: Decoder, start: torch.Tensor, positions: torch.Tensor) -> None:
        super().__init__(layers=[])
        self._decoder, self._start, self._positions = decoder, start, positions
        self.rnn_state, self.seqlen_offset = LayerIndices(), 0

    def update(
        self, key: torch.Tensor, value: torch.Tensor, layer: int, *args: object, **kwargs: object
    ) -> Any:
        """Writes the new rows in place and returns all rows."""
        rows, decoder = [], self._decoder
        for name, new in (("key", key), ("value", value)):
            new, buffer = new.transpose(1, 2).squeeze(0), getattr(decoder, f"{name}_cache_{layer}")
            scales = getattr(decoder, f"{name}_scales_{layer}", None)
            if scales is not None:
                new, scale = torch.ops.cpu.quantize_rows(new, -127, 127, 127.0, 2.0**-60, True, False)
                scales.index_put_((self._positions,), scale)
            buffer.index_put_((self._positions,), new.to(buffer.dtype))
            rows.append(buffer.unsqueeze(0).transpose(1, 2))
            rows[-1].buffer, rows[-1].scales = buffer, scales
        return tuple(rows)

    def _earlier(self, name: str) -> torch.Tensor:
        """Returns the state before the first new token: zeros at position 0."""
        return torch.where(self._start > 0, getattr(self._decoder, name), 0.0)

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> None:
        """Returns None, so that the model calls `update_conv_state` for any number of tokens."""

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> torch.Tensor:
        """Returns the state before the first new token."""
        state = self._earlier(f"{RECURRENT}state_{layer_idx}_{state_idx}")
        set_initial_state(state)
        return state

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int | None = None) -> bool:
        """Returns True: a state at position 0 is zero."""
        return True

    def is_recording_past(self, layer_idx: int) -> bool:
        """Returns True, so that a model does not have a separate path for one token."""
        return True

    def update_conv_state(
        self, new: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> torch.Tensor:
        """Writes the last inputs [1, kernel size - 1, channels] in place.

        Args:
            new: [1, channels, n].
            layer_idx: the layer.
            state_idx: the convolution in this layer.
            kwargs: ignored.

        Returns:
            The earlier inputs and the new ones, [1, channels, kernel size - 1 + n].
        """
        name = f"{RECURRENT}conv_{layer_idx}_{state_idx}"
        # With the channels in the last dimension, the program needs no permutation before and after the convolution.
        inputs, buffer = (
            torch.cat([self._earlier(name), new.transpose(1, 2)], 1),
            getattr(self._decoder, name),
        )
        buffer.copy_(inputs[:, inputs.shape[1] - buffer.shape[1] :])
        return inputs.transpose(1, 2)

    def update_recurrent_state(
        self, state: torch.Tensor, layer_idx: int, state_idx: int = 0, **kwargs: object
    ) -> torch.Tensor:
        """Writes the state after the last new token in place."""
        getattr(self._decoder, f"{RECURRENT}state_{layer_idx}_{state_idx}").copy_(state)
        return state

    def get_seq_length(self, layer_idx: int = 0) -> Any:
        """Returns the position of the first new token."""
        return self._start

    def get_mask_sizes(self, query_length: object, layer_idx: int = 0) -> tuple[int, int]:
        """Returns the number of rows and the offset 0."""
        return self._decoder.max_context, 0

    def get_max_length(self, layer_idx: int | None = None) -> int:
        """Returns the number of rows."""
        return self._decoder.max_context


class Decoder(torch.nn.Module):
    """(tokens [1, n], start_pos [1]) -> logits [1, vocabulary] of the last token, or [1, n, vocabulary] with `full_logits`.

    Subclasses pass further inputs of the model in `more`.
    """

    inputs = "input_ids", "position_ids"

    def __init__(
        self, model: torch.nn.Module, max_context: int, full_logits: bool = False, **more: object
    ) -> None:
        super().__init__()
        self.model: Any = model
        self.max_context, self.full_logits = max_context, full_logits
        self.portable = False
        parameters = inspect.signature(inspect.unwrap(model.forward)).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._logits_option = (
            {"logits_to_keep": 1} if "logits_to_keep" in parameters and not full_logits else {}
        )
        self._needs_positions = type(self) is Decoder or self.inputs[1] in parameters
        shapes = ShapeRecorder()
        try:
            with torch.no_grad():
                self.logits(torch.zeros(1, 2, dtype=torch.int64), torch.arange(2), shapes, **more)
        except (
            IndexError,
            AttributeError,
            NotImplementedError,
            TypeError,
        ) as error:  # a model uses an attribute that `ShapeRecorder` does not have
            raise UnsupportedError(
                f"{type(model).__name__} has state other than a KV cache, which is not supported: {error}"
            ) from error
        self.layers = sorted(shapes.layer_indices)
        for layer, stored in shapes.recorded.items():
            for name, like in zip(("key", "value"), stored, strict=True):
                _, heads, _, width = like.shape
                self.register_buffer(f"{name}_cache_{layer}", like.new_zeros(max_context, heads, width))
        for name, state in shapes.states.items():
            self.register_buffer(name, torch.zeros_like(state))

    @property
    def is_recurrent(self) -> bool:
        """Whether a state depends on all earlier tokens, so that a smaller `start_pos` other than 0 is not a rewind."""
        return any(name.startswith(RECURRENT) for name, _ in self.named_buffers(recurse=False))

    def forward(self, tokens: torch.Tensor, start_pos: torch.Tensor, **more: torch.Tensor) -> torch.Tensor:
        """Stores keys and values at the positions from `start_pos` and returns the logits."""
        positions = start_pos + torch.arange(tokens.shape[1])
        return self.logits(tokens, positions, BufferCache(self, start_pos, positions), **more)

    def model_inputs(self, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Returns the tokens as keyword arguments of the model."""
        return {self.inputs[0]: tokens}

    def store(self, cache: str) -> None:
        """Converts the KV cache to a type of `CACHES`. Recurrent states stay float32."""
        for name, buffer in list(self.named_buffers(recurse=False)):
            if not name.startswith(("key_cache", "value_cache")):
                continue
            self.register_buffer(name, buffer.to(CACHES[cache]))
            if cache == "int8":
                self.register_buffer(name.replace("cache", "scales"), torch.zeros(*buffer.shape[:2], 2))

    def check(self) -> None:
        """Compares the logits with those of the model without a KV cache.

        Raises:
            UnsupportedError: the logits differ, or the model fails; the message states the reason.
        """
        self.compare({}, ())

    @torch.no_grad()
    def compare(self, model_args: dict[str, Any], program_args: tuple[Any, ...]) -> None:
        """Implements `check`.

        Args:
            model_args: keyword arguments of the model, in addition to its tokens.
            program_args: arguments of `forward` between the tokens and `start_pos`.
        """
        name = type(self.model).__name__
        tokens = torch.arange(4)[None] % self.model.config.get_text_config(decoder=True).vocab_size
        expected = self.model(**model_args, **self.model_inputs(tokens), use_cache=False).logits[:, -1]
        try:
            self(tokens[:, :2], *program_args, torch.tensor([0]))
            actual = self(tokens[:, 2:], *program_args, torch.tensor([2]))
            actual = actual[:, -1] if self.full_logits else actual
        except UnsupportedError:
            raise
        except Exception as error:
            raise UnsupportedError(f"{name} does not run with a KV cache of fixed size: {error}") from error
        self.require_equal(actual, expected, "with a KV cache")

    def require_equal(self, actual: torch.Tensor, expected: torch.Tensor, run: str) -> None:
        """Clears the buffers. Raises UnsupportedError if the logits of a run differ from those of the model."""
        for buffer in self.buffers(recurse=False):
            buffer.zero_()
        difference, value_range = ((one.max() - one.min()).item() for one in (actual - expected, expected))
        if not difference <= 1e-3 * value_range:
            raise UnsupportedError(
                f"{type(self.model).__name__} computes different logits {run}: they differ by {difference:.3g}, with a range of "
                f"{value_range:.3g}",
                hints=[
                    "its attention is not the standard one; torchette.compile exports the model without a KV cache"
                ],
            )

    def logits(
        self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache, **more: Any
    ) -> torch.Tensor:
        """Returns the model's output for tokens at these positions, [n] or [axes, n]."""
        blocks = more.pop("blocks", None)
        model_inputs = {self._cache_name: cache, self.inputs[0]: tokens, **self._logits_option, **more}
        if self._needs_positions:
            model_inputs[self.inputs[1]] = positions.unsqueeze(-2)
        with (
            torchette_attention(self.model, blocks, self.portable),
            stateful_recurrences(self.model, cache, self.portable),
        ):
            logits = self.model(use_cache=True, **model_inputs).logits
        result: torch.Tensor = logits if self.full_logits else logits[:, -1]
        return result


# `blocks` and `portable` of the running model, for `_mask`: transformers passes only its own arguments to a mask function.
_mask_options: tuple[torch.Tensor | None, bool] = None, False


@contextlib.contextmanager
def torchette_attention(
    model: torch.nn.Module, blocks: torch.Tensor | None = None, portable: bool = False
) -> Iterator[None]:
    """Sets this file's attention and a batched implementation of experts while the model runs."""
    global _mask_options
    kinds = {"attn": ATTENTION_NAME}
    if getattr(model, "_can_set_experts_implementation", bool)():
        kinds["experts"] = "batched_mm"
    previous = {kind: getattr(model.config, f"_{kind}_implementation") for kind in kinds}

    def choose(chosen: dict[str, Any]) -> None:
        for kind, name in chosen.items():
            getattr(model, f"set_{kind}_implementation")(name)

    choose(kinds)
    _mask_options = blocks, portable
    try:
        yield
    finally:
        _mask_options = None, False
        choose(previous)


@contextlib.contextmanager
def fixed_rope(model: Any, max_context: int) -> Iterator[None]:
    """Fixes the frequencies of length-dependent rotary embeddings to those of `max_context` tokens."""
    changed = []
    for part in model.modules():
        kind = getattr(part, "rope_type", None)
        if kind in ("longrope", "dynamic"):
            changed.append((part, kind, part.inv_freq))
            part.rope_type = "default"
            part.inv_freq, _ = ROPE_INIT_FUNCTIONS[kind](
                part.config, part.inv_freq.device, seq_len=max_context
            )
    try:
        yield
    finally:
        for part, kind, frequencies in changed:
            part.rope_type, part.inv_freq = kind, frequencies


def _mask(
    q_length: object, kv_length: object, q_offset: object, mask_function: Callable[..., Any], **kwargs: object
) -> Any:
    """The mask function of transformers; returns `_MaskSpec` instead of a tensor."""
    if isinstance(kv_length, int) and isinstance(q_offset, torch.Tensor):
        return _MaskSpec(q_offset, _window(mask_function, kv_length), *_mask_options)
    return _MaskSpec(None, 0)


def _window(mask_function: Callable[..., Any], keys: int) -> int:
    """Returns the `window` of `_MaskSpec` for a mask.

    Raises:
        UnsupportedError: the mask has another form.
    """
    with _disable_current_modes():
        mask_function = _with_zeros(mask_function)
        every, none = torch.arange(keys), torch.zeros((), dtype=torch.int64)
        queries = torch.tensor(sorted({*range(min(keys, 40)), *range(0, keys, max(keys // 40, 1)), keys - 1}))
        queries = queries[:, None]
        visible = torch.as_tensor(mask_function(none, none, queries, every)).expand(len(queries), keys)
        length = int(torch.as_tensor(mask_function(none, none, every, none)).sum())  # queries that see key 0
        for window in (0,) if length == keys else (length, -length):
            if length > 0 and torch.equal(visible, _is_visible(every, queries, window)):
                return window
    raise UnsupportedError(
        "the attention mask of this model is neither causal nor a sliding window nor divided into chunks"
    )


def _is_visible(keys: torch.Tensor, queries: torch.Tensor, window: int) -> torch.Tensor:
    """Returns which keys a query sees, by positions; see `_MaskSpec` for `window`."""
    visible = keys <= queries
    if window > 0:
        return visible & (keys > queries - window)
    return visible & (keys >= queries // -window * -window) if window < 0 else visible


def _with_zeros(part: object) -> Any:
    """Returns a mask function with zeros for tensors of torch.export, which have no values, in its closures.

    Such a tensor is the number of padding tokens. `Decoder.check` has called the function with the values.
    """
    if isinstance(part, FakeTensor):
        return torch.zeros(part.shape, dtype=part.dtype)
    if isinstance(part, tuple):
        return tuple(_with_zeros(one) for one in part)
    if not isinstance(part, FunctionType) or part.__closure__ is None:
        return part
    cells = tuple(CellType(_with_zeros(cell.cell_contents)) for cell in part.__closure__)
    return FunctionType(part.__code__, part.__globals__, part.__name__, part.__defaults__, cells)


def _require_float_cache(module: torch.nn.Module, key: torch.Tensor) -> None:
    """Raises UnsupportedError if torch's attention would read a cache that is not float32."""
    if key.dtype is not torch.float32:
        raise UnsupportedError(
            f"{type(module).__name__} requires a float32 KV cache: it runs outside of the CPU engine, adds biases to scores, or "
            "sees later tokens",
            hints=['cache="float32"'],
        )


def _attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: _MaskSpec | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """The attention function of transformers: over the KV cache or, without one, over `key` and `value`."""
    if attention_mask is None or attention_mask.start is None or position_bias is not None:
        if attention_mask is not None and attention_mask.start is not None:
            _require_float_cache(module, key)
            positions = attention_mask.start + torch.arange(query.shape[2])
            visible = torch.arange(key.shape[2]) <= positions.unsqueeze(1)
            assert position_bias is not None
            position_bias = torch.where(visible, position_bias, float("-inf"))
        result = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, position_bias, scale=scaling, enable_gqa=key.shape[1] < query.shape[1]
        )
        return result.transpose(1, 2), None
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    window, cap = attention_mask.window, softcap or 0.0
    grouped = bool(key.shape[1] < query.shape[1])

    def attend_cached(
        query: torch.Tensor, key: Any, value: Any, start: torch.Tensor, blocks: torch.Tensor | None = None
    ) -> torch.Tensor:
        # Without the buffer, a partitioner may take the views of it, and its backend would copy the whole cache.
        cached = [
            one.buffer if hasattr(one, "buffer") else one.transpose(1, 2).squeeze(0) for one in (key, value)
        ]
        attend: Callable[..., torch.Tensor] = torch.ops.cpu.cached_attention
        if key.dtype == torch.int8:
            cached += [one.scales for one in (key, value)]
            attend = torch.ops.cpu.int8_cached_attention
        return attend(query.transpose(1, 2), *cached, start, s_aux, scale, window, cap)

    def attend_portable(
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        start: torch.Tensor,
        blocks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        at = torch.arange(key.shape[2])
        positions = (start + torch.arange(query.shape[2])).unsqueeze(1)
        visible = _is_visible(at, positions, window)
        if blocks is not None:
            visible = visible | (at >= blocks[:, :1]) & (at <= blocks[:, 1:])
        result = torch.nn.functional.scaled_dot_product_attention(
            query, key, value, visible, scale=scale, enable_gqa=grouped
        )
        return result.transpose(1, 2).clone(memory_format=torch.contiguous_format)

    attention_inputs = query, key, value, attention_mask.start
    blocks, portable = attention_mask.blocks, attention_mask.portable
    if blocks is None and not portable:
        return attend_cached(*attention_inputs), None
    _require_float_cache(module, key)
    if s_aux is not None or cap:
        raise UnsupportedError(
            f"{type(module).__name__} has attention sinks or a soft cap, "
            + (
                "which only the CPU engine supports"
                if portable
                else "which bidirectional blocks do not support"
            )
        )
    if portable:
        return attend_portable(*attention_inputs, blocks), None
    assert blocks is not None
    return torch.cond(
        (blocks[:, 1] > blocks[:, 0]).any(), attend_portable, attend_cached, (*attention_inputs, blocks)
    ), None


AttentionInterface.register(ATTENTION_NAME, _attend)
AttentionMaskInterface.register(ATTENTION_NAME, _mask)
