"""Write `docs/settings.md` and `configs/specd.env` from the declared settings, or check them.

Run `python -m tools.settings_docs --write` after a change; `--check` fails if they differ.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from specd.ignored_variables import IGNORED_VARIABLES
from specd.settings import Settings, is_live, rule_of, variable_of
from tools.generated_files import find_stale, write_or_check

#: Variables that drivers and libraries read in the environment of engines and pulls.
OF_OTHERS: Final[Mapping[str, str]] = {
    "CUDA_VISIBLE_DEVICES": "Which NVIDIA GPUs are used.",
    "HIP_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, GPU_DEVICE_ORDINAL": "Which AMD GPUs are used.",
    "HSA_OVERRIDE_GFX_VERSION": "The GPU type that an AMD GPU is treated as.",
    "GGML_VK_VISIBLE_DEVICES": "Which GPUs are used through Vulkan.",
    "HTTP_PROXY, HTTPS_PROXY, NO_PROXY": "Proxies for registries; lower-case names work, too.",
}

_MARK = "from specd/settings/ and specd/ignored_variables.py by tools/settings_docs.py"

_INTRO = f"""\
<!-- Generated {_MARK}: change it there. -->
# Settings

```
OLLAMA_KEEP_ALIVE=30m specd serve     for one run
sudoedit /etc/specd/specd.env         for the service; then: sudo systemctl restart specd
sudo systemctl reload specd           apply the settings marked *live* without a restart
```

All settings are environment variables. [`configs/specd.env`](../configs/specd.env) lists them,
commented out, for systemd's `EnvironmentFile=` or for a shell (`set -a; . specd.env`).

- `OLLAMA_*` are Ollama's variables, with its parse rules: spaces and quotes around a value are
  removed, and for an invalid value specd logs a warning and uses the default.
- `SPECD_*` are specd's own. An invalid value stops the command with an error that says what is
  allowed. On/off settings are the exception, as in Ollama: any text but `0`, `f` and `false` is on,
  also `off`.
- An empty value counts as unset.
- A reload (`SIGHUP`) reads the file of `SPECD_ENV_FILE` and the pairs files again. *Live* settings
  change at once, and no connection is closed. For the others, the log says that they need a
  restart. If any value is invalid, nothing changes. Variables that were set elsewhere than in that
  file, by a shell for example, keep their values.

| variable | default | must be | what it does |
|---|---|---|---|
"""

_OTHERS = """
## Variables of drivers and libraries
Engine processes inherit the environment; drivers and libraries read these variables there.

| variable | what it does |
|---|---|
"""

_NO_EFFECT = """
## Variables of Ollama without effect
If one of these is set, the daemon logs a warning when it starts.

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
    """Return the content of each generated file, by its path in the repository."""
    return {Path("docs/settings.md"): render_markdown(), Path("configs/specd.env"): render_env()}


def stale(root: Path) -> list[Path]:
    """Return the generated files under root that are out of date or missing."""
    return find_stale(root, rendered())


if __name__ == "__main__":
    sys.exit(write_or_check("tools.settings_docs", rendered()))
