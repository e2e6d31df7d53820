"""The outcome of a test, and the output of a program."""

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

TIMEOUT_S = 600


class Result(NamedTuple):
    suite: str
    test: str
    outcome: str


def output_of(command: list[str], folder: Path, **environment: str) -> str:
    """Standard output and errors, whatever the exit code is."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return done.stdout
