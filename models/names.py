"""What most decoders' tensors are called in GGUF files and in Hugging Face folders."""

from collections.abc import Mapping

GGUF = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "input_norm": "blk.{}.attn_norm.weight",
    "query": "blk.{}.attn_q.weight",
    "key": "blk.{}.attn_k.weight",
    "value": "blk.{}.attn_v.weight",
    "output": "blk.{}.attn_output.weight",
    "mlp_norm": "blk.{}.ffn_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
}
LAYER = "model.layers.{}."
HUGGING_FACE = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "input_norm": LAYER + "input_layernorm.weight",
    "query": LAYER + "self_attn.q_proj.weight",
    "key": LAYER + "self_attn.k_proj.weight",
    "value": LAYER + "self_attn.v_proj.weight",
    "output": LAYER + "self_attn.o_proj.weight",
    "mlp_norm": LAYER + "post_attention_layernorm.weight",
    "gate": LAYER + "mlp.gate_proj.weight",
    "up": LAYER + "mlp.up_proj.weight",
    "down": LAYER + "mlp.down_proj.weight",
}
# Kept at 8 bits where others are rounded to 4. Of all others "down" costs SmolLM2 most: a KL of
# 0.42 with it at 4 bits, 0.15 without; values, or the first and the last layer, hardly matter.
SENSITIVE = frozenset({"embedding", "head", "down"})


def with_vision(table: Mapping[str, str]) -> dict[str, str]:
    """Of a folder that holds a picture tower beside the text part."""
    return {
        name: theirs.replace("model.", "model.language_model.", 1) for name, theirs in table.items()
    }
