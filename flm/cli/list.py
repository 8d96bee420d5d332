"""flm list"""

import json
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from flm import __version__, console
from flm.cli import options
from flm.engine.plan import context_length_that_fits, estimate
from flm.errors import BadSettings
from flm.hub.disk import bytes_under
from flm.hub.reference import page_of, parse_source
from flm.hub.shelf import Installed, Shelf
from flm.models.cards import VISION, Card, cards
from flm.settings import Settings

FILTERS = ("all", "installed", "not-installed")
Filter = Annotated[str, typer.Option("--filter", help="which models", metavar="|".join(FILTERS))]


def command(
    context: typer.Context,
    filter_: Filter = "all",
    quiet: options.Quiet = False,
    json_: options.Json = False,
    ctx_len: options.CtxLen = None,
    lanes: options.Lanes = None,
    kv_dtype: options.KvDtype = None,
    prefix_cache_mb: options.PrefixCacheMb = None,
    log_level: options.LogLevel = None,
    config: options.Config = None,
) -> None:
    """Show the models that can be run: ✅ is on this machine, ⏬ can be pulled.

    And what each takes as it would be served, and whether that fits; --quiet leaves both out.
    """
    settings = options.settings_of(context)
    if filter_ not in FILTERS:
        raise BadSettings(
            f"--filter is '{filter_}', which is not one of {', '.join(FILTERS)}",
            fix="for example flm list --filter installed",
        )
    entries = _entries(settings)
    if filter_ != "all":
        entries = [entry for entry in entries if entry["installed"] == (filter_ == "installed")]
    if json_:
        _measure(entries, settings)
        console.write(json.dumps({"models": entries}, indent=4, sort_keys=True) + "\n")
    else:
        _show(entries, settings, quiet=quiet)


def show_models(settings: Settings) -> None:
    _show(_entries(settings), settings, quiet=False)


def _show(entries: list[dict[str, Any]], settings: Settings, *, quiet: bool) -> None:
    """A table for people; for programs that read it, lines that begin as FastFlowLM's."""
    from flm.cli.drawing import draw_models, what_it_takes

    if not quiet:
        _measure(entries, settings)
    if entries and not quiet and console.on_terminal():
        console.write(draw_models(entries))
        return
    console.write("Models:\n")
    if not entries:
        console.write("  No models found for the specified filter.\n")
    for entry in entries:
        mark = " ✅" if entry["installed"] else " ⏬"
        said = "" if quiet else f"{mark}  {what_it_takes(entry)}"
        console.write(f"  - {entry['name']}{said}\n")


def _entries(settings: Settings) -> list[dict[str, Any]]:
    here = {found.text: found for found in Shelf(settings.model_path).installed()}
    known = {card.tag for card in cards()}
    return [_card_entry(card, here.get(card.tag)) for card in cards()] + [
        _other_entry(found) for text, found in here.items() if text not in known
    ]


def _measure(entries: list[dict[str, Any]], settings: Settings) -> None:
    """Adds what each takes of this machine's memory; None where no card says."""
    from flm.devices.machine import memory_bytes

    machine, known = memory_bytes(), {card.tag: card for card in cards()}
    for entry in entries:
        card = known.get(entry["name"])
        entry["memory"] = _memory(card, settings, machine) if card else None


def _memory(card: Card, settings: Settings, machine: int) -> dict[str, Any]:
    """Bytes, as flm serve would plan them with the same settings."""
    plan = estimate(card, settings, machine)
    shorter = None if plan.fits else context_length_that_fits(card, settings, machine)
    return {
        "context_length": plan.context_length,
        "weights_bytes": plan.weights,
        "lanes_bytes": plan.lanes_rows + plan.lanes_state,
        "pictures_bytes": plan.pictures + plan.looking,
        "prefix_cache_bytes": plan.prefix,
        "parked_bytes": plan.parked,
        "total_bytes": plan.total,
        "machine_bytes": machine,
        "fits": plan.fits,
        "context_length_that_fits": plan.context_length if plan.fits else shorter,
    }


def _card_entry(card: Card, found: Installed | None) -> dict[str, Any]:
    """A model as FastFlowLM's model_list.json has it. `size` is its number of parameters."""
    sees = found.sees if found else card.sees
    files = [parse_source(card.sources[0])[2].rpartition("/")[2]]
    return {
        "name": card.tag,
        "model": card.tag,
        "installed": found is not None,
        "url": card.url,
        "size": card.parameters,
        "footprint": card.footprint_gb,
        "label": _labels(card.labels, sees),
        "files": list(found.files) if found else files,
        "default_context_length": card.context_length,
        "max_context_length": card.context_length_max,
        "flm_min_version": __version__,
        "vlm": sees,
        "details": {
            "format": "GGUF",
            "family": card.family,
            "think": card.thinks,
            "think_toggleable": card.think_toggles,
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
        "footprint": round((found.size_bytes or bytes_under(found.source)) / 1e9, 2),
        "label": _labels((), found.sees),
        "files": list(found.files),
        "vlm": found.sees,
        "details": {"format": "GGUF" if found.source.suffix == ".gguf" else "safetensors"},
    }


def _labels(given: Sequence[str], sees: bool) -> list[str]:
    return [*given, VISION] if sees else list(given)
