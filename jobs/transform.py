"""`python transform.py --help`. The code is in spark_log.jobs.transform; it needs no Spark."""

import sys

from spark_log.jobs.transform import main

if __name__ == "__main__":
    sys.exit(main())
