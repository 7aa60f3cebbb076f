"""What is counted, and the line that each request leaves in the log."""

from specd.metrics.metrics import Metrics, Observer
from specd.metrics.record import Record, current, current_id, new_id, request_id, serving
from specd.metrics.request_line import log_request
from specd.metrics.state import Device, Loaded, Process, State

__all__ = [
    "Device",
    "Loaded",
    "Metrics",
    "Observer",
    "Process",
    "Record",
    "State",
    "current",
    "current_id",
    "log_request",
    "new_id",
    "request_id",
    "serving",
]
