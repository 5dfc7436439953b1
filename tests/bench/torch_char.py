"""PyTorch's counterpart of `00_single_gpu --model char --lr-schedule cosine --no-verify`: does the
same model learn as fast?

Everything that matters for convergence is the same: initial weights (drawn as in
common/core/random.cpp), samples and their order (common/train/data.cpp, also with --shuffle),
AdamW, clipping, schedule, and the loss on the whole validation file. Only the precision differs:
here autocast to bf16 with fp32 weights and an fp32 residual stream; in ours, --dtype bf16 keeps
activations in bf16 and master weights in fp32. There is no dropout.

  python3 tests/bench/torch_char.py --train train.txt --val val.txt --val-every 250 \\
      --steps 2000 --lr 1e-3 --warmup 100
  build/cuda/00_single_gpu --model char --dtype bf16 --micro-batch 64 --data train.txt \\
      --val-data val.txt --val-every 250 --steps 2000 --lr 1e-3 --lr-schedule cosine \\
      --warmup 100 --no-verify

Prints the lines that 00_single_gpu prints; --json writes the same fields.
"""
import argparse
import contextlib
import dataclasses
import json
import math
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

parser = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
parser.add_argument("--train", required=True, help="text; its bytes are the tokens")
parser.add_argument("--val")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--lr", type=float, default=1e-3)
parser.add_argument("--warmup", type=int, default=100)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--seq", type=int, default=256)
parser.add_argument("--val-every", type=int, default=100)
parser.add_argument("--seed", type=int, default=1)
parser.add_argument("--shuffle", action="store_true")
parser.add_argument("--device", choices=("cuda", "cpu"),
                    default="cuda" if torch.cuda.is_available() else "cpu")
parser.add_argument("--dtype", choices=("bf16", "fp32"), help="default: bf16 on cuda, fp32 on cpu")
parser.add_argument("--fp8", choices=("tensorwise", "rowwise"),
                    help="multiply all linears but the head in fp8, by torchao; on a CPU emulated")
parser.add_argument("--load", help="start from a directory that 00_single_gpu --save wrote "
                                   "(needs safetensors)")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--json")
args = parser.parse_args()
L, h, H, D, FF, V = 6, 384, 6, 64, 1024, 256  # preset char, whose K is H
S = args.seq
bf16 = (args.dtype or ("bf16" if args.device == "cuda" else "fp32")) == "bf16"


# ---- our random numbers: Philox4x32-10, keyed by seed and name (common/core/random.cpp) ----------
MASK = 0xFFFFFFFF


def bits(name, index):
    """Words `index` (int64) of the stream (--seed, name); int64 products wrap, and their low and
    high words are still right."""
    key = 0xCBF29CE484222325
    for byte in args.seed.to_bytes(8, "little") + name.encode():
        key = ((key ^ byte) * 0x100000001B3) % 2**64
    k0, k1 = key & MASK, key >> 32
    block = index // 4
    x = [block & MASK, block >> 32, torch.zeros_like(block), torch.zeros_like(block)]
    for _ in range(10):
        a, b = x[0] * 0xD2511F53, x[2] * 0xCD9E8D57
        x = [(b >> 32 & MASK) ^ x[1] ^ k0, b & MASK, (a >> 32 & MASK) ^ x[3] ^ k1, a & MASK]
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return torch.stack(x).gather(0, (index % 4)[None])[0]


def normal(name, count):
    uniform = ((bits(name, torch.arange(count)) >> 8) + 1).double() * 2.0**-24
    if count % 2:
        raise ValueError("an odd number of draws")
    radius, angle = (-2 * uniform[0::2].log()).sqrt(), 2 * math.pi * uniform[1::2]
    return torch.stack((radius * angle.cos(), radius * angle.sin()), 1).flatten().float()


def permutation(size, name):
    """common/train/data.cpp: a Feistel network on the next power of four, repeated until the result
    is below `size`."""
    half = max(1, ((size - 1).bit_length() + 1) // 2)
    mask, todo, result = (1 << half) - 1, torch.arange(size), torch.arange(size)
    while len(todo):
        x = result[todo]
        for r in range(8):
            left, right = x >> half, x & mask
            x = right << half | (left ^ (bits(name, (r << 40) | right) & mask))
        result[todo] = x
        todo = todo[x >= size]
    return result


# ---- the model -----------------------------------------------------------------------------------
def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(h, eps=1e-5), nn.RMSNorm(h, eps=1e-5)
        self.qkv, self.o = nn.Linear(h, 3 * H * D, bias=False), nn.Linear(H * D, h, bias=False)
        self.gate_up, self.down = nn.Linear(h, 2 * FF, bias=False), nn.Linear(FF, h, bias=False)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        q, k, v = (t.view(B, T, H, D).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(rotate(q, cos, sin).to(v.dtype),
                                           rotate(k, cos, sin).to(v.dtype), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, H * D))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class Llama(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(V, h)
        self.layers = nn.ModuleList(Layer() for _ in range(L))
        self.norm, self.head = nn.RMSNorm(h, eps=1e-5), nn.Linear(h, V, bias=False)
        angle = torch.outer(torch.arange(S).float(), 10000 ** (-torch.arange(0, D, 2).float() / D))
        self.register_buffer("cos", angle.cos())
        self.register_buffer("sin", angle.sin())

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).float().view(-1, V), targets.reshape(-1))


