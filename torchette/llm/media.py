# SPDX-License-Identifier: BSD-3-Clause
# In: programs whose prompts are more than tokens, and those prompts: a text to be read as a whole, sound, images. Out: decoders
# for `Session`. What is no token gets a number beyond the vocabulary that comes from its content, so a session shares and forgets
# it like tokens, and it is computed when a step meets it.
"""`CrossDecoder` and `ImageDecoder`: what a session runs of programs with encoders."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from torchette.errors import FormatError, InputError
from torchette.llm.features import log_mel, pixels
from torchette.runtime import Method, MethodMeta, Program, xxh64

_MOST = 64  # things beside text that are kept, so that a context that slides can be computed again


def state_names(meta: MethodMeta, facts: Mapping[str, Any]) -> list[str]:
    """The names of a method's state, without an adapter's tensors."""
    names = [meta.attribute_tensor_meta(i).name for i in range(meta.num_attributes())]
    return [name for name in names if name not in facts.get("adapter", ())]


class MediaDecoder:
    """The method `text_decoder`, whose last input is the position."""

    encoder: str

    def __init__(
        self,
        program: Program,
        facts: Mapping[str, Any],
        threads: int | None,
        known: dict[int, Any] | None = None,
    ) -> None:
        self._made_of = program, facts, threads
        self._method: Method = program.load_method("text_decoder", threads=threads)
        self._encoder: Method = program.load_method(self.encoder, threads=threads)
        self._known: dict[int, Any] = {} if known is None else known  # number -> what it stands for
        self._running: Method = self._method
        meta = self._method.metadata
        self.vocab_size = meta.output_tensor_meta(0).sizes()[-1]
        self.max_context = int(facts.get("get_max_context_len", facts.get("get_max_seq_len", 0)))
        self.max_tokens = min(meta.input_tensor_meta(0).sizes()[1], self.max_context)
        if self.max_context < 1 or meta.num_inputs() < 2:
            raise FormatError(
                f"method {meta!r} is no step of a language model, or the file does not say how long its context is",
                hints=["torchette.llm.export makes one"],
            )
        self.memory = sum(
            sum(one.metadata.planned_sizes) + one.method_bytes for one in (self._method, self._encoder)
        )
        self._names = state_names(meta, facts)

    def _number(self, content: np.ndarray, value: object) -> int:
        """The number of a content, beyond the vocabulary; the next 65,536 are its rows."""
        shape = np.array(content.shape, np.int64).tobytes()
        key = xxh64(shape + np.ascontiguousarray(content).tobytes()) & (1 << 40) - 1
        number = self.vocab_size + (key << 16)
        self._known[number] = self._known.pop(number, value)
        while len(self._known) > _MOST:
            self._known.pop(next(iter(self._known)), None)
        return number

    def _meant(self, number: int) -> Any:
        try:
            return self._known[number]
        except KeyError:
            raise InputError(
                "what the prompt was made of is not here any more", hints=["give the prompt again"]
            ) from None

    def _run(self, method: Method, *inputs: np.ndarray) -> np.ndarray:
        self._running = method
        return np.asarray(method.execute(list(inputs))[0])

    def new(self) -> MediaDecoder:
        """Another one on the same weights."""
        return type(self)(*self._made_of, known=self._known)

    def state(self) -> dict[str, np.ndarray]:
        """Copies of its state by name."""
        return {name: self._method.get_attribute(name) for name in self._names}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes such a state."""
        for name in self._names:
            self._method.set_attribute(name, state[name])

    def cancel(self) -> None:
        """Ends the step that runs, or else the next one."""
        self._running.cancel()

    def _fitting(self, method: Method, given: object, what: str) -> np.ndarray:
        """What is given as the method's first input."""
        info = method.metadata.input_tensor_meta(0)
        sizes = list(info.sizes())
        array: np.ndarray = np.asarray(given, info.dtype if isinstance(info.dtype, np.dtype) else np.float32)
        array = array.reshape((1,) * (len(sizes) - array.ndim) + array.shape)
        shape: tuple[int, ...] = array.shape
        fits = array.ndim == len(sizes) and all(
            a == b or (info.is_dynamic and 0 < a < b) for a, b in zip(shape, sizes)
        )
        if not fits or not np.isfinite(array).all():
            raise InputError(f"{what} is {list(array.shape)}, the model takes numbers of shape {sizes}")
        return array


