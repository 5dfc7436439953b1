// Feeds damaged files to every reader: safetensors, its index, config.json, trainer_state.json,
// token files.
//
//   fuzz_readers SECONDS [SEED]
//
// (make fuzz builds it with the address and undefined-behaviour sanitizers.)
//
// Starts from valid files and damages them: flipped bits and bytes, inserted, removed and
// duplicated sections, truncation, numbers replaced by extreme ones, fields of the JSON replaced or
// renamed, wrong header lengths. A reader may accept the result or throw a UserError of one line.
// Anything else (a crash, a sanitizer's report, another exception) ends the program, which prints
// where it left the damaged files.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "files/checkpoint.h"
#include "train/data.h"

using namespace ultrascale;
namespace fs = std::filesystem;

namespace {

std::mt19937_64 random_bits;
size_t below(size_t n) { return n == 0 ? 0 : size_t(random_bits() % n); }

const char* const evil_numbers[] = {"0",
                                    "-1",
                                    "1",
                                    "7",
                                    "255",
                                    "65536",
                                    "2147483648",
                                    "4294967296",
                                    "9223372036854775807",
                                    "9223372036854775808",
                                    "18446744073709551615",
                                    "18446744073709551616",
                                    "1e999",
                                    "1e-999",
                                    "0.5",
                                    "-0.0",
                                    "null",
                                    "true",
                                    "\"\"",
                                    "[]",
                                    "{}",
                                    "[[[[[[[[1]]]]]]]]",
                                    "\"\\u0000\"",
                                    "NaN"};
const char* const evil_words[] = {"\"F64\"",
                                  "\"F4\"",
                                  "\"F16\"",
                                  "\"BF16\"",
                                  "\"shape\"",
                                  "\"dtype\"",
                                  "\"data_offsets\"",
                                  "\"__metadata__\"",
                                  "\"../x\"",
                                  "\"..\"",
                                  "\".\"",
                                  "\"/dev/zero\"",
                                  "\"llama3\"",
                                  "\"model.norm.weight\"",
                                  "\"\\n\""};

// Replaces the JSON number or string that begins at or after a random position.
void replace_token(std::string& s) {
    size_t at = s.find_first_of("-0123456789\"", below(s.size()));
    if (at == std::string::npos) return;
    size_t end = s[at] == '"' ? s.find('"', at + 1) : s.find_first_not_of("+-.eE0123456789", at);
    if (end == std::string::npos) end = s.size() - 1;
    if (s[at] == '"') ++end;
    bool word = below(4) == 0;
    s.replace(at, end - at,
              word ? evil_words[below(std::size(evil_words))]
                   : evil_numbers[below(std::size(evil_numbers))]);
}

void damage(std::string& s) {
    if (s.empty()) return;
    size_t at = below(s.size()),
           length = 1 + below(std::min<size_t>(s.size() - at, below(2) ? 8 : 400));
    switch (below(8)) {
        case 0: s[at] = char(s[at] ^ (1 << below(8))); break;
        case 1: s[at] = char(random_bits()); break;
        case 2: s.resize(at); break;
        case 3: s.erase(at, length); break;
        case 4: s.insert(at, s.substr(at, length)); break;
        case 5: s.insert(at, std::string(length, "[{\"\0\xff ,:"[below(9)])); break;
        case 6: s.replace(at, length, s.substr(below(s.size()), length)); break;
        case 7: replace_token(s); break;
    }
}

// Changes a tensor's shape and gives it offsets that fit, as far as 64 bits allow: the header is
// consistent, but wrong.
void reshape_tensor(std::string& header) {
    nlohmann::json h = nlohmann::json::parse(header, nullptr, false);
    if (!h.is_object() || h.empty()) return;
    auto tensor = std::next(h.begin(), long(below(h.size())));
    if (!tensor->is_object() || !tensor->contains("shape") || !tensor->contains("data_offsets"))
        return;
    nlohmann::json &shape = (*tensor)["shape"], &offsets = (*tensor)["data_offsets"];
    if (!shape.is_array() || shape.empty() || !offsets.is_array() || offsets.size() != 2 ||
        !offsets[0].is_number_unsigned())
        return;
    shape[below(shape.size())] = below(2) ? uint64_t(1) << below(64) : 1 + below(100'000);
    if (below(4) == 0) shape.push_back(uint64_t(1) << below(64));
    uint64_t bytes = (*tensor)["dtype"] == "F32" ? 4 : 2;
    for (const auto& size : shape) bytes *= size.is_number_unsigned() ? size.get<uint64_t>() : 1;
    if (below(4) == 0) offsets[0] = random_bits() >> below(64);
    offsets[1] = offsets[0].get<uint64_t>() + bytes;
    header = h.dump();
}

// Damages the header's text and puts the matching length before it, so that the damage passes the
// first check.
void damage_safetensors(std::string& s) {
    uint64_t length = 0;
    if (s.size() < 8) return;
    std::memcpy(&length, s.data(), 8);
    if (length > s.size() - 8) return;
    std::string header = s.substr(8, length), data = s.substr(8 + length);
    if (below(3) == 0)
        reshape_tensor(header);
    else
        for (size_t i = 0; i <= below(4); ++i) below(3) ? replace_token(header) : damage(header);
    if (below(8) == 0) damage(data);
    length = header.size() + (below(16) ? 0 : below(9) - 4);
    if (below(64) == 0) length = random_bits() >> below(64);
    s = std::string(reinterpret_cast<const char*>(&length), 8) + header + data;
}

// Damages the header words of a token file, which determine what its reader does.
void damage_words(std::string& s) {
    const int32_t words[] = {20240520,
                             20240801,
                             1,
                             7,
                             0,
                             -1,
                             INT32_MAX,
                             INT32_MIN,
                             int32_t(s.size() / 2),
                             int32_t(s.size() / 4)};
    size_t at = 4 * below(3);
    if (s.size() >= at + 4) std::memcpy(&s[at], &words[below(std::size(words))], 4);
}

struct Fuzzer {
    std::string dir;
    std::map<std::string, std::string> seeds;  // valid files
    int64_t accepted = 0, refused = 0;

    void put(const std::string& name, const std::string& bytes) {
        std::ofstream(dir + "/" + name, std::ios::binary) << bytes;
    }

    template <class Read>
    void attempt(Read read) {
        try {
            read();
            ++accepted;
        } catch (const UserError& e) {
            ++refused;
            if (std::string(e.what()).find('\n') == std::string::npos) return;
            std::fprintf(stderr, "fuzz: an error of several lines: %s\nfuzz: files in %s\n",
                         e.what(), dir.c_str());
            std::abort();
        } catch (const std::exception& e) {
            std::fprintf(stderr, "fuzz: an exception other than UserError: %s\nfuzz: files in %s\n",
                         e.what(), dir.c_str());
            std::abort();
        }
    }

    void make_seeds(const LlamaConfig& config, ParameterList& parameters,
                    const std::vector<TensorPart>& optimizer) {
        TrainingState state{.step = 3,
                            .next_sample = 24,
                            .tokens_seen = 1000,
                            .seed = 7,
                            .data = "/data.bin",
                            .data_tokens = 1000};
        save_checkpoint(dir, config, parameters,
                        {.dtype = DType::bf16,
                         .max_shard_bytes = 300,
                         .state = &state,
                         .optimizer = optimizer});
        for (const auto& f : fs::directory_iterator(dir)) {
            std::ifstream in(f.path(), std::ios::binary);
            seeds[f.path().filename()] = std::string(std::istreambuf_iterator<char>(in), {});
        }
        LlamaConfig experts = preset("nano-moe");
        seeds["mixtral.json"] = config_json(experts, DType::fp32);
        seeds["deepseek.json"] = config_json(preset("moe-16b"), DType::fp32);
        experts.head_norms = true;
        seeds["qwen3_moe.json"] = config_json(experts, DType::fp32);
        std::string header(1024, '\0'), tokens(200, '\1');
        const int32_t words[] = {20240520, 1, 100, 20240801, 7, 50};
        seeds["bare.bin"] = seeds["text.txt"] = tokens;
        std::memcpy(header.data(), words, 12);
        seeds["gpt2.bin"] = header + tokens;
        std::memcpy(header.data(), words + 3, 12);
        seeds["llama3.bin"] = header + tokens;
    }

    void round(ParameterList& parameters, const std::vector<TensorPart>& optimizer) {
        auto victim = std::next(seeds.begin(), long(below(seeds.size())));
        const std::string& name = victim->first;
        std::string bytes = victim->second;
        for (size_t i = 0; i <= below(3); ++i) {
            if (name.ends_with(".safetensors") && below(4))
                damage_safetensors(bytes);
            else if (name.ends_with(".bin") && below(2))
                damage_words(bytes);
            else if (name.ends_with(".json") && below(2))
                replace_token(bytes);
            else
                damage(bytes);
        }
        put(name, bytes);
        if (name.ends_with(".bin") || name.ends_with(".txt")) {
            for (int64_t vocab : {2, 256, 65536, 100000})
                attempt([&] {
                    TokenFile file(dir + "/" + name, vocab);
                    DataLoader loader(file, {.seq = 9, .shuffle_seed = 1, .document_token = 1});
                    loader.batch(int64_t(random_bits() >> 2), 3);
                });
        } else {
            attempt([&] { load_config(dir); });
            if (name.ends_with(".json")) attempt([&] { load_config(dir + "/" + name); });
            attempt([&] { load_parameters(dir, parameters); });
            attempt([&] { load_training_state(dir, optimizer); });
            if (name.ends_with(".safetensors"))
                attempt([&] {  // reads every tensor that the header lists
                    Safetensors file = Safetensors::file(dir + "/" + name);
                    for (const auto& [tensor, entry] : file.entries())
                        attempt([&] {
                            for (size_t i = 0; i + 1 < size_t(entry.bytes); i += 509)
                                random_bits.discard(entry.data[i] & 1);
                            if (entry.bytes < 1'000'000)
                                file.read(
                                    tensor, entry.shape, {},
                                    Tensor::empty(entry.shape, DType::fp32, Memory::workspace));
                        });
                });
        }
        put(name, victim->second);
    }
};

}  // namespace

int main(int argc, char** argv) {
    const double seconds = argc > 1 ? std::atof(argv[1]) : 10;
    const uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 10)
                                   : uint64_t(getpid()) << 32 ^ uint64_t(time(nullptr));
    random_bits.seed(seed);
    std::printf("fuzz: %.0f s, seed %llu\n", seconds, static_cast<unsigned long long>(seed));

