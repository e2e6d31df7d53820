"""Runs the tasks that rewrite segments: several partitions at the same time, one report per topic."""

import logging
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

from spark_log import clock
from spark_log.cluster.topics import Topic
from spark_log.errors import NotCoordinatorError, SparkLogError, redact
from spark_log.ids import TopicId
from spark_log.maintenance.context import MaintenanceContext
from spark_log.maintenance.report import Amount, Report
from spark_log.maintenance.rewrite.rewrite_plan import Rewriting
from spark_log.maintenance.rewrite.segment_rewrite import Written
from spark_log.tables.publication import try_publish

logger = logging.getLogger(__name__)

Rewrites = Callable[[Topic, int], Iterator[tuple[Rewriting, Written]]]
"""Does the work of one partition, and yields each swap when it is done."""

Publish = Callable[[Sequence[Topic]], Collection[TopicId]]
"""Publishes topics, and returns those of which a table was not updated."""

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
    topic_partitions: Sequence[tuple[Topic, Sequence[int]]],
    rewrites: Rewrites,
    threads: int,
    publish: Publish | None = None,
) -> Iterator[Report]:
    """Do the work of these partitions; yields a report for each changed or failed topic, once its table is published.
    Topics that are done at the same time are published together, and do not wait for those that take longer.

    A failing partition does not stop the others: its error is noted, and the first error is raised at the end. Raises
    NotCoordinatorError at once.
    """
    failed: Exception | None = None
    pool = ThreadPoolExecutor(threads, f"spark-log-{task}")
    ended: SimpleQueue[int] = SimpleQueue()
    """The index of the topic of each partition that has ended."""
    try:
        jobs = [
            (topic, {number: pool.submit(_rewrite, context, rewrites, topic, number) for number in numbers})
            for topic, numbers in topic_partitions
        ]
        for index, (_, futures) in enumerate(jobs):
            for future in futures.values():
                future.add_done_callback(lambda _, index=index: ended.put(index))  # type: ignore[misc]
        left = {index: len(futures) for index, (_, futures) in enumerate(jobs) if futures}
        while left:
            results = [
                (topic, {number: future.result() for number, future in futures.items()})
                for topic, futures in (jobs[index] for index in _next_done(context, left, ended))
            ]
            changed = [topic for topic, done in results if any(each.before for each in done.values())]
            began_s = clock.monotonic_s()
            behind = _publish(context, changed, publish)
            publishing_s = (clock.monotonic_s() - began_s) / max(1, len(changed))
            for topic, done in results:
                failed = failed or next((each.error for each in done.values() if each.error is not None), None)
                report = _report(task, topic, done, publishing_s, behind=topic.topic_id in behind)
                if report is not None:
                    yield report
    finally:
        pool.shutdown(cancel_futures=True)
    if failed is not None:
        raise failed


def _next_done(context: MaintenanceContext, left: dict[int, int], ended: "SimpleQueue[int]") -> list[int]:
    """Wait until all partitions of some topic have ended, whichever it is, and return the indexes of all such topics.
    Meanwhile keep the write id, since writing a file may take long. `left` counts the partitions by topic.
    """
    done: list[int] = []
    while not done or not ended.empty():
        try:
            index = ended.get(timeout=_KEEP_S)
        except Empty:
            context.writer.keep()
            continue
        left[index] -= 1
        if not left[index]:
            del left[index]
            done.append(index)
    context.writer.keep()
    return sorted(done)


def _publish(context: MaintenanceContext, topics: Sequence[Topic], publish: Publish | None) -> Collection[TopicId]:
    if publish is not None and topics:
        return publish(topics)
    return [topic.topic_id for topic in topics if not try_publish(context.cluster, [topic])]


def _report(task: str, topic: Topic, done: Mapping[int, _Done], publishing_s: float, *, behind: bool) -> Report | None:
    """Return the report of a topic, None if nothing of it was changed and nothing failed."""
    errors = {number: outcome.error for number, outcome in done.items() if outcome.error is not None}
    changed = [outcome for outcome in done.values() if outcome.before]
    if not changed and not errors:
        return None
    seconds = sum(outcome.seconds for outcome in done.values()) + (publishing_s if changed else 0.0)
    notes = tuple(f"partition {number}: {redact(str(error))}" for number, error in errors.items())
    if behind:
        notes += ("a Delta table was not updated, and is tried again",)
    before = sum((outcome.before for outcome in changed), Amount())
    after = sum((outcome.after for outcome in changed), Amount())
    return Report(task, topic.name, len(changed), before, after, notes, seconds=seconds)


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
