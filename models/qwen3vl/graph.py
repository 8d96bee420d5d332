"""Qwen3-VL, text: Qwen3, where a token of a picture has three positions, and the rows of a picture
have further parts, each for one of the first layers (deepstack).
"""

from flm.errors import BadModelFile
from flm.graph.blocks import Blocks
from flm.graph.emit import Emitter
from flm.graph.layers import Numerics
from flm.graph.weights.gguf import GgufFile
from flm.models.family import Emitted, Source
from flm.models.names import with_vision
from flm.models.qwen3 import names
from flm.models.qwen3.graph import emit_qwen3, weights_of
from flm.models.rope import sections_of
from flm.models.shape import Shape, contradiction, shape_of, text_config

PUBLISHED = with_vision(names.HUGGING_FACE)


def emit(source: Source, emitter: Emitter, numerics: Numerics) -> Emitted:
    shape = shape_of(source, text_config(source))
    b = Blocks(emitter, numerics, epsilon=shape.epsilon)
    w = weights_of(source, shape, PUBLISHED)
    sections, deep = _sections(source, shape), _deep(source, shape)
    return emit_qwen3(b, w, shape, sections=sections, deep=deep)


def _sections(source: Source, shape: Shape) -> tuple[int, ...]:
    if isinstance(source, GgufFile):
        said = source.metadata.get("qwen3vl.rope.dimension_sections")
        return sections_of(said, shape)
    return sections_of(shape.rope_scaling.get("mrope_section"), shape)


def _deep(source: Source, shape: Shape) -> int:
    """How many further parts a picture's rows have."""
    if isinstance(source, GgufFile):
        count = int(source.number("qwen3vl.n_deepstack_layers", 0))
    else:
        try:
            count = len(source.config["vision_config"].get("deepstack_visual_indexes") or ())
        except (KeyError, TypeError, AttributeError) as error:
            raise BadModelFile(f"config.json: its vision_config: {error!r}") from error
    if not 0 <= count < shape.layers:
        raise contradiction(source.path, f"{count} layers of {shape.layers} take parts of pictures")
    return count
