"""Writes `docs/settings.md` and `configs/specd.env` from specd/settings.py, or checks them.

`python scripts/settings_docs.py --write` after a change; `--check` fails where they differ.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specd.settings import Settings, rule_of, variable_of

ROOT = Path(__file__).resolve().parents[1]

_MARK = "from specd/settings.py by scripts/settings_docs.py"

_INTRO = f"""\
<!-- Generated {_MARK}: change it there. -->
# Settings

specd is configured by its environment, as Ollama is. `OLLAMA_*` are Ollama's own variables, under
Ollama's own parse rules: values are trimmed of spaces and quotes, a value that cannot be read is a
warning and the default. `SPECD_*` are specd's: a value that cannot be used stops the command with a
sentence that says what is allowed. An empty value counts as unset. All of them stand, commented
out, in [`configs/specd.env`](../configs/specd.env), for systemd's `EnvironmentFile=` or a shell's
`set -a; . specd.env`.

| variable | default | must be | what it does |
|---|---|---|---|
"""

_ENV_INTRO = f"""\
# Every setting of specd with its default (docs/settings.md).
# Generated {_MARK}: change it there.
"""


def render_markdown() -> str:
    rows = []
    for field in Settings.model_fields.values():
        default = f"`{field.default}`" if field.default else "unset"
        allowed = rule_of(field).allowed
        rows.append(f"| `{variable_of(field)}` | {default} | {allowed} | {field.description} |\n")
    return _INTRO + "".join(rows)


def render_env() -> str:
    entries = []
    for field in Settings.model_fields.values():
        allowed = rule_of(field).allowed.replace("`", "")
        comment = f"\n# {field.description}\n# Must be {allowed}.\n"
        entries.append(f"{comment}#{variable_of(field)}={field.default}\n")
    return _ENV_INTRO + "".join(entries)


def rendered() -> dict[Path, str]:
    """Repository path → what the file must hold."""
    return {Path("docs/settings.md"): render_markdown(), Path("configs/specd.env"): render_env()}


def stale(root: Path) -> list[Path]:
    """The generated files under root that differ from the declarations, or are missing."""
    return [
        path
        for path, text in rendered().items()
        if not (root / path).is_file() or (root / path).read_text(encoding="utf-8") != text
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write both files")
    mode.add_argument("--check", action="store_true", help="fail where a file differs")
    if parser.parse_args().write:
        for path, text in rendered().items():
            (ROOT / path).write_text(text, encoding="utf-8")
        return 0
    for path in stale(ROOT):
        print(f"{path} is out of date: run `python scripts/settings_docs.py --write`")
    return 1 if stale(ROOT) else 0


if __name__ == "__main__":
    sys.exit(main())
