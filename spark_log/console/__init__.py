"""Serves the web console. Its pages and its JSON API show a cluster, and change it where that is allowed."""
