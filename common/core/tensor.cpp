#include "tensor.h"

#include <fmt/ranges.h>

namespace ultrascale {

int64_t dtype_bytes(DType dtype) {
    switch (dtype) {
        case DType::fp32:
        case DType::int32: return 4;
        case DType::bf16:
        case DType::fp16: return 2;
        case DType::fp64: return 8;
        case DType::e4m3:
        case DType::e5m2: return 1;
    }
    return 0;
}

const char* dtype_name(DType dtype) {
    switch (dtype) {
        case DType::fp32: return "fp32";
        case DType::bf16: return "bf16";
        case DType::fp16: return "fp16";
        case DType::fp64: return "fp64";
        case DType::int32: return "int32";
        case DType::e4m3: return "e4m3";
        case DType::e5m2: return "e5m2";
    }
    return "?";
}

int64_t numel(const Shape& shape) {
    int64_t n = 1;
    for (int64_t size : shape) n *= size;
    return n;
}

std::string to_string(const Shape& shape) { return fmt::format("({})", fmt::join(shape, ", ")); }

struct Tensor::Storage {
    void* data;
    int64_t bytes;
    Memory category;
    std::shared_ptr<Allocator> from;
    Storage(int64_t bytes, Memory category, std::shared_ptr<Allocator> from)
        : data(memory_allocate(bytes, category, from.get())),
          bytes(bytes),
          category(category),
          from(std::move(from)) {}
    ~Storage() { memory_free(data, bytes, category, from.get()); }
    Storage(const Storage&) = delete;
};

Tensor Tensor::empty(Shape shape, DType dtype, Memory category, std::shared_ptr<Allocator> from) {
    const int64_t bytes = ultrascale::numel(shape) * dtype_bytes(dtype);
    Tensor t;
    t.shape_ = std::move(shape);
    t.dtype_ = dtype;
    t.storage_ = std::make_shared<Storage>(bytes, category, std::move(from));
    t.data_ = t.storage_->data;
    return t;
}

Tensor Tensor::zeros(Shape shape, DType dtype, Memory category, std::shared_ptr<Allocator> from) {
    Tensor t = empty(std::move(shape), dtype, category, std::move(from));
    if (t.on_host())
        std::memset(t.data(), 0, size_t(t.bytes()));
    else
        device_zero(t.data(), t.bytes());
    return t;
}

bool Tensor::on_host() const { return storage_ && is_on_host(storage_->category); }

Tensor Tensor::view(Shape shape) const {
    check(ultrascale::numel(shape) == numel(), "view: the number of elements must stay the same");
    Tensor t = *this;
    t.shape_ = std::move(shape);
    return t;
}

Tensor Tensor::slice(int64_t begin, int64_t end) const {
    check(0 <= begin && begin <= end && end <= size(0), "slice: rows outside the tensor");
    Tensor t = *this;
    int64_t row_bytes = size(0) == 0 ? 0 : bytes() / size(0);
    t.data_ = static_cast<char*>(data_) + begin * row_bytes;
    t.shape_[0] = end - begin;
    return t;
}

Tensor Tensor::extended_view(Shape shape) const {
    Tensor t = *this;
    t.shape_ = std::move(shape);
    const char* storage_end = static_cast<char*>(storage_->data) + storage_->bytes;
    check(static_cast<char*>(data_) + t.bytes() <= storage_end,
          "extended_view: reaches past the storage");
    return t;
}

std::vector<float> Tensor::to_host_float() const {
    auto widen = [](const auto& narrow) {
        std::vector<float> values(narrow.size());
        for (size_t i = 0; i < narrow.size(); ++i) values[i] = float(narrow[i]);
        return values;
    };
    if (dtype_ == DType::bf16) return widen(to_host<bf16>());
    if (dtype_ == DType::fp16) return widen(to_host<fp16>());
    if (dtype_ == DType::e4m3) return widen(to_host<e4m3>());
    if (dtype_ == DType::e5m2) return widen(to_host<e5m2>());
    return to_host<float>();
}

void Tensor::copy_from_host(const void* from) { device_copy_from_host(data_, from, bytes()); }
void Tensor::copy_to_host(void* to) const { device_copy_to_host(to, data_, bytes()); }
void Tensor::copy_to_host(void* to, const Event& after) const {
    device_copy_to_host(to, data_, bytes(), after);
}

void copy_async(Tensor to, const Tensor& from, Stream& stream) {
    check(to.dtype() == from.dtype() && to.numel() == from.numel(),
          "copy_async: tensors of one dtype and size");
    if (to.bytes() > 0) device_copy_async(to.data(), from.data(), to.bytes(), stream);
}

}  // namespace ultrascale
