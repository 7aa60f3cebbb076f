"""Find problems of specd on this machine, each with its remedy."""

from specd.doctor.finding import Finding, Level
from specd.doctor.run_checks import check_all, check_local, find_held_socket
from specd.doctor.service import HeldSocket

__all__ = ["Finding", "HeldSocket", "Level", "check_all", "check_local", "find_held_socket"]
