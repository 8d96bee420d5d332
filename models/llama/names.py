"""What the llama family's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models import names

GGUF = {**names.GGUF, "rope_divisors": "rope_freqs.weight"}
HUGGING_FACE = names.HUGGING_FACE
