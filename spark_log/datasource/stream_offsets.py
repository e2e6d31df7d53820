"""What a streaming query's checkpoint holds. Pure.

    {"t":{"0":5,"1":7},"@topics":{"t":3},"@cluster":"…"}                       the end of a batch
    {"t":{"0":5,"1":7},"@topics":{"t":3},"@start":{"t":{"0":0,"1":2}},…}       the end of batch 0

`@` is in no topic's name. `@topics` are the ids of the topics, so that one deleted and created again is not taken for
the old one; `@cluster` is the id of the cluster, so that a sink knows whose offsets these are. Spark does not store
where a query started and asks anew when it replays batch 0: so its start is kept with its end.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_log.datasource.offsets import offsets_from_dict, offsets_to_dict
from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicId, TopicPartition

_TOPICS, _START, _START_TOPICS, _INITIAL, _CLUSTER = "@topics", "@start", "@start-topics", "@initial", "@cluster"
_OURS = (_TOPICS, _START, _START_TOPICS, _INITIAL, _CLUSTER)


@dataclass(frozen=True)
class StreamOffset:
    """Next offset of each partition, the ids of their topics; for the end of batch 0, where it starts."""

    offsets: Mapping[TopicPartition, int]
    topic_ids: Mapping[str, TopicId]
    start: Mapping[TopicPartition, int] | None = None
    start_topic_ids: Mapping[str, TopicId] | None = None
    initial: bool = False
    cluster_id: str | None = None
    """None in a checkpoint that an older version began."""

    def followed_by(self, offsets: Mapping[TopicPartition, int], topic_ids: Mapping[str, TopicId]) -> "StreamOffset":
        """The end of the batch that starts here."""
        if self.initial:
            return StreamOffset(offsets, topic_ids, self.offsets, self.topic_ids, cluster_id=self.cluster_id)
        return StreamOffset(offsets, topic_ids, cluster_id=self.cluster_id)

    def to_json(self) -> dict[str, Any]:
        shown: dict[str, Any] = dict(offsets_to_dict(self.offsets))
        if self.topic_ids:
            shown[_TOPICS] = dict(sorted(self.topic_ids.items()))
        if self.start is not None:
            shown[_START] = offsets_to_dict(self.start)
            shown[_START_TOPICS] = dict(sorted((self.start_topic_ids or {}).items()))
        if self.initial:
            shown[_INITIAL] = True
        if self.cluster_id is not None:
            shown[_CLUSTER] = self.cluster_id
        return shown

    @classmethod
    def from_json(cls, shown: Mapping[str, Any]) -> "StreamOffset":
        """InvalidOptionError if the checkpoint holds something else."""
        unknown = [key for key in shown if key.startswith("@") and key not in _OURS]
        if unknown:
            raise InvalidOptionError(f"checkpoint: offset has {unknown[0]!r}, which a newer spark-log may have written")
        return cls(
            offsets_from_dict({key: value for key, value in shown.items() if not key.startswith("@")}),
            shown.get(_TOPICS, {}),
            offsets_from_dict(shown[_START]) if _START in shown else None,
            shown.get(_START_TOPICS),
            bool(shown.get(_INITIAL, False)),
            shown.get(_CLUSTER),
        )
