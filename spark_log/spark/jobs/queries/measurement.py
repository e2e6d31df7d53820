"""Counts the records of a query while it runs, without a second pass (Dataset.observe)."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, Observation
from pyspark.sql import functions as sf

NAME = "spark_log_job"
"""Name of the observation in a streaming query's progress. With several inputs, a suffix identifies the input."""


class Measured(NamedTuple):
    records: int = 0
    bytes: int = 0
    malformed: int = 0

    def plus(self, other: "Measured") -> "Measured":
        return Measured(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))

    @classmethod
    def of(cls, metrics: Mapping[str, Any]) -> "Measured":
        return cls(*(int(metrics.get(name) or 0) for name in cls._fields))


def measured(
    frame: DataFrame, size: Column, malformed: Column | None, observation: Observation | None, name: str = ""
) -> DataFrame:
    """Return `frame` with an observation. `size` is the bytes of a row; `malformed` is null in a valid row.

    A batch gives `observation`. A stream with several inputs gives the `name` of the input.
    """
    counts = [
        sf.count(sf.lit(1)).alias("records"),
        sf.sum(size.cast("bigint")).alias("bytes"),
        (sf.lit(0) if malformed is None else sf.count(malformed)).alias("malformed"),
    ]
    return frame.observe(observation if observation is not None else NAME + name, *counts)


def bytes_of(*columns: str) -> Column:
    """Return the total bytes of string or binary columns. A null counts 0."""
    total = sf.lit(0)
    for column in columns:
        total = total + sf.coalesce(sf.octet_length(sf.col(column)), sf.lit(0))
    return total
