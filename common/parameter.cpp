#include "parameter.h"

#include "error.h"
#include "ops.h"
#include "random.h"

namespace ultrascale {

Shape Parameter::local_shape() const {
    Shape local;
    for (const Range& range : slice) local.push_back(range.size());
    return local;
}

Parameter* ParameterList::add(Parameter parameter) {
    if (parameter.slice.empty())
        for (int64_t size : parameter.shape) parameter.slice.push_back({0, size});
    check(!find(parameter.name), "a parameter of this name exists already");
    list_.push_back(std::make_unique<Parameter>(std::move(parameter)));
    return list_.back().get();
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
    place(flat_values_, &Parameter::value);
}

void ParameterList::allocate_grads(DType dtype) {
    flat_grads_ = Tensor::zeros({local_numel()}, dtype, Memory::gradient);
    place(flat_grads_, &Parameter::grad);
}

void ParameterList::place(const Tensor& flat, Tensor Parameter::*member) {
    int64_t offset = 0;
    for (const auto& p : list_) {
        (*p).*member = flat.slice(offset, offset + p->local_numel()).view(p->local_shape());
        offset += p->local_numel();
    }
}

void ParameterList::initialize(uint64_t seed) {
    for (const auto& p : list_) {
        if (p->is_norm) {
            ops::fill(p->value, 1);
            continue;
        }
        // Element (i, j) of the whole tensor is draw i * columns + j, whoever holds it.
        check(p->shape.size() == 2, "initialize: a parameter that is no norm is a matrix");
        const Random random(seed, p->name);
        const Range rows = p->slice[0], cols = p->slice[1];
        std::vector<float> values(size_t(p->local_numel()));
#pragma omp parallel for
        for (int64_t i = rows.begin; i < rows.end; ++i)
            for (int64_t j = cols.begin; j < cols.end; ++j)
                values[size_t((i - rows.begin) * cols.size() + j - cols.begin)] =
                    p->init_std * random.normal(uint64_t(i * p->shape[1] + j));
        ops::copy(p->value, Tensor::from_host<float>(values, p->local_shape(), Memory::workspace));
    }
}

namespace {

Tensor stacked(const std::vector<Parameter*>& parameters, Tensor Parameter::*member) {
    int64_t rows = 0;
    const Tensor& first = parameters.front()->*member;
    for (const Parameter* p : parameters) {
        const Tensor& t = p->*member;
        check(t && t.cols() == first.cols() && t.dtype() == first.dtype() &&
                  t.data() == static_cast<char*>(first.data()) + rows * first.cols() * dtype_bytes(first.dtype()),
              "stacked parameters must lie next to each other in memory");
        rows += t.rows();
    }
    return first.extended_view({rows, first.cols()});
}

}  // namespace

Tensor stacked_values(const std::vector<Parameter*>& parameters) { return stacked(parameters, &Parameter::value); }
Tensor stacked_grads(const std::vector<Parameter*>& parameters) { return stacked(parameters, &Parameter::grad); }

}  // namespace ultrascale
