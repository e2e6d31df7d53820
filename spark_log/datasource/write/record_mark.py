"""The mark of a column `record` that `streams.typed` made: of which topic, and of which version of its columns.

A writer takes along a column `record` with the mark of the topic's present columns. It ignores any other one, and
decodes the values: so the typed columns are right also when the topic's schema changes while a query runs.
"""

from typing import TYPE_CHECKING

from pyspark.sql.types import StructType

if TYPE_CHECKING:
    from spark_log.cluster.topics import Topic

METADATA_KEY = "spark_log.columns"
"""Key of the mark in the metadata of the Spark column."""


def mark(topic: "Topic") -> str | None:
    """The mark of the topic's present typed columns. None if it has none."""
    return None if topic.columns is None else f"{topic.uuid}/{topic.columns.version}"


def mark_in(schema: StructType) -> str | None:
    """The mark of column `record` of a DataFrame, None if the column is not there or has no mark."""
    return next((field.metadata.get(METADATA_KEY) for field in schema.fields if field.name == "record"), None)
