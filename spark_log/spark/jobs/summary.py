"""Formats the reports of a job: progress of each batch and a summary, as text, or as JSON lines for scripts."""

import json
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass

from spark_log.ids import TopicPartition
from spark_log.maintenance.removal.expired_records import Expired
from spark_log.spark.datasource.options.offset_json import offsets_to_dict
from spark_log.text import count_of, rate_of

_PARTITIONS_SHOWN_MAX = 32


@dataclass(frozen=True)
class BatchProgress:
    """The progress of one batch of a streaming query."""

    batch_id: int
    records: int
    bytes: int
    records_per_s: float
    behind: int | None
    """Number of records of the sources that the query has not read, or None if the sources do not report it."""
    late: int = 0
    """Number of late rows that were dropped (see `spark_log.spark.streams.windows.late_records`)."""


@dataclass(frozen=True)
class Stages:
    """The durations of a job's parts, in seconds. A stream has sums over its batches, without waits between them."""

    start: float = 0.0
    """Time until Spark's session is ready; 0 in a session that the job did not start."""
    planning: float = 0.0
    """Time until the first task: schema inference, offsets, query plan."""
    writing: float = 0.0
    """Time until the last task has ended: reading, transforming and writing."""
    commit: float = 0.0
    """Time after the last task: the commit of the write, and the reads for the summary."""

    def plus(self, other: "Stages") -> "Stages":
        return Stages(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True)
class Summary:
    """The result of a job.

    `before` and `after` are the next offset of each partition before and after the job: of the topics that consume
    reads, or that produce writes.
    """

    job: str
    records: int
    bytes: int
    """Total bytes of keys and values."""
    seconds: float
    """Duration without the start of Spark."""
    before: Mapping[TopicPartition, int]
    after: Mapping[TopicPartition, int]
    malformed: int = 0
    """Number of values that are not of --value-schema."""
    late: int = 0
    """Number of rows that were dropped because they were later than the watermark."""
    expired: Expired | None = None
    """The written records that are older than retention.ms, if there are any."""
    stages: Stages | None = None


def progress_line(progress: BatchProgress, as_json: bool) -> str:
    if as_json:
        return json.dumps({"event": "progress", **vars(progress), "records_per_s": round(progress.records_per_s, 1)})
    behind = "" if progress.behind is None else f", {progress.behind:,} behind"
    late = f", {progress.late:,} late" if progress.late else ""
    rate = f"{progress.records_per_s:,.0f} records/s"
    return f"batch {progress.batch_id}: {count_of(progress.records, 'record')}, {rate}{behind}{late}"


def summary_lines(summary: Summary, as_json: bool) -> list[str]:
    if as_json:
        facts = {
            "event": "summary",
            "job": summary.job,
            "records": summary.records,
            "bytes": summary.bytes,
            "malformed": summary.malformed,
            "late": summary.late,
            "expired": summary.expired and asdict(summary.expired),
            "seconds": round(summary.seconds, 3),
            "stages": summary.stages and {name: round(taken, 3) for name, taken in asdict(summary.stages).items()},
            "before": offsets_to_dict(summary.before),
            "after": offsets_to_dict(summary.after),
        }
        return [json.dumps(facts)]
    rate = rate_of(summary.records, summary.seconds) if summary.stages is None else ""
    size = f"{summary.bytes / 2**20:,.1f} MiB" if summary.bytes >= 2**20 else count_of(summary.bytes, "byte")
    lines = [f"{summary.job}: {count_of(summary.records, 'record')}, {size}, {summary.seconds:.1f} s{rate}"]
    if summary.stages is not None:
        lines.append(f"  {_stages_text(summary.stages, summary.records)}")
    if summary.malformed:
        one = summary.malformed == 1
        went = f"{'it' if one else 'they'} went to --dead-letter-topic"
        seen = "see column _malformed" if summary.job == "consume" else went
        lines.append(f"  {count_of(summary.malformed, 'value')} {'is' if one else 'are'} not of --value-schema: {seen}")
    if summary.late:
        were = "was" if summary.late == 1 else "were"
        lines.append(f"  {count_of(summary.late, 'row')} {were} later than the watermark, and dropped")
    shown = sorted(summary.after.items())[:_PARTITIONS_SHOWN_MAX]
    for tp, after in shown:
        before = summary.before.get(tp, 0)
        lines.append(f"  {tp}: offset {before:,} -> {after:,} ({after - before:+,})")
    if len(summary.after) > len(shown):
        lines.append(f"  … and {count_of(len(summary.after) - len(shown), 'partition')} more")
    if summary.expired is not None:
        lines.append(f"  Warning: {summary.expired}")
    return lines


def _stages_text(stages: Stages, records: int) -> str:
    rate = rate_of(records, stages.writing).removeprefix(", ")
    parts = [
        f"planning {stages.planning:.1f} s",
        f"writing {stages.writing:.1f} s" + (f" ({rate})" if rate else ""),
        f"commit {stages.commit:.1f} s",
    ]
    if stages.start:
        parts.append(f"before that {stages.start:.1f} s to start Spark")
    return ", ".join(parts)


def print_lines(*lines: str) -> None:
    """Print and flush: stdout of a job is a pipe to spark-submit, so Python would buffer it."""
    print("\n".join(lines), flush=True)
