"""The type of column `record`: the typed columns that a topic has when a query begins. Driver."""

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import StructType

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.columns.column_choice import chosen_fields
from spark_log.datasource.options.source_options import ReadOptions
from spark_log.datasource.options.topic_choice import only_topic
from spark_log.errors import InvalidOptionError


def record_type(options: ReadOptions) -> StructType:
    """UnknownTopicOrPartitionError; InvalidOptionError if the topic has no typed columns, or there are several topics.

    With paths of fields in option `columns`, it has these fields only. A query keeps this type while it runs, also when
    the topic gets more columns.
    """
    name = only_topic(options.subscription)
    with Cluster.open(options.cluster) as cluster:
        columns = cluster.store.read(lambda connection: find_topic(connection, name)).columns
    if columns is None:
        raise InvalidOptionError(
            f"Option 'columns' names 'record': topic {name!r} has no typed columns (set value.format and value.schema)"
        )
    found = from_arrow_type(chosen_fields(columns.fields, options.columns))
    assert isinstance(found, StructType)
    return found
