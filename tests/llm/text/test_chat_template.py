# SPDX-License-Identifier: BSD-3-Clause
# Chat templates in C++: they render like transformers with jinja2; a damaged or hostile template is an
# error after bounded work.

from __future__ import annotations

import json
import os
import random
import struct
import subprocess
from typing import Any

import pytest

from tests.building import built

pytest.importorskip("jinja2")
CONVERSATION = [
    {"role": "system", "content": " Be kind.\n"},
    {"role": "user", "content": "Grüße, <b>'you'</b> \"there\" 😀\n  indented\\ "},
    {"role": "assistant", "content": "<think>hm</think>Hello."},
    {"role": "user", "content": "And 1 + 1?"},
]
CONVERSATIONS = [CONVERSATION, CONVERSATION[1:2], CONVERSATION[:2], CONVERSATION[1:], CONVERSATION[2:3]]

# In the manner of the families that language models come in; written for this test.
MARKS = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
DEFAULT_SYSTEM = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You help.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] | trim + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""
HEADERS = """{{- bos_token }}
{%- if not date_string is defined %}{%- set date_string = "26 Jul 2024" %}{%- endif %}
{#- the system's words come first -#}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
ALTERNATE = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '

' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception("Roles must alternate user/assistant") }}
    {%- endif -%}
    {%- set role = "model" if (message['role'] == 'assistant') else message['role'] -%}
    {{ '<start_of_turn>' + role + '
' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>
' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model
'}}{%- endif -%}
"""
INSTRUCTION = """{%- set ns = namespace(index=0, last=-1, system='') %}
{%- for message in messages if message.role == 'user' %}{%- set ns.last = ns.last + 1 %}{%- endfor %}
{%- if messages[0].role == 'system' %}{%- set ns.system = messages[0].content %}{%- endif %}
{{- bos_token }}
{%- for message in messages | rejectattr('role', 'equalto', 'system') | list %}
    {%- if message.role == 'user' %}
        {%- if loop.last and ns.system %}{{- '[INST] ' ~ ns.system ~ '\\n\\n' ~ message.content ~ '[/INST]' }}
        {%- else %}{{- '[INST] ' + message.content + '[/INST]' }}{%- endif %}
    {%- elif message.role == 'assistant' %}
        {%- set content = message.content.split('</think>')[-1].lstrip('\\n') if '</think>' in message.content else message.content %}
        {{- ' ' + content + eos_token }}
    {%- endif %}
    {%- set ns.index = ns.index + loop.index %}
{%- endfor %}{{ ns.index }} {{ ns.last }}"""
MACROS = """{% macro turn(role, text='nothing', end="<|end|>") %}<|{{ role|upper }}|>
{{ text }}{{ end }}
{% endmacro %}
{% for m in messages[::-1] %}
  {% generation %}{{ turn(m.role, m.content) }}{% endgeneration %}
  {% if loop.index > 2 %}{% break %}{% endif %}
{% else %}
none
{% endfor %}
{{ turn('assistant', end='') }}
{% set block %}kept {{ messages|length }}{% endset %}
   {%+ if true %}{{ block }}{% endif +%}
done
"""
# Templates with functions: the marks of Qwen and Hermes, signatures in the form of Hermes, the lists of Mistral, the headers of
# Llama, the lines of GLM, the sorted properties of Gemma, the answers of DeepSeek without thoughts, and the form of Phi.
MARKED_TOOLS = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Functions\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}{{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.multi_step = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "user" or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {%- set reasoning = message.reasoning_content if message.reasoning_content is defined and message.reasoning_content is not none else '' %}
        {%- if not reasoning and '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\\n' + (('<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n') if loop.index0 > ns.last else '') + content }}
        {%- if message.tool_calls %}
            {%- for tool_call in message.tool_calls %}
                {%- if (loop.first and content) or (not loop.first) %}{{- '\\n' }}{%- endif %}
                {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
                {{- '<tool_call>\\n{"name": "' }}{{- tool_call.name }}{{- '", "arguments": ' }}
                {%- if tool_call.arguments is string %}{{- tool_call.arguments }}{%- else %}{{- tool_call.arguments | tojson }}{%- endif %}
                {{- '}\\n</tool_call>' }}
            {%- endfor %}
        {%- endif %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' }}{{- content }}{{- '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""
SIGNATURES = """{%- macro python_type(spec) %}
    {%- set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} %}
    {%- if names[spec.type] is defined %}
        {{- names[spec.type] }}
    {%- elif spec.type == "array" %}
        {{- "list[" + python_type(spec['items']) + "]" }}
    {%- elif spec.type == "object" %}
        {{- "dict" }}
    {%- elif spec.type is iterable and spec.type is not string %}
        {{- "Union[" }}{%- for t in spec.type %}{{- python_type({"type": t}) }}{%- if not loop.last %}{{- "," }}{%- endif %}{%- endfor %}{{- "]" }}
    {%- else %}
        {{- "Any" }}
    {%- endif %}
{%- endmacro %}
{{- bos_token }}{{- '<|im_start|>system\\n' }}
{%- for tool in tools %}
    {%- if tool.function is defined %}{%- set tool = tool.function %}{%- endif %}
    {{- '{"name": "' + tool.name + '", "description": "' + tool.name + '(' }}
    {%- for name, fields in tool.parameters.properties | items %}
        {{- name + ": " + python_type(fields) }}{%- if not loop.last %}{{- ", " }}{%- endif %}
    {%- endfor %}
    {{- ")" }}{%- if tool.return is defined %}{{- " -> " + python_type(tool.return) }}{%- endif %}
    {{- " - " + tool.description + "\\n\\n" }}
    {%- for name, fields in tool.parameters.properties | items %}
        {%- if loop.first %}{{- "    Args:\\n" }}{%- endif %}
        {{- "        " + name + "(" + python_type(fields) + "): " + (fields.description or "") | trim }}
    {%- endfor %}
    {{- ', "parameters": ' }}
    {%- if tool.parameters.properties | length == 0 %}{{- "{}" }}{%- else %}{{- tool.parameters | tojson }}{%- endif %}
    {{- "}" }}{%- if not loop.last %}{{- "\\n" }}{%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" and message.tool_calls is defined %}
        {%- for call in message.tool_calls %}
            {%- for name, value in call.function.arguments | items %}{{- '"' + name + '"' }}: {{ value | tojson }}{%- if not loop.last %}{{- ", " }}{%- endif %}{%- endfor %}
        {%- endfor %}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}"""
LISTED = """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == user_messages[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {%- set tool = tool.function %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.items() if key != "return" %}
                    {%- if val is string %}{{- '"' + key + '": "' + val + '"' }}{%- else %}{{- '"' + key + '": ' + val|tojson }}{%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" }}{%- endif %}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for tool_call in message.tool_calls %}
            {%- set out = tool_call.function|tojson %}{{- out[:-1] }}{{- ', "id": "' + tool_call.id + '"}' }}
            {%- if not loop.last %}{{- ", " }}{%- else %}{{- "]" + eos_token }}{%- endif %}
        {%- endfor %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token }}
    {%- elif message["role"] == "tool" or message["role"] == "tool_results" %}
        {%- if message.content is defined and message.content.content is defined %}{%- set content = message.content.content %}
        {%- else %}{%- set content = message.content %}{%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + content|string + ", " }}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}{{- '"call_id": "none"}' }}{%- else %}{{- '"call_id": "' + message.tool_call_id + '"}[/TOOL_RESULTS]' }}{%- endif %}
    {%- endif %}
{%- endfor %}"""
HEADED_TOOLS = """{{- bos_token }}
{%- if custom_tools is defined %}{%- set tools = custom_tools %}{%- endif %}
{%- if not tools_in_user_message is defined %}{%- set tools_in_user_message = true %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}{%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if builtin_tools is defined or tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{%- if builtin_tools is defined %}{{- "Tools: " + builtin_tools | reject('equalto', 'code_interpreter') | join(", ") + "\\n\\n" }}{%- endif %}
{{- system_message }}{{- "<|eot_id|>" }}
{%- if tools_in_user_message and not tools is none %}
    {%- if messages | length != 0 %}{%- set first_user_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}{%- else %}{{- raise_exception("no first user message") }}{%- endif %}
    {{- '<|start_header_id|>user<|end_header_id|>\\n\\n' -}}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- "\\n\\n" }}{%- endfor %}
    {{- first_user_message + "<|eot_id|>" }}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call at a time") }}{%- endif %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '{"name": "' + tool_call.name + '", ' }}{{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}" }}{{- "<|eot_id|>" }}
    {%- else %}
        {{- "<|start_header_id|>ipython<|end_header_id|>\\n\\n" }}
        {%- if message.content is mapping or message.content is iterable %}{{- message.content | tojson }}{%- else %}{{- message.content }}{%- endif %}
    {%- endif %}
{%- endfor %}"""
LINES = """[gMASK]<sop>{%- if tools -%}<|system|>
{% for tool in tools %}
{{ tool | tojson(ensure_ascii=False) }}
{% endfor %}{%- endif -%}
{%- macro visible_text(content) -%}
    {%- if content is string -%}{{- content }}
    {%- elif content is iterable and content is not mapping -%}
        {%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- elif item is string -%}{{- item }}{%- endif -%}{%- endfor -%}
    {%- else -%}{{- content }}{%- endif -%}
{%- endmacro -%}
{% for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}{{- '/nothink' if (enable_thinking is defined and not enable_thinking and not visible_text(m.content).endswith("/nothink")) else '' -}}
{%- elif m.role == 'assistant' -%}<|assistant|>
{%- if m.tool_calls %}{% for tc in m.tool_calls %}{%- if tc.function %}{%- set tc = tc.function %}{%- endif %}
{{ '<tool_call>' + tc.name }}
{% set _args = tc.arguments %}
{% for k, v in _args.items() %}<arg_key>{{ k }}</arg_key>
<arg_value>{{ v | tojson(ensure_ascii=False) if v is not string else v }}</arg_value>
{% endfor %}</tool_call>{% endfor %}{% endif %}
{%- elif m.role == 'tool' -%}{%- if m.content is string -%}<|observation|>{{ '<tool_response>\\n' + m.content }}{%- endif -%}
{%- elif m.role == 'system' -%}<|system|>
{{ visible_text(m.content) }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{{- '\\n<think></think>' if (enable_thinking is defined and not enable_thinking) else '' -}}{%- endif -%}"""
SORTED = """{{- bos_token }}{%- for tool in tools or [] %}{%- set f = tool['function'] %}
<declaration>{{ f['name'] }}{description:<escape>{{ f['description'] }}<escape>{%- set params = f['parameters'] %}
{%- for key, value in params['properties'] | dictsort %},{{ key }}:{type:<escape>{{ value['type'] | upper if value['type'] is string else value['type'] | map('upper') | list }}<escape>}{%- endfor %}
,required:[{%- for item in params['required'] | default([]) | sort %}<escape>{{ item }}<escape>{{ ',' if not loop.last }}{%- endfor %}]}</declaration>{%- endfor %}
{%- for message in messages -%}
{%- set role = 'model' if message['role'] == 'assistant' else message['role'] -%}
{{- '<start_of_turn>' + role + '\\n' + (message['content'] | trim) + '<end_of_turn>\\n' -}}
{%- endfor -%}"""
THOUGHTS = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}{% set ns = namespace(is_first=false, is_tool=false, is_output_first=true, system_prompt='', is_first_sp=true) %}{%- for message in messages %}{%- if message['role'] == 'system' %}{%- if ns.is_first_sp %}{% set ns.system_prompt = ns.system_prompt + message['content'] %}{% set ns.is_first_sp = false %}{%- else %}{% set ns.system_prompt = ns.system_prompt + '\\n\\n' + message['content'] %}{%- endif %}{%- endif %}{%- endfor %}{{ bos_token }}{{ ns.system_prompt }}{%- for message in messages %}{%- if message['role'] == 'user' %}{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}{%- if message['role'] == 'assistant' and 'tool_calls' in message %}{%- set ns.is_tool = false -%}{%- for tool in message['tool_calls'] %}{%- if not ns.is_first %}{{'<｜tool▁calls▁begin｜>' + tool['type'] + '<｜tool▁sep｜>' + tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] | tojson + '\\n```'}}{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['type'] + tool['function']['name']}}{%- endif %}{%- endfor %}{%- elif message['role'] == 'assistant' %}{%- if ns.is_tool %}{{'<｜tool▁outputs▁end｜>' + message['content'] + eos_token}}{%- set ns.is_tool = false -%}{%- else %}{% set content = message['content'] %}{% if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + eos_token}}{%- endif %}{%- endif %}{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<｜tool▁output▁begin｜>' + message['content'] + '<｜tool▁output▁end｜>'}}{%- endif %}{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}"""
TURNS = """{% for message in messages %}{% if message['role'] == 'system' and tools is not none %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|tool|>' + tools | string + '<|/tool|>' + '<|end|>' }}{% else %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}"""
TOOL_TEMPLATES = [MARKED_TOOLS, SIGNATURES, LISTED, HEADED_TOOLS, LINES, SORTED, THOUGHTS, TURNS]
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "description": "Größe & 'Ort' <b>"},
        "Days": {"type": ["integer", "null"], "default": 3, "minimum": -1.5, "maximum": 12345678901234567890},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["tags", "city"],
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "description": "The weather", "parameters": PARAMETERS}},
    {"type": "function", "function": {"name": "now", "description": "Line\nbreak", "parameters": {"type": "object", "properties": {}}}},
]  # fmt: skip
CALLS = [
    {"role": "system", "content": "Be kind."},
    {"role": "user", "content": "Weather in Köln?"},
    {"role": "assistant", "content": "", "tool_calls": [{"id": "abcdef123", "type": "function", "function": {"name": "weather", "arguments": {"city": "Köln ☀️", "Days": 2, "tags": [1.0, None, True]}}}]},
    {"role": "tool", "tool_call_id": "abcdef123", "content": '{"sky": "blue"}'},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nIt is sunny."},
    {"role": "user", "content": "Thanks"},
]  # fmt: skip
TEMPLATES = [MARKS, DEFAULT_SYSTEM, HEADERS, ALTERNATE, INSTRUCTION, MACROS]

