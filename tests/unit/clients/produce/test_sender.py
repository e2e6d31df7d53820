"""Rules of the sender that need no cluster."""

import threading

from spark_log.clients.produce.sender import _drop_traceback


def raised(error):
    try:
        raise error
    except Exception as caught:
        return caught


def test_drop_traceback_ends_for_errors_that_cause_each_other():
    first, second = raised(ValueError("first")), raised(ValueError("second"))
    first.__cause__, second.__cause__ = second, first
    thread = threading.Thread(target=_drop_traceback, args=[first], daemon=True)
    thread.start()
    thread.join(60)
    ended = not thread.is_alive()
    second.__cause__ = None
    assert ended
    assert first.__traceback__ is None and second.__traceback__ is None
