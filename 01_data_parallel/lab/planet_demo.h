// --demo planet: what it would cost to train one model in data centres that are far apart. It only
// calculates and runs nothing.
//
//     site 0 ==== site 1 ==== ... ==== site n-1 ==== back to site 0      `km` of fibre in all
//
// The sites train data-parallel, and a ring all-reduce sums their gradients in every step. Half of
// the gradient goes round in each direction, so a link carries S/2 each way. Light in fibre travels
// 200,000 km/s, and no hop is faster:
//
//     t = 2(n-1)/n * (S/2) / bw + 2(n-1)/n * km / 200,000        every step; S = params * bytes
//
// DiLoCo (9_diloco.h) sends its outer gradient in fp32 once in H steps: t(4 params) / H a step.
// A step computes for 6 * params * tokens / FLOP/s. No communication is hidden under it here, so a
// site idles for t / (t + step) of the time; a backward could hide at most two thirds of a step.
//
// The example is Epoch AI's "Could decentralized training solve AI's power problem?" (2025): 23
// sites with 10 GW on a ring of 4,800 km train 72 T parameters, over fibres of 6 Pbit/s.
// https://epoch.ai/blog/could-decentralized-training-solve-ais-power-problem
// We assume the rest: 10 GW at 1.4 kW for an H100 with everything around it, each at 0.4 * 989.5
// TFLOP/s, and 100 M tokens a step.
#pragma once

#include <array>
#include <cmath>
#include <string>

#include "core/error.h"
#include "lab/report/report.h"

namespace ultrascale::data_parallel {

struct Planet {
    double params = 72e12, bytes = 2, sites = 23, km = 4800;
    double tokens = 1e8, flops = 1e10 / 1400 * 0.4 * 989.5e12;
    double inner = 500;  // H

    static constexpr double km_per_second = 2e5;  // light in glass: 2/3 of its speed in vacuum

    double light() const { return 2 * (sites - 1) / sites * km / km_per_second; }
    // The seconds of an all-reduce with `width` bytes a parameter and links of `bandwidth` bytes/s
    // in each direction.
    double all_reduce(double width, double bandwidth) const {
        return 2 * (sites - 1) / sites * params * width / 2 / bandwidth + light();
    }
    double step() const { return 6 * params * tokens / flops; }
    double idle(double seconds) const { return seconds / (seconds + step()); }
    // The fewest steps between two exchanges for which a site idles for at most `share` of the
    // time.
    double inner_for(double share, double bandwidth) const {
        return std::max(1.0, std::ceil(all_reduce(4, bandwidth) * (1 - share) / share / step()));
    }
};

// Reads "params=72e12,sites=23"; a missing name keeps its default. Throws UserError.
inline Planet parse_planet(const std::string& text) {
    Planet planet;
    const std::array<std::pair<const char*, double*>, 7> values = {{{"params", &planet.params},
                                                                    {"bytes", &planet.bytes},
                                                                    {"sites", &planet.sites},
                                                                    {"km", &planet.km},
                                                                    {"tokens", &planet.tokens},
                                                                    {"flops", &planet.flops},
                                                                    {"H", &planet.inner}}};
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find(',', at), text.size());
        const std::string one = text.substr(at, end - at), name = one.substr(0, one.find('='));
        const std::string number = one.size() > name.size() ? one.substr(name.size() + 1) : "";
        double* to = nullptr;
        for (const auto& [key, value] : values)
            if (name == key) to = value;
        size_t read = 0;
        double value = -1;
        try {
            value = std::stod(number, &read);
        } catch (const std::exception&) {  // not a number
        }
        if (!to || read != number.size() || !(value > 0 && value <= 1e30))
            user_error(
                "--planet {}: \"{}\" is not params, bytes, sites, km, tokens, flops or H "
                "with a positive number, like params=72e12,sites=23,km=4800",
                text, one);
        *to = value;
        at = end + 1;
    }
    if (planet.sites < 2) user_error("--planet {}: a ring needs at least 2 sites", text);
    return planet;
}

inline void demo_planet(const Options& options, const Planet& p) {
    constexpr std::pair<double, const char*> links[] = {{400e9, "one network card"},
                                                        {10e12, "a fibre pair of 10 Tbit/s"},
                                                        {224e12, "the cable MAREA"},
                                                        {6e15, "what Epoch AI plans"}};
    const auto duration = [](double s) {
        return s < 1        ? fmt::format("{:.0f} ms", s * 1e3)
               : s < 120    ? fmt::format("{:.1f} s", s)
               : s < 7200   ? fmt::format("{:.1f} min", s / 60)
               : s < 172800 ? fmt::format("{:.1f} h", s / 3600)
                            : fmt::format("{:.1f} days", s / 86400);
    };
    print(
        fmt::format("{:.4g} T parameters in {:.0f} sites on a ring of {:.0f} km, gradients of "
                    "{:.3g} TB in {:.3g} bytes each",
                    p.params / 1e12, p.sites, p.km, p.params * p.bytes / 1e12, p.bytes));
    print(fmt::format("  a step of {:.4g} M tokens computes for {} at {:.3g} FLOP/s",
                      p.tokens / 1e6, duration(p.step()), p.flops));
    print(fmt::format("  light in the fibre takes {} for an all-reduce, however wide the links are",
                      duration(p.light())));
    print(fmt::format("\n  {:<39} {:^23}  {:^21}  {:>9}", "", "ring all-reduce a step",
                      fmt::format("DiLoCo, H = {:.0f}", p.inner), "H for 5 %"));
    print(fmt::format("  {:>11}  {:<26} {:>12} {:>10}  {:>12} {:>8}  {:>9}", "Gbit/s", "each way",
                      "takes", "idle", "a meeting", "idle", "idle"));
    Report report("01_data_parallel", options, {}, 0);
    for (const auto& [bits, name] : links) {
        const double bandwidth = bits / 8, every = p.all_reduce(p.bytes, bandwidth),
                     meeting = p.all_reduce(4, bandwidth), a_step = meeting / p.inner;
        print(fmt::format("  {:>11.0f}  {:<26} {:>12} {:>8.2f} %  {:>12} {:>6.2f} %  {:>9.0f}",
                          bits / 1e9, name, duration(every), 100 * p.idle(every), duration(meeting),
                          100 * p.idle(a_step), p.inner_for(0.05, bandwidth)));
        report.row({{"bits_per_second", bits},
                    {"all_reduce_seconds", every},
                    {"all_reduce_idle", p.idle(every)},
                    {"diloco_meeting_seconds", meeting},
                    {"diloco_idle", p.idle(a_step)},
                    {"inner_steps_for_5_percent", p.inner_for(0.05, bandwidth)}});
    }
    report.finish();
}

}  // namespace ultrascale::data_parallel
