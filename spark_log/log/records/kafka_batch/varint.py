"""Reads and writes zigzag varints, as in Protocol Buffers, one at a time or many at once."""

from typing import Any

import numpy as np
import numpy.typing as npt

Longs = npt.NDArray[np.int64]
_Words = npt.NDArray[np.uint64]

WINDOW = 8
"""Bytes of padding that must follow the data, so that a window of this size can be read at each position."""

READ_BYTES_MAX = WINDOW
"""A longer varint is refused. The numbers of a batch take at most 7 bytes, except timestamps that no topic accepts."""

_STOP = np.uint64(0x8080808080808080)
_BYTE_MAX = 10


class Varints:
    """Reads the varints at many positions of `data`, which ends with WINDOW bytes of padding."""

    def __init__(self, data: bytes) -> None:
        self.end = len(data) - WINDOW
        """The position after the last byte of data."""
        self._windows: _Words = np.ndarray((self.end + 1,), "<u8", data, strides=(1,))

    def read(self, positions: Longs, bad: npt.NDArray[np.bool_]) -> tuple[Longs, Longs]:
        """Return the number at each position, and the position after it.

        Sets `bad` where a number has more than READ_BYTES_MAX bytes; the position after it is then the given one.
        Positions after the end are read as if they were the end.
        """
        words = self._windows[np.minimum(positions, self.end)]
        stops = ~words & _STOP
        np.logical_or(bad, stops == 0, out=bad)
        lowest = stops & (~stops + np.uint64(1))
        below = lowest - np.uint64(1)
        sizes = (np.bitwise_count(below).astype(np.int64) + 1) >> 3
        return unzigzag(_joined(words & below)), positions + np.where(stops == 0, 0, sizes)


def _joined(words: _Words) -> _Words:
    """Return the seven low bits of each byte, concatenated."""
    words = words & np.uint64(0x7F7F7F7F7F7F7F7F)
    words = (words & np.uint64(0x007F007F007F007F)) | ((words & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    words = (words & np.uint64(0x00003FFF00003FFF)) | ((words & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (words & np.uint64(0x0FFFFFFF)) | ((words & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


def unzigzag(numbers: _Words) -> Longs:
    """Decode zigzag numbers: 0, 1, 2, 3 become 0, -1, 1, -2."""
    return ((numbers >> np.uint64(1)) ^ (~(numbers & np.uint64(1)) + np.uint64(1))).view(np.int64)


def zigzag(numbers: Longs) -> _Words:
    """Encode numbers as zigzag numbers, the inverse of `unzigzag`."""
    return ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)


def read_varint(data: Any, position: int, end: int) -> tuple[int, int]:
    """Return the number at a position, and the position after it. Raise ValueError if the number does not end before
    `end`, or has more than READ_BYTES_MAX bytes.
    """
    shift = value = 0
    for at in range(position, min(end, position + READ_BYTES_MAX)):
        byte = data[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at + 1
        shift += 7
    raise ValueError("a varint that does not end")


def varint(number: int) -> bytes:
    """Return the zigzag varint of one number."""
    value = (number << 1) ^ (number >> 63)
    if value < 0x80:
        return _ONE_BYTE[value]
    found = bytearray()
    while value >= 0x80:
        found.append((value & 0x7F) | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


_ONE_BYTE = [bytes([value]) for value in range(0x80)]
_LIMITS = np.array([1 << (7 * size) for size in range(1, _BYTE_MAX)], np.uint64)


def varint_sizes(zigzagged: _Words) -> Longs:
    """Return the size in bytes of each varint, shape (numbers,)."""
    largest = int(zigzagged.max(initial=np.uint64(0)))
    if largest < 0x80:
        return np.ones(len(zigzagged), np.int64)
    return np.searchsorted(_LIMITS[: largest.bit_length() // 7 + 1], zigzagged, side="right") + 1


def put_varints(data: npt.NDArray[np.uint8], positions: Longs, zigzagged: _Words, sizes: Longs) -> None:
    """Write each varint, of `sizes` bytes, at its position in `data`."""
    for number in range(int(sizes.max(initial=0))):
        longer = sizes > number + 1
        byte = (zigzagged & np.uint64(0x7F)).astype(np.uint8) | (longer.astype(np.uint8) << np.uint8(7))
        data[positions + number] = byte
        if not longer.any():
            return
        positions, zigzagged, sizes = positions[longer], zigzagged[longer] >> np.uint64(7), sizes[longer]
