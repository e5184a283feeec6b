# SPDX-License-Identifier: BSD-3-Clause
# In: chat requests with special tokens, several templates and tools. Out: the prompts of transformers, from Python and from the
# runner, and required calls.

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.llm import double
from tests.llm.engine.test_runner import converse
from torchette.errors import FormatError, InputError
from torchette.llm.messages import calls_in, functions
from torchette.llm.text import ChatTemplate, Tokenizer

utilities = pytest.importorskip("transformers.utils.chat_template_utils")

SPECIAL = "{{ bos_token }}|{{ eos_token }}|{{ pad_token }}|{{ unk_token }}|{{ image_token is defined }}|{{ additional_special_tokens }}"
STATED = (
    "{% if tools is not none %}{{ tools | tojson }}{% else %}no tools{% endif %}"
    "{% if documents is not none %}documents{% endif %}{% if tools is defined %} defined{% endif %}"
)
PLAIN = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
WITH_TOOLS = "<tool_call>{{ tools | map(attribute='function.name') | join(',') }}{{ thinking }}" + PLAIN
MESSAGES = [{"role": "user", "content": "Hi"}]
ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}},
            "required": ["a"],
        },
    },
}
NOW = {"type": "function", "function": {"name": "mcp:clock/now", "description": "x"}}


def rendered(source: str, **names: Any) -> str:
    """The prompt of transformers."""
    return str(utilities.render_jinja_template([MESSAGES], chat_template=source, **names)[0][0])


@pytest.mark.parametrize(
    ("map", "names"),
    [
        ({"bos_token": "<|begin|>", "eos_token": {"content": "<|end|>", "lstrip": False}}, {"bos_token": "<|begin|>", "eos_token": "<|end|>"}),
        ({"bos_token": None, "pad_token": "<pad>", "unk_token": "<unk>", "image_token": "<img>"}, {"pad_token": "<pad>", "unk_token": "<unk>", "image_token": "<img>"}),
        ({"additional_special_tokens": ["<a>", {"content": "<b>"}]}, {"additional_special_tokens": ["<a>", "<b>"]}),
        ({}, {}), (None, {"bos_token": "<s>", "eos_token": "</s>"}),
    ],
)  # fmt: skip
def test_special_tokens_are_those_of_the_program(map: Any, names: dict[str, Any]) -> None:
    files = {"chat_template.jinja": SPECIAL.encode()}
    if map is not None:
        files["special_tokens_map.json"] = json.dumps(map).encode()
    tokenizer = Tokenizer(double.tokenizer_json())
    template = ChatTemplate.of_files(files, tokenizer, double.BEGIN, double.END)
    assert template.render(MESSAGES) == rendered(SPECIAL, **names)


def test_a_token_that_the_model_does_not_have_is_undefined() -> None:
    template = ChatTemplate.of_files({"chat_template.jinja": b"{{ bos_token + 'x' }}"}, None, -1, -1)
    with pytest.raises(InputError, match="bos_token"):
        template.render(MESSAGES)
    for wrong in (b"[", b"[]"):
        with pytest.raises(FormatError, match=r"JSON"):
            ChatTemplate.of_files(
                {"chat_template.jinja": b"x", "special_tokens_map.json": wrong}, None, -1, -1
            )
    with pytest.raises(FormatError, match="has no chat template") as caught:
        ChatTemplate.of_files({}, None, -1, -1)
    assert caught.value.code == "no-chat-template"


def test_a_request_without_tools_has_none() -> None:
    template = ChatTemplate(STATED, {})
    assert template.render(MESSAGES) == rendered(STATED) == "no tools defined"
    assert template.render(MESSAGES, tools=[ADD]) == rendered(STATED, tools=[ADD])
    assert template.render(MESSAGES, documents=[{"text": "x"}]) == rendered(STATED, documents=[{"text": "x"}])


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("chat") / "model.pte"
    more = {
        "chat_template.jinja": (SPECIAL + STATED + PLAIN + "{{ enable_thinking }}").encode(),
        "chat_template.tool_use.jinja": WITH_TOOLS.encode(),
        "special_tokens_map.json": b'{"bos_token": "<b>", "pad_token": "<p>"}',
    }
    file.write_bytes(double.program(more))
    return file


