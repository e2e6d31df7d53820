"""The references of the command line and of the jobs, from the commands themselves."""

import re
from importlib import import_module
from pathlib import Path
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from spark_log.cli.main import app
from spark_log.spark.jobs.options.command import JOBS_FOLDER


def reference() -> str:
    """A section for each command, as Markdown."""
    text = _documentation(_without_hidden(typer.main.get_command(app)), "spark-log")
    _, _, text = text.partition("\n## ")  # the page has a title and an introduction of its own
    return f"## {text}"


def jobs_reference() -> str:
    """A section for each job, as Markdown."""
    return "\n".join(_job_section(name) for name in job_names())


def job_names() -> list[str]:
    return sorted(path.stem for path in (Path(__file__).resolve().parents[1] / "jobs").glob("*.py"))


def _job_section(name: str) -> str:
    job = import_module(f"spark_log.spark.jobs.{name}").JOB
    text = _documentation(typer.main.get_command(job.app), f"{job.started_by} {JOBS_FOLDER}/{name}.py")
    _, _, text = text.partition("\n")
    return f"## {name}\n{text}"


def _documentation(command: Any, program: str) -> str:
    """typer's documentation of the command, without lists of subcommands, which follow with their whole text."""
    text = get_docs_for_click(obj=command, ctx=typer.Context(command, info_name=program), name=program)
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)*\n", "", text)
    text = re.sub(r"\* `(-h, )?--help`.*\n", "", text)
    return re.sub(r"\*\*Options\*\*:\n\n(?!\*)", "", text)


def _without_hidden(command: Any) -> Any:
    """The command without the aliases that only old scripts use."""
    if hasattr(command, "commands"):
        shown = {name: each for name, each in command.commands.items() if not each.hidden}
        command.commands = {name: _without_hidden(each) for name, each in shown.items()}
    return command
