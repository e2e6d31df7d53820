"""The reference of the command line, from the commands themselves."""

import re
from typing import Any

import typer.main
from typer.cli import get_docs_for_click

from spark_log.cli.main import app


def reference() -> str:
    """A section for each command, as Markdown."""
    command = _without_hidden(typer.main.get_command(app))
    context = typer.Context(command, info_name="spark-log")
    text = get_docs_for_click(obj=command, ctx=context, name="spark-log")
    _, _, text = text.partition("\n## ")  # the page has a title and an introduction of its own
    text = re.sub(r"\*\*Commands\*\*:\n\n(\* .*\n)*\n", "", text)  # they follow, with their whole text
    text = re.sub(r"\* `(-h, )?--help`.*\n", "", text)
    text = re.sub(r"\*\*Options\*\*:\n\n(?!\*)", "", text)
    return f"## {text}"


def _without_hidden(command: Any) -> Any:
    """The command without the aliases that only old scripts use."""
    if hasattr(command, "commands"):
        shown = {name: each for name, each in command.commands.items() if not each.hidden}
        command.commands = {name: _without_hidden(each) for name, each in shown.items()}
    return command
