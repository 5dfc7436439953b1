#include "run_program.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <sstream>
#include <thread>

namespace ultrascale::test {

std::vector<double> Outcome::of(const char* field) const {
    std::vector<double> values;
    for (const Json& step : steps) values.push_back(step.at(field).get<double>());
    return values;
}

std::string program(const std::string& chapter) {
    const char* dir = std::getenv("CHAPTERS_DIR");
    return (dir ? dir : built.string()) + "/" + chapter;
}

bool contains(const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
}

// Splits at spaces; a test's paths have none.
static std::vector<std::string> words(const std::string& text) {
    std::istringstream in(text);
    std::vector<std::string> all;
    for (std::string word; in >> word;) all.push_back(word);
    return all;
}

// A projector shows 100 columns. Lines that name a file may be longer, because of its path.
static void expect_no_long_lines(const std::string& text) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        const auto columns = std::ranges::count_if(line, [](char c) { return (c & 0xc0) != 0x80; });
        EXPECT_TRUE(columns <= 100 || contains(line, " /") || contains(line, " ../") ||
                    contains(line, "/tokens.bin"))
            << columns << " columns: " << line;
    }
}

// Runs the command with no input; ends it after `seconds`.
static Outcome run_command(const std::vector<std::string>& command, int seconds) {
    TempDir dir;
    std::vector<char*> argv;
    for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
    argv.push_back(nullptr);
    const std::string out = dir / "out", err = dir / "err";
    const pid_t child = fork();
    if (child == 0) {
        setpgid(0, 0);
        setenv("ASAN_OPTIONS", "detect_leaks=0",
               0);  // MPI libraries keep what they allocated until the end
        setenv("OMP_WAIT_POLICY", "passive",
               0);  // threads that wait do not spin: tests share the machine
        dup2(open("/dev/null", O_RDONLY), 0);
        dup2(open(out.c_str(), O_WRONLY | O_CREAT, 0600), 1);
        dup2(open(err.c_str(), O_WRONLY | O_CREAT, 0600), 2);
        execvp(argv[0], argv.data());
        _exit(127);
    }
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
    int status = 0;
    while (waitpid(child, &status, WNOHANG) == 0) {
        if (std::chrono::steady_clock::now() > end) {
            ADD_FAILURE() << "still running after " << seconds << " s: " << command.front();
            kill(-child, SIGKILL);
            waitpid(child, &status, 0);
            break;
        }
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    Outcome outcome{.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
                    .out = slurp(out),
                    .err = slurp(err)};
    expect_no_long_lines(outcome.out);
    return outcome;
}

Outcome run(const std::string& chapter, const std::string& arguments) {
    std::vector<std::string> command = words(arguments);
    command.insert(command.begin(), program(chapter));
    return run_command(command, patience);
}

// Returns the launcher's command, ready for "-n 2 program ...".
static std::vector<std::string> mpirun() {
    if (const char* given = std::getenv("MPIRUN")) return words(given);
    return {std::system("command -v mpirun.mpich >/dev/null") == 0 ? "mpirun.mpich" : "mpirun"};
}

// Returns the programs' own output, without Open MPI's remarks, which are between lines of dashes,
// and without the line that says that ranks share a GPU.
static std::string without_launcher(const std::string& text) {
    std::istringstream lines(text);
    std::string kept;
    bool remark = false;
    for (std::string line; std::getline(lines, line);) {
        if (line.size() > 50 && line.find_first_not_of('-') == std::string::npos)
            remark = !remark;
        else if (!remark && !(on_gpu && line.find(" ranks share ") != std::string::npos))
            kept += line + "\n";
    }
    return kept;
}

static Outcome run_mpi(std::vector<std::string> command, int seconds) {
    Outcome outcome = run_command(command, seconds);
    outcome.through_host = contains(outcome.err, "communication goes through the host");
    outcome.err = without_launcher(outcome.err);
    return outcome;
}

Outcome run_ranks(int ranks, const std::string& chapter, const std::vector<std::string>& arguments,
                  int seconds) {
    std::vector<std::string> command = mpirun();
    for (const std::string& word : {std::string("-n"), fmt::format("{}", ranks), program(chapter)})
        command.push_back(word);
    command.insert(command.end(), arguments.begin(), arguments.end());
    return run_mpi(std::move(command), seconds);
}
Outcome run_ranks(int ranks, const std::string& chapter, const std::string& arguments,
                  int seconds) {
    return run_ranks(ranks, chapter, words(arguments), seconds);
}

Outcome run_each_rank(const std::vector<std::string>& commands, int seconds) {
    std::vector<std::string> all = mpirun();
    for (const std::string& rank_command : commands) {
        std::vector<std::string> command = words(rank_command);
        std::string& name = command[command[0] == "taskset" ? 3 : 0];
        name = program(name);
        if (&rank_command != &commands[0]) all.push_back(":");
        for (const char* word : {"-n", "1"}) all.push_back(word);
        all.insert(all.end(), command.begin(), command.end());
    }
    return run_mpi(std::move(all), seconds);
}

Outcome train(int ranks, const std::string& chapter, const std::string& arguments,
              int expected_exit_code) {
    TempDir dir;
    SCOPED_TRACE(fmt::format("{} ranks: {} {}", ranks, chapter, arguments));
    // The other modes do not train, or not long enough for a meaningful speed.
    std::vector<std::string> modes = {"--estimate", "--plan", "--explain-layout", "--rehearse"};
    if (chapter == "09_5d_parallel") modes.push_back("--compare");
    const bool runs = std::ranges::none_of(
        modes, [&](const std::string& mode) { return contains(arguments, mode); });
    const std::string all =
        fmt::format("{}--json {} {}", runs ? "--peak-tflops 1 " : "", dir / "out.jsonl", arguments);
    Outcome result = ranks == 0 ? run(chapter, all) : run_ranks(ranks, chapter, all);
    EXPECT_EQ(result.exit_code, expected_exit_code) << result.err << result.out;
    EXPECT_TRUE(result.err.empty() || expected_exit_code != 0) << result.err;
    std::istringstream lines(slurp(dir / "out.jsonl"));
    for (std::string line; std::getline(lines, line);) {
        Json json = Json::parse(line, nullptr, false);
        EXPECT_TRUE(json.is_object()) << line;
        if (!json.is_object()) continue;
        EXPECT_TRUE(result.summary.is_null()) << "the summary is the last line";
        if (json.contains("summary"))
            result.summary = json["summary"];
        else if (json.contains("row"))
            result.rows.push_back(json["row"]);
        else if (!json.contains("by_rank") && !json.contains("checksums"))
            result.steps.push_back(json);
    }
    EXPECT_TRUE(result.summary.is_object()) << "no summary";
    return result;
}
Outcome train(const std::string& chapter, const std::string& arguments, int expected_exit_code) {
    return train(0, chapter, arguments, expected_exit_code);
}

std::string config_json(const Json& changes) {
    Json config = {
        {"model_type", "llama"}, {"hidden_act", "silu"},          {"num_hidden_layers", 2},
        {"hidden_size", 48},     {"num_attention_heads", 4},      {"num_key_value_heads", 2},
        {"head_dim", 12},        {"intermediate_size", 80},       {"vocab_size", 256},
        {"rms_norm_eps", 1e-5},  {"max_position_embeddings", 64}, {"tie_word_embeddings", false}};
    for (const auto& [key, value] : changes.items()) {
        if (value.is_null())
            config.erase(key);
        else
            config[key] = value;
    }
    return config.dump(2);
}

bool in_one_of_six_tries(const std::function<bool()>& attempt) {
    for (int i = 0; i < 6; ++i)
        if (attempt()) return true;
    return false;
}

}  // namespace ultrascale::test
