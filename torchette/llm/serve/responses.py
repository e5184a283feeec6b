# SPDX-License-Identifier: BSD-3-Clause
# /v1/responses: items instead of messages, named events, and conversations that the server remembers.
"""OpenAI's Responses API."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from torchette.llm.generation import Piece
from torchette.llm.messages import Call
from torchette.llm.serve.answering import Answer, Request
from torchette.llm.serve.completions import arguments_text, call_id, chat_request, token_logprobs, usage
from torchette.llm.serve.limits import Limits
from torchette.llm.serve.messages import check_call, session_message
from torchette.llm.serve.parameters import check_supported
from torchette.llm.serve.refusal import Refusal, unsupported, wrong
from torchette.llm.session import Session

# Fields that are not implemented, with the values that change nothing.
_UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "background": (False,), "conversation": (), "prompt": (), "max_tool_calls": (), "truncation": ("disabled",),
    "n": (1,),
}  # fmt: skip
_LOGPROBS = "message.output_text.logprobs"  # a value of the field include
# Fields of a request that the response repeats, with their defaults.
_REPEATED: dict[str, Any] = {
    "instructions": None, "max_output_tokens": None, "metadata": {}, "parallel_tool_calls": True,
    "previous_response_id": None, "reasoning": None, "text": {"format": {"type": "text"}},
    "tool_choice": "auto", "tools": [], "top_p": None, "truncation": "disabled", "user": None,
}  # fmt: skip


class Conversation(NamedTuple):
    """Messages in the form of `Session.chat`, and the bytes of the requests that they come from."""

    messages: list[dict[str, Any]]
    size: int


class ResponseStore:
    """The conversations of past responses, in memory. The oldest is forgotten first.

    Args:
        max_responses: the maximum number of responses.
        max_bytes: the maximum size of all conversations.
    """

    def __init__(self, max_responses: int, max_bytes: int) -> None:
        self._max_responses, self._max_bytes = max_responses, max_bytes
        self._stored: OrderedDict[str, Conversation] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: str, conversation: Conversation) -> None:
        """Stores the conversation that ends with a response."""
        with self._lock:
            self._stored[name] = conversation
            while len(self._stored) > self._max_responses or (
                sum(one.size for one in self._stored.values()) > self._max_bytes
            ):
                self._stored.popitem(last=False)

    def get(self, name: object) -> Conversation:
        """Returns the conversation that ends with a response. Raises Refusal if it is not stored."""
        with self._lock:
            stored = self._stored.get(name) if isinstance(name, str) else None
        if stored is None:
            raise Refusal(
                400,
                f"previous_response_id {str(name)[:100]!r} is not stored: the server keeps the last {self._max_responses} "
                "responses until it ends; send the whole conversation as input",
                name="previous_response_not_found",
                param="previous_response_id",
            )
        return stored


def conversation(body: Mapping[str, Any], store: ResponseStore, size: int) -> Conversation:
    """Returns the conversation of a request, without its instructions.

    Args:
        size: the bytes of the request.

    Raises:
        Refusal: status 400: the input is malformed, or the previous response is not stored.
    """
    before = Conversation([], 0)
    if "previous_response_id" in body:
        before = store.get(body["previous_response_id"])
    content = body.get("input", [])
    items = [{"role": "user", "content": content}] if isinstance(content, str) else content
    if not isinstance(items, list) or not (items or before.messages):
        raise wrong("input", "input must be a text, or a list with at least one item")
    messages = list(before.messages)
    for index, item in enumerate(items):
        _append(messages, f"input[{index}]", item)
    return Conversation(messages, before.size + size)


def _append(messages: list[dict[str, Any]], where: str, item: object) -> None:
    """Appends the message of an item. Calls of one turn belong to one message."""
    if not isinstance(item, dict):
        raise wrong("input", f"{where} must be an object")
    kind = item.get("type", "message")
    if kind == "message":
        messages.append(session_message(where, {"role": item.get("role"), "content": item.get("content")}))
    elif kind == "function_call":
        call = _chat_call(item)
        check_call(where, call)
        _append_call(messages, call)
    elif kind == "function_call_output":
        if not isinstance(output := item.get("output"), (str, list)):
            raise wrong("input", f"{where}.output must be a text or a list of parts")
        message = {"role": "tool", "tool_call_id": item.get("call_id"), "content": output}
        messages.append(session_message(where, message))
    else:
        raise unsupported(
            "input",
            f"{where} is of type {kind!r}; types: message, function_call, function_call_output",
        )


def _chat_call(item: Mapping[str, Any]) -> dict[str, Any]:
    """A call of the Responses API in the form of chat completions."""
    function = {"name": item.get("name"), "arguments": item.get("arguments", "")}
    return {"id": item.get("call_id"), "type": "function", "function": function}


def _append_call(messages: list[dict[str, Any]], call: dict[str, Any]) -> None:
    last = messages.pop() if messages and messages[-1]["role"] == "assistant" else None
    last = last or {"role": "assistant", "content": ""}
    messages.append({**last, "tool_calls": [*last.get("tool_calls", []), call]})


def response_request(
    body: Mapping[str, Any], messages: list[dict[str, Any]], model: str, session: Session, limits: Limits
) -> Request:
    """Returns the checked request of /v1/responses. Raises Refusal or InputError."""
    check_supported(body, _UNSUPPORTED)
    instructions, text, include = body.get("instructions"), body.get("text", {}), body.get("include", [])
    if not isinstance(instructions, (str, type(None))):
        raise wrong("instructions", "instructions must be a text")
    if not isinstance(text, dict):
        raise wrong("text", "text must be an object with a format")
    if not isinstance(include, list):
        raise wrong("include", "include must be a list")
    tools = body.get("tools", [])
    chat = {**body, "logprobs": _LOGPROBS in include}
    chat["tools"] = [_nested(tool) for tool in tools] if isinstance(tools, list) else tools
    if text.get("format") is not None:
        chat["text.format"] = text["format"]
    if instructions:
        messages = _with_instructions(instructions, messages)
    return chat_request(chat, messages, model, session, limits)


def _nested(tool: Any) -> Any:
    """A function of the Responses API in the form of chat completions."""
    if not isinstance(tool, dict) or tool.get("type") != "function" or "function" in tool:
        return tool
    return {"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}


def _with_instructions(instructions: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages that begin with instructions. Many chat templates accept one system message only."""
    first = messages[0] if messages else {}
    if first.get("role") == "system" and isinstance(first["content"], str):
        return [{**first, "content": f"{instructions}\n\n{first['content']}"}, *messages[1:]]
    return [{"role": "system", "content": instructions}, *messages]


