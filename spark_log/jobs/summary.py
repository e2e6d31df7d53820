"""What a job tells: progress of each batch and a summary, as lines for people or as JSON lines for scripts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from spark_log.ids import TopicPartition

_PARTITIONS_SHOWN_MAX = 32


@dataclass(frozen=True)
class BatchProgress:
    """One batch of a streaming query."""

    batch_id: int
    records: int
    bytes: int
    records_per_s: float
    behind: int | None
    """Records that the source has and the query has not; None where the source cannot tell."""


@dataclass(frozen=True)
class Summary:
    """What a job did. `before` and `after`: next offset of each partition, of the source for consume, of the target for
    produce."""

    job: str
    records: int
    bytes: int
    """Of keys and values."""
    seconds: float
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]
    malformed: int = 0
    """Values that are no JSON of --value-schema."""


def progress_line(progress: BatchProgress, as_json: bool) -> str:
    if as_json:
        return json.dumps({"event": "progress", **vars(progress), "records_per_s": round(progress.records_per_s, 1)})
    behind = "" if progress.behind is None else f", {progress.behind:,} behind"
    return f"batch {progress.batch_id}: {progress.records:,} records, {progress.records_per_s:,.0f} records/s{behind}"


def summary_lines(summary: Summary, as_json: bool) -> list[str]:
    if as_json:
        facts = {
            "event": "summary",
            "job": summary.job,
            "records": summary.records,
            "bytes": summary.bytes,
            "malformed": summary.malformed,
            "seconds": round(summary.seconds, 3),
            "before": _nested(summary.before),
            "after": _nested(summary.after),
        }
        return [json.dumps(facts)]
    rate = f", {summary.records / summary.seconds:,.0f} records/s" if summary.seconds > 0 else ""
    size = f"{summary.bytes / 2**20:,.1f} MiB" if summary.bytes >= 2**20 else f"{summary.bytes:,} bytes"
    lines = [f"{summary.job}: {summary.records:,} records, {size}, {summary.seconds:.1f} s{rate}"]
    if summary.malformed:
        lines.append(f"  {summary.malformed:,} values are not JSON of --value-schema: see column _malformed")
    shown = sorted(summary.after.items())[:_PARTITIONS_SHOWN_MAX]
    for tp, after in shown:
        before = summary.before.get(tp, 0)
        lines.append(f"  {tp.topic}-{tp.partition}: offset {before:,} -> {after:,} ({after - before:+,})")
    if len(summary.after) > len(shown):
        lines.append(f"  … and {len(summary.after) - len(shown):,} partitions more")
    return lines


def tell(*lines: str) -> None:
    """Print at once: the output of a job is a pipe to spark-submit."""
    print("\n".join(lines), flush=True)


def _nested(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    nested: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        nested.setdefault(topic, {})[str(partition)] = offset
    return nested
