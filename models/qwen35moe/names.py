"""What tensors are called where Qwen3.5's MLP is a mixture of experts."""

from flm.models.names import LAYER
from flm.models.qwen35 import names

GGUF = {
    **names.GGUF,
    "gate": "blk.{}.ffn_gate_shexp.weight",
    "up": "blk.{}.ffn_up_shexp.weight",
    "down": "blk.{}.ffn_down_shexp.weight",
    "shared_gate": "blk.{}.ffn_gate_inp_shexp.weight",
    "router": "blk.{}.ffn_gate_inp.weight",
    "experts_gate": "blk.{}.ffn_gate_exps.weight",
    "experts_up": "blk.{}.ffn_up_exps.weight",
    "experts_down": "blk.{}.ffn_down_exps.weight",
}
HUGGING_FACE = {
    **names.HUGGING_FACE,
    "gate": LAYER + "mlp.shared_expert.gate_proj.weight",
    "up": LAYER + "mlp.shared_expert.up_proj.weight",
    "down": LAYER + "mlp.shared_expert.down_proj.weight",
    "shared_gate": LAYER + "mlp.shared_expert_gate.weight",
    "router": LAYER + "mlp.gate.weight",
    "experts_gate_up": LAYER + "mlp.experts.gate_up_proj",
    "experts_down": LAYER + "mlp.experts.down_proj",
}
