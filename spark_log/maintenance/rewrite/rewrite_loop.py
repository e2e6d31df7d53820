"""Runs the tasks that rewrite segments: several partitions at the same time, one report per topic."""

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.errors import NotCoordinatorError, SparkLogError, redact
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Amount, Report
from spark_log.maintenance.rewrite.segment_rewrite import Rewriting, Written
from spark_log.tables.publication import try_publish

logger = logging.getLogger(__name__)

Rewrites = Callable[[Topic, int], Iterator[tuple[Rewriting, Written]]]
"""Does the work of one partition, and yields each swap when it is done."""

_KEEP_S = 30.0


@dataclass
class _Done:
    """The result of one partition. If an `error` ended it early, the swaps before it stay."""

    before: Amount = field(default_factory=Amount)
    after: Amount = field(default_factory=Amount)
    error: Exception | None = None
    seconds: float = 0.0


def rewrite_partitions(
    context: MaintenanceContext,
    task: str,
    wanted: Sequence[tuple[Topic, Sequence[int]]],
    rewrites: Rewrites,
    threads: int,
) -> Iterator[Report]:
    """Do the work of these partitions; yields a report for each changed or failed topic, once its table is published.

    A failing partition does not stop the others: its error is noted, and the first error is raised at the end. Raises
    NotCoordinatorError at once.
    """
    failed: Exception | None = None
    pool = ThreadPoolExecutor(threads, f"spark-log-{task}")
    try:
        jobs = [
            (topic, {number: pool.submit(_rewrite, context, rewrites, topic, number) for number in numbers})
            for topic, numbers in wanted
        ]
        for topic, futures in jobs:
            _wait(context, list(futures.values()))
            done = {number: future.result() for number, future in futures.items()}
            errors = {number: each.error for number, each in done.items() if each.error is not None}
            failed = failed or next(iter(errors.values()), None)
            changed = [each for each in done.values() if each.before]
            began_s = clock.monotonic_s()
            published = not changed or try_publish(context.cluster, [topic])
            if changed or errors:
                seconds = sum(each.seconds for each in done.values()) + clock.monotonic_s() - began_s
                before = sum((each.before for each in changed), Amount())
                after = sum((each.after for each in changed), Amount())
                notes = tuple(f"partition {number}: {redact(str(error))}" for number, error in errors.items())
                if not published:
                    notes += ("a Delta table was not updated, and is tried again",)
                yield Report(task, topic.name, len(changed), before, after, notes, seconds=seconds)
    finally:
        pool.shutdown(cancel_futures=True)
    if failed is not None:
        raise failed


def _rewrite(context: MaintenanceContext, rewrites: Rewrites, topic: Topic, partition: int) -> _Done:
    done, began_s = _Done(), clock.monotonic_s()
    try:
        if context.stopping():
            return done
        for rewriting, written in rewrites(topic, partition):
            inputs = rewriting.inputs
            done.before += Amount(
                len(inputs), sum(each.bytes for each in inputs), sum(each.record_count for each in inputs)
            )
            done.after += Amount(1, written.facts.bytes, written.facts.record_count)
            if context.stopping():
                break
    except NotCoordinatorError:
        raise
    except (SparkLogError, OSError) as error:
        done.error = error
    except Exception as error:  # a bug: the other topics go on
        logger.exception("%s-%s: not rewritten", topic.name, partition)
        done.error = error
    done.seconds = clock.monotonic_s() - began_s
    return done


def _wait(context: MaintenanceContext, futures: Sequence[Future[_Done]]) -> None:
    """Wait until all are done; meanwhile keep the write id, since writing a file may take long."""
    while wait(futures, timeout=_KEEP_S).not_done:
        context.writer.keep()
