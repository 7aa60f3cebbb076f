"""Decides which models are loaded, which requests wait, and which models are unloaded."""

from specd.scheduler.lease import Lease, LoadedEngine
from specd.scheduler.loop import Resident, SchedulerLoop
from specd.scheduler.model_stats import ModelStats
from specd.scheduler.requirements import Requirements
from specd.scheduler.scheduler import Scheduler

__all__ = [
    "Lease",
    "LoadedEngine",
    "ModelStats",
    "Requirements",
    "Resident",
    "Scheduler",
    "SchedulerLoop",
]
