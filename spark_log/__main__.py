"""`python -m spark_log` runs the command line where the script `spark-log` is not on the path."""

from spark_log.cli.main import app

app(prog_name="python -m spark_log")
