"""Encodes and decodes the deletion vectors of Delta tables: for each file, the rows that readers leave out. Pure.

The file of a commit's vectors has a version byte, and then for each vector its size (4 bytes, big-endian), its content,
and the CRC-32 of the content (big-endian). The content is a magic number and a Roaring bitmap of 64 bits in its
portable format (Delta's protocol, "Deletion Vector Format").
"""

import base64
import struct
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from spark_log.errors import CorruptRecordError

Mask = npt.NDArray[np.bool_]

_VERSION = b"\x01"
_MAGIC = struct.pack("<I", 1681511377)
_B85 = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
_Z85 = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


@dataclass(frozen=True)
class Vector:
    """The place of a vector: the file with this uuid in the table's folder, from the byte `offset` on. `bytes` is the
    size of its content, `count` the number of rows that readers leave out.
    """

    file: uuid.UUID
    offset: int
    bytes: int
    count: int

    @property
    def name(self) -> str:
        """Return the name of the vector's file."""
        return file_name(self.file)

    def descriptor(self) -> dict[str, Any]:
        """Return the value of `deletionVector` in the actions of a commit."""
        return {
            "storageType": "u",
            "pathOrInlineDv": base64.b85encode(self.file.bytes).translate(bytes.maketrans(_B85, _Z85)).decode(),
            "offset": self.offset,
            "sizeInBytes": self.bytes,
            "cardinality": self.count,
        }

    @classmethod
    def of(cls, descriptor: Mapping[str, Any]) -> "Vector | None":
        """Return the descriptor's vector, or None if spark-log stores no vectors in such a place."""
        if descriptor["storageType"] != "u" or len(descriptor["pathOrInlineDv"]) != 20:
            return None
        encoded = descriptor["pathOrInlineDv"].encode().translate(bytes.maketrans(_Z85, _B85))
        file = uuid.UUID(bytes=base64.b85decode(encoded))
        return cls(file, descriptor["offset"], descriptor["sizeInBytes"], descriptor["cardinality"])


def file_name(file: uuid.UUID) -> str:
    return f"deletion_vector_{file}.bin"


def encode(masks: Mapping[str, Mask], file: uuid.UUID) -> tuple[bytes, dict[str, Vector]]:
    """Return the content of a file with the vectors of these masks, and their places. A mask without rows has none."""
    from pyroaring import BitMap64

    content = bytearray(_VERSION)
    vectors: dict[str, Vector] = {}
    for path, mask in masks.items():
        rows = np.flatnonzero(mask)
        if len(rows):
            data = _MAGIC + BitMap64(rows.astype(np.uint64)).serialize()
            vectors[path] = Vector(file, len(content), len(data), len(rows))
            content += struct.pack(">I", len(data)) + data + struct.pack(">I", zlib.crc32(data))
    return bytes(content), vectors


def decode(content: bytes, vector: Vector, rows: int) -> Mask:
    """Return the mask of a vector, shape (rows,), from the content of its file. Raises CorruptRecordError."""
    from pyroaring import BitMap64

    begin, end = vector.offset + 4, vector.offset + 4 + vector.bytes
    data, frame = content[begin:end], content[vector.offset : begin] + content[end : end + 4]
    if frame != struct.pack(">II", vector.bytes, zlib.crc32(data)) or data[:4] != _MAGIC:
        raise CorruptRecordError(f"{vector.name}: the deletion vector at byte {vector.offset} is damaged")
    mask = np.zeros(rows, bool)
    positions = np.asarray(BitMap64.deserialize(data[4:]).to_array())
    if len(positions) != vector.count or (len(positions) and int(positions[-1]) >= rows):
        raise CorruptRecordError(
            f"{vector.name}: the deletion vector at byte {vector.offset} has {len(positions)} rows"
        )
    mask[positions] = True
    return mask
