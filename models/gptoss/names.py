"""What GPT-OSS's tensors are called in GGUF files and in Hugging Face folders."""

from flm.models import names

GGUF = {
    **names.GGUF,
    "mlp_norm": "blk.{}.post_attention_norm.weight",
    "query_bias": "blk.{}.attn_q.bias",
    "key_bias": "blk.{}.attn_k.bias",
    "value_bias": "blk.{}.attn_v.bias",
    "output_bias": "blk.{}.attn_output.bias",
    "sinks": "blk.{}.attn_sinks.weight",
    "router": "blk.{}.ffn_gate_inp.weight",
    "router_bias": "blk.{}.ffn_gate_inp.bias",
    "experts_gate": "blk.{}.ffn_gate_exps.weight",
    "experts_gate_bias": "blk.{}.ffn_gate_exps.bias",
    "experts_up": "blk.{}.ffn_up_exps.weight",
    "experts_up_bias": "blk.{}.ffn_up_exps.bias",
    "experts_down": "blk.{}.ffn_down_exps.weight",
    "experts_down_bias": "blk.{}.ffn_down_exps.bias",
}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "query_bias": names.LAYER + "self_attn.q_proj.bias",
    "key_bias": names.LAYER + "self_attn.k_proj.bias",
    "value_bias": names.LAYER + "self_attn.v_proj.bias",
    "output_bias": names.LAYER + "self_attn.o_proj.bias",
    "sinks": names.LAYER + "self_attn.sinks",
    "router": names.LAYER + "mlp.router.weight",
    "router_bias": names.LAYER + "mlp.router.bias",
    "experts_gate_up": names.LAYER + "mlp.experts.gate_up_proj",
    "experts_gate_up_bias": names.LAYER + "mlp.experts.gate_up_proj_bias",
    "experts_down": names.LAYER + "mlp.experts.down_proj",
    "experts_down_bias": names.LAYER + "mlp.experts.down_proj_bias",
}
