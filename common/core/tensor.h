// A tensor: a shape, a dtype, and shared storage whose bytes belong to a memory category.
//
// Tensors are contiguous, row-major, and cheap to copy: copies and views share storage, which is
// freed with its last user. There is no broadcasting, and there are no strides and no operators;
// the mathematics is in ops.h.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "error.h"
#include "float_formats.h"
#include "memory.h"

namespace ultrascale {

class Event;  // stream.h
class Stream;

enum class DType { fp32, bf16, fp16, fp64, int32, e4m3, e5m2 };
int64_t dtype_bytes(DType dtype);     // bytes of one element
const char* dtype_name(DType dtype);  // "fp32", "bf16", ...

// bfloat16: the upper half of a float. Conversion rounds to nearest, ties to even; NaN stays NaN.
struct bf16 {
    uint16_t bits;
    bf16() = default;
    explicit bf16(float value) {
        uint32_t u = std::bit_cast<uint32_t>(value);
        bits = (u & 0x7fffffffu) > 0x7f800000u ? uint16_t(u >> 16 | 0x40)
                                               : uint16_t((u + 0x7fffu + (u >> 16 & 1)) >> 16);
    }
    explicit operator float() const { return std::bit_cast<float>(uint32_t(bits) << 16); }
};

// IEEE half precision; the compiler converts. (For ARM, g++ 12 knows it only by ARM's own name.)
struct fp16 {
#if defined(__aarch64__) && __GNUC__ < 13
    using Half = __fp16;
#else
    using Half = _Float16;
#endif
    Half value;
    fp16() = default;
    explicit fp16(float v) : value(Half(v)) {}
    explicit operator float() const { return float(value); }
};

// fp8: numbers for storage and for products, which have a scale beside them (ops_fp8.h). Conversion
// rounds to nearest even and saturates (e4m3 at 448, e5m2 at 57,344); NaN stays NaN.
template <class Format>
struct Fp8 {
    uint8_t bits;
    Fp8() = default;
    explicit Fp8(float value) : bits(uint8_t(Format::encode(value, Overflow::saturate))) {}
    explicit operator float() const { return Format::decode(bits); }
};
using e4m3 = Fp8<formats::E4m3>;
using e5m2 = Fp8<formats::E5m2>;

// The dtype of a C++ type; other types have none. clang-format off
template <class T>
struct DTypeOf;
template <>
struct DTypeOf<float> {
    static constexpr DType value = DType::fp32;
};
template <>
struct DTypeOf<bf16> {
    static constexpr DType value = DType::bf16;
};
template <>
struct DTypeOf<fp16> {
    static constexpr DType value = DType::fp16;
};
template <>
struct DTypeOf<double> {
    static constexpr DType value = DType::fp64;
};
template <>
struct DTypeOf<int32_t> {
    static constexpr DType value = DType::int32;
};
template <>
struct DTypeOf<e4m3> {
    static constexpr DType value = DType::e4m3;
};
template <>
struct DTypeOf<e5m2> {
    static constexpr DType value = DType::e5m2;
};
// clang-format on
template <class T>
inline constexpr DType dtype_of = DTypeOf<std::remove_cv_t<T>>::value;

using Shape = std::vector<int64_t>;
int64_t numel(const Shape& shape);
std::string to_string(const Shape& shape);  // "(2, 128, 64)"

class Tensor {
public:
    Tensor() = default;  // no storage; false in a condition

    // Uninitialised (empty) or zeroed memory from the device or the given allocator. Throws
    // OutOfMemory.
    static Tensor empty(Shape shape, DType dtype, Memory category,
                        std::shared_ptr<Allocator> from = nullptr);
    static Tensor zeros(Shape shape, DType dtype, Memory category,
                        std::shared_ptr<Allocator> from = nullptr);
    // Copies `values` to the device as T's dtype. numel(shape) must equal values.size().
    template <class T>
    static Tensor from_host(std::span<const T> values, Shape shape, Memory category) {
        Tensor t = empty(std::move(shape), dtype_of<T>, category);
        check(int64_t(values.size()) == t.numel(),
              "from_host: number of values does not fit the shape");
        t.copy_from_host(values.data());
        return t;
    }

    explicit operator bool() const { return storage_ != nullptr; }
    const Shape& shape() const { return shape_; }
    int64_t size(int dim) const { return shape_[dim < 0 ? dim + int(shape_.size()) : dim]; }
    int64_t numel() const { return storage_ ? ultrascale::numel(shape_) : 0; }
    int64_t bytes() const { return numel() * dtype_bytes(dtype_); }
    DType dtype() const { return dtype_; }

    // Read as a matrix: all dimensions but the last form the rows.
    int64_t cols() const { return shape_.empty() ? 1 : shape_.back(); }
    int64_t rows() const { return cols() == 0 ? 0 : numel() / cols(); }

    void* data() const { return data_; }
    // Whether is_on_host(its category). On CUDA such a tensor is not in the device's memory; on the
    // CPU it is only counted separately.
    bool on_host() const;
    template <class T>
    T* as() const {  // the device's address; checks the dtype
        check(dtype_of<T> == dtype_, "tensor read as another dtype than its own");
        return static_cast<T*>(data_);
    }

    // Views share storage. view: another shape of equal size; slice: rows [begin, end) along the
    // first dimension.
    Tensor view(Shape shape) const;
    Tensor slice(int64_t begin, int64_t end) const;

    // A view with `shape` that begins at this tensor's first element and may reach past its end,
    // but not past its storage. One GEMM reads the adjacent weights q, k, v as one matrix this way
    // (parameter.h).
    Tensor extended_view(Shape shape) const;

    // Waits for the device, or only for an event, then copies. T must be the dtype's own type.
    template <class T, class... After>
    std::vector<T> to_host(const After&... after) const {
        std::vector<T> values(numel());
        check(dtype_of<T> == dtype_, "tensor read as another dtype than its own");
        copy_to_host(values.data(), after...);
        return values;
    }
    std::vector<float> to_host_float() const;  // from fp32 and all narrower floats
    void copy_from_host(const void* from);     // bytes() bytes
    void copy_to_host(void* to) const;
    void copy_to_host(void* to, const Event& after) const;

private:
    struct Storage;
    std::shared_ptr<Storage> storage_;
    void* data_ = nullptr;
    Shape shape_;
    DType dtype_ = DType::fp32;
};

// to = from, where both have the same dtype and size and one is on the host. It runs in the
// stream's order, and the host does not wait. The caller keeps both tensors until the copy is done.
void copy_async(Tensor to, const Tensor& from, Stream& stream);

// Implemented by the backend. Copies between host and device are complete when the call returns
// (`device` may also be memory from host_allocate); zeroing runs on the compute stream.
void device_copy_from_host(void* device, const void* host, int64_t bytes);
void device_copy_to_host(void* host, const void* device, int64_t bytes);
void device_copy_to_host(void* host, const void* device, int64_t bytes, const Event& after);
void device_zero(void* device, int64_t bytes);
void device_copy_async(void* to, const void* from, int64_t bytes, Stream& stream);

}  // namespace ultrascale
