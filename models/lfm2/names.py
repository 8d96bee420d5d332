"""What LFM2's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "norm": "token_embd_norm.weight",  # despite its name the last norm
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
    "mixed": "blk.{}.shortconv.in_proj.weight",
    "convolution": "blk.{}.shortconv.conv.weight",
    "convolved_output": "blk.{}.shortconv.out_proj.weight",
}
# The convolutions' two projections: a KL of 2.7 with them at 4 bits, 0.4 without (tiny model).
SENSITIVE = names.SENSITIVE | {"mixed", "convolved_output"}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "norm": "model.embedding_norm.weight",
    "input_norm": names.LAYER + "operator_norm.weight",
    "output": names.LAYER + "self_attn.out_proj.weight",
    "mlp_norm": names.LAYER + "ffn_norm.weight",
    "gate": names.LAYER + "feed_forward.w1.weight",
    "up": names.LAYER + "feed_forward.w3.weight",
    "down": names.LAYER + "feed_forward.w2.weight",
    "query_norm": names.LAYER + "self_attn.q_layernorm.weight",
    "key_norm": names.LAYER + "self_attn.k_layernorm.weight",
    "mixed": names.LAYER + "conv.in_proj.weight",
    "convolution": names.LAYER + "conv.conv.weight",
    "convolved_output": names.LAYER + "conv.out_proj.weight",
}
