"""`spark-log store …`: the metadata store, and whether it is the one that the log dirs were written under."""

from typing import Annotated, Any

import typer

from spark_log.cli.options import Cluster_, Json
from spark_log.cli.output import bytes_of, count_of, note, print_facts, print_json, print_table, say

app = typer.Typer(no_args_is_help=True, help="Show the metadata store, and accept one that was restored.")

_ACCEPT = """\
The metadata store knows less than it did if it was restored from a backup, or promoted without its last transactions.
Once it is accepted, what it does not name is taken out of the Delta tables, and clean-up deletes it from the log dirs.
Records that only those files hold are lost then: copy the files away first if you want to look at them."""


@app.command()
def status(cluster: Cluster_, as_json: Json = False) -> None:
    """Show the metadata store: what it is, its identity and revision, and what the log dirs have that it does not name.

    Exit code 1 if it is not the store that was recorded.
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.maintenance.removal.unnamed_files import unnamed_files

    with Cluster.open(cluster) as opened:
        facts = opened.store.read(lambda connection: _facts(opened, connection))
        unnamed = unnamed_files(opened)
    if as_json:
        print_json({**facts, "unnamed": [vars(each) for each in unnamed]})
    else:
        print_facts(facts)
        _print_unnamed(unnamed)
    if facts["problem"] is not None:
        raise typer.Exit(1)


@app.command()
def accept(
    cluster: Cluster_,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: Json = False,
) -> None:
    """Accept the metadata store as it is now: clean-up of files and publication to Delta tables go on.

    They stop when a PostgreSQL server has another system identifier or timeline than the one that was recorded, and
    where a Delta table lists segments that the metadata has never heard of: then the store is an older one.
    """
    from spark_log.cluster.cluster import Cluster
    from spark_log.maintenance.removal.unnamed_files import unnamed_files
    from spark_log.metadata import identity

    with Cluster.open(cluster) as opened:
        store = opened.store
        before, now = store.read(lambda c: (identity.recorded(c), identity.of_server(c)))
        if not yes:
            note(f"It was {before or 'not known'}, and is {now or 'not known'}.\n{_ACCEPT}")
            _print_unnamed(unnamed_files(opened))
            typer.confirm("Accept it?", abort=True, err=True)
        store.transact(lambda c, _attempt: identity.accept(c, store.clock(c).wall_ms))
    if as_json:
        print_json({"before": str(before) if before else None, "now": str(now) if now else None})
    else:
        say(f"Accepted{f' {now}' if now else ''}. Clean-up and publication go on.")


def _facts(cluster: Any, connection: Any) -> dict[str, Any]:
    from datetime import UTC, datetime

    from spark_log.errors import StoreChangedError
    from spark_log.metadata import identity
    from spark_log.metadata.schema import revision_of

    now, before = identity.of_server(connection), identity.recorded(connection)
    accepted_ms = identity.accepted_at_ms(connection)
    problem = None
    try:
        identity.check_identity(connection)
    except StoreChangedError as error:
        problem = str(error)
    return {
        "address": str(cluster.store.address),
        "store": "SQLite" if cluster.store.sqlite else "PostgreSQL",
        "cluster_id": cluster.cluster_id,
        "revision": revision_of(connection),
        "identity": str(now) if now else None,
        "recorded": str(before) if before else None,
        "accepted": datetime.fromtimestamp(accepted_ms / 1000, UTC).isoformat() if accepted_ms else None,
        "problem": problem,
    }


def _print_unnamed(unnamed: Any) -> None:
    if not unnamed:
        note("The log dirs that answer have no segment file that the metadata does not name.")
        return
    rows = [(each.log_dir, each.folder, each.files, bytes_of(each.bytes), each.newest or "-") for each in unnamed]
    print_table("Files that the metadata does not name", ("log dir", "topic folder", "files", "bytes", "newest"), rows)
    note(
        f"{count_of(sum(each.files for each in unnamed), 'file')}. Some are always there: writers are at work on them,"
        " or were killed."
    )
