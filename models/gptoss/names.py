"""What GPT-OSS's tensors are called in GGUF files."""

from flm.models import names

GGUF = {
    **{name: theirs for name, theirs in names.GGUF.items() if name not in ("gate", "up", "down")},
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
