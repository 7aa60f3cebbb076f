"""Which models are resident, who waits, who leaves."""

from specd.scheduler.lease import Engine, Lease
from specd.scheduler.loop import Resident, SchedulerLoop
from specd.scheduler.model_stats import ModelStats
from specd.scheduler.requirements import Requirements
from specd.scheduler.scheduler import Scheduler

__all__ = [
    "Engine",
    "Lease",
    "ModelStats",
    "Requirements",
    "Resident",
    "Scheduler",
    "SchedulerLoop",
]
