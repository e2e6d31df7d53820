"""Cuts a stream of bytes into batches of lines, which are large for fast input and small for slow input."""

import io
import select
from collections.abc import Iterator
from typing import BinaryIO

BATCH_BYTES = 16 * 1024 * 1024
"""About the largest batch: a few MiB per partition make a good segment file."""

_LINGER_S = 0.05
"""The time to wait for more input before a batch that is not full is sent (Kafka's linger.ms)."""

_READ_BYTES = 1 << 20


def line_batches(source: BinaryIO) -> Iterator[list[bytes]]:
    """Yield non-empty lists of whole lines without their ends (\\n or \\r\\n), in order.

    A last line without an end counts. A line longer than BATCH_BYTES makes a longer batch.
    """
    rest = b""
    batch_bytes = BATCH_BYTES
    while True:
        parts, size, ended = [rest], len(rest), False
        while size < batch_bytes and (len(parts) == 1 or _more_within(source, _LINGER_S)):
            data = source.read1(_READ_BYTES) if isinstance(source, io.BufferedReader) else source.read(_READ_BYTES)
            if not data:
                ended = True
                break
            parts.append(data)
            size += len(data)
        lines = b"".join(parts).split(b"\n")
        rest = b"" if ended else lines.pop()
        if ended and not lines[-1]:
            lines.pop()
        if len(rest) >= batch_bytes:
            batch_bytes = 2 * len(rest)  # read more of a long line before the next join
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
        if ended:
            return


def _more_within(source: BinaryIO, seconds: float) -> bool:
    try:
        return bool(select.select([source], [], [], seconds)[0])
    except (OSError, ValueError, TypeError):  # without a file descriptor, all of it is in memory
        return True
