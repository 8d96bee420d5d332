"""What tensors are called in GGUF files and in Hugging Face folders: most decoders', and picture
towers'.
"""

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


def with_biases(table: Mapping[str, str]) -> dict[str, str]:
    """Each tensor's weight, and its bias as NAME_bias."""
    return {
        name + suffix: theirs + kind
        for name, theirs in table.items()
        for suffix, kind in (("", ".weight"), ("_bias", ".bias"))
    }


TOWER_GGUF = {
    "places": "v.position_embd.weight",
    **with_biases(
        {
            "patch": "v.patch_embd",
            "mixer_norm": "v.blk.{}.ln1",
            "mixed": "v.blk.{}.attn_qkv",
            "query": "v.blk.{}.attn_q",
            "key": "v.blk.{}.attn_k",
            "value": "v.blk.{}.attn_v",
            "output": "v.blk.{}.attn_out",
            "mlp_norm": "v.blk.{}.ln2",
            "gate": "v.blk.{}.ffn_gate",
            "up": "v.blk.{}.ffn_up",
            "down": "v.blk.{}.ffn_down",
            "norm": "v.post_ln",
        }
    ),
}
_LAYER = "encoder.layers.{}."
SIGLIP = {  # of a folder, behind whatever it calls the tower
    "places": "embeddings.position_embedding.weight",
    **with_biases(
        {
            "patch": "embeddings.patch_embedding",
            "mixer_norm": _LAYER + "layer_norm1",
            "query": _LAYER + "self_attn.q_proj",
            "key": _LAYER + "self_attn.k_proj",
            "value": _LAYER + "self_attn.v_proj",
            "output": _LAYER + "self_attn.out_proj",
            "mlp_norm": _LAYER + "layer_norm2",
            "up": _LAYER + "mlp.fc1",
            "down": _LAYER + "mlp.fc2",
            "norm": "post_layernorm",
        }
    ),
}
