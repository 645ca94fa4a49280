"""The grammar of ``--where``: comparisons of a column with a value, joined by ``and`` and ``or``.

::

    condition  = conjunct ("or" conjunct)*
    conjunct   = comparison ("and" comparison)*
    comparison = column ("==" | "=" | "!=" | "<" | "<=" | ">" | ">=") value
               | column ["not"] "in" "(" value ("," value)* ")"
               | column "is" ["not"] "null"
    column     = name | '"' any characters '"'
    value      = number | "'" text "'" | "true" | "false"

Words are read without regard to case; ``''`` inside of a text is one quote. There are no other brackets: what this
grammar does not say, ``filter=`` of the Python interface does.
"""

import re
from collections.abc import Iterator
from functools import reduce
from operator import and_, eq, ge, gt, le, lt, ne, or_

import pyarrow.compute as pc

from corgiarrow.errors import OptionError

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>'(?:[^']|'')*')|(?P<quoted>"[^"]+")|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]))
    |(?P<word>\w[\w.\-]*)|(?P<symbol>==|!=|<=|>=|=|<|>|\(|\)|,))""",
    re.VERBOSE,
)
_COMPARE = {"==": eq, "=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}
_EXAMPLE = """such as "carrier == 'AA' and distance > 1000", or "month in (1, 2)", or "delay is not null\""""

Token = tuple[str, str]


def parse_where(text: str) -> pc.Expression:
    """Return the expression that a condition stands for.

    Raises
    ------
    OptionError
        The condition does not follow the grammar.
    """
    tokens = [*_tokens(text), ("end", "")]
    tokens.reverse()
    disjuncts = [_conjunct(text, tokens)]
    while _word(tokens) == "or":
        tokens.pop()
        disjuncts.append(_conjunct(text, tokens))
    if tokens[-1][0] != "end":
        raise _error(text, tokens, "'and' or 'or'")
    return reduce(or_, disjuncts)


def _tokens(text: str) -> Iterator[Token]:
    place = 0
    while text[place:].strip():
        found = _TOKEN.match(text, place)
        if found is None or found.lastgroup is None:
            raise OptionError(f"--where {text!r}: what is {text[place:].strip()[:20]!r}? Give a condition {_EXAMPLE}")
        place = found.end()
        yield found.lastgroup, found.group(found.lastgroup)


def _word(tokens: list[Token]) -> str:
    kind, text = tokens[-1]
    return text.lower() if kind == "word" else ""


def _error(text: str, tokens: list[Token], wanted: str) -> OptionError:
    found = tokens[-1][1] or "the end"
    return OptionError(f"--where {text!r}: {wanted} should come where {found!r} is; give a condition {_EXAMPLE}")


def _conjunct(text: str, tokens: list[Token]) -> pc.Expression:
    found = [_comparison(text, tokens)]
    while _word(tokens) == "and":
        tokens.pop()
        found.append(_comparison(text, tokens))
    return reduce(and_, found)


def _comparison(text: str, tokens: list[Token]) -> pc.Expression:
    kind, name = tokens[-1]
    if kind not in ("word", "quoted"):
        raise _error(text, tokens, "the name of a column")
    tokens.pop()
    column = pc.field(name.strip('"'))
    if tokens[-1][1] in _COMPARE:
        compare = _COMPARE[tokens.pop()[1]]
        return compare(column, _value(text, tokens))
    if _word(tokens) == "is":
        tokens.pop()
        negated = _negated(tokens)
        _expect(text, tokens, "null")
        return ~column.is_null() if negated else column.is_null()
    negated = _negated(tokens)
    if _word(tokens) != "in":
        raise _error(text, tokens, "a comparison, 'in' or 'is null'")
    tokens.pop()
    _expect(text, tokens, "(")
    values = [_value(text, tokens)]
    while tokens[-1][1] == ",":
        tokens.pop()
        values.append(_value(text, tokens))
    _expect(text, tokens, ")")
    return ~column.isin(values) if negated else column.isin(values)


def _negated(tokens: list[Token]) -> bool:
    if _word(tokens) != "not":
        return False
    tokens.pop()
    return True


def _expect(text: str, tokens: list[Token], wanted: str) -> None:
    if tokens[-1][1].lower() != wanted:
        raise _error(text, tokens, repr(wanted))
    tokens.pop()


def _value(text: str, tokens: list[Token]) -> str | int | float | bool:
    kind, found = tokens[-1]
    if kind == "text":
        value: str | int | float | bool = found[1:-1].replace("''", "'")
    elif kind == "number":
        value = int(found) if re.fullmatch(r"[-+]?\d+", found) else float(found)
    elif _word(tokens) in ("true", "false"):
        value = _word(tokens) == "true"
    else:
        raise _error(text, tokens, "a value: a number, a 'text', true or false")
    tokens.pop()
    return value
