"""What hinders specd on this machine, each thing with its remedy."""

from specd.doctor.examination import examine, examine_here, held_here
from specd.doctor.finding import Finding, Level
from specd.doctor.held import Held

__all__ = ["Finding", "Held", "Level", "examine", "examine_here", "held_here"]
