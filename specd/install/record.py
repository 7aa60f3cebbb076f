"""Read and write the record of `specd install` and `specd migrate`, made before they act."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from specd.errors import InstallError


class MigrationState(msgspec.Struct, frozen=True):
    """The state before `specd migrate`.

    ollama_active: None if there was no ollama.service.  specd_host: specd's own OLLAMA_HOST.
    ollama_folder_made: the migration created Ollama's drop-in folder.
    """

    ollama_active: bool | None
    ollama_folder_made: bool
    specd_active: bool
    specd_enabled: bool
    specd_host: str = ""


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The record of an installation.

    files: path → sha256 of the written content.
    made_user: the first installation created the user; kept after an uninstall that keeps the user.
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
    """Return the record, an empty one if there is none.  Raises InstallError."""
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
