"""Chat templates: what they see, what they may do, and how they refuse."""

import jinja2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.chat_template import ChatTemplate, template
from xllm_framework.errors import InvalidRequest

PLAIN = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
STRICT = """{% if messages[0].role == 'system' %}{% set rest = messages[1:] %}{% else %}{% set rest = messages %}{% endif %}
{%- for m in rest %}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) %}
{{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
{%- endif %}
{{- m.content }}
{%- endfor %}"""


def compiled(source, **special_tokens):
    return ChatTemplate({"default": source}, special_tokens)


def user(content="hi"):
    return {"role": "user", "content": content}


def test_a_conversation_with_and_without_generation_prompt():
    chat = [{"role": "system", "content": "S"}, user()]
    assert compiled(PLAIN).render(chat) == "[system]S[user]hi[assistant]"
    assert compiled(PLAIN).render(chat, add_generation_prompt=False) == "[system]S[user]hi"


@pytest.mark.parametrize("content", [{"content": None}, {}, {"content": ""}])
def test_missing_content_is_an_empty_string(content):
    seen = compiled("{% for m in messages %}{{ m.content is string }}{{ m.content | length }}{% endfor %}")
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert seen.render([{"role": "assistant", "tool_calls": [call], **content}]) == "True0"


def test_text_parts_are_joined_with_newlines():
    parts = [{"type": "text", "text": "a"}, {"type": "input_text", "text": "b"}, {"type": "refusal", "refusal": "c"}]
    assert compiled("{{ messages[0].content }}").render([user(parts)]) == "a\nb\nc"


def test_tool_call_arguments_become_objects():
    show = compiled("{% for c in messages[0].tool_calls %}{{ c.function.arguments | tojson }};{% endfor %}")
    arguments = ['{"city": "Zürich", "n": 1}', "", None, {"x": [1]}, "not json"]
    calls = [{"function": {"name": "f", "arguments": value}} for value in arguments]
    rendered = show.render([{"role": "assistant", "content": None, "tool_calls": calls}])
    assert rendered == '{"city": "Zürich", "n": 1};{};{};{"x": [1]};"not json";'


def test_the_callers_messages_are_not_changed():
    call = {"function": {"name": "f", "arguments": "{}"}}
    chat = [{"role": "developer", "content": None, "tool_calls": [call], "reasoning": "r"}]
    compiled(PLAIN).render(chat, continue_final_message=False)
    assert chat == [{"role": "developer", "content": None, "tool_calls": [call], "reasoning": "r"}]
    assert call["function"]["arguments"] == "{}"


def test_the_developer_role_becomes_system_unless_the_template_knows_it():
    chat = [{"role": "developer", "content": "D"}]
    assert compiled(PLAIN).render(chat, add_generation_prompt=False) == "[system]D"
    knowing = "{% if messages[0].role == 'developer' %}dev{% endif %}"
    assert compiled(knowing).render(chat) == "dev"


def test_reasoning_is_offered_under_the_templates_name():
    chat = [{"role": "assistant", "content": "x", "reasoning": "because"}]
    assert compiled("{{ messages[0].reasoning_content }}").render(chat) == "because"


def test_a_refusal_keeps_the_templates_words():
    with pytest.raises(InvalidRequest, match="Conversation roles must alternate") as error:
        compiled(STRICT).render([user("a"), user("b")])
    assert error.value.param == "messages"


def test_a_later_system_message_is_the_templates_decision():
    chat = [{"role": "system", "content": "S"}, user("a"), {"role": "assistant", "content": "b"}]
    chat += [{"role": "developer", "content": "D"}, user("c")]
    assert compiled(PLAIN).render(chat, add_generation_prompt=False) == "[system]S[user]a[assistant]b[system]D[user]c"
    with pytest.raises(InvalidRequest, match="must alternate"):
        compiled(STRICT).render(chat)


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('') }}",
        "{{ messages[0].absent.more }}",
        "{{ messages[0].content + 1 }}",
        "{{ 1 // 0 }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].content.nowhere() }}",
        "{% for i in range(1000000000) %}{% endfor %}",
        "{% macro again() %}{{ again() }}{% endmacro %}{{ again() }}",
    ],
)
def test_every_failure_is_the_requests_and_says_something(source):
    with pytest.raises(InvalidRequest) as error:
        compiled(source).render([user()])
    assert error.value.param == "messages"
    assert len(error.value.message) > 40


def test_the_sandbox_keeps_internals_away():
    for source in (
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ raise_exception.__globals__.x }}",
        "{{ cycler.__init__.__globals__.os.popen('true').read() }}",
        "{{ ('%s' | attr('format'))('x').__class__.__name__ }}",
    ):
        with pytest.raises(InvalidRequest):
            compiled(source).render([user()])


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ([], "at least one message"),
        (["hi"], r"messages\[0\] must be an object"),
        ([{"content": "x"}], r"messages\[0\]\.role"),
        ([user(), {"role": 3}], r"messages\[1\]\.role"),
        ([user(3)], r"messages\[0\]\.content must be a string"),
        ([user([{"type": "image_url", "image_url": {"url": "x"}}])], r"content\[0\] is of type 'image_url'"),
        ([user([{"type": "text", "text": None}])], r"content\[0\]\.text must be a string"),
        ([user([3])], r"content\[0\] is of type None"),
        ([{"role": "assistant", "tool_calls": {}}], "tool_calls must be a list"),
        ([{"role": "assistant", "tool_calls": [{}]}], r"tool_calls\[0\]\.function must be an object"),
        ([user()] * 20_000, "more than the 16384"),
    ],
)
def test_a_wrong_message_is_named(messages, words):
    with pytest.raises(InvalidRequest, match=words) as error:
        compiled(PLAIN).render(messages)
    assert error.value.param == "messages"


