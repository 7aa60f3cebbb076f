"""The health and metrics routes."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics import parser as openmetrics
from prometheus_client.parser import text_string_to_metric_families

from specd import metrics
from specd.api.interfaces import Monitoring
from specd.api.keys import Keys
from tests.api.fakes import client

#: The Accept headers of Prometheus 2 and 3.
PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1"
    ";q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6"
    ",application/openmetrics-text;version=0.0.1;q=0.5"
    ",text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


@pytest.mark.parametrize("path", ["/health", "/v1/health"])
async def test_health_is_llama_server_s(path: str) -> None:
    async with client() as http:
        async with http.get(path) as reply:
            assert (reply.status, await reply.text()) == (200, '{"status":"ok"}')
        async with http.head(path) as reply:
            assert (reply.status, await reply.read()) == (200, b"")


async def test_ready_has_the_reason_for_not_ready() -> None:
    reasons = ["starting", "", "stopping"]
    monitoring = Monitoring(not_ready_reason=lambda: reasons.pop(0))
    said = []
    async with client(monitoring=monitoring) as http:
        for _ in range(3):
            async with http.get("/ready") as reply:
                said.append((reply.status, await reply.json()))
    assert said == [
        (503, {"status": "not ready", "reason": "starting"}),
        (200, {"status": "ready"}),
        (503, {"status": "not ready", "reason": "stopping"}),
    ]


@pytest.mark.parametrize(
    "accept,content_type",
    [
        ("", "text/plain; version=0.0.4; charset=utf-8"),
        ("*/*", "text/plain; version=0.0.4; charset=utf-8"),
        ("text/html", "text/plain; version=0.0.4; charset=utf-8"),
        (PROMETHEUS_2, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
        (PROMETHEUS_3, "application/openmetrics-text; version=1.0.0; charset=utf-8"),
    ],
)
async def test_metrics_have_the_requested_format(accept: str, content_type: str) -> None:
    async def state() -> metrics.State:
        return metrics.State(waiting=("m:latest",))

    async with (
        client(monitoring=Monitoring(state=state)) as http,
        http.get("/metrics", headers={"Accept": accept}) as reply,
    ):
        assert (reply.status, reply.headers["Content-Type"]) == (200, content_type)
        text = await reply.text()
    parse = (
        openmetrics.text_string_to_metric_families
        if content_type.startswith("application")
        else text_string_to_metric_families
    )
    found = {sample.name: sample for family in parse(text) for sample in family.samples}
    assert found["specd:num_requests_waiting"].labels == {"model_name": "m:latest"}
    assert found["specd:http_requests_in_flight"].value == 1


async def test_health_needs_no_key_but_metrics_do() -> None:
    async with client(keys=Keys(("key-0123456789",))) as http:
        for path, status in (
            ("/health", 200),
            ("/v1/health", 200),
            ("/ready", 200),
            ("/metrics", 401),
        ):
            async with http.get(path) as reply:
                assert reply.status == status, path
        sent = {"Authorization": "Bearer key-0123456789"}
        async with http.get("/metrics", headers=sent) as reply:
            assert reply.status == 200
