"""Spark's time strings ("15m", "1h", "30s", "250") in milliseconds."""

import re

_TIME = re.compile(r"([0-9]{1,19})([a-z]*)")
_UNIT_US = {
    "us": 1,
    "ms": 1_000,
    "": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "min": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
}


def parse_duration_ms(text: str) -> int:
    """Milliseconds >= 0, cut to whole ones; without a suffix the number is milliseconds (JavaUtils.timeStringAsMs).

    Raises ValueError with Spark's explanation.
    """
    match = _TIME.fullmatch(text.strip().lower())
    if match is None or match[2] not in _UNIT_US:
        raise ValueError(
            "Time must be specified as seconds (s), milliseconds (ms), microseconds (us), minutes (m or min), hour "
            "(h), or day (d). E.g. 50s, 100ms, or 250us."
        )
    duration_ms = int(match[1]) * _UNIT_US[match[2]] // 1_000
    if duration_ms >= 2**63:
        raise ValueError("Time must be below 2^63 ms.")
    return duration_ms
