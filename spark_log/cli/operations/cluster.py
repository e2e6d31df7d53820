"""Implements the commands `spark-log init`, `spark-log status` and `spark-log cluster config`."""

import shlex
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import wait
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from spark_log.cli import completion
from spark_log.cli.output import bytes_of, count_of, duration_of, print_facts, print_json, print_rows, print_table, say
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, parse_changes, set_option, unset_option
from spark_log.errors import ClusterAlreadyExistsError, SparkLogError, redact
from spark_log.spark.jobs.options.arguments import CLUSTER_ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    from spark_log.cluster.cluster import Cluster
    from spark_log.cluster.usage import ClusterUsage

app = typer.Typer(no_args_is_help=True, help="Show and change the settings of the cluster.")


@app.command()
def config(
    cluster: Cluster_,
    set_: Annotated[
        list[str] | None,
        set_option("A setting, such as transaction.max.timeout.ms=60000", completion.cluster_settings),
    ] = None,
    unset: Annotated[list[str] | None, unset_option("a setting", completion.cluster_settings)] = None,
    as_json: Json = False,
) -> None:
    """Show the settings of the whole cluster, or change them. Running clients apply a change within seconds.

    **Examples**

    - `spark-log cluster config`
    - `spark-log cluster config --set group.max.session.timeout.ms=60000 --unset plan.tasks.max`
    """
    from spark_log.cluster.settings import alter_settings, read_settings
    from spark_log.config import ClusterSettings

    changes = parse_changes(set_, unset)
    with open_cluster(cluster) as opened:
        stored = alter_settings(opened, changes) if changes else read_settings(opened)
    defaults = ClusterSettings().as_text()
    rows = {name: (stored.get(name, default), default) for name, default in defaults.items()}
    document = {name: {"value": value, "default": default} for name, (value, default) in rows.items()}
    shown = [(name, f"{value} (off)" if value == "-1" else value, default) for name, (value, default) in rows.items()]
    print_rows(as_json, document, ("setting", "value", "default"), shown)


