"""The commands `spark-log store …`, which show, add, remove, check and accept metadata stores."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from spark_log.cli.output import (
    bytes_of,
    count_of,
    note,
    print_facts,
    print_json,
    print_result,
    print_rows,
    print_table,
    say,
)
from spark_log.cli.shared_options import Cluster_, Json, open_cluster, topics_option

app = typer.Typer(no_args_is_help=True, help="Show and change metadata stores, and accept one that was restored.")

Store_ = Annotated[str | None, typer.Option("--store", metavar="NAME", help="The store; the home store by default.")]

_ACCEPT = """\
A metadata store that was restored from a backup, or promoted without its last transactions, lacks recent metadata.
After you accept it, files that it does not name are removed from the Delta tables. Clean-up deletes them from the log
dirs when file.delete.delay.ms of their topic (7 days) has passed; until then `spark-log store unnamed-files` lists
them. Records that exist only in these files are lost then: send them to the topic again if you need them.
Readers that have read records which the store lacks are told so, as after an unclean election. Accept the store before
clients append: records that were appended since the restore count as known to all readers."""


@app.command()
def status(cluster: Cluster_, store: Store_ = None, as_json: Json = False) -> None:
    """Show the metadata store: its kind, identity and revision, and the files in the log dirs that it does not name.

    The exit code is 1 if it is not the recorded store, or if another store does not answer: then the files of that
    store's topics are not known.
    """
    from spark_log.cluster.each_store import find_view
    from spark_log.maintenance.removal.unnamed_files import by_folder, find_unnamed_files

    with open_cluster(cluster) as opened:
        view = find_view(opened, store)
        facts = view.store.read(lambda connection: _facts(view, connection))
        unnamed = find_unnamed_files(opened)
    if as_json:
        folders = [vars(each) for each in by_folder(unnamed.files)]
        print_json({**facts, "unnamed": folders, "stores_away": unnamed.stores_away})
    else:
        print_facts(facts)
        _print_unnamed(unnamed)
    if facts["problem"] is not None or unnamed.stores_away:
        raise typer.Exit(1)


@app.command("list")
def list_(cluster: Cluster_, as_json: Json = False) -> None:
    """List the stores of the cluster, the home store and the data stores, with the numbers of their topics."""
    from spark_log.cluster.stores import list_store_usage

    with open_cluster(cluster) as opened:
        stores = list_store_usage(opened)
    rows = [(each.name, each.state, each.topics, each.partitions, each.address) for each in stores]
    columns = ("store", "state", "topics", "partitions", "address")
    print_rows(as_json, [vars(each) for each in stores], columns, rows, title="Metadata stores")


@app.command()
def add(
    name: Annotated[str, typer.Argument(help="Name of the new store: a-z, 0-9 and -.")],
    address: Annotated[str, typer.Argument(help="URL of an empty PostgreSQL database.")],
    cluster: Cluster_,
    as_json: Json = False,
) -> None:
    """Add a data store, a PostgreSQL database that keeps partitions of topics in addition to the home store.

    `topic create --store NAME` creates a topic there. With the cluster setting topic.default.store, all new topics are
    created there. The address is recorded without its password. Processes take the password from PGPASSWORD or
    ~/.pgpass, or the whole address from SPARK_LOG_STORE_<NAME>.

    **Examples**

    - `spark-log store add east postgresql+psycopg://spark_log@db2/east`
    """
    from spark_log.cluster.stores import add_store

    with open_cluster(cluster) as opened:
        info = add_store(opened, name, address)
    document = {"store": info.name, "store_id": info.store_id, "address": info.address}
    print_result(as_json, document, f"Added store {info.name} (number {info.store_id}).")


@app.command()
def remove(
    name: Annotated[str, typer.Argument(help="Name of the store.")],
    cluster: Cluster_,
    lost: Annotated[
        bool, typer.Option("--lost", help="The store is lost for good: delete its topics, whose records are lost.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Remove a data store that has no topics. Its database stays: drop it afterwards.

    With --lost, remove a data store that will never answer again, with its topics. Their files stay in the log dirs for
    7 days, the default of file.delete.delay.ms.
    """
    from spark_log.cluster.store_directory import find_store
    from spark_log.cluster.stores import remove_store
    from spark_log.cluster.topics import LIVE, topics_of_store
    from spark_log.errors import redact
    from spark_log.maintenance.removal.lost_store import check_lost, remove_lost_store

    deleted: list[str] = []
    with open_cluster(cluster) as opened:
        info = opened.store.read(lambda connection: find_store(connection, name))  # raises for an unknown store
        if lost and not yes:
            note(f"Store {name} cannot be used: {redact(str(check_lost(opened, name)))}")
            topics = opened.store.read(lambda connection: topics_of_store(connection, info.store_id)).values()
            for stated in topics:
                if stated.state == LIVE:
                    note(f"Topic {stated.topic.name} will be deleted, with its records and the offsets of its groups.")
        if not yes:
            typer.confirm(f"Remove store {name}?", abort=True, err=True)
        if lost:
            deleted = remove_lost_store(opened, name)
        else:
            remove_store(opened, name)
    lines = [f"Removed store {name}.", *(f"Deleted topic {topic}." for topic in deleted)]
    print_result(as_json, {"store": name, "deleted": deleted}, *lines)


