"""What Phi-3's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "qkv": "blk.{}.attn_qkv.weight",
    "gate_up": "blk.{}.ffn_up.weight",
    "short_divisors": "rope_factors_short.weight",
    "long_divisors": "rope_factors_long.weight",
}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "qkv": names.LAYER + "self_attn.qkv_proj.weight",
    "gate_up": names.LAYER + "mlp.gate_up_proj.weight",
}
