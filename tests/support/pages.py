"""The code blocks of a Markdown page, and a runner: in order, in one folder, with `spark-log` on the path.

- ```sh and ```python run. ```sql runs in PostgreSQL, as its administrator.
- ```text is the output of the block before it. A line `...` stands for any lines, and `...` in a line for any text.
- Any block with title="NAME" is written to the file NAME; nothing runs.
- An HTML comment on the line above a block changes that: `<!-- not run: REASON -->`, `<!-- fails -->` (the exit code
  is not 0, or an exception is raised), `<!-- background -->` (runs until the end of the page).
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TextIO, TypeAlias

import pyspark

from spark_log.spark import delta_jars
from tests.support.spark import QUICK_JVM

Kind: TypeAlias = Literal["sh", "python", "sql", "output", "file", "not run"]

REASONS = (
    "needs Docker",
    "needs Kubernetes",
    "needs a network",
    "needs several machines",
    "takes minutes",
    "a form",
    "a diagram",
)
"""The reasons for which a block may not run; a specific text may follow."""

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*) *(?P<attributes>.*)$")
_COMMENT = re.compile(r"^ *<!-- (not run: .*|fails|background) -->$")
_TITLE = re.compile(r'title="([^"]+)"')


class PageError(Exception):
    """A block of the page says neither how it runs nor why it does not."""


@dataclass(frozen=True)
class Block:
    kind: Kind
    code: str
    line: int
    """Number of the block's first line of code in the page, from 1."""
    title: str = ""
    fails: bool = False
    background: bool = False


def blocks(page: str) -> list[Block]:
    """The blocks of the text of a page. PageError names the line of a block without instructions."""
    found: list[Block] = []
    lines = page.splitlines()
    at, comment = 0, ""
    while at < len(lines):
        line = lines[at]
        fence = _FENCE.match(line)
        if fence is None:
            if line.strip():
                said = _COMMENT.match(line)
                comment = said[1] if said else ""
            at += 1
            continue
        indent = fence["indent"]
        end = next((n for n in range(at + 1, len(lines)) if lines[n].rstrip() == f"{indent}```"), None)
        if end is None:
            raise PageError(f"line {at + 1}: the block has no end")
        code = "".join(f"{text.removeprefix(indent)}\n" for text in lines[at + 1 : end])
        found.append(_block(fence["language"], fence["attributes"], comment, code, at + 2))
        at, comment = end + 1, ""
    return found


def _block(language: str, attributes: str, comment: str, code: str, line: int) -> Block:
    if comment.startswith("not run: "):
        if not comment.removeprefix("not run: ").startswith(REASONS):
            raise PageError(f"line {line}: {comment!r} is none of the reasons {', '.join(REASONS)}")
        return Block("not run", code, line)
    if title := _TITLE.search(attributes):
        return Block("file", code, line, title=title[1])
    fails, background = comment == "fails", comment == "background"
    match language:
        case "sh" | "python" | "sql":
            return Block(language, code, line, fails=fails, background=background)
        case "text":
            return Block("output", code, line)
    raise PageError(f'line {line}: a block of language {language!r} needs title="NAME" or a comment `not run: REASON`')


def differs(expected: str, printed: str) -> str | None:
    """The first line of `expected` that `printed` lacks, in the order of `expected`; runs of spaces count as one."""
    rest = [" ".join(line.split()) for line in printed.splitlines()]
    for line in expected.splitlines():
        wanted = " ".join(line.split())
        if wanted in ("", "..."):
            continue
        pattern = re.compile(".*".join(re.escape(part) for part in wanted.split("...")))
        at = next((n for n, text in enumerate(rest) if pattern.fullmatch(text)), None)
        if at is None:
            return line
        rest = rest[at + 1 :]
    return None


REPOSITORY = Path(__file__).resolve().parents[2]
_SPARK_SETTINGS = {
    "spark.master": "local[2]",
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.driver.extraJavaOptions": QUICK_JVM,
    "spark.sql.shuffle.partitions": "2",
    "spark.databricks.delta.snapshotPartitions": "2",
    **delta_jars.DELTA_SETTINGS,
}


