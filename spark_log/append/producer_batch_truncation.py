"""Removal of remembered producer batches (which make retries safe) after a truncation."""

import sqlalchemy as sa

from spark_log.metadata import tables as t
from spark_log.metadata.columns import PRODUCER_BATCH


def delete_batches_above(connection: sa.Connection, key: tuple[int, int], offset: int) -> None:
    """Delete the batches of the partition (topic id, number) that end above `offset`: their records were removed."""
    here = (
        (PRODUCER_BATCH.topic_id == key[0])
        & (PRODUCER_BATCH.partition == key[1])
        & (PRODUCER_BATCH.end_offset > offset)
    )
    connection.execute(t.producer_batch.delete().where(here))
