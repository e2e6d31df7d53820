"""Defines the command-line arguments that `spark-log` and the jobs share, and parses their texts.

Wrong usage is an error (exit code 2) that names the option and the value.
"""

from collections.abc import Iterable
from typing import Annotated

import typer

CLUSTER_ENVIRONMENT_VARIABLE = "SPARK_LOG_CLUSTER"
CLUSTER_FILE_ENVIRONMENT_VARIABLE = "SPARK_LOG_CLUSTER_FILE"
"""A variable that names a file. The first line of the file is the address."""


class _Variables(list[str]):
    """Names of environment variables, as typer shows them in errors."""

    def __str__(self) -> str:
        return " or ".join(self)


_ABOUT_CLUSTERS = "It is the folder or URL of a cluster; `spark-log init FOLDER` makes one."

ClusterAddress = Annotated[
    str,
    typer.Option(
        "--cluster",
        envvar=_Variables([CLUSTER_ENVIRONMENT_VARIABLE, CLUSTER_FILE_ENVIRONMENT_VARIABLE]),
        metavar="FOLDER-OR-URL",
        help="The cluster: its folder, a postgresql+psycopg:// URL, or a file with one of them.",
        show_default=False,
    ),
]


def usage_error(option: str, text: str) -> typer.BadParameter:
    """Return an error for a wrong usage of `option`."""
    return typer.BadParameter(text, param_hint=option)


def explain_missing_cluster(error: typer.BadParameter) -> None:
    """Add an explanation of clusters to the error for a missing --cluster; leave other errors as they are."""
    if error.param is not None and error.param.name == "cluster" and not error.message:
        error.message = _ABOUT_CLUSTERS


def parse_pair(text: str, option: str) -> tuple[str, str]:
    """Split `name=value` at the first `=`. Raises a usage error if the name or the `=` is missing."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip():
        raise usage_error(option, f"expected name=value, got {text!r}")
    return name.strip(), value


def parse_pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse `name=value` texts to a dict. Raises a usage error if a name is given twice."""
    pairs: dict[str, str] = {}
    for text in texts:
        name, value = parse_pair(text, option)
        if name in pairs:
            raise usage_error(option, f"{name!r} is given twice")
        pairs[name] = value
    return pairs
