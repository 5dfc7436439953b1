// Several ranks may share a micro-batch's tokens: context parallelism cuts its sequences, sequence
// parallelism distributes the rows of the residual stream. Each rank then routes its own rows, in
// an expert-parallel group of its own:
//
//     micro-batch   | rows 0-63 | rows 64-127 |     cp 2 (or tp 2 with sequence parallelism)
//                       ep 0 1        ep 0 1        two groups of "ep", with the same experts
//
// For experts it does not matter where a row comes from. It matters for three things: an auxiliary
// loss, whose counts are of all tokens (4_balance.h); the sums of gradients over ranks that are not
// a data axis (tp); and code that needs a row's number in the micro-batch (dropout, the choices of
// --verify).
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/comm.h"
#include "expert_options.h"
#include "model/dropout.h"

namespace ultrascale::expert_parallel {

struct SharedTokens {
    // The ranks that share a micro-batch's tokens equally; nullptr: this rank has them all.
    const Communicator* ranks = nullptr;
    // All ranks that see other tokens or hold other layers, over which loads are summed; nullptr:
    // the ranks of dp and ep.
    const Communicator* all = nullptr;
    // The tokens b T + t of the whole micro-batch that this rank's rows hold, as in Dropout. Empty:
    // all tokens, in order.
    std::function<std::vector<TokenRange>(int64_t rows)> tokens = {};
    // Groups over which the gradients of routers and experts are summed besides the data axes: "tp"
    // if its ranks route different rows.
    std::vector<std::string> replica_groups = {};

    int64_t count() const { return ranks ? ranks->size() : 1; }
    // The token of each of this rank's `rows` rows.
    std::vector<int64_t> tokens_of(int64_t rows) const {
        std::vector<int64_t> row_tokens;
        for (const TokenRange& range : tokens ? tokens(rows) : whole(rows))
            for (int64_t i = 0; i < range.count; ++i) row_tokens.push_back(range.first_token + i);
        return row_tokens;
    }

private:
    static std::vector<TokenRange> whole(int64_t rows) { return {{0, 0, rows}}; }
};

}  // namespace ultrascale::expert_parallel
