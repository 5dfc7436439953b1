#include "same_files.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "comm/nodes.h"
#include "core/error.h"

namespace ultrascale {
namespace {

namespace fs = std::filesystem;

FileDigest digest_of(const fs::path& file) {
    constexpr int64_t block = 4096, blocks = 64;
    std::error_code ignored;
    FileDigest digest{.bytes = int64_t(fs::file_size(file, ignored))};
    std::ifstream in(file, std::ios::binary);
    std::string text(block, '\0');
    const int64_t last = std::max<int64_t>(digest.bytes - block, 0);
    for (int64_t i = 0; i < blocks; ++i) {
        const int64_t begin = digest.bytes <= block * blocks ? i * block : last * i / (blocks - 1);
        if (begin >= digest.bytes) break;
        in.clear();
        in.seekg(begin);
        in.read(text.data(), block);
        digest.hash =
            digest.hash * 31 + std::hash<std::string_view>{}({text.data(), size_t(in.gcount())});
    }
    return digest;
}

// Says how two files differ, each given as {bytes, hash}.
std::string difference(const nlohmann::json& a, const nlohmann::json& b) {
    const auto bytes_a = a.at(0).get<int64_t>(), bytes_b = b.at(0).get<int64_t>();
    if (bytes_a == bytes_b) return "they have the same size, but other contents";
    return fmt::format("{} bytes against {} bytes", bytes_a, bytes_b);
}

}  // namespace

std::map<std::string, FileDigest> digests_of(const std::string& path) {
    std::error_code ignored;
    if (fs::is_regular_file(path, ignored)) return {{path, digest_of(path)}};
    std::map<std::string, FileDigest> all;
    if (!fs::is_directory(path, ignored)) return all;
    for (const fs::directory_entry& entry : fs::directory_iterator(path, ignored))
        if (const std::string end = entry.path().extension();
            end == ".json" || end == ".safetensors")
            all[entry.path()] = digest_of(entry.path());
    return all;
}

void check_same_files(const Communicator& world, const std::string& host,
                      const std::map<std::string, FileDigest>& files) {
    nlohmann::json mine = {{"host", host}, {"files", nlohmann::json::object()}};
    for (const auto& [name, digest] : files) mine["files"][name] = {digest.bytes, digest.hash};
    // File names need not be UTF-8.
    const auto replace = nlohmann::json::error_handler_t::replace;
    std::vector<nlohmann::json> ranks;
    for (const std::string& rank : world.gather_strings(mine.dump(-1, ' ', false, replace)))
        ranks.push_back(nlohmann::json::parse(rank));
    const auto who = [&](size_t rank) {
        return fmt::format("rank {} on {}", rank, ranks[rank].at("host").get<std::string>());
    };
    const auto missing = [&](size_t without, size_t with, const std::string& name) {
        user_error("{} finds no {}, which {} has: is it on a disk that the hosts share?",
                   who(without), name, who(with));
    };
    for (size_t rank = 1; rank < ranks.size(); ++rank) {
        const nlohmann::json &first = ranks[0].at("files"), &here = ranks[rank].at("files");
        for (const auto& [name, found] : here.items())
            if (!first.contains(name)) missing(0, rank, name);
        for (const auto& [name, expected] : first.items()) {
            if (!here.contains(name)) missing(rank, 0, name);
            const nlohmann::json& found = here.at(name);
            if (found == expected) continue;
            if (name == this_program)
                user_error("{} runs another build of this program than {}: copy one to all hosts",
                           who(rank), who(0));
            user_error("{}: {} has another file of this name than {}: {}", name, who(rank), who(0),
                       difference(found, expected));
        }
    }
}

void check_same_on_all_hosts(const std::vector<std::string>& paths) {
    const Communicator& world = Communicator::world();
    if (ranks_on_this_node() == world.size()) return;
    std::map<std::string, FileDigest> files;
    for (const std::string& path : paths) files.merge(digests_of(path));
    const Nodes& hosts = machines();
    check_same_files(world, hosts.names[size_t(hosts.node_of(world.rank()))], files);
}

}  // namespace ultrascale
