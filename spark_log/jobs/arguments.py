"""What the jobs' arguments have in common: text -> frozen values, or a usage error that names the argument. Pure, but
for the file of --config.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

_INTERVAL = re.compile(r"(?i)[0-9]{1,9} *(ms|milliseconds?|s|seconds?|m|minutes?|hours?|days?)")
_UNITS = {"ms": "milliseconds", "s": "seconds", "m": "minutes"}
_MILLISECONDS = re.compile(r"[0-9]{1,15}")


@dataclass(frozen=True)
class Batch:
    """One read of what is there, no checkpoint."""


@dataclass(frozen=True)
class AvailableNow:
    """A streaming query that takes what is there since its last run, and ends."""


@dataclass(frozen=True)
class Every:
    """A streaming query that runs until it is stopped: a batch each `interval`, "0 seconds" for as soon as possible."""

    interval: str


Run = Batch | AvailableNow | Every


@dataclass(frozen=True)
class Shared:
    """Arguments that both jobs have."""

    cluster: str
    """Folder or URL; may hold a password, so it is never printed as it is."""
    run: Run
    checkpoint: str | None
    json: bool
    """Progress and summary as JSON lines."""


class Parser(argparse.ArgumentParser):
    """argparse with whole option names only, so that a new option never changes the meaning of an old command line."""

    def __init__(self, program: str, description: str, examples: str, started_by: str = "spark-submit") -> None:
        super().__init__(
            prog=f"{started_by} {program}",
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def add_shared(self) -> None:
        where = self.add_argument_group("cluster and run")
        where.add_argument(
            "--cluster", metavar="ADDRESS", help="folder or postgresql+psycopg:// URL [env SPARK_LOG_CLUSTER]"
        )
        where.add_argument("--stream", action="store_true", help="run as a streaming query; needs --checkpoint")
        where.add_argument(
            "--trigger",
            metavar="WHEN",
            help="with --stream: available-now (take what is there and end), or an interval as '10 seconds' (go on "
            "until SIGTERM)",
        )
        where.add_argument("--checkpoint", metavar="DIR", help="where the streaming query keeps its progress")
        where.add_argument("--json", action="store_true", help="progress and summary as JSON lines")

    def shared(self, given: argparse.Namespace, environ: Mapping[str, str], default: Run) -> Shared:
        """The shared arguments; `default` is how a --stream without --trigger runs."""
        cluster = self.cluster(given, environ)
        if not given.stream:
            for name in ("trigger", "checkpoint"):
                if getattr(given, name) is not None:
                    self.error(f"--{name}: only with --stream")
            return Shared(cluster, Batch(), None, given.json)
        if not given.checkpoint:
            self.error("--checkpoint: needed with --stream: it is what makes a restart go on where the last run ended")
        run = default if given.trigger is None else self.trigger(given.trigger)
        return Shared(cluster, run, given.checkpoint, given.json)

    def cluster(self, given: argparse.Namespace, environ: Mapping[str, str]) -> str:
        cluster: str = (given.cluster or environ.get("SPARK_LOG_CLUSTER", "")).strip()
        if not cluster:
            self.error("--cluster: needed (or environment variable SPARK_LOG_CLUSTER): a folder or a URL")
        return cluster

    def trigger(self, text: str) -> Run:
        word = text.strip().lower()
        if word == "available-now":
            return AvailableNow()
        if not _INTERVAL.fullmatch(word):
            self.error(f"--trigger: expected available-now or an interval as '10 seconds', got {text!r}")
        unit = word.lstrip("0123456789 ")
        return Every(f"{int(word.removesuffix(unit))} {_UNITS.get(unit, unit)}")

    def read(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The arguments, those of --config's file among them. SystemExit(2) with a message for wrong usage."""
        return self.parse_args([*self._from_file(arguments), *arguments])

    def _from_file(self, arguments: Sequence[str]) -> list[str]:
        """The arguments of --config's file that the command line does not give, or give another choice for."""
        first = argparse.ArgumentParser(prog=self.prog, add_help=False, allow_abbrev=False)
        first.add_argument("--config")
        path: str | None = first.parse_known_args(arguments)[0].config
        if path is None:
            return []
        try:
            loaded = tomllib.loads(Path(path).read_text())
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            self.error(f"--config {path}: {error}")
        known = {option.removeprefix("--"): action for action in self._actions for option in action.option_strings}
        for name in loaded:
            if name not in known or name in ("help", "h", "config"):
                self.error(f"--config {path}: unknown key {name!r}")
        on_command_line = {token.partition("=")[0].removeprefix("--") for token in arguments if token.startswith("--")}
        settled = {action for name, action in known.items() if name in on_command_line}
        for group in self._mutually_exclusive_groups:
            if settled.intersection(group._group_actions):
                settled.update(group._group_actions)
        return [
            token
            for name, value in loaded.items()
            if known[name] not in settled
            for token in self._as_tokens(path, name, value, known[name])
        ]

    def _as_tokens(self, path: str, name: str, value: Any, action: argparse.Action) -> list[str]:
        many = isinstance(action, argparse._AppendAction)
        values = value if many and isinstance(value, list) else [value]
        if action.nargs == 0:
            if not isinstance(value, bool):
                self.error(f"--config {path}: {name} = {value!r}: expected true or false")
            return [f"--{name}"] if value else []
        if any(isinstance(one, bool) or not isinstance(one, str | int | datetime) for one in values):
            expected = "a text, a number or a list of them" if many else "a text or a number"
            self.error(f"--config {path}: {name} = {value!r}: expected {expected}")
        return [f"--{name}={one.isoformat() if isinstance(one, datetime) else one}" for one in values]


def add_config(group: argparse._ArgumentGroup) -> None:
    """The argument whose file `Parser.read` reads."""
    group.add_argument("--config", metavar="FILE", help="TOML with arguments by their names; the command line wins")


def pair(text: str) -> tuple[str, str]:
    """`name=value`; only the first `=` separates."""
    name, separator, value = text.partition("=")
    if not separator or not name.strip() or not value.strip():
        raise argparse.ArgumentTypeError(f"expected name=value, got {text!r}")
    return name.strip(), value.strip()


def positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1, got {text!r}")
    return int(text)


def moment_ms(text: str) -> int:
    """Milliseconds since 1970, or ISO 8601 as 2026-01-31T12:00:00Z; a time without a zone is UTC."""
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected milliseconds or 2026-01-31T12:00:00Z, got {text!r}") from None
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


def unique(parser: Parser, pairs: Sequence[tuple[str, str]], option: str) -> dict[str, str]:
    """The pairs as a dict; usage error for a name given twice."""
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            parser.error(f"{option}: {name!r} is given twice")
    return dict(pairs)
