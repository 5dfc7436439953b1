// The double binary tree adds to the ring: a sum crosses 2 log2 n hops instead of 2(n-1).
//
// In a binary tree every rank adds its children's parts to its own and sends the sum to its parent;
// the root then has the whole sum, which goes down the same way. But half of the ranks are leaves,
// which never send to two children, so their links are half idle. Therefore there are two trees,
// each of which sums half of the tensor, and a rank that is an inner node of one is a leaf of the
// other. With 8 ranks:
//
//              first half                               second half
//                             7                0
//                3           /                  \           4
//            1 ------- 5 ---'                    '--- 2 ------- 6
//           0 2       4 6                            1 3       5 7
//
// A half is cut into k chunks, which follow each other: while a rank sends chunk j up, it receives
// chunk j+1 from its children and, on the way down, earlier ones from its parent. Chunk j leaves a
// rank of depth d in step j + D-d, D being the tree's depth, log2 n; it is complete at the root
// after D steps, and at the deepest leaf after 2D. A rank sends at most 4 chunks in a step: one up
// and two down as an inner node, and one up as a leaf. In the first D steps nothing goes down yet
// and in the last D nothing up, so there it is 2; or 1 between the root of 2^i ranks and its only
// child. With chunks of S/2k bytes,
//
//     t = (k + 2D-1) * latency + 2 (1 + f/k) S/bw        f = D - 3/2 for n = 2^i, else D - 1
//
// which is least for k = sqrt(2 f S / (bw * latency)). The bytes approach 2 S, slightly more than
// the ring's 2(n-1)/n S, but the hops grow with log n only: lab/tree_demo.h compares both. The root
// adds in a fixed order and all others get its sum, so every rank has the same bits. Sanders,
// Speck, Traeff 2009, "Two-tree algorithms for full bandwidth broadcast, reduction and scan"; NCCL
// uses such trees since 2.4 (NVIDIA's blog, "Massively Scale Your Deep Learning Training with NCCL
// 2.4").
#pragma once

#include <bit>

#include "6_ring_all_reduce.h"

namespace ultrascale::data_parallel {

struct TreePlace {
    int parent = -1;            // -1: this rank is the root
    std::vector<int> children;  // at most two
    int depth = 0;              // hops to the root
    size_t neighbours() const { return children.size() + (parent >= 0); }
};
// The depth of a tree of n ranks: that of its deepest leaf.
inline int tree_depth(int n) { return std::bit_width(unsigned(n)) - 1; }

// Node `at` of a binary tree whose n nodes are numbered from left to right: the even ones are
// leaves. A subtree's root has as large a complete tree to its left as fits, and the rest to its
// right.
inline TreePlace tree_place(int at, int n) {
    const auto root = [](int begin, int end) {
        return begin + int(std::bit_floor(unsigned(end - begin))) - 1;
    };
    TreePlace place;
    int begin = 0, end = n;
    for (int here; (here = root(begin, end)) != at; ++place.depth) {
        place.parent = here;
        if (at < here)
            end = here;
        else
            begin = here + 1;
    }
    if (begin < at) place.children.push_back(root(begin, at));
    if (at + 1 < end) place.children.push_back(root(at + 1, end));
    return place;
}

// This rank's places in both trees. The second tree is the first one's mirror image, or, if n is
// odd, is moved by one rank, so that its inner nodes are the even ranks.
inline std::vector<TreePlace> tree_places(int rank, int n) {
    const auto node = [n](int r) { return n % 2 == 0 ? n - 1 - r : (r + 1) % n; };
    const auto rank_of = [n](int at) { return n % 2 == 0 ? n - 1 - at : (at + n - 1) % n; };
    TreePlace second = tree_place(node(rank), n);
    if (second.parent >= 0) second.parent = rank_of(second.parent);
    for (int& child : second.children) child = rank_of(child);
    return {tree_place(rank, n), second};
}

// One of the two trees: its half of the tensor, and this rank's place.
struct Tree {
    Tensor x;  // (count)
    TreePlace place;
    int64_t chunks;
    std::vector<Tensor> inboxes = {};  // room for a chunk of each child, and then of the parent

