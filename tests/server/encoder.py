"""A tiny encoder on the shelf, under the name of a real one."""

from dataclasses import replace
from pathlib import Path

from flm.hub.reference import resolve
from flm.hub.shelf import Shelf
from flm.settings import Settings
from tests.models.tiny_bert import write_bert
from tests.server.house import SETTINGS

MODEL = "all-minilm:l6-v2"


def with_encoder(model_path: Path) -> Settings:
    """Of a server that has it, in `model_path`."""
    wanted, shelf = resolve(MODEL), Shelf(model_path)
    source = shelf.make_folder(wanted) / "source"
    write_bert(source)
    shelf.record(wanted, [path for path in source.rglob("*") if path.is_file()])
    return replace(SETTINGS, model_path=model_path)
