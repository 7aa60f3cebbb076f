"""What hinders specd on this machine, each thing with its remedy."""

from specd.doctor.examination import examine, examine_here
from specd.doctor.finding import Finding, Level

__all__ = ["Finding", "Level", "examine", "examine_here"]
