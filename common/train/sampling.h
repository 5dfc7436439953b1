// Generates text: the logits at the last position define a distribution, from which the next token
// is drawn, and so on. Each token runs the whole forward again (there is no key-value cache), which
// is slow but simple.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "core/random.h"
#include "data.h"
#include "lab/report/report.h"
#include "model/llama.h"
#include "model/step_shape.h"

namespace ultrascale {

// Returns the logits (V) of the token that follows a sequence. If ranks share the model, all of
// them call it.
using NextToken = std::function<std::vector<float>(const HostBatch&)>;

inline std::vector<float> logits_of_next(Llama& model, const HostBatch& sequence,
                                         Hooks* hooks = nullptr) {
    const int64_t length = sequence.length;
    const Tensor logits = model.logits(to_device(sequence), hooks);  // (1, T, V)
    return logits.view({length, logits.cols()}).slice(length - 1, length).to_host_float();
}

// Adds padding tokens behind a text, up to `length` tokens in all. No token of the text sees them.
inline void pad(HostBatch& text, int64_t length) {
    text.tokens.resize(size_t(length));
    text.targets.resize(size_t(length), ops::ignored_target);
    for (int64_t t = text.length; t < length; ++t) {
        text.positions.push_back(int32_t(t));
        if (!text.document_starts.empty()) text.document_starts.push_back(int32_t(t));
    }
    text.length = length;
}

// Draws `count` tokens after `prompt`, each from at most shape.seq previous tokens, with the
// model's masks. A model that was trained with a prefix takes the prompt as its prefix.
inline std::vector<int32_t> sample_tokens(const NextToken& next, std::vector<int32_t> prompt,
                                          int64_t count, const StepShape& shape, double temperature,
                                          uint64_t seed) {
    const int64_t window = shape.config.window;
    const Random random(seed, "sample");
    const size_t prompt_size = prompt.size();
    for (int64_t n = 0; n < count; ++n) {
        const int64_t length = std::min<int64_t>(shape.seq, int64_t(prompt.size()));
        HostBatch host{.sequences = 1, .length = length};
        if (shape.config.prefix > 0)  // what is left of it
            host.prefix = std::max<int64_t>(length - n, 0);
        host.tokens.assign(prompt.end() - length, prompt.end());
        host.targets.assign(size_t(length), ops::ignored_target);
        for (int64_t t = 0; t < length; ++t) {
            host.positions.push_back(int32_t(t));
            if (window > 0) host.document_starts.push_back(first_visible(int32_t(t), 0, window));
        }
        const std::vector<float> last = next(host);
        // Softmax(logits / temperature), then the token at which the running sum exceeds a uniform
        // random number.
        const float highest = *std::max_element(last.begin(), last.end());
        std::vector<double> weight;
        double sum = 0;
        for (float logit : last)
            weight.push_back(std::exp(double(logit - highest) / temperature)), sum += weight.back();
        double left = double(random.uniform(uint64_t(n))) * sum;
        size_t token = 0;
        while (token + 1 < weight.size() && (left -= weight[token]) > 0) ++token;
        prompt.push_back(int32_t(token));
    }
    return {prompt.begin() + std::ptrdiff_t(prompt_size), prompt.end()};
}

// Bytes as text; bytes that are not printable become '?'.
inline std::string bytes_to_text(const std::vector<int32_t>& tokens) {
    std::string text;
    for (int32_t token : tokens)
        text += token == '\n' || (token >= 32 && token < 127) ? char(token) : '?';
    return text;
}

inline void print_sample(const NextToken& next, const Options& options, const StepShape& shape) {
    std::vector<int32_t> prompt;
    for (unsigned char c : options.prompt) prompt.push_back(c);
    const std::vector<int32_t> drawn =
        sample_tokens(next, prompt, options.sample, shape, options.temperature, options.seed);
    print(fmt::format("\nsample at temperature {}\n  {}{}", options.temperature, options.prompt,
                      bytes_to_text(drawn)));
}

}  // namespace ultrascale