def named_weights(model):
    """(our tensor, the Hugging Face names whose rows it stacks)"""
    yield model.embedding.weight, ["model.embed_tokens"]
    for i, layer in enumerate(model.layers):
        at = f"model.layers.{i}."
        yield layer.norm1.weight, [at + "input_layernorm"]
        yield layer.qkv.weight, [at + f"self_attn.{x}_proj" for x in "qkv"]
        yield layer.o.weight, [at + "self_attn.o_proj"]
        yield layer.norm2.weight, [at + "post_attention_layernorm"]
        yield layer.gate_up.weight, [at + "mlp.gate_proj", at + "mlp.up_proj"]
        yield layer.down.weight, [at + "mlp.down_proj"]
    yield model.norm.weight, ["model.norm"]
    yield model.head.weight, ["lm_head"]


model = Llama()
saved = {}
if args.load:
    from safetensors.torch import load_file
    saved = load_file(args.load + "/model.safetensors")
with torch.no_grad():
    for weight, names in named_weights(model):
        for part, name in zip(weight.chunk(len(names)), names):
            name += ".weight"
            if saved:
                part.copy_(saved[name])
            elif part.dim() == 2:  # norms are 1 already
                drawn = normal(name, part.numel()) * torch.tensor(0.02)
                part.copy_(drawn.view(part.shape))
model.to(args.device)
if args.fp8:  # like 08_mixed_precision --recipe tensor and row
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training
    config = dataclasses.replace(Float8LinearConfig.from_recipe_name(args.fp8),
                                 emulate=args.device == "cpu")
    convert_to_float8_training(model, config=config,
                               module_filter_fn=lambda _, name: name != "head")
run_model = torch.compile(model) if args.compile else model
matrices = [p for p in model.parameters() if p.dim() == 2]
norms = [p for p in model.parameters() if p.dim() == 1]
optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1},
                               {"params": norms, "weight_decay": 0.0}],
                              lr=args.lr, betas=(0.9, 0.95), eps=1e-8, fused=True)


def autocast():
    return torch.autocast(args.device, torch.bfloat16) if bf16 else contextlib.nullcontext()


# ---- the data ------------------------------------------------------------------------------------
class Samples:
    """Sample k is tokens[k*S .. k*S+S], k modulo their number; with --shuffle each pass has its own
    order."""

    def __init__(self, path, shuffle):
        self.tokens = torch.frombuffer(bytearray(open(path, "rb").read()),
                                       dtype=torch.uint8).to(args.device)
        self.count, self.shuffle, self.orders = (len(self.tokens) - 1) // S, shuffle, {}
        if self.count < 1:
            raise SystemExit(f"error: {path}: fewer than {S + 1} bytes")

    def place(self, k):
        if not self.shuffle:
            return k % self.count
        number = k // self.count
        if number not in self.orders:
            self.orders = {number - 1: self.orders.get(number - 1),
                           number: permutation(self.count, f"shuffle {number}").tolist()}
        return self.orders[number][k % self.count]

    def batch(self, first, count):
        begin = torch.tensor([self.place(k) * S for k in range(first, first + count)],
                             device=args.device)
        tokens = self.tokens[begin[:, None] + torch.arange(S + 1, device=args.device)].long()
        return tokens[:, :-1], tokens[:, 1:]


@torch.no_grad()
def validation_loss():
    total = torch.zeros((), dtype=torch.float64, device=args.device)
    for first in range(0, val.count, args.batch):
        count = min(args.batch, val.count - first)
        with autocast():
            total += run_model(*val.batch(first, count)).double() * count
    return total.item() / val.count


def learning_rate(step):  # common/model/optimizer.cpp
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = min((step - args.warmup) / max(args.steps - args.warmup, 1), 1.0)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * progress)))


train = Samples(args.train, args.shuffle)
val = Samples(args.val, False) if args.val else None
print(f"PyTorch {torch.__version__}{' compiled' if args.compile else ''} on {args.device}, "
      f"{'bf16 autocast' if bf16 else 'fp32'}{', fp8 ' + args.fp8 if args.fp8 else ''}: "
      f"{sum(p.numel() for p in model.parameters()) / 1e6:.3f} M parameters, "
      f"{args.batch} x {S} tokens a step")
lines, best, validation, seconds = [], (math.inf, 0), None, []
for step in range(1, args.steps + 1):
    begin, lr = time.perf_counter(), learning_rate(step - 1)
    for group in optimizer.param_groups:
        group["lr"] = lr
    with autocast():
        loss = run_model(*train.batch((step - 1) * args.batch, args.batch))
    loss.backward()
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss, norm = loss.item(), norm.item()
    seconds.append(time.perf_counter() - begin)
    rate = args.batch * S / seconds[-1]
    median = sorted(seconds[3:] or seconds)[len(seconds[3:] or seconds) // 2]
    print(f"step {step:>5}   loss {loss:.4f}   grad norm {norm:.3f}   lr {lr:.2e}   "
          f"{rate:>8.0f} tokens/s   {median * (args.steps - step):.0f} s left", flush=True)
    lines.append({"step": step, "loss": loss, "grad_norm": norm, "lr": lr,
                  "step_ms": seconds[-1] * 1e3, "tokens_per_second": rate})
    if val and (step % args.val_every == 0 or step == args.steps):
        lines[-1]["val_loss"] = last = validation_loss()
        best = min(best, (last, step))
        validation = {"best": best[0], "best_step": best[1], "last": last}
        print(f"validation at step {step}: loss {last:.4f} (best {best[0]:.4f} at step {best[1]})",
              flush=True)
if args.json:
    summary = {"torch": torch.__version__, "compiled": args.compile, "validation": validation,
               "speed": {"step_ms": median * 1e3, "tokens_per_second": args.batch * S / median}
               if seconds else None}
    with open(args.json, "w") as out:
        out.write("\n".join(json.dumps(line) for line in lines + [{"summary": summary}]) + "\n")
