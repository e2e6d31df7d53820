"""Option `--from`: the position where a read starts.

earliest | latest | 1234 (an offset) | -10 (the last ten of each partition) | 2026-01-31T12:00:00Z | @1769860800000
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.errors import OffsetOutOfRangeError
from spark_log.text import parse_time_ms

_INTEGER = re.compile(r"-?[0-9]{1,19}")
_MILLISECONDS = re.compile(r"@[0-9]{1,15}")


@dataclass(frozen=True)
class Earliest:
    pass


@dataclass(frozen=True)
class Latest:
    pass


@dataclass(frozen=True)
class AtOffset:
    offset: int


@dataclass(frozen=True)
class Last:
    """The last `count` offsets of each partition."""

    count: int


@dataclass(frozen=True)
class AtTimestamp:
    timestamp_ms: int


Position = Earliest | Latest | AtOffset | Last | AtTimestamp


def parse_position(text: str) -> Position:
    """Return the position of a text. A time without a zone is UTC. Raises ValueError that says what is expected."""
    word = text.strip()
    if word.lower() == "earliest":
        return Earliest()
    if word.lower() == "latest":
        return Latest()
    if _INTEGER.fullmatch(word):
        number = int(word)
        return AtOffset(number) if number >= 0 else Last(-number)
    if _MILLISECONDS.fullmatch(word):
        return AtTimestamp(int(word[1:]))
    try:
        return AtTimestamp(parse_time_ms(word))
    except ValueError:
        raise ValueError(
            f"expected earliest, latest, an offset, -N (the last N), a time as 2026-01-31T12:00:00Z, or @milliseconds;"
            f" got {text!r}"
        ) from None


def start_offset(
    position: Position, partition: str, limits: tuple[int, int], at_timestamps: Mapping[str, int | None]
) -> int:
    """Return the first offset to read of `partition` with these limits (log start offset, high watermark).

    `at_timestamps` has the first offset with the requested timestamp, or None if every record is older. Raises
    OffsetOutOfRangeError for an offset outside the limits.
    """
    low, high = limits
    match position:
        case Earliest():
            return low
        case Latest():
            return high
        case Last(count):
            return max(low, high - count)
        case AtTimestamp():
            found = at_timestamps[partition]
            return high if found is None else found
        case AtOffset(offset):
            if not low <= offset <= high:
                raise OffsetOutOfRangeError(
                    f"--from: {partition} has no offset {offset}: it starts at {low} and ends before {high}"
                )
            return offset
