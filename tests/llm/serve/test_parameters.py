# SPDX-License-Identifier: BSD-3-Clause
# Values that clients send for fields that they do not set, and alternative names of one option.

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.llm.double import END, TEMPLATE, FakeDecoder, Writer, session
from tests.llm.serve.client import LIMITS, ask, events, serving
from torchette import cli
from torchette.cli import _llm
from torchette.errors import InputError
from torchette.llm.options import OPTIONS, find
from torchette.llm.serve import Server
from torchette.llm.serve.parameters import sampling_options

MAX_TOKENS = find("max_new_tokens").spellings
CHAT = {"messages": [{"role": "user", "content": "x"}]}
DEFAULTS = {"temperature": 0.8, "do_sample": True, "top_k": 5}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with serving([session(FakeDecoder(context=512), DEFAULTS)]) as running:
        yield running


def answer(server: Server, path: str, **fields: Any) -> Any:
    prompt_fields = {"prompt": "x"} if path == "/v1/completions" else CHAT
    status, body = ask(server, path, {"temperature": 0, "max_tokens": 6, **prompt_fields, **fields})
    assert status == 200, body
    body.pop("id"), body.pop("created"), body["usage"].pop("prompt_tokens_details")
    return body


UNSET: list[dict[str, Any]] = [
    {"top_p": 0}, {"top_p": 0.0}, {"seed": -1}, {"top_k": -1}, {"top_k": 0}, {"stop": ""}, {"stop": []}, {"stop": [""]},
    {"stop": ["", ""]}, {"repetition_penalty": 0}, {"repetition_penalty": 0.0}, {"n": 1}, {"logit_bias": {}}, {"logit_bias": []},
    {"grammar": ""}, {"guided_regex": ""}, {"model": ""}, {"suffix": ""}, {"best_of": 1}, {"echo": False}, {"tools": []},
    {"functions": []}, {"function_call": "auto"}, {"logprobs": False}, {"stream": False}, {"min_p": 0}, {"stream_options": {}},
    *({name: None} for name in (
        "temperature", "top_p", "top_k", "min_p", "seed", "stop", "n", "logit_bias", "frequency_penalty", "presence_penalty",
        "repetition_penalty", "logprobs", "top_logprobs", "stream", "stream_options", "model", "user", "tools", "tool_choice",
        "parallel_tool_calls", "response_format", "grammar", "guided_json", "structured_outputs", "chat_template_kwargs",
        "functions", "function_call", "best_of", "echo", "suffix", "audio", "modalities", "prediction", "max_completion_tokens",
    )),
]  # fmt: skip


@pytest.mark.parametrize("fields", UNSET, ids=str)
def test_a_value_for_unset_changes_nothing(server, fields):
    for path in ("/v1/completions", "/v1/chat/completions"):
        unset_fields = {**fields, **({"temperature": 0} if fields == {"temperature": None} else {})}
        assert answer(server, path, **unset_fields) == answer(server, path), path


def test_a_top_k_of_minus_one_is_all_tokens_and_not_the_default_of_the_file(server):
    texts = [answer(server, "/v1/completions", temperature=5, seed=1, max_tokens=30, **top_k)["choices"][0]["text"] for top_k in ({"top_k": -1}, {"top_k": 0}, {})]  # fmt: skip
    assert texts[0] == texts[1] != texts[2]


@pytest.mark.parametrize("name", MAX_TOKENS)
def test_the_limit_of_tokens_has_several_names(server, name):
    def count(**fields: Any) -> int:
        return answer(server, "/v1/completions", **{"max_tokens": None, **fields})["usage"][
            "completion_tokens"
        ]

    assert count(**{name: 3}) == 3
    unset = dict.fromkeys(MAX_TOKENS, -1)
    assert count(**unset) == count() == 16 and count(**{**unset, name: 3}) == 3
    chat = answer(server, "/v1/chat/completions", **unset)
    assert chat["usage"]["completion_tokens"] in range(17, LIMITS.answer_tokens + 1)
    for second_name in MAX_TOKENS:
        request = {"prompt": "x", name: 3, second_name: 4}
        if second_name != name:
            assert count(**{name: 3, second_name: 3}) == 3
            status, body = ask(server, "/v1/completions", request)
            assert (
                status == 400 and name in body["error"]["message"] and second_name in body["error"]["message"]
            )


