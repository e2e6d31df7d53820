"""A process with several lives: forks that do the same work, one after the other, and are killed during it.

A life is a failpoint (`append.decided:2`), `kill` (killed at a random moment after the work has started), or `on`: this
process itself, to the end, as the last life. Forks save the second that Python takes to start. After each killed life
`lived LIFE` is printed.
"""

import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence

import pandas  # noqa: F401 - pyarrow imports it with its first value: here once, not in each life

Work = Callable[[Callable[[], None]], None]
"""Its argument is a function that it calls when its work has started."""

_MOMENT_S_MAX = 0.08


def say(*words: object) -> None:
    print(*words, flush=True)


def live(lives: Sequence[str], work: Work) -> None:
    for life in lives:
        if life == "on":
            work(lambda: None)
            return
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            _work_and_exit(life, work, writing)
        os.close(writing)
        under_way = os.read(reading, 1)
        os.close(reading)
        if life == "kill" and under_way:
            time.sleep(random.uniform(0, _MOMENT_S_MAX))
            os.kill(child, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert code == -signal.SIGKILL or (life == "kill" and code == 0), f"{life}: it ended with {code}"
        say("lived", life)


def _work_and_exit(life: str, work: Work, writing: int) -> None:
    code = 1
    try:
        if life != "kill":
            os.environ["SPARK_LOG_FAILPOINT"] = life
        work(lambda: (os.write(writing, b"."), None)[1])
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
