"""Defines the command line `spark-log`. Each command group is one module, which imports heavy modules when it runs.

Exit code 0 means success, 1 an error of spark-log or of the machine (one line on stderr), and 2 wrong usage.
"""

import logging
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from spark_log.cli.access import acl, quota, user
from spark_log.cli.groups import group, share, share_records, transaction
from spark_log.cli.operations import broker, cluster, delta, doctor, maintenance, partition, path, store, top
from spark_log.cli.output import note
from spark_log.cli.records import consume, produce
from spark_log.cli.servers import console, coordinator, gateway, registry
from spark_log.cli.topics import schema, table, topic
from spark_log.errors import (
    KafkaTimeoutError,
    MetadataStoreUnavailableError,
    SparkLogError,
    StorageUnavailableError,
    redact,
)
from spark_log.spark.jobs.options.arguments import explain_missing_cluster
from spark_log.text import PrintableFormatter

_UNAVAILABLE = (MetadataStoreUnavailableError, StorageUnavailableError, KafkaTimeoutError)


class OneLineErrors(TyperGroup):
    """Prints errors that a user can act on as one line, with exit code 1. A bug keeps its traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            explain_missing_cluster(error)
            raise
        except BrokenPipeError:
            raise  # typer exits without a message when the reader of a pipe has exited
        except (SparkLogError, OSError) as error:
            text = str(error.args[0]) if isinstance(error, SparkLogError) and error.args else str(error)
            advice = "; `spark-log doctor` says what to do" if isinstance(error, _UNAVAILABLE) else ""
            note(f"spark-log: {' '.join(redact(text).split())}{advice}")
            raise typer.Exit(1) from error
        except UnicodeEncodeError as error:
            if error.reason != "surrogates not allowed":
                raise
            note(f"spark-log: {error.object!r} is not UTF-8 text")
            raise typer.Exit(1) from error


app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("init")(cluster.init)
app.command("status")(cluster.status)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topic.app, name="topic")
app.add_typer(schema.app, name="schema")
app.add_typer(table.app, name="table")
app.command("console")(console.console)
app.command("registry")(registry.registry)
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(group.app, name="group")
share.app.command("consume")(share_records.consume)
share.app.command("redrive")(share_records.redrive)
app.add_typer(share.app, name="share")
app.add_typer(transaction.app, name="transaction")
app.add_typer(broker.app, name="broker")
app.add_typer(partition.app, name="partition")
app.add_typer(quota.app, name="quota")
app.command("coordinator")(coordinator.coordinator)
app.command("gateway")(gateway.gateway)
app.add_typer(user.app, name="user")
app.add_typer(acl.app, name="acl")
app.command("maintenance")(maintenance.maintenance)
app.add_typer(store.app, name="store")
app.add_typer(delta.app, name="delta")
app.command("path")(path.path)


def _print_version(wanted: bool) -> None:
    if wanted:
        from spark_log import __version__

        typer.echo(f"spark-log {__version__}")
        raise typer.Exit


@app.callback()
def main(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """A distributed log with Kafka's model, native to Spark.

    Every command needs a cluster. Give it with `--cluster`, or once in a shell: `export SPARK_LOG_CLUSTER=/data/log`.

    **Start here:**

    - `spark-log init /data/log`
    - `spark-log topic create events --partitions 4 --cluster /data/log`
    - `echo hello | spark-log produce events --cluster /data/log`
    - `spark-log consume events --cluster /data/log`
    """
    if logging.lastResort is not None:  # prints the warnings of every command
        logging.lastResort.setFormatter(PrintableFormatter())
