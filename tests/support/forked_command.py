"""Replaces `spark-log` in the shell blocks of documentation: tests/support/page_process.py forks the real command."""

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
