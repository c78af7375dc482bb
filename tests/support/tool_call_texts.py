"""What models write when they call tools, and what it means: golden outputs of the formats whose arguments are JSON.

Each case is (what is special about it, the model's text, content, calls).
"""

from __future__ import annotations

from support.parser_driving import Call

Case = tuple[str, str, str, list[Call]]

WEATHER = '{"city": "Berlin", "days": 3}'
NESTED = '{"filters": [{"a": 1, "b": [true, null]}, {"c": "]}"}], "options": {"x": {"y": {}}}}'
NUMBERS = '{"days":1,"score":-2.50e-3,"z":0.0}'
UNICODE = '{"city": "Straße 客 😀", "q": "caf\\u00e9 \\ud83d\\ude00"}'
ESCAPES = r'{"query": "say \"hi\" \\ \n C:\\dir\\", "x": "{[\"}"}'
BROKEN = '{"city": "Ber'


def hermes(*objects: str) -> str:
    """Return calls as Hermes writes them."""
    return "\n".join(f"<tool_call>\n{text}\n</tool_call>" for text in objects)


def named(name: str, arguments: str) -> str:
    """Return a call as one object."""
    return f'{{"name": "{name}", "arguments": {arguments}}}'


def weather(arguments: str = WEATHER) -> list[Call]:
    """Return the one call that most cases hold."""
    return [Call("get_weather", arguments)]


HERMES: list[Case] = [
    ("one call", hermes(named("get_weather", WEATHER)), "", weather()),
    ("array of objects", hermes(named("search", NESTED)), "", [Call("search", NESTED)]),
    ("first an integer, then floats", hermes(named("get_weather", NUMBERS)), "", weather(NUMBERS)),
    ("unicode", hermes(named("get_weather", UNICODE)), "", weather(UNICODE)),
    ("escapes", hermes(named("get_weather", ESCAPES)), "", weather(ESCAPES)),
    ("empty arguments", hermes(named("now", "{}")), "", [Call("now", "{}")]),
    ("no arguments", hermes('{"name": "now"}'), "", [Call("now", "{}")]),
    ("null arguments", hermes('{"name": "now", "arguments": null}'), "", [Call("now", "{}")]),
    (
        "parallel calls",
        hermes(named("get_weather", WEATHER), named("now", "{}"), named("get_weather", NUMBERS)),
        "",
        [*weather(), Call("now", "{}"), *weather(NUMBERS)],
    ),
    (
        "text before and after",
        f"I look.\n\n{hermes(named('now', '{}'))}\n\nDone. ",
        "I look.\n\nDone. ",
        [Call("now", "{}")],
    ),
    ("arguments first", hermes(f'{{"arguments": {WEATHER}, "name": "get_weather"}}'), "", weather()),
    ("parameters", hermes(f'{{"name": "get_weather", "parameters":{WEATHER}}}'), "", weather()),
    (
        "unknown keys",
        hermes(f'{{"x": [1, {{"name": 2}}], "name": "get_weather", "arguments": {WEATHER}}}'),
        "",
        weather(),
    ),
    ("arguments in a string", hermes(named("get_weather", r'"{\"city\": \"Bonn\"}"')), "", weather('{"city": "Bonn"}')),
    ("one line", f"<tool_call>{named('get_weather', WEATHER)}</tool_call>", "", weather()),
    ("two objects in one block", hermes(f"{named('now', '{}')}\n{named('now', '{}')}"), "", [Call("now", "{}")] * 2),
    (
        "closing tag in a string",
        hermes(named("search", '{"q": "</tool_call>"}')),
        "",
        [Call("search", '{"q": "</tool_call>"}')],
    ),
    ("a brace too many", hermes(named("get_weather", WEATHER) + "}"), "", weather()),
    ("a brace too few", hermes(f'{{"name": "get_weather", "arguments": {WEATHER}'), "", weather()),
    ("cut in the arguments", f'<tool_call>\n{{"name": "get_weather", "arguments": {BROKEN}', "", weather(BROKEN)),
    ("cut in the name", '<tool_call>\n{"name": "get_wea', '<tool_call>\n{"name": "get_wea', []),
    ("cut after the tag", "Hm.<tool_call>", "Hm.<tool_call>", []),
    ("cut in the tag", "Hm. <tool_ca", "Hm. <tool_ca", []),
    ("no closing tag", f"<tool_call>\n{named('get_weather', WEATHER)}", "", weather()),
    (
        "an open string",
        hermes('{"name": "get_weather", "arguments": {"city": "Bonn}}', named("now", "{}")),
        "",
        [*weather('{"city": "Bonn}}'), Call("now", "{}")],
    ),
    ("no JSON", "<tool_call>now()</tool_call> yes", "<tool_call>now()</tool_call> yes", []),
    ("no name", hermes('{"arguments": {}}'), hermes('{"arguments": {}}'), []),
    (
        "near misses",
        "<tool><tool_calls><tool_call <|tool_call|> <tool_cal",
        "<tool><tool_calls><tool_call <|tool_call|> <tool_cal",
        [],
    ),
    ("plain text", "  2 < 3 \n", "  2 < 3 \n", []),
]


