"""Parses and formats config values by their types. No rule here depends on the name of a config.

A `ValueType` refuses texts that Kafka would round, trim or read in two ways (" 5 ", "1e9", "+5", NaN), so that the
stored text has one meaning. `parse(show(value))` is `value`. `show(parse(text))` may spell a value differently: "TRUE"
becomes "true", "007" becomes "7".
"""

import decimal
import math
import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

INT32_MAX = 2**31 - 1
INT64_MAX = 2**63 - 1
DAY_MS = 24 * 60 * 60 * 1000
LEASE_MS_MAX = 600_000
"""The longest lease of a coordinator, a controller or a broker."""
KIB, MIB, GIB = 2**10, 2**20, 2**30

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_DECIMAL = re.compile(r"[0-9]{1,20}(\.[0-9]{1,20})?|\.[0-9]{1,20}")
_NOT_STORED = re.compile("[\0\ud800-\udfff]")


def can_be_stored(text: str) -> bool:
    """Return whether the metadata store can keep the text. PostgreSQL stores neither NUL nor a lone surrogate."""
    return _NOT_STORED.search(text) is None


class ValueType(ABC):
    """The type of a config's values. `kind` is Kafka's name of the type (long, int, double, boolean, string, list)."""

    kind: str

    @property
    @abstractmethod
    def expected(self) -> str:
        """The valid values, as a phrase that completes "expected …"."""

    @abstractmethod
    def parse(self, text: str) -> Any:
        """Return the typed value of `text`. Raise ValueError if it is invalid, with a reason where `expected` does not
        explain it.
        """

    def show(self, value: Any) -> str:
        """Return the text that `parse` would read as `value`."""
        return str(value)


@dataclass(frozen=True)
class Integer(ValueType):
    """A whole number in decimal digits. least <= value <= most."""

    least: int
    most: int = INT64_MAX
    kind: str = "long"

    @property
    def expected(self) -> str:
        if self.most == INT64_MAX:
            return f"a whole number of 64 bits, at least {self.least}"
        return f"a whole number from {self.least} to {self.most}"

    def parse(self, text: str) -> int:
        if not _INTEGER.fullmatch(text) or not self.least <= int(text) <= self.most:
            raise ValueError
        return int(text)


@dataclass(frozen=True)
class Decimal(ValueType):
    """A finite decimal number without a sign or an exponent. least <= value <= most."""

    least: float
    most: float
    kind: str = "double"

    @property
    def expected(self) -> str:
        return f"a decimal number from {self.least:g} to {self.most:g}"

    def parse(self, text: str) -> float:
        if not _DECIMAL.fullmatch(text):
            raise ValueError
        value = float(text)
        if not math.isfinite(value) or not self.least <= value <= self.most:
            raise ValueError
        return value

    def show(self, value: Any) -> str:
        return format(decimal.Decimal(repr(value)), "f")  # str() would write 0.00001 with an exponent


@dataclass(frozen=True)
class Boolean(ValueType):
    """true or false, in upper or lower case, as in Kafka."""

    kind: str = "boolean"

    @property
    def expected(self) -> str:
        return "true or false"

    def parse(self, text: str) -> bool:
        try:
            return {"true": True, "false": False}[text.lower()]
        except KeyError:
            raise ValueError from None

    def show(self, value: Any) -> str:
        return "true" if value else "false"


@dataclass(frozen=True)
class Choice(ValueType):
    """One of `words`. `aliases` has pairs of another spelling and its word, `refused` pairs of a word that is refused
    and the reason.
    """

    words: tuple[str, ...]
    aliases: tuple[tuple[str, str], ...] = ()
    refused: tuple[tuple[str, str], ...] = ()
    kind: str = "string"

    @property
    def expected(self) -> str:
        return "one of " + ", ".join(self.words + tuple(alias for alias, _ in self.aliases))

    def parse(self, text: str) -> str:
        word = dict(self.aliases).get(text, text)
        if word not in self.words:
            raise ValueError(dict(self.refused).get(word, ""))
        return word


@dataclass(frozen=True)
class WordSet(ValueType):
    """One or more words, separated by commas, in any order. As in Kafka, a word may be repeated."""

    words: tuple[str, ...]
    kind: str = "list"

    @property
    def expected(self) -> str:
        return "one or more of " + ", ".join(self.words) + ", separated by commas"

    def parse(self, text: str) -> frozenset[str]:
        given = frozenset(word.strip(" ") for word in text.split(","))
        if not given <= set(self.words):
            raise ValueError
        return given

    def show(self, value: Any) -> str:
        return ",".join(sorted(value))


@dataclass(frozen=True)
class Text(ValueType):
    """Any text that the metadata store can keep. `meaning` describes the text for error messages."""

    meaning: str
    kind: str = "string"

    @property
    def expected(self) -> str:
        return self.meaning

    def parse(self, text: str) -> str:
        if not can_be_stored(text):
            raise ValueError("NUL and lone surrogates cannot be stored")
        return text
