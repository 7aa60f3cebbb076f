"""What this machine has for models, and the defaults that follow from it."""

from specd.placement.cpu import Cpu
from specd.placement.defaults import Defaults
from specd.placement.devices import Device, devices

__all__ = ["Cpu", "Defaults", "Device", "devices"]
