"""Install, uninstall and migrate the systemd service: gather facts, plan steps, apply them."""

from specd.install.facts import HostFacts, find_port_holder, gather_facts
from specd.install.host_system import HostSystem
from specd.install.install_plan import plan_install
from specd.install.interpreter import (
    PythonChoice,
    choose_interpreter,
    current_interpreter,
    find_interpreters,
)
from specd.install.migrate_back_plan import plan_migrate_back
from specd.install.migrate_plan import ollama_address, plan_migrate
from specd.install.ollama_service import OllamaService, read_ollama_service, service_of_store
from specd.install.step_runner import StepPlan, apply_plan
from specd.install.uninstall_plan import plan_uninstall
from specd.install.unit_files import UnitFiles
from specd.install.venv_sources import Sources, collect_packages

__all__ = [
    "HostFacts",
    "HostSystem",
    "OllamaService",
    "PythonChoice",
    "Sources",
    "StepPlan",
    "UnitFiles",
    "apply_plan",
    "choose_interpreter",
    "collect_packages",
    "current_interpreter",
    "find_interpreters",
    "find_port_holder",
    "gather_facts",
    "ollama_address",
    "plan_install",
    "plan_migrate",
    "plan_migrate_back",
    "plan_uninstall",
    "read_ollama_service",
    "service_of_store",
]
