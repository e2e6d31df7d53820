"""Parses resets of offsets."""

import re

from spark_log.groups.group_operations import AtTime, Earliest, Exactly, Latest, ResetTo, ShiftBy
from spark_log.text import parse_time_ms

EXPECTED = "earliest, latest, an offset, +N, -N, a time such as 2026-01-31T12:00:00Z, or @milliseconds"

_SHIFT = re.compile(r"[+-][0-9]{1,18}")
_OFFSET = re.compile(r"[0-9]{1,19}")
_MILLISECONDS = re.compile(r"@[0-9]{1,15}")


def parse_reset(text: str) -> ResetTo:
    """Parse the reset that a user names, in one of the forms of EXPECTED. A time without a zone is UTC. Raises
    ValueError for other texts.
    """
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if _SHIFT.fullmatch(word):
        return ShiftBy(int(word))
    if _OFFSET.fullmatch(word):
        return Exactly(int(word))
    if _MILLISECONDS.fullmatch(word):
        return AtTime(int(word[1:]))
    try:
        return AtTime(parse_time_ms(word))
    except ValueError:
        raise ValueError(f"expected {EXPECTED}; got {text!r}") from None
