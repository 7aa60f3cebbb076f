"""Find problems of specd on this machine, each with its remedy."""

from specd.doctor.finding import Finding, Level
from specd.doctor.held_socket import HeldSocket
from specd.doctor.run_checks import check_all, check_local, find_held_socket

__all__ = ["Finding", "HeldSocket", "Level", "check_all", "check_local", "find_held_socket"]