EXPRESSIONS = """
1 + 2 * 3 - 4 // 3 % 2 | 7 // -2 | -7 // 2 | -7 % 3 | 7 / 2 | 4 / 2 | 1.5 + 1 | 2 * 'ab' | 'ab' * 2 | -3 | 1 == 1.0
'a' ~ 1 ~ none ~ true ~ 1.5 | 'x' in 'xyz' | 'q' not in 'xyz' | 3 in [1, 2, 3] | 'b' in {'a': 1, 'b': 2} | not 1 == 2
1 < 2 and 'a' < 'b' or false | none | [1, 'a', none, true, {'k': "it's"}] | {'a': 1}.a | {'a': 1}['a'] | {'a': 1}.b
'abc'[0] | 'abc'[-1] | 'äöü'[1:] | 'abcdef'[::2] | 'abcdef'[::-1] | 'abcdef'[4:1:-1] | [1, 2, 3][1:] | [1, 2, 3][-2:] | [][0:5]
'  a b '.strip() | 'xxaxx'.strip('x') | 'aXbXc'.split('X') | ' a  b '.split() | 'a.b.c'.split('.', 1) | 'abc'.startswith('ab')
'abc'.endswith(('x', 'bc')) | 'abc'.upper() | 'ABC'.lower() | 'hello world'.title() | 'HELLO'.capitalize() | 'aba'.replace('a', 'c')
'abcabc'.find('ca') | 'ä'.find('b') | {'a': 1}.values() == 1 | 'a' in {'a': 1}.keys() | {'a': 1}.get('b', 5) | {'a': 1}.get('b')
'x' if false | 'x' if true else 'y' | (1, 2)[1] | (1, 'a') | (1,) | () | (1, 2) + (3,) | (1, 2) + [3] | (1, 2) == [1, 2] | (1, 2, 3)[1:] | 1.5e-3 | 2E2 | 'a' 'b' | 1 if 0 else 2 if 0 else 3 | "tab\\tnew\\nq\\"u\\u00e4" | 'it''s'
missing | missing is defined | 3 is odd | 4 is even | 'a' is string | 1 is number
10 ** 2 | 2 ** 3 | abs | 2 ** -1 | 'a b c'.split(' ', 1) | 'a b c'.rsplit(' ', 1) | 'a.b.c'.rsplit('.') | 'a.b.c'.split(sep='.', maxsplit=1) | 'a\\nb\\r\\nc\\n'.splitlines() | 'a=b=c'.partition('=') | 'a=b=c'.rpartition('=')
'a=b'.partition('x') | ', '.join(['a', 'b']) | 'banana'.count('an') | 'banana'.rfind('an') | 'x1'.removeprefix('x') | 'x1'.removesuffix('1') | '12'.isdigit() | 'ab'.isalpha() | ' '.isspace() | 'aaa'.replace('a', 'b', 2) | 'a'.upper(1)
[1, 2, 1].count(1) | [1, 2].index(2) | {'a': 1}.get() | 'a'.startswith() | 'a\\x1b\\u200b\\xa0' ~ ['a\\x1b\\u200b\\xa0é'] | dict(a=1) | dict({'a': 1}, b=2) | 3 is ge 3 | 2 is le 1 | 2 is lt(3) | 3 is odd(1) | 3 is defined(1) | namespace(a=1).a
' a  b c '.split(none, 1) | ' a  b c '.rsplit(none, 1) | ' a  b c '.split(none, 0) | 'a b'.split(none, 5) | ''.split(none, 1) | 'abc'.index('c') | 'abc'.index('d') | 'abca'.rindex('a')
'ab'.ljust(4) ~ '|' | 'ab'.rjust(4, '0') | 'ab'.center(5, '*') | 'abc'.center(6, '*') | 'ä'.center(4, '.') | 'ab'.center(1) | '-5'.zfill(4) | '5'.zfill(3) | 'ab'.ljust('x') | 'ab'.ljust(4, 'xy')
'%s is %d' % ('a', 5) | '%5.1f|%-5s|%05d' % (1.25, 'ä', 42) | '%s' % [1, 2] | '%s' % none | '%d%%' % 7.9 | '%x %X %o' % (255, 255, 8) | '%+d % d' % (1, 1) | '%e %g' % (12345.678, 0.0001) | '%r' % 'a' | '%.2s' % 'abc'
'%s' % () | '%s %s' % 'a' | 'a' % 'b' | '%d' % 'a' | '%' % 1 | '%s' % (1, 2) | '%-08d|' % 5 | '%#x' % 10 | '%d' % true | '%s' % ('a',)
[1, 'a'] * 2 | 2 * (1,) | [1] * 0 | [1] * -1 | [] * 1000000000 | 'ab' is lower | 'AB' is upper | 'Ab' is lower | '1' is lower | '' is upper | 5 is upper
tools is none | tools is defined | tools is not none | documents is none | tools | documents is defined and documents is not none
none is none | [] is iterable | {} is mapping | true is boolean | 1 is integer | 1.0 is float | 3 is eq 3 | 4 is divisibleby(2) | 3 is not none
"""
FILTERS = """
' a ' | trim;'abc' | length;[1, 2] | length;'aBc' | upper;'aBc' | lower;'größe élan Ωμέγας привет ǆ ıſµ ა ﾀ' | upper;'GRÖSSE ÉLAN ΩΜΈΓΑΣΑ ПРИВЕТ' | lower;'éa ÖB жЖ' | title;'éA ж' | capitalize;[1, 2, 3] | join(', ');[1] | first;[1, 2] | last
missing | default('d');'' | default('d');'' | default('d', true);none | default('d');{'a': [1, 'ü"\\\\', none, true, 1.5]} | tojson
{'a': [1, {'b': []}], 'c': {}} | tojson(indent=2);{'b': [1, 2], 'a': 'ü😀"\\n\\x7f'} | tojson(sort_keys=true);{'b': [1, 2], 'a': 'ü😀\\x7f'} | tojson(ensure_ascii=true)
[1, {'a': 2}] | tojson(true);[1, {'a': 2}] | tojson(separators=(',', ':'));[1, {'a': 2}] | tojson(indent=2, separators=(' ,', ' : '));[1, {'b': 1, 'a': 2}, []] | tojson(indent='\\t', sort_keys=true)
[1, [2]] | tojson(indent=0);[1, [2]] | tojson(indent=-1);[1, [2]] | tojson(indent=none, separators=none);[1, [2]] | tojson(false, 2);1 | tojson(separators=5);1 | tojson(indentation=2);1 | tojson(1, 2, 3, 4, 5);[missing] | tojson
1.0 | tojson;1e3 | tojson;100000.0 | tojson;12345678901234567890.5 | tojson;0.00001 | tojson;0.1 | tojson;none | tojson;true | tojson;'a/b<c>&' | tojson;{'a': {'b': 1}} | tojson(ensure_ascii=False)
'abc' | list;'abc' | reverse;[3, 4] | reverse | list;'1' | int;1.7 | int;'1.5' | float
[{'a': 1}, {'a': 2}, {'b': 1}] | map(attribute='a') | list;['a', 'b'] | map('upper') | join;[0, 1, 2] | select | list
[{'a': 1}, {'a': 0}] | selectattr('a') | list;[{'a': 1}, {'a': 2}] | selectattr('a', 'equalto', 2) | list;[1, none] | reject('none') | list
[{'a': 1}, {}] | selectattr('a', 'defined') | list;[{'a': 1}, {'a': 2}] | rejectattr('a', 'in', [1]) | list;-5 | abs;'a-b' | replace('-', '+')
({'b': 1, 'a': 2} | items | list)[0][1];{'a': 1}.keys() | list;'x' | string | length;"a b" | title;"AB c" | capitalize;'abab' | replace('a', 'x', 1);'abab' | replace('b', 'x', count=1);'abc' | replace('', '-');'abc' | replace('', '-', 2);'a' | upper(1);'a' | trim(x=1)
[{'f': {'n': 'x'}}, {}] | map(attribute='f.n', default='none') | join('+');[[1, 2], [3, 4]] | map(attribute=1) | join(',');['a-b'] | map('replace', '-', '_') | list;[{'a': 1}] | map(attribute='a', other=1) | list
[3, 1, 2] | sort;[3, 1, 2] | sort(reverse=true);['b', 'A', 'c'] | sort;['b', 'A', 'c'] | sort(case_sensitive=true);[{'n': 2}, {'n': 1}] | sort(attribute='n');[1, 'a'] | sort;['a', 'A', 'b'] | unique | list
{'b': 1, 'A': 2} | dictsort;{'b': 1, 'A': 2} | dictsort(true);{'b': 1, 'A': 2} | dictsort(by='value');{'b': 1, 'A': 2} | dictsort(reverse=true);[1, 3, 2] | max;[1, 3, 2] | min;['b', 'A'] | min;[1, 2.5] | sum;[{'a': 1}] | sum(attribute='a', start=2)
'a\\nb\\n\\nc' | indent;'a\\nb\\n\\nc' | indent(2, true);'a\\n\\nc' | indent(width=3, blank=true);'a\\nb' | indent('> ');'<a href="x">&\\'' | escape;2.567 | round(2);2.5 | round;2.1 | round(method='ceil');2.9 | round(0, 'floor')
'abc' | int;'abc' | int(5);'abc' | int(default=7);'1.9' | int;' 12 ' | int;'x' | float;'x' | float(1.5);'12abc' | int;1 | int(base=10);'x' | default;[1, 2] | join;[1, 2] | first(1);[] | last;
[1, 2, 3, 4, 5] | batch(2) | list;[1, 2, 3] | batch(2, '-') | list;[] | batch(2) | list;'abc' | batch(2) | list;'%s, %s' | format('a', 1);'%.1f' | format(2.55);'x' | center(5);'x' | center | length;'%s' | format
range(3) | list;range(1, 10, 4) | list;range(5, 0, -2) | list
"""
CASES = [
    *("{{ " + one + " }}" for line in EXPRESSIONS.strip().splitlines() for one in line.split(" | ")),
    *("{{ " + one + " }}" for line in FILTERS.strip().splitlines() for one in line.split(";")),
    "a\n  {% if 1 %}\n  b\n  {% endif %}\nc\n",
    "a  {%- if 1 -%}  \n b {% endif %} \n c",
    "a\n{% raw %}\n {{ x }} {% y %} {# z #}\n  {% endraw %}\nb\n  {%- raw -%}  {{ }} {%- endraw -%}  c{%raw%}{% raw %}{%endraw%}d  {%+ raw %} e {%+ endraw +%} f",
    "{% raw %}x",
    "{% set a, b = 1, 'x' %}{{ b }}{{ a }}{% set c = 1, %}{{ c }}{% set d, e = [[1], 2] %}{{ d }}{% set f, g = [1] %}",
    "{% set a, b = 1, 'x' %}{{ b }}{{ a }}{% set c = 1, 2 %}{{ c }}{% set d, e = [[1], 2] %}{{ d }}{{ e }}",
    "{# gone #}\nx {#- gone -#} \n y",
    "{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}={{ v }}{{ ', ' if not loop.last }}{% endfor %}",
    "{% for x in [1, 2, 3, 4] if x is even %}{{ loop.index }}:{{ x }}/{{ loop.length }}{{ loop.revindex }} {% endfor %}",
    "{% for x in [] %}x{% else %}empty{% endfor %}{% for x in 'ab' %}{{ x }}{{ loop.first }}{% endfor %}",
    "{% for x in [1,2,3] %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}",
    "{% set x = 1 %}{% for i in [1, 2] %}{% set x = 5 %}{{ x }}{% endfor %}{{ x }}",
    "{% set n = namespace(x=1) %}{% for i in [1, 2] %}{% set n.x = n.x + i %}{% endfor %}{{ n.x }}",
    "{% if false %}a{% elif none %}b{% elif 1 %}c{% else %}d{% endif %}",
    "{% macro m(a, b=2) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{% set c = 3 %}{{ m(1) }}{{ m(1, 5) }}{{ m(b=1, a=0) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(b=2) }}",
    "{% macro m(a) %}<{{ a }}>{{ caller() }}</{{ a }}>{% endmacro %}{% for x in [1, 2] %}{% call m('b') %}{{ x }}{{ loop.index }}{% endcall %}{% endfor %}",
    "{% macro m() %}{{ caller(1) }}{{ caller(2, b='y') }}{% endmacro %}{% set c = 5 %}{% call(a, b='x') m() %}{{ a }}{{ b }}{{ c }}{% endcall %}",
    "{% macro m() %}{{ caller is defined }}{% endmacro %}{{ m() }}{% call m() %}{% endcall %}",
    "{% macro m() %}x{% endmacro %}{% call m() %}{% endcall %}",
    "{% macro m(a) %}{{ caller() }}{% endmacro %}{% call m(1, 2) %}{% endcall %}",
    "{% call 1 %}{% endcall %}", "{% call range(2) %}{% endcall %}", "{% call m() %}",
    "{% set n = namespace(x=0) %}{% macro m() %}{{ caller() }}{{ caller() }}{% endmacro %}{% call m() %}{% set n.x = n.x + 1 %}{% set y = 1 %}{% endcall %}{{ n.x }}{{ y }}",
    "a {% filter upper %} b {{ 'c' }}{% endfilter %} d", "{% filter trim | replace('a', 'b') | indent(2, true) %}\n a\n a\n {% endfilter %}",
    "{% filter %}x{% endfilter %}", "{% filter upper %}x",
    "{% for x in [1, 2, 3] %}{% filter string %}{{ x }}{% endfilter %}{% endfor %}", "{% set x | upper | trim %} a{{ 1 }} {% endset %}[{{ x }}]",
    "{% set a = 1 %}{% with %}{% set a = 2 %}{{ a }}{% endwith %}{{ a }}", "{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
    "{% set a = 5 %}{% with a = 1, b = a + 1 %}{{ a }}{{ b }}{% endwith %}{{ a }}", "{% with a = 1 b = 2 %}{% endwith %}", "{% with a %}{% endwith %}",
    "{% for x in [1, 2, 3] %}{% with y = x %}{% if y == 2 %}{% continue %}{% endif %}{{ y }}{% endwith %}{% endfor %}",
    "{% for g in messages | groupby('role') %}{{ g.grouper }}={{ g.list | length }},{{ g[0] }};{% endfor %}",
    "{% for role, group in messages | groupby('role') %}{{ role }}: {% for m in group %}{{ m.content | length }} {% endfor %}{% endfor %}",
    "{{ [{'a': 'x'}, {'a': 'X'}, {'a': 'b'}] | groupby('a') }}", "{{ [{'a': 'x'}, {'a': 'X'}, {'a': 'b'}] | groupby('a', case_sensitive=true) | list }}",
    "{{ [{'a': 2}, {}] | groupby('a', default=1) }}", "{{ [{'a': 2}, {'a': 'x'}] | groupby('a') }}", "{{ [[1, 2], [0, 3], [1, 4]] | groupby(0) }}", "{{ [] | groupby('a') }}", "{{ [1] | groupby }}",
    "{% for x in [1, 2, 3] %}{{ loop.cycle('odd', 'even') }}{{ loop.depth }}{{ loop.depth0 }}{% endfor %}", "{% for x in [1] %}{{ loop.cycle() }}{% endfor %}",
    "{% set tree = [{'n': 1, 'c': [{'n': 2, 'c': [{'n': 3, 'c': []}]}, {'n': 4, 'c': []}]}, {'n': 5, 'c': []}] %}{% for x in tree recursive %}{{ x.n }}:{{ loop.depth }}{{ loop.index }}({{ loop(x.c) }}){% endfor %}",
    "{% for x in [[1, [2]], 3] recursive %}{% if x is iterable %}{{ loop(x) }}{% else %}{{ x }}{{ loop.depth0 }}{% endif %}{% else %}none{% endfor %}",
    "{% for x in [[], [1]] if x recursive %}<{% if x is iterable %}{{ loop(x) }}{% endif %}>{% endfor %}", "{% for x in [1] recursive %}{{ loop() }}{% endfor %}", "{% for x in [1] %}{{ loop([]) }}{% endfor %}",
    "{% for x in [1, 1, 2, 2, 1] %}{{ loop.changed(x) }}{{ loop.changed(x, 1) }}{% endfor %}", "{% for x in [1, 2] %}{{ loop.changed() }}{% endfor %}",
    "{{ undefined_name.attribute }}",
    "{{ 1 + 'a' }}",
    "{{ raise_exception('refused: ' + 'why') }}",
    "plain { text } {",
    "{{ '{{ not a tag }}' }}{{ '%}' }}",
    "line\n\n",
]  # fmt: skip


