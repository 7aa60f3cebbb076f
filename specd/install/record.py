"""What `specd install` and `specd migrate` did, written down before they do it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from specd.errors import InstallError


class MigrationState(msgspec.Struct, frozen=True):
    """How things were before `specd migrate`.

    ollama_active: None where no ollama.service was there.  ollama_folder_made: its drop-in folder
    was not there.  specd_host: specd's own OLLAMA_HOST.
    """

    ollama_active: bool | None
    ollama_folder_made: bool
    specd_active: bool
    specd_enabled: bool
    specd_host: str = ""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """files: path → sha256 of what was written there.

    made_user: it was not there before the first installation; that alone outlasts an uninstall
    which leaves the user.
    """

    version: str = ""
    files: Mapping[str, str] = {}
    has_environment: bool = False
    has_command: bool = False
    made_user: bool = False
    taken_over: MigrationState | None = None

    @property
    def is_installed(self) -> bool:
        return self.has_environment

    def replace(self, **changes: Any) -> Record:
        return msgspec.structs.replace(self, **changes)

    def bytes(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self)) + b"\n"


def read_record(path: Path) -> Record:
    """An empty one where there is none.  Raises InstallError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except FileNotFoundError:
        return Record()
    except (OSError, msgspec.DecodeError) as error:
        raise InstallError(
            f"cannot read {path}, where specd wrote what it installed: {error};"
            " move it away, and run `specd install` again"
        ) from error


def fingerprint(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