    bool has(int64_t c) const { return c >= 0 && c < chunks; }
    Tensor chunk(int64_t c) const {
        return x.slice(part_begin(x.numel(), c, chunks), part_begin(x.numel(), c + 1, chunks));
    }
};

inline std::vector<Tree> make_trees(const Tensor& x, int rank, int n, int64_t chunks) {
    const Tensor all = x.view({x.numel()});
    const int64_t half = part_begin(all.numel(), 1, 2);
    const std::vector<TreePlace> places = tree_places(rank, n);
    std::vector<Tree> trees = {{all.slice(0, half), places[0], chunks},
                               {all.slice(half, all.numel()), places[1], chunks}};
    for (Tree& tree : trees)
        for (size_t i = 0; i < tree.place.neighbours(); ++i)
            tree.inboxes.push_back(Tensor::empty({longest_part(tree.x.numel(), chunks)}, x.dtype(),
                                                 Memory::communication));
    return trees;
}

// x, of any shape, becomes the sum over all ranks of `group`. It is fp32 or bf16 (which is rounded
// at every addition). Each half is cut into `chunks`, 1 or more, the same number on all ranks. Runs
// on the compute stream; all ranks call it with equal sizes. It holds a chunk for each neighbour in
// each tree besides x. Every rank makes chunks + 2 D-1 calls; some may be empty.
inline void tree_all_reduce(const Communicator& group, const Tensor& x, int64_t chunks) {
    const int n = group.size(), D = tree_depth(n);
    if (n == 1) return;
    struct Arrival {
        Tensor chunk, inbox;
        bool adds;
    };
    const std::vector<Tree> trees = make_trees(x, group.rank(), n, chunks);
    for (int64_t step = 0; step < chunks + 2 * D - 1; ++step) {
        std::vector<Transfer> transfers;
        std::vector<Arrival> arrivals;
        for (const Tree& tree : trees) {
            // Both do nothing if there is no chunk c.
            const auto send = [&](int64_t c, int to) {
                if (tree.has(c)) transfers.push_back({Transfer::send, tree.chunk(c), to});
            };
            const auto receive = [&](size_t inbox, int64_t c, int from, bool adds) {
                if (!tree.has(c)) return;
                const Tensor room = tree.inboxes[inbox].slice(0, tree.chunk(c).numel());
                transfers.push_back({Transfer::recv, room, from});
                arrivals.push_back({tree.chunk(c), room, adds});
            };
            const auto& [parent, children, d] = tree.place;
            // exercise 01.6 begin: what goes up and what goes down in this step
            const int64_t up = step - (D - d), down = step - (D + d);  // the chunks that leave
            for (size_t i = 0; i < children.size(); ++i) {
                receive(i, up + 1, children[i], true);
                send(down, children[i]);
            }
            if (parent >= 0) {
                send(up, parent);
                receive(children.size(), down + 1, parent, false);
            }
            // exercise 01.6 end
        }
        group.send_recv(std::move(transfers));
        for (const Arrival& a : arrivals)
            a.adds ? ops::add(a.chunk, a.inbox) : ops::copy(a.chunk, a.inbox);
    }
}

// --sync tree: sums the whole gradient in this way after the backward, like --sync ring.
class TreeSync : public WholeGradientSync {
public:
    TreeSync(ParameterList& parameters, const Mesh& mesh, int64_t chunks)
        : WholeGradientSync(parameters, mesh), chunks_(chunks) {}
    int64_t chunks() const { return chunks_; }

private:
    void sum(const Tensor& gradients) const override {
        tree_all_reduce(ranks_, gradients, chunks_);
    }
    int64_t chunks_;
};

}  // namespace ultrascale::data_parallel
