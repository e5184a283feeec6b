# SPDX-License-Identifier: BSD-3-Clause
# The Python interface of the C++ grammars in this folder.
"""Grammars and JSON schemas that constrain the text that a model generates."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from torchette.errors import InputError
from torchette.runtime import native


def _error(fault: Exception, code: str) -> InputError:
    """The exception for a native Fault. The last line of the log is the most general one."""
    return InputError(": ".join(reversed(fault.args[2].splitlines())), code=code)


class Grammar:
    """A grammar in GBNF, the notation of llama.cpp: ``root ::= "yes" | "no"``, with classes ``[^a-z]``, ``.``, groups,
    ``* + ? {m,n}`` and comments.

    Args:
        text: the grammar.
        root: the name of the first rule.

    Attributes:
        text: the grammar.

    Raises:
        InputError: code "bad-grammar", with the line: a syntax error, a name without a rule, left recursion, too many
            repeats, or a grammar that is too large.

    Example:
        >>> answer = session.generate("Is it?", grammar=Grammar('root ::= "yes" | "no"'), max_tokens=9).run()
    """

    def __init__(self, text: str, root: str = "root") -> None:
        if not isinstance(text, str):
            raise InputError(f"a grammar is text, not {type(text).__name__}", code="bad-grammar")
        self.text = text
        binding = native.module()
        try:
            text.encode()  # UnicodeEncodeError; the binding raises TypeError for a surrogate
            self._native = binding.llm.Grammar(text, root)
        except binding.Fault as fault:
            raise _error(fault, "bad-grammar") from None
        except UnicodeEncodeError:
            raise InputError(
                "the grammar has a surrogate, which is not a character", code="bad-grammar"
            ) from None


class Vocabulary:
    """The tokens that grammars choose from.

    Args:
        tokens: the bytes of each token; empty for a token that no grammar allows, such as a special token.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._native = native.module().llm.GrammarVocabulary(tokens)


class Matcher:
    """A position in a text that a grammar constrains. It does not change; `after` returns the next position."""

    def __init__(self, grammar: Grammar, vocabulary: Vocabulary) -> None:
        self._native = _call(native.module().llm.Matcher.start, grammar._native, vocabulary._native)

    def allowed(self, ends: Sequence[int]) -> np.ndarray:
        """Returns for each token whether it may be next, bool [tokens]; `ends` may if the text may end here.

        Raises:
            InputError: code "bad-grammar": the grammar is too ambiguous.
        """
        mask: np.ndarray = _call(self._native.allowed)
        mask[list(ends)] = self._native.accepts
        return mask

    def after(self, token: int) -> Matcher:
        """Returns the position after a token.

        Raises:
            InputError: code "bad-grammar": the grammar does not allow the token here, or it is too ambiguous.
        """
        native_matcher = _call(self._native.after, token)
        if native_matcher is None:
            raise InputError(f"the grammar does not allow token {token} here", code="bad-grammar")
        return _matcher(native_matcher)

    def after_bytes(self, text: bytes) -> Matcher | None:
        """Returns the position after a text, or None if the grammar does not allow the text here. Raises as `after`."""
        native_matcher = _call(self._native.after_bytes, text)
        return None if native_matcher is None else _matcher(native_matcher)

    @property
    def accepts(self) -> bool:
        """Whether the text may end here."""
        result: bool = self._native.accepts
        return result

    @property
    def is_done(self) -> bool:
        """Whether the text is complete: it may end here and nothing may follow."""
        result: bool = self._native.is_done
        return result


def _call(function: Callable[..., Any], *arguments: object) -> Any:
    try:
        return function(*arguments)
    except native.module().Fault as fault:
        raise _error(fault, "bad-grammar") from None


def _matcher(native_matcher: Any) -> Matcher:
    matcher = Matcher.__new__(Matcher)
    matcher._native = native_matcher
    return matcher


def grammar_of(schema: object) -> str:
    """Returns the grammar in GBNF of the JSON texts that a JSON schema accepts.

    Objects have their properties in the order of the schema, and other properties only if ``additionalProperties`` is
    given. ``oneOf`` means ``anyOf``. Days of ``format: date`` end at 28.

    Args:
        schema: a dict, a bool, or JSON text of either.

    Raises:
        InputError: code "bad-schema": a grammar cannot express the schema; names the keyword and its location.

    Example:
        >>> grammar = Grammar(grammar_of({"enum": ["yes", "no"]}))
    """
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise InputError("the schema at #: it is nested too deep", code="bad-schema") from None
    except (TypeError, ValueError) as error:
        raise InputError(f"the schema at #: it is not JSON: {error}", code="bad-schema") from None
    binding = native.module()
    try:
        text.encode()
        result: str = binding.llm.grammar_of(text)
    except binding.Fault as fault:
        raise _error(fault, "bad-schema") from None
    except UnicodeEncodeError:
        raise InputError(
            "the schema at #: it has a surrogate, which is not a character", code="bad-schema"
        ) from None
    return result


def grammar_of_pattern(pattern: str) -> str:
    """Returns the grammar in GBNF of the texts that a regular expression matches from beginning to end.

    Args:
        pattern: a regular expression in the syntax of ECMA-262.

    Raises:
        InputError: code "bad-grammar": a grammar cannot express a part; names the part and its position.
    """
    try:
        pattern.encode()
        result: str = _call(native.module().llm.grammar_of_pattern, pattern)
    except UnicodeEncodeError:
        raise InputError(
            "the pattern has a surrogate, which is not a character", code="bad-grammar"
        ) from None
    return result
