"""`specd demo`: the order of its runs, its table and its sentences."""

from __future__ import annotations

import io
import sys

import pytest
from rich.console import Console

from specd.cli.client import Client
from specd.cli.demo import (
    DemoComparison,
    PromptComparison,
    TimedAnswer,
    report_table,
    total,
    verdict,
)
from specd.cli.temporary_daemon import TemporaryDaemonFailed, temporary_daemon
from tests.cli.fake_daemon import FakeDaemon, Json

ACTIVE = {"state": "active", "draft_n": 50, "draft_n_accepted": 40}
PARKED = {"state": "parked", "reason": "too_slow", "draft_n": 8, "draft_n_accepted": 4}


def compared(
    plain_s: float, speculative_s: float, speculation: Json, text: str = "x"
) -> PromptComparison:
    plain = TimedAnswer("x", 100, plain_s, {"state": "off"})
    return PromptComparison("def f(", [plain], [TimedAnswer(text, 100, speculative_s, speculation)])


@pytest.mark.parametrize("repeats", [1, 2])
async def test_every_prompt_runs_in_both_modes_with_one_seed_in_alternating_order(
    repeats: int,
) -> None:
    def generate(body: Json) -> list[Json]:
        plain = body["options"].get("draft_num_predict") == 0
        final = {"done": True, "eval_count": 10, "eval_duration": 10**9 if plain else 5 * 10**8}
        return [{"response": "text"}, {**final, "speculation": {} if plain else ACTIVE}]

    daemon = FakeDaemon({"/api/show": {}, "/api/generate": generate})
    out = io.StringIO()
    async with daemon.serve() as url:
        demonstration = DemoComparison(Console(file=out, width=200), {"seed": 7}, repeats)
        await demonstration.run(Client(url), ["one", "two"])
    asked = [body for path, body in daemon.asked if path == "/api/generate"]
    ways = [(body["prompt"], "draft_num_predict" in body["options"]) for body in asked]
    warm_up = [("one", True), ("one", False)]
    one = [("one", True), ("one", False), ("one", False), ("one", True)]
    two = [("two", False), ("two", True), ("two", True), ("two", False)]
    assert ways == [*warm_up, *one[: 2 * repeats], *two[: 2 * repeats]]
    assert {body["options"]["seed"] for body in asked} == {7}
    assert "2.00 times the plain speed" in out.getvalue()
    assert out.getvalue().count("same text") == 3  # a line for each prompt, and the header


def test_the_table_adds_up_tokens_and_time_not_speeds() -> None:
    whole = total([TimedAnswer("", 100, 1.0), TimedAnswer("", 100, 3.0, ACTIVE)])
    assert whole.speed == 50.0
    assert (whole.drafted, whole.accepted) == (50, 40)
    assert total([]).speed == 0.0


def test_same_text_is_yes_only_if_all_texts_are_equal() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(report_table([compared(2, 1, ACTIVE), compared(2, 1, ACTIVE, "y")], {"seed": 1}))
    assert isinstance(console.file, io.StringIO)
    rows = [line for line in console.file.getvalue().splitlines() if "40 (80%)" in line]
    assert [("yes" in row, "no" in row) for row in rows] == [(True, False), (False, True)]
    assert "80 (80%)" in console.file.getvalue()


def test_a_speedup_is_reported() -> None:
    assert verdict([compared(2, 1, ACTIVE)]) == [
        "Speculation paid: 2.00 times the plain speed.",
    ]


def test_without_a_speedup_the_controllers_decision_is_reported() -> None:
    said = verdict([compared(1, 1.25, PARKED), compared(1, 1.25, ACTIVE)])
    assert said[0].startswith("Speculation did not pay here: 0.80 times the plain speed.")
    assert said[1] == (
        "In 1 of 2 answers speculation was switched off by the controller"
        " (state: parked, too_slow)."
    )


def test_the_position_of_a_difference_is_reported() -> None:
    comparison = PromptComparison("p", [TimedAnswer("abc", 3, 1)], [TimedAnswer("abX", 3, 1)])
    assert "differ after 2 characters" in comparison.words
    assert any("equally likely" in sentence for sentence in verdict([comparison]))
    later = PromptComparison(
        "p", [TimedAnswer("abc", 3, 1)] * 2, [TimedAnswer("abc", 3, 1), TimedAnswer("abcd", 4, 1)]
    )
    assert not later.same_text


def test_the_median_ignores_a_disturbed_run() -> None:
    runs = [TimedAnswer("x", 100, seconds) for seconds in (1.0, 50.0, 1.1)]
    assert PromptComparison("p", runs, runs).plain.seconds == 1.1


async def test_a_temporary_daemon_that_ends_is_an_error_with_its_log() -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no port for me')"]
    with pytest.raises(TemporaryDaemonFailed, match=r"status 1:\nno port for me"):
        async with temporary_daemon(command):
            pass


_SERVER = """
import http.server, os
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        body = b'{"version": "0"}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
assert os.environ["SPECD_DEMO"] == "1" and not os.listdir(os.environ["OLLAMA_MODELS"])
host, port = os.environ["OLLAMA_HOST"].split(":")
http.server.HTTPServer((host, int(port)), H).serve_forever()
"""


async def test_a_temporary_daemon_has_an_empty_store_and_is_stopped() -> None:
    async with temporary_daemon([sys.executable, "-c", _SERVER]) as url, Client(url) as client:
        assert await client.get("/api/version") == {"version": "0"}
    async with Client(url) as client:
        with pytest.raises(Exception, match="no daemon answers"):
            await client.get("/api/version")


def test_with_hardly_any_drafts_no_speedup_is_reported() -> None:
    said = verdict([compared(1.2, 1, {**PARKED, "draft_n": 2})])
    assert said[0].startswith("Speculation does not pay here, so almost all decoding was plain")
