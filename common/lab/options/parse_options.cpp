// What follows from the options: a resumed run's settings, and what does not go together.
#include <filesystem>

#include "cli.h"
#include "comm/comm.h"
#include "comm/nodes.h"
#include "core/error.h"
#include "core/memory.h"
#include "files/checkpoint.h"
#include "files/checkpoint_folders.h"
#include "files/checkpoint_notes.h"
#include "files/file.h"
#include "lab/page/page.h"
#include "lab/pictures/svg.h"
#include "lab/report/report.h"
#include "same_files.h"

namespace ultrascale {

// folder_to_load() as rank 0 sees it: another rank's view of a file that is being replaced may be
// older. All ranks call it.
static std::string folder_for_all_ranks(const Options& o) {
    const Communicator& world = Communicator::world();
    std::string folder;
    check_on_all_ranks([&] {
        if (world.rank() == 0) folder = folder_to_load(o.resume ? o.save : o.load);
        if (o.resume && !has_training_state(folder)) folder = "";  // nothing to resume yet
    });
    return world.broadcast_string(folder, 0);
}

// A run that resumes the run in --load takes over its recorded options. (A batch is given as a
// whole.)
static void resume_options(OptionList& options, Options& o) {
    if (o.node_size == 0 && machines().names.size() > 1 && machines().all_equal())
        o.node_size = machines().ranks;
    if (o.until_step > 0) o.steps = o.until_step;
    if (o.resume || !o.load.empty()) o.load = folder_for_all_ranks(o);
    check_same_on_all_hosts({this_program, o.model, o.load});
    if (o.load.empty()) return;
    o.own_head = has_own_head(o.load);
    if (!has_training_state(o.load)) return;
    const TrainingState state = load_training_state(o.load);
    if (o.until_step > 0) {
        o.steps = std::max<int64_t>(o.until_step - state.step, 0);
        if (o.steps == 0)
            o.notes.push_back(fmt::format("the run in {} has done {} already", o.load,
                                          format_count(state.step, "step")));
    }
    OptionTexts recorded = state.options;
    if (recorded.empty()) return;  // nothing was recorded
    if (options.given("--micro-batch") || options.given("--grad-accum"))
        recorded.erase("--micro-batch"), recorded.erase("--grad-accum");
    o.notes = options.resume(recorded, o.load, state.step > 0);
}

// A resumed run continues with the file on which it was trained.
static void take_data_of_run(Options& o) {
    if (o.load.empty() || !o.data.empty() || !has_training_state(o.load)) return;
    const std::string data = load_training_state(o.load).data;
    o.data_of_run = !data.empty();
    if (data.empty() || data == built_in_data) return;
    std::error_code ignored;
    if (!std::filesystem::exists(data, ignored))
        user_error(
            "{}: the run in {} was trained on this file, which is not there any more; give its new "
            "place with --data",
            printable(data), o.load);
    o.data = data;
}

void check_nodes(const Options& o) {
    const int ranks = Communicator::world().size();
    if (o.inter_gbps > 0 && ranks % o.node_size != 0)
        user_error(
            "--node-size {}: {} cannot be cut into nodes of {}, which must divide their "
            "number",
            o.node_size, format_count(ranks, "rank"), o.node_size);
    if (o.inter_gbps > 0 && ranks_on_this_node() != ranks)
        user_error(
            "--node-size simulates nodes on one machine; these ranks are on several already");
}

Options parse_options(int argc, char** argv, const std::string& name,
                      const std::string& description,
                      const std::function<void(OptionList&, const Options&)>& add_own,
                      const Options& defaults) {
    Options o = defaults;
    const auto add = [&](OptionList& options) {
        add_shared_options(options, o);
        add_own(options, o);
    };
    const auto resume = [&](OptionList& options) { resume_options(options, o); };
    const auto check = [&](const OptionList& options) {
        o.values = options.values(), o.training_texts = options.texts_of_training();
        o.given_names = options.given();
        if (o.fp32_grads && o.dtype == DType::fp32)
            user_error("--fp32-grads: gradients are fp32 already with --dtype fp32");
        const std::pair<const char*, std::string> files[] = {
            {"--json", o.json}, {"--trace", o.trace}, {"--html", o.html}};
        for (const auto& [one, path] : files)
            for (const auto& [other, same] : files)
                if (one < other && !path.empty() && path == same)
                    user_error("{} and {} name the same file, {}", one, other, path);
        for (const std::string& path : {o.json, o.trace})
            if (!path.empty()) AtomicFile probe(path);  // fails now rather than after the training
        if (!o.html.empty()) open_page(o.html);
        if (!o.svg.empty()) check_can_draw(o.svg);
        if (!o.save.empty()) check_can_save(o.save);
        std::error_code ignored;
        if (!o.load.empty() || std::filesystem::is_directory(o.model, ignored))
            for (std::string& note : checkpoint_notes(o.model_name(), o.config(), !o.load.empty()))
                o.notes.push_back(std::move(note));
    };
    parse_command_line(argc, argv, name, description, add, check, resume);
    for (const std::string& note : o.notes) print(wrapped("note: " + note));
    take_data_of_run(o);
    check_same_on_all_hosts({o.data_path(), o.val_data});
    if (o.sample > 0 && (o.config().vocab < 256 || o.prompt.empty()))
        user_error(
            "--sample reads and prints bytes: it needs a vocabulary of at least 256 and a "
            "--prompt");
    use_copy_engines(o.copy_engines);
    if (o.device_memory_gib > 0) memory_set_limit(int64_t(o.device_memory_gib * double(1 << 30)));
    return o;
}

}  // namespace ultrascale
