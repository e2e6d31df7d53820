"""The background thread of a consumer: it sends heartbeats and runs asynchronous commits.

Tasks run one after the other, in the order of submission, so that no commit overtakes another. A heartbeat that is due
runs before the next task, so that a backlog of tasks does not end the session.
"""

import logging
import os
import queue
import threading
from collections.abc import Callable
from typing import Any

from kafka.future import Future

from spark_log import clock
from spark_log.errors import IllegalStateError, KafkaTimeoutError

logger = logging.getLogger(__name__)

FORKED = "the consumer was made in another process: make one after the fork"

_NEVER_S = 3600.0


class Background:
    """A thread that runs tasks and one periodic heartbeat. The first task or heartbeat starts it. Thread-safe."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._tasks: queue.SimpleQueue[tuple[Callable[[], Any], Future] | None] = queue.SimpleQueue()
        self._heartbeat: Callable[[], None] | None = None
        self._interval_s = _NEVER_S
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._process = os.getpid()

    def submit(self, task: Callable[[], Any]) -> Future:
        """Run `task` in the thread; return a future of its result or exception."""
        future = Future()
        self._start((task, future))
        return future

    def run(self, task: Callable[[], Any], timeout_s: float) -> Any:
        """Run `task` in the thread after the queued tasks, and wait. Raises KafkaTimeoutError after `timeout_s`."""
        if threading.current_thread() is self._thread:  # a callback of a future
            return task()
        done = threading.Event()
        future = self.submit(task)
        future.add_both(lambda _: done.set())
        if not done.wait(min(timeout_s, threading.TIMEOUT_MAX)):
            raise KafkaTimeoutError(f"no answer within {timeout_s:g} s; the store may still execute the call")
        if future.exception is not None:
            raise future.exception
        return future.value

    def call_every(self, interval_s: float, heartbeat: Callable[[], None]) -> None:
        """Call `heartbeat` in the thread every `interval_s` from now on. Its errors are logged. Call this only once."""
        if self._heartbeat is None:
            self._heartbeat, self._interval_s = heartbeat, interval_s
            try:
                self._start(None)
            except BaseException:
                self._heartbeat = None  # the next call tries again
                raise

    def close(self, timeout_s: float) -> None:
        """End the thread after the queued tasks; refuse further tasks. Waits up to `timeout_s` for the end."""
        with self._lock:
            self._closed = True
            thread = self._thread
        self._tasks.put(None)
        if thread is not None and self._process == os.getpid() and thread is not threading.current_thread():
            thread.join(min(timeout_s, threading.TIMEOUT_MAX))

    def abandon(self) -> None:
        """End the thread without waiting, for a consumer that has been garbage-collected."""
        self._closed = True
        self._heartbeat = None
        self._tasks.put(None)

    def _start(self, item: tuple[Callable[[], Any], Future] | None) -> None:
        if self._process != os.getpid():
            raise IllegalStateError(FORKED)
        with self._lock:
            if self._closed:
                raise IllegalStateError("the consumer is closed")
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                thread.start()  # RuntimeError at the limit of threads: then nothing is queued
                self._thread = thread
            self._tasks.put(item)

    def _run(self) -> None:
        due_s = clock.monotonic_s() + self._interval_s
        while True:
            if self._heartbeat is not None and clock.monotonic_s() >= due_s:
                self._call_heartbeat()
                due_s = clock.monotonic_s() + self._interval_s
            wait_s = max(0.0, due_s - clock.monotonic_s()) if self._heartbeat is not None else None
            try:
                item = self._tasks.get(timeout=wait_s)
            except queue.Empty:
                continue
            if item is not None:
                _do(*item)
            elif self._closed:
                return
            else:  # `call_every` was called: its interval begins now
                due_s = clock.monotonic_s() + self._interval_s

    def _call_heartbeat(self) -> None:
        heartbeat = self._heartbeat
        if heartbeat is not None and not self._closed:
            try:
                heartbeat()
            except Exception as error:  # a failed heartbeat must not end the thread, and with it the membership
                logger.warning("heartbeat failed, tried again in %g s: %s", self._interval_s, error)


def _do(task: Callable[[], Any], future: Future) -> None:
    try:
        value = task()
    except BaseException as error:
        settle, outcome = future.failure, error
    else:
        settle, outcome = future.success, value
    try:
        settle(outcome)
    except BaseException:  # a user's callback must not end the thread, not even with sys.exit
        logger.exception("error in a callback of a commit")
