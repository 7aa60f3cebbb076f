"""Writes `docs/metrics.md` from what the code declares, or checks it.

`python -m scripts.metrics_docs --write` after a change; `--check` fails where they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specd.metrics.families import GROUPS, PROCESS, Family
from specd.metrics.label_limit import MAX_NAMES
from specd.metrics.request_line import FIELDS

ROOT = Path(__file__).resolve().parents[1]
PAGE: Final = Path("docs/metrics.md")

_INTRO: Final = f"""\
<!-- Generated from specd/metrics/ by scripts/metrics_docs.py: change it there. -->
# Metrics, health and the log

What specd shows of itself; `docs/api/openapi.yaml` has the routes. Nothing here holds a word of a
prompt or an answer, or a key.

| route | answers |
|---|---|
| `GET /health`, `/v1/health` | `200 {{"status":"ok"}}` as llama-server: the daemon lives |
| `GET /ready` | `200` while requests are accepted, else `503` and why: `starting`, `stopping` |
| `GET /metrics` | Prometheus' text format, or OpenMetrics where that is asked for |

Readiness does not wait for a model: the first request loads it. With `SPECD_API_KEYS` the first
two stay open and `/metrics` asks for a key. A daemon that stops takes no new connection: it is
refused, or waits for the next start where systemd holds the socket. Only on a connection that was
kept open is `stopping` still read, so take a refused one for the same answer.

## Scraping
In `prometheus.yml`:
```yaml
scrape_configs:
  - job_name: specd
    scrape_interval: 15s
    static_configs:
      - targets: ["127.0.0.1:11434"]
    # Where SPECD_API_KEYS is set:
    # authorization: {{type: Bearer, credentials_file: /etc/prometheus/specd.key}}
```
A Prometheus on another machine reaches specd where `OLLAMA_HOST` lets it, and by an address, or a
name that ends in `.local` or `.internal`: of a daemon on loopback other names are refused.

## Grafana
[`configs/grafana/specd.json`](../configs/grafana/specd.json) (in an installed package
`specd/configs/grafana/specd.json`) is a dashboard: Dashboards → New → Import, then choose the
Prometheus that scrapes specd. It shows throughput, latency, acceptance and gain by pair, the queue,
memory and errors.

## Names
Where vLLM counts the same thing, the name is vLLM's with `specd:` for `vllm:`, marked below: of a
dashboard made for vLLM those panels work after that one replacement, others (of the KV cache, say)
stay empty. `model_name` is the name of a model of the
store, never what a client made up, and `drafter` is empty where none drafts. The first {MAX_NAMES}
models and pairs since the start have series of their own, all later ones share `other`.

Counts are of requests that ended; only `generation_tokens` grows with those under way. Of an answer
that was cut short (its client left, its engine died) prompt, cached and generated tokens are
counted, steps and drafts are not: an engine says nothing more of who has left. Gauges are
read at the scrape. Histograms have `_bucket`, `_sum` and `_count`.

A few questions, and their PromQL:
```promql
# Tokens a second
sum by (model_name) (rate(specd:generation_tokens_total[1m]))
# Acceptance by pair
sum by (model_name, drafter) (rate(specd:spec_decode_num_accepted_tokens_total[5m]))
  / sum by (model_name, drafter) (rate(specd:spec_decode_num_draft_tokens_total[5m]))
# How long nine in ten wait for their first token
histogram_quantile(0.9, sum by (le) (rate(specd:time_to_first_token_seconds_bucket[5m])))
# An alert: somebody has been waiting for five minutes
min_over_time(specd:num_requests_waiting[5m]) > 0
```
"""

_LOG: Final = """\

## The log
Each request leaves one line when it ends, however it ends: answered, refused (also what is no HTTP:
a line with `status` and `client` alone), failed, or left by its client. A connection that ends
without a request leaves none, nor does one for which there is no descriptor: a warning is of those.
`SPECD_LOG_FORMAT=json` makes every line of the daemon a JSON object (`time`, `level`, `logger`,
`message`, `request_id`), with the fields below beside the message of a request's own; `text` writes
them as `name=value`. A field that is not known, or does not apply, is left out. The level is
`info`, `warning` where the fault is ours (5xx, or an answer that broke off; not the 501 for what a
model cannot do), and `debug` for `/health`, `/ready` and `/metrics`.

Under systemd the lines have no time of their own, for the journal has one, and a priority each:
`journalctl -u specd -p warning` finds what went wrong,
`journalctl -u specd -g req_0123456789abcdef` what was said of one request.

A client may send its own `X-Request-Id` (1 to 64 of letters, digits, `.`, `_`, `-`); each answer
has one, and so has each line that is about the request.

| field | what it says |
|---|---|
"""


def render() -> str:
    parts = [_INTRO]
    for title, families in GROUPS.items():
        parts.append(f"\n### {title}\n| metric | kind | labels | vLLM | what it says |\n")
        parts.append("|---|---|---|---|---|\n")
        parts += map(_row, families)
    parts.append("\n### The daemon's process\nBy `prometheus_client`, on Linux.\n\n")
    parts += ["| metric | what it says |\n|---|---|\n", _table(PROCESS)]
    parts += [_LOG, _table(FIELDS)]
    return "".join(parts)


def _row(family: Family) -> str:
    name = family.series[0] if len(family.series) == 1 else family.full_name
    labels = ", ".join(f"`{label}`" for label in family.labels)
    vllm = "✓" if family.vllm else ""
    return f"| `{name}` | {family.kind} | {labels} | {vllm} | {family.help} |\n"


def _table(rows: Mapping[str, str]) -> str:
    return "".join(f"| `{name}` | {meaning} |\n" for name, meaning in rows.items())


def stale(root: Path) -> list[Path]:
    """The page, where it differs from the declarations or is missing."""
    page = root / PAGE
    if page.is_file() and page.read_text(encoding="utf-8") == render():
        return []
    return [PAGE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the page")
    mode.add_argument("--check", action="store_true", help="fail where it differs")
    if parser.parse_args().write:
        (ROOT / PAGE).write_text(render(), encoding="utf-8")
        return 0
    for path in stale(ROOT):
        print(f"{path} is out of date: run `python -m scripts.metrics_docs --write`")
    return 1 if stale(ROOT) else 0


if __name__ == "__main__":
    sys.exit(main())
