"""Format docs/reliability.md: every figure comes from data, next to its command."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from benchmarks.soak.resource_monitor import Growth
from benchmarks.soak.results import Row, SoakResults
from benchmarks.soak.soak_daemon import SETTINGS
from benchmarks.soak.traffic import KILLS, PLAYED_MINUTES, ROLES, UNSETTLED
from benchmarks.soak.verdict import Verdict, judge
from tests.bad_inputs.session import BadInputResults
from tests.systemd import unit_security
from tools.system_report import SystemReport, Test, TestFile

_INTRO = """\
<!-- Generated from docs/reliability/*.json by tools/reliability_page.py: run `make test-system`
     and `make soak`, change nothing here. -->
# Reliability
"""
_CONTENTS = """\
This page lists what specd does when something fails.  Every line is a test or a measurement, with
its command.  [security.md](security.md) says what other users and hosts can do.

    make test-system    runs the tests below, as root, and renders this page
    make soak           measures the load and renders this page
"""
#: Parameter ids that pytest made up, or that say nothing without the code.
_NO_CASE = re.compile(r"-?\d+|True|False|[a-z_]+\d+(-.*)?")
#: Status classes in the results of the bad inputs.
_CLASSES = {
    "2xx": "served",
    "3xx": "redirected",
    "4xx": "refused",
    "5xx": "500 and above",
    "left": "connection closed",
    "none": "no answer",
}
_NOT_YET = "Not measured: run `{command}`.\n"


def page(soak: SoakResults | None, system: SystemReport | None) -> str:
    parts = [_INTRO, *_summary(soak, system), _CONTENTS]
    parts += ["## Load\n", *(_load(soak) if soak else [_NOT_YET.format(command="make soak")])]
    if system is None:
        return "\n".join([*parts, "## Faults\n", _NOT_YET.format(command="make test-system")])
    parts += ["## A real systemd\n", *_about_runs(system), *_files(system, "tests/systemd/")]
    parts += ["## Faults\n", _FAULTS, *_files(system, "tests/faults/")]
    if system.bad_inputs is not None:
        parts += ["## Bad inputs\n", *_bad_inputs(system.bad_inputs)]
    if skipped := _skipped(system):
        parts += ["## Not run\n", table(("tests", "reason"), skipped)]
    return "\n".join(parts)


_FAULTS = """\
Each heading is a fault, and each line is a test.  After each fault the next request is served, and
no slot, process or file is left.
"""


# --------------------------------------------------------------------------- summary


def _summary(soak: SoakResults | None, system: SystemReport | None) -> Iterator[str]:
    rows = [*(_of_system(system) if system else ()), *(_of_soak(soak) if soak else ())]
    if not rows:
        yield _NOT_YET.format(command="make test-system soak")
    else:
        yield table(("", "demand", "measured", "command"), rows)


def _of_system(system: SystemReport) -> Iterator[Sequence[str]]:
    command = "`make test-system`"
    for folder, what in (
        ("tests/systemd/", "the service under a real systemd"),
        ("tests/faults/", "faults, and what clients see"),
    ):
        tests = _tests(system, folder)
        passed, failed = sum(t.passed for t in tests), sum(t.failed for t in tests)
        skipped = sum(sum(t.skipped.values()) for t in tests)
        words = f"{passed:,} cases of {len(tests)} tests passed, {failed} failed, {skipped} skipped"
        yield _mark(failed == 0 and passed > 0), what, words, command
    counted = _counted(system)
    if counted:
        words = ", ".join(f"{n:,} {what.replace('_', ' ')}" for what, n in sorted(counted.items()))
        yield "", "counted by the tests", words, command
    if system.exposure is not None:
        good = system.exposure <= unit_security.MOST and not system.complaints
        words = f"{system.exposure} of 10, {system.complaints or 'verified without warnings'}"
        demand = f"`systemd-analyze security` of specd.service, at most {unit_security.MOST}"
        yield _mark(good), demand, words, "`python -m tests.systemd.unit_security`"
    if (bad := system.bad_inputs) is not None:
        demand = "invalid requests never end the daemon, and each gets an answer"
        yield _mark(bad.is_good), demand, bad_inputs_words(bad), "`python -m tests.bad_inputs`"


def _of_soak(soak: SoakResults) -> Iterator[Sequence[str]]:
    verdicts = judge(soak)
    growths = [each for each in verdicts if each.demand.startswith("growth")]
    for each in verdicts[:6]:
        yield *_row(each), "`make soak`"
    grown = [f"{what} {growth.worst:+.1%}" for what, growth in _rss(soak)]
    passed = all(each.passed for each in growths)
    yield _mark(passed), "growth over the last half, ≤ 2 %", "; ".join(grown), "`make soak`"
    rest = [each for each in verdicts[6:] if each not in growths]
    n_passed = sum(each.passed for each in rest)
    words = f"{n_passed} of {len(rest)} demands met"
    yield _mark(n_passed == len(rest)), "nothing is left at the end", words, "`make soak`"


def _rss(soak: SoakResults) -> Iterator[tuple[str, Growth]]:
    for what, growth in soak.growths.items():
        if what.endswith("RSS"):
            yield what, growth


def bad_inputs_words(bad: BadInputResults | None) -> str:
    if bad is None:
        return "bad inputs: not sent"
    valid = (
        f"{bad.refused} valid requests in between were not"
        if bad.refused
        else "valid requests in between were all"
    )
    return (
        f"{bad.total:,} bad inputs of {len(bad.kinds)} kinds in {bad.seconds:.0f} s:"
        f" {bad.crashes} crashes, {bad.unanswered} unanswered, {bad.unfinished} unfinished,"
        f" {len(bad.bugs)} bugs; {valid} served"
    )


def _bad_inputs(bad: BadInputResults) -> Iterator[str]:
    yield f"{bad_inputs_words(bad)} (`python -m tests.bad_inputs --seed {bad.seed}`).\n"
    rows = []
    for kind, n in sorted(bad.kinds.items()):
        statuses = bad.statuses.get(kind, {})
        rows.append((kind, f"{n:,}", *(f"{statuses.get(each, 0):,}" for each in _CLASSES)))
    yield table(("kind", "sent", *_CLASSES.values()), rows)


# --------------------------------------------------------------------------- load


def _load(soak: SoakResults) -> Iterator[str]:
    per_hour = sum(role.n * role.per_hour for role in ROLES)
    yield (
        f"An hour of a busy home server: {sum(role.n for role in ROLES)} clients send about"
        f" {per_hour:,} requests.  Each client sends them at random moments, one after the other."
        f"  The hour is sent in {PLAYED_MINUTES:g} minutes, six times as fast.  There are three"
        " models: a target with its drafter, one without a drafter, and an embedding model."
        f"  Engines are killed {KILLS} times.  After the first {UNSETTLED:.0%} the pair's engine is"
        " not killed any more; the others are killed, unloaded and loaded with another context all"
        " the time.  Before the hour, each seeded request is answered once alone.  A separate"
        " process requests the version ten times a second, each time with a new connection, on the"
        " processors of the engines and the clients.\n"
    )
    yield "\n".join(f"- {line}" for line in _about_soak(soak)) + "\n"
    yield table(
        ("", "demand", "goal", "measured"),
        [(_mark(v.passed), v.demand, v.goal, v.measured) for v in judge(soak)],
    )
    yield table(
        ("client", "n", "sent", "done", "refused", "failed", "abandoned", "median", "p99"),
        map(_role, soak.rows),
    )
    yield (
        "refused: correctly.  failed: its engine was killed, and the answer ended with that error."
        "  abandoned: by the client, before the first byte or in the middle.  Times are of whole"
        " answers.\n"
    )
    if soak.problems:
        yield "Problems, at most twenty:\n"
        yield "\n".join(f"- `{problem.replace('`', ' ')}`" for problem in soak.problems) + "\n"


def _about_soak(soak: SoakResults) -> Iterator[str]:
    machine, share = soak.machine, soak.cpu_share
    asked = f"--minutes {soak.minutes:g} --clients {soak.n_clients} --seed {soak.seed}"
    yield f"Command: `make soak` (`python -m benchmarks.soak {asked}`)"
    yield (
        f"Machine: {machine.cpu}, {machine.n_cores} threads, {machine.system};"
        f" {share['machine']:.0%} busy (daemon {share['daemon']:.1%}, clients"
        f" {share['clients']:.1%})"
    )
    yield (
        f"Versions: specd {machine.specd}, llama-cpp-python {machine.llama_cpp_python}, Python"
        f" {machine.python}; {_day(soak.began)}"
    )
    yield "Settings: " + ", ".join(f"`{name}={value}`" for name, value in SETTINGS.items())
    yield (
        f"Duration: {soak.played_s / 60:.1f} minutes; the latest request was sent"
        f" {soak.behind_s:.0f} s after its time"
    )
    yield f"Engines: {_counts(soak.loads)} loaded; {_counts(soak.kills)} killed"
    drafting = soak.drafting
    yield (
        f"Drafting was active in {drafting.n_paired / max(1, drafting.n_loaded):.0%} of the time"
        " (parked in the rest):"
        f" {drafting.drafted:,} tokens drafted, {drafting.accepted:,} accepted"
    )


def _role(row: Row) -> Sequence[str]:
    return (
        f"{row.role}: {row.what}",
        str(row.n_clients),
        f"{row.sent:,}",
        f"{row.done:,}",
        f"{row.refused:,}",
        f"{row.failed:,}",
        f"{row.left:,}",
        f"{row.median_s:.2f} s",
        f"{row.p99_s:.2f} s",
    )


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{n} of {model}" for model, n in sorted(counts.items())) or "none"


# --------------------------------------------------------------------------- tests


def _about_runs(system: SystemReport) -> Iterator[str]:
    who = "root" if system.as_root else "an ordinary user"
    yield (
        f"`make test-system`, {_day(system.ran)}, by {who} on {system.system}, {system.systemd},"
        f" Python {system.python}: {system.seconds / 60:.0f} minutes.\n"
    )


def _tests(system: SystemReport, folder: str) -> list[Test]:
    return [test for file in system.files if file.path.startswith(folder) for test in file.tests]


def _files(system: SystemReport, folder: str) -> Iterator[str]:
    for file in system.files:
        if file.path.startswith(folder):
            yield f"### {file.about}\n"
            yield f"`{file.path}`\n"
            yield table(("", "result", "cases"), map(_test, _ran(file)))


def _ran(file: TestFile) -> list[Test]:
    return [test for test in file.tests if test.passed or test.failed]


def _test(test: Test) -> Sequence[str]:
    words = f"{test.says}. {test.detail}" if test.detail else test.says
    n = test.passed + test.failed
    cases = str(n) if n > 1 else ""
    is_readable = not any(_NO_CASE.fullmatch(case) for case in test.cases)
    if test.cases and is_readable and sum(map(len, test.cases)) <= 120:
        cases = f"{n}: {', '.join(test.cases)}".replace("_", " ")
    return _mark(not test.failed), words, cases


def _skipped(system: SystemReport) -> list[Sequence[str]]:
    found: dict[str, int] = {}
    for file in system.files:
        for test in file.tests:
            for reason, n in test.skipped.items():
                found[reason] = found.get(reason, 0) + n
    return [(str(n), reason) for reason, n in sorted(found.items())]


def _counted(system: SystemReport) -> dict[str, int]:
    total: dict[str, int] = {}
    for file in system.files:
        for test in file.tests:
            for what, n in test.counted.items():
                total[what] = total.get(what, 0) + n
    return total


# --------------------------------------------------------------------------- shapes


def _row(verdict: Verdict) -> tuple[str, str, str]:
    return _mark(verdict.passed), f"{verdict.demand}: {verdict.goal}", verdict.measured


def _mark(passed: bool) -> str:
    return "PASS" if passed else "**FAIL**"


def _day(moment: str) -> str:
    return datetime.fromisoformat(moment).strftime("%Y-%m-%d %H:%M UTC")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    cells = ([cell.replace("|", "\\|").replace("\n", " ") for cell in line] for line in lines)
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"
