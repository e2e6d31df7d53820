"""Converts the statistics of a data file to Iceberg's form: numbers of values and nulls, and bounds, by field id. Pure.

They are those of Delta's add actions (`log/records/leaf_statistics.py`): a bound that Delta lacks is missing here too.
Bounds are in Iceberg's single-value encoding: https://iceberg.apache.org/spec/#binary-single-value-serialization
"""

import struct
from decimal import Context, Decimal
from typing import Any

import pyarrow as pa

from spark_log.log.columns.field_paths import BASE_IDS
from spark_log.log.columns.topic_columns import TopicColumns
from spark_log.log.records.leaf_statistics import leaves, parse
from spark_log.tables.publication_state import PublishedFile

_EXACT = Context(prec=80)
_FORMATS = {
    pa.int32(): "<i",
    pa.int64(): "<q",
    pa.float64(): "<d",
    pa.date32(): "<i",
    pa.timestamp("us", "UTC"): "<q",
}


def file_metrics(file: PublishedFile, columns: TopicColumns | None) -> dict[str, list[dict[str, Any]]]:
    """Return the statistics of a file for its entry in a manifest; none for a file without typed columns."""
    if file.stats is None or columns is None:
        return {}
    ids = {**BASE_IDS, **columns.ids}
    kinds = {leaf.path: leaf.kind for leaf in leaves(columns.fields)}
    metrics: dict[str, list[dict[str, Any]]] = {
        name: [] for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds")
    }
    for path, bounds in parse(file.stats, columns.fields).items():
        number = ids[".".join(path)]
        encoded = (encode(bound, kinds[path]) for bound in (bounds.low, bounds.high))
        counts = (None, None) if bounds.nulls is None else (file.record_count, bounds.nulls)
        for pairs, value in zip(metrics.values(), (*counts, *encoded), strict=True):
            if value is not None:
                pairs.append({"key": number, "value": value})
    return metrics


def encode(value: Any, kind: pa.DataType) -> bytes | None:
    """Return a bound as bytes, None for an unknown one. `value` is as in `leaf_statistics.Bounds`."""
    if value is None:
        return None
    if pa.types.is_string(kind):
        return str(value).encode()
    if pa.types.is_decimal(kind):
        unscaled = int(Decimal(value).scaleb(kind.scale, _EXACT))
        length = (unscaled + (unscaled < 0)).bit_length() // 8 + 1  # of the shortest two's complement
        return unscaled.to_bytes(length, "big", signed=True)
    return struct.pack(_FORMATS[kind], value)
