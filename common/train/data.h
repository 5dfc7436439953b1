// Token files, and the samples that a step reads from them.
//
//   FILE.bin         tokens, little endian: plain uint16 (nanoGPT's prepare.py), plain uint32 if
//                    the vocabulary has more than 65,536 tokens, or with llm.c's header of 256
//                    int32 {magic, version, number of tokens, 0, ...}: 20240520, 1: uint16;
//                    20240801, 7: uint32
//   any other name   text: its bytes are the tokens
// Sample k is tokens[k*S .. k*S+S], with k modulo the number of samples (n - 1) / S. Its inputs are
// the first S tokens, its targets the last S. For a global batch of G, step s uses samples s*G ..
// s*G+G-1, whatever the layout of ranks. All errors are UserErrors of one line.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/random.h"
#include "files/file.h"
#include "model/batch.h"

namespace ultrascale {

class TokenFile {
public:
    // Refuses tokens that are not below `vocab`: the first 2^27 are checked now, later ones when
    // they are read.
    TokenFile(const std::string& path, int64_t vocab);
    int64_t tokens() const { return count_; }
    int64_t vocab() const { return vocab_; }
    const std::string& path() const { return file_.path(); }
    std::string read_as() const;      // "uint16 tokens"; "text, each byte a token"
    std::string description() const;  // "train.bin (uint16 tokens): 1000 tokens"
    void read(int64_t first, int64_t count, int32_t* to) const;

private:
    void refuse_wider_tokens() const;
    MappedFile file_;
    int64_t vocab_, count_ = 0;
    int64_t token_bytes_ = 1, data_offset_ = 0;
};

// A pseudo-random permutation of 0..size-1, computed element by element: a Feistel network on the
// next power of four with Philox as its round function. A result outside 0..size-1 goes through the
// network again (cycle walking).
class Permutation {
public:
    Permutation(int64_t size, uint64_t seed, std::string_view name);
    int64_t operator()(int64_t i) const;

private:
    Random random_;
    int64_t size_;
    int half_bits_ = 1;
};

// Each sample before sample `until` is read as several shorter sequences of `length` tokens, which
// must divide the length of a sample.
struct SamplesCut {
    int64_t until, length;
};

struct DataOptions {
    int64_t seq = 0;
    std::optional<uint64_t> shuffle_seed;  // a different order in each pass over the samples
    // The token that starts a document. Positions restart there, attention across documents is
    // masked (document_starts), and a target that is this token is ignored. As no document predicts
    // the beginning of the next one, training on a packed row equals training on its documents
    // separately.
    std::optional<int64_t> document_token;
    std::optional<int64_t> ignore_token;  // targets equal to it are ignored, e.g. padding
    int64_t window = 0;  // LlamaConfig's; document_starts then move on with the queries
    // LlamaConfig's. Targets in the prefix are ignored: the token that predicts one sees it. The
    // last token of the prefix predicts the first one behind it.
    int64_t prefix = 0;
    std::vector<SamplesCut> cuts = {};  // in order; a batch must lie on one side of each cut
};

class DataLoader {
public:
    DataLoader(const TokenFile& file, const DataOptions& options);  // keeps a reference to the file
    int64_t samples() const { return samples_; }
    // Shape (count, seq); with cuts (count * seq / length, length), the same tokens in the same
    // order.
    HostBatch batch(int64_t first_sample, int64_t count) const;
    // The number of targets over which a step's loss is the mean: it equals
    // batch(...).counted_targets.
    int64_t counted_targets(int64_t first_sample, int64_t count) const;
    // The file's rows, of options.seq tokens each, that these samples are.
    std::vector<int64_t> rows(int64_t first_sample, int64_t count) const;

private:
    int64_t length_of(int64_t sample) const;  // of the sequences into which it is cut
    int64_t shuffled(int64_t sample) const;
    int64_t targets_in_prefix() const;  // of a sequence
    bool ignored(int32_t target) const;

    const TokenFile& file_;
    DataOptions options_;
    int64_t samples_;
};

Batch to_device(const HostBatch& host);  // workspace memory

}  // namespace ultrascale
