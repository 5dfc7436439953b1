// Files on a full disk: a file ends with a whole line, or it is still the previous file. A limit of
// this process on the size of its files stands in for the full disk.
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <filesystem>

#include "comm/comm.h"
#include "files/file.h"
#include "lab/report/json_lines.h"
#include "tests/test_files.h"

namespace ultrascale {
namespace {

using test::expect_error;
using test::put;
using test::slurp;
using test::TempDir;

// While an object of this type lives, no file can grow beyond a number of bytes.
class FullDisk {
public:
    explicit FullDisk(rlim_t bytes) {
        Communicator::world();  // its start needs larger files
        getrlimit(RLIMIT_FSIZE, &before_);
        rlimit limit = before_;
        limit.rlim_cur = bytes;
        setrlimit(RLIMIT_FSIZE, &limit);
    }
    FullDisk(const FullDisk&) = delete;
    ~FullDisk() {
        setrlimit(RLIMIT_FSIZE, &before_);
        std::signal(SIGXFSZ, handler_);
    }

private:
    rlimit before_{};
    void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST(FullDisk, LinesOfJsonAreWhole) {
    const TempDir dir;
    const std::string file = dir / "run.jsonl", line = R"({"a line": "of 34 bytes, its end"})";
    ASSERT_NE(1000 % (line.size() + 1), 0u);
    {
        JsonLines lines(file);
        const FullDisk disk(1000);
        int written = 0;
        expect_error(
            [&] {
                for (;; ++written) lines.write(line);
            },
            "run.jsonl: cannot be written: ");
        EXPECT_EQ(written, 28);
    }
    std::string all;
    for (int i = 0; i < 28; ++i) all += line + "\n";
    EXPECT_EQ(slurp(file), all);
}

TEST(FullDisk, OtherFilesStayAsTheyWere) {
    const TempDir dir;
    put(dir / "trace.json", "before\n");
    put(dir / "saved.safetensors", "before\n");
    {
        const FullDisk disk(1000);
        expect_error([&] { write_file(dir / "trace.json", std::string(1001, 'x')); },
                     "trace.json: cannot be written: ");
        expect_error(
            [&] {
                StagedFiles staged(dir.path());
                write_file(staged.staging() + "/saved.safetensors", std::string(1001, 'x'));
                staged.commit();
            },
            "saved.safetensors: cannot be written: ");
    }
    for (const char* file : {"trace.json", "saved.safetensors"})
        EXPECT_EQ(slurp(dir / file), "before\n") << file;
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 2);
}

}  // namespace
}  // namespace ultrascale
