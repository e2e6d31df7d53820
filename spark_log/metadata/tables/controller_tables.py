"""Table of the controller: ongoing reassignments."""

from sqlalchemy import BigInteger, Text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("replication/controller")

reassignment = _table(
    "reassignment",
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("target", Text, "JSON list of broker ids: the new AR"),
    column("original", Text, "JSON list of broker ids: the AR before, restored by a cancel"),
    column("throttle_bytes_per_s", BigInteger, "copy rate; NULL unlimited", nullable=True),
    column("began_ms", BigInteger, "store clock"),
    deleted_with=("topic",),
    comment="Ongoing partition reassignments.",
)