def test_request_variables_reach_the_template():
    source = "{{ enable_thinking | default(true) }}"
    assert compiled(source).render([user()]) == "True"
    assert compiled(source).render([user()], kwargs={"enable_thinking": False}) == "False"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "chat_template",
            "messages",
            "tools",
            "add_generation_prompt",
            "continue_final_message",
            "bos_token",
            "range",
        ),
        *("raise_exception", "namespace", "__class__", "_x", "not a name", "chat_template_kwargs"),
    ],
)
def test_request_variables_cannot_take_the_servers_names(name):
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
    with pytest.raises(InvalidRequest) as error:
        compiled(PLAIN, bos_token="<s>").render([user()], kwargs={name: loops})
    assert error.value.param == "chat_template_kwargs"
    assert name in error.value.message


def test_a_template_inside_content_or_variables_stays_text():
    source = "{{ note }}{{ messages[0].content }}"
    assert compiled(source).render([user("{{ 7 * 7 }}")], kwargs={"note": "{% raw %}"}) == "{% raw %}{{ 7 * 7 }}"


def test_what_templates_expect_of_hugging_face():
    source = (
        "{{ bos_token }}{% generation %}{{ {'k': 'é<'} | tojson }}{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ strftime_now('%Y') | length }}{% set ns = namespace(x=1) %}{% set ns.x = 2 %}{{ ns.x }}{{ tools is none }}\n"
        "{% if true %}\n  {% if true %}t{% endif %}\n{% endif %}"
    )
    assert compiled(source, bos_token="<s>").render([user()], tools=[]) == '<s>{"k": "é<"}0142True\nt'


def test_lone_surrogates_become_replacement_characters():
    chat = [
        {"role": "assistant", "content": "a\ud83d", "tool_calls": [{"function": {"name": "\udc00", "arguments": "{}"}}]}
    ]
    show = "{{ messages[0].content }}{{ messages[0].tool_calls | tojson }}"
    prompt = compiled(show).render(chat)
    assert prompt.startswith("a\ufffd")
    assert prompt.encode().count("\ufffd".encode()) == 2


def test_tools_choose_the_tool_template():
    both = ChatTemplate({"default": "plain", "tool_use": "{{ tools[0].name }}"}, {})
    assert both.render([user()]) == "plain"
    assert both.render([user()], tools=[{"name": "f"}]) == "f"


@pytest.mark.parametrize(
    ("source", "text", "prompt"),
    [
        (PLAIN, "So ", "[user]hi[assistant]So "),
        ("{% for m in messages %}<{{ m.content | trim }}>{% endfor %}", "So ", "<hi><So"),
        ("{% for m in messages %}<{{ m.content }}>{% endfor %}", "", "<hi><"),
    ],
)
def test_the_final_message_can_be_left_open(source, text, prompt):
    chat = [user(), {"role": "assistant", "content": text}]
    assert compiled(source).render(chat, continue_final_message=True) == prompt


def test_a_template_that_drops_the_final_message_cannot_continue_it():
    with pytest.raises(InvalidRequest) as error:
        compiled("{{ messages[0].content }}").render([user(), user("x")], continue_final_message=True)
    assert error.value.param == "continue_final_message"


def test_what_a_request_may_cost_is_bounded(monkeypatch):
    monkeypatch.setattr(template, "MAX_RENDERED_CHARACTERS", 100)
    with pytest.raises(InvalidRequest, match="longer than 100 characters"):
        compiled(PLAIN).render([user("x" * 60)] * 2)
    monkeypatch.setattr(template, "MAX_RENDER_SECONDS", -1.0)
    with pytest.raises(InvalidRequest, match="takes longer"):
        compiled(PLAIN).render([user()])


def test_a_template_that_is_no_jinja_is_refused_at_once():
    with pytest.raises(jinja2.TemplateSyntaxError):
        compiled("{% for %}")


STRICT_TEMPLATE = ChatTemplate({"default": STRICT}, {})
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)
)


@settings(deadline=None, max_examples=300)
@given(
    messages=st.lists(
        st.fixed_dictionaries(
            {"role": st.sampled_from(["user", "assistant", "system", "developer", "tool", ""])},
            optional={"content": JSON, "tool_calls": JSON, "reasoning": JSON},
        ),
        max_size=4,
    )
)
def test_any_messages_give_a_prompt_or_our_error(messages):
    try:
        prompt = STRICT_TEMPLATE.render(messages)
    except InvalidRequest as error:
        assert error.message  # noqa: PT017
    else:
        assert isinstance(prompt, str)
