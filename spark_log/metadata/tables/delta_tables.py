"""Tables of the publication to Delta tables: how far each Delta table follows the log."""

from sqlalchemy import BigInteger, Boolean, text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("tables")

publication = _table(
    "publication",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    column(
        "transaction_version",
        BigInteger,
        "version of spark-log's app transaction in the last Delta commit that spark-log made",
    ),
    column(
        "delta_version",
        BigInteger,
        "Delta version of that commit; a higher one in the table was committed by another writer",
    ),
    deleted_with=("topic", "log_dir"),
    comment="How far a log dir's Delta table of a topic is known to equal the metadata.",
)

publication_cursor = _table(
    "publication_cursor",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
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
    comment="Per partition, how far the Delta table follows the log.",
)

publication_intent = _table(
    "publication_intent",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    column(
        "transaction_version",
        BigInteger,
        "version of spark-log's app transaction that the commit writes; the table has it: the commit is done",
        primary_key=True,
    ),
    column("delta_version", BigInteger, "Delta version that the commit will have"),
    column(
        "recorded_delta_version", BigInteger, "publication.delta_version when the intent was written", nullable=True
    ),
    column("has_replicas", Boolean, "whether the log dir had a replica of the topic"),
    deleted_with=("topic", "log_dir"),
    comment="Intended Delta commits: not made yet, or made and not yet recorded in publication.",
)

publication_intent_cursor = _table(
    "publication_intent_cursor",
    topic_id(primary_key=True),
    column("log_dir_id", BigInteger, "log_dir.log_dir_id", primary_key=True),
    column("transaction_version", BigInteger, "publication_intent.transaction_version", primary_key=True),
    partition_number(primary_key=True),
    column("change", BigInteger, "publication_cursor.change once the commit is recorded"),
    column("high_watermark", BigInteger, "publication_cursor.high_watermark then"),
    column("seen_offset", BigInteger, "publication_cursor.seen_offset then"),
    deleted_with=("topic", "log_dir"),
    comment="Per partition, how far the Delta table follows the log after an intended commit.",
)