def llama(name: str, arguments: str) -> str:
    """Return a call as Llama 3 writes it."""
    return f'{{"name": "{name}", "parameters": {arguments}}}'


LLAMA3_JSON: list[Case] = [
    ("one call", llama("get_weather", WEATHER), "", weather()),
    ("with the tag", f"<|python_tag|>{llama('get_weather', WEATHER)}", "", weather()),
    ("array of objects", llama("search", NESTED), "", [Call("search", NESTED)]),
    ("numbers", llama("get_weather", NUMBERS), "", weather(NUMBERS)),
    ("unicode", llama("get_weather", UNICODE), "", weather(UNICODE)),
    ("escapes", llama("get_weather", ESCAPES), "", weather(ESCAPES)),
    ("empty arguments", llama("now", "{}"), "", [Call("now", "{}")]),
    ("with a type", '{"type": "function", "name": "now", "parameters": {}}', "", [Call("now", "{}")]),
    ("parallel calls", f"{llama('now', '{}')}; {llama('get_weather', WEATHER)}", "", [Call("now", "{}"), *weather()]),
    ("text after", f"{llama('now', '{}')}\nDone.", "\nDone.", [Call("now", "{}")]),
    ("text before the tag", f"I look. <|python_tag|>{llama('now', '{}')}", "I look.", [Call("now", "{}")]),
    ("text before without the tag", f"See {llama('now', '{}')}", f"See {llama('now', '{}')}", []),
    ("cut", f'{{"name": "get_weather", "parameters": {BROKEN}', "", weather(BROKEN)),
    ("other JSON", '{"temperature": 3, "name": "now"}', '{"temperature": 3, "name": "now"}', []),
    ("no tool's name", llama("Berlin", "{}"), llama("Berlin", "{}"), []),
    ("code after the tag", "<|python_tag|>print(1)", "<|python_tag|>print(1)", []),
    ("near misses", "{ name } <|python", "{ name } <|python", []),
]


def mistral(*calls: tuple[str, str]) -> str:
    """Return calls as newer Mistral models write them."""
    return "".join(f"[TOOL_CALLS]{name}[ARGS]{arguments}" for name, arguments in calls)


MISTRAL: list[Case] = [
    ("one call", mistral(("get_weather", WEATHER)), "", weather()),
    ("old form", f"[TOOL_CALLS][{named('get_weather', WEATHER)}]", "", weather()),
    (
        "old form, parallel",
        f"[TOOL_CALLS] [{named('now', '{}')}, {named('get_weather', WEATHER)}]",
        "",
        [Call("now", "{}"), *weather()],
    ),
    ("old form, no end", f"[TOOL_CALLS][{named('get_weather', WEATHER)}", "", weather()),
    ("array of objects", mistral(("search", NESTED)), "", [Call("search", NESTED)]),
    ("numbers", mistral(("get_weather", NUMBERS)), "", weather(NUMBERS)),
    ("unicode", mistral(("get_weather", UNICODE)), "", weather(UNICODE)),
    ("escapes", mistral(("get_weather", ESCAPES)), "", weather(ESCAPES)),
    ("empty arguments", mistral(("now", "{}")), "", [Call("now", "{}")]),
    ("parallel calls", mistral(("now", "{}"), ("get_weather", WEATHER)), "", [Call("now", "{}"), *weather()]),
    ("with an id", f"[TOOL_CALLS]get_weather[CALL_ID]abc123XYZ[ARGS]{WEATHER}", "", weather()),
    ("without the second mark", f"[TOOL_CALLS]get_weather{WEATHER}", "", weather()),
    ("text before and after", f"I look.{mistral(('now', '{}'))} Done.", "I look. Done.", [Call("now", "{}")]),
    ("cut", f"[TOOL_CALLS]get_weather[ARGS]{BROKEN}", "", weather(BROKEN)),
    ("cut in the name", "[TOOL_CALLS]get_wea", "[TOOL_CALLS]get_wea", []),
    ("a mark in a string", mistral(("search", '{"q": "[TOOL_CALLS]"}')), "", [Call("search", '{"q": "[TOOL_CALLS]"}')]),
    ("no name", "[TOOL_CALLS][ARGS]{}", "[TOOL_CALLS][ARGS]{}", []),
    ("empty list", "[TOOL_CALLS][]", "[TOOL_CALLS][]", []),
    ("near misses", "[TOOL] [TOOL_CALL] [ARGS]{} [TOOL_", "[TOOL] [TOOL_CALL] [ARGS]{} [TOOL_", []),
]


