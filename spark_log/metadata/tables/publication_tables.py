"""Tables of the publication to open tables: how far each of them follows the log."""

from typing import Any

from sqlalchemy import BigInteger, Boolean, Column, String, text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("tables")


def _target() -> Column[Any]:
    return column("target", String(16), "format of the table", primary_key=True, server_default="delta")


publication = _table(
    "publication",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _target(),
    column(
        "transaction_version",
        BigInteger,
        "version of spark-log's app transaction in the last commit that spark-log made",
    ),
    column(
        "table_version",
        BigInteger,
        "the table's version with that commit; a higher one in the table was committed by another writer",
    ),
    deleted_with=("topic", "log_dir"),
    comment="How far a log dir's table of a topic is known to equal the metadata.",
)

publication_cursor = _table(
    "publication_cursor",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _target(),
    partition_number(primary_key=True),
    column("change", BigInteger, "partition.change that has been published"),
    column("high_watermark", BigInteger, "partition.high_watermark at that time"),
    column(
        "seen_offset",
        BigInteger,
        "every record below it has been in the table; publishing it again in another file is no data change",
        server_default=text("0"),
    ),
    deleted_with=("topic", "log_dir"),
    comment="Per partition, how far the table follows the log.",
)

publication_intent = _table(
    "publication_intent",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _target(),
    column(
        "transaction_version",
        BigInteger,
        "version of spark-log's app transaction that the commit writes; the table has it: the commit is done",
        primary_key=True,
    ),
    column("table_version", BigInteger, "the table's version that the commit will make"),
    column(
        "recorded_table_version", BigInteger, "publication.table_version when the intent was written", nullable=True
    ),
    column("has_replicas", Boolean, "whether the log dir had a replica of the topic"),
    deleted_with=("topic", "log_dir"),
    comment="Intended commits: not made yet, or made and not yet recorded in publication.",
)

publication_intent_cursor = _table(
    "publication_intent_cursor",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    _target(),
    column("transaction_version", BigInteger, "publication_intent.transaction_version", primary_key=True),
    partition_number(primary_key=True),
    column("change", BigInteger, "publication_cursor.change once the commit is recorded"),
    column("high_watermark", BigInteger, "publication_cursor.high_watermark then"),
    column("seen_offset", BigInteger, "publication_cursor.seen_offset then"),
    deleted_with=("topic", "log_dir"),
    comment="Per partition, how far the table follows the log after an intended commit.",
)
