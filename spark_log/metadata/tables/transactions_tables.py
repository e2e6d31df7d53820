"""Tables of transactions of producers."""

from sqlalchemy import BigInteger, Boolean, String, Text

from spark_log.metadata.tables.definition import column, partition_number, tables_of, topic_id

_table = tables_of("transactions")

transaction = _table(
    "transaction",
    column("producer_id", BigInteger, "producer.producer_id", primary_key=True),
    column("producer_epoch", BigInteger, "epoch that began it"),
    column(
        "number",
        BigInteger,
        "number of the transaction of this producer, so that a late commit cannot affect a newer one",
    ),
    column("state", String(16), "Empty, Ongoing, CompleteCommit or CompleteAbort"),
    column("began_ms", BigInteger, "store clock"),
    column("until_ms", BigInteger, "store clock; after it the coordinator aborts the transaction"),
    column("clock_epoch", String(64), "boot id of the host when until_ms was written (SQLite)"),
    comment="The current or last transaction of a producer.",
)

transaction_segment = _table(
    "transaction_segment",
    column("producer_id", BigInteger, "transaction.producer_id", primary_key=True),
    column("position", BigInteger, "order of the sends", primary_key=True),
    topic_id(),
    partition_number(),
    column("facts", Text, "JSON of the batch, for the append at commit"),
    column("name", String(96), "the future segment.name", unique=True),
    column("inline", Boolean, "the future segment.inline"),
    comment="Batches of open transactions: without offsets, invisible to readers.",
)