def render(pairs: list[tuple[bytes, bytes]], tree: str = "dev") -> list[tuple[str, bytes]]:
    packed = b"".join(struct.pack("<I", len(part)) + part for pair in pairs for part in pair)
    done = subprocess.run(
        [built("torchette_render", tree=tree)], input=packed, capture_output=True, timeout=600
    )
    assert done.returncode == 0, done.stderr.decode(errors="replace")[-3000:]
    lines = [line.split("|") for line in done.stdout.decode().splitlines()]
    assert len(lines) == len(pairs)
    return [(error, bytes.fromhex(text)) for error, text in lines]


def names(messages: list[dict[str, Any]]) -> dict[str, Any]:
    return {"messages": messages, "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"}


def expected(template: str, names: dict[str, Any]) -> bytes | None:
    """Returns the prompt of transformers; None if it raises an error."""
    utilities = pytest.importorskip("transformers.utils.chat_template_utils")
    variables = dict(names)
    try:
        rendered, _ = utilities.render_jinja_template(
            [variables.pop("messages")],
            chat_template=template,
            tools=variables.pop("tools", None),
            **variables,
        )
    except Exception:  # raised by jinja2, or by an expression of the template
        return None
    return rendered[0].encode()


def differences(cases: list[tuple[str, dict[str, Any]]]) -> list[tuple[str, bytes | None, tuple[str, bytes]]]:
    """The cases, as (template, names), that do not render as transformers renders them."""
    all_names = [{"tools": None, "documents": None, **names} for _, names in cases]
    pairs = [
        (template.encode(), json.dumps(names, ensure_ascii=False).encode())
        for (template, _), names in zip(cases, all_names, strict=True)
    ]
    expected_results = [expected(*case) for case in cases]
    return [
        (template, want, got)
        for (template, _), want, got in zip(cases, expected_results, render(pairs), strict=True)
        if (got[0] not in ("InvalidArgument", "InvalidExternalData") if want is None else got != ("Ok", want))
    ]


