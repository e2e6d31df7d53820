"""Defines the option --config, a TOML file with arguments by their names. The command line overrides the file."""

import tomllib
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from spark_log.spark.jobs.options.arguments import usage_error


def _load(context: typer.Context, path: str | None) -> str | None:
    """Make the file's values the defaults of the command's parameters. Raises a usage error for an invalid file."""
    if path is None:
        return None
    try:
        loaded = tomllib.loads(Path(path).read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise usage_error(f"--config {path}", str(error)) from None
    parameters: Any = {
        name.removeprefix("--"): parameter
        for parameter in context.command.params
        for name in parameter.opts
        if name.startswith("--") and name != "--config"
    }
    defaults = {}
    for key, value in loaded.items():
        if key not in parameters:
            raise usage_error(f"--config {path}", f"unknown key {key!r}")
        parameter = parameters[key]
        try:
            defaults[parameter.name] = _default(value, parameter.is_flag, parameter.multiple)
        except ValueError as error:
            raise usage_error(f"--config {path}", f"{key} = {value!r}: {error}") from None
    context.default_map = defaults
    return path


def _default(value: Any, is_flag: bool, multiple: bool) -> Any:
    """Return the value in the form that the command line has. Raises ValueError, which names the expected type."""
    if is_flag:
        if not isinstance(value, bool):
            raise ValueError("expected true or false")
        return value
    values = value if multiple and isinstance(value, list) else [value]
    if any(isinstance(one, bool) or not isinstance(one, str | int | datetime) for one in values):
        raise ValueError(f"expected a text{', a number or a list of them' if multiple else ' or a number'}")
    texts = [one.isoformat() if isinstance(one, datetime) else str(one) for one in values]
    return texts if multiple else texts[0]


ConfigFile = Annotated[
    str | None,
    typer.Option(
        "--config",
        metavar="FILE",
        is_eager=True,
        callback=_load,
        help="TOML file with arguments by their names; the command line wins.",
    ),
]
