// Reading safetensors.
#include "safetensors.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "safetensors_convert.h"
#include "strict_json.h"

namespace ultrascale {
namespace {

using json = nlohmann::json;
namespace fs = std::filesystem;
constexpr int64_t max_header_bytes = 100'000'000;  // the reference implementation's limit

const std::map<std::string, int64_t>& dtype_bits() {
    static const std::map<std::string, int64_t> bits = {
        {"F64", 64},    {"I64", 64},    {"U64", 64},    {"C64", 64},    {"F32", 32},
        {"I32", 32},    {"U32", 32},    {"F16", 16},    {"BF16", 16},   {"I16", 16},
        {"U16", 16},    {"I8", 8},      {"U8", 8},      {"BOOL", 8},    {"F8_E4M3", 8},
        {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
    return bits;
}

// An array of non-negative integers, or an error that names the field.
std::vector<int64_t> sizes(const json& info, const char* field, const std::string& where) {
    auto found = info.find(field);
    if (found == info.end() || !found->is_array())
        user_error("{} has no array \"{}\"", where, field);
    std::vector<int64_t> values;
    for (const json& v : *found) {
        if (!v.is_number_unsigned() || v.get<uint64_t>() > uint64_t(INT64_MAX))
            user_error("{}: \"{}\" must hold non-negative integers", where, field);
        values.push_back(v.get<int64_t>());
    }
    return values;
}

// The size of a tensor in bytes; throws if it exceeds 63 bits.
int64_t tensor_bytes(const Shape& shape, int64_t bits, const std::string& where) {
    int64_t total = bits;
    bool empty = std::find(shape.begin(), shape.end(), 0) != shape.end();
    for (int64_t size : shape)
        if (!empty && __builtin_mul_overflow(total, size, &total))
            user_error("{}: shape {} is too large", where, to_string(shape));
    if (empty) return 0;
    if (total % 8 != 0)
        user_error("{}: {} of {} bits cannot fill whole bytes", where,
                   format_count(total / bits, "element"), bits);
    return total / 8;
}

// Calls run(offset, count) for each contiguous run of elements in the slice, in order.
template <class Run>
void for_each_run(const Shape& shape, const std::vector<Range>& slice, size_t dim, int64_t offset,
                  Run run) {
    int64_t inner = 1;
    bool inner_whole = true;
    for (size_t d = dim + 1; d < shape.size(); ++d) {
        inner *= shape[d];
        inner_whole = inner_whole && slice[d].begin == 0 && slice[d].end == shape[d];
    }
    if (dim >= shape.size()) return run(offset, 1);
    if (inner_whole) return run(offset + slice[dim].begin * inner, slice[dim].size() * inner);
    for (int64_t i = slice[dim].begin; i < slice[dim].end; ++i)
        for_each_run(shape, slice, dim + 1, offset + i * inner, run);
}

}  // namespace

const char* safetensors_dtype(DType dtype) {
    constexpr const char* names[] = {"F32", "BF16",    "F16",    "F64",
                                     "I32", "F8_E4M3", "F8_E5M2"};  // in DType's order
    return names[int(dtype)];
}

void Safetensors::add_file(const std::string& path) {
    const MappedFile& file = files_.emplace_back(path);
    if (file.size() < 8)
        user_error("{}: {} cannot be a safetensors file", path, format_count(file.size(), "byte"));
    uint64_t header_bytes = 0;
    for (int i = 0; i < 8; ++i) header_bytes |= uint64_t(file.data()[i]) << (8 * i);
    if (header_bytes > uint64_t(max_header_bytes))
        user_error(
            "{}: not a safetensors file (its header would be {} bytes long; at most {} are "
            "allowed)",
            path, header_bytes, max_header_bytes);
    if (int64_t(header_bytes) > file.size() - 8)
        user_error("{}: truncated: the header should be {} bytes long, {} are there", path,
                   header_bytes, file.size() - 8);
    json header =
        parse_json_object(file.text().substr(8, header_bytes), path, "safetensors header", 4);
    const int64_t data_bytes = file.size() - 8 - int64_t(header_bytes);

    std::vector<std::pair<int64_t, int64_t>> extents;
    for (const auto& [name, info] : header.items()) {
        std::string where = fmt::format("{}: tensor \"{}\"", path, printable(name));
        if (!info.is_object()) user_error("{} is not a JSON object", where);
        if (name == "__metadata__") {
            for (const auto& [key, value] : info.items()) {
                if (!value.is_string())
                    user_error("{}: __metadata__ \"{}\" is not a string", path, printable(key));
                metadata_[key] = value.get<std::string>();
            }
            continue;
        }
        auto dtype = info.find("dtype");
        if (dtype == info.end() || !dtype->is_string()) user_error("{} has no \"dtype\"", where);
        auto bits = dtype_bits().find(dtype->get<std::string>());
        if (bits == dtype_bits().end())
            user_error("{}: unknown dtype \"{}\"", where, printable(dtype->get<std::string>()));
        Entry entry{bits->first, sizes(info, "shape", where), nullptr, 0, path};
        std::vector<int64_t> offsets = sizes(info, "data_offsets", where);
        if (offsets.size() != 2 || offsets[0] > offsets[1])
            user_error("{}: data_offsets must be [begin, end] with begin <= end", where);
        if (offsets[1] > data_bytes)
            user_error("{}: its data ends at byte {}, but the file holds {} (truncated?)", where,
                       offsets[1], data_bytes);
        entry.bytes = tensor_bytes(entry.shape, bits->second, where);
        if (entry.bytes != offsets[1] - offsets[0])
            user_error("{}: {} of shape {} takes {} bytes, but data_offsets give it {}", where,
                       entry.dtype, to_string(entry.shape), entry.bytes, offsets[1] - offsets[0]);
        entry.data = file.data() + 8 + header_bytes + offsets[0];
        extents.emplace_back(offsets[0], offsets[1]);
        if (!entries_.emplace(name, std::move(entry)).second)
            user_error("{} is in another shard too", where);
    }
    // The format requires data without holes, so that nothing hides between tensors and no two
    // share bytes.
    std::sort(extents.begin(), extents.end());
    int64_t reached = 0;
    for (auto [begin, end] : extents) {
        if (begin != reached)
            user_error("{}: tensors {} at data byte {}", path,
                       begin < reached ? "overlap" : "leave a hole", std::min(begin, reached));
        reached = end;
    }
    if (reached != data_bytes)
        user_error("{}: the tensors end at data byte {}, but the file continues to {}", path,
                   reached, data_bytes);
}

Safetensors Safetensors::file(const std::string& path) {
    Safetensors tensors;
    tensors.path_ = path;
    tensors.add_file(path);
    return tensors;
}

Safetensors Safetensors::directory(const std::string& dir) {
    std::string single = dir + "/model.safetensors", index_path = single + ".index.json";
    if (fs::exists(single)) return file(single);
    if (!fs::exists(index_path))
        user_error("{}: has neither model.safetensors nor model.safetensors.index.json", dir);
    MappedFile index_file(index_path);
    json index = parse_json_object(index_file.text(), index_path, "index", 4);
    auto map = index.find("weight_map");
    if (map == index.end() || !map->is_object())
        user_error("{}: has no object \"weight_map\"", index_path);

    Safetensors tensors;
    tensors.path_ = index_path;
    std::set<std::string> shards;
    for (const auto& [name, shard] : map->items()) {
        if (!shard.is_string())
            user_error("{}: weight_map \"{}\" is not a file name", index_path, printable(name));
        std::string file_name = shard.get<std::string>();
        if (file_name.empty() || file_name.find('/') != std::string::npos ||
            file_name.find('\0') != std::string::npos)
            user_error("{}: shard \"{}\" is not a plain file name in this directory", index_path,
                       printable(file_name));
        shards.insert(file_name);
    }
    for (const std::string& shard : shards) {
        std::string path = dir + "/" + shard;
        if (!fs::exists(path)) user_error("{}: missing; {} names it", printable(path), index_path);
        tensors.add_file(path);
    }
    for (const auto& [name, shard] : map->items()) {
        auto entry = tensors.entries_.find(name);
        if (entry == tensors.entries_.end() ||
            entry->second.file != dir + "/" + shard.get<std::string>())
            user_error("{}: tensor \"{}\" is not in {}, where the index says it is", index_path,
                       printable(name), printable(shard.get<std::string>()));
    }
    return tensors;
}

void Safetensors::add_rows(const std::string& name, const std::string& of, int64_t first,
                           int64_t rows) {
    Entry part = entries_.at(of);
    const int64_t cols = part.shape.back(), all = cols == 0 ? 0 : numel(part.shape) / cols;
    check(0 <= first && rows >= 0 && first + rows <= all, "add_rows: rows outside the tensor");
    const int64_t row_bytes = all == 0 ? 0 : part.bytes / all;
    part.data += first * row_bytes, part.bytes = rows * row_bytes, part.shape = {rows, cols};
    entries_.emplace(name, std::move(part));
}

void Safetensors::add_parts(const std::vector<std::string>& names, const std::string& of,
                            bool transposed) {
    const Entry whole = entries_.at(of);
    const auto n = int64_t(names.size());
    Shape shape = whole.shape;
    if (transposed && shape.size() == 2) std::swap(shape[0], shape[1]);
    if (shape.empty() || shape[0] % n != 0 || (transposed && shape.size() != 2))
        user_error("{}: tensor \"{}\" of shape {} does not divide into {}", whole.file,
                   printable(of), to_string(whole.shape), format_count(n, "part"));
    shape[0] /= n;
    for (int64_t i = 0; i < n; ++i) {
        Entry part = whole;
        part.shape = shape, part.bytes = whole.bytes / n;
        part.column_stride = transposed ? whole.shape[1] : 0;
        part.data += transposed ? i * shape[0] * dtype_bits().at(whole.dtype) / 8 : i * part.bytes;
        entries_.emplace(names[size_t(i)], std::move(part));
    }
    entries_.erase(of);
}

void Safetensors::add_name(const std::string& name, const std::string& of) {
    entries_.emplace(name, entries_.at(of));
}

void Safetensors::read(const std::string& name, const Shape& shape, const std::vector<Range>& slice,
                       Tensor to) const {
    auto found = entries_.find(name);
    if (found == entries_.end()) user_error("{}: has no tensor \"{}\"", path_, printable(name));
    const Entry& entry = found->second;
    if (entry.shape != shape)
        user_error("{}: tensor \"{}\" has shape {}, but the model needs {}", entry.file,
                   printable(name), to_string(entry.shape), to_string(shape));
    const bool same = entry.dtype == safetensors_dtype(to.dtype());
    const Convert convert = converter(entry.dtype, to.dtype());
    if (!same && !convert)
        user_error(
            "{}: tensor \"{}\" is {}; {} can be read from {}", entry.file, printable(name),
            entry.dtype, dtype_name(to.dtype()),
            converter("F32", to.dtype()) ? "F32, BF16 and F16" : safetensors_dtype(to.dtype()));

    std::vector<Range> ranges = slice;
    if (ranges.empty())
        for (int64_t size : shape) ranges.push_back({0, size});
    check(ranges.size() == shape.size(), "read: a slice has one range per dimension");
    int64_t count = 1;
    for (size_t d = 0; d < shape.size(); ++d) {
        check(0 <= ranges[d].begin && ranges[d].begin <= ranges[d].end && ranges[d].end <= shape[d],
              "read: slice outside the tensor");
        count *= ranges[d].size();
    }
    check(count == to.numel(), "read: the slice does not fit the tensor it is to fill");
    if (count == 0) return;
    const int64_t stride = entry.column_stride;
    if (same && to.bytes() == entry.bytes && stride == 0) return to.copy_from_host(entry.data);

    std::vector<unsigned char> host(size_t(to.bytes()));
    const int64_t to_bytes = dtype_bytes(to.dtype()), from_bytes = dtype_bits().at(entry.dtype) / 8;
    const auto take = [&](unsigned char* next, int64_t offset, int64_t run) {
        if (same)
            std::memcpy(next, entry.data + offset * from_bytes, size_t(run * from_bytes));
        else
            convert(next, entry.data + offset * from_bytes, run);
    };
    unsigned char* next = host.data();
    if (stride > 0) {
        const int64_t rows = ranges[0].size(), cols = ranges[1].size();
        std::vector<unsigned char> column(size_t(rows * to_bytes));
        for (int64_t c = 0; c < cols; ++c) {
            take(column.data(), (ranges[1].begin + c) * stride + ranges[0].begin, rows);
            for (int64_t r = 0; r < rows; ++r)
                std::memcpy(next + (r * cols + c) * to_bytes, &column[size_t(r * to_bytes)],
                            size_t(to_bytes));
        }
    } else {
        for_each_run(shape, ranges, 0, 0, [&](int64_t offset, int64_t run) {
            take(next, offset, run);
            next += run * to_bytes;
        });
    }
    to.copy_from_host(host.data());
}

void Safetensors::read(const TensorPart& part) const {
    const Tensor flat = part.tensor.view({part.tensor.numel()});
    part.for_each_block([&](const std::vector<Range>& block, int64_t first, int64_t count) {
        read(part.name, part.shape, block, flat.slice(first, first + count));
    });
}

}  // namespace ultrascale