def test_the_runner_renders_as_python(path: Path) -> None:
    from torchette.format import pte

    files = pte.load_file(path).named()
    template = ChatTemplate.of_files({name: bytes(data) for name, data in files.items()}, None, -1, -1)
    parts = [{"type": "text", "text": "H"}, {"type": "text", "text": "i"}]
    cases: list[tuple[Any, dict[str, Any]]] = [
        (MESSAGES, {}),
        (MESSAGES, {"template": {"enable_thinking": False}, "tools": []}),
        (MESSAGES, {"tools": [ADD, NOW], "tool_choice": "auto", "template": {"thinking": "+"}}),
        ([{"role": "user", "content": parts}], {"tools": None, "template": None}),
    ]
    results = converse(path, *(f"render\t{json.dumps(m)}\t{json.dumps(o)}" for m, o in cases))
    for (messages, options), line in zip(cases, results, strict=True):
        names = {**(options.get("template") or {}), "tools": options.get("tools") or None}
        assert (line.error, line.answer) == ("Ok", template.render(messages, **names))
    assert results[0].answer.startswith("<b>||<p>|") and results[0].answer.endswith(
        "no tools defined<user>Hi"
    )
    assert results[1].answer.endswith("<user>HiFalse")
    assert results[2].answer == "<tool_call>add,mcp:clock/now+<user>Hi"


def test_runner_rejects_invalid_requests(path: Path, tmp_path: Path) -> None:
    call = {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}
    wrong = [
        (MESSAGES, 5), (MESSAGES, {"template": 5}), (MESSAGES, {"enable_thinking": True}), (MESSAGES, {"tools": 5}), (MESSAGES, {"tools": [{"type": "custom"}]}), ([], {}), ("x", {}), ([call], {}),
        (MESSAGES, {"tools": [ADD], "tool_choice": "other"}), ([{"role": "user", "content": [{"type": "video"}]}], {}),
    ]  # fmt: skip
    lines = converse(path, *(f"chat\t{json.dumps(m)}\tnew=1\toptions={json.dumps(v)}" for m, v in wrong))
    assert {line.error for line in lines} == {"InvalidArgument"}
    plain = tmp_path / "plain.pte"
    plain.write_bytes(double.program())
    assert (
        converse(plain, f"render\t{json.dumps(MESSAGES)}\t{json.dumps({'tools': [ADD]})}")[0].error
        == "InvalidArgument"
    )


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_runner_generates_the_required_call(path: Path, choice: Any) -> None:
    options = json.dumps({"tools": [ADD], "tool_choice": choice})
    both = ["json=" + json.dumps({"grammar": 'root ::= "a"'}), f"options={options}"]
    required, twice = converse(
        path,
        f"chat\t{json.dumps(MESSAGES)}\tnew=100\toptions={options}",
        "\t".join(["chat", json.dumps(MESSAGES), *both]),
    )
    assert (required.error, required.reason) == ("Ok", "stop")
    text, (call,) = calls_in(required.answer, ["add"])
    assert text == "" and call.name == "add" and 0 <= call.arguments["a"] <= 9
    assert twice.error == "InvalidArgument"


def test_errors_of_invalid_tools_state_the_reason() -> None:
    long = {"type": "function", "function": {"name": "n" * 100}}
    assert list(functions([ADD, NOW, long])) == ["add", "mcp:clock/now", "n" * 100]
    for tools, why in (
        ([ADD, {"type": "custom", "custom": {"name": "x"}}], r"tools\[1\] has the type 'custom'"),
        ([{"type": "function", "function": {"name": "a b"}}], r"name of tools\[0\] is 'a b'"),
        ([{"type": "function", "function": {"name": "n" * 257}}], "1 to 256 letters"),
        ([ADD, ADD], "two have the name add"),
        ([{"function": {"name": "add"}}], r"tools\[0\] is not one"),
    ):
        with pytest.raises(InputError, match=why):
            functions(tools)