@pytest.mark.parametrize(
    ("name", "values"),
    [("top_p", [False, -1, 2]), ("seed", [-2, True, 0.5]), ("top_k", [-2, True]), ("max_tokens", [0, -2, True, 1.5, "1"]),
     ("stop", [0, False, [5], {"a": 1}]), ("stream", ["true", 1, 0]), ("logit_bias", [[1], "a"]), ("repetition_penalty", [False, -1]),
     ("n", [-1, 0, True]), ("best_of", [True, 2]), ("echo", [0, True])],
)  # fmt: skip
def test_other_invalid_values_are_refused(server, name, values):
    """false is not 0, and 0 is not false."""
    for value in values:
        status, body = ask(server, "/v1/completions", {"prompt": "x", name: value})
        assert status == 400 and name in body["error"]["message"], (value, body)


SET = [option for option in OPTIONS if option.group == "sampling" or option.name in ("ignore_eos", "stop")]


@pytest.mark.parametrize("option", SET, ids=lambda option: option.name)
def test_a_request_sets_the_options_of_the_table_by_all_their_names(server, option):
    """The value reaches the session. A value that is wrong, and two names that differ, are refused with the field."""
    good = {"Flag": True, "Texts": ["a"], "Biases": {"7": 0.25}}.get(option.type, option.highest)
    another = {"Flag": False, "Texts": "b", "Biases": {"7": 0.5}}.get(option.type, option.highest / 2)
    bad = {"Flag": 1, "Texts": [5], "Biases": {"x": 1}}.get(option.type, option.highest * 2 + 1)
    if option.type in ("Integer", "Seed"):
        good, another, bad = int(good), int(another), int(bad)
    for name in option.spellings:
        value = sampling_options({name: good}, 1.0)[option.name]
        assert value == ({7: 0.25} if option.type == "Biases" else good)
        status, body = ask(server, "/v1/completions", {"prompt": "x", name: bad})
        assert (status, body["error"]["param"]) == (400, name) and name in body["error"]["message"], body
        if name != option.name:
            status, body = ask(server, "/v1/completions", {"prompt": "x", option.name: good, name: another})
            assert (status, body["error"]["param"]) == (400, name)
            assert f"{option.name} and {name} are the same option" in body["error"]["message"]
            assert sampling_options({option.name: good, name: good}, 1.0)[option.name] == value


def test_ignored_ends_are_those_of_a_session(server):
    class Ends(FakeDecoder):
        def logits(self, tokens: Any) -> Any:
            return super().logits(tokens) + 99 * (np.arange(self.vocab_size) == END)

    with serving([session(Ends(context=512))]) as ending:
        assert answer(ending, "/v1/completions")["choices"][0]["finish_reason"] == "stop"
        ignored = answer(ending, "/v1/completions", ignore_eos=True)
        assert (
            ignored["choices"][0]["finish_reason"] == "length" and ignored["usage"]["completion_tokens"] == 6
        )


def test_stop_strings_of_the_model_hold_for_requests_without_stop():
    with serving([session(Writer("abcXdef"), {"stop_strings": ["X"]}, template=TEMPLATE)]) as running:
        for stop, text in ((None, "abc"), ("", "abc"), ([""], "abc"), ("e", "abcXd"), (["c", ""], "ab")):
            choice = answer(running, "/v1/chat/completions", stop=stop, max_tokens=30)["choices"][0]
            assert (choice["message"]["content"], choice["finish_reason"]) == (text, "stop")


def test_the_server_has_defaults_of_requests(server):
    fields = {"temperature": None, "max_tokens": 12}
    defaults = {"temperature": 1.5, "seed": 4, "top_k": 3, "logit_bias": {7: 1.0}}
    written = {**defaults, "logit_bias": {"7": 1.0}}
    with serving([session(FakeDecoder(context=512), DEFAULTS)], defaults=defaults) as with_defaults:
        for path in ("/v1/completions", "/v1/chat/completions"):
            assert answer(with_defaults, path, **fields) == answer(server, path, **{**fields, **written}), (
                path
            )
            mine = {"temp": 0.5, "random_seed": 5, "top_k": -1}
            assert answer(with_defaults, path, **fields, **mine) == answer(server, path, **{**fields, **written, "temperature": None, "seed": None, **mine})  # fmt: skip
            assert answer(with_defaults, path, temperature=0) == answer(server, path, logit_bias={"7": 1.0})
        response = ask(with_defaults, "/v1/responses", {"input": "x", "max_output_tokens": 4})[1]
        assert response["temperature"] == 1.5
    for wrong in ({"top_p": 7}, {"tops": 1}):
        with pytest.raises(InputError, match="top"):
            serving([session()], defaults=wrong).__enter__()


