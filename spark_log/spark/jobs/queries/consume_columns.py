"""Makes the rows that a consume job writes to its sink, and counts them."""

from typing import cast

from pyspark.sql import DataFrame, Observation
from pyspark.sql import functions as sf
from pyspark.sql.types import StringType, StructType

from spark_log.spark.jobs.options.job_arguments import Console, ConsumeArguments, OtherTopic
from spark_log.spark.jobs.queries.measurement import Measured, bytes_of, measured

MALFORMED = "_malformed"
"""Column with --value-schema. It has the text of a value that is not JSON of that schema, else null."""

_BYTES = "_bytes_of_key_and_value"


def shaped(frame: DataFrame, arguments: ConsumeArguments, observation: Observation | None) -> DataFrame:
    """Return the rows for the sink. `observation` (None for a stream) gets their counts."""
    rows = _rows(frame, arguments)
    malformed = sf.col(MALFORMED) if MALFORMED in rows.columns else None
    return measured(rows, sf.col(_BYTES), malformed, observation).drop(_BYTES)


def show_first(frame: DataFrame, arguments: ConsumeArguments, limit: int) -> Measured:
    """Print the first rows of a batch read, and return their counts.

    Spark reads one partition after the other until it has `limit` rows. With an observation it would read all of them,
    so a second read of the same few partitions counts the rows.
    """
    rows = _rows(frame, arguments)
    malformed = sf.col(MALFORMED).isNotNull() if MALFORMED in rows.columns else sf.lit(False)
    counted = rows.select(_BYTES, malformed.alias(MALFORMED)).take(limit)
    rows.drop(_BYTES).limit(limit).show(limit, truncate=False)
    return Measured(len(counted), sum(row[_BYTES] for row in counted), sum(row[MALFORMED] for row in counted))


def _rows(frame: DataFrame, arguments: ConsumeArguments) -> DataFrame:
    """Return the rows for the sink, with the bytes of each record.

    A copy has the columns of a write. With --value-schema the columns are those of the value, and the record's own
    columns with a `_`: _key (as text), _topic, _partition, _offset, _timestamp, _headers. Otherwise all columns of the
    read are returned, on the console with key and value as text.
    """
    frame = frame.withColumn(_BYTES, bytes_of("key", "value"))
    if isinstance(arguments.sink, OtherTopic):
        kept = ["key", "value", "headers", "timestamp", *(["partition"] if arguments.sink.keep_partitions else [])]
        return frame.select(*kept, _BYTES)
    if arguments.value_schema is not None:
        return _parsed(frame, arguments.value_schema)
    if isinstance(arguments.sink, Console):
        return frame.withColumns({name: sf.col(name).cast(StringType()) for name in ("key", "value")})
    return frame


def _parsed(frame: DataFrame, ddl: str) -> DataFrame:
    schema = cast(StructType, StructType.fromDDL(ddl)).add(MALFORMED, StringType())
    value = sf.from_json(sf.col("value").cast(StringType()), schema, {"columnNameOfCorruptRecord": MALFORMED})
    about = [name for name in frame.columns if name not in ("value", "timestampType", _BYTES)]
    record = frame.withColumns({"key": sf.col("key").cast(StringType()), "value": value})
    return record.select(*(sf.col(name).alias(f"_{name}") for name in about), "value.*", _BYTES)
