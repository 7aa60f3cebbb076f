"""A Modelfile's commands as `/api/create` is asked them, and the files that must be uploaded."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from specd import options
from specd.cli.modelfile import Command
from specd.errors import InvalidRequest

log = logging.getLogger(__name__)

_TEXTS: Final = {"system", "template", "renderer", "parser"}
#: How a path begins or ends, and no model's name.
_PATH: Final = re.compile(r"^(\.{0,2}/|~)|\.(gguf|safetensors)$")
_FILE_FIELDS: Final = {"from": "files", "adapter": "adapters", "draft": "draft_files"}


@dataclass(slots=True)
class CreateRequest:
    """fields: of the request's body.  files: body field → name in the request → path on disk.

    named: body field → the command that names its files, or the model that it begins with.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    files: dict[str, dict[str, Path]] = field(default_factory=dict)
    named: dict[str, Command] = field(default_factory=dict)


def create_request(commands: Sequence[Command], folder: Path) -> CreateRequest:
    """folder: where relative paths begin.

    Raises InvalidRequest, with the command's file and line, in Ollama's words.
    """
    request = CreateRequest()
    for command in commands:
        match command.name:
            case "from" | "adapter" | "draft":
                _add_file(request, command, folder)
            case "license":
                request.fields.setdefault("license", []).append(command.value)
            case "message":
                turn = {"role": command.key, "content": command.value}
                request.fields.setdefault("messages", []).append(turn)
            case "parameter":
                _add_parameter(request.fields.setdefault("parameters", {}), command)
            case "requires":
                request.fields["requires"] = command.value.removeprefix("v")
            case name:
                assert name in _TEXTS
                request.fields[name] = command.value
    return request


# ------------------------------------------------------------------------------- files


def _add_file(request: CreateRequest, command: Command, folder: Path) -> None:
    """FROM is a model's name where no file has that path, and it does not look like one."""
    path = folder / _expand_path(command)
    if not path.exists():
        if command.name != "from" or _PATH.search(command.value):
            raise command.error(f"no such file: {command.value}")
        request.fields["from"] = command.value
        request.named["from"] = command
        return
    found = dict(_files_of(path, command))
    field_name = _FILE_FIELDS[command.name]
    request.named[field_name] = command
    if command.name == "from":
        request.files.setdefault(field_name, {}).update(found)
    else:
        request.files[field_name] = found  # the last one wins


def _expand_path(command: Command) -> Path:
    try:
        return Path(command.value).expanduser()
    except RuntimeError as error:  # ~user, where there is no such user
        raise command.error(f"no such file: {command.value}") from error


def _files_of(path: Path, command: Command) -> Iterator[tuple[str, Path]]:
    """Name in the request, path on disk: of a file, or of all weights in a folder."""
    if path.is_file():
        yield path.name, path
        return
    found = sorted(path.glob("*.gguf"))
    if not found and any(path.glob("*.safetensors")):
        from specd.converter import is_convertible_file

        found = sorted(
            file for file in path.iterdir() if is_convertible_file(file.name) and file.is_file()
        )
    if not found:
        raise command.error(f"no model files in {path}")
    yield from ((file.name, file) for file in found)


# -------------------------------------------------------------------------- parameters


def _integer(text: str) -> int:
    """Also 1e+06, as which `show` writes a large one."""
    try:
        return int(text)
    except ValueError:
        value = float(text)
    if not value.is_integer():  # nor nan, nor infinite
        raise ValueError
    return int(value)


def _flag(text: str) -> bool:
    """Go: strconv.ParseBool."""
    if text in {"1", "t", "T", "TRUE", "true", "True"}:
        return True
    if text in {"0", "f", "F", "FALSE", "false", "False"}:
        return False
    raise ValueError


#: By the option's type: its word in Ollama's errors, and how its text is read.
_READERS: Final[Mapping[type, tuple[str, Callable[[str], object]]]] = {
    int: ("int", _integer),
    float: ("float", float),
    bool: ("bool", _flag),
    tuple: ("string", str),
}


def _add_parameter(parameters: dict[str, object], command: Command) -> None:
    """`stop` may come several times, of all others the last one counts."""
    name = command.key
    if name in options.DEPRECATED:
        log.warning("the parameter %s is deprecated and has no effect", name)
        return
    try:
        value = read_parameter(name, command.value)
    except InvalidRequest as error:
        raise command.error(str(error)) from error
    if name == "stop":
        stops = parameters.setdefault("stop", [])
        assert isinstance(stops, list)
        stops.append(value)
    else:
        parameters[name] = value


def read_parameter(name: str, text: str) -> object:
    """Raises InvalidRequest for a name that is none and a text that is no such value."""
    if name not in options.TYPES:
        raise InvalidRequest(f"unknown parameter '{name}'")
    kind, read = _READERS[options.TYPES[name]]
    try:
        return read(text)
    except ValueError as error:
        raise InvalidRequest(f"invalid {kind} value [{text}]") from error