def test_the_command_sets_defaults_by_flags(tmp_path, monkeypatch, capsys):
    served: list[Any] = []
    monkeypatch.setattr(
        Server, "serve_forever", lambda self: served.append((self.defaults, self.limits.answer_tokens))
    )
    monkeypatch.setattr(_llm, "session", lambda *_: session())
    command = ["serve", str(tmp_path / "model.pte"), "--port", "0"]
    assert (
        cli.main([*command, "--temp", "0.2", "--top-p", "0.9", "--logit-bias", "3=-1", "--max-tokens", "9"])
        == 0
    )
    assert cli.main(command) == 0
    assert served == [({"temperature": 0.2, "top_p": 0.9, "logit_bias": {3: -1.0}}, 9), ({}, 4096)]
    with pytest.raises(SystemExit):
        cli.main([*command, "--top-p", "7"])
    assert "--top-p: must be a number above 0 and at most 1" in capsys.readouterr().err


@pytest.mark.parametrize("stream", [False, True])
def test_seeds_of_several_answers_wrap(server, stream):
    highest = 1 << 53
    request = {"prompt": "x", "n": 3, "temperature": 1, "max_tokens": 8, "stream": stream}
    status, body = ask(server, "/v1/completions", {**request, "seed": highest})
    assert status == 200
    if not stream:
        texts = [choice["text"] for choice in body["choices"]]
        single = {"temperature": 1, "max_tokens": 8}
        assert texts == [answer(server, "/v1/completions", seed=seed, **single)["choices"][0]["text"] for seed in (highest, 0, 1)]  # fmt: skip
    else:
        assert {part["choices"][0]["finish_reason"] for part in events(body)} <= {None, "length", "stop"}


def test_a_content_of_null_is_empty(server):
    def said(*messages: Any) -> Any:
        return answer(server, "/v1/chat/completions", messages=list(messages))

    user = {"role": "user", "content": "x"}
    for role in ("system", "user", "assistant", "tool"):
        assert said(user, {"role": role, "content": None}) == said(user, {"role": role, "content": ""}), role
    assert said(user, {"role": "assistant"}) == said(user, {"role": "assistant", "content": ""})
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    for calls in (None, [], [call]):
        said(user, {"role": "assistant", "content": None, "tool_calls": calls}, user)
    assert said({"role": "developer", "content": "x"}, user) == said({"role": "system", "content": "x"}, user)


BROKEN: list[tuple[dict[str, Any], str]] = [
    ({"role": "user"}, "messages[1] has no content"),
    ({"role": "user", "content": 5}, "messages[1].content must be"),
    ({"content": "x"}, "messages[1] must be an object with a role"),
    ({"role": "user", "content": [{"type": "text"}]}, "messages[1].content[0].text must be a text"),
    ({"role": "user", "content": [{"type": "input_audio"}]}, "messages[1].content[0] is of type 'input_audio'"),
    ({"role": "assistant", "tool_calls": 5}, "messages[1].tool_calls must be a list"),
    ({"role": "assistant", "tool_calls": [5]}, "messages[1].tool_calls[0] must be of type function"),
    ({"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}, "messages[1].tool_calls[0] must be"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": "{}"}}, {"function": {"name": "a", "arguments": '{"a": 1'}}]},
     "messages[1].tool_calls[1].function.arguments is not valid JSON: Expecting ',' delimiter: line 1 column 8"),
    ({"role": "assistant", "tool_calls": [{"function": {"name": "a", "arguments": 5}}]}, "arguments must be a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("message", "reason"), BROKEN, ids=lambda value: str(value)[:60])
def test_invalid_message_error_states_location_and_reason(server, message, reason):
    status, body = ask(server, "/v1/chat/completions", {"messages": [CHAT["messages"][0], message]})
    assert (status, body["error"]["param"]) == (400, "messages") and reason in body["error"]["message"], body
