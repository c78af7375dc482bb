"""Golden outputs of the formats whose arguments are not JSON: elements, and Python.

Each case is (what is special about it, the model's text, content, calls).
"""

from __future__ import annotations

from support.parser_driving import Call
from support.tool_call_texts import Case


def coder(name: str, **parameters: str) -> str:
    """Return a call as Qwen3-Coder writes it."""
    elements = "".join(f"<parameter={key}>\n{text}\n</parameter>\n" for key, text in parameters.items())
    return f"<tool_call>\n<function={name}>\n{elements}</function>\n</tool_call>"


def glm45(name: str, **parameters: str) -> str:
    """Return a call as GLM-4.5 writes it."""
    elements = "".join(f"<arg_key>{key}</arg_key>\n<arg_value>{text}</arg_value>\n" for key, text in parameters.items())
    return f"<tool_call>{name}\n{elements}</tool_call>"


def glm47(name: str, **parameters: str) -> str:
    """Return a call as GLM-4.7 writes it."""
    return glm45(name, **parameters).replace("\n", "")


def dsml(*calls: str, section: str = "function_calls") -> str:
    """Return a section of calls as DeepSeek V3.2 writes it."""
    return f"<｜DSML｜{section}>\n" + "\n".join(calls) + f"\n</｜DSML｜{section}>"


def invoke(name: str, **parameters: tuple[str, str]) -> str:
    """Return one call as DeepSeek V3.2 writes it; each parameter is (value of `string`, text)."""
    elements = "".join(
        f'<｜DSML｜parameter name="{key}" string="{flag}">{text}</｜DSML｜parameter>\n'
        for key, (flag, text) in parameters.items()
    )
    return f'<｜DSML｜invoke name="{name}">\n{elements}</｜DSML｜invoke>'


NOW = [Call("now", "{}")]
BERLIN = [Call("get_weather", '{"city": "Berlin", "days": 3}')]
NESTED = {"filters": '[{"a": 1, "b": [true, null]}, {"c": "]}"}]', "options": '{"x": {"y": {}}}'}
NESTED_JSON = '{"filters": [{"a": 1, "b": [true, null]}, {"c": "]}"}], "options": {"x": {"y": {}}}}'
UNICODE_CITY = "Straße 客 😀"
QUOTED = 'say "hi" \\ C:\\dir\\\tend'
QUOTED_JSON = r'{"query": "say \"hi\" \\ C:\\dir\\\tend"}'
BY_TYPE = {
    "score": "2.50e3",
    "unit": "celsius",
    "limit": "null",
    "tag": "7",
    "node": '{"n": 1}',
    "unknown": "[1]",
    "other": "plain",
}
BY_TYPE_JSON = '{"score": 2.50e3, "unit": "celsius", "limit": null, "tag": "7", "node": {"n": 1}, "unknown": [1], "other": "plain"}'