def deepseek(*calls: str) -> str:
    """Return a section of calls as DeepSeek writes it."""
    body = "\n".join(f"<｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜>" for call in calls)
    return f"<｜tool▁calls▁begin｜>{body}<｜tool▁calls▁end｜>"


def fenced(name: str, arguments: str) -> str:
    """Return one call as DeepSeek V3 writes it."""
    return f"function<｜tool▁sep｜>{name}\n```json\n{arguments}\n```"


DEEPSEEK_V3: list[Case] = [
    ("one call", deepseek(fenced("get_weather", WEATHER)), "", weather()),
    ("array of objects", deepseek(fenced("search", NESTED)), "", [Call("search", NESTED)]),
    ("numbers", deepseek(fenced("get_weather", NUMBERS)), "", weather(NUMBERS)),
    ("unicode", deepseek(fenced("get_weather", UNICODE)), "", weather(UNICODE)),
    ("escapes", deepseek(fenced("get_weather", ESCAPES)), "", weather(ESCAPES)),
    ("empty arguments", deepseek(fenced("now", "{}")), "", [Call("now", "{}")]),
    (
        "parallel calls",
        deepseek(fenced("now", "{}"), fenced("get_weather", WEATHER)),
        "",
        [Call("now", "{}"), *weather()],
    ),
    ("text before and after", f"I look.{deepseek(fenced('now', '{}'))} Done.", "I look. Done.", [Call("now", "{}")]),
    (
        "a fence in a string",
        deepseek(fenced("search", r'{"q": "```json\n{}\n```"}')),
        "",
        [Call("search", r'{"q": "```json\n{}\n```"}')],
    ),
    (
        "cut",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{BROKEN}",
        "",
        weather(BROKEN),
    ),
    ("no fence", deepseek("now"), "<｜tool▁call▁begin｜>now<｜tool▁call▁end｜>", []),
    ("near misses", "<｜tool▁call｜> <|tool▁calls▁begin|> <｜tool", "<｜tool▁call｜> <|tool▁calls▁begin|> <｜tool", []),
]

