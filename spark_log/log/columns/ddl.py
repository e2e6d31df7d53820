"""Parses Spark's DDL for columns: the rule `colTypeList` of the grammar, with the types that columns can have."""

import re
from collections.abc import Callable, Iterator
from typing import NoReturn

import pyarrow as pa

from spark_log.errors import InvalidSchemaError
from spark_log.log.columns.column_limits import MAX_DEPTH, check_count, check_path

_TOKEN = re.compile(
    r"""(?P<space>\s+|--[^\r\n]*|/\*.*?\*/)
    | (?P<quoted>`(?:[^`]|``)*`)
    | (?P<text>(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")+)
    | (?P<open>(?:['"`]|/\*).*)
    | (?P<number>\d+(?![A-Za-z0-9_]))
    | (?P<word>[A-Za-z0-9_]+)
    | (?P<sign>[<>(),:])
    | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
"""`open` is an unclosed quote or comment and all that follows: otherwise each later one would search the rest again."""
_CHARACTERS_MAX = 1 << 20
_WORD_BY_WORD = {
    "BOOLEAN": pa.bool_(),
    **dict.fromkeys(("TINYINT", "BYTE", "SMALLINT", "SHORT", "INT", "INTEGER", "BIGINT", "LONG"), pa.int64()),
    **dict.fromkeys(("FLOAT", "REAL", "DOUBLE"), pa.float64()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), pa.timestamp("us", "UTC")),
    "DATE": pa.date32(),
    "BINARY": pa.binary(),
    "STRING": pa.string(),
}
_MAX_PRECISION = 38
_DIGITS_MAX = 10


def parsed(text: str) -> pa.StructType:
    """Return the struct that the text declares. Raise InvalidSchemaError, which names the position or the field of the
    first error.
    """
    if len(text) > _CHARACTERS_MAX:
        raise InvalidSchemaError(f"schema: a DDL of more than {_CHARACTERS_MAX:,} characters")
    return _Parser(text).schema()


def _tokens(text: str) -> Iterator[tuple[str, str, int]]:
    """Yield the kind, text and position of each token."""
    for match in _TOKEN.finditer(text):
        if match.lastgroup != "space":
            yield match.lastgroup or "", match.group(), match.start()
    yield "end", "", len(text)


class _Parser:
    def __init__(self, text: str) -> None:
        self._following = _tokens(text)
        self._token = next(self._following)
        self._fields = 0
        self._depth = 1

    def schema(self) -> pa.StructType:
        fields = self._comma_separated(self._field)
        if self._token[0] != "end":
            self._refuse("a comma or the end")
        return pa.struct(fields)

    def _comma_separated(self, item: Callable[[], pa.Field]) -> list[pa.Field]:
        items = [item()]
        while self._accept(","):
            items.append(item())
        return items

    def _field(self) -> pa.Field:
        self._fields += 1
        check_count(self._fields)
        name = self._name()
        self._accept(":")
        kind = self._type(name)
        if self._accept("NOT"):
            self._expect("NULL")
        if self._accept("COMMENT"):
            self._take("text", "a text in quotes")
        return pa.field(name, kind)

    def _name(self) -> str:
        kind, token, _ = self._token
        if kind not in ("word", "quoted") or re.fullmatch(r"\d+[eE]\d+", token):
            self._refuse("a name (other characters than letters, digits and _ require backticks)")
        check_path(len(token), token)
        self._token = next(self._following)
        return token[1:-1].replace("``", "`") if kind == "quoted" else token

    def _type(self, field: str) -> pa.DataType:
        word = self._take("word", f"the type of {field}").upper()
        if word in ("ARRAY", "MAP", "STRUCT"):
            return self._nested(word, field)
        if word in ("DECIMAL", "DEC", "NUMERIC"):
            return self._decimal(field)
        if word in ("CHAR", "CHARACTER", "VARCHAR"):
            self._expect("(")
            self._number("a length")
            self._expect(")")
            return pa.string()
        if word not in _WORD_BY_WORD:
            hint = ": use TIMESTAMP" if word.startswith(("TIMESTAMP", "DATETIME")) else ""
            raise InvalidSchemaError(f"schema: field {field}: type {word[:40]} cannot be a column{hint}")
        return _WORD_BY_WORD[word]

    def _nested(self, word: str, field: str) -> pa.DataType:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidSchemaError(f"schema: field {field}: nested deeper than {MAX_DEPTH} levels")
        self._expect("<")
        if word == "STRUCT":
            if self._accept(">"):
                raise InvalidSchemaError(f"schema: field {field}: a struct needs at least one field")
            kind = pa.struct(self._comma_separated(self._field))
        elif word == "ARRAY":
            kind = pa.list_(pa.field("element", self._type(field)))
        else:
            if self._type(field) != pa.string():
                raise InvalidSchemaError(f"schema: field {field}: the keys of a MAP have to be STRING")
            self._expect(",")
            kind = pa.map_(pa.string(), self._type(field))
        self._expect(">")
        self._depth -= 1
        return kind

    def _decimal(self, field: str) -> pa.DataType:
        precision, scale = 10, 0
        if self._accept("("):
            precision = self._number("a precision")
            if self._accept(","):
                scale = self._number("a scale")
            self._expect(")")
        if not (1 <= precision <= _MAX_PRECISION and scale <= precision):
            raise InvalidSchemaError(
                f"schema: field {field}: DECIMAL({precision}, {scale}): the precision is 1 to {_MAX_PRECISION}, "
                "the scale 0 to the precision"
            )
        return pa.decimal128(precision, scale)

    def _number(self, what: str) -> int:
        if len(self._token[1]) > _DIGITS_MAX:
            self._refuse(f"{what} of at most {_DIGITS_MAX} digits")
        return int(self._take("number", what))

    def _accept(self, token: str) -> bool:
        """Consume the next token if it is `token`, and return whether it is."""
        kind, text, _ = self._token
        found = kind in ("word", "sign") and text.upper() == token
        if found:
            self._token = next(self._following)
        return found

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            self._refuse(token)

    def _take(self, kind: str, what: str) -> str:
        found, text, _ = self._token
        if found != kind:
            self._refuse(what)
        self._token = next(self._following)
        return text

    def _refuse(self, expected: str) -> NoReturn:
        kind, token, position = self._token
        got = "the end" if kind == "end" else repr(token[:40])
        raise InvalidSchemaError(f"schema: expected {expected} at character {position + 1}, got {got}")
