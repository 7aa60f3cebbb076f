"""The settings of specd, read from the environment."""

from specd.daemon_address import HostAddress, is_loopback, parse_host
from specd.settings.env_file import read_env_file
from specd.settings.exposure import find_exposure
from specd.settings.rules import own_config_dir
from specd.settings.settings import (
    Settings,
    find_ineffective,
    is_live,
    rule_of,
    unknown_variables,
    variable_of,
)

__all__ = [
    "HostAddress",
    "Settings",
    "find_exposure",
    "find_ineffective",
    "is_live",
    "is_loopback",
    "own_config_dir",
    "parse_host",
    "read_env_file",
    "rule_of",
    "unknown_variables",
    "variable_of",
]
