"""Which graph of a model an NPU would run: flm kernels build and flm validate --model ask."""

from pathlib import Path

from flm.settings import Settings

ROWS = "float32"  # of the graph; what an NPU keeps of them are bfloat16


def npu_graph(model: str, settings: Settings) -> tuple[Path, int]:
    """And how many rows a lane may hold. Fetches and compiles the model if need be."""
    from flm.engine.plan import context_length_of
    from flm.hub.prepare import prepare_model

    bundle, card = prepare_model(model, settings)
    context = context_length_of(bundle.context_length, card.context_length, settings.ctx_len)
    return bundle.blind().graph(ROWS, context), context + 1
