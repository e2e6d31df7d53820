"""Parses the text of a filter to the syntax tree of one condition, with sqlglot. Pure. Nothing is evaluated.

The text is split into tokens before it is parsed, so that neither its length nor its nesting can exhaust the parser.
sqlglot's parser tries a word before a bracket as a type first and then as a function, which doubles its work at each
level. So brackets are parsed only where a filter can have them, and there they have one meaning. Names and literals
keep their place in the text, so that errors can name it.
"""

from typing import Any

import sqlglot
from sqlglot import TokenType, exp
from sqlglot.errors import SqlglotError

from spark_log.errors import InvalidOptionError

TEXT_MAX = 4_000
"""The maximum number of characters of a filter."""
TOKENS_MAX = 400
DEPTH_MAX = 20
"""The maximum number of levels of parentheses and brackets."""
JSON_PATHS_MAX = 8
"""The maximum number of different fields of JSON in a filter."""

_BEFORE_PARENTHESIS = {
    TokenType.L_PAREN, TokenType.COMMA, TokenType.EQ, TokenType.NEQ, TokenType.LT, TokenType.LTE, TokenType.GT,
    TokenType.GTE, TokenType.PLUS, TokenType.DASH, TokenType.STAR, TokenType.SLASH, TokenType.AND, TokenType.OR,
    TokenType.NOT, TokenType.IN, TokenType.LIKE, TokenType.ILIKE, TokenType.BETWEEN,
}  # fmt: skip
_FUNCTIONS = {"LENGTH", "LOWER", "UPPER"}
_OF_BRACKET = [TokenType.L_BRACKET, TokenType.STRING, TokenType.R_BRACKET]

ALLOWED = (
    "a filter has the columns key, value, offset, partition, timestamp, headers['name'], record.*, key_record.*,"
    " value.* and key.*, literals, = != < <= > >= AND OR NOT IN LIKE ILIKE BETWEEN IS NULL, + - * /,"
    " LENGTH, LOWER and UPPER"
)


class FilterError(InvalidOptionError):
    """A filter that cannot be used. The message names the place in its text.

    Remedy: correct the filter; docs/guides/console.md describes the language.
    """


def parse(text: str) -> exp.Expr:
    """Return the tree of the condition. Raises FilterError for a text that is not one condition of SQL within the
    limits.
    """
    if len(text) > TEXT_MAX:
        raise FilterError(f"filter: {len(text)} characters, at most {TEXT_MAX} are allowed")
    if "\x00" in text:
        raise error("a NUL character", text.index("\x00"))
    try:
        tokens = sqlglot.tokenize(text)
        _check(tokens)
        return sqlglot.maybe_parse(text, into=exp.Condition)
    except SqlglotError as failure:
        raise _syntax_error(failure, text) from None
    except RecursionError:
        raise too_deep() from None
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):  # faults of sqlglot's parser, as in "{:}"
        raise error("not a condition of SQL", None) from None


def error(what: str, start: int | None, advice: str = ALLOWED) -> FilterError:
    """Return the error for a place in the text. `start` is the index of a character, from 0."""
    place = "" if start is None else f"at character {start + 1}: "
    return FilterError(f"filter: {place}{what}; {advice}")


def too_deep() -> FilterError:
    return FilterError(f"filter: nested too deep; parentheses may be nested {DEPTH_MAX} levels deep")


def place(node: exp.Expr) -> int | None:
    """Return the place of the first name or literal of the node."""
    starts = [found.meta["start"] for found in node.walk() if "start" in found.meta]
    return min(starts, default=None)


def _check(tokens: list[sqlglot.Token]) -> None:
    if len(tokens) > TOKENS_MAX:
        raise FilterError(f"filter: {len(tokens)} names, literals and operators, at most {TOKENS_MAX} are allowed")
    if not tokens:
        raise FilterError(f"filter: it is empty; {ALLOWED}")
    depth = 0
    for token in tokens:
        opens = token.token_type in (TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE)
        closes = token.token_type in (TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE)
        depth += opens - closes
        if depth > DEPTH_MAX:
            raise error(f"nested deeper than {DEPTH_MAX} levels", token.start)
        if token.token_type is TokenType.SEMICOLON:
            raise error("a second statement", token.start)
    for index, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN and index:
            _check_before_parenthesis(tokens[index - 1])
        if token.token_type is TokenType.L_BRACE:
            raise error("{ is not allowed", token.start)
        following = [each.token_type for each in tokens[index : index + 3]]
        if token.token_type is TokenType.L_BRACKET and following != _OF_BRACKET:
            raise error("[ ] is for headers['name'] only", token.start)


def _check_before_parenthesis(before: sqlglot.Token) -> None:
    is_function = before.token_type is TokenType.VAR and before.text.upper() in _FUNCTIONS
    if not is_function and before.token_type not in _BEFORE_PARENTHESIS:
        raise error(f"{before.text[:50]}( is not allowed", before.start)


def _syntax_error(failure: SqlglotError, text: str) -> FilterError:
    found: dict[str, Any] = next(iter(getattr(failure, "errors", ())), {})
    start = None
    if found.get("line") == 1 and found.get("col") is not None:
        start = max(0, min(found["col"], len(text)) - len(found.get("highlight") or ""))
    return error("not a condition of SQL", start)
