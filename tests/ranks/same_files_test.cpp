// Ranks whose hosts have other files under the same name (part of comm_test).
#include "lab/options/same_files.h"

#include <gtest/gtest.h>

#include <fstream>

#include "core/error.h"
#include "test_files.h"

namespace ultrascale {
namespace {

const Communicator& world() { return Communicator::world(); }
int last() { return world().size() - 1; }

// The error of check_same_files() if the last rank has `theirs` and the others `ours`; on host
// "h0", "h1", ... each.
std::string error_of(const std::map<std::string, FileDigest>& ours,
                     const std::map<std::string, FileDigest>& theirs) {
    const bool differs = world().rank() == last();
    try {
        check_same_files(world(), "h" + std::to_string(world().rank()), differs ? theirs : ours);
    } catch (const UserError& error) {
        return error.what();
    }
    return "";
}

TEST(SameFiles, OneRankHasAnotherFile) {
    if (world().size() < 2) GTEST_SKIP() << "needs two ranks";
    const std::string other = fmt::format("rank {0} on h{0}", last());
    const std::map<std::string, FileDigest> ours{{"data.bin", {5, 1}}, {"/proc/self/exe", {9, 2}}};
    std::map<std::string, FileDigest> theirs = ours;
    EXPECT_EQ(error_of(ours, theirs), "");
    theirs["data.bin"].hash = 7;
    EXPECT_EQ(error_of(ours, theirs), "data.bin: " + other +
                                          " has another file of this name than rank 0 on h0: they "
                                          "have the same size, but other contents");
    theirs["data.bin"].bytes = 4;
    EXPECT_EQ(error_of(ours, theirs),
              "data.bin: " + other +
                  " has another file of this name than rank 0 on h0: 4 bytes against 5 bytes");
    theirs.erase("data.bin");
    EXPECT_EQ(error_of(ours, theirs), other +
                                          " finds no data.bin, which rank 0 on h0 has: is it on a "
                                          "disk that the hosts share?");
    EXPECT_EQ(error_of(theirs, ours), "rank 0 on h0 finds no data.bin, which " + other +
                                          " has: is it on a disk that the hosts share?");
    theirs = ours, theirs["/proc/self/exe"].hash = 3;
    EXPECT_EQ(error_of(ours, theirs), other +
                                          " runs another build of this program than rank 0 on h0: "
                                          "copy one to all hosts");
}

// A changed byte is seen in a file of up to 256 KiB wherever it is, and a changed length always.
TEST(SameFiles, DigestsSeeAChangedByte) {
    const test::TempDir dir;
    const auto digest = [&](int64_t bytes, int64_t changed) {
        const std::string path = dir / "tokens.bin";
        std::string text(size_t(bytes), 'a');
        if (changed >= 0) text[size_t(changed)] = 'b';
        std::ofstream(path) << text;
        return digests_of(path).at(path);
    };
    for (const int64_t bytes : {1, 4096, 4097, 262144}) {
        EXPECT_EQ(digest(bytes, -1), digest(bytes, -1));
        for (const int64_t changed : {int64_t(0), bytes / 2, bytes - 1})
            EXPECT_NE(digest(bytes, -1), digest(bytes, changed)) << bytes << " " << changed;
    }
    for (const int64_t changed : {0, 999'999})
        EXPECT_NE(digest(1'000'000, -1), digest(1'000'000, changed));
    EXPECT_NE(digest(1'000'000, -1), digest(1'000'001, -1));
}

// A folder stands for a checkpoint's files; what is missing is no file.
TEST(SameFiles, FoldersAreTheirCheckpointsFiles) {
    const test::TempDir dir;
    for (const char* name : {"config.json", "model.safetensors", "notes.txt"})
        std::ofstream(dir / name) << name;
    const auto found = digests_of(dir.path());
    EXPECT_EQ(found.size(), 2u);
    EXPECT_EQ(found.at(dir / "config.json").bytes, 11);
    EXPECT_TRUE(digests_of(dir / "none").empty());
}

}  // namespace
}  // namespace ultrascale
