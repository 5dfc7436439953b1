// Calls an installed solver of integer programs and reads its result. HiGHS, CBC (Debian's
// coinor-cbc) and GLPK (glpk-utils) all read the LP format; the first one on PATH is used.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "core/error.h"
#include "files/file.h"
#include "integer_program.h"

namespace ultrascale::pipeline {

inline constexpr const char* solver_names[] = {"highs", "cbc", "glpsol"};

// The first solver that can be run; empty if none can.
inline std::string installed_solver() {
    const char* path = std::getenv("PATH");
    for (const std::string name : solver_names) {
        std::istringstream directories(path ? path : "");
        for (std::string directory; std::getline(directories, directory, ':');)
            if (!directory.empty() && access((directory + "/" + name).c_str(), X_OK) == 0)
                return name;
    }
    return "";
}

struct SolverAnswer {
    enum Status {
        optimal,
        feasible,  // the time was over before the solver knew whether there is a better one
        infeasible,
        unknown  // nothing found in time
    };
    Status status = unknown;
    std::map<std::string, double> values;  // of the variables, by name
    double bound = -1;                     // no solution is below; -1: the solver did not say
};

// A temporary directory for the solver's files, removed at the end.
class TemporaryDirectory {
public:
    TemporaryDirectory() {
        std::string pattern = (std::filesystem::temp_directory_path() / "pipeline_XXXXXX").string();
        if (!mkdtemp(pattern.data())) user_error("{}: cannot be made", pattern);
        path_ = pattern;
    }
    TemporaryDirectory(const TemporaryDirectory&) = delete;
    ~TemporaryDirectory() {
        std::error_code ignored;
        std::filesystem::remove_all(path_, ignored);
    }
    std::string file(const char* name) const { return path_ + "/" + name; }

private:
    std::string path_;
};

namespace solvers {

// The number after the first occurrence of a word in a log, or `otherwise`.
inline double number_after(const std::string& log, const std::string& word, double otherwise) {
    const size_t at = log.find(word);
    if (at == std::string::npos) return otherwise;
    std::istringstream rest(log.substr(at + word.size()));
    double number = otherwise;
    return rest >> number ? number : otherwise;
}

// "Optimal - objective value 36", then a line for each variable: number, name, value, reduced cost.
// Two stars mark what CBC could not satisfy exactly.
inline SolverAnswer read_cbc(const std::string& solution, const std::string& log) {
    SolverAnswer answer;
    std::istringstream lines(solution);
    std::string line;
    std::getline(lines, line);
    answer.status = line.starts_with("Optimal")      ? SolverAnswer::optimal
                    : line.starts_with("Infeasible") ? SolverAnswer::infeasible
                    : line.starts_with("Stopped") && line.find("no integer") == std::string::npos
                        ? SolverAnswer::feasible
                        : SolverAnswer::unknown;
    answer.bound = number_after(log, "Lower bound:", -1);
    while (std::getline(lines, line)) {
        std::istringstream words(line);
        std::string number, name;
        double value = 0;
        words >> number;
        if (number == "**") words >> number;
        if (words >> name >> value) answer.values[name] = value;
    }
    return answer;
}

// A report for people: after the heading "Column name", a line for each variable, with a star if it
// is an integer.
inline SolverAnswer read_glpsol(const std::string& solution, const std::string& log) {
    SolverAnswer answer;
    const auto says = [&](const char* words) {
        return solution.find(words) != std::string::npos || log.find(words) != std::string::npos;
    };
    answer.status =
        says("INTEGER OPTIMAL")       ? SolverAnswer::optimal
        : says("INTEGER NON-OPTIMAL") ? SolverAnswer::feasible
        : says("NO PRIMAL FEASIBLE") || says("NO INTEGER FEASIBLE") || says("INTEGER EMPTY")
            ? SolverAnswer::infeasible
            : SolverAnswer::unknown;
    const size_t heading = std::min(solution.find("Column name"), solution.size());
    std::istringstream lines(solution.substr(heading));
    for (std::string line; std::getline(lines, line) && line.find("Integer feas") != 0;) {
        std::istringstream words(line);
        std::string number, name, value;
        words >> number >> name >> value;
        if (value == "*") words >> value;
        char* end = nullptr;
        const double found = std::strtod(value.c_str(), &end);
        if (!value.empty() && *end == 0) answer.values[name] = found;
    }
    return answer;
}

// "Model status", the status, and after "# Columns" a line for each variable: name, value.
inline SolverAnswer read_highs(const std::string& solution, const std::string& log) {
    SolverAnswer answer;
    const bool found = solution.find("\nFeasible\n") != std::string::npos;
    answer.status =
        solution.find("Model status\nOptimal") != std::string::npos      ? SolverAnswer::optimal
        : solution.find("Model status\nInfeasible") != std::string::npos ? SolverAnswer::infeasible
        : found                                                          ? SolverAnswer::feasible
                                                                         : SolverAnswer::unknown;
    answer.bound = number_after(log, "Dual bound", -1);
    std::istringstream lines(
        solution.substr(std::min(solution.find("# Columns"), solution.size())));
    std::string line;
    std::getline(lines, line);
    while (std::getline(lines, line) && !line.starts_with("#")) {
        std::istringstream words(line);
        std::string name;
        double value = 0;
        if (words >> name >> value) answer.values[name] = value;
    }
    return answer;
}

inline std::string text_if_there(const std::string& path) {
    return std::filesystem::exists(path) ? std::string(MappedFile(path).text()) : "";
}

}  // namespace solvers

// Runs a solver for at most `seconds` seconds. Throws UserError, with the last line of its output,
// if it fails.
inline SolverAnswer solve(const std::string& solver, const std::string& program, int seconds) {
    const TemporaryDirectory directory;
    const std::string model = directory.file("schedule.lp"), out = directory.file("solution.txt"),
                      log = directory.file("log.txt");
    write_file(model, program);
    const std::string command =
        solver == "cbc" ? fmt::format("cbc '{}' timeMode elapsed sec {} solve solution '{}'", model,
                                      seconds, out)
        : solver == "glpsol"
            ? fmt::format("glpsol --lp '{}' --tmlim {} -o '{}'", model, seconds, out)
            : fmt::format("highs --time_limit {} --solution_file '{}' '{}'", seconds, out, model);
    const int failed = std::system(fmt::format("{} >'{}' 2>&1 </dev/null", command, log).c_str());
    const std::string said = solvers::text_if_there(log), found = solvers::text_if_there(out);
    SolverAnswer answer = solver == "cbc"      ? solvers::read_cbc(found, said)
                          : solver == "glpsol" ? solvers::read_glpsol(found, said)
                                               : solvers::read_highs(found, said);
    if (found.empty() && answer.status != SolverAnswer::infeasible) {
        const size_t end = said.find_last_not_of(" \n") + 1, line = said.rfind('\n', end);
        user_error("--schedule optimal: {} found no answer (exit code {}): {}", solver, failed,
                   printable(said.substr(line == std::string::npos ? 0 : line + 1)));
    }
    return answer;
}

}  // namespace ultrascale::pipeline
