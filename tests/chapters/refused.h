// Every program responds to wrong input with exit code 2 and one line on stderr that says what is
// wrong, and touches no output file.
#pragma once

#include <map>

#include "run_program.h"

namespace ultrascale::test {

namespace fs = std::filesystem;

// Returns every file below `dir` with its content.
inline std::map<std::string, std::string> files_in(const std::string& dir) {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir))
        if (entry.is_regular_file()) files[fs::relative(entry.path(), dir)] = slurp(entry.path());
    return files;
}

inline void expect_one_error_line(const Outcome& outcome, const std::vector<std::string>& telling) {
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_TRUE(outcome.err.starts_with("error: ")) << outcome.err;
    EXPECT_EQ(outcome.err.find('\n'), outcome.err.size() - 1) << outcome.err;  // one line, ended
    for (const std::string& part : telling)
        EXPECT_TRUE(contains(outcome.err, part)) << "without \"" << part << "\": " << outcome.err;
}

// Runs on `ranks` ranks (0: without the launcher) and asks for every kind of output. Some of these
// files exist before; all must be unchanged afterwards.
inline void expect_ranks_refuse(int ranks, const std::string& chapter, const std::string& arguments,
                                const std::vector<std::string>& telling) {
    SCOPED_TRACE(fmt::format("{} {}", chapter, arguments));
    TempDir outputs;
    put(outputs / "old.jsonl", "before\n");
    fs::create_directory(outputs / "saved");
    for (const char* file : {"config.json", "model.safetensors", "trainer_state.json"})
        put(outputs / "saved/" + file, "before\n");
    const auto before = files_in(outputs.path());
    const std::string all =
        fmt::format("--peak-tflops 1 --json {} --trace {} --save {} {}", outputs / "old.jsonl",
                    outputs / "new.trace", outputs / "saved", arguments);
    expect_one_error_line(ranks == 0 ? run(chapter, all) : run_ranks(ranks, chapter, all, 60),
                          telling);
    const auto after = files_in(outputs.path());
    for (const auto& [file, content] : after) EXPECT_TRUE(before.count(file)) << file << " is new";
    for (const auto& [file, content] : before)
        EXPECT_TRUE(after.count(file) && after.at(file) == content)
            << file << " was changed or removed";
}

// Does so with 00_single_gpu, on a short training.
inline void expect_refused(const std::string& arguments, const std::vector<std::string>& telling) {
    expect_ranks_refuse(0, "00_single_gpu", "--steps 2 --seq 32 " + arguments, telling);
}

}  // namespace ultrascale::test