@app.command()
def drain(
    name: Annotated[str, typer.Argument(help="Name of the store.")],
    cluster: Cluster_,
    to: Annotated[str, typer.Option("--to", metavar="NAME", help="The store that gets its topics.")] = "home",
    cancel: Annotated[bool, typer.Option("--cancel", help="Let the store take topics again.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Move all topics of a data store to another store, as `topic move` does. The store takes no new topics after that.

    Then `store remove` can remove the store. If the command is interrupted, run it again. The exit code is 1 if the
    store still has topics that were deleted while it did not answer.
    """
    from spark_log.cluster.store_directory import find_store
    from spark_log.cluster.stores import set_draining, unfinished_topics
    from spark_log.cluster.topics import topics_of_store
    from spark_log.replication.controller.topic_moves import drain_store

    moved = []
    left_over = 0
    with open_cluster(cluster) as opened:
        if cancel:
            set_draining(opened, name, draining=False)
        else:
            info = opened.store.read(lambda connection: find_store(connection, name))
            if not yes:
                typer.confirm(f"Move all topics of store {name} to store {to}?", abort=True, err=True)
            for topic, left in drain_store(opened, name, to):
                moved.append(topic)
                if not as_json:
                    say(f"Moved topic {topic}; {left:,} left.")
            left_over = len(opened.store.read(lambda connection: topics_of_store(connection, info.store_id)))
    if as_json:
        print_json({"store": name, "moved": moved})
    elif cancel:
        say(f"Store {name} takes topics again.")
    elif not left_over:
        say(f"Store {name} has no topics any more.")
    if left_over:
        note(f"spark-log: store {name!r}: {unfinished_topics(left_over)}")
        raise typer.Exit(1)


@app.command("verify-files")
def verify_files_(
    cluster: Cluster_,
    topic: Annotated[list[str] | None, topics_option("Only this topic; repeatable.")] = None,
    checksums: Annotated[
        bool, typer.Option("--checksums", help="Read all files, and compare their checksums.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check that the log dirs have all segment files that the metadata names, with their sizes; if not, exit with 1.

    Use it to test a backup: restore the backup, and verify it before clients start. The command changes nothing.

    **Examples**

    - `spark-log store verify-files`
    - `spark-log store verify-files --checksums --topic orders`
    """
    from spark_log.maintenance.file_verification import verify_files

    with open_cluster(cluster) as opened:
        replicas = list(verify_files(opened, topic or (), checksums=checksums))
    bad = [(replica, problem) for replica in replicas for problem in replica.problems]
    if as_json:
        print_json([_replica_fields(replica) for replica in replicas])
    else:
        for replica, file in bad:
            start, end = file.offsets
            say(f"{replica.partition} offsets {start:,} to {end - 1:,}: {file.location}: {file.problem}")
        files = count_of(sum(replica.files for replica in replicas), "file")
        size = bytes_of(sum(replica.bytes for replica in replicas))
        say(f"{files} ({size}) named by the metadata, {len(bad):,} missing or damaged.")
    if bad:
        raise typer.Exit(1)


def _replica_fields(replica: Any) -> dict[str, Any]:
    problems = [
        {"location": file.location, "start_offset": file.offsets[0], "end_offset": file.offsets[1],
         "problem": file.problem}
        for file in replica.problems
    ]  # fmt: skip
    facts = {"log_dir": replica.log_dir, **replica.partition._asdict(), "files": replica.files, "bytes": replica.bytes}
    return {**facts, "problems": problems}


@app.command()
def accept(
    cluster: Cluster_,
    store: Store_ = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Accept the metadata store as it is now, so that clean-up of files and publication to Delta tables continue.

    Each store of a cluster is accepted on its own, with --store. Accept the home store last: it adopts the topics that
    only a data store knows.

    Both stop if the system identifier or timeline of the PostgreSQL server differs from the recorded one. They also
    stop for a Delta table that lists segments that the metadata does not know: this is a sign of an older store.

    The command also begins a new leader epoch of each partition at the present end of its log. If a reader's position
    is beyond this end, the reader gets LogTruncationError or continues at the end, by its auto_offset_reset. Accept the
    store after every restore, including SQLite, before clients start.
    """
    from spark_log.cluster.each_store import find_view
    from spark_log.maintenance.removal.unnamed_files import find_unnamed_files
    from spark_log.metadata.connections import server_identity
    from spark_log.replication.controller.store_acceptance import accept_store

    with open_cluster(cluster) as opened:
        view = find_view(opened, store)
        before, now = view.store.read(lambda c: (server_identity.recorded(c), server_identity.of_server(c)))
        for uri in _log_dirs_elsewhere(view):
            note(
                f"Log dir {uri} is outside of the folder of this cluster. If this is a copy of a cluster that is still"
                " used, each of them will delete files of the other there: copy the log dir, and record its place with"
                " `spark-log broker relocate` first."
            )
        if not yes:
            note(f"It was {before or 'not known'}, and is {now or 'not known'}.")
            for line in _ACCEPT.splitlines():
                note(line)
            _print_unnamed(find_unnamed_files(opened))
            typer.confirm("Accept it?", abort=True, err=True)
        accept_store(view)
    print_result(
        as_json,
        {"before": str(before) if before else None, "now": str(now) if now else None},
        f"Accepted{f' {now}' if now else ''}. Clean-up and publication continue. Files that the store does not name"
        " are kept for file.delete.delay.ms.",
    )


@app.command("unnamed-files")
def unnamed_files_(
    cluster: Cluster_,
    topic: Annotated[str | None, typer.Option("--topic", help="Only files of the topic of this name.")] = None,
    as_json: Json = False,
) -> None:
    """List the segment files that the metadata does not name, one path or URI per line, the oldest first.

    After a restore, these files may hold acknowledged records that the store lacks. They are Parquet files with the
    columns key, value, headers and timestamp. Some hold records that the topic has in other files too: files of killed
    writers, and of seals and merges that the restored store does not know. The exit code is 1 if a store does not
    answer: then the files of its topics are left out.
    """
    from spark_log.maintenance.removal.unnamed_files import find_unnamed_files

    with open_cluster(cluster) as opened:
        unnamed = find_unnamed_files(opened, topic)
    print_result(as_json, [vars(each) for each in unnamed.files], *(each.location for each in unnamed.files))
    if unnamed.stores_away:
        note(_left_out(unnamed.stores_away))
        raise typer.Exit(1)


def _log_dirs_elsewhere(cluster: Any) -> list[str]:
    """Return the log dirs outside of the folder of a SQLite cluster, without passwords."""
    from spark_log.cluster.log_dir_uris import local_uri
    from spark_log.errors import redact

    folder = cluster.store.address.folder
    uris = [] if folder is None else [info.uri for info in cluster.log_dirs().values()]
    return [redact(uri) for uri in uris if not uri.startswith(f"{local_uri(folder)}/")]


def _facts(cluster: Any, connection: Any) -> dict[str, Any]:
    from datetime import UTC, datetime

    from spark_log.metadata.connections import server_identity
    from spark_log.metadata.store_schema import revision_of

    now, before = server_identity.of_server(connection), server_identity.recorded(connection)
    accepted_ms, promoted_ms = server_identity.accepted_at_ms(connection), server_identity.promoted_at_ms(connection)
    return {
        "address": str(cluster.store.address),
        "store": "SQLite" if cluster.store.sqlite else "PostgreSQL",
        "cluster_id": cluster.cluster_id,
        "revision": revision_of(connection),
        "identity": str(now) if now else None,
        "recorded": str(before) if before else None,
        "accepted": datetime.fromtimestamp(accepted_ms / 1000, UTC).isoformat() if accepted_ms else None,
        "promoted": datetime.fromtimestamp(promoted_ms / 1000, UTC).isoformat() if promoted_ms else None,
        "problem": server_identity.problem_of(connection),
    }


def _left_out(stores_away: Sequence[str]) -> str:
    return f"spark-log: stores that do not answer, and whose files are left out: {', '.join(stores_away)}"


def _print_unnamed(unnamed: Any) -> None:
    from spark_log.maintenance.removal.unnamed_files import by_folder

    if unnamed.stores_away:
        note(_left_out(unnamed.stores_away))
    elif not unnamed.files:
        note("The metadata names every segment file of the reachable log dirs.")
    if not unnamed.files:
        return
    folders = by_folder(unnamed.files)
    rows = [(each.log_dir, each.folder, each.files, bytes_of(each.bytes), each.newest or "-") for each in folders]
    print_table("Files that the metadata does not name", ("log dir", "topic folder", "files", "bytes", "newest"), rows)
    note(
        f"{count_of(sum(each.files for each in folders), 'file')}. Some are normal: files of active writers and of"
        " writers that were killed."
    )
