#!/usr/bin/env python3
"""Makes the references with experts under tests/reference/ with Hugging Face transformers.

    python3 tests/reference/make_experts_reference.py [NAME ...]
                                               # torch 2.15, transformers 5.24; a minute

It writes a folder that `--load` and `--data` read for each of three tiny models (or only for those
that are named):

    mixtral     4 experts, 2 a token; one by one in the file; config.json as transformers 5 writes
                it
    qwen3_moe   8 experts, 3 a token, not renormalised; the first layer dense; head_dim != hidden /
                heads, tied head; experts stacked in the file, as transformers 5 can save them;
                config.json as transformers 4 wrote it
    deepseek_v3 latent attention; 8 experts in 4 groups, 2 groups and 3 experts a token, chosen with
                a bias; a shared expert; the first layer dense

and in each folder expected.json: for the auxiliary loss' coefficients 0 and 0.02, the losses
(cross-entropy alone), auxiliary losses and gradient norms of the steps that make_reference.py
describes, in float64 and in float32. The auxiliary loss is computed over a step's 8 samples.
(DeepSeek-V3 has none, and its biases stay as they are.)

deepseek_router.json: DeepSeek-V3's router (sigmoid, groups, a bias for the choice): logits, bias
and what it chooses, with which weights.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import load_file
from transformers import DeepseekV3Config, DeepseekV3ForCausalLM
from transformers import MixtralConfig, MixtralForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3TopkRouter
from transformers.models.mixtral import modeling_mixtral
from transformers.models.qwen3_moe import modeling_qwen3_moe

from make_reference import BATCH, HERE, SEQ, make_tokens, write_json

STEPS, COEFFICIENT = 6, 0.02
MODELS = {"mixtral": (MixtralForCausalLM, modeling_mixtral, "Mixtral"),
          "qwen3_moe": (Qwen3MoeForCausalLM, modeling_qwen3_moe, "Qwen3Moe"),
          "deepseek_v3": (DeepseekV3ForCausalLM, modeling_deepseek_v3, "DeepseekV3")}
COEFFICIENTS = {"mixtral": {0: "plain", COEFFICIENT: "aux"},
                "qwen3_moe": {0: "plain", COEFFICIENT: "aux"}, "deepseek_v3": {0: "plain"}}


def make_weights(model, seed):
    """Weights large enough that attention and routers are far from uniform; norms away from one."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, 0.3 if "embed" in name else 1.2 / p.shape[-1] ** 0.5)
    return model


def write_mixtral(folder):
    config = MixtralConfig(vocab_size=96, hidden_size=32, intermediate_size=40,
                           num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                           num_local_experts=4, num_experts_per_tok=2, bos_token_id=None,
                           eos_token_id=None, max_position_embeddings=256)
    make_weights(MixtralForCausalLM(config), 11).save_pretrained(folder)
    assert any(".experts.3.w1." in name for name in load_file(folder / "model.safetensors"))


def write_qwen3_moe(folder):
    config = Qwen3MoeConfig(vocab_size=80, hidden_size=32, intermediate_size=56,
                            moe_intermediate_size=24, num_hidden_layers=3, num_attention_heads=4,
                            num_key_value_heads=1, head_dim=12, num_experts=8,
                            num_experts_per_tok=3, norm_topk_prob=False, mlp_only_layers=[0],
                            tie_word_embeddings=True, max_position_embeddings=128)
    make_weights(Qwen3MoeForCausalLM(config), 12).save_pretrained(folder,
                                                                  save_original_format=False)
    assert any(name.endswith(".experts.gate_up_proj")
               for name in load_file(folder / "model.safetensors"))
    as_4 = {"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "decoder_sparse_step": 1, "head_dim": 12,
            "hidden_act": "silu", "hidden_size": 32, "initializer_range": 0.02,
            "intermediate_size": 56, "max_position_embeddings": 128, "max_window_layers": 28,
            "mlp_only_layers": [0], "model_type": "qwen3_moe", "moe_intermediate_size": 24,
            "norm_topk_prob": False, "num_attention_heads": 4, "num_experts": 8,
            "num_experts_per_tok": 3, "num_hidden_layers": 3, "num_key_value_heads": 1,
            "output_router_logits": False, "rms_norm_eps": 1e-06, "rope_scaling": None,
            "rope_theta": 10000.0, "router_aux_loss_coef": 0.001, "sliding_window": None,
            "tie_word_embeddings": True, "torch_dtype": "float32",
            "transformers_version": "4.51.0", "use_cache": True, "use_sliding_window": False,
            "vocab_size": 80}
    write_json(folder / "config.json", as_4)


def write_deepseek_v3(folder):
    config = DeepseekV3Config(vocab_size=72, hidden_size=32, intermediate_size=40,
                              moe_intermediate_size=16, num_hidden_layers=3, num_attention_heads=4,
                              num_key_value_heads=4, q_lora_rank=20, kv_lora_rank=12,
                              qk_nope_head_dim=6, qk_rope_head_dim=4, v_head_dim=8,
                              n_routed_experts=8, n_shared_experts=1, num_experts_per_tok=3,
                              n_group=4, topk_group=2, first_k_dense_replace=1,
                              routed_scaling_factor=1.5, num_mtp_layers=0,
                              max_position_embeddings=128, bos_token_id=None, eos_token_id=None)
    model = make_weights(DeepseekV3ForCausalLM(config), 13)
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.uniform_(-0.3, 0.3)
    model.save_pretrained(folder)