def test_templates_render_as_in_jinja2() -> None:
    cases = [(t, names(c)) for t in TEMPLATES for c in CONVERSATIONS]
    cases += [(t, names(CONVERSATION)) for t in CASES]
    assert differences(cases) == []
    assert sum(expected(*case) is not None for case in cases) > 240, "most are to render"


def test_upper_case_of_every_letter() -> None:
    letters = "".join(c for c in map(chr, range(0x110000)) if c.upper() != c)
    [(error, text)] = render([(b"{{ x | upper }}", json.dumps({"x": letters}).encode())])
    assert (error, text.decode()) == ("Ok", letters.upper())


def test_templates_with_functions_render_as_in_transformers() -> None:
    plain = [message for message in CALLS if "tool_calls" not in message and message["role"] != "tool"]
    cases = [
        (template, {**names(messages), "tools": tools, **more})
        for template in [*TOOL_TEMPLATES, *TEMPLATES]
        for messages in (CALLS, CALLS[:2], CALLS[1:4], plain)
        for tools in (TOOLS, TOOLS[:1], None)
        for more in ({}, {"enable_thinking": False}, {"enable_thinking": True, "builtin_tools": ["a", "b"]})
    ]
    assert differences(cases) == []
    assert sum(expected(*case) is not None for case in cases) > 300, "most are to render"


