"""Stop strings in text that arrives in pieces."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xllm_framework.tokenizer import StopStringMatcher


def deliver(stop, pieces, *, include=False):
    """Return (what each piece delivers, what the end delivers, the match)."""
    matcher = StopStringMatcher(stop, include_stop_str_in_output=include)
    delivered = []
    for piece in pieces:
        text, matched = matcher.append(piece)
        delivered.append(text)
        if matched is not None:
            return delivered, "", matched
    return delivered, matcher.flush(), None


def expected(stop, text, *, include):
    """Say it by hand: the stop string that is complete first; of several the longest."""
    ends = [(text.find(string) + len(string), -len(string), string) for string in stop if string in text]
    if not ends:
        return text, None
    end, _, matched = min(ends)
    return text[: end if include else end - len(matched)], matched


def test_no_piece_of_a_stop_string_is_delivered():
    assert deliver(["WXYZ"], ["Hi ", "W", "XY", "Z", "more"]) == (["Hi ", "", "", ""], "", "WXYZ")


def test_a_stop_string_that_ends_inside_a_token():
    assert deliver(["b,"], ["a", "b,c"]) == (["a", ""], "", "b,")
    assert deliver(["b,"], ["a", "xb,c"]) == (["a", "x"], "", "b,")


def test_a_near_miss_is_delivered():
    assert deliver(["ABCD"], ["ABC", "X", "AB"]) == (["", "ABCX", ""], "AB", None)


def test_a_restart_inside_a_near_miss_is_found():
    assert deliver(["aab"], ["a", "a", "a", "b"]) == (["", "", "a", ""], "", "aab")


def test_the_stop_string_can_be_included():
    assert deliver(["END"], ["x E", "ND y"], include=True) == (["x ", "END"], "", "END")


def test_the_first_complete_one_counts_and_of_two_the_longer():
    assert deliver(["abcd", "bc"], ["abcd"]) == (["a"], "", "bc")
    assert deliver(["bc", "abc"], ["xabc"]) == (["x"], "", "abc")


def test_nothing_follows_a_match():
    matcher = StopStringMatcher(["."], include_stop_str_in_output=False)
    assert matcher.append("a.b") == ("a", ".")
    assert matcher.matched == "."
    assert matcher.append("c") == ("", ".")
    assert matcher.flush() == ""


def test_without_stop_strings_text_passes():
    assert deliver([], ["a", "b"]) == (["a", "b"], "", None)
    assert deliver([""], ["a", "b"]) == (["a", "b"], "", None)


@pytest.mark.parametrize("include", [False, True])
@settings(deadline=None, max_examples=300)
@given(
    stop=st.lists(st.text("ab客", min_size=1, max_size=5), min_size=1, max_size=4),
    pieces=st.lists(st.text("ab客.", max_size=6), max_size=12),
)
def test_the_cut_into_pieces_changes_nothing(include, stop, pieces):
    delivered, rest, matched = deliver(stop, pieces, include=include)
    assert ("".join(delivered) + rest, matched) == expected(stop, "".join(pieces), include=include)


@settings(deadline=None, max_examples=200)
@given(
    stop=st.lists(st.text("ab", min_size=1, max_size=5), min_size=1, max_size=3),
    pieces=st.lists(st.text("abc", max_size=4), max_size=10),
)
def test_only_what_can_become_a_stop_string_is_held_back(stop, pieces):
    matcher = StopStringMatcher(stop, include_stop_str_in_output=False)
    delivered, seen = "", ""
    for piece in pieces:
        text, matched = matcher.append(piece)
        if matched is not None:
            return
        delivered, seen = delivered + text, seen + piece
        held = seen.removeprefix(delivered)
        assert delivered + held == seen
        assert held == "" or any(string.startswith(held) for string in stop)


def test_a_hostile_stop_string_costs_linear_steps():
    matcher = StopStringMatcher(["a" * 1023 + "b"] * 16, include_stop_str_in_output=False)
    delivered = sum(len(matcher.append("a" * 10)[0]) for _ in range(2000))
    assert delivered + len(matcher.flush()) == 20_000
