# SPDX-License-Identifier: BSD-3-Clause
# In: the folder of a model. Out: the files that its program carries: tokenizer, chat templates, special tokens, settings.
"""`of_folder`: a folder's named data; `tokenizer_file`: any tokenizer as tokenizer.json."""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from torchette.errors import FormatError, ModelNotFoundError
from torchette.llm.exporting.vocabularies import OWN_TOKENIZER, converted

PROCESSOR, TOKENIZER, SPECIAL_TOKENS = "preprocessor_config.json", "tokenizer.json", "special_tokens_map.json"
_TEMPLATE = "chat_template.jinja"
_SETTINGS = "tokenizer_config.json"
_FILES = (PROCESSOR, TOKENIZER, _TEMPLATE, "generation_config.json", "config.json")
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
    found = {name: (folder / name).read_bytes() for name in _FILES if (folder / name).is_file()}
    settings = [_object(folder / name) for name in (SPECIAL_TOKENS, _SETTINGS)]
    found |= {**_templates(folder), **found}
    if special := special_tokens({name: value for one in settings for name, value in one.items()}):
        found[SPECIAL_TOKENS] = special
    if tokenizer is not None:
        found[TOKENIZER] = tokenizer
    elif TOKENIZER not in found and (made := _tokenizer(folder, model_type, settings[1])) is not None:
        found[TOKENIZER] = made
    return found


def _object(path: Path) -> dict[str, Any]:
    """A JSON file; empty if there is none. FormatError if it is not an object."""
    if not path.is_file():
        return {}
    try:
        found = json.loads(path.read_bytes())
    except ValueError as error:
        raise FormatError(f"{path} is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise FormatError(f"{path} is not a JSON object")
    return found


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
    found: dict[str, bytes] = {}
    for path in (folder / _SETTINGS, folder / "chat_template.json"):
        given = _object(path).get("chat_template")
        try:
            if isinstance(given, list):
                given = {one["name"]: one["template"] for one in given}
            named = given if isinstance(given, dict) else {"default": given} if given else {}
            found |= {template_name(name): template.encode() for name, template in named.items()}
        except (KeyError, TypeError, AttributeError) as error:
            raise FormatError(
                f"{path}: chat_template is neither a text nor a list of names and templates: {error}"
            ) from None
    for path in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        found[template_name(path.stem)] = path.read_bytes()
    return found


def special_tokens(named: Mapping[str, Any]) -> bytes | None:
    """The texts of tokens by name, such as bos_token, as JSON; None if no token has a name.

    Args:
        named: settings of which those that end with `_token` are texts, objects with the text as `content`, or None for
            a token that the model does not have. Others are ignored.
    """
    found = {}
    for name, value in named.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and (text is None or isinstance(text, str)):
            found[name] = text
    return json.dumps(found, ensure_ascii=False).encode() if found else None


# --- Tokenizers ---


def tokenizer_file(path: str | os.PathLike[str]) -> bytes:
    """A tokenizer.json, or a file of SentencePiece or tiktoken as one.

    Raises:
        ModelNotFoundError: there is no such file.
        FormatError: it is none of these.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ModelNotFoundError(
            f"the tokenizer {os.fspath(path)} cannot be read: {error.strerror}"
        ) from None
    return data if data.lstrip()[:1] == b"{" else converted(data)


def _tokenizer(folder: Path, model_type: str, settings: Mapping[str, Any]) -> bytes | None:
    """The tokenizer of a folder without tokenizer.json; None if it has no vocabulary."""
    others = list(_matching(folder, _OTHERS))
    own = [path for path in _matching(folder, ("*.model", "*.tiktoken")) if path not in others]
    if own and not others and "pegasus" not in model_type:
        return converted(own[-1].read_bytes(), settings)
    return _by_transformers(folder, [*others, *own]) if others or own else None


def _matching(folder: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    for pattern in patterns:
        yield from sorted(folder.glob(pattern))


def _by_transformers(folder: Path, files: list[Path]) -> bytes | None:
    """The tokenizer that transformers makes of vocabulary files. Warns and returns None if there is none."""
    from transformers import AutoTokenizer

    backend: Callable[[], str] | None = None
    try:
        with warnings.catch_warnings():  # such as recommendations of packages
            warnings.simplefilter("ignore")
            made = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        backend = getattr(getattr(made, "backend_tokenizer", None), "to_str", None)
        why = f"its class {type(made).__name__} has no fast form"
    except Exception as error:  # of a package, or of the class that reads the files
        why = (str(error).strip().splitlines() or [type(error).__name__])[0]
    if backend is not None:
        return backend().encode()
    warnings.warn(
        f"the program has no tokenizer: {folder} has no tokenizer.json, and transformers makes none of "
        f"{', '.join(one.name for one in files)}: {why}. A remedy is {OWN_TOKENIZER}",
        stacklevel=2,
    )
    return None
