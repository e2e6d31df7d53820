"""The web console: pages and a JSON API that show a cluster, and change it where that is allowed."""
