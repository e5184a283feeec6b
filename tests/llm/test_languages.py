# SPDX-License-Identifier: BSD-3-Clause
# The language-model engine in every language: a table of requests has the same tokens, texts, finish reasons, counts and errors
# in Python, C++, C, Java and JavaScript. tests/llm/languages has a program per language: a request in, the answer out.

from __future__ import annotations

import dataclasses
import importlib.util
import json
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.building import ROOT, built, run
from tests.llm import double
from tests.llm.languages.c_api import Conversation
from tests.llm.languages.java import compile_java

torch = pytest.importorskip("torch")
pytest.importorskip("tokenizers")
llm = pytest.importorskip("torchette.llm")
from torchette import cli  # noqa: E402
from torchette.errors import InputError, TorchetteError  # noqa: E402

HERE = Path(__file__).parent / "languages"
ERRORS = ROOT / "torchette/runtime/error.h"
TEMPLATE = (
    "{{ bos_token }}{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}{% for m in messages %}<{{ m.role }}>{{ m.content }}"
    "{% endfor %}<assistant>{% if enable_thinking is defined and not enable_thinking %}<think></think>{% endif %}"
)
COUNTS = ("prompt_tokens", "generated_tokens", "drafted_tokens", "accepted_tokens", "finish_reason")
HELLO = [{"role": "user", "content": "Hello"}]
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "integer", "maximum": 9}}, "required": ["a"]}},
}  # fmt: skip
NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"enum": ["x", "é😀"]}, "b": {"type": "boolean"}},
    "required": ["a", "b"],
}
END, NO_END = {str(double.END): 100.0}, {str(double.END): -1e300}


@dataclasses.dataclass
class Case:
    """A request. The other languages must answer like Python."""

    name: str
    given: Any  # a prompt or messages
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chat: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    reason: str = "length"
    error: str = "Ok"
    says: str = ""  # part of the error message
    draft: str = ""
    """A key of `models`."""
    without: Sequence[str] = ()
    """Languages that cannot express the request."""
    model: str = "plain"
    modes: Sequence[str] = ("steps", "whole")
    other_in: Mapping[str, tuple[str, str]] = dataclasses.field(default_factory=dict)
    """Errors of languages that lack a feature."""


