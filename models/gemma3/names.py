"""What Gemma 3's tensors are called in GGUF files and in Hugging Face folders (text part)."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
    "post_mixer_norm": "blk.{}.post_attention_norm.weight",
    "post_mlp_norm": "blk.{}.post_ffw_norm.weight",
}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "query_norm": names.LAYER + "self_attn.q_norm.weight",
    "key_norm": names.LAYER + "self_attn.k_norm.weight",
    "post_mixer_norm": names.LAYER + "post_attention_layernorm.weight",
    "mlp_norm": names.LAYER + "pre_feedforward_layernorm.weight",
    "post_mlp_norm": names.LAYER + "post_feedforward_layernorm.weight",
}
# Checkpoints that also see hold the text part beside a picture tower, under either prefix.
WITH_VISION = tuple(
    {name: theirs.replace("model.", prefix, 1) for name, theirs in HUGGING_FACE.items()}
    for prefix in ("language_model.model.", "model.language_model.")
)
