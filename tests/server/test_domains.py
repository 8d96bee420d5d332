"""Nobody learns, not even by the clock, what another client's prompts begin with."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flm.server.domains import domain_of
from flm.settings import Settings
from tests.server.asking import chat, post, refused
from tests.server.house import SETTINGS, House, open_house, serving

QUESTION = [{"role": "user", "content": "word " * 150}]
KEYS = replace(SETTINGS, api_keys=("one", "two"))
SHARED = replace(KEYS, prefix_shared=True)


def kept(house: House, **fields: Any) -> int:
    """How much of the same question needed no reading."""
    house.say("so")
    usage = chat(house, messages=QUESTION, **fields)["usage"]
    found: int = usage["prompt_tokens_details"]["cached_tokens"]
    return found


def test_a_key_finds_its_own_prompts_and_no_others(house: House) -> None:
    assert kept(house, settings=KEYS, key="one") == 0
    assert kept(house, settings=KEYS, key="two") == 0
    assert kept(house, settings=KEYS, key="one") > 0
    assert kept(house, settings=KEYS, key="two") > 0


def test_plain_completions_over_a_socket_keep_to_their_key_too(house: House) -> None:
    body = {"model": "tiny:1m", "prompt": "word " * 150, "max_tokens": 1}
    found = []
    with serving(house.residence, KEYS) as url:
        for key in ("one", "two", "one"):
            reply = httpx.post(f"{url}/v1/completions", json=body, headers={"x-api-key": key})
            found.append(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    assert found[:2] == [0, 0]
    assert found[2] > 0


def test_a_reply_that_is_gone_on_with_stays_in_its_domain(house: House) -> None:
    house.say("so")
    begun = [*QUESTION, {"role": "assistant", "content": "Well"}]
    chat(house, messages=begun, settings=KEYS, key="one")
    assert house.requests[0].prompt.domain == domain_of("one", None, shared=False) != ""


def test_keys_share_when_the_server_says_so(house: House) -> None:
    assert kept(house, settings=SHARED, key="one") == 0
    assert kept(house, settings=SHARED, key="two") > 0


@pytest.mark.parametrize("shared", [SETTINGS, SHARED, KEYS])
def test_a_salt_keeps_apart_whatever_is_shared(house: House, shared: Settings) -> None:
    asked: dict[str, Any] = {"settings": shared, "key": "one"}
    assert kept(house, **asked) == 0
    assert kept(house, **asked, cache_salt="a") == 0
    assert kept(house, **asked, cache_salt="b") == 0
    assert kept(house, **asked, cache_salt="a") > 0
    assert kept(house, **asked) > 0


def test_a_prompt_cache_key_keeps_nothing_apart(house: House) -> None:
    assert kept(house, prompt_cache_key="here") == 0
    assert kept(house, prompt_cache_key="there") > 0
    assert kept(house, prompt_cache_key={"odd": 1}) > 0


@pytest.mark.parametrize("salt", ["", 5, ["a"], "a" * 257])
def test_a_salt_is_a_short_text(house: House, salt: Any) -> None:
    assert refused(house, cache_salt=salt)["param"] == "cache_salt"


def test_without_keys_and_salt_all_is_one_domain(house: House) -> None:
    house.say("so")
    assert post(house, key="anything").status_code == 200
    assert house.requests[0].prompt.domain == ""


def test_a_key_on_a_server_without_keys_is_nobodys(house: House) -> None:
    """Clients send any word where they must send one."""
    assert kept(house, key="one") == 0
    assert kept(house, key="two") > 0


words = st.none() | st.text(max_size=4) | st.sampled_from(["one", '"', '","', 'null, "a', "a]"])


@settings(deadline=None, derandomize=True, database=None)
@given(words, words, words, words)
def test_no_key_and_salt_give_the_domain_of_others(
    key: str | None, salt: str | None, other: str | None, pepper: str | None
) -> None:
    same = (key, salt) == (other, pepper)
    assert (domain_of(key, salt, shared=False) == domain_of(other, pepper, shared=False)) == same
    assert (domain_of(key, salt, shared=False) == "") == (key is None and salt is None)
    assert domain_of(key, salt, shared=True) == domain_of(None, salt, shared=False)


def test_with_reuse_off_nothing_is_kept_or_found(tmp_path: Path) -> None:
    with open_house(tmp_path, replace(SETTINGS, reuse_prompt=False)) as house:
        assert kept(house) == 0
        assert kept(house) == 0
        assert not any(request.reuse for request in house.requests)
