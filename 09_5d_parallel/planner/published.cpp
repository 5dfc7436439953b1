// --published: prints predicted beside published numbers.
#include "published.h"

#include "lab/report/report.h"
#include "options.h"

namespace ultrascale::five_d {

bool print_published(const Options& options, const StepShape& shape) {
    const std::vector<PublishedRow> rows = published_rows(), playbook = playbook_rows();
    const Fit fitted = fit(rows);
    Report report("09_5d_parallel", options, shape, 0);
    print(
        fmt::format("fitted on every other row: large products reach {:.2f} of the peak, and "
                    "{:.2f} of what tp\nsends is hidden",
                    fitted.hardware.product_share, fitted.hardware.tensor_hidden));
    const auto head = [](const char* what) {
        print(fmt::format("\n{:<30} {:>9} {:>9} {:>8} {:>8} {:>9} {:>9}", what, "predicted",
                          "published", "error", "GB", "published", "error"));
    };
    std::vector<double> memory_errors;
    int too_much = 0;  // rows that ran in less memory than is predicted
    const auto line = [&](const PublishedRow& row, const Compared& c, const char* half) {
        const bool known = row.memory_gb > 0;
        const double unit = known ? 1073741824 : 1e9, gb = double(c.memory.most) / unit,
                     has = find_hardware(row.hardware).memory / unit,
                     error = gb / (known ? row.memory_gb : has) - 1;
        const bool over = gb > has;
        if (known) memory_errors.push_back(error);
        too_much += over;
        print(fmt::format(
            "  {:<28} {:>9.1f} {:>9.1f} {:>6.1f} % {:>8.1f} {:>9} {:>9}{}", row.name,
            row.mfu > 0 ? c.mfu : c.seconds, row.mfu > 0 ? row.mfu : row.seconds, 100 * c.error, gb,
            known ? fmt::format("{:.1f}", row.memory_gb) : fmt::format("<{:.0f}", has),
            known || over ? fmt::format("{}{:.0f} %", known ? "" : ">", 100 * error) : "",
            *half ? fmt::format("  {}", half) : ""));
        report.row({{"table", "published"},
                    {"row", row.name},
                    {"predicted", row.mfu > 0 ? c.mfu : c.seconds},
                    {"published", row.mfu > 0 ? row.mfu : row.seconds},
                    {"error", c.error},
                    {"memory_bytes", double(c.memory.most)},
                    {"memory_published_bytes", row.memory_gb * unit},
                    {"half", std::string(half)}});
    };
    const auto all_of = [](const PublishedRow& row, const Hardware& hardware) {
        MemoryModel memory(row.shape, row.program);
        Compared c = compare(row, hardware, memory);
        c.memory = row.memory_gb > 0 ? memory.of(row.plan, 0) : memory.worst(row.plan);
        return c;
    };
    head("MFU in %");
    std::vector<double> halves[2];
    for (size_t i = 0; i < rows.size(); ++i) {
        const Compared c = all_of(rows[i], fitted.hardware);
        halves[i % 2].push_back(c.error);
        line(rows[i], c, i % 2 == 0 ? "fitted" : "held out");
    }
    const double fitted_error = mean_error(halves[0]), held_out = mean_error(halves[1]);
    std::vector<double> all_errors = halves[0];
    all_errors.insert(all_errors.end(), halves[1].begin(), halves[1].end());
    print(fmt::format("  mean error: {:.1f} % of the fitted half, {:.1f} % of the one held out",
                      100 * fitted_error, 100 * held_out));
    report.value("published", "fitted_error", fitted_error);
    report.value("published", "held_out_error", held_out);

    Hardware h800 = find_hardware("h800");
    h800.product_share = fitted.hardware.product_share;
    head("seconds of a step");
    const PublishedRow deepseek = deepseek_row();
    line(deepseek, all_of(deepseek, h800), "");

    Hardware plain = fitted.hardware;
    plain.tensor_hidden = 0;
    head("the playbook's best, MFU in %");
    std::vector<double> predicted, published, errors;
    for (const PublishedRow& row : playbook) {
        const Compared c = all_of(row, plain);
        predicted.push_back(c.mfu), published.push_back(row.mfu), errors.push_back(c.error);
        line(row, c, "");
    }
    std::vector<double> sizes = errors;
    for (double& error : sizes) error = std::abs(error);
    std::ranges::sort(sizes);
    const double correlation = rank_correlation(predicted, published);
    print(
        fmt::format("  median error {:.1f} %; correlation of ranks {:.2f}; nothing is fitted to "
                    "these",
                    100 * (sizes[8] + sizes[9]) / 2, correlation));
    report.value("published", "playbook_rank_correlation", correlation);
    std::ranges::sort(memory_errors);
    print(
        fmt::format("  memory: {:.0f} to {:.0f} % off, the median {:.0f} %; {} of all rows ran in "
                    "less than they are said to need",
                    100 * memory_errors.front(), 100 * memory_errors.back(),
                    100 * memory_errors[memory_errors.size() / 2], too_much));
    report.finish();
    const bool near = mean_error(all_errors) <= 0.12;
    if (!near) print("the mean error of Megatron-LM's and Llama 3's rows is above 12 %");
    return near;
}

}  // namespace ultrascale::five_d
