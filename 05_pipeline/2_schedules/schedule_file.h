// A schedule in a text file (--schedule file:PATH), a line a rank:
//
//     # 1F1B on two ranks
//     0: F0 F1 D0 F2 D1 D2
//     1: F0 D0 F1 D1 F2 D2
//
// Rank r holds stage r, unless the file says which stages each rank has. Actions then name the
// chunk by its letter, in the order of the stages:
//
//     stages: 0 3 | 1 2
//     0: F0a F1a F0b B0b W0b ...
//     1: F0a F0b B0b ...
//
// A plus sign joins two actions that run together (F4a+D1b). If the model exists twice, a stage
// with an apostrophe belongs to the second copy: "stages: 0 1' | 1 0'". That copy takes the second
// half of the micro-batches. A # begins a comment.
#pragma once

#include <charconv>
#include <map>
#include <string_view>

#include "check.h"
#include "core/memory.h"
#include "files/file.h"
#include "placement.h"

namespace ultrascale::pipeline {

class ScheduleReader {
public:
    // `text` is the file's content. Errors begin with its name and the line.
    ScheduleReader(const std::string& file, std::string_view text) : file_(file), text_(text) {}

    // Throws UserError if a line cannot be read. check.h says whether the schedule can run.
    Schedule read() {
        for (std::string_view rest = text_; !rest.empty();) {
            const size_t end = std::min(rest.find('\n'), rest.size());
            ++line_;
            line(rest.substr(0, end));
            rest.remove_prefix(std::min(end + 1, rest.size()));
        }
        if (lists_.empty())
            user_error("{}: it has no rank's list; a line like \"0: F0 D0\" is one", file_);
        const int ranks = lists_.rbegin()->first + 1;
        if (int(lists_.size()) != ranks) {
            int missing = 0;
            while (lists_.contains(missing)) ++missing;
            user_error("{}: there is a list for rank {} and none for rank {}", file_, ranks - 1,
                       missing);
        }
        if (stages_.empty()) stages_ = looped(ranks, 1);
        if (int(stages_.size()) != ranks)
            user_error("{}:{}: stages of {}, but lists of {}", file_, stages_line_,
                       format_count(int64_t(stages_.size()), "rank"), ranks);
        Schedule schedule = empty_schedule("file:" + file_, micro_batches_, stages_);
        for (auto& [rank, list] : lists_) {
            letters(rank, list);
            schedule.actions[size_t(rank)] = std::move(list.actions);
        }
        return schedule;
    }

private:
    struct List {
        int line;
        std::vector<Action> actions;  // chunk -1: no letter
    };
    static constexpr int most = 1 << 20;  // ranks, stages, micro-batches

