"""Prompts of a given number of words. Knows no tokenizer: with a space before it, each word is one token in GPT-2-style
vocabularies, and the server's `usage` says what it was in another."""

from __future__ import annotations

import random

_TEXT = """
able about above across act add after again age agree air all almost along also always among animal another answer any
appear area arm around art ask away baby back bad ball bank base be bear beat beautiful because become bed before
began begin behind believe bell best better between big bird black blood blue board boat body bone book born both
bottom box boy bring broken brother brought brown build burn busy but buy call came can capital car care carry case
catch cause cell cent center century certain chair chance change character charge chart check chief child choose
church circle city claim class clean clear climb clock close cloth cloud coat cold collect colony color column come
common company compare complete condition consider contain continue control cook cool copy corn corner correct cost
cotton could count country course cover create cross crowd cry current cut dance danger dark day dead deal dear death
decide deep degree depend describe desert design develop did differ difficult direct discuss distance divide doctor
does dog dollar done door double down draw dream dress drink drive drop dry during each ear early earth ease east eat
edge effect egg eight either electric element else end enemy energy engine enough enter equal especially even evening
event ever every exact example except excite exercise expect experience experiment eye face fact fair fall family
famous far farm fast father favor fear feed feel feet few field fight figure fill final find fine finger finish fire
first fish fit five flat floor flow flower fly follow food foot for force foreign forest form forward found four free
fresh friend from front fruit full fun game garden gas gave general gentle get girl give glad glass go gold gone good
got govern grand grass gray great green grew ground group grow guess guide gun had hair half hand happen happy hard
has hat have head hear heart heat heavy held help her here high hill him his history hit hold hole home hope horse hot
hour house how huge human hundred hunt hurry
"""
WORDS = tuple(_TEXT.split())


def make_prompts(count: int, length: int, *, shared_prefix_len: int = 0, seed: int | str = 0) -> list[str]:
    """Return `count` prompts of `length` words, the first `shared_prefix_len` of them alike. Equal seeds, equal prompts."""
    draw = random.Random(seed)
    prefix = _words(draw, min(shared_prefix_len, length))
    return [prefix + _words(draw, length - min(shared_prefix_len, length)) for _ in range(count)]


def _words(draw: random.Random, count: int) -> str:
    return "".join(f" {word}" for word in draw.choices(WORDS, k=count))
