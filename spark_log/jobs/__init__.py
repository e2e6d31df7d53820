"""The jobs behind `spark-submit jobs/*.py`: arguments -> checks without Spark -> session -> query -> summary.

A job checks all that can be checked before it starts Spark, which takes seconds. Exit codes: 0 done (also after SIGTERM
or SIGINT, once the batch in flight is finished), 1 an error, told in one line, 2 wrong usage.
"""
