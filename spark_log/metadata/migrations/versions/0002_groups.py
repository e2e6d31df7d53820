"""Consumer groups: whose partition is whose, and which generation the targets were computed for."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.create_table(
        "group_partition",
        sa.Column("group_id", sa.String(length=249), nullable=False, comment="consumer_group.group_id"),
        sa.Column(
            "topic",
            sa.String(length=249),
            nullable=False,
            comment="topic.name: what members hold, also while the topic is away",
        ),
        sa.Column("partition", sa.Integer(), nullable=False, comment="number of the partition in its topic, from 0"),
        sa.Column(
            "member_id",
            sa.String(length=249),
            nullable=False,
            comment="group_member.member_id: was given the partition and has not let go of it",
        ),
        sa.PrimaryKeyConstraint("group_id", "topic", "partition", name=op.f("pk_group_partition")),
        comment="Who owns a partition in a group: the primary key allows one at most.",
    )
    op.create_index(op.f("ix_group_partition_group_id_member_id"), "group_partition", ["group_id", "member_id"])
    op.add_column(
        "consumer_group",
        sa.Column(
            "target_generation",
            sa.BigInteger(),
            server_default=sa.text("0"),
            nullable=False,
            comment="generation that the members' targets were computed for; below generation they are stale",
        ),
    )
    op.add_column(
        "consumer_group",
        sa.Column(
            "topics",
            sa.Text(),
            server_default=sa.text("'{}'"),
            nullable=False,
            comment="JSON: name -> [topic_id, partition count] of the subscribed topics, as the targets assume them",
        ),
    )
    # Nobody has joined a group under revision 0001: the table is empty, and made anew.
    op.drop_table("group_member")
    op.create_table(
        "group_member",
        sa.Column("group_id", sa.String(length=249), nullable=False, comment="consumer_group.group_id"),
        sa.Column("member_id", sa.String(length=249), nullable=False, comment="made by the member, unique"),
        sa.Column("instance_id", sa.String(length=249), nullable=True, comment="group.instance.id of a static member"),
        sa.Column("client", sa.Text(), nullable=False, comment="client id and host, for describe"),
        sa.Column(
            "subscription",
            sa.Text(),
            nullable=False,
            comment="JSON: topics, and the assignors in order of preference with their user data",
        ),
        sa.Column("target", sa.Text(), nullable=False, comment="JSON: partitions that the assignor gave it"),
        sa.Column(
            "generation",
            sa.BigInteger(),
            nullable=False,
            comment="consumer_group.target_generation that it was told last; commits carry it",
        ),
        sa.Column(
            "beat",
            sa.BigInteger(),
            nullable=False,
            comment="number of its last heartbeat that was written; a lower one comes too late",
        ),
        sa.Column("session_timeout_ms", sa.Integer(), nullable=False, comment="silence that ends its membership"),
        sa.Column("until_ms", sa.BigInteger(), nullable=False, comment="store clock; end of its session"),
        sa.Column(
            "era", sa.String(length=64), nullable=False, comment="boot id under which until_ms was written (SQLite)"
        ),
        sa.PrimaryKeyConstraint("group_id", "member_id", name=op.f("pk_group_member")),
        comment="A member of a group.",
    )
    if op.get_bind().dialect.name == "postgresql":  # SQLite keeps no comments
        said: dict[str, tuple[sa.types.TypeEngine[Any], str]] = {
            "generation": (
                sa.BigInteger(),
                "grows with each change of members, subscriptions or their topics' partitions",
            ),
            "assignor": (sa.Text(), "name of the assignor that computed the targets"),
        }
        for name, (type_, comment) in said.items():
            op.alter_column("consumer_group", name, existing_type=type_, existing_nullable=False, comment=comment)
