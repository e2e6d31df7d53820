"""A server that never ends its answer."""

import contextlib
import socket
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def endless_answer(start: bytes) -> Iterator[str]:
    """The URL of a server that sends `start` to its only client, and then a byte now and then, so that no wait for the
    next one is long. At the end of the block the client must have closed its connection.
    """
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            client = server.accept()[0]
            with client, contextlib.suppress(OSError):
                client.sendall(start)
                while True:  # ends when the reader closes its end
                    client.sendall(b"1")
                    time.sleep(0.02)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        thread.join(timeout=60)
        assert not thread.is_alive()