SHARED = "{% set n = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set n.a = [n.a, n.a] %}{% set n.b = [n.b, n.b] %}{% endfor %}"
HOSTILE = {
    "{% for i in range(100000) %}{% for j in range(100000) %}x{% endfor %}{% endfor %}": "OutOfResources",
    "{% set n = namespace(t='x') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}": "InvalidArgument",
    "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}": "InvalidArgument",
    SHARED + "{{ n.a }}": "InvalidArgument",
    SHARED + "{{ n.a | tojson }}": "InvalidArgument",
    SHARED + "{{ n.a == n.b }}": "OutOfResources",
    SHARED + "{{ n.a in [n.b] }}": "OutOfResources",
    SHARED + "{{ [n.a, n.b] | unique | list }}": "OutOfResources",
    "{% set n = namespace(a=[1]) %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}": "OutOfResources",
    "{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}": "InvalidExternalData",
    "{{ " + "-" * 5000 + "1 }}": "InvalidExternalData",
    "{{ x" + ".a" * 5000 + " }}": "InvalidExternalData",
    "{% if 1 %}" * 5000 + "{% endif %}" * 5000: "InvalidExternalData",
    "{% if 1 %}": "InvalidExternalData",
    "{{ 1 ": "InvalidExternalData",
    "{{ 'a }}": "InvalidExternalData",
    "{% endfor %}": "InvalidExternalData",
    "{{ 1 / 0 }}": "InvalidArgument",
    "{{ 'a' * 100000000000 }}": "InvalidArgument",
    "{{ 1 | frobnicate }}": "NotSupported",
    "{{ 1 is frobnicated }}": "NotSupported",
    "{% include 'x' %}": "NotSupported",
    "{{ cycler(1) }}": "NotSupported",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}": "NotSupported",
    "{% macro m() %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{% call n() %}{% endcall %}": "NotSupported",
    "{% macro m() %}{% call m() %}{{ caller() }}{% endcall %}{% endmacro %}{{ m() }}": "InvalidArgument",
    "{% filter upper %}" * 5000 + "{% endfilter %}" * 5000: "InvalidExternalData",
    "{% with a = 1 %}" * 5000 + "{% endwith %}" * 5000: "InvalidExternalData",
    "{{ '%99999d' % 1 }}": "InvalidArgument",
    "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}": "InvalidArgument",
    # values that contain themselves, which the leak detector sees
    "{% for x in [1, 2] recursive %}{{ loop.changed(loop) }}{{ loop.changed(loop) }}{% endfor %}": "Ok",
    "{% set n = namespace() %}{% set n.a = [n] %}{% macro m() %}{{ caller() }}{% endmacro %}{% call m() %}{% set n.b = n %}{% endcall %}": "Ok",
    "{{ '%c' % 1 }}": "NotSupported",
    "{{ [1] * 1000000000 }}": "OutOfResources",
    "{{ ''.__class__.__mro__ }}": "InvalidArgument",
    "\xff": "Ok",
}


