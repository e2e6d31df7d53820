"""Implements the jobs of the folder `jobs`: command line -> checks without Spark -> session -> query -> summary.

The module of a job (produce.py) has its command line, and imports its query (queries/produce_query.py) only to run it.
Spark takes seconds to start, so a job checks as much as possible before. Exit code 0 means success, 1 an error, which
is reported in one line, and 2 wrong usage. After SIGTERM or SIGINT, a job finishes the current batch and exits with 0.
"""
