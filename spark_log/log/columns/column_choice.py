"""Selects the columns that a reader names: columns of the log, and fields of records by their dotted paths. Pure."""

from collections.abc import Sequence

import pyarrow as pa

from spark_log.errors import InvalidOptionError
from spark_log.log.columns.field_paths import has_path, part_on_paths
from spark_log.log.columns.key_and_value import RECORDS, TYPED


def check_names(names: Sequence[str], known: Sequence[str]) -> None:
    """Raise InvalidOptionError unless `names` has at least one name, all are distinct, and each is a known column or
    the path of a field in a known column.
    """
    if not names or len(set(names)) < len(names) or not set(top_columns(names)) <= {*known}:
        some = ", ".join([*known, *(f"{record}.<field>" for record in RECORDS)])
        raise InvalidOptionError(f"columns: expected distinct names out of {some}, got {list(names)}")


def top_columns(names: Sequence[str]) -> tuple[str, ...]:
    """Return the columns that the names are in, each once: record for record.price and record.item."""
    tops = ((name.partition(".")[0], name) for name in names)
    return tuple(dict.fromkeys(top if top in RECORDS else name for top, name in tops))


def chosen_fields(fields: pa.StructType, names: Sequence[str]) -> pa.StructType:
    """Return the named typed columns out of `fields`, in their order. A struct has only its named fields, or all fields
    if the column itself is named.

    Raises InvalidOptionError for a column or a path that the topic does not have.
    """
    typed = [name for name in names if name.partition(".")[0] in TYPED]
    for name in typed:
        if not has_path(fields, tuple(name.split("."))):
            raise InvalidOptionError(f"columns: the topic has no {'field' if '.' in name else 'column'} {name!r}")
    return part_on_paths(fields, [tuple(name.split(".")) for name in typed])
