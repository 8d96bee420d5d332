"""The prefix cache by HTTP: each client sees why, and touches no other's."""

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from flm.core.chat import Conversation, Message
from flm.core.event import Finished
from flm.core.request import SamplingParams
from flm.engine.answer import Answer
from flm.engine.conversation import Conversations
from flm.engine.engine import Engine
from flm.engine.terms import Terms
from flm.server.reasons import reason
from flm.server.routes.prefix_cache import WARM_MAX
from tests.server.house import SETTINGS, House, open_house, serving

KEYS = replace(SETTINGS, api_keys=("one", "two"))
RULES = "Be brief, and follow the rules of the house. " * 8
NOTHING = {"class", "differs_at", "read", "place", "before", "ours", "theirs", "fate", "advice"}


def clock(minute: int) -> str:
    """As Open WebUI writes its variables into a system prompt."""
    return f"You help Ada. Today is Sunday, and it is 2026-03-01 12:{minute:02}:07. {RULES}"


def body(system: str = RULES, user: str = "hello", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    return {"model": "tiny:1m", "messages": messages, "max_tokens": 1, **fields}


@dataclass
class Client:
    """With one of the keys."""

    url: str
    key: str = "one"

    def request(self, method: str, path: str, **sent: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        return httpx.request(method, self.url + path, headers=headers, timeout=30, **sent)

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)

    def post(self, path: str, **sent: Any) -> httpx.Response:
        return self.request("POST", path, **sent)

    def chat(self, **fields: Any) -> int:
        """How much of the prompt was kept."""
        reply = self.post("/v1/chat/completions", json=body(**fields))
        assert reply.status_code == 200, reply.text
        found: int = reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    def show(self, query: str = "") -> dict[str, Any]:
        shown: dict[str, Any] = self.get(f"/v1/prefix-cache{query}").json()
        return shown

    def explain(self, asked: dict[str, Any]) -> dict[str, Any]:
        reply = self.post("/v1/prefix-cache/explain", json=asked)
        assert reply.status_code == 200, reply.text
        explained: dict[str, Any] = reply.json()
        return explained


@pytest.fixture
def url(house: House) -> Iterator[str]:
    with serving(house.residence, KEYS) as url:
        yield url


def read_all(house: House) -> None:
    """Wait for the idle work."""
    while not house.resident.thread.idle:
        house.resident.thread.ask(lambda engine: None).result()


def state(house: House) -> tuple[Any, ...]:
    """All that a dry run must leave as it is."""

    def look(engine: Engine) -> tuple[Any, ...]:
        cache = engine.cache
        slots = {number: (node.end, vars_of(node.slot)) for number, node in cache.slots.items()}
        roots = sorted(cache.trie.roots)
        return dict(cache.tally.counts), cache.ghosts.bytes_held, cache.bytes_kept, slots, roots

    asked: Future[tuple[Any, ...]] = house.resident.thread.ask(look)
    return asked.result()


def assert_set(event: Event) -> None:
    assert event.wait(30)


def vars_of(slot: Any) -> tuple[Any, ...]:
    return slot.used_at, slot.used_s, slot.hits


def test_a_client_sees_what_it_was_read_and_nothing_of_another(house: House, url: str) -> None:
    one, two = Client(url), Client(url, "two")
    one.chat(user="whispered " * 80)
    one.chat(user="said " * 80)
    shown = one.show("?text=1")
    kinds = [each["kind"] for each in shown["tree"]]
    assert kinds.count("head") == 1
    assert kinds.count("turn") >= 2
    assert any("whispered" in each["text"] for each in shown["tree"])
    assert shown["totals"]["bytes_own"] == shown["totals"]["bytes_kept"] > 0
    (head,) = (each for each in shown["tree"] if each["kind"] == "head")
    assert (head["start"], head["tiers"], head["leases"]) == (0, ["host"], 0)
    assert sum(each["hits"] for each in shown["tree"]) == 1
    assert shown["truncated"] is False
    other = two.show("?text=1")
    assert other["tree"] == []
    assert other["totals"]["bytes_own"] == other["totals"]["slots_own"] == 0
    assert "whispered" not in one.get("/v1/prefix-cache").text
    assert one.show("?cache_salt=apart")["tree"] == []


def test_a_salted_prompt_is_shown_to_who_knows_the_salt(house: House, url: str) -> None:
    one = Client(url)
    one.chat(cache_salt="apart")
    assert one.show()["tree"] == []
    assert len(one.show("?cache_salt=apart")["tree"]) == 2
    refused = one.get("/v1/prefix-cache?cache_salt=")
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "cache_salt"


def test_explain_says_what_differs_where_and_what_to_do(house: House, url: str) -> None:
    one = Client(url)
    one.chat(system=clock(5))
    why = one.explain(body(clock(6)))
    assert why["class"] == "time"
    assert why["place"]["path"] == "messages[0].content"
    assert clock(6)[: why["place"]["offset"]] == clock(5)[: why["place"]["offset"]]
    assert why["ours"].startswith("6:07")
    assert why["theirs"].startswith("5:07")
    assert "move the time" in why["advice"]
    assert why["would_reuse"] == {"tokens": why["differs_at"], "tier": "host"}
    assert [each["kept"] for each in why["boundaries"]] == [None, None]
    again = one.explain(body(clock(5), user="and now?"))
    assert [each["kept"] for each in again["boundaries"]] == ["host", None]
    assert again["would_reuse"]["tokens"] >= again["boundaries"][0]["offset"]
    assert {again[name] for name in NOTHING} == {None}


def test_explain_is_a_dry_run(house: House, url: str) -> None:
    one = Client(url)
    one.chat(system=clock(5))
    before, device = state(house), house.runner.tokens_read
    for asked in (body(clock(6)), body(clock(5)), body("new " * 80), body(cache_salt="new")):
        first = one.explain(asked)
        assert one.explain(asked) == first
    assert state(house) == before
    assert house.runner.tokens_read == device
    assert len(house.requests) == 1


def test_explain_tells_nothing_of_another_clients_prompts(house: House, url: str) -> None:
    Client(url).chat(system=clock(5))
    why = Client(url, "two").explain(body(clock(6)))
    assert why["would_reuse"] == {"tokens": 0, "tier": None}
    assert {why[name] for name in NOTHING} == {None}
    assert why["volatility"] == []


def test_a_plain_completion_is_explained_and_several_are_not(house: House, url: str) -> None:
    one = Client(url)
    asked = {"model": "tiny:1m", "prompt": "word " * 100, "max_tokens": 1}
    one.post("/v1/completions", json=asked)
    why = one.explain(asked)
    assert why["boundaries"] == [{"offset": why["prompt_tokens"], "kind": "end", "kept": "host"}]
    refused = one.post("/v1/prefix-cache/explain", json={**asked, "prompt": ["a", "b"]})
    assert refused.status_code == 400
    assert "one at a time" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["explain", "warm"])
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "tiny:1m"}, 400),
        ({"model": "other", "prompt": "x"}, 404),
        ({"model": "tiny:1m", "prompt": "word " * 600}, 400),
        ({"model": "tiny:1m", "prompt": "x", "temperature": 9}, 400),
        ({"requests": 5}, 400),
        ({"requests": []}, 400),
        ({"requests": [{}] * (WARM_MAX + 1)}, 400),
    ],
)
def test_bodies_are_refused_as_in_chat(
    house: House, url: str, path: str, fields: dict[str, Any], status: int
) -> None:
    one = Client(url)
    reply = one.post(f"/v1/prefix-cache/{path}", json=fields)
    assert reply.status_code == status, reply.text
    assert one.post(f"/v1/prefix-cache/{path}", content=b"[").status_code == 400
    assert house.requests == []


