"""Writes `docs/settings.md` and `configs/specd.env` from what the code declares, or checks them.

`python scripts/settings_docs.py --write` after a change; `--check` fails where they differ.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specd.ignored_variables import IGNORED_VARIABLES
from specd.settings import Settings, is_live, rule_of, variable_of

ROOT = Path(__file__).resolve().parents[1]

#: Who else reads the environment that an engine and a pull inherit.
OF_OTHERS: Final[Mapping[str, str]] = {
    "CUDA_VISIBLE_DEVICES": "Which NVIDIA GPUs are used.",
    "HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL": "Which AMD GPUs are used.",
    "HSA_OVERRIDE_GFX_VERSION": "What an AMD GPU is taken for.",
    "GGML_VK_VISIBLE_DEVICES": "Which GPUs are used through Vulkan.",
    "HTTP_PROXY, HTTPS_PROXY, NO_PROXY": "How registries are reached; in small letters too.",
}

_MARK = "from specd/settings/ (and no_effect.py) by scripts/settings_docs.py"

_INTRO = f"""\
<!-- Generated {_MARK}: change it there. -->
# Settings

specd is configured by its environment, as Ollama is. `OLLAMA_*` are Ollama's own variables, under
Ollama's own parse rules: values are trimmed of spaces and quotes, a value that cannot be read is a
warning and the default. `SPECD_*` are specd's: a value that cannot be used stops the command with a
sentence that says what is allowed. An empty value counts as unset. All of them stand, commented
out, in [`configs/specd.env`](../configs/specd.env), for systemd's `EnvironmentFile=` or a shell's
`set -a; . specd.env`.

`SIGHUP` (`systemctl reload specd`) reads the file of `SPECD_ENV_FILE` and the files of pairs again.
Settings that say *live* change at once, and no connection is dropped; of the others the log says
that they take effect at the next start. Where a value cannot be used, nothing is changed at all. A
variable that the daemon was given from elsewhere than that file, as by a shell, keeps its value.

| variable | default | must be | what it does |
|---|---|---|---|
"""

_OTHERS = """
## Variables that others read
Engines inherit the environment, and so do drivers and libraries in them.

| variable | what it does |
|---|---|
"""

_NO_EFFECT = """
## Variables of Ollama without effect here
Where one of these is set, the daemon says so when it starts.

| variable | why |
|---|---|
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
        words = f"{field.description} *Live.*" if is_live(field) else field.description
        rows.append(f"| `{variable_of(field)}` | {default} | {allowed} | {words} |\n")
    others = [f"| {_codes(names)} | {what} |\n" for names, what in OF_OTHERS.items()]
    idle = [f"| {_codes(name)} | {why} |\n" for name, why in IGNORED_VARIABLES.items()]
    return "".join([_INTRO, *rows, _OTHERS, *others, _NO_EFFECT, *idle])


def _codes(names: str) -> str:
    return ", ".join(f"`{name}`" for name in names.split(", "))


def render_env() -> str:
    entries = []
    for field in Settings.model_fields.values():
        allowed = rule_of(field).allowed.replace("`", "")
        live = " Live: SIGHUP changes it." if is_live(field) else ""
        comment = f"\n# {field.description}{live}\n# Must be {allowed}.\n"
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
