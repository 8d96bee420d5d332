"""flm list"""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from flm import __version__, console
from flm.cli import options
from flm.errors import BadSettings
from flm.hub.reference import page_of, parse_source
from flm.hub.shelf import Installed, Shelf
from flm.models.cards import Card, cards

FILTERS = ("all", "installed", "not-installed")
Filter = Annotated[str, typer.Option("--filter", help="which models", metavar="|".join(FILTERS))]


def command(
    context: typer.Context,
    filter_: Filter = "all",
    quiet: options.Quiet = False,
    json_: options.Json = False,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Show the models that can be run: ✅ is on this machine, ⏬ can be pulled."""
    settings = options.settings_of(context)
    if filter_ not in FILTERS:
        raise BadSettings(
            f"--filter is '{filter_}', which is not one of {', '.join(FILTERS)}",
            fix="for example flm list --filter installed",
        )
    entries = _entries(settings.model_path)
    if filter_ != "all":
        entries = [entry for entry in entries if entry["installed"] == (filter_ == "installed")]
    if json_:
        console.write(json.dumps({"models": entries}, indent=4, sort_keys=True) + "\n")
    else:
        _show(entries, marks=not quiet)


def show_models(model_path: Path) -> None:
    _show(_entries(model_path), marks=True)


def _show(entries: list[dict[str, Any]], *, marks: bool) -> None:
    console.write("Models:\n")
    if not entries:
        console.write("  No models found for the specified filter.\n")
    for entry in entries:
        mark = (" ✅" if entry["installed"] else " ⏬") if marks else ""
        console.write(f"  - {entry['name']}{mark}\n")


def _entries(model_path: Path) -> list[dict[str, Any]]:
    here = {found.text: found for found in Shelf(model_path).installed()}
    known = {card.tag for card in cards()}
    return [_card_entry(card, card.tag in here) for card in cards()] + [
        _other_entry(found) for text, found in here.items() if text not in known
    ]


def _card_entry(card: Card, installed: bool) -> dict[str, Any]:
    """A model as FastFlowLM's model_list.json has it. `size` is its number of parameters."""
    return {
        "name": card.tag,
        "model": card.tag,
        "installed": installed,
        "url": card.url,
        "size": card.parameters,
        "footprint": card.footprint_gb,
        "label": list(card.labels),
        "files": [parse_source(card.sources[0])[2].rpartition("/")[2]],
        "default_context_length": card.context_length,
        "max_context_length": card.context_length_max,
        "flm_min_version": __version__,
        "vlm": False,
        "details": {
            "format": "GGUF",
            "family": card.family,
            "think": card.thinks,
            "think_toggleable": False,
            "parameter_size": card.parameter_size,
            "quantization_level": card.quantization,
        },
    }


def _other_entry(found: Installed) -> dict[str, Any]:
    """A model without a card, which somebody pulled by its address or its path."""
    return {
        "name": found.text,
        "model": found.text,
        "installed": True,
        "url": page_of(found.text),
        "footprint": round(found.size_bytes / 1e9, 2),
        "label": [],
        "files": list(found.files),
        "details": {"format": "GGUF" if found.source.suffix == ".gguf" else "safetensors"},
    }
