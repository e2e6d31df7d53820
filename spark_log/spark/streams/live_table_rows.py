"""The row of each key in a live table, by the rule of `last_values`: the last record of the key's partition.

If partitions were added to the topic and a key has records in several, it is the last record with the largest
timestamp. A record that is appended later replaces that of its own partition only. Therefore the rows keep the last
records of the other partitions, and deletions: all expressions depend on the log alone.
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

OTHERS = "others"
"""Column with the last records of the key's other partitions; null if there are none, as a rule."""


def newest_rows(in_partitions: DataFrame) -> DataFrame:
    """Return one row for each key, with column `others`, from the last records of each key of each partition."""
    record = sf.struct(*(name for name in in_partitions.columns if name != "key"))
    newest = in_partitions.groupBy("key").agg(
        sf.max_by(record, sf.struct("timestamp", "partition")).alias("newest"), sf.collect_list(record).alias("all")
    )
    others = sf.filter("all", lambda each: each["partition"] != sf.col("newest.partition"))
    return newest.select("key", "newest.*", sf.when(sf.size("all") > 1, others).alias(OTHERS))


def changed_row(fields: Sequence[str], base: str, changed: str) -> Column:
    """Return the current record of a key as a struct of `fields`, from its row in a table and its row in the records
    that were appended since. Each is null without such a row. `base` and `changed` are the prefixes of their columns.
    """

    def is_replaced(partition: Column) -> Column:
        among_others = sf.exists(f"{changed}{OTHERS}", lambda each: each["partition"] == partition)
        return (partition == sf.col(f"{changed}partition")) | sf.coalesce(among_others, sf.lit(False))

    old, new = (sf.struct(*(sf.col(prefix + name).alias(name) for name in fields)) for prefix in (base, changed))
    others = sf.filter(f"{base}{OTHERS}", lambda each: ~is_replaced(each["partition"]))
    latest = sf.array_max(sf.transform(others, _order))
    other = sf.get(sf.filter(others, lambda each: _order(each) == latest), sf.lit(0))
    kept = sf.when(~is_replaced(sf.col(f"{base}partition")), old).otherwise(other)
    return (
        sf.when(sf.col(f"{changed}offset").isNull(), old)
        .when(kept.isNull() | (_order(new) > _order(kept)), new)
        .otherwise(kept)
    )


def _order(record: Column) -> Column:
    return sf.struct(record["timestamp"].alias("timestamp"), record["partition"].alias("partition"))
