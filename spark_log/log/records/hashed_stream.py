"""Counts and hashes the bytes between the Parquet writer and the sink, and seals the footer."""

from typing import Protocol

import xxhash

from spark_log.log.records import segment_footer


class Sink(Protocol):
    """Receives the bytes of a file, in order."""

    def write(self, data: bytes, /) -> object: ...


class HashedStream:
    """A file-like object that passes bytes to a sink, and counts and hashes them.

    Bytes written after `hold` are kept until `release`, which inserts the footer's digest and passes them on.
    """

    def __init__(self, sink: Sink) -> None:
        self.bytes_written = 0
        self.closed = False
        self._sink: Sink | None = sink
        self._hash = xxhash.xxh3_128()
        self._held: list[bytes] | None = None

    def write(self, data: bytes) -> int:
        if self._held is not None:
            self._held.append(bytes(data))
        else:
            assert self._sink is not None, "detached"
            self._sink.write(data)
            self._hash.update(data)
            self.bytes_written += len(data)
        return len(data)

    def hold(self) -> None:
        self._held = []

    def release(self) -> None:
        closing = b"".join(self._held or [])
        self._held = None
        self.write(segment_footer.sealed(closing))

    def detach(self) -> None:
        """Drop the reference to the sink after the last byte. Arrow holds this stream where the garbage collector does
        not see it, so a sink that refers to its Parquet writer would never be freed.
        """
        self._sink = None

    def checksum(self) -> str:
        return self._hash.hexdigest()

    def tell(self) -> int:
        return self.bytes_written + sum(map(len, self._held or []))

    def flush(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True
