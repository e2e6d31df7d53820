"""Text of clients for terminals and logs: control characters are escaped, which terminals would obey."""

import logging
import re


def printable(text: str, keep: str = "") -> str:
    """The text with every character escaped that is not printable, such as the beginning of an escape sequence, a line
    break or a change of direction; except those of `keep`.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def printable_json(text: str) -> str:
    """A JSON document with the characters of its strings escaped that are not printable. It means the same."""
    return text if text.isprintable() else re.sub(r"[^\n -~]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class PrintableFormatter(logging.Formatter):
    """One line for each message; a traceback has several."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:
        return printable(super().formatException(ei), keep="\n")
