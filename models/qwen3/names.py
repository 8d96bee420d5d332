"""What Qwen3's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "query_norm": names.LAYER + "self_attn.q_norm.weight",
    "key_norm": names.LAYER + "self_attn.k_norm.weight",
}
