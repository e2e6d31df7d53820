"""Tracks the position of a search in each partition, and makes the token that continues the search there. Pure."""

import base64
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import msgspec

from spark_log.errors import InvalidOptionError
from spark_log.ids import OffsetRange
from spark_log.log.segments.slices import Positions

_TOKEN_BYTES_MAX, _TOKEN_LENGTH_MAX = 1 << 20, 20_000
"""The maximum bytes of a token's JSON, and characters of a token, which is a part of an address."""


@dataclass
class Position:
    """The position of a search.

    `first` has the offset by partition where the search began, and `next` where it is now. In a forward search, the
    next record has an offset >= next. In a backward search, it has an offset < next. `window` is the number of offsets
    of the next round, or None for the default.
    """

    topic_id: int
    backwards: bool
    first: Mapping[int, int]
    next: dict[int, int]
    limits: Mapping[int, Positions] = field(default_factory=dict)
    window: int | None = None

    @classmethod
    def begin(
        cls, topic_id: int, backwards: bool, first: Mapping[int, int], limits: Mapping[int, Positions]
    ) -> "Position":
        """Return the position at these offsets, or at the nearest readable offsets."""
        inside = {p: _within(at, limits[p]) for p, at in first.items()}
        return cls(topic_id, backwards, inside, dict(inside), limits)

    def stay_within(self, limits: Mapping[int, Positions]) -> None:
        """Move into the range of readable offsets, since retention may have removed the next records."""
        self.next = {p: _within(at, limits[p]) for p, at in self.next.items()}
        self.limits = limits

    def move(self, partition: int, offset: int) -> None:
        self.next[partition] = offset
        self.window = None

    def unread(self) -> list[int]:
        """Return the partitions with remaining offsets."""
        return [p for p in sorted(self.next) if self._left(p).size > 0]

    def gone(self, partition: int) -> int:
        """Return the number of offsets that the search has passed."""
        return abs(self.next[partition] - self.first[partition])

    def window_of(self, partition: int, length: int) -> OffsetRange:
        """Return the next offsets, at most `length`."""
        start, end = self._left(partition)
        if self.backwards:
            return OffsetRange(max(start, end - length), end)
        return OffsetRange(start, min(end, start + length))

    def done(self, partition: int) -> float:
        """Return the part of the partition's offsets that the search has passed, from 0 to 1."""
        left = self._left(partition).size
        gone = self.gone(partition)
        return 1.0 if left <= 0 else gone / (gone + left)

    def _left(self, partition: int) -> OffsetRange:
        here, limits = self.next[partition], self.limits[partition]
        start, end = (limits.log_start_offset, here) if self.backwards else (here, limits.high_watermark)
        return OffsetRange(start, end)

    @property
    def token(self) -> str | None:
        """The text for the address of the next page, or None if there are so many partitions that it would be too long.

        The token has the topic's id, the direction, the window, the partitions as differences, and the start offset and
        progress of each partition.
        """
        partitions = sorted(self.next)
        steps = [after - before for before, after in pairwise([0, *partitions])]
        gone = [self.next[p] - self.first[p] for p in partitions]
        value = (self.topic_id, self.backwards, self.window, steps, [self.first[p] for p in partitions], gone)
        text = base64.urlsafe_b64encode(zlib.compress(msgspec.json.encode(value))).decode().rstrip("=")
        return text if len(text) <= _TOKEN_LENGTH_MAX else None

    @classmethod
    def of_token(cls, token: str, topic_id: int, limits: Mapping[int, Positions]) -> "Position":
        """Return the position of a token. Raises InvalidOptionError if the token is damaged or of another topic."""
        try:
            packed = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
            text = zlib.decompressobj().decompress(packed, _TOKEN_BYTES_MAX)
            found = msgspec.json.decode(text, type=tuple[int, bool, int | None, list[int], list[int], list[int]])
            topic, backwards, window, steps, starts, gone = found
            first = dict(zip(accumulate(steps), starts, strict=True))
            after = {p: at + moved for (p, at), moved in zip(first.items(), gone, strict=True)}
        except (ValueError, zlib.error):
            raise InvalidOptionError("token: not a position that a search has given") from None
        if topic != topic_id or not first.keys() <= limits.keys():
            raise InvalidOptionError("token: the topic was deleted and created again: start a new search")
        inside = {p: _within(at, limits[p]) for p, at in after.items()}
        return cls(topic_id, backwards, first, inside, limits, None if window is None else max(1, window))


def _within(offset: int, limits: Positions) -> int:
    return min(max(offset, limits.log_start_offset), limits.high_watermark)
