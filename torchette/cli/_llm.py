# SPDX-License-Identifier: BSD-3-Clause
# In: the options that verbs of language models share. Out: a session.
"""Sessions of language models."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from torchette.cli import _method


def arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the model and how it is loaded."""
    parser.add_argument("file", metavar="MODEL.pte", type=Path, help="a compiled language model")
    parser.add_argument(
        "--tokenizer", metavar="FILE", type=Path, help="a tokenizer.json, instead of the file's own"
    )
    parser.add_argument(
        "--data-file",
        metavar="FILE.ptd",
        action="append",
        default=[],
        help="weights that the file has not; may be repeated",
    )
    _method.threads_argument(parser)


def draft_argument(parser: argparse.ArgumentParser) -> None:
    """Declares a model that proposes tokens."""
    parser.add_argument(
        "--draft",
        metavar="SMALL.pte",
        type=Path,
        help="a small model with the same tokens, which proposes some; answers stay the same",
    )


def session(options: argparse.Namespace, adapter: str | Path | None = None) -> Any:
    """A session of the model. Raises as `torchette.llm.Session` does."""
    from torchette.llm.session import Session

    return Session(
        options.file,
        tokenizer=options.tokenizer,
        data_files=options.data_file,
        adapter=adapter,
        threads=options.threads,
    )
