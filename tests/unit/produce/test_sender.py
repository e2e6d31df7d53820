"""The sender's rules that need no cluster."""

import threading

from spark_log.produce.sender import _drop_traceback


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


def test_errors_that_cause_each_other_lose_their_tracebacks_once():
    first, second = raised(ValueError("first")), raised(ValueError("second"))
    first.__cause__, second.__cause__ = second, first
    thread = threading.Thread(target=_drop_traceback, args=[first], daemon=True)
    thread.start()
    thread.join(5)
    ended = not thread.is_alive()
    second.__cause__ = None
    assert ended
    assert first.__traceback__ is None and second.__traceback__ is None
