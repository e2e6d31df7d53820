"""Tables of maintenance: completed compactions."""

from sqlalchemy import BigInteger

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("maintenance")

compaction = _table(
    "compaction",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column(
        "end_offset",
        BigInteger,
        "below it, no record remained that a later one below it overwrites",
        primary_key=True,
    ),
    column("at_ms", BigInteger, "store clock; a tombstone below end_offset may be removed delete.retention.ms later"),
    column("tombstone_count", BigInteger, "tombstones left below end_offset"),
    comment="Completed compactions. The dirty part of the log begins at the largest end_offset.",
)