class ResponseForm:
    """The form of /v1/responses. Stores the conversation before the client gets the response."""

    def __init__(
        self, body: Mapping[str, Any], request: Request, history: Conversation, store: ResponseStore
    ) -> None:
        stores = body.get("store", True)
        if not isinstance(stores, bool):
            raise wrong("store", "store must be true or false")
        self._history, self._store = history, store if stores else None
        self._response: dict[str, Any] = {
            "id": "resp_" + uuid.uuid4().hex, "object": "response", "created_at": int(time.time()),
            "status": "in_progress", "error": None, "incomplete_details": None, "model": body["model"], "output": [],
            "store": stores, "usage": None, "temperature": request.options["temperature"], **{name: body.get(name, value) for name, value in _REPEATED.items()},
        }  # fmt: skip
        self._message: dict[str, Any] | None = None
        self._num_events = 0

    def start(self, index: int) -> Iterator[tuple[str, object]]:
        """Yields the events before an answer."""
        yield self._event("response.created", response=self._response)
        yield self._event("response.in_progress", response=self._response)

    def part(
        self, index: int, text: str, pieces: list[Piece], session: Session
    ) -> Iterator[tuple[str, object]]:
        """Yields the events of a part of the text."""
        if self._message is None:
            yield from self._open_message()
        assert self._message is not None
        content = self._message["content"][0]
        logprobs = token_logprobs(pieces, session)
        content["text"] += text
        content["logprobs"] += logprobs
        yield self._event(
            "response.output_text.delta", item_id=self._message["id"], output_index=0, content_index=0, delta=text,
            logprobs=logprobs,
        )  # fmt: skip

    def end(self, index: int, answer: Answer) -> Iterator[tuple[str, object]]:
        """Yields the events after an answer."""
        if self._message is None and not answer.calls:
            yield from self._open_message()
        if self._message is not None:
            yield from self._close_message(answer)
        for call in answer.calls:
            yield from self._call_events(_call_item(call))

    def close(self, answers: list[Answer]) -> Iterator[tuple[str, object]]:
        """Yields the last events of a stream."""
        self._finish(answers)
        yield self._event(f"response.{self._response['status']}", response=self._response)

    def failed(self, refusal: Refusal) -> Iterator[tuple[str, object]]:
        """Yields the events of an error."""
        error = {"code": refusal.error["code"] or "server_error", "message": refusal.error["message"]}
        self._response.update(status="failed", error=error)
        yield self._event("response.failed", response=self._response)

    def whole(self, answers: list[Answer], session: Session) -> object:
        """Returns the response without a stream."""
        (answer,) = answers
        if answer.text or not answer.calls:
            message = self._new_message(answer.text, token_logprobs(answer.pieces, session))
            message["status"] = _status(answer)
            self._response["output"].append(message)
        self._response["output"] += [_call_item(call) for call in answer.calls]
        self._finish(answers)
        return self._response

    def _event(self, kind: str, **fields: object) -> tuple[str, object]:
        self._num_events += 1
        return kind, {"type": kind, "sequence_number": self._num_events - 1, **fields}

    def _new_message(self, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        content = {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}
        return {
            "type": "message", "id": "msg_" + uuid.uuid4().hex, "status": "in_progress", "role": "assistant",
            "content": [content],
        }  # fmt: skip

    def _open_message(self) -> Iterator[tuple[str, object]]:
        self._message = self._new_message("", [])
        empty = self._message["content"][0]
        item = {**self._message, "content": []}
        yield self._event("response.output_item.added", output_index=0, item=item)
        yield self._event(
            "response.content_part.added", item_id=item["id"], output_index=0, content_index=0, part=empty
        )

    def _close_message(self, answer: Answer) -> Iterator[tuple[str, object]]:
        assert self._message is not None
        content, place = (
            self._message["content"][0],
            {"item_id": self._message["id"], "output_index": 0, "content_index": 0},
        )
        self._message["status"] = _status(answer)
        self._response["output"].append(self._message)
        yield self._event(
            "response.output_text.done", **place, text=content["text"], logprobs=content["logprobs"]
        )
        yield self._event("response.content_part.done", **place, part=content)
        yield self._event("response.output_item.done", output_index=0, item=self._message)

    def _call_events(self, item: dict[str, Any]) -> Iterator[tuple[str, object]]:
        index = len(self._response["output"])
        self._response["output"].append(item)
        place, arguments = {"item_id": item["id"], "output_index": index}, item["arguments"]
        begun = {**item, "arguments": "", "status": "in_progress"}
        yield self._event("response.output_item.added", output_index=index, item=begun)
        yield self._event("response.function_call_arguments.delta", **place, delta=arguments)
        yield self._event(
            "response.function_call_arguments.done", **place, name=item["name"], arguments=arguments
        )
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _finish(self, answers: list[Answer]) -> None:
        """Completes the response, and stores its conversation."""
        (answer,) = answers
        counts = usage(answers, 1)
        cached = counts["prompt_tokens_details"]["cached_tokens"]
        self._response["status"] = _status(answer)
        if self._response["status"] == "incomplete":
            self._response["incomplete_details"] = {"reason": "max_output_tokens"}
        self._response["usage"] = {
            "input_tokens": counts["prompt_tokens"],
            "input_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": counts["prompt_tokens"] - cached,
            },
            "output_tokens": counts["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": counts["total_tokens"],
        }
        if self._store is not None:
            messages = list(self._history.messages)
            for item in self._response["output"]:
                if item["type"] == "message":
                    messages.append({"role": "assistant", "content": item["content"][0]["text"]})
                else:
                    _append_call(messages, _chat_call(item))  # as the model wrote it, valid or not
            size = self._history.size + len(answer.generation.text.encode())
            self._store.add(self._response["id"], Conversation(messages, size))


def _status(answer: Answer) -> str:
    return "incomplete" if answer.finish_reason == "length" else "completed"


def _call_item(call: Call) -> dict[str, Any]:
    return {
        "type": "function_call", "id": "fc_" + uuid.uuid4().hex, "call_id": call_id(), "name": call.name,
        "arguments": arguments_text(call), "status": "completed",
    }  # fmt: skip
