"""The commands `spark-log user …`, which manage the users that authenticate at gateways by SASL."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from spark_log.cli import completion
from spark_log.cli.output import print_rows, say
from spark_log.cli.shared_options import Cluster_, Json, open_cluster

app = typer.Typer(no_args_is_help=True, help="Users of gateways: create, list and delete them.")

_ITERATIONS = 4096


class MechanismName(StrEnum):
    SCRAM_SHA_256 = "SCRAM-SHA-256"
    SCRAM_SHA_512 = "SCRAM-SHA-512"


UserName = Annotated[
    str,
    typer.Argument(metavar="USER", help="Name of the user.", show_default=False, autocompletion=completion.users),
]


@app.command()
def create(
    user: UserName,
    cluster: Cluster_,
    mechanism: Annotated[
        list[MechanismName] | None,
        typer.Option("--mechanism", help="Of the credential; repeatable. Default: both.", show_default=False),
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file whose first line is the password.", show_default=False)
    ] = None,
    iterations: Annotated[int, typer.Option(min=4096, max=16384, help="Iterations of PBKDF2.")] = _ITERATIONS,
) -> None:
    """Create a user, or change the password of a user.

    A prompt asks for the password. If the input is not a terminal, its first line is the password. The store does not
    keep the password, only a credential that verifies it (SCRAM, RFC 5802). PLAIN checks the same credentials.

    **Examples**

    - `spark-log user create anna`
    - `spark-log user create etl --password-file /run/secrets/etl`
    """
    from spark_log.clients.admin.audit import local_user
    from spark_log.clients.admin.users import put_user
    from spark_log.cluster.security.scram import Mechanism
    from spark_log.cluster.security.users import upsertion_of_password

    password = _password(user, password_file)
    chosen = [Mechanism[each.name] for each in mechanism or list(MechanismName)]
    with open_cluster(cluster) as opened:
        upsertions = [upsertion_of_password(user, each, password, iterations) for each in chosen]
        put_user(opened, local_user(), "cli", upsertions)
    say(f"User {user} has a password for {', '.join(each.sasl_name for each in chosen)}.")


@app.command("list")
def list_(cluster: Cluster_, as_json: Json = False) -> None:
    """List the users with their mechanisms."""
    from spark_log.cluster.security.users import list_credentials

    with open_cluster(cluster) as opened:
        credentials = list_credentials(opened.store)
    rows = [(each.user, each.mechanism.sasl_name, each.iterations) for each in credentials]
    document = [dict(zip(("user", "mechanism", "iterations"), row, strict=True)) for row in rows]
    print_rows(as_json, document, ["User", "Mechanism", "Iterations"], rows)


@app.command()
def delete(
    user: UserName,
    cluster: Cluster_,
    mechanism: Annotated[
        MechanismName | None, typer.Option("--mechanism", help="Only this credential.", show_default=False)
    ] = None,
) -> None:
    """Delete a user. Open connections of the user are not closed. ACLs stay."""
    from spark_log.clients.admin.audit import local_user
    from spark_log.clients.admin.users import delete_credential
    from spark_log.cluster.security.scram import Mechanism

    with open_cluster(cluster) as opened:
        delete_credential(opened, local_user(), "cli", user, None if mechanism is None else Mechanism[mechanism.name])
    say(f"Deleted user {user}." if mechanism is None else f"User {user} has no {mechanism.value} password any more.")


def _password(user: str, file: Path | None) -> str:
    """Return the password from the file, the input, or a prompt.

    The password is never a command-line argument, because other users of the machine could see it.
    """
    if file is not None:
        return (file.read_text().splitlines() or [""])[0]
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\r\n")
    return str(typer.prompt(f"Password of {user}", hide_input=True, confirmation_prompt=True))
