"""Which models are resident, who waits, who leaves."""

from specd.scheduler.lease import Engine, Lease
from specd.scheduler.loop import Resident, SchedulerLoop
from specd.scheduler.scheduler import Scheduler
from specd.scheduler.tally import Tally

__all__ = ["Engine", "Lease", "Resident", "Scheduler", "SchedulerLoop", "Tally"]
