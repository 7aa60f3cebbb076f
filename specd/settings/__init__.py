"""Every setting of specd, from the environment."""

from specd.settings.host import HostAddress, parse_host
from specd.settings.rules import own_config_dir
from specd.settings.settings import (
    Settings,
    rule_of,
    set_without_effect,
    unknown_variables,
    variable_of,
)

__all__ = [
    "HostAddress",
    "Settings",
    "own_config_dir",
    "parse_host",
    "rule_of",
    "set_without_effect",
    "unknown_variables",
    "variable_of",
]
