# SPDX-License-Identifier: BSD-3-Clause
# In: the folder of a model. Out: the files that its program carries: tokenizer, chat templates, special tokens, settings.
"""`of_folder`: a folder's named data; `tokenizer_file`: any tokenizer as tokenizer.json."""

from __future__ import annotations

import base64
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchette.errors import FormatError, ModelNotFoundError
from torchette.llm.exporting.vocabularies import TOKENIZER_HINT
from torchette.runtime import native

PROCESSOR, TOKENIZER, SPECIAL_TOKENS = "preprocessor_config.json", "tokenizer.json", "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_SETTINGS = "tokenizer_config.json"
_FILES = (PROCESSOR, _TEMPLATE, "generation_config.json", "config.json")
# Vocabularies that only a class of transformers can read: the token IDs are not those of the file alone.
_OTHERS = (
    "vocab.json",
    "vocab.txt",
    "vocab-src.json",
    "merges.txt",
    "bpe.codes",
    "*.bpe.model",
    "*.spm",
    "tekken.json",
)


def of_folder(folder: Path, model_type: str = "", tokenizer: bytes | None = None) -> dict[str, bytes]:
    """Returns name -> contents of the program's files. Warns if a vocabulary of the folder makes no tokenizer.

    Args:
        tokenizer: a tokenizer.json, which replaces the folder's own tokenizer.

    Raises:
        FormatError: a file is damaged; names it.
    """
    data = {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()}
    settings = [_object(folder / name) for name in (SPECIAL_TOKENS, _SETTINGS)]
    data |= {**_templates(folder), **data}
    if special := special_tokens({name: value for one in settings for name, value in one.items()}):
        data[SPECIAL_TOKENS] = special
    if tokenizer is not None:
        data[TOKENIZER] = tokenizer
    elif (tokenizer_bytes := _tokenizer(folder, model_type, settings[1])) is not None:
        data[TOKENIZER] = tokenizer_bytes
    return data


def _object(path: Path) -> dict[str, Any]:
    """A JSON file; empty if there is none. FormatError if it is not an object."""
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise FormatError(f"{path} is not a JSON object")
    return value


# --- Chat templates ---


def template_name(name: str) -> str:
    """The named data of a chat template by its name in the model's files.

    Raises:
        FormatError: the name is not made of letters, digits, `_`, `-` and `.`.
    """
    if not re.fullmatch(r"[\w.-]+", name):
        raise FormatError(f"a chat template has the name {name!r}, which is not letters, digits, _, - and .")
    return _TEMPLATE if name == "default" else f"chat_template.{name}.jinja"


def _templates(folder: Path) -> dict[str, bytes]:
    """The templates of tokenizer_config.json, replaced by those of chat_template.json and of single files."""
    templates: dict[str, bytes] = {}
    for path in (folder / _SETTINGS, folder / "chat_template.json"):
        value = _object(path).get("chat_template")
        try:
            if isinstance(value, list):
                value = {one["name"]: one["template"] for one in value}
            named = value if isinstance(value, dict) else {"default": value} if value else {}
            templates |= {template_name(name): template.encode() for name, template in named.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{path}: chat_template is neither a text nor a list of names and templates: {error}"
            ) from None
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        templates[template_name(path.stem)] = path.read_bytes()
    return templates


def special_tokens(named: Mapping[str, Any]) -> bytes | None:
    """The texts of tokens by name, such as bos_token, as JSON; None if no token has a name.

    Args:
        named: settings of which those that end with `_token` are texts, objects with the text as `content`, or None for
            a token that the model does not have. Others are ignored.
    """
    texts = _texts(named)
    return json.dumps(texts, ensure_ascii=False).encode() if texts else None


def _texts(named: Mapping[str, Any]) -> dict[str, str | None]:
    texts = {}
    for name, value in named.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and (text is None or isinstance(text, str)):
            texts[name] = text
    return texts


# --- Tokenizers ---