def keep_float64():
    """transformers computes norms, softmax, rotary angles and the auxiliary loss in float32
    whatever the dtype; here they follow the dtype."""
    softmax = torch.nn.functional.softmax

    def norm(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.variance_epsilon))

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def balance(logits, experts, top_k, attention_mask=None):
        scores = torch.cat([softmax(layer, dim=-1) for layer in logits])
        chosen = torch.nn.functional.one_hot(scores.topk(top_k).indices, experts)
        share = chosen.to(scores.dtype).sum(1).mean(0)
        return experts * (share * scores.mean(0)).sum()

    torch.nn.functional.softmax = lambda x, dim=None, dtype=None: softmax(x, dim=dim)
    torch.Tensor.float = lambda x: x
    for _, module, prefix in MODELS.values():
        getattr(module, prefix + "RMSNorm").forward = norm
        getattr(module, prefix + "RotaryEmbedding").forward = rotary
        module.load_balancing_loss_func = balance
    modeling_deepseek_v3.DeepseekV3TopkRouter.forward = route


def route(self, x):
    """DeepSeek-V3's router in x's dtype."""
    logits = x.view(-1, self.hidden_dim) @ self.weight.to(x.dtype).T
    scores = logits.sigmoid()
    by_group = (scores + self.e_score_correction_bias).view(len(scores), self.num_group, -1)
    groups = by_group.topk(2).values.sum(-1).topk(self.topk_group).indices
    allowed = torch.full_like(by_group, -torch.inf).scatter(
        1, groups[..., None].expand(-1, -1, by_group.shape[-1]), 0)
    experts = (by_group + allowed).flatten(1).topk(self.top_k).indices
    weights = scores.gather(1, experts)
    if self.norm_topk_prob:
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
    return logits, weights * self.routed_scaling_factor, experts


def train(folder, dtype, coefficient):
    model = MODELS[folder.name][0].from_pretrained(folder, attn_implementation="eager",
                                                   experts_implementation="eager", dtype=dtype)
    tokens = torch.from_numpy(np.fromfile(folder / "tokens.bin", dtype=np.uint16).astype(np.int64))
    matrices = [p for p in model.parameters() if p.dim() > 1]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": norms, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    result = {"loss": [], "aux_loss": [], "grad_norm": []}
    for step in range(STEPS):
        batch = torch.stack([tokens[k * SEQ:k * SEQ + SEQ + 1]
                             for k in range(step * BATCH, (step + 1) * BATCH)])
        out = model(batch[:, :-1], use_cache=False, output_router_logits=True)
        loss = torch.nn.functional.cross_entropy(out.logits.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        aux_loss = out.aux_loss if out.aux_loss is not None else torch.zeros(())
        (loss + coefficient * aux_loss).backward()
        result["grad_norm"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        result["loss"].append(float(loss.detach()))
        result["aux_loss"].append(float(aux_loss.detach()))
        optimizer.step()
    return result


def write_router():
    """24 experts in 6 groups, 2 groups and 4 experts a token. Rows of ordinary logits, of large
    ones, of ones whose sigmoids nearly underflow; biases of both signs, and all negative."""
    draw = np.random.default_rng(5)
    cases = []
    for renormalise, shift in [(True, 0.0), (False, 0.0), (True, -2.0)]:
        config = DeepseekV3Config(hidden_size=24, n_routed_experts=24, num_experts_per_tok=4,
                                  n_group=6, topk_group=2, norm_topk_prob=renormalise,
                                  routed_scaling_factor=2.5)
        router = DeepseekV3TopkRouter(config)
        logits = (draw.normal(size=(12, 24)) * np.repeat([1, 8, 1], 4)[:, None]
                  + np.repeat([0, 0, -40], 4)[:, None]).astype(np.float32)
        bias = (0.2 * draw.normal(size=24) + shift).astype(np.float32)
        router.weight.data = torch.eye(24)  # so that the logits are the input
        router.e_score_correction_bias.data = torch.from_numpy(bias)
        with torch.no_grad():
            _, weights, experts = router(torch.from_numpy(logits))
        cases.append({"renormalise": renormalise, "scaling": 2.5, "groups": 6, "top_groups": 2,
                      "logits": logits.tolist(), "bias": bias.tolist(),
                      "experts": experts.tolist(), "weights": weights.tolist()})
    (HERE / "deepseek_router.json").write_text(json.dumps(cases) + "\n")


def main():
    torch.set_num_threads(2)
    references = [("mixtral", write_mixtral, 96), ("qwen3_moe", write_qwen3_moe, 80),
                  ("deepseek_v3", write_deepseek_v3, 72)]
    references = [r for r in references if r[0] in sys.argv[1:] or len(sys.argv) == 1]
    if len(sys.argv) == 1:
        write_router()
    for name, write, vocab in references:
        folder = HERE / name
        folder.mkdir(exist_ok=True)
        write(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        (folder / "model.safetensors").chmod(0o644)
        make_tokens(vocab, STEPS * BATCH * SEQ + 1, 7).tofile(folder / "tokens.bin")
    results = {(name, c, "float32"): train(HERE / name, torch.float32, c)
               for name, _, _ in references for c in COEFFICIENTS[name]}
    keep_float64()
    for name, _, _ in references:
        expected = {"seq": SEQ, "global_batch": BATCH, "steps": STEPS, "aux_coef": COEFFICIENT}
        for c, kind in COEFFICIENTS[name].items():
            expected[kind] = {"float32": results[name, c, "float32"],
                              "float64": train(HERE / name, torch.float64, c)}
            for what in ("loss", "aux_loss", "grad_norm"):
                a, b = (expected[kind][d][what] for d in ("float32", "float64"))
                print(f"{name} {kind} {what}: {b[0]:.6f} .. {b[-1]:.6f}, float32 - float64 at "
                      f"most {max(abs(x - y) for x, y in zip(a, b)):.1e}")
        (HERE / name / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
