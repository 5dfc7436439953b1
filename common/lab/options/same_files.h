// Ranks on several hosts may find different files under the same name, or an older build of the
// program. Then they would train on, each with its own data, and no number would be right.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "comm/comm.h"

namespace ultrascale {

// Files by name, with what is compared of each: the size and a hash of up to 64 blocks of 4 KiB,
// which are spread over the file (smaller files are hashed whole). A folder stands for its .json
// and .safetensors files. What does not exist is left out.
struct FileDigest {
    int64_t bytes = 0;
    size_t hash = 0;
    bool operator==(const FileDigest&) const = default;
};
std::map<std::string, FileDigest> digests_of(const std::string& path);

// All ranks call it, each with its host's name and digests. Throws UserError on all of them, naming
// rank, host and file, if a rank has not the files of rank 0.
void check_same_files(const Communicator& world, const std::string& host,
                      const std::map<std::string, FileDigest>& files);

// All ranks call it: check_same_files() for these paths, if the ranks are on more than one host.
// Paths that name nothing, such as an empty one, are skipped.
void check_same_on_all_hosts(const std::vector<std::string>& paths);
// The path of the program that runs.
inline constexpr const char* this_program = "/proc/self/exe";

}  // namespace ultrascale
