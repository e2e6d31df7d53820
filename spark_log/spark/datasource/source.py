"""Implements `format("spark_log")`: the entry point that Spark calls.

Modules that only some processes need are imported on use: otherwise each process that Spark starts to plan a read or a
write, and each executor that unpickles these classes for its tasks, would import all of them (SQLAlchemy takes 0.2 s).
"""

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from spark_log.errors import InvalidOptionError
from spark_log.log.columns.key_and_value import PARTS, RECORDS
from spark_log.spark.datasource.options.option_names import is_option, warn_of_misspelt_options
from spark_log.spark.datasource.options.source_options import ReadOptions, WriteOptions, parse_columns
from spark_log.spark.datasource.read.batch_reader import BatchReader
from spark_log.spark.datasource.read.read_task import ReadColumns
from spark_log.spark.datasource.read.stream_reader import StreamReader
from spark_log.spark.datasource.worker_errors import message_only

if TYPE_CHECKING:
    from spark_log.spark.datasource.write.batch_writer import BatchWriter
    from spark_log.spark.datasource.write.stream_writer import StreamWriter

HEADERS = ArrayType(StructType([StructField("key", StringType()), StructField("value", BinaryType())]))

_TYPES: dict[str, DataType] = {
    "key": BinaryType(),
    "value": BinaryType(),
    "topic": StringType(),
    "partition": IntegerType(),
    "offset": LongType(),
    "timestamp": TimestampType(),
    "timestampType": IntegerType(),
    "headers": HEADERS,
    **{part.error: StringType() for part in PARTS},
}

_TABLE_PROPERTY = "provider"
_OPTIONS_OF_TABLES = ("columns", "includeheaders")
"""Options that determine the columns of CREATE TABLE. Queries of the table name them again."""
_LOST_OPTIONS = (
    "Spark does not pass the options of a table to data sources in Python. Use CREATE TEMPORARY VIEW … USING spark_log"
    " OPTIONS (…), or, without Delta's catalog, name the options in each query of the table: … FROM table WITH"
    " ('cluster' = '…', 'subscribe' = '…')"
)


@message_only
class SparkLogDataSource(DataSource):
    """Reads and writes topics, batch and streaming, with the options of Spark's Kafka connector. Runs on the driver.

    Spark pickles the source between processes of the driver. But it is also part of the function that Spark builds from
    a reader and sends to executors. So a source that has created a reader is pickled without its options, which contain
    the store's address and maybe a password.
    """

    _options_may_travel = True

    @classmethod
    def name(cls) -> str:
        return "spark_log"

    def schema(self) -> StructType:
        """Return the seven columns of Spark's Kafka source, and `headers` with includeHeaders. Option `columns` chooses
        others instead, and may name typed columns.

        `load()` does not tell whether the read is a batch or a stream, so this raises InvalidOptionError for options
        that are invalid for both. CREATE TABLE passes the properties of the table, but a query of the table gets only
        its own options. So CREATE TABLE is refused with options of spark-log that the queries would miss.
        """
        if _TABLE_PROPERTY in self.options:
            lost = [name for name in self.options if is_option(name) and name.lower() not in _OPTIONS_OF_TABLES]
            if lost:
                raise InvalidOptionError(f"CREATE TABLE would lose options: {', '.join(sorted(lost))}. {_LOST_OPTIONS}")
        else:
            warn_of_misspelt_options(self.options)
            ReadOptions.parse(self.options, streaming=None, environ=os.environ)
        return self._schema()

    def _schema(self, records: dict[str, DataType] | None = None) -> StructType:
        """Return the schema. `records` are the types of the typed columns' structs. Without them, the types are read
        from the metadata store.
        """
        types = _TYPES
        # not the module column_choice: it imports pyarrow
        names = dict.fromkeys(name.partition(".")[0] for name in parse_columns(self.options))
        if not names.keys().isdisjoint(RECORDS):
            types = {**_TYPES, **(records or self._record_types())}
        return StructType([StructField(name, types[name]) for name in names])

    def _record_types(self) -> dict[str, DataType]:
        from spark_log.spark.datasource.read.record_types import record_types

        return record_types(ReadOptions.parse(self.options, streaming=None, environ=os.environ))

    def reader(self, schema: StructType) -> BatchReader:
        self._refuse_schema(schema)
        self._options_may_travel = False
        with self._naming_lost_options():
            options = ReadOptions.parse(self.options, streaming=False, environ=os.environ)
        return BatchReader(options, ReadColumns.of(schema))

    def streamReader(self, schema: StructType) -> StreamReader:
        # never raises, because Spark would then call `stop` without a reader, and show the error of that
        self._options_may_travel = False
        return StreamReader(functools.partial(self._stream_options, schema), ReadColumns.of(schema))

    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":
        from spark_log.spark.datasource.write.batch_writer import BatchWriter
        from spark_log.spark.datasource.write.write_schema import check_write_schema

        # Modes errorifexists (the default) and ignore do not reach this code: Spark's DataFrameWriter refuses them for
        # every Python data source.
        if overwrite:
            raise InvalidOptionError(
                'Save mode Overwrite not allowed for spark_log. Allowed save mode is Append: use .mode("append")'
            )
        warn_of_misspelt_options(self.options)
        with self._naming_lost_options():
            options = WriteOptions.parse(self.options, streaming=False, environ=os.environ)
        check_write_schema(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":
        from spark_log.spark.datasource.write.stream_writer import StreamWriter
        from spark_log.spark.datasource.write.write_schema import check_write_schema

        # `overwrite` is output mode complete: as in Kafka's sink, every batch appends all of its rows. (Spark does not
        # allow mode update for Python data sources.)
        options = WriteOptions.parse(self.options, streaming=True, environ=os.environ)
        check_write_schema(schema, options)
        return StreamWriter(options, tuple(self.options))

    def _stream_options(self, schema: StructType) -> ReadOptions:
        self._refuse_schema(schema)
        return ReadOptions.parse(self.options, streaming=True, environ=os.environ)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (dict(self.options) if self._options_may_travel else {},)

    @contextmanager
    def _naming_lost_options(self) -> Iterator[None]:
        """Explain an error of a query without any option, which is typically the query of a table."""
        try:
            yield
        except InvalidOptionError as error:
            if self.options:
                raise
            raise InvalidOptionError(f"{error}. {_LOST_OPTIONS}") from None

    def _refuse_schema(self, schema: StructType) -> None:
        records = {field.name: field.dataType for field in schema if field.name in RECORDS}
        if [(field.name, field.dataType) for field in schema] != [(f.name, f.dataType) for f in self._schema(records)]:
            raise InvalidOptionError(
                "spark_log source has a fixed schema and cannot be set with a custom one;"
                " use option 'columns' for fewer columns"
            )