def test_without_a_key_there_is_nothing_to_see(house: House, url: str) -> None:
    stranger = Client(url, "three")
    for method, path in (
        ("GET", ""),
        ("POST", "/explain"),
        ("POST", "/warm"),
        ("POST", "/clear"),
    ):
        assert stranger.request(method, f"/v1/prefix-cache{path}", json={}).status_code == 401
    assert stranger.get("/metrics").status_code == 401


def test_what_was_warmed_needs_no_reading_and_clearing_undoes_it(house: House, url: str) -> None:
    one, two = Client(url), Client(url, "two")
    reply = one.post("/v1/prefix-cache/warm", json=body(user="soon", n=3))
    assert reply.status_code == 202
    assert reply.json()["queued"] == 1
    read_all(house)
    assert two.chat(user="soon") == 0
    read = house.runner.tokens_read
    assert one.chat(user="soon") > 0
    assert house.runner.tokens_read - read < reply.json()["prompt_tokens"] / 2
    assert two.post("/v1/prefix-cache/clear").json()["cleared"] > 0
    assert two.show()["tree"] == []
    assert one.show()["tree"] != []
    assert one.post("/v1/prefix-cache/clear").json()["cleared"] > 0
    assert one.show()["tree"] == []
    assert one.chat(user="soon") == 0


def test_clearing_forgets_what_was_seen_and_what_changes(house: House, url: str) -> None:
    one = Client(url)
    one.chat(system=clock(5))
    one.chat(system=clock(6))
    while not (rows := one.show()["volatility"]):  # the log is written beside the reply
        house.resident.thread.ask(lambda engine: None).result()
    assert [(row["class"], row["times"], row["requests"]) for row in rows] == [("time", 1, 2)]
    one.post("/v1/prefix-cache/clear")
    assert one.show()["volatility"] == []
    why = one.explain(body(clock(7)))
    assert {why[name] for name in NOTHING} == {None}


def test_more_to_warm_than_may_wait_is_429_until_it_is_read(house: House, url: str) -> None:
    one = Client(url)
    several = {"requests": [body(user=f"number {n}") for n in range(WARM_MAX)]}
    release: Future[None] = Future()
    house.during_passes(lambda: release.result(30))
    try:
        assert one.post("/v1/prefix-cache/warm", json=several).json()["queued"] == WARM_MAX
        refused = one.post("/v1/prefix-cache/warm", json=body())
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) > 0
    finally:
        release.set_result(None)
    read_all(house)
    assert one.post("/v1/prefix-cache/warm", json=body()).status_code == 202
    read_all(house)


