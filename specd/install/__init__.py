"""Install, uninstall and migrate the systemd service: gather facts, plan steps, apply them."""

from specd.install.facts import HostFacts, find_port_holder, gather_facts
from specd.install.host_system import CommandFailed, HostSystem
from specd.install.install_plan import VenvContents, plan_install
from specd.install.interpreter import choose_interpreter, current_interpreter, find_interpreters
from specd.install.migrate_plan import ollama_address, plan_migrate
from specd.install.ollama_service import read_ollama_service, service_of_store
from specd.install.plan import StepPlan, apply_plan
from specd.install.uninstall_plan import plan_migrate_back, plan_uninstall
from specd.install.unit_settings import read_unit_files
from specd.install.venv_sources import collect_packages

__all__ = [
    "CommandFailed",
    "HostFacts",
    "HostSystem",
    "StepPlan",
    "VenvContents",
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
    "read_unit_files",
    "service_of_store",
]
