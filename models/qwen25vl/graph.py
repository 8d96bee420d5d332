"""Qwen2.5-VL, text: Qwen2.5, where a token of a picture has three positions. Of a head's pairs the
first turn by when it comes, the next by its row, the last by its column: sections, one after the
other. (Qwen2-VL's text is the same.)
"""

from dataclasses import replace

from flm.graph.blocks import Blocks
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.decoder import sizes_of
from flm.models.family import Emitted, Source
from flm.models.qwen2.graph import emit_qwen2
from flm.models.qwen25vl import names
from flm.models.rope import rope_of
from flm.models.shape import Shape, contradiction, shape_of, text_config, within_window
from flm.models.weights import Weights

SECTIONS = (16, 24, 24)  # as published; a file that does not say has heads of this width


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    text = text_config(source)
    shape = within_window(source, shape_of(source, text), text)
    if shape.rope_scaling.get("type") == "mrope":  # nothing is scaled
        shape = replace(shape, rope_scaling=shape.rope_scaling | {"rope_type": "default"})
    moved = not isinstance(source, GgufFile) and names.MOVED["embedding"] in source
    theirs = names.MOVED if moved else names.HUGGING_FACE
    w = Weights(source, names.GGUF, theirs, sizes_of(shape))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    rope = rope_of(w, shape)
    rotary = b.rotary(rope.frequencies, shape.context_length, magnitude=rope.magnitude)
    if b.sees:
        sections = _sections(source, shape)
        rotary = b.rotary_seen(rotary, sections, shape.rotary_width, interleaved=False)
    return emit_qwen2(b, w, shape, rotary)


def _sections(source: Source, shape: Shape) -> tuple[int, int, int]:
    """How many pairs turn by time, by row, by column."""
    if isinstance(source, GgufFile):
        architecture = source.text("general.architecture")
        said = source.metadata.get(f"{architecture}.rope.dimension_sections", SECTIONS)
    else:
        said = shape.rope_scaling.get("mrope_section", SECTIONS)
    try:
        time, row, column = (int(each) for each in list(said)[:3])
    except (TypeError, ValueError):
        time = row = column = -1
    if min(time, row, column) < 0 or 2 * (time + row + column) != shape.rotary_width:
        what = f"heads that turn by {said!r} pairs, of {shape.rotary_width // 2}"
        raise contradiction(source.path, what)
    return time, row, column
