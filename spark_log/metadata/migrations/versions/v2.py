"""Beats of the coordinator and the time of an accepted promotion, in table cluster. Rewritings of a partition are
counted, so that readers forget the records that they have kept of old segments; classic members of groups have a
rebalance timeout; producer ids have an owner.
"""

import sqlalchemy as sa
from alembic import op

revision = "v2"
down_revision = "v1"


def upgrade() -> None:
    """Add the columns."""
    op.add_column("cluster", sa.Column("beat", sa.BigInteger(), nullable=False, server_default="0"))
    op.add_column("cluster", sa.Column("beat_ms", sa.BigInteger(), nullable=True))
    op.add_column("cluster", sa.Column("synchronous", sa.Boolean(), nullable=True))
    op.add_column("cluster", sa.Column("promoted_ms", sa.BigInteger(), nullable=True))
    comment = (
        "grows when segments are replaced by a file: what a reader has kept of them may be records that were erased"
    )
    rewrites = sa.Column("rewrites", sa.BigInteger(), nullable=False, server_default=sa.text("0"), comment=comment)
    op.add_column("partition", rewrites)
    comment = "principal that got the id from a gateway with ACLs; NULL: another producer"
    op.add_column("producer", sa.Column("owner", sa.Text(), nullable=True, comment=comment))
    comment = "of a classic member: it must join again this time after a new assignment; 0: no limit"
    timeout = sa.Column(
        "rebalance_timeout_ms", sa.Integer(), nullable=False, server_default=sa.text("0"), comment=comment
    )
    op.add_column("group_member", timeout)
    comment = "store clock; NULL: it need not join again"
    op.add_column("group_member", sa.Column("rejoin_by_ms", sa.BigInteger(), nullable=True, comment=comment))
