// safetensors: Hugging Face's file format for named tensors
// (https://huggingface.co/docs/safetensors, "Format").
//
//   8 bytes          header length n, little endian, at most 100 MB
//   n bytes          JSON: {"name": {"dtype": "F32", "shape": [2, 3],
//                                    "data_offsets": [begin, end]}, ...,
//                           "__metadata__": {"key": "text"}}, padded with spaces
//   the rest         the tensors, row-major, little endian, one after the other without gaps;
//                    offsets count from here
// Large models are split into several such files (shards) with model.safetensors.index.json:
// {"weight_map": {"name": "file"}}.
//
// The reader checks every number before it is used. All errors are UserErrors with the file's name.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "file.h"
#include "model/parameter.h"

namespace ultrascale {

const char* safetensors_dtype(DType dtype);  // "F32", "BF16", ...

class Safetensors {
public:
    struct Entry {
        std::string dtype;  // the format's name: "F32", "BF16", "F16", ...
        Shape shape;
        const unsigned char* data;  // mapped; not necessarily aligned
        int64_t bytes;
        std::string file;
        // Not 0: the matrix is stored transposed, its columns this many elements apart.
        int64_t column_stride = 0;
    };

    static Safetensors file(const std::string& path);
    // Reads `dir`/model.safetensors, or else the shards that `dir`/model.safetensors.index.json
    // names.
    static Safetensors directory(const std::string& dir);

    const std::string& path() const { return path_; }  // the file, or the index
    const std::map<std::string, Entry>& entries() const { return entries_; }
    const std::map<std::string, std::string>& metadata() const { return metadata_; }
    // Adds a name for rows first .. first + rows - 1 of the tensor `of`, which is read as a matrix.
    void add_rows(const std::string& name, const std::string& of, int64_t first, int64_t rows);
    // Replaces the tensor `of` by its equal parts: ranges of a vector, or of a matrix's rows; or of
    // its columns, as matrices of their own, if it is `transposed`.
    void add_parts(const std::vector<std::string>& names, const std::string& of, bool transposed);
    void add_name(const std::string& name, const std::string& of);
    bool contains(const std::string& name) const { return entries_.count(name) > 0; }

    // Fills `to` with the part `slice` (one range per dimension; empty: all) of the tensor `name`.
    // F32, BF16 and F16 are converted to fp32, bf16 or fp16; other dtypes must equal `to`'s. Throws
    // UserError if there is no such tensor, if the whole tensor's shape is not `shape`, or if its
    // dtype cannot be converted.
    void read(const std::string& name, const Shape& shape, const std::vector<Range>& slice,
              Tensor to) const;
    void read(const TensorPart& part) const;  // fills part.tensor

private:
    void add_file(const std::string& path);

    std::string path_;
    std::vector<MappedFile> files_;
    std::map<std::string, Entry> entries_;
    std::map<std::string, std::string> metadata_;
};

inline constexpr int64_t default_shard_bytes =
    5'000'000'000;  // long the default of Hugging Face's save_pretrained

// A tensor of a file, and the tensors of ours that it consists of: their rows one below the other,
// transposed if it is a linear's weight, which GPT-2 stores as (inputs, outputs).
struct FileTensor {
    std::string name;
    std::vector<std::string> parts;
    bool transposed = false;
};
// Writes tensors one at a time, so that a technique with shards can gather a tensor, write it and
// free it. The file is `dir`/`stem`.safetensors; above max_shard_bytes the files are
// `dir`/`stem`-00001-of-00003.safetensors, ... with `dir`/`stem`.safetensors.index.json. Each file
// is renamed to its name when it is complete, the index last.
class SafetensorsWriter {
public:
    struct Item {
        std::string name;
        Shape shape;
        DType dtype;
    };
    SafetensorsWriter(const std::string& dir, const std::string& stem, std::vector<Item> items,
                      int64_t max_shard_bytes = default_shard_bytes);
    // Writes the next item, whose values have this dtype; another floating-point dtype than the
    // item's is converted.
    void write(const std::vector<char>& values, DType dtype);
    void finish();  // call it after the last item
    ~SafetensorsWriter();

private:
    void next_file();

    std::string dir_, stem_;
    std::vector<Item> items_;
    std::vector<size_t> shard_ends_;  // items of shard i end before items_[shard_ends_[i]]
    size_t next_item_ = 0, next_shard_ = 0;
    std::unique_ptr<AtomicFile> file_;
};

}  // namespace ultrascale
