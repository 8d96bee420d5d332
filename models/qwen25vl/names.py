"""What Qwen2.5-VL's tensors are called: as Qwen2's in GGUF files and in the folders it is published
in; transformers 5 puts those of its text part elsewhere.
"""

from flm.models.qwen2 import names

GGUF = names.GGUF
HUGGING_FACE = names.HUGGING_FACE
MOVED = {
    name: theirs.replace("model.", "model.language_model.", 1)
    for name, theirs in HUGGING_FACE.items()
}
