# SPDX-License-Identifier: BSD-3-Clause
# The server of language models: HTTP, the checks of requests, and the forms of OpenAI's endpoints.
"""OpenAI's endpoints for a language model: `Server`."""

from torchette.llm.serve.limits import Limits
from torchette.llm.serve.origins import Origins
from torchette.llm.serve.server import Server

__all__ = ["Limits", "Origins", "Server"]
