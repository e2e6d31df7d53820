"""Derives a Spark query's facts from the progress of its micro-batches, for Prometheus and the history. Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from spark_log.facts.metrics.history import Kind
from spark_log.facts.metrics.recorded_topics import Recorded
from spark_log.ids import TopicPartition

State = Literal["running", "terminated", "failed"]

_TEXT_MAX = 4_000


@dataclass(frozen=True)
class QueryFacts:
    """The facts of a Spark query. `rows` are records of all sources. `lags` has the number of records that the query
    has not read yet, for each partition of its spark_log topics; it is None if unknown. `ends` has the end offsets of
    each source as JSON. `total_rows` counts since this process has seen the query start.
    """

    query_id: str
    run_id: str
    name: str | None
    state: State = "running"
    error: str | None = None
    batch_id: int | None = None
    rows: int | None = None
    total_rows: int = 0
    input_rate: float | None = None
    processed_rate: float | None = None
    batch_s: float | None = None
    state_rows: int | None = None
    state_bytes: int | None = None
    progress_ms: int | None = None
    """When the last progress was reported, by the clock of this host."""
    ends: Sequence[str] = ()
    lags: Mapping[TopicPartition, int] | None = None

    @property
    def lag(self) -> int | None:
        """The number of records that the query has not read yet, over all partitions; None if unknown."""
        return None if self.lags is None else sum(self.lags.values())


def with_progress(facts: QueryFacts, progress: Any, now_ms: int) -> QueryFacts:
    """Return the facts after a StreamingQueryProgress."""
    operators = progress.stateOperators
    return replace(
        facts,
        batch_id=progress.batchId,
        rows=progress.numInputRows,
        total_rows=facts.total_rows + progress.numInputRows,
        input_rate=_finite(progress.inputRowsPerSecond),
        processed_rate=_finite(progress.processedRowsPerSecond),
        batch_s=progress.batchDuration / 1000,
        state_rows=sum(operator.numRowsTotal for operator in operators) if operators else None,
        state_bytes=sum(operator.memoryUsedBytes for operator in operators) if operators else None,
        progress_ms=now_ms,
        ends=tuple(source.endOffset for source in progress.sources if isinstance(source.endOffset, str)),
    )


def query_record(facts: QueryFacts) -> Recorded:
    """Return the record in topic `__metrics` that describes the query."""
    fields = {
        "query_name": facts.name,
        "run_id": facts.run_id,
        "state": facts.state,
        "error": None if facts.error is None else facts.error[:_TEXT_MAX],
        "batch_id": facts.batch_id,
        "lag": facts.lag,
        "input_records": facts.rows,
        "input_rate": facts.input_rate,
        "processed_rate": facts.processed_rate,
        "batch_s": facts.batch_s,
        "state_rows": facts.state_rows,
        "state_bytes": facts.state_bytes,
        "progress_ms": facts.progress_ms,
    }
    return Recorded(int(Kind.QUERY), facts.query_id, {"kind": "query", "name": facts.query_id, **fields})


def _finite(value: float | None) -> float | None:
    """Return None for a rate that Spark could not compute: the first micro-batch has no interval."""
    return value if value is not None and math.isfinite(value) else None
