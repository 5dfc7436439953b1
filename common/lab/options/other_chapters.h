// The options that only some chapters have, for the error message when one is given to another
// chapter.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace ultrascale {

// "02_zero" for "--stage"; "00_single_gpu and 01_data_parallel" if several have it; "" if none has.
// The options that all training chapters share are not in the table.
// tests/chapters/options_test.cpp compares the table with the programs' --help.
inline std::string chapters_with_option(std::string_view name) {
    static const std::map<std::string_view, std::string_view> options = {
        {"00_single_gpu",
         "--naive-mean --batch-ramp --seq-ramp --fresh-grads --noise-scale --compare --demo"},
        {"01_data_parallel",
         "--sync --bucket-mb --ring-directions --no-sync --inner-steps --outer-lr --outer-momentum "
         "--compare --demo --largest-mib --reduce-dtype --hop-us --hop-gbps --planet"},
        {"02_zero",
         "--stage --gather-overlap --prefetch --keep-gathered --gather-dtype --reduce-dtype --cut "
         "--offload --no-sync --compare --demo"},
        {"03_tensor_parallel",
         "--tp --sequence-parallel --keep-gathered --overlap --chunks --partition-checkpoints "
         "--same-seed "
         "--compare --demo"},
        {"04_context_parallel",
         "--cp --variant --layout --ulysses --bidirectional --ring-backward --merge --compare "
         "--demo"},
        {"05_pipeline",
         "--pp --schedule --chunks --group --in-flight --solver-seconds --split --post-validation "
         "--pretend --compare --simulate"},
        {"06_expert_parallel",
         "--ep --experts --top-k --router --renormalise --scaling --shared --first-dense --groups "
         "--top-groups --aux-coef --aux --aux-over --z-coef --balance --gamma --force-balance "
         "--skew --capacity-factor --drop --dispatch --max-nodes --overlap --trap --compare "
         "--demo"},
        {"09_5d_parallel",
         "--dp --tp --cp --pp --order --zero --bucket-mb --gather-overlap --prefetch "
         "--keep-gathered --gather-dtype --reduce-dtype --offload --sequence-parallel "
         "--tp-keep-gathered --tp-overlap "
         "--tp-chunks --partition-checkpoints --variant --layout --ulysses --bidirectional "
         "--ring-backward --merge --schedule --chunks --group --split --ep --experts --top-k "
         "--router --renormalise --scaling --shared --first-dense --groups --top-groups --aux-coef "
         "--aux --aux-over --z-coef --balance --gamma --force-balance --skew --capacity-factor "
         "--drop --dispatch --max-nodes --ep-overlap --ep-chunks --recipe --compare --plan "
         "--explain-layout --published --gpus --hardware --batch-tokens --rehearse --playbook "
         "--calibrate"},
        {"08_mixed_precision",
         "--recipe --without --stochastic-rounding --loss-scale --loss-scale-start "
         "--loss-scale-window --sum-scaling --gradient-format --amax-history --scale-margin "
         "--power-of-two-scales --fast-accumulation --keep-fp8 --smooth-swiglu --trap --compare "
         "--demo --show"},
        {"07_kernels",
         "--family --kernel --size --check --microscope --primer --list --stalls --traffic"}};
    std::string found;
    for (const auto& [chapter, names] : options) {
        const std::string padded = " " + std::string(names) + " ";
        if (padded.find(" " + std::string(name) + " ") == std::string::npos) continue;
        found += (found.empty() ? "" : " and ") + std::string(chapter);
    }
    return found;
}

}  // namespace ultrascale
