#!/usr/bin/env python3
"""Makes the references under tests/reference/ with Hugging Face transformers.

    python3 tests/reference/make_reference.py [NAME ...]   # torch 2.15, transformers 5.24; a minute

It writes a folder that `--load` and `--data` read for each of three tiny Llamas, a Mistral, a GPT-2
and two models with latent attention (or only for those that are named):

    gqa_untied    grouped-query attention, untied head; one fp32 file; config.json as
                  transformers 5 writes it
    tied_head_dim tied head, head_dim != hidden / heads, another rope_theta and rms_norm_eps; one
                  fp32 file; config.json as transformers 4 wrote it, with null for rope_scaling
    llama3_bf16   rope_type llama3 (the legacy key "type"), untied; bf16, two shards with an index;
                  config.json as transformers 4 wrote it
    mistral       a sliding window of 13 tokens, tied head; one fp32 file
    gpt2          feed-forward of another size than 4 h, tied head; one fp32 file
    latent        DeepSeek-V3 with dense layers only: all sizes of its heads differ, and
                  rms_norm_eps is not that of the latents' norms
    latent_no_q   DeepSeek-V2 with dense layers only, whose queries are not compressed

and in each folder expected.json: losses and gradient norms (before clipping) of AdamW steps, in
float64 and in float32, and the logits of the first 16 tokens in float64; of mistral also one step
in which the first 20 tokens see each other.

    step s: samples s*8 .. s*8+7 of tokens.bin (uint16), sample k = tokens[64 k .. 64 k + 64];
            loss = mean over 512 targets
    AdamW:  lr 1e-3, betas 0.9 0.95, eps 1e-8, decoupled weight decay 0.1 on matrices (embeddings
            too), none on norms; clip 1.0

random.json holds draws of common/core/random.h's generator, made here with NumPy.
"""

import json
import pathlib
import sys

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import (AutoModelForCausalLM, DeepseekV2Config, DeepseekV2ForCausalLM,
                          DeepseekV3Config, DeepseekV3ForCausalLM, GPT2Config, GPT2LMHeadModel,
                          LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM)
from transformers.models.deepseek_v2 import modeling_deepseek_v2
from transformers.models.deepseek_v3 import modeling_deepseek_v3
from transformers.models.llama import modeling_llama
from transformers.models.mistral import modeling_mistral

HERE = pathlib.Path(__file__).parent
SEQ, BATCH, LOGIT_TOKENS = 64, 8, 16


# ---- common/core/random.h in NumPy ---------------------------------------------------------------
def philox4x32(counter, key):
    """Ten rounds; counter: (4, n) uint64 holding 32-bit words, key: two ints. Returns (4, n)."""
    low = np.uint64(0xFFFFFFFF)
    k0, k1 = key
    for _ in range(10):
        a, b = np.uint64(0xD2511F53) * counter[0], np.uint64(0xCD9E8D57) * counter[2]
        counter = np.stack([(b >> np.uint64(32)) ^ counter[1] ^ np.uint64(k0), b & low,
                            (a >> np.uint64(32)) ^ counter[3] ^ np.uint64(k1), a & low])
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return counter


def fnv1a(data, value=0xCBF29CE484222325):
    for byte in data:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def draw_bits(seed, name, index):
    """Words `index` (an int array) of the stream (seed, name)."""
    key = fnv1a(seed.to_bytes(8, "little") + name.encode())
    index = np.asarray(index, dtype=np.uint64)
    block = index // np.uint64(4)
    zero = np.zeros_like(block)
    counter = np.stack([block & np.uint64(0xFFFFFFFF), block >> np.uint64(32), zero, zero])
    words = philox4x32(counter, (key & 0xFFFFFFFF, key >> 32))
    return np.take_along_axis(words, (index % np.uint64(4)).astype(np.int64)[None], axis=0)[0]


def draw_uniform(seed, name, index):
    bits = draw_bits(seed, name, index) >> np.uint64(8)
    return (bits + np.uint64(1)).astype(np.float64) / 2.0**24


def draw_normal(seed, name, index):
    """Box-Muller: elements 2i and 2i+1 share the uniforms 2i and 2i+1."""
    index = np.asarray(index, dtype=np.uint64)
    even = index - index % np.uint64(2)
    radius = np.sqrt(-2 * np.log(draw_uniform(seed, name, even)))
    angle = 2 * np.pi * draw_uniform(seed, name, even + np.uint64(1))
    return (radius * np.where(index % 2 == 0, np.cos(angle), np.sin(angle))).astype(np.float32)


