"""Implements `spark-log partition reassign`: makes plans, executes them with a progress bar, shows and cancels them."""

import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import typer

from spark_log.cli.output import bytes_of, count_of, note, print_json, print_result, print_rows
from spark_log.cluster.cluster import Cluster
from spark_log.ids import TopicPartition
from spark_log.replication.controller.reassignment_rows import ReassignmentStatus, list_all_reassignments

Plan = Mapping[TopicPartition, Sequence[int]]


def parse_broker_ids(text: str, option: str) -> list[int]:
    """Parse a text such as `1,2,3` to broker ids, in this order."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"expected broker ids such as 1,2,3, got {text!r}", param_hint=option) from None


def read_plan(path: Path) -> Plan:
    from spark_log.replication.controller.assignment_json import parse_assignments

    return parse_assignments(sys.stdin.read() if str(path) == "-" else path.read_text())


def make_plan(
    cluster: Cluster, partitions: Sequence[TopicPartition], broker_ids: Sequence[int], factor: int | None
) -> Plan:
    """Return a plan that distributes the partitions over these brokers. It omits partitions that stay unchanged."""
    from spark_log.cluster.brokers import list_brokers
    from spark_log.errors import InvalidReplicationAssignmentError
    from spark_log.replication.controller.placement import BrokerLoad
    from spark_log.replication.controller.reassignment_proposal import propose

    by_id = {broker.broker_id: broker for broker in list_brokers(cluster)}
    for at, broker_id in enumerate(broker_ids):
        if broker_id not in by_id or broker_id in broker_ids[:at]:
            reason = (
                "is given twice" if broker_id in by_id else f"is not one of the brokers {', '.join(map(str, by_id))}"
            )
            raise InvalidReplicationAssignmentError(f"--to-brokers: {broker_id} {reason}")
    brokers = [
        BrokerLoad(by_id[i].broker_id, by_id[i].rack, {d.log_dir_id: d.replicas for d in by_id[i].log_dirs})
        for i in broker_ids
    ]
    now = _assignments(cluster, partitions)
    proposed = propose(now, brokers, factor)
    return {tp: replicas for tp, replicas in proposed.items() if replicas != tuple(now[tp])}


def execute(cluster: Cluster, plan: Plan, throttle_bytes_per_s: int | None, dry_run: bool, as_json: bool) -> None:
    """Begin and execute the plan. With `dry_run`, only print the plan as JSON, and its cost on stderr."""
    from spark_log.replication.controller.assignment_json import dump_assignments
    from spark_log.replication.controller.balance import load_all_replicas
    from spark_log.replication.controller.reassignment_proposal import moved_bytes
    from spark_log.replication.controller.reassignments import begin_reassignments

    now = _assignments(cluster, list(plan))
    sizes: dict[TopicPartition, int] = {}
    for facts in load_all_replicas(cluster):
        sizes[facts.tp] = max(sizes.get(facts.tp, 0), facts.file_bytes)
    cost = moved_bytes(now, plan, sizes)
    what = f"{count_of(len(plan), 'partition')}, {bytes_of(cost)} to copy"
    if dry_run:
        print_json(dump_assignments(plan))
        note(f"The plan changes {what}.")
        return
    if not plan:
        print_result(as_json, [], "All replicas are in place already.")
        return
    note(f"Moving {what}. To cancel: spark-log partition reassign --cancel")
    begin_reassignments(cluster, plan, throttle_bytes_per_s)
    _carry_out(cluster, plan, as_json)


def continue_reassignments(cluster: Cluster, partitions: Collection[TopicPartition], as_json: bool) -> None:
    chosen = set(partitions)
    under_way = {
        tp: status.reassignment.target for tp, status in list_all_reassignments(cluster).items() if tp in chosen
    }
    if not under_way:
        print_result(as_json, [], "No reassignment is in progress.")
        return
    _carry_out(cluster, under_way, as_json)


def cancel(cluster: Cluster, partitions: Collection[TopicPartition], as_json: bool) -> None:
    from spark_log.replication.controller.reassignments import begin_reassignments

    under_way = [tp for tp in list_all_reassignments(cluster) if tp in set(partitions)]
    begin_reassignments(cluster, dict.fromkeys(under_way))
    line = f"Cancelled the reassignment of {count_of(len(under_way), 'partition')}."
    print_result(as_json, [tp._asdict() for tp in under_way], line)


def show(cluster: Cluster, partitions: Collection[TopicPartition], as_json: bool) -> None:
    statuses = {tp: status for tp, status in list_all_reassignments(cluster).items() if tp in set(partitions)}
    document = [
        {
            **tp._asdict(),
            "target": list(status.reassignment.target),
            "original": list(status.reassignment.original),
            "replicas": list(status.replicas),
            "isr": list(status.in_sync),
            "bytes_left": status.bytes_left,
            "throttle_bytes_per_s": status.throttle_bytes_per_s,
            "began_ms": status.began_ms,
        }
        for tp, status in statuses.items()
    ]
    columns = ("partition", "from", "to", "replicas", "isr", "left", "throttle")
    rows = [_row(tp, status) for tp, status in statuses.items()]
    print_rows(as_json, document, columns, rows, "No reassignment is in progress.")


def _row(tp: TopicPartition, status: ReassignmentStatus) -> tuple[object, ...]:
    rate = status.throttle_bytes_per_s
    return (
        str(tp), _ids(status.reassignment.original), _ids(status.reassignment.target),
        _ids(status.replicas), _ids(status.in_sync), bytes_of(status.bytes_left),
        None if rate is None else f"{bytes_of(rate)}/s",
    )  # fmt: skip


def _carry_out(cluster: Cluster, targets: Plan, as_json: bool) -> None:
    """Run the reassignments to their end. Report the partitions that are then on other brokers than their targets."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    from spark_log.replication.replicas.replica_moves import UnderWay, run_reassignments

    partitions = list(targets)
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=None)

        def show_progress(left: UnderWay) -> None:
            bytes_left = sum(status.bytes_left for status in left.values())
            # records that arrive meanwhile may need to be copied too
            total = max(bar.tasks[0].total or 0, bytes_left + bar.tasks[0].completed)
            description = f"{len(partitions) - len(left):,} of {count_of(len(partitions), 'partition')} moved"
            bar.update(task, total=total, completed=total - bytes_left, description=description)

        try:
            run_reassignments(cluster, cluster.store.settings, partitions, show_progress)
        except KeyboardInterrupt:
            note("Stopped copying. To continue: spark-log partition reassign; to cancel: add --cancel.")
            raise typer.Exit(130) from None
    now = _assignments(cluster, partitions)
    elsewhere = [tp for tp in partitions if now[tp] != tuple(targets[tp])]
    document = [{**tp._asdict(), "replicas": list(now[tp])} for tp in partitions]
    print_result(as_json, document, f"Moved {count_of(len(partitions) - len(elsewhere), 'partition')}.")
    for tp in elsewhere:
        note(
            f"spark-log: partition {tp} is on brokers {_ids(now[tp])}, not on {_ids(targets[tp])}: its reassignment was"
            " cancelled or replaced"
        )
    if elsewhere:
        raise typer.Exit(1)


def _assignments(cluster: Cluster, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, tuple[int, ...]]:
    """Return the current assigned replicas (AR) of each partition. Raises UnknownTopicOrPartitionError."""
    from spark_log.errors import UnknownTopicOrPartitionError
    from spark_log.facts.topics import describe_topics

    names = sorted({tp.topic for tp in partitions})
    assignments = {
        TopicPartition(described.topic.name, part.partition): tuple(replica.broker_id for replica in part.replicas)
        for described in describe_topics(cluster, names)
        for part in described.partitions
    }
    for tp in partitions:
        if tp not in assignments:
            raise UnknownTopicOrPartitionError(f"partition {tp}: unknown topic or partition")
    return {tp: assignments[tp] for tp in partitions}


def _ids(broker_ids: Sequence[int]) -> str:
    return ",".join(map(str, broker_ids))
