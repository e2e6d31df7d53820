"""Tables of the append: write ids, producers and their last batches, Spark batches."""

from sqlalchemy import BigInteger, Index, String, Text

from spark_log.metadata.tables.definition import SERIAL, column, partition_number, tables_of, topic_id

_table = tables_of("log/append")

write_id = _table(
    "write_id",
    column("write_id", String(32), "prefix of the names of its holder's files", primary_key=True),
    column("holder", Text, "the process or job that writes, for display"),
    column(
        "until_ms",
        BigInteger,
        "store clock; after it, clean-up may delete the row, and then the files that no segment refers to",
    ),
    column("clock_epoch", String(64), "boot id of the host when until_ms was written (SQLite)"),
    comment="Leases of the right to create files. An append without one fails, so it cannot race with clean-up.",
)

producer = _table(
    "producer",
    column("producer_id", SERIAL, "Kafka's PID, never reused", primary_key=True, autoincrement=True),
    column("transactional_id", String(249), "stable name chosen by the application", unique=True, nullable=True),
    column("epoch", BigInteger, "current epoch; requests with a lower one are fenced"),
    column("last_used_ms", BigInteger, "store clock, for expiry"),
    column("transaction_timeout_ms", BigInteger, "0 when not transactional"),
    column("owner", Text, "principal that got the id from a gateway with ACLs; NULL: another producer", nullable=True),
    comment="Idempotent and transactional producers.",
    sqlite_autoincrement=True,
)

producer_batch = _table(
    "producer_batch",
    column("producer_id", BigInteger, "producer.producer_id", primary_key=True),
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("producer_epoch", BigInteger, "epoch of the append"),
    column("first_sequence", BigInteger, "sequence of the batch's first record", primary_key=True),
    column("last_sequence", BigInteger, "sequence of its last record"),
    column("base_offset", BigInteger, "offset of its first record; the answer to a duplicate"),
    column("end_offset", BigInteger, "one more than the offset of its last record"),
    column("appended_ms", BigInteger, "store clock, for expiry"),
    Index(None, "topic_id", "partition", "base_offset"),
    deleted_with=("topic",),
    comment="The last five batches of each producer in each partition, as in Kafka: they make a retry safe.",
)

spark_batch = _table(
    "spark_batch",
    column("application", String(512), "stream:<query id>, or txn:<txnAppId>", primary_key=True),
    column(
        "target",
        String(249),
        "option topic of the write, '' when the rows name it; '*': transactions",
        primary_key=True,
    ),
    column("topic_id", BigInteger, "topic.topic_id; 0: what is in no topic", primary_key=True, autoincrement=False),
    column("version", BigInteger, "batch id or txnVersion of the last batch"),
    column("record_count", BigInteger, "rows of that batch, in all topics"),
    column("fingerprint", String(16), "order-independent checksum of that batch's rows, hex"),
    column("committed_ms", BigInteger, "store clock"),
    Index(None, "topic_id"),
    deleted_with=("topic",),
    comment="The last batch of each Spark sink in each topic. Repeating it has no effect; other rows under its version"
    " are an error.",
)
