"""Write `docs/metrics.md` from the declared metrics, or check it.

Run `python -m tools.metrics_docs --write` after a change; `--check` fails if they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specd.metrics.families import GROUPS, PROCESS, Family
from specd.metrics.request_line import FIELDS
from specd.metrics.state import MAX_NAMES
from tools.generated_files import find_stale, write_or_check

PAGE: Final = Path("docs/metrics.md")

_INTRO: Final = f"""\
<!-- Generated from specd/metrics/ by tools/metrics_docs.py: change it there. -->
# Metrics, health and the log

```
curl localhost:11434/metrics             metrics in Prometheus' text format
curl localhost:11434/health              is the daemon running?
journalctl -u specd -f                   the log, with one line for each request
```

| route | answer |
|---|---|
| `GET /health`, `/v1/health` | `200 {{"status":"ok"}}`, as llama-server: the daemon runs |
| `GET /ready` | `200` while requests are accepted, otherwise `503` with `starting` or `stopping` |
| `GET /metrics` | Prometheus' text format, or OpenMetrics if the client accepts it |

Metrics and logs contain no text of prompts or answers, and no keys.
[`openapi.yaml`](api/openapi.yaml) describes the routes.

- A ready daemon need not have loaded a model: the first request loads it.
- With `SPECD_API_KEYS`, the first two routes stay open and `/metrics` requires a key.
- A daemon that is stopping accepts no new connection: the connection is refused, or, with socket
  activation, waits for the next start. Only an existing connection still reads `stopping`. Treat a
  refused connection the same.

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
For a Prometheus on another machine, set `OLLAMA_HOST` so that it can connect. While the daemon
listens on loopback only, it refuses host names other than local ones (`.local`, `.internal`).

## Grafana
[`configs/grafana/specd.json`](../configs/grafana/specd.json) (in an installed package
`specd/configs/grafana/specd.json`) is a dashboard: Dashboards → New → Import, then choose the
Prometheus that scrapes specd. It shows throughput, latency, acceptance and gain by pair, the queue,
memory and errors.

## Names
- If vLLM counts the same thing, the metric has vLLM's name with `specd:` instead of `vllm:`; the
  column vLLM marks these. In a dashboard made for vLLM, those panels work after this one
  replacement. Others, such as the KV cache, stay empty.
- `model_name` is the name of a model in the store, never text from a client. `drafter` is empty
  without a drafter. The first {MAX_NAMES} models and pairs since the start have series of their
  own; later ones share `other`.
- Counters count requests that have ended; only `generation_tokens` includes running ones. For an
  answer that was cut short (the client left, the engine died), prompt, cached and generated tokens
  are counted, but steps and drafts are not.
- Gauges are read at the scrape. Histograms have `_bucket`, `_sum` and `_count`.

Examples in PromQL:
```promql
# Tokens per second
sum by (model_name) (rate(specd:generation_tokens_total[1m]))
# Acceptance by pair
sum by (model_name, drafter) (rate(specd:spec_decode_num_accepted_tokens_total[5m]))
  / sum by (model_name, drafter) (rate(specd:spec_decode_num_draft_tokens_total[5m]))
# 90th percentile of the time to the first token
histogram_quantile(0.9, sum by (le) (rate(specd:time_to_first_token_seconds_bucket[5m])))
# Alert: requests have been waiting for five minutes
min_over_time(specd:num_requests_waiting[5m]) > 0
```
"""

_LOG: Final = """\

## The log
Each request writes one line when it ends: answered, refused, failed, or cancelled by its client.
Data that is not HTTP gives a line with only `status` and `client`. A connection that ends without
a request gives none. If a connection is refused for lack of file descriptors, a warning says so.

- `SPECD_LOG_FORMAT=text` writes the fields below as `name=value`. `json` makes every line of the
  daemon a JSON object (`time`, `level`, `logger`, `message`, `request_id`), with the same fields.
- A field that is unknown or does not apply is absent.
- The level is `info`; `warning` for specd's own faults (5xx, or an interrupted answer, but not the
  501 for what a model does not support); `debug` for `/health`, `/ready` and `/metrics`.
- Under systemd, lines have a priority and no time, because the journal adds it.
  `journalctl -u specd -p warning` shows problems, `journalctl -u specd -g req_0123456789abcdef` the
  lines of one request.
- A client may send its own `X-Request-Id` (1 to 64 letters, digits, `.`, `_`, `-`). Every answer
  has the id, and so does every log line about the request.

| field | meaning |
|---|---|
"""


def render() -> str:
    parts = [_INTRO]
    for title, families in GROUPS.items():
        parts.append(f"\n### {title}\n| metric | kind | labels | vLLM | meaning |\n")
        parts.append("|---|---|---|---|---|\n")
        parts += map(_row, families)
    parts.append("\n### The daemon's process\nBy `prometheus_client`, on Linux.\n\n")
    parts += ["| metric | meaning |\n|---|---|\n", _table(PROCESS)]
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
    """Return the generated files under root that are out of date or missing."""
    return find_stale(root, {PAGE: render()})


if __name__ == "__main__":
    sys.exit(write_or_check("tools.metrics_docs", {PAGE: render()}))
