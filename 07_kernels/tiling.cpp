#include "tiling.h"

#include "core/error.h"

#ifdef ULTRASCALE_CUDA
namespace ultrascale::kernels {
Tiling observe_tiling(const Kernel&, const Arguments&) {
    check(false, "a GPU does not say who stores what");
    return {};
}
}  // namespace ultrascale::kernels
#else
#include <set>

#include "emulator/observer.h"

namespace ultrascale::kernels {
namespace {

// The memory of a matrix of floats.
struct TileMap {
    const float* begin;
    int64_t elements;

    explicit TileMap(const Tensor& matrix)
        : begin(static_cast<const float*>(matrix.data())), elements(matrix.numel()) {}
    bool has(const void* address) const { return address >= begin && address < begin + elements; }
    int64_t index(const void* address) const { return static_cast<const float*>(address) - begin; }
};

class Watch : public simt::Observer {
public:
    Watch(const Arguments& arguments, Tiling& tiling)
        : C_(arguments.out), A_(arguments.in[0]), tiling_(tiling) {
        simt::observer = this;
    }
    ~Watch() override { simt::observer = nullptr; }
    Watch(const Watch&) = delete;

    void launched(const simt::Call&, dim3 grid, dim3 block) override {
        blocks_across_ = grid.x;
        tiling_.threads = int(block.x * block.y * block.z);
    }
    std::unique_ptr<simt::CoreObserver> on_core(const simt::Call&) override {
        return std::make_unique<Core>(*this);
    }

private:
    // Cores write to different elements, and only one of them has block 0.
    struct Core : simt::CoreObserver {
        explicit Core(Watch& watch) : watch_(watch) {}
        void block_begins(uint3 index, uint32_t, const void*, size_t) override {
            block_ = int(index.y * watch_.blocks_across_ + index.x);
            brought_.clear();
        }
        void access(uint32_t thread, const void* first, size_t bytes, simt::Access access,
                    const void*) override {
            Tiling& tiling = watch_.tiling_;
            const int64_t elements = int64_t(bytes / sizeof(float));
            if (access == simt::Access::global_store && watch_.C_.has(first))
                for (int64_t i = 0; i < elements; ++i)
                    tiling.owners[size_t(watch_.C_.index(first) + i)] = {block_, int(thread)};
            if (access == simt::Access::global_load && block_ == 0 && tiling.k_step == 0 &&
                watch_.A_.has(first))
                for (int64_t i = 0; i < elements; ++i)
                    brought_.insert((watch_.A_.index(first) + i) % tiling.K);
        }
        bool far_ahead(uint32_t, simt::Access) override { return false; }
        void barrier() override { take_step(); }
        void lanes_met(uint32_t, uint32_t, bool) override {}
        void block_ends() override { take_step(); }

    private:
        void take_step() {
            if (block_ == 0 && watch_.tiling_.k_step == 0)
                watch_.tiling_.k_step = int64_t(brought_.size());
        }
        Watch& watch_;
        int block_ = -1;
        std::set<int64_t> brought_;  // columns of A
    };

    const TileMap C_, A_;
    Tiling& tiling_;
    uint32_t blocks_across_ = 0;
};

}  // namespace

Tiling observe_tiling(const Kernel& kernel, const Arguments& arguments) {
    const Sizes& size = arguments.size;
    Tiling tiling{.M = size[0], .N = size[1], .K = size[2], .owners = {}};
    tiling.owners.resize(size_t(tiling.M * tiling.N));
    const Watch watch(arguments, tiling);
    kernel.run(arguments);
    return tiling;
}

}  // namespace ultrascale::kernels
#endif
