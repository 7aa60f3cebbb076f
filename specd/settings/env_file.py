"""A file of variables as systemd's `EnvironmentFile=` reads it: `NAME=value`, comments, quotes."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import dotenv

from specd.errors import BadSetting


def read_env_file(path: Path) -> dict[str, str]:
    """Its variables; none where there is no file.  Raises BadSetting where it cannot be read."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise BadSetting(f"{path} is not UTF-8: {error}") from error
    # A comment in systemd's eyes, and none in dotenv's.
    text = "\n".join(line for line in lines if not line.lstrip().startswith(";"))
    found = dotenv.dotenv_values(stream=StringIO(text), interpolate=False)
    return {name: value for name, value in found.items() if value is not None}
