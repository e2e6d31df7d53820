"""The range of timestamps and dates in columns: the years 1 to 9999, which every reader supports."""

FIRST_TIMESTAMP, LAST_TIMESTAMP = -62_135_596_800_000_000, 253_402_300_799_999_999
"""Microseconds since 1970."""
FIRST_DATE, LAST_DATE = -719_162, 2_932_896
"""Days since 1970."""
