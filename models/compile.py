"""From a .gguf file or a Hugging Face folder to a bundle, streaming tensor by tensor.

Peak memory is a slab of the largest tensor, whatever the model's size: weights go straight into a
mapped file. Graphs for both row types are emitted over the same weights.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from flm.core.picture import Sight
from flm.errors import BadModelFile, FlmError, NoRoom, UnsupportedModel
from flm.graph.bundle import (
    ROW_DTYPES,
    TOWER,
    WEIGHTS,
    Bundle,
    StaleBundle,
    graph_name,
    replace_folder,
    source_key,
    towers_beside,
)
from flm.graph.emit import Emitter, WeightStore
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.family import (
    Emitted,
    Source,
    Towers,
    architecture,
    family_of,
    open_source,
    towers_of,
)
from flm.models.growth import bytes_at_most
from flm.models.tower import projector

# Files a Hugging Face folder may bring that the tokenizer and the template are read from.
TEXT_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
)


def prepare(
    source: Path,
    folder: Path,
    *,
    progress: Callable[[float], None] = lambda share: None,
    say: Callable[[str], None] = lambda text: None,
) -> Bundle:
    """The bundle of `source` in `folder`, compiled if it is missing, torn or stale."""
    try:
        key = source_key(source)
    except OSError as error:
        raise BadModelFile(f"{source} cannot be read: {error.strerror or error}") from error
    try:
        return Bundle.open(folder, key=key)
    except StaleBundle as stale:
        if folder.exists():
            say(f"Compiling {source.name} again: {stale.message}")
        else:
            say(f"Compiling {source.name} (once)")
    return compile_model(source, folder, key=key, progress=progress, say=say)


def compile_model(
    source: Path,
    folder: Path,
    *,
    key: str | None = None,
    int8_activations: bool = True,
    progress: Callable[[float], None] = lambda share: None,
    say: Callable[[str], None] = lambda text: None,
) -> Bundle:
    """Always compiles. Raises BadModelFile, UnsupportedModel or NoRoom, `folder` as before."""
    opened = open_source(source)
    name, _ = family_of(opened)
    work = folder.with_name(folder.name + ".partial")
    try:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir(parents=True)
        seen = tower_of(opened, towers_of(name), say)
        size = bytes_at_most(opened)
        size += bytes_at_most(seen[0]) if seen and seen[0] is not opened else 0
        _check_room(source, work, size)
        store = WeightStore(work / WEIGHTS, size_expected=size, progress=progress)
        layouts = {}
        for row_dtype in ROW_DTYPES:
            emitted = _emit(opened, store, Numerics(int8_activations, row_dtype))
            layouts[row_dtype] = emitted.layout
            if short := emitted.context_length_short:
                _emit(opened, store, Numerics(int8_activations, row_dtype, short))
        for note in sorted(emitted.notes):
            say(note)
        sight = None
        if seen:
            sight = _emit_tower(*seen, opened, store, int8_activations, emitted.width, say)
        _write_text(opened, work)
        bundle = Bundle(
            work,
            key or source_key(source),
            name,
            architecture(opened),
            layouts,
            emitted.vocabulary,
            emitted.context_length,
            emitted.context_length_short,
            sight,
        )
        bundle.seal()
        replace_folder(work, folder)
    except OSError as error:
        raise _no_room(folder, error) from error
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return Bundle.open(folder)


def _emit(source: Source, store: WeightStore, numerics: Numerics) -> Emitted:
    """One graph beside the store; whatever it shares with others is written once."""
    name, family = family_of(source)
    emitter = Emitter(store)
    emitted = family.emit(source, emitter, numerics)
    is_short = numerics.context_length is not None
    place = graph_name(numerics.row_dtype, is_short=is_short, sees=numerics.sees)
    emitter.save(store.path.parent / place, name)
    return emitted


def tower_of(
    source: Source, kinds: Sequence[Towers], say: Callable[[str], None]
) -> tuple[Source, Towers] | None:
    """Where its picture tower is, in a folder itself or beside a GGUF file, and who builds it.
    None: nowhere, or nobody.
    """
    if not isinstance(source, GgufFile):
        return next(((source, kind) for kind in kinds if kind.has(source)), None)
    found = towers_beside(source.path)
    if not found:
        return None
    if not kinds:
        word = f"flm builds no picture tower for {architecture(source)!r}"
        say(f"Pictures are not taken: {word}, {found[0].name} is left out")
        return None
    if len(found) > 1:
        say(f"There are {len(found)} mmproj files beside {source.path.name}: none of them is taken")
        return None
    tower = GgufFile(found[0])
    for kind in kinds:
        if kind.has(tower):
            return tower, kind
    theirs = projector(tower) or "which it does not name"
    say(f"{tower.path.name} is a tower of another kind, {theirs}: it is left out")
    return None


def _emit_tower(
    tower: Source,
    towers: Towers,
    source: Source,
    store: WeightStore,
    int8_activations: bool,
    width: int,
    say: Callable[[str], None],
) -> Sight | None:
    """Its graph, and those that read what it gives, beside the store. None for another model's, or
    a kind that is not built.
    """
    try:
        shape = towers.shape(tower)
    except UnsupportedModel as error:
        say(f"Pictures are not taken: {error.message}")
        return None
    if shape.out_width != width:
        made = f"{tower.path.name} makes rows of {shape.out_width}"
        say(f"{made} and the model takes {width}: it is left out")
        return None
    emitter = Emitter(store)
    towers.emit(tower, emitter, Numerics(int8_activations))
    emitter.save(store.path.parent / TOWER, "tower")
    for row_dtype in ROW_DTYPES:
        numerics = Numerics(int8_activations, row_dtype, sees=True, spread=shape.sight.spread)
        _emit(source, store, numerics)
    return replace(shape.sight, patch_values=shape.patch_values)


def _write_text(source: Source, folder: Path) -> None:
    if isinstance(source, GgufFile):
        from flm.text.gguf_tokenizer import write_tokenizer

        write_tokenizer(source.metadata, folder)
        return
    for name in TEXT_FILES:
        if (source.path / name).exists():
            shutil.copyfile(source.path / name, folder / name)


def _check_room(source: Path, folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise NoRoom(
            f"compiling {source.name} takes up to {needed / 2**30:.1f} GiB in {folder.parent}, "
            f"{free / 2**30:.1f} GiB are free",
            fix="free some room, or set FLM_MODEL_PATH to a larger disk",
        )


def _no_room(folder: Path, error: OSError) -> FlmError:
    return NoRoom(
        f"cannot write the compiled model to {folder}: {error.strerror or error}",
        fix="free some room, mend its permissions, or set FLM_MODEL_PATH to another folder",
    )
