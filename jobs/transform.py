"""python jobs/transform.py --help: the code is spark_log.jobs.transform. Needs spark-log, and no Spark."""

import sys

from spark_log.jobs.transform import main

if __name__ == "__main__":
    sys.exit(main())
