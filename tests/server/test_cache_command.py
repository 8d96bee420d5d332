"""flm cache, against a running server."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from flm import console
from flm.cli.app import run
from flm.cli.repl import Repl
from flm.server.residence.residence import Residence
from flm.settings import Settings
from tests.server.house import House, serving
from tests.server.test_prefix_cache import KEYS, Client, body, clock, read_all


@dataclass
class Terminal:
    """Runs `flm cache` with the address and key of a server."""

    port: str
    capsys: pytest.CaptureFixture[str]
    key: str = "one"

    def __call__(self, *words: str) -> tuple[int, str, str]:
        where = ["--port", self.port, "--api-key", self.key]
        self.capsys.readouterr()
        code = run(["cache", *words, *where])
        return (code, *self.capsys.readouterr())


@pytest.fixture
def client(house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("FLM_SERVE_PORT", "FLM_API_KEY", "FLM_HOST"):
        monkeypatch.delenv(name, raising=False)
    with serving(house.residence, KEYS) as url:
        yield Client(url)
    console.configure()


@pytest.fixture
def flm(client: Client, capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(client.url.rpartition(":")[2], capsys)


def asked(path: Path, fields: dict[str, Any]) -> str:
    path.write_text(json.dumps(fields))
    return str(path)


def test_show_draws_the_tree(house: House, client: Client, flm: Terminal) -> None:
    client.chat(user="whispered " * 80)
    client.chat(user="said " * 80)
    read_all(house)
    code, out, err = flm("show")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0].startswith("tiny:1m: ")
    (head,) = (line for line in lines if "  head  " in line)
    assert "host" in head
    assert "MiB shared" in head
    assert sum("  turn  " in line for line in lines) >= 2
    assert "whispered" not in out
    assert "whispered" in flm("show", "--text")[1]
    flm.key = "two"
    assert "turn" not in flm("show")[1]


def test_a_chat_shows_what_its_own_model_keeps(
    house: House, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    repl = Repl(house.resident, Settings(model_path=tmp_path))
    repl.take("/kept")
    assert capsys.readouterr().out.startswith("tiny:1m: no snapshots\n")
    repl.chat.max_tokens = 1
    repl.take("said " * 80)
    capsys.readouterr()
    repl.take("/kept")
    out = capsys.readouterr().out
    assert "MiB shared" in out
    assert "said said" in out


def test_show_gives_the_maps_advice(house: House, client: Client, flm: Terminal) -> None:
    client.chat(system=clock(5))
    client.chat(system=clock(6))
    while not client.show()["volatility"]:
        house.resident.thread.ask(lambda engine: None).result()
    assert "move the time from messages[0].content" in flm("show")[1].replace("\n", " ")


def test_json_is_the_servers_own(client: Client, flm: Terminal, tmp_path: Path) -> None:
    client.chat()
    for words in (["show", "--json"], ["--json", "show"], ["-j", "explain", "x.json"]):
        asked(tmp_path / "x.json", body())
        code, out, _ = flm(*words)
        assert code == 0
        assert json.loads(out)["model"] == "tiny:1m"


@pytest.mark.parametrize("piped", [False, True])
def test_explain_says_what_differs_and_what_to_do(
    client: Client, flm: Terminal, tmp_path: Path, piped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.chat(system=clock(5))
    name = asked(tmp_path / "x.json", body(clock(6)))
    if piped:
        monkeypatch.setattr("sys.stdin", StringIO(Path(name).read_text()))
    code, out, _ = flm("explain", "-" if piped else name)
    assert code == 0
    assert "time, messages[0].content +" in out
    assert "5:07" in out
    assert "6:07" in out
    assert "Fix: move the time" in out
    other = asked(tmp_path / "y.json", body("unlike it " * 50, user="why is that so?"))
    assert "No prompt that goes on like this was read" in flm("explain", other)[1]


def test_warm_then_clear(house: House, client: Client, flm: Terminal, tmp_path: Path) -> None:
    one = asked(tmp_path / "one.json", body(user="one"))
    more = {"requests": [body(user="two"), {"model": "tiny:1m", "prompt": "word " * 100}]}
    code, out, _ = flm("warm", one, asked(tmp_path / "more.json", more))
    assert code == 0
    assert out.startswith("Queued: 3 prompts, ")
    read_all(house)
    assert client.chat(user="one") > 0
    assert flm("clear")[0] == 1, "nobody said yes"
    assert client.show()["tree"] != []
    code, out, _ = flm("clear", "--yes")
    assert code == 0
    assert out.startswith("Cleared: ")
    assert client.show()["tree"] == []


def test_a_body_without_a_model_means_the_one_served(
    house: House, client: Client, flm: Terminal, tmp_path: Path
) -> None:
    sent = {name: value for name, value in body().items() if name != "model"}
    name = asked(tmp_path / "x.json", sent)
    code, out, _ = flm("warm", name)
    assert code == 0
    assert out.startswith("Queued: 1 prompt, ")
    read_all(house)
    code, out, _ = flm("explain", name)
    assert code == 0
    assert "Nothing would be read." in out


def test_a_salt_shows_explains_warms_and_clears_what_was_sent_with_it(
    house: House, client: Client, flm: Terminal, tmp_path: Path
) -> None:
    name, salt = asked(tmp_path / "x.json", body()), ("--cache-salt", "a part & more")
    assert flm("warm", name, *salt)[0] == 0
    read_all(house)
    assert json.loads(flm("show", "--json")[1])["tree"] == []
    assert json.loads(flm("show", "--json", *salt)[1])["tree"] != []
    assert json.loads(flm("explain", name, "--json")[1])["would_reuse"]["tokens"] == 0
    assert json.loads(flm("explain", name, "--json", *salt)[1])["would_reuse"]["tokens"] > 0
    flm("clear", "--yes")
    assert json.loads(flm("show", "--json", *salt)[1])["tree"] != []
    flm("clear", "--yes", *salt)
    assert json.loads(flm("show", "--json", *salt)[1])["tree"] == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["explain", "none.json"], "none.json cannot be read"),
        (["explain", "text.txt"], "text.txt is not JSON"),
        (["explain", "list.json"], "list.json is no request"),
        (["explain", "bad.json"], "messages is missing"),
        (["warm"], "Missing argument"),
        (["brew"], "brew"),
    ],
)
def test_every_slip_is_two_lines(
    client: Client, flm: Terminal, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "text.txt").write_text("hello")
    (tmp_path / "list.json").write_text("[1]")
    (tmp_path / "bad.json").write_text('{"model": "tiny:1m"}')
    code, out, err = flm(*words)
    assert code == 1
    assert all(line.startswith("[FLM]  ") for line in out.splitlines())  # the server's
    assert len(err.splitlines()) == 2
    assert said in err.splitlines()[0]


def test_a_wrong_key_and_a_missing_server_say_what_to_do(flm: Terminal) -> None:
    flm.key = "three"
    assert "API key" in flm("show")[2]
    flm.port = "9"
    code, _, err = flm("show")
    assert code == 1
    assert "No flm server answers at http://127.0.0.1:9" in err
    assert "flm serve" in err
    assert "--port" in err
    assert "FLM_SERVE_PORT" in err


def test_a_server_that_loads_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with serving(Residence()) as url:
        flm = Terminal(url.rpartition(":")[2], capsys)
        assert "loading" in flm("show")[2]
    console.configure()


def test_help_names_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["cache"], ["cache", "--help"], ["help", "cache"]):
        assert run(words) == 0
        out = capsys.readouterr().out
        assert all(word in out for word in ("show", "explain", "warm", "clear"))
    assert run(["cache", "show", "--help"]) == 0
    assert "--text" in capsys.readouterr().out
