// Runs a chapter's program like a user, and reads its exit code, both outputs, and the lines of
// --json. CHAPTERS_DIR says where the programs are (default: next to the test program), so that the
// same tests can test a sanitizer's build. MPIRUN is the launcher with its flags, for the MPI with
// which the programs were built (default: MPICH's, or whatever mpirun is).
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "tests/test_files.h"

namespace ultrascale::test {

using Json = nlohmann::ordered_json;

// The chapters are built next to this test program, in build/cpu or build/cuda.
inline const std::filesystem::path built =
    std::filesystem::read_symlink("/proc/self/exe").parent_path();
inline const bool on_gpu = built.filename().string().starts_with("cuda");

inline const int patience = 300;  // seconds after which a program is killed and its test fails

struct Outcome {
    int exit_code = -1;  // 128 + the signal that ended it
    std::string out, err;
    // its ranks shared a GPU, so they communicated through the host while nothing was computed
    bool through_host = false;
    std::vector<Json> steps;  // --json's lines
    std::vector<Json> rows;   // the lines that are a table's rows
    Json summary;             // the last line

    std::vector<double> of(const char* field) const;  // a field of each step
};

std::string program(const std::string& chapter);  // its path
bool contains(const std::string& text, const std::string& part);

// All of these also expect that no line of the output is wider than 100 columns.
Outcome run(const std::string& chapter, const std::string& arguments);  // without the launcher
// Runs on `ranks` ranks, which all get the same arguments.
Outcome run_ranks(int ranks, const std::string& chapter, const std::vector<std::string>& arguments,
                  int seconds = patience);
Outcome run_ranks(int ranks, const std::string& chapter, const std::string& arguments,
                  int seconds = patience);
// Starts one rank for each of `commands`: "program arguments", or "taskset -c CORES program
// arguments".
Outcome run_each_rank(const std::vector<std::string>& commands, int seconds = patience);

// Trains on `ranks` ranks (0: without the launcher). Adds --json and, if it is a run, a fixed
// --peak-tflops (so that nothing is measured), expects success, and reads the JSON lines.
Outcome train(int ranks, const std::string& chapter, const std::string& arguments,
              int expected_exit_code = 0);
Outcome train(const std::string& chapter, const std::string& arguments, int expected_exit_code = 0);

// Returns a config.json of a small Llama; null in `changes` removes a field.
std::string config_json(const Json& changes = Json::object());

// Tries a check of times several times: other programs on the machine may take a rank's core for
// longer than the time that is measured.
bool in_one_of_six_tries(const std::function<bool()>& attempt);

}  // namespace ultrascale::test
