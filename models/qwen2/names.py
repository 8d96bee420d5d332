"""What Qwen2's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "query_bias": "blk.{}.attn_q.bias",
    "key_bias": "blk.{}.attn_k.bias",
    "value_bias": "blk.{}.attn_v.bias",
}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "query_bias": names.LAYER + "self_attn.q_proj.bias",
    "key_bias": names.LAYER + "self_attn.k_proj.bias",
    "value_bias": names.LAYER + "self_attn.v_proj.bias",
}
