"""What this machine has for models, and the defaults that follow from it."""

from specd.placement.backend_devices import DeviceKind
from specd.placement.config import placement_config
from specd.placement.cpu import Cpu
from specd.placement.defaults import Defaults
from specd.placement.devices import Device, Devices, cpu_name, devices, machine_name
from specd.placement.memory_corrections import MEMORY_FILE, MemoryCorrections
from specd.placement.placer import Placer

__all__ = [
    "MEMORY_FILE",
    "Cpu",
    "Defaults",
    "Device",
    "DeviceKind",
    "Devices",
    "MemoryCorrections",
    "Placer",
    "cpu_name",
    "devices",
    "machine_name",
    "placement_config",
]
