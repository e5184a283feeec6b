# SPDX-License-Identifier: BSD-3-Clause
# The names under which clients find a model.

from __future__ import annotations

import pytest

from tests.llm.double import FakeDecoder, session
from tests.llm.serve.client import ask, serving
from torchette.errors import InputError
from torchette.llm.serve import Server

BODY = {"prompt": "x", "max_tokens": 2, "temperature": 0}


def test_an_alias_is_a_name_of_the_default_model():
    adapters = {"pirate": [session(FakeDecoder(seed=1))]}
    with serving([session(FakeDecoder())], aliases=["gpt-4o", "org/a b"], adapters=adapters) as server:
        listed = [model["id"] for model in ask(server, "/v1/models")[1]["data"]]
        assert listed == ["double", "pirate", "gpt-4o", "org/a b"]
        expected = ask(server, "/v1/completions", BODY)[1]["choices"][0]["text"]
        for name in ("gpt-4o", "org/a b"):
            answer = ask(server, "/v1/completions", {**BODY, "model": name})[1]
            assert (answer["model"], answer["choices"][0]["text"]) == (name, expected)
        assert ask(server, "/v1/models/org%2Fa%20b")[1]["id"] == "org/a b"
        status, body = ask(server, "/v1/completions", {**BODY, "model": "gpt-5"})
        assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert "--alias gpt-5" in body["error"]["message"]


def test_all_names_can_be_accepted():
    adapters = {"pirate": [session(FakeDecoder(seed=1))]}
    with serving([session(FakeDecoder())], aliases=["*"], adapters=adapters) as server:
        assert [model["id"] for model in ask(server, "/v1/models")[1]["data"]] == ["double", "pirate"]
        texts = {name: ask(server, "/v1/completions", {**BODY, "model": name})[1]["choices"][0]["text"] for name in ("double", "any", "pirate", "*")}  # fmt: skip
        assert texts["any"] == texts["*"] == texts["double"] != texts["pirate"]
        assert ask(server, "/v1/models/any")[1]["id"] == "any"
        assert ask(server, "/v1/completions", {**BODY, "model": 5})[0] == 404


def test_an_alias_is_not_the_name_of_another_model():
    adapters = {"pirate": [session(FakeDecoder(seed=1))]}
    with pytest.raises(InputError, match="'pirate' is the name of another model"):
        Server([session(FakeDecoder())], "double", port=0, adapters=adapters, aliases=["double", "pirate"])


@pytest.mark.parametrize("path", ["/v1/models/", "/v1/models/other", "/v1/models/a/b"])
def test_an_unknown_model_is_not_found(path):
    with serving([session(FakeDecoder())]) as server:
        assert ask(server, path)[0] == (200 if path.endswith("models/") else 404)
