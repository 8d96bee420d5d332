"""From a .gguf file or a Hugging Face folder to a bundle, streaming tensor by tensor.

Peak memory is a slab of the largest tensor, whatever the model's size: weights go straight into a
mapped file. Graphs for both row types are emitted over the same weights.
"""

import shutil
from collections.abc import Callable
from pathlib import Path

from flm.errors import BadModelFile, FlmError, NoRoom
from flm.graph.blocks import Numerics
from flm.graph.bundle import (
    ROW_DTYPES,
    WEIGHTS,
    Bundle,
    StaleBundle,
    graph_name,
    replace_folder,
    source_key,
)
from flm.graph.emit import Emitter, WeightStore
from flm.graph.weights.gguf import GgufFile
from flm.models.family import Emitted, Source, architecture, family_of, open_source
from flm.models.growth import bytes_at_most

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
        size = bytes_at_most(opened)
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
    emitter.save(store.path.parent / graph_name(numerics.row_dtype, is_short=is_short), name)
    return emitted


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