QWEN3_CODER: list[Case] = [
    ("one call", coder("get_weather", city="Berlin", days="3"), "", BERLIN),
    ("array of objects", coder("search", **NESTED), "", [Call("search", NESTED_JSON)]),
    ("types", coder("search", **BY_TYPE), "", [Call("search", BY_TYPE_JSON)]),
    ("integer first", coder("get_weather", days="3", city="7"), "", [Call("get_weather", '{"days": 3, "city": "7"}')]),
    ("unicode", coder("get_weather", city=UNICODE_CITY), "", [Call("get_weather", f'{{"city": "{UNICODE_CITY}"}}')]),
    ("escapes", coder("search", query=QUOTED), "", [Call("search", QUOTED_JSON)]),
    ("lines", coder("search", query="\na\n\nb\n"), "", [Call("search", r'{"query": "\na\n\nb\n"}')]),
    ("empty text", coder("search", query=""), "", [Call("search", '{"query": ""}')]),
    ("no parameters", coder("now"), "", NOW),
    ("parallel calls", f"{coder('now')}\n{coder('get_weather', city='Berlin', days='3')}", "", NOW + BERLIN),
    ("two in one block", "<tool_call><function=now></function><function=now></function></tool_call>", "", NOW + NOW),
    (
        "one line",
        "<tool_call><function=get_weather><parameter=city>Berlin</parameter><parameter=days>3</parameter></function></tool_call>",
        "",
        BERLIN,
    ),
    ("without the outer tag", coder("now").removeprefix("<tool_call>\n"), "", NOW),
    ("text before and after", f"I look.\n{coder('now')} Done.", "I look. Done.", NOW),
    (
        "Python's words",
        coder("get_weather", metric="True", days="None"),
        "",
        [Call("get_weather", '{"metric": true, "days": null}')],
    ),
    ("not of its type", coder("get_weather", days="three"), "", [Call("get_weather", '{"days": "three"}')]),
    ("broken JSON", coder("search", options='{"a": '), "", [Call("search", r'{"options": "{\"a\": "}')]),
    (
        "tags in a text",
        coder("search", query="<b>1 < 2</b> </param </function>"),
        "",
        [Call("search", '{"query": "<b>1 < 2</b> </param </function>"}')],
    ),
    ("no function's end", "<tool_call>\n<function=now>\n</tool_call>", "", NOW),
    (
        "the first call is never closed",
        "<tool_call><function=get_weather><parameter=days>1</parameter>"
        + coder("get_weather", city="Berlin", days="3"),
        "",
        [Call("get_weather", '{"days": 1}'), *BERLIN],
    ),
    (
        "cut in a text",
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nBer",
        "",
        [Call("get_weather", '{"city": "Ber')],
    ),
    (
        "cut in a number",
        "<tool_call>\n<function=get_weather>\n<parameter=days>\n1",
        "",
        [Call("get_weather", '{"days": ')],
    ),
    ("cut between", "<function=get_weather><parameter=days>1</parameter>\n", "", [Call("get_weather", '{"days": 1')]),
    ("cut in the name", "<tool_call>\n<function=get_wea", "<tool_call>\n<function=get_wea", []),
    ("no function", "a <tool_call>{}</tool_call>", "a <tool_call>{}</tool_call>", []),
    ("no name", "<function=><function=a b></function>", "<function=><function=a b></function>", []),
    (
        "near misses",
        "<functions=a> <tool_calls> <parameter=x> <func",
        "<functions=a> <tool_calls> <parameter=x> <func",
        [],
    ),
]

GLM45: list[Case] = [
    ("one call", glm45("get_weather", city="Berlin", days="3"), "", BERLIN),
    ("one call without lines", glm47("get_weather", city="Berlin", days="3"), "", BERLIN),
    ("array of objects", glm45("search", **NESTED), "", [Call("search", NESTED_JSON)]),
    ("types", glm47("search", **BY_TYPE), "", [Call("search", BY_TYPE_JSON)]),
    ("unicode", glm45("get_weather", city=UNICODE_CITY), "", [Call("get_weather", f'{{"city": "{UNICODE_CITY}"}}')]),
    ("escapes", glm47("search", query=QUOTED), "", [Call("search", QUOTED_JSON)]),
    ("lines", glm45("search", query="\na\n"), "", [Call("search", r'{"query": "\na\n"}')]),
    ("no parameters", glm47("now"), "", NOW),
    ("parallel calls", f"{glm45('now')}\n{glm45('get_weather', city='Berlin', days='3')}", "", NOW + BERLIN),
    ("text before and after", f"I look. {glm45('now')} Done.", "I look. Done.", NOW),
    (
        "the first call is never closed",
        "<tool_call>get_weather<arg_key>days</arg_key><arg_value>1</arg_value>" + glm47("now"),
        "",
        [Call("get_weather", '{"days": 1}'), *NOW],
    ),
    (
        "cut in a text",
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Ber",
        "",
        [Call("get_weather", '{"city": "Ber')],
    ),
    ("cut in the name", "<tool_call>get_wea", "<tool_call>get_wea", []),
    ("no name", "the <tool_call> tag, <tool_call></tool_call>", "the <tool_call> tag, <tool_call></tool_call>", []),
    ("near misses", "<tool_calls> <arg_key>a</arg_key> <tool_", "<tool_calls> <arg_key>a</arg_key> <tool_", []),
]

