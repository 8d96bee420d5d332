"""What Qwen2.5-VL's tensors are called: as Qwen2's in GGUF files and in the folders it is published
in; transformers 5 puts those of its text part elsewhere.
"""

from flm.models.names import with_vision
from flm.models.qwen2 import names

GGUF = names.GGUF
HUGGING_FACE = names.HUGGING_FACE
MOVED = with_vision(HUGGING_FACE)
