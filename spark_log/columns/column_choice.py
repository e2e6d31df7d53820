"""The columns that a reader names: columns of the log, and fields of record by their dotted paths. Pure."""

from collections.abc import Sequence

import pyarrow as pa

from spark_log.columns.topic_columns import has_path, part_on_paths
from spark_log.errors import InvalidOptionError


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """InvalidOptionError unless `names` are distinct, some of the known columns or paths of fields, and not none."""
    if not names or len(set(names)) < len(names) or not set(top_columns(names)) <= {*known}:
        some = ", ".join(known)
        raise InvalidOptionError(f"columns: expected distinct names out of {some}, record.<field>, got {list(names)}")


def top_columns(names: Sequence[str]) -> tuple[str, ...]:
    """The columns without the paths of fields, each once: record for record.price and record.item."""
    return tuple(dict.fromkeys("record" if name.startswith("record.") else name for name in names))


def chosen_fields(fields: pa.StructType, names: Sequence[str]) -> pa.StructType:
    """The type of column record with the named fields: all if `names` has record itself, in the order of the schema.

    InvalidOptionError for a path that `fields`, the topic's columns, do not have.
    """
    paths = [tuple(name.split(".")[1:]) for name in names if name == "record" or name.startswith("record.")]
    for path in paths:
        if not has_path(fields, path):
            raise InvalidOptionError(f"columns: the topic has no field {'.'.join(('record', *path))!r}")
    return part_on_paths(fields, paths)
