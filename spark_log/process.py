"""Starts threads, and handles the exit of the interpreter, forks and signals.

spark-log also works while the interpreter exits: a producer that was not closed appends its records then. Since Python
3.12 no thread can be started at that time, and at other times the limit of threads may be reached. So `in_parallel` and
each caller of `start_thread` do the work without a new thread, or later.

Before the interpreter exits, spark-log stops its threads, and closes the producers that are still open. A daemon thread
that is in native code (Arrow, Delta) while the interpreter and its libraries are torn down crashes the process: SIGABRT
or SIGSEGV after the program's last line. Other threads may still run and register owners and finalizers. Therefore the
sets are copied in one step (`list`), which no thread can interrupt.
"""

import atexit
import concurrent.futures.thread  # noqa: F401  its exit hook runs after ours: our threads may use pools until they end
import contextlib
import logging
import os
import queue
import signal
import threading
import weakref
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from spark_log import clock

T = TypeVar("T")
R = TypeVar("R")

logger = logging.getLogger(__name__)

_limit_logged = False


def start_thread(work: Callable[[], object], name: str) -> threading.Thread | None:
    """Start a daemon thread and return it. Return None if none can be started: the interpreter is exiting, or the limit
    of the container (pids) or of the user is reached, which is logged once.
    """
    global _limit_logged
    thread = threading.Thread(target=work, name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        if "interpreter shutdown" not in str(error) and not _limit_logged:
            _limit_logged = True
            logger.warning("thread %s: %s; raise the limit of threads (pids, nproc): work is delayed", name, error)
        return None
    return thread


class _Worker:
    """A daemon thread that runs pieces of work one after the other. Most take less time than starting a thread."""

    def __init__(self) -> None:
        self._next: queue.SimpleQueue[tuple[Callable[[], object], str]] = queue.SimpleQueue()

    def give(self, work: Callable[[], object], name: str) -> None:
        self._next.put((work, name))

    def run(self) -> None:
        thread = threading.current_thread()
        while True:
            work, thread.name = self._next.get()
            work()
            del work
            if len(_idle) >= _IDLE_MAX:
                return
            _idle.append(self)
            thread.name = "spark-log-idle"


_idle: list[_Worker] = []
_IDLE_MAX = 8


def _give(work: Callable[[], object], name: str) -> bool:
    """Let a daemon thread run `work`. Return False if none can be started."""
    with contextlib.suppress(IndexError):
        _idle.pop().give(work, name)
        return True
    worker = _Worker()
    worker.give(work, name)
    return start_thread(worker.run, name) is not None


def begin(work: Callable[[], R], name: str) -> "Future[R]":
    """Run `work` in a daemon thread, which has this name meanwhile, and does not keep the process alive if it hangs."""
    answer: Future[R] = Future()
    if not _give(partial(settle, answer, work), name):
        answer.set_exception(no_thread())
    return answer


def begin_or_run(work: Callable[[], R], name: str) -> "Future[R]":
    """Like `begin`, but if no thread can be started, `work` runs in this one."""
    answer: Future[R] = Future()
    if not _give(partial(settle, answer, work), name):
        settle(answer, work)
    return answer


def settle(answer: "Future[R]", work: Callable[[], R]) -> None:
    """Give `answer` the result of `work`, or its error."""
    try:
        answer.set_result(work())
    except BaseException as error:
        answer.set_exception(error)


def no_thread() -> Exception:
    return RuntimeError("no thread can be started: the program exits, or the limit of threads (pids, nproc) is reached")


def in_parallel(work: Callable[[T], R], items: Sequence[T], threads: int, name: str) -> list[R]:
    """Return the results of `work` for all items, in their order. `work` runs in at most `threads` threads, one of
    which is the caller's.

    After an error no further item is begun. The first error is raised when all threads have ended.
    """
    results: dict[int, R] = {}
    errors: list[BaseException] = []
    numbers = iter(range(len(items)))  # shared: each thread takes the next one

    def run() -> None:
        try:
            for number in numbers:
                results[number] = work(items[number])
        except BaseException as error:
            errors.append(error)
            deque(numbers, maxlen=0)

    helpers = [start_thread(run, name) for _ in range(min(threads, len(items)) - 1)]
    run()
    for helper in helpers:
        if helper is not None:
            helper.join()
    if errors:
        raise errors.pop(0)
    return [results[number] for number in range(len(items))]


_PAUSE_S_MIN, _PAUSE_S_MAX = 60.0, 600.0


class Pause(NamedTuple):
    """The time, until monotonic time `until_s`, in which a hanging call is not repeated: each call holds a thread."""

    until_s: float
    length_s: float

    @classmethod
    def after(cls, earlier: "Pause | None") -> "Pause":
        """Return a pause that begins now: one minute, or twice as long as the earlier one, but at most ten minutes. A
        mount may be replaced while the threads that wait for the old one still hang.
        """
        length_s = _PAUSE_S_MIN if earlier is None else min(2 * earlier.length_s, _PAUSE_S_MAX)
        return cls(clock.monotonic_s() + length_s, length_s)


class _Asking(NamedTuple):
    """A thread that has not answered. After the pause it counts as hanging, and another one may ask."""

    answer: "Future[Any]"
    pause: Pause


_asking: dict[tuple[str, Hashable], _Asking] = {}
_asking_lock = threading.Lock()


def ask_in_thread(name: str, question: Hashable, work: Callable[[], R]) -> "Future[R]":
    """Call `work`, which may never return (a mount that hangs), in a thread with this name. Return its answer, or that
    of an earlier call with the same name and question for which a thread still waits.

    A call that hangs blocks only daemon threads of its own: one at first, and one more after each pause.
    """
    key = name, question
    with _asking_lock:
        earlier = _asking.get(key)
        if earlier is not None and clock.monotonic_s() < earlier.pause.until_s:
            return earlier.answer
        mine = _asking[key] = _Asking(Future(), Pause.after(earlier and earlier.pause))

    def ask() -> None:
        settle(mine.answer, work)
        with _asking_lock:
            if _asking.get(key) is mine:
                del _asking[key]

    if start_thread(ask, name) is None:
        ask()  # an append at the exit of the program still finds the replica that can lead
    return mine.answer


def _forget_threads_of_parent() -> None:
    global _asking_lock
    _asking_lock = threading.Lock()
    _asking.clear()
    _idle.clear()


os.register_at_fork(after_in_child=_forget_threads_of_parent)

EXIT_S_MAX = 30.0
"""The longest time for which the exit of the interpreter waits for threads, in total."""


class Stoppable(Protocol):
    def request_stop(self) -> Iterable[threading.Thread]:
        """Ask the threads to end, without waiting for them, and return them."""
        ...


def stop_at_exit(owner: Stoppable) -> None:
    """Stop the threads of `owner` when the interpreter exits. This applies to the calling process, not to its forked
    children.
    """
    _owners.add(weakref.ref(owner, _owners.discard))


class Finalizer:
    """Calls a function once: when `owner` is garbage-collected, or when the interpreter exits and the program's threads
    have ended.

    `weakref.finalize` promises the same. But it iterates over its registry in Python code, and calls nothing at exit if
    another thread creates or drops a finalizer at that moment, as SQLAlchemy does when its modules are imported.
    """

    def __init__(self, owner: object, function: Callable[..., object], *arguments: object) -> None:
        self._function, self._arguments = function, arguments
        self._owner = weakref.ref(owner, self)
        _finalizers[self] = None

    def __call__(self, _owner: object = None) -> None:
        if self.detach():
            self._function(*self._arguments)

    def detach(self) -> bool:
        """Cancel the call of the function. Return False if it was called or cancelled before."""
        return _finalizers.pop(self, self) is None


_owners: set[weakref.ref[Stoppable]] = set()
_finalizers: dict[Finalizer, None] = {}


def _stop_all() -> None:
    deadline_s = clock.monotonic_s() + EXIT_S_MAX
    owners = [owner for reference in list(_owners) if (owner := reference()) is not None]
    for thread in [thread for owner in owners for thread in owner.request_stop()]:
        thread.join(max(0.0, deadline_s - clock.monotonic_s()))


def _finalize_all() -> None:
    for finalizer in reversed(list(_finalizers)):
        try:
            finalizer()
        except Exception:
            logger.exception("an object could not be closed at exit")


class Heir(Protocol):
    def forget_parent(self) -> None:
        """Reset the state in a forked child: the parent's threads do not exist here, and may have held any lock."""
        ...


def forget_parent_in_child(heir: Heir) -> None:
    """Call `forget_parent` of `heir` in each forked child, as long as it exists."""
    _heirs.add(heir)


_heirs: weakref.WeakSet[Heir] = weakref.WeakSet()


def _forget_parents() -> None:
    for heir in list(_heirs):
        with contextlib.suppress(Exception):  # of one heir: the others would keep locks that no thread releases here
            heir.forget_parent()


os.register_at_fork(after_in_child=_forget_parents)

threading._register_atexit(_stop_all)  # type: ignore[attr-defined]  # atexit comes too late: pools are closed by then
atexit.register(_finalize_all)
os.register_at_fork(after_in_child=_owners.clear)


class Stop:
    """A stop flag like threading.Event, whose `set` is safe to call in a signal handler.

    `Event.set` takes a lock that is not reentrant: a handler that interrupts a `wait` or another handler's `set` can
    deadlock. `SimpleQueue.put` is documented to be reentrant.
    """

    def __init__(self) -> None:
        self._set = False
        self._wake_ups: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        self._set = True
        self._wake_ups.put(None)

    def is_set(self) -> bool:
        return self._set

    def wait(self, timeout_s: float) -> bool:
        """Wait until the flag is set, for at most `timeout_s` seconds. Return whether it is set."""
        if not self._set:
            try:
                self._wake_ups.get(timeout=timeout_s)
            except queue.Empty:
                return self._set
            self._wake_ups.put(None)  # for other waiting threads
        return True

    def on_signals(self) -> "Stop":
        """Let SIGTERM and SIGINT set the flag, and return this object. Call it in the main thread."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self.set())
        return self
