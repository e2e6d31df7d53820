"""Processes streams, with functions from DataFrame to DataFrame, and outputs that are written exactly once.

>>> from spark_log.spark.streams import TopicOutput, Tumbling, windowed, write_stream          # doctest: +SKIP

Names are imported on first use, because executors import this package only as a parent of others.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spark_log.spark.mirror.local_mirror import mirror_topics as mirror_topics
    from spark_log.spark.streams.aggregation import running as running
    from spark_log.spark.streams.bad_records import dead_letters as dead_letters
    from spark_log.spark.streams.bad_records import valid as valid
    from spark_log.spark.streams.compacted_tables import read_table as read_table
    from spark_log.spark.streams.compacted_tables import table_changes as table_changes
    from spark_log.spark.streams.compacted_tables import write_table as write_table
    from spark_log.spark.streams.deduplication import deduplicated as deduplicated
    from spark_log.spark.streams.deduplication import keep_first as keep_first
    from spark_log.spark.streams.deduplication import keep_last as keep_last
    from spark_log.spark.streams.formats.codecs import Avro as Avro
    from spark_log.spark.streams.formats.codecs import Confluent as Confluent
    from spark_log.spark.streams.formats.codecs import Json as Json
    from spark_log.spark.streams.formats.codecs import Protobuf as Protobuf
    from spark_log.spark.streams.formats.codecs import decode as decode
    from spark_log.spark.streams.formats.codecs import encode as encode
    from spark_log.spark.streams.formats.typed_records import typed as typed
    from spark_log.spark.streams.joins import Bounds as Bounds
    from spark_log.spark.streams.joins import Side as Side
    from spark_log.spark.streams.joins import join_static as join_static
    from spark_log.spark.streams.joins import join_streams as join_streams
    from spark_log.spark.streams.live_table import Table as Table
    from spark_log.spark.streams.outputs import ConsoleOutput as ConsoleOutput
    from spark_log.spark.streams.outputs import DeltaOutput as DeltaOutput
    from spark_log.spark.streams.outputs import TopicOutput as TopicOutput
    from spark_log.spark.streams.outputs import write_stream as write_stream
    from spark_log.spark.streams.query_listener import SparkLogListener as SparkLogListener
    from spark_log.spark.streams.query_listener import observing_queries as observing_queries
    from spark_log.spark.streams.transacted_batch import batch_transaction as batch_transaction
    from spark_log.spark.streams.transactional_loop import TransactionalLoop as TransactionalLoop
    from spark_log.spark.streams.windows import Session as Session
    from spark_log.spark.streams.windows import Sliding as Sliding
    from spark_log.spark.streams.windows import Tumbling as Tumbling
    from spark_log.spark.streams.windows import late_records as late_records
    from spark_log.spark.streams.windows import windowed as windowed

_NAMES = {
    ".mirror.local_mirror": ("mirror_topics",),
    "aggregation": ("running",),
    "bad_records": ("dead_letters", "valid"),
    "compacted_tables": ("read_table", "table_changes", "write_table"),
    "deduplication": ("deduplicated", "keep_first", "keep_last"),
    "formats.codecs": ("Avro", "Confluent", "Json", "Protobuf", "decode", "encode"),
    "formats.typed_records": ("typed",),
    "joins": ("Bounds", "Side", "join_static", "join_streams"),
    "live_table": ("Table",),
    "outputs": ("ConsoleOutput", "DeltaOutput", "TopicOutput", "write_stream"),
    "query_listener": ("SparkLogListener", "observing_queries"),
    "transacted_batch": ("batch_transaction",),
    "transactional_loop": ("TransactionalLoop",),
    "windows": ("Session", "Sliding", "Tumbling", "late_records", "windowed"),
}
"""The public names by module. Module names are relative to this package."""

_HOME = {name: module for module, names in _NAMES.items() for name in names}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOME[name]}", __name__), name)
