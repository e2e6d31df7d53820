"""Names the two parts of a record that may have typed columns, key and value, and these columns."""

from typing import NamedTuple


class TypedPart(NamedTuple):
    """A part of a record: the name of the column with its bytes, and of the two columns that are decoded from it."""

    source: str
    error: str
    record: str


KEY = TypedPart("key", "key_record_error", "key_record")
VALUE = TypedPart("value", "record_error", "record")
PARTS = (KEY, VALUE)
"""The parts, in the order of their columns in a file."""
TYPED = tuple(name for part in PARTS for name in (part.error, part.record))
"""The typed columns, which follow the others in the files of a topic that has them."""
RECORDS = tuple(part.record for part in PARTS)
"""The typed columns that are structs."""