class CrossDecoder(MediaDecoder):
    """Of a program with the methods `encoder`, whose result `text_decoder` takes beside tokens."""

    encoder = "encoder"

    def __init__(self, program: Program, facts: Mapping[str, Any], *rest: Any, **named: Any) -> None:
        super().__init__(program, facts, *rest, **named)
        self._start = int(facts.get("decoder_start_token_id", facts.get("get_bos_id", 0)))
        self.reads_text = len(self._encoder.metadata.input_tensor_meta(0).sizes()) == 2 and "int64" in str(
            self._encoder.metadata.input_text(0)
        )
        self._step = facts.get("audio_step")  # of lengths, and what is left over
        self._bound = list(self._method.metadata.input_tensor_meta(1).sizes())
        self._encoded: np.ndarray = np.zeros([*self._bound[:2], 1, self._bound[3]], np.float32)
        self._current = -1

    def place(self, tokens: list[int], images: Sequence[Any], audio: object) -> list[int]:
        """The decoder's prompt: the encoder takes the text or sound, and tokens follow."""
        if images or self.reads_text == (audio is not None):
            raise InputError(
                f"this model reads {'text' if self.reads_text else 'sound, as audio='}, and nothing else"
            )
        if not self.reads_text:
            audio, sizes = np.asarray(audio), self._encoder.metadata.input_tensor_meta(0).sizes()
            if audio.ndim == 1 and audio.size and len(sizes) == 3:
                audio = log_mel(audio, *sizes[1:])
            elif self._step and audio.ndim:
                step, rest = self._step
                audio = audio[..., : max(0, audio.shape[-1] - rest) // step * step + rest]
            inputs, start = self._fitting(self._encoder, audio, "audio"), tokens or [self._start]
        else:
            longest = self._encoder.metadata.input_tensor_meta(0).sizes()[1]
            if not 0 < len(tokens) <= longest:
                raise InputError(
                    f"the prompt has {len(tokens)} tokens, the encoder takes 1 to {longest}",
                    code="prompt-too-long",
                )
            inputs, start = np.array([tokens], np.int64), [self._start]
        return [self._number(inputs, (start[0], inputs)), *start[1:]]

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        """As `torchette.llm.token_state.Decoder.step`."""
        tokens = list(tokens)
        if start_pos == 0:
            number = tokens[0]
            tokens[0], inputs = self._meant(number)
            if self._current != number:
                self._encoded = self._run(self._encoder, inputs)
                self._current = number
        at = np.array([start_pos], np.int64)
        return self._run(self._method, np.array([tokens], np.int64), self._encoded, at).reshape(
            -1, self.vocab_size
        )

    def state(self) -> dict[str, np.ndarray]:
        """With what the encoder has said, in as many rows as there can be."""
        rows = self._encoded.shape[2]
        padded: np.ndarray = np.zeros(self._bound, np.float32)
        padded[:, :, :rows] = self._encoded
        return {**super().state(), "encoded": padded, "encoded_rows": np.array([rows, self._current])}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        """Takes such a state."""
        rows, self._current = (int(one) for one in state["encoded_rows"])
        self._encoded = np.ascontiguousarray(state["encoded"][:, :, : max(1, min(rows, self._bound[2]))])
        super().set_state(state)


class ImageDecoder(MediaDecoder):
    """Of a program with the methods `vision_encoder` and `token_embedding`, whose rows `text_decoder` takes."""

    encoder = "vision_encoder"

    def __init__(self, program: Program, facts: Mapping[str, Any], threads: int | None, **named: Any) -> None:
        super().__init__(program, facts, threads, **named)
        self._table: Method = program.load_method("token_embedding", threads=threads)
        self._token = int(facts.get("image_token_id", -1))
        self.placeholder = int(facts.get("image_placeholder", self._token))  # what chat templates write
        self._whole = facts.get(
            "image_prompt", [self._token]
        )  # what the model was trained to see in its place
        self._range = facts.get("image_mean", [0.5] * 3), facts.get("image_std", [0.5] * 3)
        self._count = self._encoder.metadata.output_tensor_meta(0).sizes()[1]
        self._in_blocks = (
            self._method.metadata.num_inputs() == 3
        )  # an image's rows see each other: they come in one step
        if self._in_blocks and self._count > self.max_tokens:
            raise FormatError(f"an image has {self._count} rows, a step takes {self.max_tokens}")

    def place(self, tokens: list[int], images: Sequence[Any], audio: object) -> list[int]:
        """The prompt with images in place of their tokens: one for each image, or one for each row."""
        if audio is not None:
            raise InputError("this model sees images and hears nothing")
        bases = []
        for index, image in enumerate(images):
            given = np.asarray(image)
            if given.dtype == np.uint8 and given.ndim == 3 and given.shape[2] == 3 and given.size:
                *_, height, width = self._encoder.metadata.input_tensor_meta(0).sizes()
                given = pixels(given, height, width, *self._range)
            given = self._fitting(self._encoder, given, f"image {index}")
            bases.append(self._number(given, [given, None]))
        tokens = self._wrapped(tokens)
        spots = tokens.count(self._token)
        if spots not in (len(bases), len(bases) * self._count):
            raise InputError(
                f"the prompt has {spots} tokens of images for {len(bases)} images",
                hints=[f"each image has the token {self._token} once, or {self._count} times"],
            )
        every = [base + row for base in bases for row in range(self._count)]
        each = 1 if spots == len(every) else self._count
        placed, at = list[int](), 0
        for token in tokens:
            placed += every[at : at + each] if token == self._token else [token]
            at += each * (token == self._token)
        return placed

    def _wrapped(self, tokens: list[int]) -> list[int]:
        """A prompt with the text around images, unless it has it."""
        whole = self._whole
        if any(tokens[i : i + len(whole)] == whole for i in range(len(tokens))):
            return tokens
        return [t for token in tokens for t in (whole if token == self.placeholder else [token])]

    def step(self, tokens: Sequence[int], start_pos: int) -> np.ndarray:
        """As `torchette.llm.token_state.Decoder.step`."""
        plain = np.array([[token if token < self.vocab_size else 0 for token in tokens]], np.int64)
        rows = self._run(self._table, plain)
        for i, number in enumerate(tokens):
            if (row := self._row(number)) >= 0:
                image = self._meant(number - row)
                if image[1] is None:
                    image[1] = self._run(self._encoder, image[0])[0]
                rows[0, i] = image[1][row]
        inputs = [rows, np.array([start_pos], np.int64)]
        if self._in_blocks:
            own: np.ndarray = start_pos + np.arange(len(tokens))
            places = np.array([self._row(token) for token in tokens])
            first, last = (
                np.where(places < 0, own, own - places),
                np.where(places < 0, own, own - places + self._count - 1),
            )
            inputs.append(np.stack([np.maximum(first, 0), last], 1))
        return self._run(self._method, *inputs).reshape(-1, self.vocab_size)

    def _row(self, token: int) -> int:
        """Of its image; -1 of a word."""
        return (token - self.vocab_size) & 0xFFFF if token >= self.vocab_size else -1

    def until(self, tokens: Sequence[int], start: int) -> int:
        """The end of a step from `start`: bidirectional images are not divided."""
        end = min(start + self.max_tokens, len(tokens))
        if self._in_blocks and end < len(tokens) and (row := self._row(tokens[end])) > 0:
            return end - row if end - row > start else end
        return end


def decoder_of(methods: Collection[str]) -> type[MediaDecoder] | None:
    """Of a program that has these methods; None where `forward` does all."""
    if "text_decoder" not in methods:
        return None
    return ImageDecoder if "vision_encoder" in methods else CrossDecoder
