"""What Qwen3.5's tensors are called in GGUF files and in Hugging Face folders (text part)."""

from flm.models import names

GGUF = {
    "embedding": "token_embd.weight",
    "norm": "output_norm.weight",
    "head": "output.weight",
    "input_norm": "blk.{}.attn_norm.weight",
    "mlp_norm": "blk.{}.post_attention_norm.weight",
    "gate": "blk.{}.ffn_gate.weight",
    "up": "blk.{}.ffn_up.weight",
    "down": "blk.{}.ffn_down.weight",
    # full attention
    "query": "blk.{}.attn_q.weight",
    "key": "blk.{}.attn_k.weight",
    "value": "blk.{}.attn_v.weight",
    "output": "blk.{}.attn_output.weight",
    "query_norm": "blk.{}.attn_q_norm.weight",
    "key_norm": "blk.{}.attn_k_norm.weight",
    # the gated delta rule
    "mixed": "blk.{}.attn_qkv.weight",
    "z": "blk.{}.attn_gate.weight",
    "a": "blk.{}.ssm_alpha.weight",
    "b": "blk.{}.ssm_beta.weight",
    "decay_rate": "blk.{}.ssm_a",
    "decay_bias": "blk.{}.ssm_dt.bias",
    "convolution": "blk.{}.ssm_conv1d.weight",
    "delta_norm": "blk.{}.ssm_norm.weight",
    "delta_output": "blk.{}.ssm_out.weight",
}
_LAYER = "model.layers.{}."
HUGGING_FACE = {
    "embedding": "model.embed_tokens.weight",
    "norm": "model.norm.weight",
    "head": "lm_head.weight",
    "input_norm": _LAYER + "input_layernorm.weight",
    "mlp_norm": _LAYER + "post_attention_layernorm.weight",
    "gate": _LAYER + "mlp.gate_proj.weight",
    "up": _LAYER + "mlp.up_proj.weight",
    "down": _LAYER + "mlp.down_proj.weight",
    "query": _LAYER + "self_attn.q_proj.weight",
    "key": _LAYER + "self_attn.k_proj.weight",
    "value": _LAYER + "self_attn.v_proj.weight",
    "output": _LAYER + "self_attn.o_proj.weight",
    "query_norm": _LAYER + "self_attn.q_norm.weight",
    "key_norm": _LAYER + "self_attn.k_norm.weight",
    "mixed": _LAYER + "linear_attn.in_proj_qkv.weight",
    "z": _LAYER + "linear_attn.in_proj_z.weight",
    "a": _LAYER + "linear_attn.in_proj_a.weight",
    "b": _LAYER + "linear_attn.in_proj_b.weight",
    "decay_rate": _LAYER + "linear_attn.A_log",
    "decay_bias": _LAYER + "linear_attn.dt_bias",
    "convolution": _LAYER + "linear_attn.conv1d.weight",
    "delta_norm": _LAYER + "linear_attn.norm.weight",
    "delta_output": _LAYER + "linear_attn.out_proj.weight",
}
# What the delta rule reads goes into its state and stays there.
SENSITIVE = names.SENSITIVE | {"mixed", "z", "a", "b", "delta_output"}