NO_SCHEMAS = {"JavaScript": ("NotSupported", "this build has no JSON schemas")}
NO_DRAFT = ("Java", "JavaScript")
CASES = [
    Case("greedy", "Hello", {"max_new_tokens": 30}),
    Case("drawn", "Hello", {"max_new_tokens": 30, "temperature": 1.2, "top_p": 0.9, "top_k": 40, "seed": 3}),
    Case("min_p", "Hello", {"maxTokens": 30, "temperature": 2, "minP": 0.05, "seed": 2**53}),
    Case("penalties", "Hello", {"max_new_tokens": 30, "repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2}),
    Case("bias", "Hello", {"n_predict": 9, "logit_bias": {"65": 5, "66": -1e300}}),
    Case("end token", "Hello", {"max_new_tokens": 9, "logit_bias": END}, reason="stop"),
    Case("end token is ignored", "Hello", {"max_new_tokens": 9, "logit_bias": END, "ignore_eos": True}),
    Case("stop text", "Hello", {"max_new_tokens": 30, "grammar": 'root ::= "one, two, three"', "stop": ["never", "two"]}, reason="stop"),
    Case("full context", "x" * 240, {"logit_bias": NO_END}),
    Case("seq_len", "Hello", {"seq_len": 10}),
    Case("slide", "x" * 200, {"max_new_tokens": 120, "slide": True, "keep": 3, "logit_bias": NO_END}),
    Case("grammar", "Hello", {"max_new_tokens": 30, "grammar": 'root ::= ("yes" | "nó" | "😀"){3,9}', "temperature": 3, "seed": 1}, reason="stop"),
    Case("schema", "Hello", {"schema": SCHEMA, "temperature": 2, "seed": 4}, reason="stop", other_in=NO_SCHEMAS),
    Case("draft", "Hello", {"max_new_tokens": 30}, draft="plain", without=NO_DRAFT),
    Case("draft, drawn", "Hello", {"max_new_tokens": 30, "temperature": 1, "seed": 1}, draft="plain", without=NO_DRAFT),
    Case("draft that is wrong", "Hello", {"max_new_tokens": 30, "temperature": 2, "seed": 1}, draft="other", without=NO_DRAFT),
    Case("generation_config.json", "Hello", {"max_new_tokens": 30}, reason="stop", model="constrained"),
    Case("characters", "Grüße \N{GRINNING FACE} \t\r\n\"\\", {"max_new_tokens": 5}),
    Case("zero character", "a\0b", {"max_new_tokens": 5}, without=("C", "Java")),
    Case("zero in an answer", "Hello", {"grammar": 'root ::= "a\\x00b"'}, reason="stop"),
    Case("zero in JSON", [{"role": "user", "content": "a\0b"}], {"max_new_tokens": 30, "stop": ["\0"]}),
    Case("chat", HELLO, {"max_new_tokens": 9}),
    Case("a longer chat", [*HELLO, {"role": "assistant", "content": "Hi"}, *HELLO], {"max_new_tokens": 9}),
    Case("parts", [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}], {"max_new_tokens": 9}),
    Case("thinking", HELLO, {"max_new_tokens": 9}, {"template": {"enable_thinking": False}}),
    Case("tools", HELLO, {"max_new_tokens": 9}, {"tools": [ADD, NOW], "tool_choice": "auto"}),
    Case("tools that are not called", HELLO, {"max_new_tokens": 9}, {"tools": [ADD], "tool_choice": "none"}),
    Case("a tool must be called", HELLO, {}, {"tools": [ADD, NOW], "tool_choice": "required"}, "stop", other_in={"JavaScript": ("NotSupported", "tool_choice must be auto or none")}),
    Case("one tool must be called", HELLO, {}, {"tools": [ADD, NOW], "tool_choice": {"type": "function", "function": {"name": "now"}}}, "stop", other_in={"JavaScript": ("NotSupported", "tool_choice must be auto or none")}),
    Case("range", "Hello", {"top_p": 2}, error="InvalidArgument", says="top_p must be a number above 0 and at most 1, got 2"),
    Case("type", "Hello", {"top_k": 0.5}, error="InvalidArgument", says="top_k must be an integer from 0 to 2147483647, got 0.5"),
    Case("unknown option", "Hello", {"top_pp": 1}, error="InvalidArgument", says="unknown generation option"),
    Case("one option twice", "Hello", {"maxTokens": 1, "max_new_tokens": 1}, error="InvalidArgument", says="maxTokens and max_new_tokens are the same"),
    Case("no token", "Hello", {"logit_bias": {"9999": 1}}, error="InvalidArgument", says="logit_bias"),
    Case("a grammar of nothing", "Hello", {"grammar": "root ::= ("}, error="InvalidArgument"),
    Case("two forms", "Hello", {"grammar": 'root ::= "x"', "schema": {}}, error="InvalidArgument", says="set"),
    Case("a schema of nothing", "Hello", {"schema": {"type": "nothing"}}, error="InvalidArgument", says="nothing", other_in=NO_SCHEMAS),
    Case("too long", "x" * 300, error="OutOfResources", says="301"),
    Case("warming", "Hello", {"warming": True}, error="InvalidArgument", says="warming", modes=["steps"]),
    Case("echo", "Hello", {"echo": True}, error="InvalidArgument", says="echo", modes=["steps"], without=["C++"]),
    Case("no messages", [], error="InvalidArgument", says="messages must be a list"),
    Case("half a message", [{"role": "user"}], error="InvalidArgument", says="messages[0] needs a role and a content"),
    Case("too long a chat", [{"role": "user", "content": "x" * 300}], error="OutOfResources"),
    Case("a choice without tools", HELLO, chat={"tool_choice": "required"}, error="InvalidArgument", says="tool_choice"),
    Case("an unknown tool", HELLO, chat={"tools": [ADD], "tool_choice": {"function": {"name": "sub"}}}, error="InvalidArgument", says="sub"),
    Case("a reserved variable", HELLO, chat={"template": {"messages": []}}, error="InvalidArgument", says="messages"),
]  # fmt: skip


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("languages")
    constraints = {
        "suppress_tokens": [72, 9], "begin_suppress_tokens": list(range(0, 256, 2)), "bad_words_ids": [[65], [66, 67]],
        "no_repeat_ngram_size": 2, "min_new_tokens": 12, "forced_eos_token_id": double.END,
    }  # fmt: skip
    files = {"chat_template.jinja": TEMPLATE.encode()}
    paths = {}
    for name, generation, seed in (("plain", {}, 0), ("constrained", constraints, 0), ("other", {}, 1)):
        paths[name] = folder / f"{name}.pte"
        more = {**files, "generation_config.json": json.dumps(generation).encode()}
        paths[name].write_bytes(double.program(more, seed))
    return paths


def python(model: Path, case: Case, draft: Path | None) -> dict[str, Any]:
    session = llm.Session(model)
    options: dict[str, Any] = {"temperature": 0, **case.options}
    if biases := options.get("logit_bias"):
        options["logit_bias"] = {int(token): bias for token, bias in biases.items()}
    if draft is not None:
        options["draft"] = llm.Session(draft)
    try:
        if isinstance(case.given, str):
            answer = session.generate(case.given, **options).run()
        else:
            answer = session.chat(case.given, **case.chat, **options).run()
    except TorchetteError as error:
        return {"message": error.message}
    done = answer.statistics
    counts = (
        done.prompt_tokens,
        done.answer_tokens,
        done.drafted_tokens,
        done.accepted_tokens,
        answer.finish_reason,
    )
    return {
        "message": "",
        "text": answer.text,
        "tokens": answer.tokens,
        "stats": dict(zip(COUNTS, counts, strict=True)),
    }


def requests(
    cases: Sequence[Case], models: Mapping[str, Path], mode: str, more: Mapping[str, Any]
) -> list[list[str]]:
    """Returns the input of a language's program. `more` are options of prompts."""
    result = []
    for case in cases:
        is_prompt = isinstance(case.given, str)
        options = {"temperature": 0, **(more if is_prompt else {}), **case.options}
        text = case.given if is_prompt else json.dumps(case.given)
        draft = str(models[case.draft]) if case.draft else ""
        result.append(
            [
                mode,
                "prompt" if is_prompt else "messages",
                text,
                json.dumps(case.chat),
                json.dumps(options),
                draft,
            ]
        )
    return result


def printed(
    command: Sequence[str | Path], requests_of_cases: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    text = "".join(json.dumps(request) + "\n" for request in requests_of_cases)
    done = subprocess.run([str(word) for word in command], input=text.encode(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    return [json.loads(line) for line in done.stdout.decode().splitlines()]


Answers = Callable[[Path, Sequence[Sequence[str]]], list[dict[str, Any]]]


def cpp(model: Path, requests_of_cases: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    return printed([built("torchette_answers"), model], requests_of_cases)


def c(model: Path, requests_of_cases: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
    conversation = Conversation(model)
    results = [conversation.answer(*request) for request in requests_of_cases]
    conversation.close()
    return results


def check(
    language: str, mode: str, models: Mapping[str, Path], answers: Answers, more: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Compares the answers of a language with those of Python. Returns them by the names of the cases."""
    answer_by_case, differences = {}, list[str]()
    for model in ("plain", "constrained"):
        cases = [
            case
            for case in CASES
            if case.model == model and language not in case.without and mode in case.modes
        ]
        for case, answer in zip(
            cases, answers(models[model], requests(cases, models, mode, more)), strict=True
        ):
            expected = python(models[model], case, models[case.draft] if case.draft else None)
            if reason := difference(case, answer, expected, language):
                differences.append(
                    f"{case.name}: {reason}: {str(answer)[:400]} instead of {str(expected)[:400]}"
                )
            answer_by_case[case.name] = answer
    assert not differences, f"{language}\n" + "\n".join(differences)
    return answer_by_case


def difference(case: Case, answer: dict[str, Any], expected: dict[str, Any], language: str) -> str:
    """Returns the property in which an answer differs from the answer of Python; empty if they are equal."""
    error, says = case.other_in.get(language, (case.error, case.says))
    if case.says not in expected["message"] or bool(expected["message"]) != (case.error != "Ok"):
        return "error of Python"
    if answer["error"] != error or says not in answer["message"]:
        return "error"
    if error != "Ok":
        return "" if answer["message"] and "\n" not in answer["message"] else "message"
    if answer["text"] != expected["text"]:
        return "text"
    if {name: answer["stats"][name] for name in COUNTS} != expected["stats"]:
        return "statistics"
    if expected["stats"]["finish_reason"] != case.reason:
        return "finish reason"
    tokens = answer.get("tokens") or expected["tokens"]  # whole answers are only text
    if tokens[-1:] == [double.END] and not case.options.get("ignore_eos"):
        tokens = tokens[:-1]  # Python returns the tokens of the text
    return "" if tokens == expected["tokens"] else "tokens"


def check_whole(language: str, models: Mapping[str, Path], answers: Answers, echo: bool) -> None:
    """`echo` and `warming`, which an answer in steps refuses. `echo` is the default of the language."""
    options = [{}, {"echo": True}, {"echo": False}, {"warming": True, "echo": True}]
    cases = [Case(str(prompt), "Hello", {"max_new_tokens": 5, **prompt}) for prompt in options]
    chats = [Case(str(prompt), HELLO, {"max_new_tokens": 5, **prompt}) for prompt in options]
    results = answers(models["plain"], requests([*cases, *chats], models, "whole", SPECIAL))
    texts = [
        python(models["plain"], Case("", prompt, {"max_new_tokens": 5}), None)["text"]
        for prompt in ("Hello", HELLO)
    ]
    default = "Hello" * echo
    assert [one["text"] for one in results] == [
        default + texts[0],
        "Hello" + texts[0],
        texts[0],
        "",
        *[texts[1]] * 3,
        "",
    ]
    assert [one["stats"].get("generated_tokens") or 0 for one in results] == [5, 5, 5, 0] * 2
    assert {one["error"] for one in results} == {"Ok"}


def check_messages(ours: Mapping[str, dict[str, Any]], theirs: Mapping[str, dict[str, Any]]) -> None:
    """The texts of errors are equal."""
    names = ours.keys() & theirs.keys()
    assert len(names) > 20
    assert {name: ours[name]["message"] for name in names} == {
        name: theirs[name]["message"] for name in names
    }


SPECIAL = {"add_special_tokens": True}  # as in Python and JavaScript


@pytest.mark.parametrize("mode", ["steps", "whole"])
def test_cpp(models: dict[str, Path], mode: str) -> None:
    check("C++", mode, models, cpp, SPECIAL)


def test_half_a_surrogate_pair_is_an_error_in_python(models: dict[str, Path]) -> None:
    session = llm.Session(models["plain"])
    for kwargs in (
        {"prompt": "a\ud800"},
        {"prompt": session.encode("a"), "grammar": 'root ::= "\ud800"'},
        {"prompt": "a", "schema": {"const": "\ud800"}},
    ):
        with pytest.raises(InputError, match="surrogate"):
            session.generate(**kwargs)
    with pytest.raises(InputError, match="surrogate"):
        session.chat([{"role": "user", "content": "\ud800"}])


def test_invalid_utf8_is_an_error_in_c(models: dict[str, Path]) -> None:
    conversation = Conversation(models["plain"])
    assert conversation.call("begin", b"a\xffb", None) == conversation.call("prefill", b"\xff") == 0x12
    for content in (b"\xff", rb"\ud800"):
        messages = b'[{"role": "user", "content": "%s"}]' % content
        assert conversation.call("chat", messages, None, None, None, None, None) == 0x24
    conversation.close()


def test_options_of_complete_answers(models: dict[str, Path]) -> None:
    check_whole("C++", models, cpp, echo=False)
    check_whole("C", models, c, echo=False)


@pytest.mark.parametrize("mode", ["steps", "whole"])
def test_c(models: dict[str, Path], mode: str) -> None:
    """The error messages are those of C++."""
    ours, theirs = (check(name, mode, models, answers, SPECIAL) for name, answers in (("C", c), ("C++", cpp)))
    check_messages(ours, theirs)


# --- Java -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def java(tmp_path_factory: pytest.TempPathFactory) -> list[str | Path]:
    """The command of Answers.java."""
    return [*compile_java(tmp_path_factory.mktemp("java"), HERE / "Answers.java"), "Answers"]


def answers_of_java(
    command: Sequence[str | Path], model: Path, requests_of_cases: Sequence[Sequence[str]]
) -> list[dict[str, Any]]:
    names = {
        int(number, 16): name for name, number in re.findall(r"(\w+) = (0x[0-9a-f]+)", ERRORS.read_text())
    } | {0: "Ok"}
    results = printed([*command, model], requests_of_cases)
    return [{**one, "error": names[one["error"]]} for one in results]


@pytest.mark.gate
def test_java(models: dict[str, Path], java: list[str | Path]) -> None:
    """With the texts of C++. A character that C cannot pass is an exception; half a surrogate pair is U+FFFD."""

    def answers(model: Path, requests_of_cases: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        return answers_of_java(java, model, requests_of_cases)

    ours = check("Java", "whole", models, answers, {**SPECIAL, "echo": False})
    theirs = check("C++", "whole", models, cpp, SPECIAL)
    check_messages(ours, theirs)
    check_whole("Java", models, answers, echo=True)
    zero, half, full = answers(
        models["plain"],
        requests(
            [Case("", text, {"max_new_tokens": 5}) for text in ("a\0b", "a\ud800b", "a\ufffdb")],
            models,
            "whole",
            SPECIAL,
        ),
    )
    assert (
        zero["thrown"] == "a string contains U+0000 at index 1, which C cannot represent"
        and zero["text"] == ""
    )
    assert half["text"].removeprefix("a\ufffdb") == full["text"].removeprefix("a\ufffdb") != full["text"]
    assert not half["thrown"]


@pytest.mark.gate
def test_the_guide_of_java(models: dict[str, Path], tmp_path: Path) -> None:
    page = (ROOT / "docs/java.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```\n(try .*?)^```", page, re.M | re.S)
    body = f"public static void main(String[] arguments) {{ {block} }}"
    (tmp_path / "Guide.java").write_text(
        f"import org.torchette.extension.llm.*; final class Guide {{ {body} }}"
    )
    (tmp_path / "chat.pte").write_bytes(models["plain"].read_bytes())
    printed_text = run(*compile_java(tmp_path, tmp_path / "Guide.java"), "Guide", cwd=tmp_path).stdout
    options = {"max_tokens": 64, "temperature": 0.7, "top_p": 0.9, "seed": 1}
    assert printed_text == llm.Session(models["plain"]).chat(HELLO, **options).run().text


# --- JavaScript -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    if importlib.util.find_spec("ziglang") is None:
        pytest.skip("ziglang is missing (pip install ziglang)")
    folder = tmp_path_factory.mktemp("site")
    arguments = ["build", "--target", "wasm32-browser", "--llm", "--optimize", "size"]
    assert cli.main([*arguments, str(models["plain"]), "-o", str(folder)]) == 0
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("wasm")
def test_javascript(models: dict[str, Path], site: Path) -> None:
    """With the texts of C++. render() has the options of chat(); half a surrogate pair is U+FFFD."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("Node.js is missing (apt install nodejs)")

    def answers(model: Path, requests_of_cases: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        return printed([node, "--no-warnings", HERE / "answers.mjs", site, model], requests_of_cases)

    ours = check("JavaScript", "steps", models, answers, {})
    theirs = check("C++", "steps", models, cpp, SPECIAL)
    check_messages(
        {case.name: ours[case.name] for case in CASES if "JavaScript" not in (*case.without, *case.other_in)},
        theirs,
    )
    session = llm.Session(models["plain"])
    for case in CASES:
        if "prompt" in ours.get(case.name, {}):
            names = {"tools": case.chat["tools"]} if "tools" in case.chat else {}
            assert ours[case.name]["prompt"] == session.render(
                case.given, **names, **case.chat.get("template", {})
            )
    for as_input in (lambda text: text, lambda text: [{"role": "user", "content": text}]):
        cases = [Case("", as_input(text), {"max_new_tokens": 5}) for text in ("a\ud800b", "a\ufffdb")]
        half, replaced = answers(models["plain"], requests(cases, models, "steps", {}))
        assert half["text"] == replaced["text"] != ""
