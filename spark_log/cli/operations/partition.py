"""The commands `spark-log partition …`, which elect leaders, move replicas, and show balance and truncations."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli.output import bytes_of, count_of, note, print_json, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, parse_bytes, topics_option
from spark_log.ids import TopicPartition
from spark_log.text import some_of

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster

app = typer.Typer(no_args_is_help=True, help="Elect leaders, move replicas, show balance and truncations.")

TopicNames = Annotated[list[str] | None, topics_option("Repeatable.")]


@app.command()
def elect(
    cluster: Cluster_,
    topic: TopicNames = None,
    partition: Annotated[
        list[int] | None,
        typer.Option("--partition", "-p", metavar="N", help="A partition of the one --topic; repeatable."),
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every partition of every topic.")] = False,
    unclean: Annotated[
        bool,
        typer.Option(
            "--unclean/--preferred",
            help="Unclean: elect a replica that may lack records where no in-sync replica is alive. "
            "Preferred: elect the first of AR.",
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask before an unclean election.")] = False,
    as_json: Json = False,
) -> None:
    """Elect preferred leaders. With --unclean, elect leaders that may lack records, for offline partitions.

    **Examples**

    - `spark-log partition elect --all`
    - `spark-log partition elect --unclean --topic events --partition 3`
    """
    from spark_log.errors import ElectionNotNeededError
    from spark_log.replication.controller.requested_elections import elect as hold
    from spark_log.replication.controller.requested_elections import expected_truncations

    if all_ == bool(topic):
        raise typer.BadParameter("expected either --topic or --all")
    if partition and len(topic or ()) != 1:
        raise typer.BadParameter("expected one --topic with it", param_hint="--partition")
    with open_cluster(cluster) as opened:
        chosen = _partitions(opened, topic or [])
        if partition:
            chosen = [TopicPartition((topic or [""])[0], number) for number in partition]
        if unclean and not yes:
            for tp, (start, end) in expected_truncations(opened, chosen).items():
                note(f"{tp}: the election removes the records from offset {start:,} to {end - 1:,}.")
            typer.confirm("An unclean election may lose acknowledged records. Hold it?", abort=True, err=True)
        outcomes = hold(opened, chosen, unclean=unclean)
    elected = [tp for tp, error in outcomes.items() if error is None]
    refused = {tp: e for tp, e in outcomes.items() if e is not None and not isinstance(e, ElectionNotNeededError)}
    if as_json:
        print_json(
            [
                {**tp._asdict(), "elected": error is None, "error": None if error is None else str(error)}
                for tp, error in outcomes.items()
            ]
        )
    else:
        needless = len(outcomes) - len(elected) - len(refused)
        say(f"{count_of(len(elected), 'partition')} with a new leader, {needless:,} needed none.")
        for tp in elected:
            say(f"{tp}: elected")
    for error in refused.values():
        note(f"spark-log: {error}")
    if refused:
        raise typer.Exit(1)


@app.command()
def balance(cluster: Cluster_, as_json: Json = False) -> None:
    """Show how evenly bytes, records and leaders are distributed, and which partitions cause an imbalance."""
    from spark_log.errors import redact
    from spark_log.replication.controller.balance import load_balance

    with open_cluster(cluster) as opened:
        loads = load_balance(opened)
        uris: dict[int, str] = {info.log_dir_id: redact(info.uri) for info in opened.log_dirs().values()}
    if as_json:
        shown = asdict(loads)
        for broker in shown["brokers"]:
            broker["log_dirs"] = [{"log_dir": uris[i], **load} for i, load in broker["log_dirs"].items()]
            broker["led_elsewhere"] = [tp._asdict() for tp in broker["led_elsewhere"]]
            broker["largest"] = [_flat(facts) for facts in broker["largest"]]
        print_json({**shown, "skewed": [_flat(skew) for skew in shown["skewed"]]})
        return
    print_table(
        "brokers",
        ("broker", "replicas", "leaders", "preferred", "imbalance", "records", "vs mean", "bytes", "vs mean"),
        [
            (
                broker.broker_id, broker.load.replicas, broker.load.leaders, broker.load.preferred,
                f"{broker.imbalance_percent:.0f} %", broker.load.records, f"{broker.records_deviation_percent:+.0f} %",
                bytes_of(broker.load.bytes), f"{broker.bytes_deviation_percent:+.0f} %",
            )
            for broker in loads.brokers
        ],
    )  # fmt: skip
    print_table(
        "log dirs",
        ("broker", "log dir", "replicas", "leaders", "records", "bytes"),
        [
            (broker.broker_id, uris[i], load.replicas, load.leaders, load.records, bytes_of(load.bytes))
            for broker in loads.brokers
            for i, load in broker.log_dirs.items()
        ],
    )
    for broker in loads.brokers:
        if broker.led_elsewhere:
            elsewhere = some_of([str(tp) for tp in broker.led_elsewhere])
            say(f"broker {broker.broker_id} should lead {elsewhere}: spark-log partition elect")
        if broker.largest:
            heavy = ", ".join(f"{facts.tp} ({bytes_of(facts.bytes)})" for facts in broker.largest)
            say(f"broker {broker.broker_id} is full of {heavy}: spark-log partition reassign")
    if loads.skewed:
        rows = [(str(s.tp), s.records, bytes_of(s.bytes), f"{s.ratio:.1f}") for s in loads.skewed]
        print_table("partitions far above the mean of their topic", ("partition", "records", "bytes", "times"), rows)


@app.command()
def truncations(cluster: Cluster_, topic: TopicNames = None, as_json: Json = False) -> None:
    """Show truncations: the offsets and records that elections removed, and whether readers had seen them. If a
    restored metadata store was accepted, also show the offset from which on a partition has other records than before.
    """
    from spark_log.cluster.each_store import ask_stores, store_names
    from spark_log.errors import redact
    from spark_log.log.partitions.truncations import list_truncations

    with open_cluster(cluster) as opened:
        _partitions(opened, topic or [])
        answers = ask_stores(opened, lambda each: list_truncations(each.store))
        names = store_names(opened)
    losses = [loss for those in answers.results.values() for loss in those if not topic or loss.topic in topic]
    if as_json:
        print_json([asdict(loss) for loss in losses])
    elif not losses and not answers.failures:
        say("No election has truncated a partition.")
    elif losses:
        columns = ("partition", "offsets", "records", "seen by readers", "election", "leader epoch", "at")
        rows = [
            (
                f"{loss.topic}-{loss.partition}", f"{loss.start_offset:,} to {loss.end_offset - 1:,}",
                loss.record_count, loss.seen_count, "unclean" if loss.unclean else "clean", loss.leader_epoch, loss.at,
            )
            if loss.start_offset < loss.end_offset
            else (
                f"{loss.topic}-{loss.partition}", f"from {loss.start_offset:,}", "not known", "not known",
                "none: store accepted", loss.leader_epoch, loss.at,
            )
            for loss in losses
        ]  # fmt: skip
        print_table(None, columns, rows)
        if any(loss.start_offset < loss.end_offset for loss in losses):
            say(f"{count_of(sum(loss.record_count for loss in losses), 'record')} lost in all.")
    for store_id, error in answers.failures.items():
        reason = " ".join(redact(str(error)).split())
        note(f"spark-log: the truncations of store {names[store_id]} are not known: {reason}")
    if answers.failures:
        raise typer.Exit(1)


@app.command()
def reassign(
    cluster: Cluster_,
    to_brokers: Annotated[
        str | None, typer.Option("--to-brokers", metavar="N,N,…", help="Distribute the partitions evenly over these.")
    ] = None,
    topic: TopicNames = None,
    replication_factor: Annotated[
        int | None, typer.Option("--replication-factor", "-r", help="With --to-brokers. [default: unchanged]")
    ] = None,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="A plan in the JSON of Kafka's own tool; - is stdin.")
    ] = None,
    throttle: Annotated[
        str | None, typer.Option("--throttle", metavar="BYTES", help="Copy at most this much per second, such as 50MB.")
    ] = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Restore the replicas from before the reassignment.")
    ] = False,
    status: Annotated[bool, typer.Option("--status", help="Show reassignments in progress, and end.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan as JSON; change nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Move replicas to other brokers. Reads and writes continue.

    Without a plan, it continues reassignments in progress. Ctrl-C stops the copying, but not the reassignment: run the
    command again, or cancel. Served brokers copy the replicas themselves; then this command only shows the progress.

    **Examples**

    - `spark-log partition reassign --to-brokers 2,3,4 --topic events --throttle 50MB`
    - `spark-log partition reassign --to-brokers 2,3,4 --dry-run > plan.json`
    - `spark-log partition reassign --plan plan.json`
    - `spark-log partition reassign --cancel`
    """
    from spark_log.cli.operations import reassignments

    given = [name for name, value in (("--to-brokers", to_brokers), ("--plan", plan), ("--cancel", cancel),
                                      ("--status", status)) if value]  # fmt: skip
    if len(given) > 1:
        raise typer.BadParameter(f"cannot be combined with {given[1]}", param_hint=given[0])
    if plan and topic:
        raise typer.BadParameter("cannot be combined with --plan, which names its topics", param_hint="--topic")
    for name, value in (("--replication-factor", replication_factor), ("--dry-run", dry_run)):
        if value and not (to_brokers or (plan and name == "--dry-run")):
            raise typer.BadParameter("expected --to-brokers with it", param_hint=name)
    rate = None if throttle is None else parse_bytes(throttle, "--throttle")
    if rate is not None and not (to_brokers or plan):
        raise typer.BadParameter("expected --to-brokers or --plan with it", param_hint="--throttle")
    with open_cluster(cluster) as opened:
        chosen = _partitions(opened, topic or [])
        if status:
            reassignments.show(opened, chosen, as_json)
        elif cancel:
            reassignments.cancel(opened, chosen, as_json)
        elif to_brokers or plan:
            if plan:
                wanted = reassignments.read_plan(plan)
            else:
                brokers = reassignments.parse_broker_ids(to_brokers or "", "--to-brokers")
                wanted = reassignments.make_plan(opened, chosen, brokers, replication_factor)
            reassignments.execute(opened, wanted, rate, dry_run, as_json)
        else:
            reassignments.continue_reassignments(opened, chosen, as_json)


def _partitions(opened: "Cluster", topics: Sequence[str]) -> list[TopicPartition]:
    """Return all partitions of these topics, or of all topics with replicas. Raises UnknownTopicOrPartitionError."""
    from spark_log.cluster.names import is_kept_by_store
    from spark_log.cluster.topics import find_topic, list_topics

    found = opened.store.read(lambda connection: [find_topic(connection, name) for name in topics])
    return [
        TopicPartition(topic.name, number)
        for topic in found or list_topics(opened)
        if topics or not is_kept_by_store(topic.name)
        for number in range(topic.partition_count)
    ]


def _flat(facts: Any) -> dict[str, Any]:
    """Return the fields, with `topic` and `partition` instead of `tp`."""
    values = dict(facts if isinstance(facts, dict) else facts._asdict())
    return {**values.pop("tp")._asdict(), **values}
