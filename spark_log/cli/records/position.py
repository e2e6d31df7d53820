"""Option `--from`: the position where a read starts.

earliest | latest | 1234 (an offset) | -10 (the last ten of each partition) | 2026-01-31T12:00:00Z | @1769860800000
"""

from spark_log.errors import OffsetOutOfRangeError
from spark_log.groups.group_operations import Exactly, ResetTo, ShiftBy, parse_reset, reset_offset
from spark_log.log.segments.slices import Positions


def parse_position(text: str) -> ResetTo:
    """Return the position of a text. A time without a zone is UTC. A shift is negative, from the high watermark. Raises
    ValueError that says what is expected.
    """
    try:
        position = parse_reset(text)
    except ValueError:
        position = None
    if position is None or (isinstance(position, ShiftBy) and position.records >= 0):
        raise ValueError(
            f"expected earliest, latest, an offset, -N (the last N), a time as 2026-01-31T12:00:00Z, or @milliseconds;"
            f" got {text!r}"
        )
    return position


def start_offset(position: ResetTo, partition: str, limits: Positions, at_time: int | None) -> int:
    """Return the first offset to read of `partition` with these limits.

    `at_time` is the first offset with the requested timestamp, or None if every record is older. Raises
    OffsetOutOfRangeError for an offset outside the limits.
    """
    low, high = limits.log_start_offset, limits.high_watermark
    if isinstance(position, Exactly) and not low <= position.offset <= high:
        raise OffsetOutOfRangeError(
            f"--from: {partition} has no offset {position.offset}: it starts at {low} and ends before {high}"
        )
    return reset_offset(position, limits, high, at_time)