def tokenizer_file(path: str | os.PathLike[str]) -> bytes:
    """A tokenizer.json, or a tokenizer.json that contains a file of SentencePiece or tiktoken.

    Raises:
        ModelNotFoundError: there is no such file.
        FormatError: it is none of these, or has a part that is not supported; code "unknown-tokenizer".
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelNotFoundError(
            f"the tokenizer {os.fspath(path)} cannot be read: {error.strerror}"
        ) from None
    return checked(path, data if data.lstrip()[:1] == b"{" else _wrapped(data, {}))


def checked(path: str | os.PathLike[str], data: bytes) -> bytes:
    """Returns `data`, the tokenizer of the file `path`, if the engine can read it.

    Raises:
        FormatError: code "unknown-tokenizer": it cannot; names the file.
    """
    if why := _fault(data):
        raise FormatError(
            f"the tokenizer of {os.fspath(path)} cannot be read: {why[1]}",
            hints=[TOKENIZER_HINT],
            code="unknown-tokenizer",
        )
    return data


def _fault(data: bytes) -> tuple[int, str] | None:
    """The error code of the engine and its reason not to read a tokenizer.json; None if it reads the file."""
    binding = native.module()
    try:
        binding.llm.Tokenizer(data)
    except binding.Fault as fault:
        return fault.args[1], fault.args[2]
    return None


def _wrapped(data: bytes, settings: Mapping[str, Any], **numbers: object) -> bytes:
    """Returns a tokenizer.json that contains a file of SentencePiece or tiktoken and the token settings of tokenizer_config.json.

    Args:
        settings: its `added_tokens_decoder`, `bos_token`, `eos_token`, `add_bos_token` and `add_eos_token` are used.
        numbers: `vocab`, the indices of pieces, and `unk_token`, the piece for all others. Default: the indices of the file.
    """
    added = settings.get("added_tokens_decoder") or {}
    try:
        tokens = [{**token, "id": int(index), "normalized": False} for index, token in added.items()]
    except (AttributeError, TypeError, ValueError):
        raise FormatError(
            f"{_SETTINGS}: added_tokens_decoder is not an object of indices and tokens"
        ) from None
    ends = _texts({name: settings.get(name) for name in ("bos_token", "eos_token")})
    flags = {name: settings.get(name) for name in ("add_bos_token", "add_eos_token")}
    model = {"type": "File", "bytes": base64.b64encode(data).decode(), **numbers}
    contents = {"version": "1.0", "added_tokens": tokens, "model": model, **ends, **flags}
    return json.dumps(contents, ensure_ascii=False).encode()


def _tokenizer(folder: Path, model_type: str, settings: Mapping[str, Any]) -> bytes | None:
    """The tokenizer of a folder; None if it has no vocabulary that the engine can read."""
    if (tokenizer_file := folder / TOKENIZER).is_file():
        return _supported(tokenizer_file, tokenizer_file.read_bytes())
    if (source := folder / "source.spm").is_file() and not settings.get("separate_vocabs"):
        return _marian(source, settings)
    other_files = list(_matching(folder, _OTHERS))
    files = [path for path in _matching(folder, ("*.model", "*.tiktoken")) if path not in other_files]
    if files and not other_files and "pegasus" not in model_type:
        return _supported(files[-1], _wrapped(files[-1].read_bytes(), settings))
    return _by_transformers(folder, [*other_files, *files]) if other_files or files else None


def _supported(path: Path, data: bytes) -> bytes | None:
    """Returns `data`. Warns and returns None if it has a part that the engine does not support."""
    why = _fault(data)
    if why is not None and why[0] == native.NOT_SUPPORTED:
        _warn(f"the engine does not support a part of {path}: {why[1]}")
        return None
    return checked(path, data)


def _warn(why: str) -> None:
    warnings.warn(f"the program has no tokenizer: {why}. A remedy is {TOKENIZER_HINT}", stacklevel=2)


def _marian(source: Path, settings: Mapping[str, Any]) -> bytes | None:
    """Returns the tokenizer of Marian: source.spm divides a text; vocab.json has the indices of source and target pieces.

    A text ends with eos_token. Language codes, such as >>fra<<, are single tokens.
    """
    vocabulary = _object(source.with_name("vocab.json"))
    special = {"eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>"}
    special |= {name: text for name, text in _texts(settings).items() if text and name in special}
    codes = [piece for piece in vocabulary if re.fullmatch(">>.*<<", piece)]
    added = {
        index: {"content": piece, "special": piece not in codes}
        for piece in [*special.values(), *codes]
        if isinstance(index := vocabulary.get(piece), int)
    }
    fields = {"added_tokens_decoder": added, "eos_token": special["eos_token"], "add_eos_token": True}
    numbers = {"vocab": vocabulary, "unk_token": special["unk_token"]}
    return _supported(source, _wrapped(source.read_bytes(), fields, **numbers))


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(folder.glob(pattern))


def _by_transformers(folder: Path, files: list[Path]) -> bytes | None:
    """Returns the tokenizer that transformers creates from vocabulary files. Warns and returns None if it cannot create one."""
    from transformers import AutoTokenizer

    backend: Callable[[], str] | None = None
    try:
        with warnings.catch_warnings():  # such as recommendations to install packages
            warnings.simplefilter("ignore")
            tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        backend = getattr(getattr(tokenizer, "backend_tokenizer", None), "to_str", None)
        why = f"its class {type(tokenizer).__name__} has no fast form"
    except Exception as error:  # raised by a package, or by the class that reads the files
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if backend is not None:
        return _supported(folder / files[0], backend().encode())
    names = ", ".join(one.name for one in files)
    _warn(f"{folder} has no tokenizer.json, and transformers cannot create one from {names}: {why}")
    return None
