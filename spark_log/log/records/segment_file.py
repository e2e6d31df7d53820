"""Segment files: re-exports the functions that write, open and read them (segment_write, _open and _read)."""

from spark_log.log.records.compression_codecs import codec_name
from spark_log.log.records.segment_open import ExpectedSegment, open_segment, verify_checksum
from spark_log.log.records.segment_read import first_offset_at_or_after, read_slice
from spark_log.log.records.segment_write import SegmentFacts, SegmentWriter

__all__ = [
    "ExpectedSegment",
    "SegmentFacts",
    "SegmentWriter",
    "codec_name",
    "first_offset_at_or_after",
    "open_segment",
    "read_slice",
    "verify_checksum",
]
