"""What Gemma 4's tensors are called in GGUF files and in Hugging Face folders (text part)."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
    "post_mixer_norm": "blk.{}.post_attention_norm.weight",
    "post_mlp_norm": "blk.{}.post_ffw_norm.weight",
    "rope_divisors": "rope_freqs.weight",
    "scalar": "blk.{}.layer_output_scale.weight",
    # per-layer embeddings
    "table": "per_layer_token_embd.weight",
    "context": "per_layer_model_proj.weight",
    "context_norm": "per_layer_proj_norm.weight",
    "extra_gate": "blk.{}.inp_gate.weight",
    "extra_output": "blk.{}.proj.weight",
    "post_extra_norm": "blk.{}.post_norm.weight",
}
_LAYER = names.LAYER
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "query_norm": _LAYER + "self_attn.q_norm.weight",
    "key_norm": _LAYER + "self_attn.k_norm.weight",
    "post_mixer_norm": _LAYER + "post_attention_layernorm.weight",
    "mlp_norm": _LAYER + "pre_feedforward_layernorm.weight",
    "post_mlp_norm": _LAYER + "post_feedforward_layernorm.weight",
    "scalar": _LAYER + "layer_scalar",
    "table": "model.embed_tokens_per_layer.weight",
    "context": "model.per_layer_model_projection.weight",
    "context_norm": "model.per_layer_projection_norm.weight",
    "extra_gate": _LAYER + "per_layer_input_gate.weight",
    "extra_output": _LAYER + "per_layer_projection.weight",
    "post_extra_norm": _LAYER + "post_per_layer_input_norm.weight",
}
# The published checkpoints hold a picture and a sound tower beside the text part.
WITH_TOWERS = {
    name: theirs.replace("model.", "model.language_model.", 1)
    for name, theirs in HUGGING_FACE.items()
}
