#include "latent.h"

#include "activation.h"
#include "core/error.h"
#include "core/ops_latent.h"

namespace ultrascale {
namespace {

constexpr float latent_eps = 1e-6f;

Shape with_last(Shape shape, int64_t last) {
    shape.back() = last;
    return shape;
}

// Columns first .. first + count - 1 of x, as a tensor of their own.
Tensor columns_of(const Tensor& x, int64_t first, int64_t count) {
    Tensor part = activation(with_last(x.shape(), count), x.dtype());
    ops::copy_columns(part, 0, x, first, count);
    return part;
}

}  // namespace

LatentAttention::LatentAttention(ParameterList& list, const LlamaConfig& config,
                                 const ModuleFactories& factories, const ModulePath& path,
                                 bool recompute)
    : sizes_(config.latent),
      heads_(factories.heads),
      head_dim_(config.head_dim),
      recompute_(recompute),
      frequencies_(Tensor::from_host<float>(rope_frequencies(config), {sizes_.rope_dim / 2},
                                            Memory::workspace)),
      enter_(factories.shared_by_heads.enter),
      leave_(factories.shared_by_heads.leave) {
    const std::vector<std::string>& summed_over = factories.shared_by_heads.summed_over;
    std::vector<Parameter*> down;
    const auto add_down = [&](const char* name, int64_t rows) {
        down.push_back(list.add({.name = path.part(name).weight(),
                                 .shape = {rows, config.hidden},
                                 .init_std = float(config.init_std),
                                 .replica_groups = summed_over}));
    };
    const auto norm = [&](const char* name, int64_t size) {
        return std::make_unique<Norm>(list.add({.name = path.part(name).weight(),
                                                .shape = {size},
                                                .init = Init::ones,
                                                .decays = false,
                                                .replica_groups = summed_over}),
                                      latent_eps);
    };
    const auto up = [&](const char* name, int64_t rows, int64_t columns) {
        return factories.linear(list, factories, path, LinearRole::column,
                                {{{name, rows}}, columns});
    };
    if (sizes_.q_rank > 0) add_down("q_a_proj", sizes_.q_rank);
    add_down("kv_a_proj_with_mqa", sizes_.kv_rank + sizes_.rope_dim);
    down_ = factories.gemm(list, path, std::move(down), LinearRole::column);
    if (sizes_.q_rank > 0) {
        q_norm_ = norm("q_a_layernorm", sizes_.q_rank);
        q_up_ = up("q_b_proj", config.q_size(), sizes_.q_rank);
    } else {
        q_up_ = up("q_proj", config.q_size(), config.hidden);
    }
    kv_norm_ = norm("kv_a_layernorm", sizes_.kv_rank);
    kv_up_ = up("kv_b_proj", config.heads * (sizes_.nope_dim + sizes_.v_dim), sizes_.kv_rank);
    attention_ = factories.attention(path);
    o_proj_ = factories.linear(list, factories, path, LinearRole::row,
                               {{{"o_proj", config.hidden}}, config.o_size()});
}

LatentAttention::Latents LatentAttention::latents(Tensor x, Saved& saved, Context& context) {
    Tensor all = down_->forward(x, saved["latents"], context);  // (..., Rq + Rkv + R)
    const int64_t Rq = sizes_.q_rank, Rkv = sizes_.kv_rank;
    if (Rq > 0) x = columns_of(all, 0, Rq);
    return {std::move(x), columns_of(all, Rq, Rkv), columns_of(all, Rq + Rkv, sizes_.rope_dim)};
}

LatentAttention::Heads LatentAttention::heads(Latents from, Saved& saved, Context& context) {
    const int64_t B = context.batch.sequences(), T = context.batch.length(), H = heads_,
                  P = sizes_.nope_dim, R = sizes_.rope_dim, V = sizes_.v_dim;
    const Tensor& positions = context.batch.positions;
    if (q_norm_) from.q = q_norm_->forward(from.q, saved["q_a_layernorm"], context);
    const Tensor q = q_up_->forward(from.q, saved["q_up"], context).view({B, T, H, head_dim_});
    from.q = {};
    ops::rotate_pairs(q, positions, frequencies_);
    from.kv = kv_norm_->forward(from.kv, saved["kv_a_layernorm"], context);
    const Tensor kv = kv_up_->forward(from.kv, saved["kv_up"], context).view({B, T, H, P + V});
    from.kv = {};
    if (enter_) from.key = enter_(from.key);
    from.key = columns_of(from.key, 0, R).view({B, T, 1, R});  // to rotate; `saved` has the other
    ops::rotate_pairs(from.key, positions, frequencies_);

    const Tensor k = activation_like(q),
                 v = Tensor::zeros(q.shape(), q.dtype(), Memory::activation);
    ops::copy_columns(k, 0, kv, 0, P);
    ops::copy_columns(k, P, from.key, 0, R);  // to all heads
    ops::copy_columns(v, 0, kv, P, V);
    return {q, k, v};
}

Tensor LatentAttention::forward(Tensor x, const Tensor& residual, Saved& saved, Context& context) {
    Latents made = latents(std::move(x), saved, context);
    if (recompute_) saved["latents"].keep("key", made.key);
    auto [q, k, v] = heads(std::move(made), saved, context);
    Saved& core = saved["attention"];
    Tensor o = attention_->forward(q, k, v, core, context);  // (B, T, H, D)
    // What backward puts back: an empty tensor holds its place. The padded o is made of o_proj's x.
    if (core.has("o")) core.keep("o", {});
    if (recompute_) {
        for (const char* name : {"q", "k", "v"}) core.keep(name, {});
        saved["q_up"].drop("x"), saved["kv_up"].drop("x");
    }
    q = {}, k = {}, v = {};
    o = cut(o);
    return o_proj_->forward(o, saved["o_proj"], context, residual);
}

Tensor LatentAttention::backward(const Tensor& dy, Saved& saved, Context& context,
                                 WeightGradient when) {
    Saved& core = saved["attention"];
    Tensor o;
    if (core.has("o")) o = saved["o_proj"].get("x");
    Tensor d_o = o_proj_->backward(dy, saved["o_proj"], context, when);  // (B, T, H V)
    if (o) core.keep("o", padded(o)), o = {};
    d_o = padded(d_o);
    if (recompute_) {
        const TraceName again(TraceName::pass, "recomputed forward");
        const Tensor q = q_norm_ ? saved["q_a_layernorm"].get("x") : saved["latents"].get("x");
        auto [q_again, k, v] = heads(
            {q, saved["kv_a_layernorm"].get("x"), saved["latents"].take("key")}, saved, context);
        core.keep("q", q_again), core.keep("k", k), core.keep("v", v);
    }
    auto [dq, dk, dv] = attention_->backward(d_o, core, context);  // (B, T, H, D)
    d_o = {};
    return latents_backward(std::move(dq), std::move(dk), std::move(dv), saved, context, when);
}

Tensor LatentAttention::latents_backward(Tensor dq, Tensor dk, Tensor dv, Saved& saved,
                                         Context& context, WeightGradient when) {
    const int64_t B = dq.size(0), T = dq.size(1), H = heads_, P = sizes_.nope_dim,
                  R = sizes_.rope_dim, V = sizes_.v_dim, Rq = sizes_.q_rank, Rkv = sizes_.kv_rank;
    const Tensor& positions = context.batch.positions;
    Tensor dkv = activation({B, T, H, P + V}, dk.dtype()),
           dkey = activation({B, T, 1, R}, dk.dtype());
    ops::copy_columns(dkv, 0, dk, 0, P);
    ops::copy_columns(dkv, P, dv, 0, V);
    ops::sum_columns(dkey, dk, P);  // over the heads
    dk = {}, dv = {};
    ops::rotate_pairs(dkey, positions, frequencies_, true);
    ops::rotate_pairs(dq, positions, frequencies_, true);
    dkey = dkey.view({B, T, R});
    if (leave_) dkey = leave_(dkey);

    Tensor dc_kv = kv_up_->backward(dkv.view({B, T, H * (P + V)}), saved["kv_up"], context, when);
    dkv = {};
    dc_kv = kv_norm_->backward(dc_kv, {}, saved["kv_a_layernorm"], context);
    Tensor dc_q = q_up_->backward(dq.view({B, T, H * head_dim_}), saved["q_up"], context, when);
    dq = {};
    if (q_norm_) dc_q = q_norm_->backward(dc_q, {}, saved["q_a_layernorm"], context);

    Tensor d_all = activation(with_last(dc_kv.shape(), sizes_.rank()), dc_kv.dtype());
    if (q_norm_) ops::copy_columns(d_all, 0, dc_q, 0, Rq), dc_q = {};
    ops::copy_columns(d_all, Rq, dc_kv, 0, Rkv);
    ops::copy_columns(d_all, Rq + Rkv, dkey, 0, R);
    dc_kv = {}, dkey = {};
    Tensor dx = down_->backward(d_all, saved["latents"], context, when);  // as x
    if (dc_q) ops::add(dx, dc_q);  // q_proj's, if queries are made of x
    return dx;
}

void LatentAttention::backward_weight(Saved& saved, Context& context) {
    o_proj_->backward_weight(saved["o_proj"], context);
    kv_up_->backward_weight(saved["kv_up"], context);
    q_up_->backward_weight(saved["q_up"], context);
    down_->backward_weight(saved["latents"], context);
}

Tensor LatentAttention::cut(const Tensor& heads) const {
    const int64_t V = sizes_.v_dim;
    Tensor o = activation({heads.size(0), heads.size(1), heads_ * V}, heads.dtype());
    ops::copy_columns(o.view({heads.size(0), heads.size(1), heads_, V}), 0, heads, 0, V);
    return o;
}

Tensor LatentAttention::padded(const Tensor& from) const {
    const int64_t B = from.size(0), T = from.size(1), V = sizes_.v_dim;
    Tensor heads = Tensor::zeros({B, T, heads_, head_dim_}, from.dtype(), Memory::activation);
    ops::copy_columns(heads, 0, from.view({B, T, heads_, V}), 0, V);
    return heads;
}

}  // namespace ultrascale
