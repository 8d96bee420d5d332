"""Models that take turns in one server: real files, compiled and loaded as flm serve does it."""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from flm.cli.resident import prepare_resident
from flm.devices import machine
from flm.engine import residency
from flm.engine.beside import Beside
from flm.engine.residency import Resident
from flm.hub.reference import resolve
from flm.hub.shelf import Shelf
from flm.prefix.cache import PrefixCache
from flm.prefix.left import Left
from flm.server.residence import residence as residence_module
from flm.server.residence.residence import Residence
from flm.settings import Settings
from tests.models.gguf_writer import tiny_llama
from tests.pure.vocabularies import byte_level
from tests.server.house import serving
from tests.server.test_leaving import until

LONG = "It says the same thing again and again. " * 8  # over --prefix-min-gain
WINDOWS = {"small": 512, "large": 1024}


@dataclass
class Home:
    """A server over the shelf in `folder`; `alive` are the caches that were not given back."""

    folder: Path
    settings: Settings
    url: str = ""
    loads: list[str] = field(default_factory=list)
    alive_at_load: list[int] = field(default_factory=list)
    beside: Beside = field(default_factory=Beside)
    residence: Residence = field(init=False)
    _caches: list["weakref.ref[PrefixCache]"] = field(default_factory=list)

    def prepare(self, text: str) -> Callable[[], Resident]:
        load = prepare_resident(text, self.settings, self.beside)

        def loaded() -> Resident:
            self.loads.append(Path(text).stem)
            self.alive_at_load.append(sum(cache() is not None for cache in self._caches))
            resident = load()
            self._caches.append(weakref.ref(resident.thread.cache))
            return resident

        return loaded

    def install(self, name: str, **changes: object) -> Path:
        file = self.folder / f"{name}.gguf"
        tiny_llama(file, tokenizer=byte_level(), **{"tokenizer.chat_template": None, **changes})
        shelf, wanted = Shelf(self.settings.model_path), resolve(str(file))
        shelf.make_folder(wanted)
        shelf.record(wanted, [])
        return file

    def ask(self, name: str, prompt: str = LONG, **fields: Any) -> httpx.Response:
        body = {"model": name, "prompt": prompt, "max_tokens": 2, "temperature": 0, **fields}
        return httpx.post(f"{self.url}/v1/completions", json=body, timeout=60)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Home]:
    with opened(tmp_path, monkeypatch) as home:
        yield home


@contextmanager
def opened(
    folder: Path, monkeypatch: pytest.MonkeyPatch, **settings: int | float
) -> Iterator[Home]:
    monkeypatch.setattr(residence_module, "STAY_S_MIN", 0.0)
    monkeypatch.setattr(residence_module, "STAY_S_MAX", 0.0)
    usual: dict[str, Any] = {"lanes": 2, "prefix_cache_mb": 16, "ctx_len": 4096}
    chosen = Settings(model_path=folder / "flm", **{**usual, **settings})
    home = Home(folder, chosen)
    for name, window in WINDOWS.items():
        home.install(name, **{"llama.context_length": window})
    home.residence = residence = Residence(chosen, home.prepare, home.beside)
    residence.open_empty()
    with serving(residence, chosen) as home.url:
        yield home
        if resident := residence.here:
            resident.close()
            resident.thread.cache.check()


def cached(response: httpx.Response) -> int:
    assert response.status_code == 200, response.text
    count: int = response.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_what_was_kept_outlives_a_turn_of_another_model(home: Home) -> None:
    first = home.ask("small")
    assert cached(first) == 0
    assert cached(home.ask("large")) in (0, len(first.json()["choices"][0]["text"]))
    again = home.ask("small")
    assert cached(again) > 64
    assert again.json()["choices"] == first.json()["choices"]
    assert home.loads == ["small", "large", "small"]


def test_without_a_disk_it_outlives_it_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, monkeypatch, prefix_disk_mb=0) as home:
        first, other = home.ask("small"), home.ask("large")
        for name, before in {"small": first, "large": other}.items():
            assert cached(before) == 0
            again = home.ask(name)
            assert cached(again) > 64
            assert again.json()["choices"] == before.json()["choices"]
        assert home.loads == ["small", "large", "small", "large"]
        told = httpx.get(f"{home.url}/metrics").text
        assert f"flm_prefix_cache_left_bytes {float(home.beside.left.bytes)}" in told
        assert home.beside.left.bytes > 0