    std::string pattern = (fs::temp_directory_path() / "ultrascale-fuzz-XXXXXX").string();
    if (!mkdtemp(pattern.data())) return 1;
    Fuzzer fuzzer{.dir = pattern};
    LlamaConfig config{.layers = 1,
                       .hidden = 4,
                       .heads = 2,
                       .kv_heads = 1,
                       .head_dim = 2,
                       .ffn = 6,
                       .vocab = 8,
                       .tied = true};
    config.rope_scaling.type = RopeScaling::Type::llama3;
    ParameterList parameters;
    parameters.add({.name = "model.embed_tokens.weight", .shape = {8, 4}});
    for (const char* name : {"q", "k", "v", "o"})
        parameters.add({.name = fmt::format("model.layers.0.self_attn.{}_proj.weight", name),
                        .shape = {4, 4}});
    parameters.add({.name = "model.layers.0.mlp.experts.gate_up_proj", .shape = {2, 4, 4}});
    parameters.add(
        {.name = "model.norm.weight", .shape = {4}, .init = Init::ones, .decays = false});
    parameters.allocate_values(DType::fp32);
    std::vector<float> ones(size_t(parameters.local_numel()), 1);
    Tensor(parameters.flat_values()).copy_from_host(ones.data());
    std::vector<TensorPart> optimizer = {
        {"exp_avg.model.norm.weight", Tensor::zeros({4}, DType::fp32, Memory::optimizer)}};
    fuzzer.make_seeds(config, parameters, optimizer);

    const auto start = std::chrono::steady_clock::now();
    int64_t rounds = 0;
    while (std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() <
           seconds) {
        fuzzer.round(parameters, optimizer);
        ++rounds;
    }
    std::printf("fuzz: %lld damaged files, %lld reads accepted, %lld refused, no crash\n",
                static_cast<long long>(rounds), static_cast<long long>(fuzzer.accepted),
                static_cast<long long>(fuzzer.refused));
    fs::remove_all(fuzzer.dir);
}
