"""The service put in place, taken away, and in Ollama's stead: facts → plan → carried out."""

from specd.install.facts import Facts, look, who_has_port
from specd.install.going_back import plan_back
from specd.install.installing import plan_install
from specd.install.interpreter import Choice, candidates, choose, running
from specd.install.machine import Machine
from specd.install.migrating import address_of, plan_migrate
from specd.install.ollama import Predecessor, of_store, read_service
from specd.install.plan import Plan, carry_out
from specd.install.sources import Sources, collect
from specd.install.uninstalling import plan_uninstall
from specd.install.unit_files import UnitFiles

__all__ = [
    "Choice",
    "Facts",
    "Machine",
    "Plan",
    "Predecessor",
    "Sources",
    "UnitFiles",
    "address_of",
    "candidates",
    "carry_out",
    "choose",
    "collect",
    "look",
    "of_store",
    "plan_back",
    "plan_install",
    "plan_migrate",
    "plan_uninstall",
    "read_service",
    "running",
    "who_has_port",
]
