// On the CPU blocks are added in fp32 (AttentionAdds); nothing is held open.
#include "ops_attention_open.h"

namespace ultrascale::ops {

OpenDq open_dq(const Tensor&, const Tensor&, const Tensor&, int64_t) { return {}; }
void attention_backward(const OpenDq&, int64_t, int64_t, Tensor, Tensor, const Tensor&,
                        const Tensor&, const Tensor&, const Tensor&, const AttentionMask&, bool) {
    check(false, "attention_backward: there is no open dQ on the CPU");
}
void close_dq(Tensor, const OpenDq&, const Tensor&) {
    check(false, "close_dq: there is no open dQ on the CPU");
}

}  // namespace ultrascale::ops