    template <class... Args>
    [[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) const {
        user_error("{}:{}: {}", file_, line_, fmt::format(format, std::forward<Args>(args)...));
    }

    void line(std::string_view words) {
        words = words.substr(0, words.find('#'));
        if (words.find_first_not_of(blanks) == std::string_view::npos) return;
        const size_t colon = words.find(':');
        if (colon == std::string_view::npos)
            fault("no colon; a line is a rank and its actions, like \"0: F0 D0\"");
        const std::vector<std::string_view> head = split(words.substr(0, colon), blanks);
        const std::vector<std::string_view> rest = split(words.substr(colon + 1), blanks);
        if (head.size() == 1 && head[0] == "stages") return stages(rest);
        int rank = 0;
        std::string_view number = head.size() == 1 ? head[0] : "";
        if (!take_number(number, rank) || !number.empty())
            fault("\"{}\" before the colon is neither a rank nor \"stages\"",
                  printable(words.substr(0, colon)));
        if (const auto before = lists_.find(rank); before != lists_.end())
            fault("rank {} has a list already, in line {}", rank, before->second.line);
        List& list = lists_[rank];
        list.line = line_;
        for (const std::string_view word : rest) {
            size_t at = 0;
            for (size_t plus; (plus = word.find('+', at)) != std::string_view::npos;
                 at = plus + 1) {
                list.actions.push_back(action(word.substr(at, plus - at)));
                list.actions.back().with_next = true;
            }
            list.actions.push_back(action(word.substr(at)));
        }
    }

    void stages(const std::vector<std::string_view>& words) {
        if (!stages_.empty()) fault("the stages are told already, in line {}", stages_line_);
        stages_line_ = line_;
        stages_.emplace_back();
        for (std::string_view word : words) {
            if (word == "|") {
                stages_.emplace_back();
                continue;
            }
            const std::string_view whole = word;
            Chunk chunk{};
            const bool number = take_number(word, chunk.stage);
            chunk.copy = word == "'";
            if (!number || (!word.empty() && chunk.copy == 0))
                fault("\"{}\" is no stage; stages are numbers, with | between ranks",
                      printable(whole));
            stages_.back().push_back(chunk);
        }
    }

    Action action(std::string_view word) {
        const std::string_view whole = word;
        const char kind = word.empty() ? ' ' : word[0];
        Action action{ActionKind(kind), 0, -1};
        if (!word.empty()) word.remove_prefix(1);
        const bool number = take_number(word, action.micro_batch);
        if (word.size() == 1 && word[0] >= 'a' && word[0] <= 'z') {
            action.chunk = word[0] - 'a';
            word.remove_prefix(1);
        }
        if (std::string_view("FDBW").find(kind) == std::string_view::npos || !number ||
            !word.empty())
            fault(
                "\"{}\" is no action; one is F, D, B or W, a micro-batch, and the chunk's letter "
                "if the rank has several, like F0 or B3b",
                printable(whole));
        micro_batches_ = std::max(micro_batches_, action.micro_batch + 1);
        return action;
    }

    // Gives actions without a letter their rank's only chunk.
    void letters(int rank, List& list) {
        line_ = list.line;
        const int chunks = int(stages_[size_t(rank)].size());
        for (Action& action : list.actions) {
            if (action.chunk < 0 && chunks == 1) action.chunk = 0;
            if (action.chunk >= 0 && action.chunk < chunks) continue;
            if (action.chunk < 0)
                fault("{}{} names none of the rank's {} chunks; write {}{}a, or another letter",
                      char(action.kind), action.micro_batch, chunks, char(action.kind),
                      action.micro_batch);
            fault("{}: rank {} has {} chunk{}", to_string(action, true), rank, chunks,
                  chunks == 1 ? ", a" : "s");
        }
    }

    static bool take_number(std::string_view& word, int& number) {
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        if (error != std::errc() || number < 0 || number >= most) return false;
        word.remove_prefix(size_t(end - word.data()));
        return true;
    }
    static constexpr const char* blanks = " \t\r";
    static std::vector<std::string_view> split(std::string_view words, std::string_view at) {
        std::vector<std::string_view> parts;
        for (;;) {
            words.remove_prefix(std::min(words.find_first_not_of(at), words.size()));
            if (words.empty()) return parts;
            parts.push_back(words.substr(0, words.find_first_of(at)));
            words.remove_prefix(parts.back().size());
        }
    }

    std::string file_;
    std::string_view text_;
    int line_ = 0, stages_line_ = 0, micro_batches_ = 0;
    Placement stages_;
    std::map<int, List> lists_;  // by rank
};

// Reads and checks a schedule. Throws UserError, one line that names the place and the fault.
inline Schedule read_schedule(const std::string& path) {
    const MappedFile file(path);
    Schedule schedule = ScheduleReader(path, file.text()).read();
    check_schedule(schedule);
    return schedule;
}

// The text of such a file, from which read_schedule() reads the same schedule again.
inline std::string schedule_text(const Schedule& schedule) {
    std::string text = fmt::format("# {}: {} ranks, {} micro-batches\nstages:", schedule.name,
                                   schedule.ranks(), schedule.micro_batches);
    for (int rank = 0; rank < schedule.ranks(); ++rank) {
        if (rank > 0) text += " |";
        for (const auto& [stage, copy] : schedule.chunks[size_t(rank)])
            text += fmt::format(" {}{}", stage, copy == 0 ? "" : "'");
    }
    for (int rank = 0; rank < schedule.ranks(); ++rank)
        text += fmt::format("\n{}: {}", rank, to_string(schedule, rank));
    return text + "\n";
}

}  // namespace ultrascale::pipeline
