# SPDX-License-Identifier: BSD-3-Clause
# torchette/llm/engine/c_api.h in ctypes: its structures, from the table of options, and a conversation.

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

from tests.building import BUILD, built
from torchette.llm.options import OPTIONS as TABLE


class Bias(ctypes.Structure):
    _fields_ = [("token", ctypes.c_uint64), ("bias", ctypes.c_float)]


C_TYPES: dict[str, Any] = {
    "Flag": ctypes.c_int32,
    "Integer": ctypes.c_int32,
    "Seed": ctypes.c_uint64,
    "Number": ctypes.c_float,
    "Text": ctypes.c_char_p,
    "Schema": ctypes.c_char_p,
    "Texts": ctypes.POINTER(ctypes.c_char_p),
    "Biases": ctypes.POINTER(Bias),
}


class Config(ctypes.Structure):
    """torchette_llm_config_t, from the table of options."""

    _fields_ = [("size", ctypes.c_size_t), ("json", ctypes.c_char_p)]
    for option in TABLE:
        _fields_.append((option.name, C_TYPES[option.type]))
        if option.type in ("Texts", "Biases"):
            _fields_.append((f"num_{option.name}", ctypes.c_size_t))


class Piece(ctypes.Structure):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("size", ctypes.c_size_t),
        ("is_last", ctypes.c_int32),
        ("token", ctypes.c_int64),
        ("logprob", ctypes.c_float),
        ("top_tokens", ctypes.POINTER(ctypes.c_uint64)),
        ("top_logprobs", ctypes.POINTER(ctypes.c_float)),
        ("num_top", ctypes.c_size_t),
    ]


class Stats(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        *((name, ctypes.c_int64) for name in ("prompt", "generated", "prompt_ms", "first_ms", "total_ms")),
        ("reason", ctypes.c_char_p),
        *((name, ctypes.c_int64) for name in ("drafted", "accepted")),
    ]


ON_TOKEN = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)


class Conversation:
    """A model and the C functions, without the prefix torchette_llm_."""

    def __init__(self, model: Path) -> None:
        built("torchette_llm_shared")
        self._library = ctypes.CDLL(str(BUILD / "libtorchette_llm.so"))
        self._library.torchette_last_error.restype = ctypes.c_char_p
        self._library.torchette_error_name.restype = ctypes.c_char_p
        self._library.torchette_set_log(None)
        self._handles = [self._opened(model)]

    def _opened(self, model: Path) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        assert self._library.torchette_llm_open(str(model).encode(), None, ctypes.byref(handle)) == 0
        return handle

    def close(self) -> None:
        for handle in self._handles:
            self._library.torchette_llm_free(handle)

    def call(self, function: str, *arguments: Any) -> int:
        return int(getattr(self._library, f"torchette_llm_{function}")(self._handles[0], *arguments))

    def answer(self, mode: str, kind: str, text: str, chat: str, options: str, draft: str) -> dict[str, Any]:
        """Answers a request in the form of answers.cpp."""
        if draft:
            self._handles.append(self._opened(Path(draft)))
        self.call("set_draft", self._handles[-1] if draft else None, 4)
        self.call("reset")
        config, stats = Config(), Stats(ctypes.sizeof(Stats))
        self._library.torchette_llm_config_init(ctypes.byref(config), ctypes.c_size_t(ctypes.sizeof(config)))
        config.json = options.encode()
        is_chat = kind == "messages"
        args = (text.encode(), *([chat.encode()] if is_chat else []), ctypes.byref(config))
        texts, tokens = list[bytes](), list[int]()
        if mode == "steps":
            error = self.call("begin_chat" if is_chat else "begin", *args) or self._run_steps(texts, tokens)
        else:

            def on_token(piece: int, size: int, _: int) -> int:
                texts.append(ctypes.string_at(piece, size))
                return 0

            function = "chat" if is_chat else "generate"
            error = self.call(function, *args, ON_TOKEN(on_token), None, ctypes.byref(stats))
        message = self._library.torchette_last_error().decode() if error else ""
        if mode == "steps":
            self.call("stats", ctypes.byref(stats))
        return {
            "error": self._library.torchette_error_name(error).decode(),
            "message": message,
            "text": b"".join(texts).decode(),
            "tokens": tokens,
            "stats": {
                "prompt_tokens": stats.prompt, "generated_tokens": stats.generated, "drafted_tokens": stats.drafted,
                "accepted_tokens": stats.accepted, "finish_reason": (stats.reason or b"").decode(),
            },
        }  # fmt: skip

    def _run_steps(self, texts: list[bytes], tokens: list[int]) -> int:
        piece = Piece()
        while not piece.is_last:
            if error := self.call("next", ctypes.byref(piece)):
                return error
            address = ctypes.c_void_p.from_buffer(piece)  # of the text, which may contain zeros
            texts.append(ctypes.string_at(address.value or 0, piece.size))
            if piece.token >= 0:
                tokens.append(piece.token)
        return 0
