"""Starts the web console on the demo's cluster, fetches pages of a topic as a browser does, and ends it.

    python scripts/demo_console.py --cluster ADDRESS --topic TOPIC

Exit code 1 if a page does not show the topic. `make console` serves the console until Ctrl-C.
"""

import argparse
import http.cookiejar
import json
import os
import sys
import urllib.request

from spark_log import Cluster
from spark_log.console.paths import url
from spark_log.console.server import serving
from spark_log.console.settings import ConsoleSettings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cluster", default=os.environ.get("SPARK_LOG_CLUSTER"), help="[env SPARK_LOG_CLUSTER]")
    parser.add_argument("--topic", default="flights")
    arguments = parser.parse_args()
    if not arguments.cluster:
        parser.error("--cluster: needed (or environment variable SPARK_LOG_CLUSTER)")
    browser = urllib.request.build_opener(urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar()))
    printed: list[str] = []
    with (
        Cluster.open(arguments.cluster) as cluster,
        serving(cluster, ConsoleSettings(port=0), printed.append) as server,
    ):
        browser.open(printed[0]).read()  # the token starts a session
        for path in ("/", url("/topics/{topic}/messages", topic=arguments.topic)):
            page, facts = (browser.open(f"{server.url}{base}{path}").read() for base in ("", "/api/v1"))
            print(f"  {path}: a page of {len(page):,} bytes, {len(json.loads(facts))} facts as JSON")
        found = arguments.topic.encode() in page
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
