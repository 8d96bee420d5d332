"""What SmolLM3's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models.names import GGUF, HUGGING_FACE

__all__ = ["GGUF", "HUGGING_FACE"]