DEEPSEEK_V31: list[Case] = [
    ("one call", deepseek(f"get_weather<｜tool▁sep｜>{WEATHER}"), "", weather()),
    ("array of objects", deepseek(f"search<｜tool▁sep｜>{NESTED}"), "", [Call("search", NESTED)]),
    ("numbers", deepseek(f"get_weather<｜tool▁sep｜>{NUMBERS}"), "", weather(NUMBERS)),
    ("unicode", deepseek(f"get_weather<｜tool▁sep｜>{UNICODE}"), "", weather(UNICODE)),
    ("escapes", deepseek(f"get_weather<｜tool▁sep｜>{ESCAPES}"), "", weather(ESCAPES)),
    ("no arguments", deepseek("now<｜tool▁sep｜>"), "", [Call("now", "{}")]),
    (
        "parallel calls",
        deepseek("now<｜tool▁sep｜>{}", f"get_weather<｜tool▁sep｜>{WEATHER}"),
        "",
        [Call("now", "{}"), *weather()],
    ),
    (
        "text before and after",
        f"I look.\n{deepseek('now<｜tool▁sep｜>{}')} Done.",
        "I look. Done.",
        [Call("now", "{}")],
    ),
    ("cut", f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{BROKEN}", "", weather(BROKEN)),
    (
        "an end missing",
        f"<｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{WEATHER}<｜tool▁calls▁end｜>",
        "",
        [Call("now", "{}"), *weather()],
    ),
    ("cut in the name", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_wea", "<｜tool▁call▁begin｜>get_wea", []),
    ("near misses", "<｜tool▁sep｜> <｜tool▁calls", "<｜tool▁sep｜> <｜tool▁calls", []),
]


def kimi(*calls: tuple[str, str]) -> str:
    """Return a section of calls as Kimi K2 writes it."""
    body = "".join(
        f"<|tool_call_begin|>{name}<|tool_call_argument_begin|>{text}<|tool_call_end|>" for name, text in calls
    )
    return f"<|tool_calls_section_begin|>{body}<|tool_calls_section_end|>"


KIMI_K2: list[Case] = [
    ("one call", kimi(("functions.get_weather:0", WEATHER)), "", weather()),
    ("array of objects", kimi(("functions.search:0", NESTED)), "", [Call("search", NESTED)]),
    ("numbers", kimi(("functions.get_weather:0", NUMBERS)), "", weather(NUMBERS)),
    ("unicode", kimi(("functions.get_weather:0", UNICODE)), "", weather(UNICODE)),
    ("escapes", kimi(("functions.get_weather:0", ESCAPES)), "", weather(ESCAPES)),
    ("empty arguments", kimi(("functions.now:0", "{}")), "", [Call("now", "{}")]),
    (
        "parallel calls",
        kimi(("functions.now:0", "{}"), ("functions.get_weather:1", WEATHER)),
        "",
        [Call("now", "{}"), *weather()],
    ),
    ("spaces", kimi((" functions.get_weather:0 ", f" {WEATHER}")), "", weather()),
    ("no prefix and no number", kimi(("get_weather", WEATHER)), "", weather()),
    ("text before and after", f"I look. {kimi(('functions.now:0', '{}'))}Done.", "I look.Done.", [Call("now", "{}")]),
    (
        "cut",
        f"<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{BROKEN}",
        "",
        weather(BROKEN),
    ),
    ("no name", kimi(("", "{}")), "<|tool_call_begin|><|tool_call_argument_begin|>{}<|tool_call_end|>", []),
    ("near misses", "<|tool_call|> <|tool_calls_section|> <|tool", "<|tool_call|> <|tool_calls_section|> <|tool", []),
]


def harmony(name: str, arguments: str, end: str = "<|call|>") -> str:
    """Return a call as gpt-oss writes it."""
    return f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{arguments}{end}"


HARMONY: list[Case] = [
    ("one call", harmony("get_weather", WEATHER), "", weather()),
    ("cut before the end mark", harmony("get_weather", WEATHER, ""), "", weather()),
    (
        "recipient before the channel",
        f" to=functions.get_weather<|channel|>commentary json<|message|>{WEATHER}<|call|>",
        "",
        weather(),
    ),
    ("array of objects", harmony("search", NESTED), "", [Call("search", NESTED)]),
    ("numbers", harmony("get_weather", NUMBERS), "", weather(NUMBERS)),
    ("unicode", harmony("get_weather", UNICODE), "", weather(UNICODE)),
    ("escapes", harmony("get_weather", ESCAPES), "", weather(ESCAPES)),
    ("no arguments", harmony("now", ""), "", [Call("now", "{}")]),
    (
        "parallel calls",
        f"{harmony('now', '{}')}<|start|>assistant{harmony('get_weather', WEATHER)}",
        "",
        [Call("now", "{}"), *weather()],
    ),
    (
        "a preamble",
        f"<|channel|>commentary<|message|>I look.<|end|><|start|>assistant{harmony('now', '{}')}",
        "I look.",
        [Call("now", "{}")],
    ),
    ("an answer", "<|channel|>final<|message|>Done. ", "Done. ", []),
    ("cut", harmony("get_weather", BROKEN, ""), "", weather(BROKEN)),
    ("cut in the header", "<|channel|>commentary to=functions.get", "<|channel|>commentary to=functions.get", []),
    ("plain text", "to be, or <|not", "to be, or <|not", []),
]

CASES = {
    "hermes": HERMES,
    "llama3-json": LLAMA3_JSON,
    "mistral": MISTRAL,
    "deepseek-v3": DEEPSEEK_V3,
    "deepseek-v31": DEEPSEEK_V31,
    "kimi-k2": KIMI_K2,
    "harmony": HARMONY,
}
