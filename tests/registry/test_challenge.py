"""Challenges of a 401, and the token requests that answer them."""

from __future__ import annotations

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from specd.errors import RegistryError
from specd.registry.authentication import Challenge, parse_challenge, text_to_sign

REGISTRY = URL("https://registry.example/v2/library/m/manifests/latest")
_TEXT = st.text(st.characters(min_codepoint=32, max_codepoint=126))


@given(realm=_TEXT.filter(bool), service=_TEXT, scope=_TEXT, order=st.permutations(range(3)))
def test_a_challenge_is_parsed(realm: str, service: str, scope: str, order: list[int]) -> None:
    def quoted(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    fields = [f"realm={quoted(realm)}", f"service={quoted(service)}", f"scope={quoted(scope)}"]
    header = "Bearer " + ",".join(fields[i] for i in order)
    assert parse_challenge(header) == Challenge(realm=realm, service=service, scope=scope)


@given(st.text())
def test_any_header_parses_without_an_error(header: str) -> None:
    assert parse_challenge(f"Basic {header}") is None
    parse_challenge(f"Bearer {header}")


@pytest.mark.parametrize("header", ["", "Bearer", 'Basic realm="x"', 'Bearer service="x"'])
def test_other_headers_are_no_challenge(header: str) -> None:
    assert parse_challenge(header) is None


def test_the_token_request_matches_gos() -> None:
    challenge = Challenge(
        realm="https://registry.example/v2/token?account=x",
        service="ollama.com",
        scope="repository:library/m:pull repository:me/n:push",
    )
    url = challenge.token_url(REGISTRY, now_s=1700000000.9, nonce="n-_")
    assert str(url) == (
        "https://registry.example/v2/token?account=x&nonce=n-_"
        "&scope=repository%3Alibrary%2Fm%3Apull&scope=repository%3Ame%2Fn%3Apush"
        "&service=ollama.com&ts=1700000000"
    )
    empty = base64.b64encode(hashlib.sha256(b"").hexdigest().encode()).decode()
    assert text_to_sign(url) == f"GET,{url},{empty}"


def test_every_request_has_its_own_nonce() -> None:
    challenge = Challenge(realm="https://registry.example/token")
    nonces = {challenge.token_url(REGISTRY).query["nonce"] for _ in range(2)}
    assert len(nonces) == 2
    assert {len(base64.urlsafe_b64decode(nonce + "==")) for nonce in nonces} == {16}


@pytest.mark.parametrize(
    "realm",
    [
        "https://evil.example/token",
        "https://registry.example:444/token",
        "https://registry.example@evil.example/token",
        "file:///etc/passwd",
        "registry.example/token",
        "",
    ],
)
def test_a_realm_on_another_host_is_refused(realm: str) -> None:
    with pytest.raises(RegistryError, match=r'does not match original host "registry.example"'):
        Challenge(realm=realm).token_url(REGISTRY)