def init(
    address: Annotated[
        str,
        typer.Argument(
            metavar="FOLDER-OR-URL",
            envvar=CLUSTER_ENVIRONMENT_VARIABLE,
            help="A new folder, or the postgresql+psycopg:// URL of an empty database.",
            show_default=False,
        ),
    ],
    log_dir: Annotated[
        str | None,
        typer.Option(
            metavar="URI",
            help="Location of the segments of broker 1: a folder or URI that every worker reaches. "
            "[default: FOLDER/broker-1; needed with a database]",
            show_default=False,
        ),
    ] = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="An existing cluster is not an error and is not changed.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Create a cluster with one broker.

    **Examples**

    - `spark-log init /data/log`
    - `spark-log init postgresql+psycopg://me@db/log --log-dir s3://bucket/log`
    """
    from spark_log.cluster.cluster import Cluster

    made = True
    try:
        opened = Cluster.init(address, log_dir=log_dir)
    except ClusterAlreadyExistsError:
        if not if_not_exists:
            raise
        opened, made = Cluster.open(address), False
    with opened as cluster:
        shown = str(cluster.store.address)
        dirs = [redact(info.uri) for info in cluster.log_dirs().values()]
        if as_json:
            print_json({"cluster_id": cluster.cluster_id, "address": shown, "log_dirs": dirs})
            return
        say(
            f"{'Created' if made else 'There is'} cluster {cluster.cluster_id} at {shown}, segments in"
            f" {', '.join(dirs)}."
        )
        repeatable = cluster.store.address.without_password
        if repeatable != shown:
            say("Set the password in the environment variable PGPASSWORD, or in ~/.pgpass.")
        export = f"export {CLUSTER_ENVIRONMENT_VARIABLE}={shlex.quote(repeatable)}"
        say(f"Next: {export}; spark-log topic create events --partitions 4")


def status(cluster: Cluster_, as_json: Json = False) -> None:
    """Show the cluster: its store, whether its log dirs are reachable, and the size of user topics.

    The exit code is 1 if a log dir cannot be reached or is marked offline, a data store does not answer, or a store was
    restored or promoted and is not accepted yet. Records, bytes and segments are those of the stores that answer.
    """
    from spark_log.cluster.names import is_internal
    from spark_log.cluster.usage import Usage, cluster_usage
    from spark_log.facts.transactions import list_transactions
    from spark_log.transactions.rules import ONGOING

    with open_cluster(cluster) as opened:
        usage = cluster_usage(opened)
        topics = {topic.topic_id: topic for topic in usage.topics.values() if not is_internal(topic.name)}
        dirs = _log_dir_facts(opened)
        stores = _store_facts(opened, usage, Counter(topic.store_id for topic in topics.values()))
        open_ms = [each.open_ms or 0 for each in list_transactions(opened, [ONGOING])]
        total = sum((part for (topic_id, _), part in usage.used.items() if topic_id in topics), start=Usage())
        facts = {
            "cluster_id": opened.cluster_id,
            "address": str(opened.store.address),
            "store": "SQLite" if opened.store.sqlite else "PostgreSQL",
            "store_problem": stores[0]["problem"],
            "topics": len(topics),
            "partitions": sum(topic.partition_count for topic in topics.values()),
            "records": total.records,
            "bytes": total.bytes,
            "segments": total.segments,
            "open_transactions": len(open_ms),
            "oldest_transaction_ms": max(open_ms, default=None),
        }
    if as_json:
        print_json({**facts, "stores": stores, "log_dirs": dirs})
    else:
        oldest = f", the oldest for {duration_of(max(open_ms))}" if open_ms else ""
        del facts["oldest_transaction_ms"], facts["store_problem"]
        print_facts({**facts, "bytes": bytes_of(total.bytes), "open_transactions": f"{len(open_ms):,}{oldest}"})
        if len(stores) > 1:
            print_table(None, ("store", "topics", "answers", "problem"), [tuple(row.values()) for row in stores])
        print_table(None, ("broker", "log dir", "reachable", "problem"), [tuple(row.values()) for row in dirs])
    if not all(row["reachable"] for row in dirs):
        unreachable = sum(not row["reachable"] for row in dirs)
        typer.echo(f"spark-log: {count_of(unreachable, 'log dir')} cannot be reached", err=True)
    for row in stores:
        if row["problem"] is not None:
            where = f"store {row['store']}: " if len(stores) > 1 else ""
            typer.echo(f"spark-log: {where}{row['problem']}", err=True)
    if any(row["problem"] for row in (*stores, *dirs)):
        raise typer.Exit(1)


def _store_facts(cluster: "Cluster", usage: "ClusterUsage", topics: Mapping[int, int]) -> list[dict[str, Any]]:
    """Return the facts of each store, the home store first. `topics` has the number of topics of each store."""
    from spark_log.cluster.each_store import ASK_TIMEOUT_MS, ask_stores
    from spark_log.metadata.connections import server_identity

    asked = ask_stores(cluster, lambda view: view.store.read(server_identity.problem_of, timeout_ms=ASK_TIMEOUT_MS))
    problems = {**asked.results, **{store_id: redact(str(error)) for store_id, error in asked.failures.items()}}
    return [
        {
            "store": usage.store_names.get(store_id, str(store_id)),
            "topics": topics.get(store_id, 0),
            "answers": store_id in asked.results,
            "problem": problem,
        }
        for store_id, problem in sorted(problems.items())
    ]


def _log_dir_facts(cluster: "Cluster") -> list[dict[str, Any]]:
    """Return the facts of each log dir. If the controller has marked a log dir offline, that is a problem, even if the
    log dir can be reached.
    """
    from spark_log.cluster.log_dir import ANSWER_S_MAX
    from spark_log.cluster.log_dir_failures import failures_of_log_dirs
    from spark_log.process import begin_or_run

    failures = cluster.store.read(failures_of_log_dirs)
    infos = cluster.log_dirs()
    answers = {each: begin_or_run(partial(cluster.log_dir, infos[each]), "spark-log-status") for each in infos}
    wait(answers.values(), ANSWER_S_MAX)
    rows = []
    for log_dir_id, answer in answers.items():
        unreachable = None if answer.done() else f"no answer in {ANSWER_S_MAX:.0f} s"
        try:
            if answer.done():
                answer.result()
        except (SparkLogError, OSError) as error:
            unreachable = redact(str(error))
        marked = f"marked offline: {redact(failures[log_dir_id])}" if log_dir_id in failures else None
        rows.append(
            {
                "broker": infos[log_dir_id].broker_id,
                "log_dir": redact(infos[log_dir_id].uri),
                "reachable": unreachable is None,
                "problem": unreachable or marked,
            }
        )
    return rows
