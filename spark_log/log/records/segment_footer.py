"""Writes and verifies the digest inside a segment's Parquet footer.

Parquet's checksums cover the pages but not the footer. A flipped bit in the footer changes a row group's statistics or
position, and rows would go missing without an error. So a segment's key-value metadata has the entry

    spark_log.footer = hex of xxh3_128(the footer with this value's 32 characters all "0")

which a reader checks before it parses the footer. Other Parquet readers see one more metadata entry.
"""

import xxhash

from spark_log.errors import CorruptRecordError

DIGEST_KEY = "spark_log.footer"
PLACEHOLDER = b"0" * 32
MAGIC = b"PAR1"
TRAILER_BYTES = 8
"""Every Parquet file ends with the length of its footer (little-endian, 4 bytes) and MAGIC."""


def footer_length(trailer: bytes, path: str) -> int:
    """Return the length in bytes of the footer, from the last TRAILER_BYTES of a file. Raise CorruptRecordError if
    these are not a Parquet trailer.
    """
    if len(trailer) != TRAILER_BYTES or trailer[4:] != MAGIC:
        raise CorruptRecordError(f"{path}: no Parquet footer, the file ends with {trailer!r}")
    return int.from_bytes(trailer[:4], "little")


def sealed(closing: bytes) -> bytes:
    """Return `closing`, the bytes that a Parquet writer wrote on close, with the digest in place of PLACEHOLDER.

    `closing` ends with the footer and the trailer.
    """
    start = len(closing) - TRAILER_BYTES - footer_length(closing[-TRAILER_BYTES:], "new segment")
    place = _place(closing[start:], "new segment") + start
    digest = xxhash.xxh3_128_hexdigest(closing[start:]).encode()
    return closing[:place] + digest + closing[place + len(digest) :]


def verify(footer: bytes, path: str) -> None:
    """Raise CorruptRecordError if `footer` (with trailer) has no digest or does not match its digest."""
    place = _place(footer, path)
    end = place + len(PLACEHOLDER)
    if xxhash.xxh3_128_hexdigest(footer[:place] + PLACEHOLDER + footer[end:]).encode() != footer[place:end]:
        raise CorruptRecordError(f"{path}: the Parquet footer does not match its own digest")


def _place(footer: bytes, path: str) -> int:
    key = DIGEST_KEY.encode()
    found = footer.find(key)
    # Thrift's compact protocol puts field header (1 byte) and length (1 byte) between the key and its value.
    place = found + len(key) + 2
    if found < 0 or place + len(PLACEHOLDER) > len(footer):
        raise CorruptRecordError(f"{path}: the Parquet footer has no {DIGEST_KEY}, this is not a segment")
    return place
