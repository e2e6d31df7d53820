"""The server of metrics, and clients that hold its connections."""

import socket
import threading
from contextlib import suppress
from urllib.request import urlopen

from prometheus_client.registry import CollectorRegistry

from spark_log.facts.metrics.http_server import serving_metrics


def test_clients_that_send_slowly_hold_a_limited_number_of_threads_and_keep_no_scrape_out(capfd):
    before = threading.active_count()
    with serving_metrics("127.0.0.1", 0, CollectorRegistry(), lambda: None, lambda: None) as port:
        of_another = socket.create_connection(("127.0.0.1", port), 2, ("127.0.0.2", 0))
        of_another.sendall(b"GET /health HTTP/1.1\r\nX: ")
        slow = [socket.create_connection(("127.0.0.1", port), 2) for _ in range(100)]
        for client in slow:
            client.sendall(b"GET /health HTTP/1.1\r\nX: ")
        for client in slow[:30]:
            client.settimeout(2)
            with suppress(ConnectionError):
                client.recv(100)  # until it is ended
        with urlopen(f"http://127.0.0.1:{port}/health", timeout=60) as answer:
            assert answer.status == 200
        of_another.sendall(b"\r\n\r\n")
        assert of_another.recv(12) == b"HTTP/1.0 200"
        assert threading.active_count() - before < 75
        for client in slow:
            client.close()
    assert "Traceback" not in capfd.readouterr().err
