"""Model names: grammar, defaults, forms."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specd.errors import InvalidName
from specd.store import name
from specd.store.name import ModelSource, Name

PARTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}", fullmatch=True)
NAMESPACES = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}", fullmatch=True)
HOSTS = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}", fullmatch=True)


@pytest.mark.contract("names.defaults", "names.hf")
@pytest.mark.parametrize(
    "text,short,full",
    [
        ("llama3.2", "llama3.2:latest", "registry.ollama.ai/library/llama3.2:latest"),
        ("llama3.2:1b", "llama3.2:1b", "registry.ollama.ai/library/llama3.2:1b"),
        ("user/model", "user/model:latest", "registry.ollama.ai/user/model:latest"),
        ("hf.co/user/repo:Q8_0", "hf.co/user/repo:Q8_0", "hf.co/user/repo:Q8_0"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest", "localhost:5000/a/b:latest"),
        ("Registry.Ollama.AI/Library/X:y", "X:y", "Registry.Ollama.AI/Library/X:y"),
        ("model:LOCAL", "model:latest", "registry.ollama.ai/library/model:latest"),
    ],
)
def test_a_name_has_a_short_and_a_full_form(text: str, short: str, full: str) -> None:
    parsed = name.parse(text)
    assert (parsed.short, parsed.full) == (short, full)


def test_the_scheme_is_not_part_of_the_full_name() -> None:
    parsed = name.parse("http://localhost:5000/a/b:c")
    assert (parsed.scheme, parsed.host) == ("http", "localhost:5000")


@pytest.mark.contract("names.grammar", "names.digest")
@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "a:",
        "/a",
        "a/",
        "a/b/",
        "a b",
        "a@sha256:b",
        "-a",
        ".a",
        "../a",
        "a/../b/c",
        "a:b:c",
        "x" * 81,
        "a:" + "x" * 81,
        "n.s/m",
        "http://m",
        "h/n/m/extra/",
        "a/b/c/d/e",
        "é",
        "a\x00",
    ],
)
def test_text_outside_the_grammar_is_invalid(text: str) -> None:
    with pytest.raises(InvalidName, match=r"^invalid model name$"):
        name.parse(text)


@pytest.mark.contract("names.cloud", "names.local")
@pytest.mark.parametrize(
    "text,source,tag",
    [
        ("m", ModelSource.UNSPECIFIED, "latest"),
        ("m:local", ModelSource.LOCAL, "latest"),
        ("m:7b:Local", ModelSource.LOCAL, "7b"),
        ("m:cloud", ModelSource.CLOUD, "latest"),
        ("m:20b-cloud", ModelSource.CLOUD, "20b"),
        ("m:20B-Cloud", ModelSource.CLOUD, "20B"),
    ],
)
def test_suffixes_set_the_source(text: str, source: ModelSource, tag: str) -> None:
    parsed = name.parse(text)
    assert (parsed.source, parsed.tag) == (source, tag)


@pytest.mark.contract("names.local")
def test_local_and_cloud_together_are_refused_with_ollamas_text() -> None:
    with pytest.raises(InvalidName) as refused:
        name.parse("x:local:cloud")
    assert str(refused.value) == 'use either :local or :cloud, not both: "x:local:cloud"'


@given(HOSTS, NAMESPACES, PARTS, PARTS)
def test_a_full_name_parses_to_its_parts(host: str, namespace: str, model: str, tag: str) -> None:
    if tag.lower() in {"local", "cloud"} or tag.lower().endswith("-cloud"):
        return
    written = Name(host=host, namespace=namespace, model=model, tag=tag)
    assert name.parse(written.full) == written
    assert name.parse(written.short).key == written.key
    assert name.from_parts((host, namespace, model, tag)) == written


@given(st.text(max_size=60) | st.text("ab:/.-_@ ", max_size=20))
def test_any_text_is_invalid_or_a_path_inside_the_folder(text: str) -> None:
    try:
        parsed = name.parse(text)
    except InvalidName:
        return
    root = Path("/store/manifests")
    path = parsed.path(root)
    assert path.relative_to(root).parts == (
        parsed.host,
        parsed.namespace,
        parsed.model,
        parsed.tag,
    )
    assert ".." not in path.parts


def test_a_path_that_is_no_manifest_has_no_name() -> None:
    assert name.from_parts(("host", "ns", "model", ".DS_Store")) is None
    assert name.from_parts(("host", "ns")) is None
