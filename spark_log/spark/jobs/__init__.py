"""The jobs of the folder `jobs`: command line -> checks without Spark -> session -> query -> summary.

The module of a job (produce.py) has its command line, and imports its query (queries/produce_query.py) only to run it.
The start of Spark takes seconds, so a job checks as much as possible before. Exit codes are 0 for success (also after
SIGTERM or SIGINT, when the current batch is finished), 1 for an error, reported in one line, and 2 for wrong usage.
"""