# Expressions on a long string, a list of long strings and a dict of them.
COSTLY = """
l | first;l | last;l | list;l | reverse;l + l;l[::2];l | map('length') | list;l | map('upper') | list;l | select('string') | list
l | map('default', s) | list;l | selectattr('a') | list;[[s]] | groupby(0);l | sort;l | unique;l | max;l | join;l | string;l | tojson;l ~ s
d.values();d | items;d | dictsort;dict(d);s[0];s[::2];s | length;s | list;s | trim;s | upper;s | indent;s | escape
s | replace('a', 'b');s.replace('q', '');s.strip();s.split('q');s.split();s.splitlines();s.partition('q');s.rfind('q');s.count('q')
s.startswith(l);s.isalpha();'q' in s;s in l;s == s + 'x';s < s;s is eq s;t in s;s.find(t);s.split(t);s.rpartition(t);s.join(l);'' * 1000000
m(s);l | sum(start=s);namespace(d);l * 5;s.rindex('b');s.center(9);s.zfill(9);s is lower;s | center;l | batch(2);[1] | batch(1000, s);'%s' % s
"""


def test_work_on_long_strings_is_bounded() -> None:
    """Each template is a few hundred bytes. Without a charge for the bytes, each would copy or search terabytes."""
    values = "{% set s = 'ab ' * 100000 %}{% set t = s[150000:] ~ 'c' %}{% set l = [s, s, s, s, s, s, s, s, s, s] %}"
    values += "{% set d = {'a': s, 'b': s, 'c': s} %}{% macro m(x) %}{{ caller is defined }}{% endmacro %}"
    loop = "{% for i in range(200000) %}{% set x = (EXPRESSION) is none %}{% endfor %}"
    expressions = [one for line in COSTLY.strip().splitlines() for one in line.split(";")]
    templates = [values + loop.replace("EXPRESSION", one) for one in expressions]
    templates += [values + "{% for i in range(200000) %}" + one + "{% endfor %}" for one in (
        "{% for x in l %}{% endfor %}", "{% for x in l if i %}{% endfor %}", "{% with x = s %}{% endwith %}",
        "{% set x %}{{ s }}{% endset %}", "{% filter length %}{{ s }}{% endfilter %}",
        "{% for x in [s] %}{% call m() %}{% endcall %}{% endfor %}",
    )]  # fmt: skip
    rendered = render([(one.encode(), b"{}") for one in templates])
    results = [(one, error) for one, (error, _) in zip(templates, rendered, strict=True)]
    assert [(one, error) for one, error in results if error != "OutOfResources"] == []