def test_what_models_left_lies_in_the_budget_of_the_one_that_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, monkeypatch, prefix_disk_mb=0, prefix_cache_mb=1) as home:
        home.ask("small")
        home.ask("large", "Nothing of it is known. " * 2)
        left = home.beside.left
        assert left.bytes > 0
        for number in range(6):
            home.ask("large", f"{number} is another number. " * 140)
        assert left.bytes == 0
        assert cached(home.ask("small")) == 0


def test_to_clear_forgets_what_other_models_left_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, monkeypatch, prefix_disk_mb=0) as home:
        home.ask("small")
        home.ask("large")
        assert home.beside.left.slot_count > 0
        assert httpx.post(f"{home.url}/v1/prefix-cache/clear").status_code == 200
        assert home.beside.left.slot_count == 0
        assert cached(home.ask("small")) == 0


def test_what_is_left_where_the_next_does_not_load_can_be_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, monkeypatch, prefix_disk_mb=0) as home:
        clear = f"{home.url}/v1/prefix-cache/clear"
        assert httpx.post(clear).status_code == 409
        home.ask("small")
        with monkeypatch.context() as broken:
            broken.setattr(residency, "Lanes", None)
            assert home.ask("large").status_code == 500
        left = home.beside.left
        assert 0 < left.slot_count == httpx.post(clear).json()["cleared"]
        assert left.slot_count == left.bytes == 0
        assert httpx.post(clear).status_code == 409
        assert cached(home.ask("small")) == 0


def test_what_is_left_where_the_next_does_not_load_goes_when_nobody_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going: list[int] = []
    clear = Left.clear

    def noted(left: Left, domain: str | None = None) -> int:
        going.append(left.slot_count)
        return clear(left, domain)

    with opened(tmp_path, monkeypatch, prefix_disk_mb=0) as home:
        home.ask("small")
        home.residence._expiry.seconds = 0.05
        monkeypatch.setattr(Left, "clear", noted)
        with monkeypatch.context() as broken:
            broken.setattr(residency, "Lanes", None)
            assert home.ask("large").status_code == 500
        until(lambda: len(going) > 0 and not home.beside.left.slot_count)
        assert going[0] > 0


def test_who_is_unloaded_because_nobody_asks_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(tmp_path, monkeypatch, prefix_disk_mb=0) as home:
        home.ask("small")
        home.ask("large", keep_alive=0)
        loaded = f"{home.url}/api/ps"
        until(lambda: httpx.get(loaded).json()["models"] == [])
        assert cached(home.ask("small")) == 0


def test_a_second_server_says_in_a_line_that_it_has_no_disk(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    home.ask("small")
    second = prepare_resident(str(home.folder / "small.gguf"), home.settings)()
    second.close()
    (line,) = (each for each in capsys.readouterr().err.splitlines() if "disk" in each)
    assert "another flm has the disk" in line
    assert "--prefix-disk-path" in line
    assert len(line) < 120


def test_what_is_unloaded_gives_its_memory_back_before_more_is_taken(home: Home) -> None:
    for name in ("small", "large", "small", "large"):
        home.ask(name)
        assert "flm_prefix_cache_bytes" in httpx.get(f"{home.url}/metrics").text
    assert home.alive_at_load == [0, 0, 0, 0]


def test_windows_are_what_each_model_takes_loaded_or_not(home: Home) -> None:
    """--ctx-len asks for more than either has."""

    def windows() -> dict[str, int]:
        data = httpx.get(f"{home.url}/v1/models").json()["data"]
        return {each["id"]: each["context_length"] for each in data}

    for name in ("small", "large"):
        home.ask(name)
    assert windows() == WINDOWS
    home.ask("small")
    assert list(windows()) == ["small", "large"]
    assert windows() == WINDOWS


def test_a_file_that_is_none_fails_its_request_and_disturbs_nobody(home: Home) -> None:
    home.install("torn").write_bytes(b"GGUF and no more")
    home.ask("small")
    response = home.ask("torn", stream=True)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "bad_model_file"
    assert home.loads == ["small"]
    assert cached(home.ask("small")) > 64


def test_what_does_not_fit_is_refused_before_anything_goes(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.ask("small")
    home.ask("large")
    monkeypatch.setattr(machine, "memory_bytes", lambda: 2**20)
    response = home.ask("small")
    assert response.status_code == 507
    assert response.json()["error"]["code"] == "no_room"
    assert response.json()["error"]["fix"]
    assert home.loads == ["small", "large"]
    assert cached(home.ask("large")) > 64
