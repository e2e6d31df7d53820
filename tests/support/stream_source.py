"""The streaming source driven as Spark drives it, without Spark: one trigger after the other, from a checkpoint."""

import json
from typing import Any

from spark_log.cluster.cluster import Cluster
from spark_log.spark.datasource.read.stream_reader import StreamReader
from spark_log.spark.datasource.source import SparkLogDataSource
from tests.support.spark_sink import address_of

Row = tuple[int, bytes]
"""Offset and value."""


class StreamQuery:
    """A query over topic t from its earliest offsets. `checkpoint` is the end of its last batch, as Spark stores it."""

    def __init__(self, cluster: Cluster, **options: Any) -> None:
        given = {"cluster": address_of(cluster), "subscribe": "t", "startingOffsets": "earliest", **options}
        self._options = {key.replace("__", "."): str(value) for key, value in given.items()}
        self.reader = self._reader()
        self.checkpoint: dict[str, Any] = stored(self.reader.initialOffset())

    def _reader(self) -> StreamReader:
        source = SparkLogDataSource(self._options)
        return source.streamReader(source.schema())

    def restart(self, **options: Any) -> None:
        self.reader.stop()
        self._options |= {key: str(value) for key, value in options.items()}
        self.reader = self._reader()

    def plan(self) -> dict[str, Any]:
        """The end of the next batch; the checkpoint if there is nothing new."""
        return stored(self.reader.latestOffset(self.checkpoint, self.reader.getDefaultReadLimit()))

    def run(self, end: dict[str, Any]) -> list[Row]:
        """The batch's records by offset, after the commit of the previous batch for the group."""
        if "@initial" not in self.checkpoint:
            self.reader.commit(self.checkpoint)
        rows: list[Row] = []
        for task in self.reader.partitions(self.checkpoint, end):
            for batch in self.reader.read(task):
                rows += zip(batch.column("offset").to_pylist(), batch.column("value").to_pylist(), strict=True)
        self.checkpoint = end
        return sorted(rows)

    def trigger(self) -> list[Row]:
        end = self.plan()
        return [] if end == self.checkpoint else self.run(end)


def stored(offset: dict[str, Any]) -> dict[str, Any]:
    found = json.loads(json.dumps(offset))
    assert isinstance(found, dict)
    return found
