"""The models on this machine: one folder each, `<model_path>/models/<name>/`.

source/       the files as they came; absent for a model used where it lies
source.json   what they are and their hashes: written last, so its presence means whole
...           what was compiled from them
"""

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flm.core.json_file import read_json_object
from flm.errors import BadModelFile, ModelNotFound
from flm.hub.disk import bytes_under, disk_error, sha256_of
from flm.hub.reference import Reference, resolve

RECORD = "source.json"


@dataclass(frozen=True, slots=True)
class Installed:
    """`text` is what to call it by; `files` maps names below `root` to (bytes, sha256)."""

    text: str
    folder: Path
    root: Path
    source: Path  # what to compile: one of the files, or `root` itself
    files: Mapping[str, tuple[int, str]]

    @property
    def towers(self) -> list[Path]:
        """What lies beside a GGUF file and may be its picture tower."""
        from flm.graph.bundle import towers_beside

        return towers_beside(self.source)

    @property
    def sees(self) -> bool:
        """As it was compiled; before that, whether it has a tower of whatever kind."""
        try:
            if compiled := read_json_object(self.folder / "bundle" / "bundle.json"):
                return compiled.get("sight") is not None
            if self.source.is_dir():
                return "vision_config" in read_json_object(self.source / "config.json")
        except BadModelFile:
            return False
        return bool(self.towers)

    @property
    def size_bytes(self) -> int:
        return sum(size for size, _ in self.files.values())


class Shelf:
    def __init__(self, model_path: Path) -> None:
        self.models = model_path / "models"

    def folder(self, model: str | Reference) -> Path:
        return self.models / (resolve(model) if isinstance(model, str) else model).name

    def installed(self) -> list[Installed]:
        """In order of their folders' names; the half pulled and the foreign are left out."""
        folders = sorted(self.models.iterdir()) if self.models.is_dir() else []
        return [found for folder in folders if (found := _read(folder)) is not None]

    def find(self, model: str | Reference) -> Installed | None:
        """What was pulled under this name, if every file is there in its size."""
        return _read(self.folder(model))

    def make_folder(self, model: Reference) -> Path:
        folder = self.folder(model)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / ".lock").touch()
        except OSError as error:
            raise disk_error(error, self.models) from error
        return folder

    def forget_empty(self, folder: Path) -> None:
        """Leave no trace of a pull that brought nothing."""
        if not any(path.is_file() for path in folder.rglob("*") if path.name != ".lock"):
            shutil.rmtree(folder, ignore_errors=True)

    def record(self, model: Reference, files: list[Path]) -> Installed:
        """Note that `model` is whole: `files` lie below `source/`, or it is used in place."""
        folder = self.folder(model)
        root = folder / "source"
        entry: dict[str, Any] = {"reference": model.text}
        if model.path is not None:
            entry["path"] = str(model.path)
        else:
            entry["files"] = {
                str(file.relative_to(root)): [file.stat().st_size, sha256_of(file)]
                for file in files
            }
        partial = folder / (RECORD + ".part")
        partial.write_text(json.dumps(entry, indent=2) + "\n", encoding="utf-8")
        os.replace(partial, folder / RECORD)
        found = _read(folder)
        assert found is not None, folder
        return found

    def remove(self, model: str | Reference) -> int:
        """Give back the space of a model and what was compiled from it: bytes freed.

        Files used where they lie stay. Raises ModelNotFound if it is not here.
        """
        folder = self.folder(model)
        if not folder.is_dir():
            name = model if isinstance(model, str) else model.text
            raise ModelNotFound(
                f"{name} is not installed.", fix="flm list --filter installed shows what is"
            )
        freed = bytes_under(folder)
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise disk_error(error, folder) from error
        return freed


def _read(folder: Path) -> Installed | None:
    try:
        entry = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if "path" in entry:
            path = Path(entry["path"])
            return Installed(entry["reference"], folder, path, path, {}) if path.exists() else None
        files = {name: (int(size), str(hash_)) for name, (size, hash_) in entry["files"].items()}
        text = str(entry["reference"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    root = folder / "source"
    if not files or any(
        not (root / name).is_file() or (root / name).stat().st_size != size
        for name, (size, _) in files.items()
    ):
        return None
    one = root / next(iter(files))
    return Installed(text, folder, root, one if one.suffix == ".gguf" else root, files)