DSML: list[Case] = [
    ("one call", dsml(invoke("get_weather", city=("true", "Berlin"), days=("false", "3"))), "", BERLIN),
    (
        "one call, V4",
        dsml(invoke("get_weather", city=("true", "Berlin"), days=("false", "3")), section="tool_calls"),
        "",
        BERLIN,
    ),
    (
        "array of objects",
        dsml(invoke("search", **{key: ("false", text) for key, text in NESTED.items()})),
        "",
        [Call("search", NESTED_JSON)],
    ),
    (
        "the flag goes before the schema",
        dsml(invoke("get_weather", days=("true", "3"), city=("false", "4"))),
        "",
        [Call("get_weather", '{"days": "3", "city": 4}')],
    ),
    (
        "unicode",
        dsml(invoke("get_weather", city=("true", UNICODE_CITY))),
        "",
        [Call("get_weather", f'{{"city": "{UNICODE_CITY}"}}')],
    ),
    ("escapes", dsml(invoke("search", query=("true", QUOTED))), "", [Call("search", QUOTED_JSON)]),
    (
        "no flag",
        dsml(invoke("get_weather", days=("true", "3")).replace(' string="true"', "")),
        "",
        [Call("get_weather", '{"days": 3}')],
    ),
    ("no parameters", dsml(invoke("now")), "", NOW),
    (
        "parallel calls",
        dsml(invoke("now"), invoke("get_weather", city=("true", "Berlin"), days=("false", "3"))),
        "",
        NOW + BERLIN,
    ),
    ("text before and after", f"I look.\n\n{dsml(invoke('now'))} Done.", "I look. Done.", NOW),
    (
        "cut in a text",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get_weather">\n<｜DSML｜parameter name="city" string="true">Ber',
        "",
        [Call("get_weather", '{"city": "Ber')],
    ),
    (
        "cut in the name",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get',
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="get',
        [],
    ),
    (
        "near misses",
        "<|DSML|function_calls> <｜DSML｜functions> <｜DS",
        "<|DSML|function_calls> <｜DSML｜functions> <｜DS",
        [],
    ),
]

PYTHONIC: list[Case] = [
    ("one call", "[get_weather(city='Berlin', days=3)]", "", BERLIN),
    ("no spaces", '[get_weather(city="Berlin",days=3)]', "", BERLIN),
    ("with tags", "<|python_start|>[now()]<|python_end|>", "", NOW),
    (
        "array of objects",
        "[search(filters=[{'a': 1, 'b': [True, None]}, {'c': ']}'}], options={'x': {'y': {}}})]",
        "",
        [Call("search", NESTED_JSON)],
    ),
    (
        "numbers",
        "[search(score=-2.50e-3, limit=7, x=0.0)]",
        "",
        [Call("search", '{"score": -2.50e-3, "limit": 7, "x": 0.0}')],
    ),
    ("unicode", f"[get_weather(city='{UNICODE_CITY}')]", "", [Call("get_weather", f'{{"city": "{UNICODE_CITY}"}}')]),
    ("escapes", r"""[search(query='say "hi" \\ C:\\dir\\\tend')]""", "", [Call("search", QUOTED_JSON)]),
    (
        "numbered characters",
        r"[search(query='\x41\u5ba2\U0001F600\ud83d\q\'\x4')]",
        "",
        [Call("search", r"""{"query": "A客😀\ud83d\\q'\\x4"}""")],
    ),
    (
        "tuples and last commas",
        "[search(filters=(1, [2,], (3,),),)]",
        "",
        [Call("search", '{"filters": [1, [2], [3]]}')],
    ),
    ("no arguments", "[now()]", "", NOW),
    ("parallel calls", "[now(), get_weather(city='Berlin', days=3)]", "", NOW + BERLIN),
    ("text after", "[now()] Done.", " Done.", NOW),
    ("a bare word", "[get_weather(city=Berlin, days=3)]", "", BERLIN),
    ("a later argument without a name", "[get_weather(city='Berlin', 5, days=3)]", "", BERLIN),
    ("cut in a text", "[get_weather(city='Ber", "", [Call("get_weather", '{"city": "Ber')]),
    ("cut in a number", "[get_weather(days=1", "", [Call("get_weather", '{"days": 1')]),
    ("cut in the name", "[get_wea", "[get_wea", []),
    ("a link", "[now](https://x)", "[now](https://x)", []),
    ("no argument's name", "[get_weather(Berlin)]", "[get_weather(Berlin)]", []),
    ("no tool's name", "[1, 2] and [f(x=1)]", "[1, 2] and [f(x=1)]", []),
    ("not at the beginning", "See [now()]", "See [now()]", []),
    ("near misses", " [ ] <|python_st", " [ ] <|python_st", []),
]

CASES = {"qwen3-coder": QWEN3_CODER, "glm45": GLM45, "deepseek-v32": DSML, "pythonic": PYTHONIC}