def write_random():
    cases = []
    for seed, name, first in [(1, "model.layers.3.self_attn.q_proj.weight", 0),
                              (2**64 - 1, "", 2**34 - 4), (42, "a", 7)]:
        index = np.arange(first, first + 12, dtype=np.uint64)
        cases.append({"seed": seed, "name": name, "first": first,
                      "bits": [int(v) for v in draw_bits(seed, name, index)],
                      "uniform": [float(v) for v in draw_uniform(seed, name, index)],
                      "normal": [float(v) for v in draw_normal(seed, name, index)]})
    (HERE / "random.json").write_text(json.dumps(cases, indent=1) + "\n")


# ---- transformers in true float64 ----------------------------------------------------------------
def keep_float64():
    """transformers computes norms, softmax and rotary angles in float32 whatever the dtype; here
    they follow the dtype. The mask is transformers' own."""
    def norm(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(mean_square + self.variance_epsilon))

    def rotary(self, x, position_ids):
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos(), angles.sin()

    def attention(module, query, key, value, attention_mask, scaling, **unused):
        key = modeling_llama.repeat_kv(key, module.num_key_value_groups)
        value = modeling_llama.repeat_kv(value, module.num_key_value_groups)
        probabilities = (query @ key.transpose(2, 3) * scaling + attention_mask).softmax(-1)
        return (probabilities @ value).transpose(1, 2).contiguous(), probabilities

    def complex_rotary(self, x, position_ids):
        angles = position_ids[..., None].to(x.dtype) * self.inv_freq.to(x.dtype)
        return torch.polar(torch.ones_like(angles), angles)

    def rotate(q, k, angles):
        def rotated(x):
            pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2)) * angles.unsqueeze(1)
            return torch.view_as_real(pairs).flatten(3)
        return rotated(q), rotated(k)

    for modeling, name in [(modeling_llama, "Llama"), (modeling_mistral, "Mistral"),
                           (modeling_deepseek_v2, "DeepseekV2"),
                           (modeling_deepseek_v3, "DeepseekV3")]:
        getattr(modeling, name + "RMSNorm").forward = norm
        getattr(modeling, name + "RotaryEmbedding").forward = rotary
        modeling.eager_attention_forward = attention
    modeling_deepseek_v2.DeepseekV2RotaryEmbedding.forward = complex_rotary
    modeling_deepseek_v2.apply_rotary_emb = rotate


