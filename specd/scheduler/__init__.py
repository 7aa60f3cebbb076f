"""Which models are resident, who waits, who leaves."""

from specd.scheduler.lease import Engine, Lease
from specd.scheduler.loop import Resident, SchedulerLoop
from specd.scheduler.scheduler import Scheduler
from specd.scheduler.tally import Tally
from specd.scheduler.wants import Wants

__all__ = ["Engine", "Lease", "Resident", "Scheduler", "SchedulerLoop", "Tally", "Wants"]
