"""A model is here whole or not at all, whatever it was called and whatever stopped the pull."""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest

from flm.errors import BadModelFile, BadRequest, BadSettings, ModelNotFound, NoRoom
from flm.hub import disk
from flm.hub.prepare import prepare_model
from flm.hub.pull import bad_files, pull
from flm.hub.reference import parse_source, resolve
from flm.hub.shelf import Shelf
from flm.settings import Settings


def silent(file: str, done: int, total: int) -> None:
    assert 0 <= done <= total or not total


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(model_path=tmp_path / "flm")


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    path = tmp_path / "mine" / "Tiny.Q8_0.gguf"
    path.parent.mkdir()
    path.write_bytes(b"GGUF" + bytes(100))
    return path


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("hf:org/repo", ("hf", "org/repo", "")),
        ("hf:org/repo/sub/file.gguf", ("hf", "org/repo", "sub/file.gguf")),
        ("pypi:a-b==1.0/c/d.gguf", ("pypi", "a-b==1.0", "c/d.gguf")),
        ("pypi:a", ("pypi", "a", "")),
    ],
)
def test_an_address_is_read(source: str, parts: tuple[str, str, str]) -> None:
    assert parse_source(source) == parts
    assert resolve(source).card.sources == (source,)


@pytest.mark.parametrize("source", ["hf:", "hf:org", "hf:../x", "hf:-o/r", "pypi:/x", "pypi:a b"])
def test_what_is_no_address_says_how_one_looks(source: str) -> None:
    with pytest.raises(BadRequest) as error:
        resolve(source)
    assert "hf:org/repo" in error.value.fix


def test_every_name_gets_a_folder_of_its_own_below_models(settings: Settings, gguf: Path) -> None:
    names = ["smollm2:135m", str(gguf), "hf:a/b", "hf:a/b/c.gguf", "hf:a/b-c.gguf", "pypi:x/../y"]
    folders = {Shelf(settings.model_path).folder(name) for name in names}
    assert len(folders) == len(names)
    assert {folder.parent for folder in folders} == {settings.model_path / "models"}


def test_a_file_is_used_where_it_lies_and_removing_leaves_it(
    settings: Settings, gguf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(gguf.parent)
    assert pull("./Tiny.Q8_0.gguf", settings, progress=silent) == gguf
    shelf = Shelf(settings.model_path)
    assert [found.text for found in shelf.installed()] == [str(gguf)]
    assert resolve(str(gguf)).card.tag == "Tiny.Q8_0"
    shelf.remove(str(gguf))
    assert gguf.is_file()
    assert shelf.installed() == []


def test_a_hugging_face_folder_is_a_model_and_another_folder_is_not(
    settings: Settings, tmp_path: Path
) -> None:
    folder = tmp_path / "hf"
    folder.mkdir()
    with pytest.raises(ModelNotFound, match="neither"):
        resolve(str(folder))
    (folder / "config.json").write_text("{}")
    assert pull(str(folder), settings, progress=silent) == folder


def test_a_missing_path_is_told_as_one(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match="No such file"):
        resolve(str(tmp_path / "none.gguf"))


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.gguf.xz", b"", "xz -dk a.gguf.xz"),
        ("a.GGUF.ZIP", b"", "unzip a.GGUF.ZIP"),
        ("model.safetensors", b"", "the folder that has it"),
        ("a.gguf.part1", b"GGUF", "rename it to a.gguf.part1.gguf"),
        ("notes.txt", b"GG", "a tag that flm list shows"),
        ("some", None, ""),
    ],
)
def test_a_file_that_is_no_model_is_told_what_it_is(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    content: bytes | None,
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    if content is None:
        Path(name).mkdir()
        Path(name, "it.gguf").write_bytes(b"GGUF")
        said = str(tmp_path / name / "it.gguf")
    else:
        Path(name).write_bytes(content)
    for text in (name, f"./{name}", str(tmp_path / name)):
        with pytest.raises(ModelNotFound, match=re.escape(name)) as error:
            resolve(text)
        assert said in error.value.fix


def test_a_tag_stays_one_where_a_file_is_called_like_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("smollm2:135m").touch()
    assert resolve("smollm2:135m").path is None


def test_a_model_counts_as_installed_only_while_every_file_is_whole(settings: Settings) -> None:
    shelf, model = Shelf(settings.model_path), resolve("hf:org/repo")
    source = shelf.make_folder(model) / "source"
    source.mkdir()
    files = [source / "a.json", source / "b.safetensors"]
    for file in files:
        file.write_text("text of " + file.name)
    assert shelf.installed() == []
    found = shelf.record(model, files)
    assert found.source == source
    assert shelf.find(model) == found
    assert bad_files(found, model.card) == []
    files[0].write_text("TEXT of " + files[0].name)
    assert bad_files(found, model.card) == ["a.json"]
    files[1].write_text("torn")
    assert shelf.find(model) is None
    (found.folder / "source.json").write_text('{"reference": 1, "files": []}')
    assert shelf.installed() == []


def test_removing_what_is_not_here_says_so(settings: Settings) -> None:
    with pytest.raises(ModelNotFound, match="smollm2:135m is not installed"):
        Shelf(settings.model_path).remove("smollm2:135m")


def test_an_unwritable_folder_names_the_setting(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    settings = Settings(model_path=tmp_path / "file" / "flm")
    with pytest.raises(BadSettings, match="cannot be written: Not a directory") as error:
        pull("smollm2:135m", settings, progress=silent)
    assert "FLM_MODEL_PATH" in error.value.fix


def test_a_full_disk_says_how_much_is_needed(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: disk.shutil._ntuple_diskusage(9, 9, 5))
    with pytest.raises(NoRoom, match=r"needs 196\.7 MB, and .* has 0\.0 MB free") as error:
        pull("smollm2:135m", settings, progress=silent)
    assert "FLM_MODEL_PATH" in error.value.fix
    assert not Shelf(settings.model_path).folder("smollm2:135m").exists()


def test_a_file_that_is_no_model_does_not_stay_on_the_shelf(
    settings: Settings, tmp_path: Path
) -> None:
    junk = tmp_path / "junk.gguf"
    junk.write_text("junk")
    with pytest.raises(BadModelFile, match="is not a GGUF file"):
        prepare_model(str(junk), settings)
    assert Shelf(settings.model_path).installed() == []
    assert junk.exists()


def test_progress_does_not_fall_while_a_file_is_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, through = [30, 90, 40, 50], Event()

    def look(path: Path) -> int:
        if len(held) == 1:
            through.set()
        return held.pop(0) if len(held) > 1 else held[0]

    told: list[int] = []
    monkeypatch.setattr(disk, "LOOK_INTERVAL_S", 0.001)
    monkeypatch.setattr(disk, "bytes_under", look)
    with disk.growth(tmp_path, "a.whl", 100, lambda _, done, total: told.append(done)):
        assert through.wait(5)
    assert told[:3] == [30, 90, 90]
    assert told == sorted(told)


def test_a_folder_that_goes_while_it_is_looked_at_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "stays").write_bytes(b"123")
    gone = tmp_path / "gone"
    gone.mkdir()
    listed = os.scandir

    def scandir(path: str) -> "Iterator[os.DirEntry[str]]":
        if gone.exists() and Path(path) == gone:
            gone.rmdir()
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert disk.bytes_under(tmp_path) == 3
    assert not gone.exists()


def test_one_process_pulls_at_a_time(tmp_path: Path) -> None:
    import fcntl

    with (
        disk.only_writer(tmp_path),
        (tmp_path / ".lock").open() as other,
        pytest.raises(BlockingIOError),
    ):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
