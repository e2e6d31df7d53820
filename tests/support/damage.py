"""Damage to segment files without notice to the log, in a local log dir or in object storage."""

import random
from collections.abc import Callable, Mapping, Sequence

import pyarrow.parquet as pq
from pyarrow import BufferReader, fs

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.log_dir import LogDirInfo, segment_path
from spark_log.cluster.topics import Topic
from spark_log.log.records.segment_footer import TRAILER_BYTES, footer_length
from spark_log.log.segments.slices import Slice
from spark_log.maintenance.client_log import ClientLog
from tests.support.records import ranges_of

_KEY, _VALUE = 2, 3


class StoredFile:
    """A segment's file in one log dir, accessed directly in its storage."""

    def __init__(self, info: LogDirInfo, piece: Slice) -> None:
        self._fs, root = fs.FileSystem.from_uri(info.uri)
        self.name = piece.name
        self.broker_id = info.broker_id
        self._path = f"{root}/{segment_path(piece.folder, piece.partition, piece.name)}"

    def __repr__(self) -> str:
        return f"StoredFile({self._path!r})"

    def read(self) -> bytes | None:
        """The content; None if the file does not exist."""
        try:
            with self._fs.open_input_file(self._path) as file:
                content: bytes = file.read()
        except FileNotFoundError:
            return None
        return content

    def write(self, content: bytes | None) -> None:
        """Replace the content; None removes the file."""
        if self.read() is not None:
            self._fs.delete_file(self._path)  # never in place: a reader may have it mapped into memory
        if content is not None:
            with self._fs.open_output_stream(self._path) as file:
                file.write(content)

    def damage(self, kind: str) -> None:
        content = self.read()
        assert content is not None
        self.write(DAMAGES[kind](content))


def flipped_in_page(content: bytes, column: int = _VALUE) -> bytes:
    """The content with one bit flipped in the middle of the column's pages, in the last row group; unchanged without
    records.
    """
    metadata = pq.read_metadata(BufferReader(content))
    if not metadata.num_row_groups:
        return content
    chunk = metadata.row_group(metadata.num_row_groups - 1).column(column)
    return _flipped(content, chunk.data_page_offset + chunk.total_compressed_size * 3 // 4)


def _flipped(content: bytes, at: int) -> bytes:
    turned = bytearray(content)
    turned[at] ^= 1 << random.Random(at).randrange(8)
    return bytes(turned)


def flipped_in_name(content: bytes, column: str = "value") -> bytes:
    """The content with one bit flipped in the column's name in the footer: Parquet readers see another column."""
    footer = len(content) - TRAILER_BYTES - footer_length(content[-TRAILER_BYTES:], "")
    at = content.index(bytes([len(column)]) + column.encode(), footer) + 1
    return content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :]  # not the bit that only changes the case


DAMAGES: Mapping[str, Callable[[bytes], bytes | None]] = {
    "missing": lambda content: None,
    "empty": lambda content: b"",
    "truncated": lambda content: content[: len(content) // 2],
    "longer": lambda content: content + b"\0",
    "zeroed": lambda content: bytes(len(content)),
    "bit in a page": flipped_in_page,
    "bit in the footer": lambda content: _flipped(content, len(content) - 100),
    "bit in a column's name": flipped_in_name,
}


def replicas_of(cluster: Cluster, log: ClientLog, topic: Topic, rack: str | None = None) -> list[list[StoredFile]]:
    """The files of each segment of the topic, in the order in which a reader in `rack` tries them."""
    infos = cluster.log_dirs()
    slices: Sequence[Slice] = log.plan(ranges_of(log, topic), rack=rack).slices
    return [[StoredFile(infos[log_dir_id], piece) for log_dir_id in piece.log_dir_ids] for piece in slices]
