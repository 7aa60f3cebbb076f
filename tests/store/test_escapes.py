"""Untrusted manifests, configs and layers cannot open files outside the store."""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from specd.api.ollama.models import show_object, tags_object
from specd.errors import InvalidName, SpecdError, StoreError
from specd.go_json_encoder import dump_json
from specd.store import Library, blobs
from specd.store import name as names
from tests.fast import computes_long
from tests.gguf_files import OllamaStore, write_llama

ROOT = Path("/store")
HEX = "0123456789abcdef" * 4
#: Texts that may lead out of a folder, or break a lookup.
ODD = (
    *("", ".", "..", "/", "/etc/passwd", "../../../../etc/passwd", "..\\..\\x", "a/../../b", "~"),
    *(
        "\0",
        "a\0b",
        "x" * 300,
        "x" * 5000,
        "%2e%2e%2f",
        "．．／",
        "é",
        "\u202e",
        "CON",
        "-rf",
        "$HOME",
    ),
    *(f"sha256:{HEX}/../x", f"sha256:{HEX}\n", f"sha256-{HEX}\0", "sha256:" + "0" * 63, "sha256:"),
    *("file:///etc/passwd", "http://127.0.0.1/x", "a:b:c", ":", "@", " ", "\n", "*", "?"),
)
odd = st.sampled_from(ODD) | st.text(max_size=40)
values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | odd,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(odd, inner, max_size=3),
    max_leaves=6,
)


@given(odd | st.text("0123456789abcdefABCDEFsha256:-/.\0 ", max_size=80))
@example(f"sha256:{HEX}")
def test_any_digest_is_a_file_in_blobs_or_invalid(text: str) -> None:
    try:
        path = blobs.path_of(ROOT, text)
    except StoreError:
        return
    assert path.parent == ROOT / "blobs"
    assert path.name.removeprefix("sha256-").isalnum()
    assert len(path.name) == 71


@given(st.lists(odd, min_size=1, max_size=5), st.sampled_from(["/", ":", "//", "/../", "@", ""]))
def test_any_name_is_a_file_in_manifests_or_invalid(parts: list[str], mark: str) -> None:
    for text in (mark.join(parts), "/".join(parts[:-1]) + ":" + parts[-1]):
        try:
            path = names.parse(text).path(ROOT)
        except InvalidName:
            continue
        assert Path(os.path.normpath(path)) == path
        assert len(path.relative_to(ROOT).parts) == 4
        assert "\0" not in str(path)


class Opened:
    """Audit hook that records the opened files while it is on."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.on = False

    def __call__(self, event: str, arguments: tuple[object, ...]) -> None:
        if self.on and event == "open" and isinstance(arguments[0], str | os.PathLike):
            self.paths.append(os.fspath(arguments[0]))


@pytest.fixture(scope="module")
def opened() -> Iterator[Opened]:
    """Switch the hook off, because an audit hook cannot be removed."""
    opened = Opened()
    sys.addaudithook(opened)
    yield opened
    opened.on = False


def spoiled(value: Any, draw: random.Random, strange: Any) -> Any:
    """Return the JSON with one value replaced by a hostile one."""
    if draw.random() < 0.2 or not isinstance(value, dict | list) or not value:
        return strange
    if isinstance(value, list):
        at = draw.randrange(len(value))
        return [*value[:at], spoiled(value[at], draw, strange), *value[at + 1 :]]
    key = draw.choice(list(value))
    if draw.random() < 0.1:
        return {name: item for name, item in value.items() if name != key}
    return value | {key: spoiled(value[key], draw, strange)}


@computes_long
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    strange=values,
    seed=st.integers(0, 2**32),
    of=st.sampled_from(["manifest", "config", "params", "messages"]),
)
def test_hostile_manifests_open_no_file_outside_the_store(
    opened: Opened, tmp_path: Path, strange: object, seed: int, of: str
) -> None:
    draw = random.Random(seed)
    root = tmp_path / "models"
    store = OllamaStore(root)
    weights = tmp_path / "w.gguf"
    if not weights.exists():
        write_llama(weights)
    params: Any = {"stop": ["x"], "num_ctx": 512, "temperature": 0.5}
    turns: Any = [{"role": "user", "content": "Hi"}]
    store.add(
        "strange",
        weights=weights,
        params=spoiled(params, draw, strange) if of == "params" else params,
        messages=spoiled(turns, draw, strange) if of == "messages" else turns,
        template="{{ .Prompt }}",
        config=None,
    )
    path = store.manifest_path("strange")
    manifest = json.loads(path.read_bytes())
    if of == "manifest":
        path.write_text(json.dumps(spoiled(manifest, draw, strange)))
    elif of == "config":
        config = store.blob_path(manifest["config"]["digest"])
        config.write_text(json.dumps(spoiled(json.loads(config.read_bytes()), draw, strange)))
    library = Library(root, demo=True)
    assert "specd-demo:latest" in {summary.name for summary in library.list()}
    library = Library(root, demo=True)  # with empty caches
    opened.paths.clear()
    opened.on = True
    try:
        dump_json(tags_object(library.list()))
        dump_json(show_object(library.show("strange"), system="", basename="", pair=None))
        library.resolve("strange")
    except SpecdError:
        pass
    finally:
        opened.on = False
    assert opened.paths
    ours = str(root.resolve())
    demo = "/specd/demo/"
    assert [name for name in opened.paths if not name.startswith(ours) and demo not in name] == []
