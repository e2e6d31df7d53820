"""Option startingLineage: the log to which startingOffsets belong, if they were decided before the query starts.

    {"epochs":{"t":{"0":2}},"topics":{"t":3}}

`stream_topic` sets it for the records after its history. The query then detects, as it does for offsets of its
checkpoint, whether the topic was deleted or the log truncated since.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.errors import InvalidOptionError
from spark_log.ids import TopicId, TopicPartition
from spark_log.spark.datasource.options.offset_json import offsets_from_dict, offsets_to_dict


@dataclass(frozen=True)
class StartingLineage:
    """The ids of the topics, and the leader epochs of the partitions, when the starting offsets were decided."""

    topic_ids: Mapping[str, TopicId]
    epochs: Mapping[TopicPartition, int]

    def to_json(self) -> str:
        return json.dumps({"epochs": offsets_to_dict(self.epochs), "topics": dict(self.topic_ids)}, sort_keys=True)

    @staticmethod
    def parse(text: str, *, streaming: bool | None) -> "StartingLineage":
        """Parse the option. Raises InvalidOptionError, also for a batch, whose start is decided when it is planned."""
        try:
            shown = json.loads(text)
            topic_ids = {str(name): TopicId(int(number)) for name, number in shown["topics"].items()}
            epochs = offsets_from_dict(shown["epochs"])
        except (ValueError, LookupError, TypeError, AttributeError, InvalidOptionError):
            topic_ids = None
        if topic_ids is None or streaming is False:
            raise InvalidOptionError(f"Option 'startingLineage' ({text!r}) is set by stream_topic, for streams")
        return StartingLineage(topic_ids, epochs)
