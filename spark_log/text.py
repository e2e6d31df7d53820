"""Formats and parses counts, sizes, intervals and times for people.

It also escapes control characters in text that comes from clients, because terminals would obey them.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

_DURATIONS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))

_MILLISECOND_US = 1_000
_NAMED_UNITS_US = {
    "millisecond": _MILLISECOND_US,
    "second": 1_000_000,
    "minute": 60_000_000,
    "hour": 3_600_000_000,
    "day": 86_400_000_000,
    "week": 604_800_000_000,
}
_NAMED_UNITS_US |= {f"{name}s": size_us for name, size_us in _NAMED_UNITS_US.items()}
_SHORT_UNITS_US = {
    "us": 1,
    "ms": _MILLISECOND_US,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}
_INTERVAL = re.compile(r"([0-9]{1,19}) *([a-z]*)")
_SIZE = re.compile(r"([0-9]{1,15})\s*(?:([KMGT])(i?))?B?", re.IGNORECASE)


def count_of(count: int, what: str, plural: str | None = None) -> str:
    """Return text such as `1 record` or `2,000 records`. Give `plural` if it is not formed with an s."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def some_of(names: Sequence[str]) -> str:
    """Return the first five names, and the number of the others."""
    shown = ", ".join(names[:5])
    return shown if len(names) <= 5 else f"{shown} and {len(names) - 5:,} more"


def bytes_of(size: int) -> str:
    """Return text such as `999 B`, `1.5 KiB` or `2.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def rate_of(count: int, seconds: float) -> str:
    """Return text such as `, 2,000 records/s`. It is empty for less than 1,000 records or less than a second, because
    such rates mainly measure the start of a program.
    """
    return f", {count / seconds:,.0f} records/s" if seconds >= 1 and count >= 1_000 else ""


def duration_of(milliseconds: int) -> str:
    """Return text such as `350 ms`, `12 s`, `90 min`, `5 h` or `3 d`, rounded down to a whole number."""
    for unit, size, most in (("ms", 1, 1_000), ("s", 1_000, 120), ("min", 60_000, 120), ("h", 3_600_000, 48)):
        if milliseconds < size * most:
            return f"{milliseconds // size} {unit}"
    return f"{milliseconds // 86_400_000:,} d"


def is_unlimited(config: str) -> bool:
    """Return whether this value of a topic config means no limit: -1, or the largest signed number of 64 bits."""
    return config in ("-1", "9223372036854775807")


def exact_duration_of(milliseconds: int) -> str:
    """Return text such as `7 days`, `36 hours`, `1 second` or `1,500 ms`, in the largest unit that divides it."""
    for unit, size in _DURATIONS:
        if milliseconds > 0 and milliseconds % size == 0:
            return count_of(milliseconds // size, unit)
    return f"{milliseconds:,} ms"


def parse_time_ms(text: str) -> int:
    """Return the milliseconds since 1970 of an ISO 8601 time (2026-01-31T12:00:00Z), which is UTC if it has no zone.

    Raise ValueError for other text.
    """
    moment = datetime.fromisoformat(text)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def time_of(wall_ms: int) -> str:
    """Return text such as `2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def parse_interval_ms(text: str) -> int:
    """Return the milliseconds of an interval such as `10 minutes`, `10m` or `500 ms`, rounded down.

    Raise ValueError for other text.
    """
    return _interval_ms(text.strip().lower(), _NAMED_UNITS_US | _SHORT_UNITS_US)


def parse_sql_interval_ms(text: str) -> int:
    """Return the milliseconds of an interval in Spark SQL's syntax, such as `10 minutes`.

    Raise ValueError for other text.
    """
    if text.count(" ") != 1:
        raise ValueError(f"expected an interval such as '10 minutes', got {text!r}")
    return _interval_ms(text, _NAMED_UNITS_US)


def parse_time_string_ms(text: str) -> int:
    """Return the milliseconds of a time string of Spark's settings: `15m`, `1h`, `250` (ms), rounded down.

    Raise ValueError for other text, with the message of Spark's JavaUtils.timeStringAsMs, and for 2^63 ms or more.
    """
    try:
        if " " in text.strip():
            raise ValueError
        duration_ms = _interval_ms(text.strip().lower(), {**_SHORT_UNITS_US, "": _MILLISECOND_US}, 19)
    except ValueError:
        raise ValueError(
            "Time must be specified as seconds (s), milliseconds (ms), microseconds (us), minutes (m or min), hour "
            "(h), or day (d). E.g. 50s, 100ms, or 250us."
        ) from None
    if duration_ms >= 2**63:
        raise ValueError("Time must be below 2^63 ms.")
    return duration_ms


def parse_bytes(text: str) -> int:
    """Return the bytes of `1000`, `50MB` (10^6 each) or `50MiB` (2^20 each). Raise ValueError for 0 and other text."""
    match = _SIZE.fullmatch(text.strip())
    size = 0
    if match is not None:
        unit = 1024 if match[3] else 1000
        size = int(match[1]) * unit ** (" KMGT".index((match[2] or " ").upper()))
    if size < 1:
        raise ValueError(f"expected bytes such as 50MB or 64MiB, got {text!r}")
    return size


def _interval_ms(text: str, units_us: Mapping[str, int], digits_max: int = 9) -> int:
    match = _INTERVAL.fullmatch(text)
    if match is None or match[2] not in units_us or len(match[1]) > digits_max:
        raise ValueError(f"expected an interval such as '10 minutes', got {text!r}")
    return int(match[1]) * units_us[match[2]] // _MILLISECOND_US


def printable(text: str, keep: str = "") -> str:
    """Return the text with every character escaped that is neither printable nor in `keep`.

    Escaped are, for example, the beginning of an escape sequence, a line break, or a change of the text's direction.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


def printable_json(text: str) -> str:
    """Return the JSON document with unprintable characters in its strings escaped. Its value does not change."""
    return text if text.isprintable() else re.sub(r"[^\n -~]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    char = found[0]
    if char.isprintable():
        return char
    units = char.encode("utf-16-be", errors="surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))


class PrintableFormatter(logging.Formatter):
    """Formats a message as one line, and a traceback as several, with unprintable characters escaped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return printable(super().formatMessage(record))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:
        return printable(super().formatException(ei), keep="\n")