def test_allowed_tools_are_a_choice_among_the_tools() -> None:
    def allowed(mode: str, *names: str) -> dict[str, Any]:
        tools = [{"type": "function", "function": {"name": name}} for name in names]
        return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}

    template = ChatTemplate(WITH_TOOLS, {})

    def request(choice: Any, *tools: Any) -> dict[str, Any]:
        return {"tools": tools or (ADD, NOW), "tool_choice": choice, "template": {"thinking": "+"}}

    def flat(nested: dict[str, Any]) -> dict[str, Any]:  # of the Responses API
        return {"type": "allowed_tools", **nested["allowed_tools"]}

    assert template.grammar(request(allowed("auto", "add"))) is None
    assert template.grammar(request(allowed("required", "add"))) == template.grammar(request("required", ADD))
    for mode in ("auto", "required"):
        for choice in (allowed(mode, "add"), flat(allowed(mode, "add"))):
            assert template.prompt(MESSAGES, request(choice)) == "<tool_call>add+<user>Hi"
    assert template.prompt(MESSAGES, request(allowed("auto", "mcp:clock/now", "add"))) == "<tool_call>add,mcp:clock/now+<user>Hi"  # fmt: skip
    wrong: list[Any] = [
        allowed("required"),
        allowed("other", "add"),
        allowed("required", "sub"),
        allowed("auto", "sub"),
    ]
    for choice in (*wrong, {"type": "allowed_tools"}, {"type": "allowed_tools", "mode": "auto", "tools": 5}):
        for work in (template.grammar, functools.partial(template.prompt, MESSAGES)):
            with pytest.raises(InputError, match="tool_choice"):
                work(request(choice))


def test_runner_renders_only_the_allowed_tools(path: Path) -> None:
    choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}
    options = {"tools": [ADD, NOW], "tool_choice": choice}
    (line,) = converse(path, f"render\t{json.dumps(MESSAGES)}\t{json.dumps(options)}")
    assert line.answer == "<tool_call>mcp:clock/now<user>Hi"


def test_a_broken_call_in_the_history_has_a_reason() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": '}}
    with pytest.raises(InputError, match=r"messages\[1\]\.tool_calls\[0\]\.function\.arguments is not JSON"):
        ChatTemplate(PLAIN, {}).render([*MESSAGES, {"role": "assistant", "tool_calls": [call]}])
    assert ChatTemplate(PLAIN, {}).render([{"role": "assistant", "content": None}]) == "<assistant>"


def test_values_of_tools_are_exact() -> None:
    """Integers beyond 64 bits, floats and Unicode have Python's form in the prompt."""
    source = "{{ tools | tojson(ensure_ascii=True) }}{{ x | tojson(separators=(',', ':'), sort_keys=true) }}{{ x }}"
    x = {"b": [12345678901234567890123, 9007199254740993, 1.0, 1e22, 1e-7, 0.1], "a": "\u200bé\x7f😀"}
    assert ChatTemplate(source, {}).render(MESSAGES, tools=[ADD, NOW], x=x) == rendered(
        source, tools=[ADD, NOW], x=x
    )
    for odd in (object(), float("nan"), "\ud800", b"x"):
        with pytest.raises(InputError):
            ChatTemplate(source, {}).render(MESSAGES, x=odd)


def refused(work: Callable[[], object]) -> bool:
    """Returns whether a call raises InputError; asserts that the error states a reason."""
    try:
        work()
    except InputError as error:
        assert len(error.message) > 20 and "\n" not in error.message
        return True
    return False


def test_damaged_requests_are_errors_with_a_reason() -> None:
    chance, template = random.Random(2), ChatTemplate(PLAIN, {}, WITH_TOOLS)

    def damaged(value: Any) -> Any:
        if chance.random() < 0.06:
            return chance.choice([None, 5, "x", [], {}, True, 1.5, [1], {"type": "text"}, "{"])
        if isinstance(value, dict):
            return {key: damaged(item) for key, item in value.items() if chance.random() > 0.03}
        return [damaged(item) for item in value] if isinstance(value, list) else value

    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}}
    content = [{"type": "text", "text": "x"}, {"type": "image"}]
    messages = [
        {"role": "user", "content": content},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    count = 0
    for _ in range(600):
        tools, choice, conversation = damaged([ADD, NOW]), damaged("required"), damaged(messages)
        count += refused(functools.partial(template.render, conversation, tools=tools))
        count += refused(functools.partial(template.grammar, {"tools": tools, "tool_choice": choice}))
        answer = json.dumps(damaged([call]))
        text, calls = calls_in(answer, ["add"])
        assert (text, {name for name, _ in calls}) in ((answer, set()), ("", {"add"}))
    assert 200 < count < 1100
