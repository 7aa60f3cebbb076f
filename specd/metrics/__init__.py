"""Metrics, and the log line of each request."""

from specd.metrics.metrics import Metrics, SchedulerObserver
from specd.metrics.record import (
    RequestRecord,
    current_record,
    current_request_id,
    new_id,
    record_context,
    request_id,
)
from specd.metrics.request_line import log_request
from specd.metrics.state import Device, LoadedModel, Process, State

__all__ = [
    "Device",
    "LoadedModel",
    "Metrics",
    "Process",
    "RequestRecord",
    "SchedulerObserver",
    "State",
    "current_record",
    "current_request_id",
    "log_request",
    "new_id",
    "record_context",
    "request_id",
]
