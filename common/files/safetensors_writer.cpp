// Writing safetensors: one tensor at a time, in shards if they are large.
#include <nlohmann/json.hpp>

#include "safetensors.h"
#include "safetensors_convert.h"

namespace ultrascale {

SafetensorsWriter::SafetensorsWriter(const std::string& dir, const std::string& stem,
                                     std::vector<Item> items, int64_t max_shard_bytes)
    : dir_(dir), stem_(stem), items_(std::move(items)) {
    int64_t in_shard = 0;
    for (size_t i = 0; i < items_.size();
         ++i) {  // like Hugging Face: in order; a tensor above the limit has its own shard
        int64_t bytes = numel(items_[i].shape) * dtype_bytes(items_[i].dtype);
        if (in_shard > 0 && in_shard + bytes > max_shard_bytes) {
            shard_ends_.push_back(i);
            in_shard = 0;
        }
        in_shard += bytes;
    }
    shard_ends_.push_back(items_.size());
}

SafetensorsWriter::~SafetensorsWriter() = default;

static std::string shard_name(const std::string& stem, size_t shard, size_t shards) {
    return shards == 1 ? stem + ".safetensors"
                       : fmt::format("{}-{:05}-of-{:05}.safetensors", stem, shard + 1, shards);
}

// Finishes the current shard, if any, and begins the next one with its header, if any is left.
void SafetensorsWriter::next_file() {
    if (file_) file_->commit();
    file_.reset();
    if (next_shard_ == shard_ends_.size()) return;
    file_ = std::make_unique<AtomicFile>(dir_ + "/" +
                                         shard_name(stem_, next_shard_, shard_ends_.size()));
    nlohmann::ordered_json header = {
        {"__metadata__", {{"format", "pt"}}}};  // required by transformers 4
    int64_t offset = 0;
    for (size_t i = next_item_; i < shard_ends_[next_shard_]; ++i) {
        int64_t end = offset + numel(items_[i].shape) * dtype_bytes(items_[i].dtype);
        header[items_[i].name] = {{"dtype", safetensors_dtype(items_[i].dtype)},
                                  {"shape", items_[i].shape},
                                  {"data_offsets", {offset, end}}};
        offset = end;
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');  // the data starts aligned
    unsigned char length[8];
    for (int i = 0; i < 8; ++i)
        length[i] = static_cast<unsigned char>(uint64_t(text.size()) >> (8 * i));
    file_->write(length, 8);
    file_->write(text);
    ++next_shard_;
}

void SafetensorsWriter::write(const std::vector<char>& values, DType dtype) {
    check(next_item_ < items_.size(), "more tensors written than announced");
    if (!file_ || next_item_ == shard_ends_[next_shard_ - 1]) next_file();
    const Item& item = items_[next_item_++];
    const int64_t elements = numel(item.shape);
    check(int64_t(values.size()) == elements * dtype_bytes(dtype),
          "tensor written with a different size than announced");
    if (dtype == item.dtype) return file_->write(values.data(), int64_t(values.size()));
    const Convert convert = converter(safetensors_dtype(dtype), item.dtype);
    check(convert, "tensor written with a dtype that cannot be converted");
    std::vector<char> converted(size_t(elements * dtype_bytes(item.dtype)));
    convert(converted.data(), reinterpret_cast<const unsigned char*>(values.data()), elements);
    file_->write(converted.data(), int64_t(converted.size()));
}

void SafetensorsWriter::finish() {
    check(next_item_ == items_.size(), "fewer tensors written than announced");
    if (!file_ && next_shard_ == 0) next_file();  // no tensors at all
    next_file();
    if (shard_ends_.size() == 1) return;
    nlohmann::ordered_json index = {{"metadata", {{"total_size", 0}}},
                                    {"weight_map", nlohmann::ordered_json::object()}};
    int64_t total = 0;
    for (size_t i = 0, shard = 0; i < items_.size(); ++i) {
        if (i == shard_ends_[shard]) ++shard;
        total += numel(items_[i].shape) * dtype_bytes(items_[i].dtype);
        index["weight_map"][items_[i].name] = shard_name(stem_, shard, shard_ends_.size());
    }
    index["metadata"]["total_size"] = total;
    write_file(dir_ + "/" + stem_ + ".safetensors.index.json", index.dump(2) + "\n");
}

}  // namespace ultrascale
