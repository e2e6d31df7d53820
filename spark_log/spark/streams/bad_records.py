"""Splits the result of `codecs.decode` into valid records, and dead letters for a topic of their own.

>>> write_stream(                                                                        # doctest: +SKIP
...     decode(records, codec),
...     lambda batch: [(valid(batch), flights), (dead_letters(batch), TopicOutput(cluster, "flights-dead"))],
...     checkpoint="/data/checkpoints/flights",
... )
"""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf
from pyspark.sql.types import BinaryType, StringType

from spark_log.errors import InvalidOptionError
from spark_log.log.bad_record_listing import HEADER_PREFIX
from spark_log.spark.streams.formats.codecs import ERROR, RAW

_ORIGINS = ("topic", "partition", "offset")
_NO_HEADERS = "cast(array() as array<struct<key:string,value:binary>>)"


def valid(decoded: DataFrame) -> DataFrame:
    """Return the valid records, tombstones included, without the columns `raw` and `error`."""
    return decoded.where(sf.col(ERROR).isNull()).drop(RAW, ERROR)


def dead_letters(decoded: DataFrame, column: str = "value") -> DataFrame:
    """Return the bad records with their original bytes, as `format("spark_log")` writes them.

    The columns are headers, and key, value and timestamp if the frame has them. `column` is the column that was
    decoded. These headers are added to those of the record: `__spark_log.errors.topic`, `.partition` and `.offset` (as
    text, if the frame has these columns) and `.exception.message`. Raises InvalidOptionError.
    """
    kinds = {each.name: each.dataType for each in decoded.schema.fields}
    for name in (RAW, ERROR, column):
        if name not in kinds:
            raise InvalidOptionError(f"column {name!r}: missing; expected what decode returns, got {decoded.columns}")
    record: dict[str, Column] = {}
    for name in ("key", "value"):
        if name == column:
            record[name] = sf.col(RAW)
        elif name in kinds:
            if not isinstance(kinds[name], BinaryType | StringType):
                raise InvalidOptionError(
                    f"column {name!r} is {kinds[name].simpleString()}, expected binary or string: if two columns are"
                    " decoded, call dead_letters for the first one before decoding the second one"
                )
            record[name] = sf.col(name)
    reasons = [_header(name, sf.col(name).cast(StringType())) for name in _ORIGINS if name in kinds]
    reasons.append(_header("exception.message", sf.col(ERROR)))
    own = sf.coalesce(sf.col("headers"), sf.expr(_NO_HEADERS)) if "headers" in kinds else sf.expr(_NO_HEADERS)
    record["headers"] = sf.concat(own, sf.array(*reasons))
    if "timestamp" in kinds:
        record["timestamp"] = sf.col("timestamp")
    bad = decoded.where(sf.col(ERROR).isNotNull())
    return bad.select(*(value.alias(name) for name, value in record.items()))


def _header(name: str, text: Column) -> Column:
    return sf.struct(sf.lit(HEADER_PREFIX + name).alias("key"), text.cast(BinaryType()).alias("value"))