class PageRunner:
    """Runs pages one after the other. `folder` is an empty folder that belongs to the runner."""

    def __init__(self, folder: Path) -> None:
        defaults = _spark_defaults(folder / "spark-defaults.conf")
        self._home = folder / "home"
        self._log = (folder / "log").open("w+b")
        self._environment = {
            **os.environ,
            "PATH": f"{_commands(folder / 'bin', defaults)}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "COLUMNS": "120",
            "SPARK_LOG_FORKS": str(folder / "forks"),
            "PYSPARK_PYTHON": os.environ.get("PYSPARK_PYTHON", sys.executable),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "TZ": "UTC",
        }
        for name in ("SPARK_LOG_CLUSTER", "SPARK_CONF_DIR"):
            self._environment.pop(name, None)
        self._home.mkdir()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.page_process", str(folder / "forks")],
            cwd=self._home,
            env={
                **self._environment,
                "PYTHONPATH": str(REPOSITORY),
                "PYSPARK_SUBMIT_ARGS": f"--properties-file {defaults} pyspark-shell",
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        self._answer()

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)
        self._log.close()

    def run(self, name: str, page: str, environment: Mapping[str, str]) -> None:
        """Raises AssertionError with the line of a block that failed or printed another output."""
        background: list[Background] = []
        shell = _Shell({**self._environment, **environment}, self._home)
        printed = ""
        started: Background | None = None
        try:
            for block in blocks(page):
                place = f"{name}:{block.line}"
                if block.kind == "output":
                    if started is not None:
                        printed = started.wait_for(block.code)
                    line = differs(block.code, printed)
                    assert line is None, f"{place}: {line!r} is not in the output\n{printed}"
                elif block.kind == "file":
                    (self._home / block.title).write_text(block.code)
                elif block.background:
                    started = shell.start(block.code)
                    background.append(started)
                elif block.kind != "not run":
                    started = None
                    printed, failed = self._python(block, place) if block.kind == "python" else shell.run(block)
                    assert failed == block.fails, f"{place} {'failed' if failed else 'did not fail'}\n{printed}"
        finally:
            for each in background:
                _stop(each.process)
            self._ask({"end": True})
            for entry in self._home.iterdir():
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def _python(self, block: Block, place: str) -> tuple[str, bool]:
        answer = self._ask({"code": block.code, "name": place})
        return answer["output"] + (answer["error"] or ""), answer["error"] is not None

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._log.seek(0)
            raise AssertionError(f"the process of the pages has ended\n{self._log.read().decode()[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@dataclass(frozen=True)
class Background:
    """A background block and the file that it prints to."""

    process: subprocess.Popen[str]
    output: Path

    def wait_for(self, expected: str, timeout_s: float = 60.0) -> str:
        """Its output, once it matches `expected`, the block has ended, or the timeout has passed."""
        deadline = time.monotonic() + timeout_s
        while differs(expected, printed := self.output.read_text()) is not None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                break
            time.sleep(0.05)
        return printed


class _Shell:
    """Bash, which keeps exported variables and the current folder from one block to the next."""

    def __init__(self, environment: dict[str, str], home: Path) -> None:
        self._environment = environment
        self._state = home.parent / "shell-state"
        self._state.write_text(f"cd '{home}'\n")

    def run(self, block: Block) -> tuple[str, bool]:
        """(output, whether it failed)."""
        code = block.code
        if block.kind == "sql":
            code = f"psql -q -v ON_ERROR_STOP=1 <<'EOF'\n{code}EOF\n"
        keep = f'trap \'{{ declare -px; echo "cd \\"$PWD\\""; }} > {self._state}\' EXIT\n'
        process = self._bash(keep + code)
        try:
            printed, _ = process.communicate(timeout=240)
        finally:
            _stop(process)
        return printed, process.returncode != 0

    def start(self, code: str) -> Background:
        output = self._state.with_name("background")
        with output.open("w") as file:
            return Background(self._bash(code, file), output)

    def _bash(self, code: str, output: int | TextIO = subprocess.PIPE) -> subprocess.Popen[str]:
        return subprocess.Popen(
            ["bash", "-euo", "pipefail", "-c", f". {self._state}\n{code}"],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )


def _stop(process: subprocess.Popen[str]) -> None:
    """End the process and its children."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def _commands(folder: Path, spark_defaults: Path) -> Path:
    """A folder with `spark-log`, and with `spark-submit` with these settings."""
    folder.mkdir()
    spark_submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    for name, program in (
        ("spark-log", f"#!{sys.executable} -IS\n{_FORKED_COMMAND}"),
        ("spark-submit", f'#!/bin/sh\nexec "{spark_submit}" --properties-file "{spark_defaults}" "$@"\n'),
    ):
        (folder / name).write_text(program)
        (folder / name).chmod(0o755)
    return folder


def _spark_defaults(path: Path) -> Path:
    """The recommended Spark settings and those of a test machine, in a file for `--properties-file`.

    A JVM with a folder of settings (SPARK_CONF_DIR) on its class path cannot use the archive of classes.
    """
    settings = "".join(f"\n{name} {value}" for name, value in _SPARK_SETTINGS.items())
    path.write_text((REPOSITORY / "conf" / path.name).read_text() + settings + "\n")
    return path


_FORKED_COMMAND = """
import json
import os
import signal
import socket
import sys

connection = socket.socket(socket.AF_UNIX)
connection.connect(os.environ["SPARK_LOG_FORKS"])
mask = os.umask(0)
request = {"folder": os.getcwd(), "environment": dict(os.environ), "arguments": sys.argv, "umask": mask}
socket.send_fds(connection, [json.dumps(request).encode()], [0, 1, 2])
answers = connection.makefile()
command = int(answers.readline())
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, lambda number, _frame: os.kill(command, number))
status = int(answers.readline())
sys.exit(status if status >= 0 else 128 - status)
"""
"""Replaces `spark-log` in the shell blocks of documentation: `page_process` forks the real command."""
