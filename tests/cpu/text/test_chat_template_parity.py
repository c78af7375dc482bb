"""Chat templates render as transformers' `apply_chat_template` renders them."""

import json
import re

import jinja2
import pytest
import tokenizers
from tokenizers import models
from transformers import PreTrainedTokenizerFast

from xllm_framework.chat_template import load_chat_template
from xllm_framework.errors import InvalidRequest
from xllm_framework.model import ModelFiles

CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0].role == 'system' %}{{- messages[0].content + '\\n\\n' }}{%- endif %}
    {{- "# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools><|im_end|>\\n" }}
{%- elif messages[0].role == 'system' %}
    {{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}
{%- endif %}
{%- set ns = namespace(last_query_index=messages | length - 1, multi_step_tool=true) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" %}
        {%- set ns.multi_step_tool = false %}
        {%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.reasoning_content is defined and loop.index0 > ns.last_query_index %}
            {{- '\\n<think>\\n' + message.reasoning_content.strip('\\n') + '\\n</think>\\n' }}
        {%- endif %}
        {{- '\\n' + message.content }}
        {%- for tool_call in message.tool_calls or [] %}
            {%- if tool_call.function %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' ~ tool_call.name ~ '", "arguments": ' }}
            {{- tool_call.arguments if tool_call.arguments is string else tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {{- '<|im_start|>user\\n<tool_response>\\n' + message.content + '\\n</tool_response><|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}"""

HEADERS = """{{- bos_token }}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Cutting Knowledge Date: December 2023\\n" }}
{{- system_message }}
{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}
        {%- set tool_call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n{"name": "' + tool_call.name + '", ' }}
        {{- '"parameters": ' }}{{- tool_call.arguments | tojson }}{{- "}<|eot_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""

INSTRUCT = """{{ bos_token }}{% for message in messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{% endif %}
{% if message['role'] == 'user' %}
{{ '[INST] ' + message['content'] + ' [/INST]' }}
{% else %}
{% generation %}{{ message['content'] + eos_token }}{% endgeneration %}
{% endif %}
{% endfor %}
"""

TURNS = """{%- macro turn(role, text) -%}
<start_of_turn>{{ role }}
{{ text | trim }}<end_of_turn>
{% endmacro -%}
{{ bos_token }}{%- for m in messages -%}
{%- if loop.index > 40 %}{% break %}{% endif -%}
{{ turn('model' if m.role == 'assistant' else m.role, m.content) }}
{%- endfor -%}
{%- if add_generation_prompt %}<start_of_turn>model
{% endif -%}"""

TEMPLATES = {"chatml": CHATML, "headers": HEADERS, "instruct": INSTRUCT, "turns": TURNS}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Wetter für <Ort> & Tag",
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    }
]
CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "weather", "arguments": {"city": "Zürich", "days": [1, 2.5]}},
}
CHATS = {
    "one": [{"role": "user", "content": "Hello  \n"}],
    "two": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "客\n"},
    ],
    "system": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "a <b> & 'c'"}],
    "reasoning": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b", "reasoning_content": "\nbecause\n"},
    ],
    "tools": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "content": '{"t": 3}'},
    ],
}


@pytest.fixture(scope="module", params=TEMPLATES)
def both(request, tmp_path_factory):
    """Return (transformers' tokenizer, our template) of a folder that transformers saved."""
    folder = tmp_path_factory.mktemp(request.param)
    backend = tokenizers.Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "x": 2}, unk_token="x"))
    theirs = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")
    theirs.chat_template = TEMPLATES[request.param]
    theirs.save_pretrained(folder)
    return theirs, load_chat_template(ModelFiles(folder, "hf", request.param))


@pytest.mark.parametrize("name", CHATS)
@pytest.mark.parametrize(
    "options", [{}, {"tools": TOOLS}, {"enable_thinking": False}, {"add_generation_prompt": False}]
)
def test_prompts_are_equal(both, name, options):
    theirs, ours = both
    options = {"add_generation_prompt": True, **options}
    kwargs = {key: value for key, value in options.items() if key == "enable_thinking"}
    own_options = {key: value for key, value in options.items() if key != "enable_thinking"}
    try:
        expected = theirs.apply_chat_template(CHATS[name], tokenize=False, **options)
    except jinja2.TemplateError as error:
        with pytest.raises(InvalidRequest, match=re.escape(str(error))):
            ours.render(CHATS[name], kwargs=kwargs, **own_options)
    else:
        assert ours.render(CHATS[name], kwargs=kwargs, **own_options) == expected


@pytest.mark.parametrize("name", ["one", "two"])
@pytest.mark.parametrize("text", ["It is ", "It is\n", "x"])
def test_open_final_messages_are_equal(both, name, text):
    theirs, ours = both
    chat = [*CHATS[name], {"role": "assistant", "content": text}]
    expected = theirs.apply_chat_template(chat, tokenize=False, continue_final_message=True)
    assert ours.render(chat, continue_final_message=True) == expected


def test_arguments_as_text_give_the_prompt_of_arguments_as_objects(both):
    theirs, ours = both
    as_text = {**CALL, "function": {**CALL["function"], "arguments": json.dumps(CALL["function"]["arguments"])}}
    chat = [{"role": "user", "content": "a"}, {"role": "assistant", "content": None, "tool_calls": [as_text]}]
    by_objects = [chat[0], {"role": "assistant", "content": "", "tool_calls": [CALL]}]
    expected = theirs.apply_chat_template(by_objects, tokenize=False, add_generation_prompt=True)
    assert ours.render(chat) == expected
