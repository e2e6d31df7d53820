"""The offset that a streaming query keeps in its checkpoint. Pure.

    {"t":{"0":5,"1":7},"@topics":{"t":3},"@epochs":{"t":{"0":2,"1":0}},"@cluster":"…"}    the end of a batch
    {"t":{"0":5,"1":7},"@topics":{"t":3},"@start":{"t":{"0":0,"1":2}},…}                  the end of batch 0

No topic name contains `@`. `@topics` are the ids of the topics: they distinguish a recreated topic from the deleted
one. `@epochs` are the leader epochs of the partitions when the offsets were decided: they reveal records that an
unclean election has truncated since. `@cluster` is the id of the cluster: topics of two clusters may have the same ids,
and a sink needs to know the cluster of the offsets. Spark does not store where a query started, and asks for the start
again when it replays batch 0. So the end of batch 0 contains the batch's start.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from spark_log.errors import InvalidOptionError, SparkLogError
from spark_log.ids import TopicId, TopicPartition
from spark_log.spark.datasource.options.offset_json import offsets_from_dict, offsets_to_dict

_TOPICS, _EPOCHS, _INITIAL, _CLUSTER = "@topics", "@epochs", "@initial", "@cluster"
_START, _START_TOPICS, _START_EPOCHS = "@start", "@start-topics", "@start-epochs"
OUR_KEYS = (_TOPICS, _EPOCHS, _START, _START_TOPICS, _START_EPOCHS, _INITIAL, _CLUSTER)

_OF_ANOTHER_CLUSTER = TopicId(0)
"""The id of no topic."""

Epochs = Mapping[TopicPartition, int]


@dataclass(frozen=True)
class Positions:
    """The next offset of each partition, the ids of their topics, and the leader epochs when the offsets were decided.

    Checkpoints of older versions have no epochs.
    """

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, TopicId]
    epochs: Epochs = field(default_factory=dict)

    def of_another_cluster(self) -> "Positions":
        """Return the positions with an id that no topic has: every topic of the cluster counts as recreated."""
        return Positions(self.offsets, {tp.topic: _OF_ANOTHER_CLUSTER for tp in self.offsets})


@dataclass(frozen=True)
class StreamOffset:
    """The end of a batch. That of batch 0 also has the batch's start."""

    positions: Positions
    start: Positions | None = None
    initial: bool = False
    cluster_id: str | None = None
    """The id of the cluster, or None in a checkpoint that an older version began."""

    def followed_by(self, positions: Positions) -> "StreamOffset":
        """Return the end, at `positions`, of the batch that starts here."""
        start = self.positions if self.initial else None
        return StreamOffset(positions, start, cluster_id=self.cluster_id)

    def in_cluster(self, cluster_id: str) -> "StreamOffset":
        """Return the offset for a query of this cluster, where topics of another cluster count as recreated."""
        if self.cluster_id in (None, cluster_id):
            return self
        start = None if self.start is None else self.start.of_another_cluster()
        return replace(self, positions=self.positions.of_another_cluster(), start=start, cluster_id=cluster_id)

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = dict(offsets_to_dict(self.positions.offsets))
        if self.positions.topic_ids:
            shown[_TOPICS] = dict(sorted(self.positions.topic_ids.items()))
        if self.positions.epochs:
            shown[_EPOCHS] = offsets_to_dict(self.positions.epochs)
        if self.start is not None:
            shown[_START] = offsets_to_dict(self.start.offsets)
            shown[_START_TOPICS] = dict(sorted(self.start.topic_ids.items()))
            if self.start.epochs:
                shown[_START_EPOCHS] = offsets_to_dict(self.start.epochs)
        if self.initial:
            shown[_INITIAL] = True
        if self.cluster_id is not None:
            shown[_CLUSTER] = self.cluster_id
        return shown

    @classmethod
    def of_text(cls, text: str | None) -> "StreamOffset | None":
        """Parse the offset that Spark shows in the progress of a query. Return None without one, or if another kind of
        source wrote it. (An offset of Kafka's source is accepted: it has topics and offsets too.)
        """
        try:
            return cls.from_json(json.loads(text or "null"))
        except (ValueError, TypeError, AttributeError, SparkLogError):  # of files, a rate, or a newer spark-log
            return None

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> "StreamOffset":
        """Parse the JSON of a checkpoint. Raises InvalidOptionError if it has other content."""
        unknown = [key for key in shown if key.startswith("@") and key not in OUR_KEYS]
        if unknown:
            raise InvalidOptionError(f"checkpoint: offset has {unknown[0]!r}, which a newer spark-log may have written")
        offsets = offsets_from_dict({key: value for key, value in shown.items() if not key.startswith("@")})
        start = None
        if _START in shown:
            start = Positions(
                offsets_from_dict(shown[_START]),
                shown.get(_START_TOPICS, {}),
                offsets_from_dict(shown.get(_START_EPOCHS, {})),
            )
        positions = Positions(offsets, shown.get(_TOPICS, {}), offsets_from_dict(shown.get(_EPOCHS, {})))
        return cls(positions, start, bool(shown.get(_INITIAL, False)), shown.get(_CLUSTER))
