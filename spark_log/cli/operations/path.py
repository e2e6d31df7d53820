"""The command `spark-log path`, which prints the installed folders `jobs` and `conf`."""

from enum import StrEnum
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated

import typer

import spark_log
from spark_log.cli.output import say
from spark_log.errors import IllegalStateError


class Folder(StrEnum):
    jobs = "jobs"
    conf = "conf"


def path(
    folder: Annotated[
        Folder, typer.Argument(help="jobs: programs for spark-submit. conf: recommended settings.", show_default=False)
    ],
) -> None:
    """Print the path of the folder with the jobs for spark-submit, or with the recommended Spark settings.

    **Examples**

    - `spark-submit "$(spark-log path jobs)/produce.py" --help`
    - `export SPARK_CONF_DIR="$(spark-log path conf)"`
    """
    say(str(_folder(folder)))


def _folder(folder: Folder) -> Path:
    checkout = Path(spark_log.__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return checkout / folder
    try:
        installed = files("spark-log") or ()
    except PackageNotFoundError:
        installed = ()
    for file in installed:
        if file.parent.parts[-3:] == ("share", "spark-log", folder):
            return Path(str(file.locate())).resolve().parent
    raise IllegalStateError(f"this installation of spark-log has no folder {folder}: install it with pip")