def test_with_reuse_off_there_is_nothing_to_warm_but_all_can_be_asked(tmp_path: Path) -> None:
    off = replace(SETTINGS, reuse_prompt=False)
    with open_house(tmp_path, off) as house, serving(house.residence, off) as url:
        client = Client(url)
        refused = client.post("/v1/prefix-cache/warm", json=body())
        assert refused.status_code == 400
        assert "--reuse-prompt" in refused.json()["error"]["fix"]
        assert client.chat() == client.chat() == 0
        assert client.show()["tree"] == []
        assert client.explain(body())["would_reuse"]["tokens"] == 0


def test_the_log_says_what_changed_and_where_and_none_of_the_words(
    house: House, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Client(url)
    one.chat(system=clock(5))
    one.chat(system=clock(6))
    while not one.show()["volatility"]:
        house.resident.thread.ask(lambda engine: None).result()
    read_all(house)
    out = capsys.readouterr().out
    while "Prefix cache:" not in out:
        out += capsys.readouterr().out
    (line,) = (line for line in out.splitlines() if "Prefix cache:" in line)
    assert ": time at token " in line
    assert f"messages[0].content +{clock(5).index('5:07')}" in line
    request_line = out.splitlines()[out.splitlines().index(line) - 1]
    assert request_line.rpartition("  ")[2] == line.rpartition("  ")[2]
    for word in ("Ada", "Sunday", "12:0", "rules", "hello"):
        assert word not in out


def test_who_waited_for_the_same_beginning_has_nothing_explained(
    house: House, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found when it came was not kept yet, and was when it ran."""
    thread, both, submitted = house.resident.thread, Event(), []
    submit = thread.submit

    def counted(*args: Any) -> None:
        submit(*args)
        submitted.append(args)
        if len(submitted) == 2:
            both.set()

    house.during_passes(lambda: assert_set(both))
    with serving(house.residence, KEYS) as url, ThreadPoolExecutor(2) as pool:
        monkeypatch.setattr(thread, "submit", counted)
        chats = [pool.submit(Client(url).chat, user=f"number {n}") for n in range(2)]
        assert sorted(chat.result() > 0 for chat in chats) == [False, True]
    out = capsys.readouterr().out
    assert out.count("  200  in ") == 2
    assert "tokens reused" not in out


def test_an_absurd_text_costs_its_explanation_and_no_reply(
    house: House, url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    one = Client(url)
    one.chat(system=clock(5))

    def stumble(*_: Any) -> None:
        raise ValueError("the secret words")

    monkeypatch.setattr("flm.server.reasons.explain", stumble)
    assert one.chat(system=clock(6)) >= 0
    assert "secret" not in capsys.readouterr().out


def test_explaining_costs_little_beyond_rendering(tmp_path: Path) -> None:
    """A loose bound on about 5 ms, for a machine that does other things."""
    words = " ".join(map(str, range(3000)))

    def asked(minute: int) -> Answer:
        messages = (Message("system", f"It is 12:{minute:02}:00. {words}"), Message("user", "why?"))
        terms = Terms(SamplingParams())
        return conversations.chat(Conversation(messages), terms, request_id=str(minute))[0]

    with open_house(tmp_path, context_length=40_000, cache_bytes=2**26) as house:
        conversations, thread = Conversations(house.resident), house.resident.thread
        first = replace(asked(1).request, max_tokens=0)
        ended: Future[None] = Future()
        thread.submit(first, lambda e: ended.set_result(None) if isinstance(e, Finished) else None)
        ended.result(60)
        answer, took = asked(2), []
        assert len(answer.request.prompt.tokens) > 10_000
        for _ in range(5):
            finding = thread.ask(lambda e: e.cache.look(answer.request.prompt)).result()
            started = time.thread_time()
            why = reason(house.resident, answer.conversation, finding)
            took.append(time.thread_time() - started)
            assert why
            assert why.change.value == "time"
        assert min(took) < 0.03


def test_openapi_knows_the_routes_and_their_bodies(house: House, url: str) -> None:
    document = Client(url).get("/openapi.json").json()
    paths, schemas = document["paths"], document["components"]["schemas"]
    for path in ("explain", "warm"):
        sent = paths[f"/v1/prefix-cache/{path}"]["post"]["requestBody"]["content"]
        refs = [each["$ref"] for each in sent["application/json"]["schema"]["anyOf"]]
        names = [ref.rpartition("/")[2] for ref in refs]
        assert {"ChatBody", "CompletionBody"} <= set(names) <= schemas.keys()
    for method, path in (("get", ""), ("post", "/clear")):
        parameters = paths[f"/v1/prefix-cache{path}"][method]["parameters"]
        assert "cache_salt" in {each["name"] for each in parameters}
    assert "/metrics" in paths
