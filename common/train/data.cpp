#include "data.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "core/error.h"
#include "model/parts.h"

namespace ultrascale {
namespace {

struct HeaderFormat {
    int32_t magic, version;
    int64_t token_bytes;
};
constexpr HeaderFormat header_formats[] = {{20240520, 1, 2},
                                           {20240801, 7, 4}};  // llm.c, dev/data/data_common.py
constexpr int64_t header_bytes = 256 * 4;
constexpr int64_t checked_at_opening = int64_t(1) << 27;

template <class T>
void widen(const unsigned char* from, int64_t count, int32_t* to) {
    for (int64_t i = 0; i < count; ++i) {
        T token;
        std::memcpy(&token, from + i * int64_t(sizeof(T)), sizeof(T));
        to[i] = int32_t(std::min<uint32_t>(token, INT32_MAX));
    }
}

}  // namespace

TokenFile::TokenFile(const std::string& path, int64_t vocab) : file_(path), vocab_(vocab) {
    if (path.ends_with(".bin")) {
        token_bytes_ = vocab > 65536 ? 4 : 2;
        int32_t header[3] = {0, 0, 0};
        if (file_.size() >= int64_t(sizeof header))
            std::memcpy(header, file_.data(), sizeof header);
        for (const HeaderFormat& format : header_formats) {
            if (header[0] != format.magic) continue;
            token_bytes_ = format.token_bytes;
            data_offset_ = header_bytes;
            if (header[1] != format.version)
                user_error(
                    "{}: llm.c header with version {}; version {} is supported for its magic "
                    "number {}",
                    path, header[1], format.version, format.magic);
            int64_t expected = header_bytes + int64_t(header[2]) * format.token_bytes;
            if (header[2] < 0 || file_.size() != expected)
                user_error("{}: llm.c header announces {}, which makes {} bytes; the file has {}",
                           path, format_count(header[2], "token"), expected, file_.size());
        }
    }
    int64_t bytes = file_.size() - data_offset_;
    if (token_bytes_ == 2 && data_offset_ == 0) refuse_wider_tokens();
    if (bytes % token_bytes_ != 0)
        user_error("{}: {} cannot be a whole number of {}-byte tokens", path,
                   format_count(bytes, "byte"), token_bytes_);
    count_ = bytes / token_bytes_;

    std::vector<int32_t> some(1 << 16);
    const bool any_fits =
        (token_bytes_ == 1 && vocab >= 256) || (token_bytes_ == 2 && vocab >= 65536);
    for (int64_t i = 0; !any_fits && i < std::min(count_, checked_at_opening);
         i += int64_t(some.size()))
        read(i, std::min(count_ - i, int64_t(some.size())), some.data());
}

// If a file of uint32 tokens is read as uint16, every token is followed by a 0.
void TokenFile::refuse_wider_tokens() const {
    const int64_t bytes = file_.size(), looked_at = std::min<int64_t>(bytes, 1 << 20) / 4 * 4;
    bool wider = bytes % 4 == 0 && bytes >= 64;
    int64_t others = 0;  // other than 0: a file of zeros proves nothing
    for (int64_t at = 0; wider && at < looked_at; at += 4) {
        const unsigned char* token = file_.data() + at;
        wider = token[2] == 0 && token[3] == 0;
        others += token[0] != 0 || token[1] != 0;
    }
    if (wider && 2 * others > looked_at / 4)
        user_error(
            "{}: every second of its 16-bit numbers is 0: most likely these are 32-bit tokens, "
            "which are read without a header only if the vocabulary is above 65,536; write uint16, "
            "or add llm.c's header (magic number 20240801)",
            file_.path());
}

std::string TokenFile::read_as() const {
    if (path().ends_with(".bin"))
        return fmt::format("{}uint{} tokens", data_offset_ > 0 ? "llm.c's " : "", 8 * token_bytes_);
    const bool text = path().ends_with(".txt") ||
                      file_.text().substr(0, 1 << 16).find('\0') == std::string_view::npos;
    return text ? "text, each byte a token"
                : "each byte a token, but it is not text; a file of tokens must be named .bin";
}
std::string TokenFile::description() const {
    return fmt::format("{} ({}): {}", path(), read_as(), format_count(count_, "token"));
}

void TokenFile::read(int64_t first, int64_t count, int32_t* to) const {
    check(0 <= first && 0 <= count && first + count <= count_, "tokens outside the file");
    if (count == 0) return;
    const unsigned char* from = file_.data() + data_offset_ + first * token_bytes_;
    if (token_bytes_ == 1) widen<uint8_t>(from, count, to);
    if (token_bytes_ == 2) widen<uint16_t>(from, count, to);
    if (token_bytes_ == 4) widen<uint32_t>(from, count, to);
    if (*std::max_element(to, to + count) < vocab_) return;
    int64_t at = std::find_if(to, to + count, [&](int32_t token) { return token >= vocab_; }) - to;
    user_error("{}: token {} at position {} is not below the vocabulary's size {}", path(), to[at],
               first + at, vocab_);
}

Permutation::Permutation(int64_t size, uint64_t seed, std::string_view name)
    : random_(seed, name), size_(size) {
    check(size > 0, "permutation: it must have at least one element");
    half_bits_ = std::max(1, (int(std::bit_width(uint64_t(size - 1))) + 1) / 2);
}

int64_t Permutation::operator()(int64_t i) const {
    check(0 <= i && i < size_, "permutation: index out of range");
    const uint64_t mask = (uint64_t(1) << half_bits_) - 1;
    uint64_t x = uint64_t(i);
    do {
        for (uint64_t round = 0; round < 8; ++round) {
            uint64_t left = x >> half_bits_, right = x & mask;
            x = right << half_bits_ | (left ^ (random_.bits(round << 40 | right) & mask));
        }
    } while (x >= uint64_t(size_));
    return int64_t(x);
}

DataLoader::DataLoader(const TokenFile& file, const DataOptions& options)
    : file_(file), options_(options) {
    if (options.seq < 1) user_error("--seq {}: a sample has at least one token", options.seq);
    if (file.tokens() - 1 < options.seq)
        user_error("{}: {} cannot fill one sample, which needs --seq {} plus one", file.path(),
                   format_count(file.tokens(), "token"), options.seq);
    samples_ = (file.tokens() - 1) / options.seq;
    for (const SamplesCut& cut : options.cuts)
        check(cut.length > 0 && options.seq % cut.length == 0, "a cut must divide the samples");
    for (auto [name, token] : {std::pair{"--document-token", options.document_token},
                               {"--ignore-token", options.ignore_token}})
        if (token && (*token < 0 || *token >= file.vocab()))
            user_error("{} {}: is not a token of a vocabulary of {}", name, *token, file.vocab());
    if (options.prefix == 0) return;
    int64_t shortest = options.seq;
    for (const SamplesCut& cut : options.cuts) shortest = std::min(shortest, cut.length);
    if (options.prefix >= shortest)
        user_error("--prefix {}: sequences of {} leave no target behind it", options.prefix,
                   format_count(shortest, "token"));
    if (options.document_token)
        user_error(
            "--prefix {}: a sequence has one, but with --document-token each of its "
            "documents would need one",
            options.prefix);
}

int64_t DataLoader::shuffled(int64_t sample) const {
    if (!options_.shuffle_seed) return sample % samples_;
    std::string pass = fmt::format("shuffle {}", sample / samples_);
    return Permutation(samples_, *options_.shuffle_seed, pass)(sample % samples_);
}

int64_t DataLoader::length_of(int64_t sample) const {
    for (const SamplesCut& cut : options_.cuts)
        if (sample < cut.until) return cut.length;
    return options_.seq;
}

int64_t DataLoader::targets_in_prefix() const { return std::max<int64_t>(options_.prefix - 1, 0); }

bool DataLoader::ignored(int32_t target) const {
    return target == options_.document_token || target == options_.ignore_token;
}

HostBatch DataLoader::batch(int64_t first_sample, int64_t count) const {
    const int64_t whole = options_.seq, length = length_of(first_sample), total = count * whole;
    check(length == length_of(first_sample + count - 1), "a batch with sequences of two lengths");
    HostBatch b{.sequences = total / length,
                .length = length,
                .prefix = options_.prefix,
                .first_sample = first_sample * (whole / length)};
    b.tokens.reserve(total), b.targets.reserve(total), b.positions.reserve(total);
    std::vector<int32_t> sample(whole + 1);
    for (int64_t k = first_sample; k < first_sample + count; ++k) {
        file_.read(shuffled(k) * whole, whole + 1, sample.data());
        int32_t start = 0;
        for (int32_t at = 0; at < whole; ++at) {
            const auto t = int32_t(at % length);
            const int32_t target = t < targets_in_prefix() || ignored(sample[at + 1])
                                       ? ops::ignored_target
                                       : sample[at + 1];
            if (t == 0 || sample[at] == options_.document_token) start = t;
            b.tokens.push_back(sample[at]);
            b.targets.push_back(target);
            b.positions.push_back(t - start);
            if (options_.document_token || options_.window > 0)
                b.document_starts.push_back(first_visible(t, start, options_.window));
            b.counted_targets += target != ops::ignored_target;
        }
    }
    return b;
}

int64_t DataLoader::counted_targets(int64_t first_sample, int64_t count) const {
    const int64_t length = length_of(first_sample), skipped = targets_in_prefix();
    if (!options_.document_token && !options_.ignore_token)
        return count * options_.seq / length * (length - skipped);
    int64_t counted = 0;
    std::vector<int32_t> targets(options_.seq);
    for (int64_t k = first_sample; k < first_sample + count; ++k) {
        file_.read(shuffled(k) * options_.seq + 1, options_.seq, targets.data());
        for (int64_t at = 0; at < options_.seq; ++at)
            counted += at % length >= skipped && !ignored(targets[size_t(at)]);
    }
    return counted;
}

std::vector<int64_t> DataLoader::rows(int64_t first_sample, int64_t count) const {
    std::vector<int64_t> rows;
    for (int64_t k = first_sample; k < first_sample + count; ++k) rows.push_back(shuffled(k));
    return rows;
}

Batch to_device(const HostBatch& host) {
    auto device = [&](const std::vector<int32_t>& values) {
        if (values.empty()) return Tensor();
        return Tensor::from_host(std::span(values), {host.sequences, host.length},
                                 Memory::workspace);
    };
    return {.tokens = device(host.tokens),
            .targets = device(host.targets),
            .positions = device(host.positions),
            .document_starts = device(host.document_starts),
            .prefix = host.prefix,
            .counted_targets = host.counted_targets,
            .first_sample = host.first_sample,
            .whole_length = host.whole_length,
            .whole = host.whole};
}

}  // namespace ultrascale
