"""Tables of transactions of producers."""

from sqlalchemy import BigInteger, Boolean, Index, LargeBinary, String, Text, text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("transactions")

transaction = _table(
    "transaction",
    column("producer_id", BigInteger, "producer.producer_id", primary_key=True),
    column("producer_epoch", BigInteger, "epoch that began it"),
    column("state", String(16), "Empty, Ongoing, CompleteCommit or CompleteAbort"),
    column("began_ms", BigInteger, "store clock"),
    column("until_ms", BigInteger, "store clock; after it the coordinator aborts the transaction"),
    column("clock_epoch", String(64), "boot id of the host when until_ms was written (SQLite)"),
    column(
        "previous_epoch",
        BigInteger,
        "epoch of the producer that may go on with the current one, until it does; -1: none",
        server_default=text("-1"),
    ),
    column("pending", BigInteger, "number of rows in transaction_segment while it is open", server_default=text("0")),
    column(
        "claim",
        BigInteger,
        "newest claim of a Kafka client's connection: only requests of that connection are executed",
        server_default=text("0"),
    ),
    column("offsets_claim", BigInteger, "the same for TxnOffsetCommit", server_default=text("0")),
    column("part_number", BigInteger, "at least that of the last transaction with parts", server_default=text("0")),
    column(
        "part_stores",
        Text,
        "data stores with a part of the open transaction; of a committed one, those that have not appended it yet",
        server_default="",
    ),
    comment="The current or last transaction of a producer.",
)

transaction_part = _table(
    "transaction_part",
    column("producer_id", BigInteger, "producer.producer_id", primary_key=True, autoincrement=False),
    column("number", BigInteger, "transaction.part_number in the home store, when it began"),
    column("state", String(16), "open, prepared, committed or aborted"),
    column("pending", BigInteger, "number of rows in transaction_segment while it is open or prepared"),
    column("changed_ms", BigInteger, "clock of this store"),
    comment="The part that a producer's newest transaction has in this data store. The home store has no rows.",
)

transaction_segment = _table(
    "transaction_segment",
    column("producer_id", BigInteger, "transaction.producer_id, or transaction_part.producer_id", primary_key=True),
    column("position", BigInteger, "order of the sends", primary_key=True),
    topic_id(),
    partition_number(),
    column("facts", Text, "JSON of the batch, for the append at commit"),
    column("name", String(96), "the future segment.name", unique=True),
    column("inline", Boolean, "the future segment.inline"),
    column("first_sequence", BigInteger, "sequence of its first record, of a Kafka client", nullable=True),
    column("last_sequence", BigInteger, "sequence of its last record", nullable=True),
    Index(None, "producer_id", "topic_id", "partition", "position"),
    comment="Batches of open transactions, or of parts: without offsets, invisible to readers.",
)

transaction_offset = _table(
    "transaction_offset",
    column("producer_id", BigInteger, "transaction.producer_id", primary_key=True),
    column("group_id", String(249), "consumer_group.group_id", primary_key=True),
    topic_id(primary_key=True),
    partition_number(primary_key=True),
    column("committed_offset", BigInteger, "the future group_offset.committed_offset"),
    column("leader_epoch", BigInteger, "of the last record read; -1 unknown"),
    column("commit_metadata", LargeBinary, "free text of the consumer, in UTF-8"),
    Index(None, "group_id"),
    deleted_with=("topic",),
    comment="Group offsets that Kafka clients have added to open transactions.",
)