def test_invalid_and_hostile_templates_are_errors() -> None:
    for (template, code), (error, _) in zip(
        HOSTILE.items(), render([(t.encode(), b"{}") for t in HOSTILE]), strict=True
    ):
        assert error == code, template[:80]
    assert render([(b"\xff\xfe", b"{}")])[0][0] == "InvalidExternalData"


def mutated(count: int) -> list[tuple[bytes, bytes]]:
    """Damaged templates: bytes changed, parts removed, doubled, or taken from another one."""
    chance, sources = random.Random(5), [t.encode() for t in [*TEMPLATES, *CASES]]
    variables = json.dumps(names(CONVERSATION)).encode()
    pairs = []
    for _ in range(count):
        data = bytearray(chance.choice(sources))
        for _ in range(chance.randint(1, 4)):
            at = chance.randint(0, len(data))
            to = min(len(data), at + chance.choice([1, 1, 2, 10]))
            second_source = chance.choice(sources)
            start = chance.randint(0, len(second_source))
            put = [
                b"",
                bytes([chance.randrange(256)]),
                second_source[start : start + 12],
                bytes(data[at:to]) * 2,
            ]
            data[at:to] = chance.choice(put)
        pairs.append((bytes(data), variables))
    return pairs


def test_damaged_templates_are_errors() -> None:
    codes = {error for error, _ in render(mutated(3000))}
    assert codes >= {"Ok", "InvalidArgument", "InvalidExternalData", "NotSupported"}


@pytest.mark.safety
def test_damaged_templates_under_sanitizers() -> None:
    render(mutated(int(os.environ.get("TORCHETTE_MUTATIONS", "5000"))), tree="asan")
    test = [(t.encode(), b"{}") for t in HOSTILE]
    assert [error for error, _ in render(test, tree="asan")] == list(HOSTILE.values())
