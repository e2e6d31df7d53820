"""Formats counts, sizes, durations and times for people."""

from datetime import UTC, datetime

_DURATIONS = (("day", 86_400_000), ("hour", 3_600_000), ("minute", 60_000), ("second", 1_000))


def count_of(count: int, what: str, plural: str | None = None) -> str:
    """`1 record`, `2,000 records`; `plural` where it is not formed with an s."""
    return f"{count:,} {what if count == 1 else plural or f'{what}s'}"


def bytes_of(size: int) -> str:
    """`999 B`, `1.5 KiB`, `2.0 GiB`."""
    if size < 1024:
        return f"{size} B"
    power = min((size.bit_length() - 1) // 10, 4)
    return f"{size / 1024**power:.1f} {('KiB', 'MiB', 'GiB', 'TiB')[power - 1]}"


def exact_duration_of(milliseconds: int) -> str:
    """`7 days`, `36 hours`, `1 second`, `1,500 ms`: the largest unit that divides it."""
    for unit, size in _DURATIONS:
        if milliseconds > 0 and milliseconds % size == 0:
            return count_of(milliseconds // size, unit)
    return f"{milliseconds:,} ms"


def time_of(wall_ms: int) -> str:
    """`2026-01-31T12:00:00.000Z`."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
