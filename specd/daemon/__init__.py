"""The daemon: builds the services, serves requests, and stops the services in reverse order."""

from specd.daemon.serve import main, run

__all__ = ["main", "run"]