def run_steps(model, tokens, optimizers, steps):
    """Returns the losses and the gradient norms before clipping."""
    result = {"loss": [], "grad_norm": []}
    for step in range(steps):
        batch = torch.stack([tokens[k * SEQ:k * SEQ + SEQ + 1]
                             for k in range(step * BATCH, (step + 1) * BATCH)])
        out = model(batch[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(out.flatten(0, 1), batch[:, 1:].flatten())
        model.zero_grad()
        loss.backward()
        result["grad_norm"].append(float(torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)))
        result["loss"].append(float(loss.detach()))
        for optimizer in optimizers:
            optimizer.step()
    return result


def train(folder, dtype, steps):
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager", dtype=dtype)
    tokens = torch.from_numpy(np.fromfile(folder / "tokens.bin", dtype=np.uint16).astype(np.int64))
    with torch.no_grad():
        logits = model(tokens[None, :LOGIT_TOKENS], use_cache=False).logits[0]
    matrices = [p for p in model.parameters() if p.dim() == 2]
    norms = [p for p in model.parameters() if p.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                                   {"params": norms, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
    return run_steps(model, tokens, [optimizer], steps), logits


def step_with_prefix(folder, prefix):
    """The first step's loss and gradient norm if so many first tokens see each other, within the
    sliding window; their targets do not count."""
    model = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager",
                                                 dtype=torch.float64)
    tokens = torch.from_numpy(np.fromfile(folder / "tokens.bin", dtype=np.uint16).astype(np.int64))
    batch = torch.stack([tokens[k * SEQ:k * SEQ + SEQ + 1] for k in range(BATCH)])
    query, key = torch.arange(SEQ)[:, None], torch.arange(SEQ)[None]
    seen = ((key <= query) | (key < prefix)) & (key > query - model.config.sliding_window)
    hidden = torch.zeros(1, 1, SEQ, SEQ, dtype=torch.float64).masked_fill(~seen, -torch.inf)
    out = model(batch[:, :-1], attention_mask=hidden, use_cache=False).logits
    first = prefix - 1  # the last token of the prefix does not see its target
    loss = torch.nn.functional.cross_entropy(out[:, first:].flatten(0, 1),
                                             batch[:, 1 + first:].flatten())
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return {"tokens": prefix, "loss": float(loss.detach()), "grad_norm": float(norm)}


# ---- the checkpoints -----------------------------------------------------------------------------
def make_tokens(vocab, count, seed):
    """A noisy walk, so that there is something to learn: the next token is often a fixed function
    of the last two."""
    draw = np.random.default_rng(seed)
    tokens = [1, 2]
    while len(tokens) < count:
        learned = (3 * tokens[-1] + 5 * tokens[-2] + 7) % vocab
        tokens.append(int(learned if draw.random() < 0.7 else draw.integers(vocab)))
    return np.array(tokens, dtype=np.uint16)


def make_model(config, seed, embedding_std=0.5, make=LlamaForCausalLM):
    """Weights large enough that attention is far from uniform, and norms away from one."""
    torch.manual_seed(seed)
    model = make(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 1:
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, 1.5 / p.shape[1] ** 0.5 if "embed" not in name else embedding_std)
    return model


def as_transformers_4(config, rope_scaling, dtype):
    """config.json as transformers 4.4x writes it (fields in its order)."""
    return {"architectures": ["LlamaForCausalLM"], "attention_bias": False,
            "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2,
            "head_dim": config.head_dim, "hidden_act": "silu", "hidden_size": config.hidden_size,
            "initializer_range": 0.02, "intermediate_size": config.intermediate_size,
            "max_position_embeddings": config.max_position_embeddings, "mlp_bias": False,
            "model_type": "llama", "num_attention_heads": config.num_attention_heads,
            "num_hidden_layers": config.num_hidden_layers,
            "num_key_value_heads": config.num_key_value_heads, "pretraining_tp": 1,
            "rms_norm_eps": config.rms_norm_eps, "rope_scaling": rope_scaling,
            "rope_theta": config.rope_parameters["rope_theta"],
            "tie_word_embeddings": config.tie_word_embeddings, "torch_dtype": dtype,
            "transformers_version": "4.46.3", "use_cache": True, "vocab_size": config.vocab_size}


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def finish(folder):
    (folder / "generation_config.json").unlink()
    (folder / "model.safetensors").chmod(0o644)


def write_gqa_untied(folder):
    config = LlamaConfig(vocab_size=97, hidden_size=48, intermediate_size=88, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
                         rms_norm_eps=1e-5)
    make_model(config, 1).save_pretrained(folder)
    finish(folder)
    make_tokens(97, 64 * SEQ + 1, 1).tofile(folder / "tokens.bin")


def write_tied_head_dim(folder):
    config = LlamaConfig(vocab_size=128, hidden_size=40, intermediate_size=72, num_hidden_layers=2,
                         num_attention_heads=5, num_key_value_heads=1, head_dim=12,
                         max_position_embeddings=128, rms_norm_eps=1e-6, tie_word_embeddings=True,
                         rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    make_model(config, 2, embedding_std=0.2).save_pretrained(folder)
    finish(folder)
    write_json(folder / "config.json", as_transformers_4(config, None, "float32"))
    make_tokens(128, 64 * SEQ + 1, 2).tofile(folder / "tokens.bin")


def write_llama3_bf16(folder):
    scaling = {"factor": 8.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
               "original_max_position_embeddings": 32}
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=256,
                         rms_norm_eps=1e-5,
                         rope_parameters={"rope_type": "llama3", "rope_theta": 10000.0, **scaling})
    state = {name: p.detach().to(torch.bfloat16)
             for name, p in make_model(config, 3).named_parameters()}
    names = sorted(state)
    shards = {"model-00001-of-00002.safetensors": names[:12],
              "model-00002-of-00002.safetensors": names[12:]}
    for file, held in shards.items():
        save_file({name: state[name] for name in held}, folder / file, metadata={"format": "pt"})
        (folder / file).chmod(0o644)
    write_json(folder / "model.safetensors.index.json",
               {"metadata": {"total_size": sum(2 * t.numel() for t in state.values())},
                "weight_map": {name: file for file, held in shards.items() for name in held}})
    write_json(folder / "config.json",
               as_transformers_4(config, {**scaling, "type": "llama3"}, "bfloat16"))
    make_tokens(64, 32 * SEQ + 1, 3).tofile(folder / "tokens.bin")


def write_mistral(folder):
    config = MistralConfig(vocab_size=101, hidden_size=32, intermediate_size=56,
                           num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                           head_dim=8, max_position_embeddings=128, rms_norm_eps=1e-5,
                           tie_word_embeddings=True, sliding_window=13, bos_token_id=None,
                           eos_token_id=None)
    make_model(config, 5, embedding_std=0.2, make=MistralForCausalLM).save_pretrained(folder)
    finish(folder)
    make_tokens(101, 64 * SEQ + 1, 5).tofile(folder / "tokens.bin")


def write_gpt2(folder):
    config = GPT2Config(vocab_size=101, n_positions=80, n_embd=40, n_layer=2, n_head=5, n_inner=96,
                        bos_token_id=None, eos_token_id=None)
    torch.manual_seed(4)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        for name, p in model.named_parameters():
            if p.dim() == 2:  # a linear's weight is (inputs, outputs)
                p.normal_(0, 0.2 if "wte" in name or "wpe" in name else 1.5 / p.shape[0] ** 0.5)
            elif "ln_" in name and name.endswith("weight"):
                p.uniform_(0.5, 1.5)
            else:
                p.normal_(0, 0.2)
    model.save_pretrained(folder)
    finish(folder)
    make_tokens(101, 64 * SEQ + 1, 4).tofile(folder / "tokens.bin")


def write_latent(folder):
    config = DeepseekV3Config(vocab_size=89, hidden_size=40, intermediate_size=72,
                              num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=4,
                              q_lora_rank=28, kv_lora_rank=20, qk_nope_head_dim=10,
                              qk_rope_head_dim=6, v_head_dim=12, first_k_dense_replace=2,
                              n_routed_experts=8, max_position_embeddings=128, rms_norm_eps=1e-4,
                              num_mtp_layers=0, bos_token_id=None, eos_token_id=None)
    make_model(config, 5, make=DeepseekV3ForCausalLM).save_pretrained(folder)
    finish(folder)
    make_tokens(89, 64 * SEQ + 1, 5).tofile(folder / "tokens.bin")


def write_latent_no_q(folder):
    config = DeepseekV2Config(vocab_size=90, hidden_size=32, intermediate_size=56,
                              num_hidden_layers=2, num_attention_heads=2, q_lora_rank=None,
                              kv_lora_rank=24, qk_nope_head_dim=8, qk_rope_head_dim=8,
                              v_head_dim=16, first_k_dense_replace=2, num_experts_per_tok=2,
                              max_position_embeddings=128, tie_word_embeddings=True,
                              rope_parameters={"rope_type": "default", "rope_theta": 1000.0},
                              bos_token_id=None, eos_token_id=None)
    make_model(config, 6, 0.2, DeepseekV2ForCausalLM).save_pretrained(folder)
    finish(folder)
    make_tokens(90, 64 * SEQ + 1, 6).tofile(folder / "tokens.bin")


def main():
    torch.set_num_threads(2)
    write_random()
    references = [("gqa_untied", write_gqa_untied, 8), ("tied_head_dim", write_tied_head_dim, 8),
                  ("llama3_bf16", write_llama3_bf16, 4), ("mistral", write_mistral, 8),
                  ("gpt2", write_gpt2, 8), ("latent", write_latent, 8),
                  ("latent_no_q", write_latent_no_q, 8)]
    references = [r for r in references if r[0] in sys.argv[1:] or len(sys.argv) == 1]
    for name, write, _ in references:
        (HERE / name).mkdir(exist_ok=True)
        write(HERE / name)
    results = {name: {"float32": train(HERE / name, torch.float32, steps)[0]}
               for name, _, steps in references}
    keep_float64()
    for name, _, steps in references:
        results[name]["float64"], logits = train(HERE / name, torch.float64, steps)
        losses = results[name]["float64"]["loss"]
        difference = max(abs(a - b) for a, b in zip(results[name]["float32"]["loss"], losses))
        print(f"{name}: losses {losses[0]:.4f} .. {losses[-1]:.4f}, "
              f"largest difference float32 - float64 {difference:.1e}")
        if name == "mistral":
            results[name]["prefix"] = step_with_prefix(HERE / name, 20)
        expected = {"seq": SEQ, "global_batch": BATCH, "steps": steps, **results[name],
                    "logits": [[float(f"{v:.9g}") for v in row] for row in logits.tolist()]}
        (HERE / name / "expected.json").write_text(json.dumps(expected) + "\n")


if __name__ == "__main__":
    main()
