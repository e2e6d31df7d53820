"""Converts the text of a single option to a value, or raises InvalidOptionError with its name and text."""

import re
from collections.abc import Mapping

from spark_log.errors import InvalidOptionError, redact
from spark_log.text import parse_bytes, parse_time_string_ms

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
"""Texts that Java's parseLong accepts, apart from the range."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")


class OptionText:
    """The options of a read or write. Names are case-insensitive; messages use the documentation's spelling."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._texts = {str(key).lower(): str(value) for key, value in options.items() if value is not None}

    def text(self, name: str) -> str | None:
        return self._texts.get(name.lower())

    def names_after(self, prefix: str) -> list[str]:
        """Return the rest of each key that begins with `prefix`, sorted, in lower case."""
        return sorted(key.removeprefix(prefix) for key in self._texts if key.startswith(prefix))

    def refuse(self, name: str, message: str) -> None:
        if self.text(name) is not None:
            raise InvalidOptionError(message)

    def word(self, name: str, alias: str | None = None) -> str | None:
        """Return the trimmed text of the option `name` or its `alias`, or None without both. Raises InvalidOptionError
        if it is empty, has control characters or lone surrogates, or if the two options differ.
        """
        texts: dict[str, str] = {}
        for key in (name, alias) if alias else (name,):
            text = self.text(key)
            if text is not None:
                texts[key] = text.strip()
                if not texts[key] or _CONTROL.search(texts[key]):
                    raise InvalidOptionError(
                        f"Option '{key}' must be a text that is not empty and has no control characters, "
                        f"got {redact(repr(text))}"
                    )
        if len(set(texts.values())) > 1:
            raise InvalidOptionError(
                " and ".join(f"option '{key}' is {redact(repr(value))}" for key, value in texts.items())
                + ": they are aliases, set one of them"
            )
        return next(iter(texts.values()), None)

    def integer(self, name: str, most: int) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not INTEGER.fullmatch(text) or not -most - 1 <= int(text) <= most:
            raise InvalidOptionError(f"Option '{name}' must be a whole number up to {most}, got {text!r}")
        return int(text)

    def positive(self, name: str, shown: str, most: int) -> int | None:
        number = self.integer(name, most)
        if number is not None and number <= 0:
            raise InvalidOptionError(f"{shown} must be positive, got {number}")
        return number

    def one_of(self, name: str, words: tuple[str, ...], default: str) -> str:
        text = self.text(name)
        if text is None:
            return default
        if text.strip().lower() not in words:
            raise InvalidOptionError(f"Option '{name}' must be {' or '.join(words)}, got {text!r}")
        return text.strip().lower()

    def boolean(self, name: str, default: bool) -> bool:
        text = self.text(name)
        if text is not None and text.lower() not in ("true", "false"):
            raise InvalidOptionError(f"Option '{name}' must be true or false, got {text!r}")
        return default if text is None else text.lower() == "true"

    def bytes(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        try:
            return parse_bytes(text)
        except ValueError as error:
            raise InvalidOptionError(f"Option '{name}': {error}") from None

    def duration_ms(self, name: str, default_ms: int) -> int:
        text = self.text(name)
        if text is None:
            return default_ms
        try:
            return parse_time_string_ms(text)
        except ValueError as error:
            raise InvalidOptionError(f"Option '{name}': failed to parse time string {text!r}. {error}") from None
