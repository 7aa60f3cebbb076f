"""What this machine has for models, and the defaults that follow from it."""

from specd.placement.cpu import Cpu
from specd.placement.defaults import Defaults
from specd.placement.devices import Device, Devices, devices
from specd.placement.fit import Fit
from specd.placement.learned import MEMORY_FILE, Learned
from specd.placement.machine import cpu_name, machine_name
from specd.placement.seats import Kind
from specd.placement.wishes import wishes

__all__ = [
    "MEMORY_FILE",
    "Cpu",
    "Defaults",
    "Device",
    "Devices",
    "Fit",
    "Kind",
    "Learned",
    "cpu_name",
    "devices",
    "machine_name",
    "wishes",
]
