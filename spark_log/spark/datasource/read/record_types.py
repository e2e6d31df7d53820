"""Finds the types of the typed columns, record and key_record, that a topic has when a query begins. Driver."""

from pyspark.sql.pandas.types import from_arrow_type
from pyspark.sql.types import DataType

from spark_log.cluster.cluster import Cluster
from spark_log.cluster.topics import find_topic
from spark_log.log.columns.column_choice import chosen_fields, top_columns
from spark_log.log.columns.key_and_value import RECORDS
from spark_log.log.segments.typed_columns import check_typed_columns
from spark_log.spark.datasource.options.source_options import ReadOptions
from spark_log.spark.datasource.options.topic_choice import only_topic


def record_types(options: ReadOptions) -> dict[str, DataType]:
    """Return the types by column. Raises UnknownTopicOrPartitionError, or InvalidOptionError if there are several
    topics or the topic does not have the columns.

    If option `columns` has paths of fields, a struct has only these fields. A query keeps its types while it runs, even
    if the topic gets more columns.
    """
    name = only_topic(options.subscription)
    with Cluster.open(options.cluster) as cluster:
        columns = cluster.store.read(lambda connection: find_topic(connection, name)).columns
    columns = check_typed_columns(name, columns, top_columns(options.columns))
    chosen = chosen_fields(columns.fields, options.columns)
    return {field.name: from_arrow_type(field.type) for field in chosen if field.name in RECORDS}
