"""A bench as a Markdown document."""

from __future__ import annotations

from collections.abc import Mapping

from specd.bench.report import Report
from specd.bench.summary import heading, title, verdict
from specd.bench.tables import all_tables


def markdown(report: Report, plots: Mapping[str, str] | None = None) -> str:
    """plots: caption → file beside the document."""
    lines = [f"- {line}" for line in heading(report)]
    for temperature, streams, compared, mix in report.parts():
        name = title(temperature, streams)
        lines += ["", f"### {name.capitalize()}", ""]
        lines += [f"- {sentence}" for sentence in verdict(report, compared, mix)]
        for table in all_tables(name, compared, mix):
            lines += ["", f"{table.title.capitalize()}:", "", *table.markdown()]
    for caption, file in (plots or {}).items():
        lines += ["", f"![{caption}]({file})"]
    return "\n".join(lines) + "\n"
