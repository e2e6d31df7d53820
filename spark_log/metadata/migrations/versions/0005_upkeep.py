"""What upkeep must know: the age of segments, whose a retired file was, and how far compaction has come."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column(
        "segment",
        sa.Column(
            "appended_ms",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="store clock; of a rewritten segment, that of the latest append in it: how old it is, whatever its timestamps",
        ),
    )
    # with the offset: the first blob of a tail says how old it is
    op.drop_index("ix_segment_inline", table_name="segment")
    op.create_index(
        "ix_segment_inline",
        "segment",
        ["topic_id", "partition", "base_offset"],
        sqlite_where=sa.text("inline = 1"),
        postgresql_where=sa.text("inline"),
    )
    for name, type_, nullable, comment in (
        ("topic_id", sa.BigInteger(), False, "topic.topic_id, also of a topic that is gone"),
        ("partition", sa.Integer(), True, "number of the partition in its topic; NULL: the path is a topic's folder"),
        (
            "change",
            sa.BigInteger(),
            False,
            "partition.change when the file went, so that publication finds what is gone",
        ),
    ):
        default = None if nullable else sa.text("0")
        op.add_column(
            "retired_file", sa.Column(name, type_, nullable=nullable, server_default=default, comment=comment)
        )
    _say_whose_they_are()
    op.create_index(
        op.f("ix_retired_file_topic_id_partition_change"), "retired_file", ["topic_id", "partition", "change"]
    )
    op.create_index(op.f("ix_retired_file_retired_ms"), "retired_file", ["retired_ms"])
    op.create_table(
        "compaction",
        sa.Column("topic_id", sa.BigInteger(), nullable=False, comment="topic.topic_id"),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column(
            "end_offset",
            sa.BigInteger(),
            nullable=False,
            comment="every record below it that a later one below it had overwritten was gone by then",
        ),
        sa.Column(
            "at_ms",
            sa.BigInteger(),
            nullable=False,
            comment="store clock; a tombstone below end_offset may go delete.retention.ms later",
        ),
        sa.Column(
            "tombstone_count", sa.BigInteger(), nullable=False, comment="tombstones that it left below end_offset"
        ),
        sa.PrimaryKeyConstraint("topic_id", "partition", "end_offset", name=op.f("pk_compaction")),
        comment="Compactions that were completed. The largest end_offset is where the dirty part of the log begins.",
    )


def _say_whose_they_are() -> None:
    """Until now only elections' cuts and deleted topics retired anything; whose it was is in the path."""
    connection = op.get_bind()
    rows = connection.execute(sa.text("SELECT topic_id, name, uuid FROM topic")).all()
    topics = {f"{name}-{uuid[:8]}": topic_id for topic_id, name, uuid in rows}
    for (path,) in connection.execute(sa.text("SELECT path FROM retired_file")).all():
        folder, _, rest = path.partition("/")
        row = {"path": path, "topic_id": topics.get(folder, 0), "number": int(rest.split("/")[1]) if rest else None}
        # publication may still have to take it out of a table: as if it had gone with the last change
        query = "SELECT max(change) FROM partition WHERE topic_id = :topic_id AND partition = :number"
        row["change"] = connection.execute(sa.text(query), row).scalar() or 0
        update = (
            "UPDATE retired_file SET topic_id = :topic_id, partition = :number, change = :change WHERE path = :path"
        )
        connection.execute(sa.text(update), row)
