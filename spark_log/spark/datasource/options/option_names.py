"""Finds unknown option names that resemble the name of an option, and so are probably typing errors.

Unknown options are ignored, because Spark passes options of its own (`path`, `queryName`). So the driver warns of names
that look misspelt.
"""

import logging
import re
from collections.abc import Iterable
from difflib import get_close_matches

from spark_log.spark.datasource.options.kafka_options import KAFKA_OPTIONS, PREFIX, Ignored

logger = logging.getLogger(__name__)

OPTIONS = (
    "assign", "checkpointLocation", "cluster", "columns", "endingOffsets", "endingOffsetsByTimestamp",
    "endingTimestamp", "failOnDataLoss", "group.id", "groupIdPrefix", "includeHeaders", "maxBytesPerTrigger",
    "maxOffsetsPerTrigger", "maxRecordsPerPartition", "maxTriggerDelay", "minOffsetsPerTrigger", "minPartitions",
    "startingLineage", "startingOffsets", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy",
    "startingTimestamp", "subscribe", "subscribePattern", "topic", "transaction", "txnAppId", "txnVersion",
)  # fmt: skip
"""The options of reads and writes without the prefix `kafka.`."""

_SIMILARITY_MIN = 0.85
_WITH_EFFECT = {
    name.lower(): name
    for name in (
        *OPTIONS,
        *(PREFIX + name for name, decision in KAFKA_OPTIONS.items() if not isinstance(decision, Ignored)),
    )
    if "*" not in name
}


def is_option(name: str) -> bool:
    """Whether a read or a write has an option of this name that is not simply ignored."""
    return name.lower() in _WITH_EFFECT


def warn_of_misspelt_options(names: Iterable[str]) -> None:
    """Log a warning for each name that resembles the name of an option."""
    for name in names:
        option = resembled_option(name)
        if option is not None:
            logger.warning('Option %r of format("spark_log") has no effect. Did you mean %r?', name, option)


def resembled_option(name: str) -> str | None:
    """Return the option that `name` probably means, or None if `name` is an option or resembles none."""
    written = name.lower()
    of_kafka = KAFKA_OPTIONS.get(written.removeprefix(PREFIX))
    if written in _WITH_EFFECT or isinstance(of_kafka, Ignored):
        return None
    dotted = re.sub("[_-]", ".", written)
    for text in (dotted, PREFIX + dotted):
        for near in get_close_matches(text, _WITH_EFFECT, n=1, cutoff=_SIMILARITY_MIN):
            return _WITH_EFFECT[near]
    return None
