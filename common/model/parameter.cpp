#include "parameter.h"

#include <algorithm>

#include "core/error.h"
#include "core/ops.h"
#include "core/random.h"

namespace ultrascale {

std::string Parameter::part() const {
    const std::string part = name.substr(0, name.rfind('.'));
    if (part.starts_with("model.layers.")) return part.substr(part.find('.', 13) + 1);
    return part.starts_with("model.") ? part.substr(6) : part;
}

Shape Parameter::local_shape() const {
    Shape local;
    for (const Range& range : slice) local.push_back(range.size());
    return local;
}

Tensor Parameter::begin_contribution_in_place() {
    if (!begin_contribution()) ops::fill(grad, 0);
    return grad;
}

Parameter* ParameterList::add(Parameter parameter) {
    if (parameter.slice.empty())
        for (int64_t size : parameter.shape) parameter.slice.push_back({0, size});
    check(!find(parameter.name), "a parameter of this name exists already");
    list_.push_back(std::make_unique<Parameter>(std::move(parameter)));
    return list_.back().get();
}

Tensor ParameterList::add_buffer(const std::string& name, int64_t n) {
    const std::string full = "buffer." + name;
    check(std::ranges::none_of(buffers_, [&](const TensorPart& b) { return b.name == full; }),
          "a buffer of this name exists already");
    buffers_.emplace_back(full, Tensor::zeros({n}, DType::fp32, Memory::parameter));
    return buffers_.back().tensor;
}

Parameter* ParameterList::find(const std::string& name) const {
    for (const auto& p : list_)
        if (p->name == name) return p.get();
    return nullptr;
}

int64_t ParameterList::local_numel() const {
    int64_t n = 0;
    for (const auto& p : list_) n += p->local_numel();
    return n;
}

void ParameterList::allocate_values(DType dtype) {
    flat_values_ = Tensor::empty({local_numel()}, dtype, Memory::parameter);
    bind(flat_values_, &Parameter::value);
}

void ParameterList::allocate_grads(DType dtype, std::shared_ptr<Allocator> from) {
    flat_grads_ = Tensor::zeros({local_numel()}, dtype, Memory::gradient, std::move(from));
    bind(flat_grads_, &Parameter::grad);
    for (const auto& p : list_)
        p->contributions = p->missing = p->uses;  // all of them are added to zeros
}

void ParameterList::begin_gradients(int64_t micro_batches) {
    for (const auto& p : list_) {
        p->has_grad = false;
        p->contributions = p->missing = p->uses * micro_batches;
        p->complete = false;
    }
}

void ParameterList::check_complete() const {
    for (const auto& p : list_) check(p->complete, "a gradient is not complete");
}

void bind_to_flat(const std::vector<Parameter*>& parameters, const Tensor& flat,
                  Tensor Parameter::*member) {
    int64_t begin = 0;
    for (Parameter* p : parameters) {
        const int64_t end = begin + p->local_numel();
        p->*member = flat.slice(begin, end).view(p->local_shape());
        begin = end;
    }
}

int64_t local_numel(const std::vector<Parameter*>& parameters) {
    int64_t sum = 0;
    for (const Parameter* p : parameters) sum += p->local_numel();
    return sum;
}

void ParameterList::bind(const Tensor& flat, Tensor Parameter::*member) {
    std::vector<Parameter*> all;
    for (const auto& p : list_) all.push_back(p.get());
    bind_to_flat(all, flat, member);
}

void ParameterList::initialize(uint64_t seed) {
    for (const auto& p : list_) draw(*p, 0, p->value, seed);
}

std::vector<TensorPart> ParameterList::parts(Tensor Parameter::*member) const {
    std::vector<TensorPart> all;
    for (const auto& p : list_) all.emplace_back(*p, (*p).*member);
    return all;
}

void draw(const Parameter& p, int64_t begin, Tensor to, uint64_t seed) {
    if (p.init == Init::ones) return ops::fill(to, 1);
    if (p.init == Init::zeros) return ops::fill(to, 0);
    // Element (i, j) of the whole tensor is draw i * columns + j, whoever holds it.
    check(p.shape.size() == 2, "draw: only matrices can be drawn");
    const Random random(seed, p.name);
    const Range rows = p.slice[0], cols = p.slice[1];
    std::vector<float> values(size_t(to.numel()));
    const int64_t end = begin + to.numel();
#pragma omp parallel for
    for (int64_t row = begin / cols.size(); row < (end + cols.size() - 1) / cols.size(); ++row) {
        const int64_t from = std::max(begin, row * cols.size()),
                      until = std::min(end, (row + 1) * cols.size()), i = rows.begin + row,
                      j = cols.begin + from % cols.size();
        const std::span<float> here =
            std::span(values).subspan(size_t(from - begin), size_t(until - from));
        random.normals(uint64_t(i * p.shape[1] + j), here);
        for (float& value : here) value *= p.init_std;
    }
    ops::copy(to, Tensor::from_host<float>(values, to.shape(), Memory::workspace));
}

// ---- parts --------------------------------------------------------------------------------------

static std::vector<Range> whole(const Shape& shape) {
    std::vector<Range> slice;
    for (int64_t size : shape) slice.push_back({0, size});
    return slice;
}

TensorPart::TensorPart(std::string name, Tensor all)
    : name(std::move(name)),
      shape(all.shape()),
      slice(whole(all.shape())),
      tensor(std::move(all)) {}

TensorPart::TensorPart(const Parameter& p, Tensor tensor, int64_t begin, const std::string& prefix)
    : name(prefix + p.name),
      shape(p.shape),
      slice(p.slice),
      begin(begin),
      tensor(std::move(tensor)) {}

void TensorPart::for_each_block(const std::vector<Range>& slice, int64_t begin, int64_t count,
                                const Visit& visit) {
    if (count == 0) return;
    check(!slice.empty() && slice.size() <= 2, "a part of a tensor of one or two dimensions");
    if (slice.size() == 1)
        return visit({{slice[0].begin + begin, slice[0].begin + begin + count}}, 0, count);
    const int64_t cols = slice[1].size();
    for (int64_t done = 0;
         done < count;) {  // the rest of a row, whole rows, the beginning of a row
        const int64_t row = (begin + done) / cols, col = (begin + done) % cols, left = count - done;
        const int64_t rows = col == 0 ? std::max<int64_t>(left / cols, 1) : 1,
                      taken = col == 0 && left >= cols ? rows * cols : std::min(left, cols - col);
        const int64_t first_row = slice[0].begin + row, first_col = slice[1].begin + col;
        visit({{first_row, first_row + rows}, {first_col, first_col + taken / rows}}, done, taken);
        done += taken;
    }
}

namespace {

Tensor stacked(const std::vector<Parameter*>& parameters, Tensor Parameter::*member) {
    int64_t rows = 0;
    const Tensor& first = parameters.front()->*member;
    for (const Parameter* p : parameters) {
        const Tensor& t = p->*member;
        check(t && t.cols() == first.cols() && t.dtype() == first.dtype() &&
                  t.data() == static_cast<char*>(first.data()) +
                                  rows * first.cols() * dtype_bytes(first.dtype()),
              "stacked parameters must lie next to each other in memory");
        rows += t.rows();
    }
    return first.extended_view({rows, first.cols()});
}

}  // namespace

Tensor stacked_values(const std::vector<Parameter*>& parameters) {
    return stacked(parameters, &Parameter::value);
}
Tensor stacked_grads(const std::vector<Parameter*>& parameters) {
    return stacked(parameters, &Parameter::grad);
}

Tensor begin_contributions(const std::vector<Parameter*>& parameters) {
    const auto begun = size_t(std::ranges::count_if(
        parameters, [](Parameter* p) { return bool(p->begin_contribution()); }));
    check(begun == 0 || begun == parameters.size(),
          "the gradients of stacked parameters must begin together");
    return begun > 0 ? stacked_grads(parameters) : Tensor();
}

}  // namespace ultrascale
