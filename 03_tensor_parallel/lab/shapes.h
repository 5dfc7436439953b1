// The playbook's table of shapes in each region of a layer, read from the tensors of a real
// forward.
//
// The model's parts do not know about it. Each is wrapped in another part that records its input
// and output. Tensors that exist only inside a part (a gathered input, a partial sum) are recorded
// where they enter or leave the parallel region, by a class derived from the region in use.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "../4_sequence_parallel.h"
#include "lab/report/report.h"
#include "model/llama.h"

namespace ultrascale::tensor_parallel {

class ShapeTable {
public:
    // While this object lives, tensors are recorded under the region `name`.
    class Region {
    public:
        Region(ShapeTable& table, std::string name) : table_(table) {
            table_.region_ = std::move(name);
        }
        ~Region() { table_.region_.clear(); }
        Region(const Region&) = delete;

    private:
        ShapeTable& table_;
    };

    // While this object lives, another half of the micro-batch may use the table.
    class Turn {
    public:
        explicit Turn(ShapeTable& table) : table_(table), region_(table.region_) {}
        ~Turn() { table_.region_ = region_; }

    private:
        ShapeTable& table_;
        const std::string region_;
    };

    // Records a tensor: only the first one of each name in each region, and none outside regions
    // (in backward). whole_width: the columns it would have on one device.
    void note(const char* what, const Tensor& tensor, int64_t whole_width) {
        if (region_.empty() || find(region_, what)) return;
        rows_.push_back({region_, what, {tensor.rows(), tensor.cols()}, whole_width});
    }

    struct Row {
        std::string region, what;
        Shape shape;
        int64_t whole_width;
    };
    const Row* find(const std::string& region, const char* what) const {  // nullptr: not there
        for (const Row& row : rows_)
            if (row.region == region && row.what == what) return &row;
        return nullptr;
    }

    // tokens: those of a micro-batch, B T.
    void print_table(int64_t tokens, int ranks) const {
        print(fmt::format("\nshapes on rank 0 in forward, as they ran (b s = {} tokens, tp {})",
                          tokens, ranks));
        print(fmt::format("  {:<24} {:<22} {:>16}   {:<14} {}", "region", "tensor", "shape",
                          "tokens", "features"));
        const auto share = [](int64_t part, int64_t whole) {
            return part == whole ? "full" : fmt::format("1/{:.4g}", double(whole) / double(part));
        };
        std::string before;
        for (const Row& row : rows_) {
            print(fmt::format("  {:<24} {:<22} {:>16}   {:<14} {}",
                              row.region == before ? "" : row.region, row.what,
                              to_string(row.shape), share(row.shape[0], tokens),
                              share(row.shape[1], row.whole_width)));
            before = row.region;
        }
    }

private:
    std::vector<Row> rows_;
    std::string region_;
};

// Region: the class of the region in use. Tensors that enter or leave it have all their columns.
template <class Region>
class RecordedRegion : public Region {
public:
    RecordedRegion(const Communicator& group, const TensorOptions& options, ShapeTable& shapes)
        : Region(group, options), shapes_(shapes) {}

    Pending begin_enter(const Tensor& x, Stream& stream) const override {
        Pending in = Region::begin_enter(x, stream);
        shapes_.note("norm's output", x, x.cols());
        shapes_.note("input", in.result, x.cols());
        return in;
    }
    void end_turn() const override {
        const ShapeTable::Turn turn(shapes_);
        Region::end_turn();
    }
    Tensor empty_sum(const Tensor& partial) const override {
        shapes_.note("partial sum", partial, partial.cols());
        return Region::empty_sum(partial);
    }

private:
    ShapeTable& shapes_;
};

class RecordedLinear : public Linear {
public:
    RecordedLinear(std::unique_ptr<Linear> inner, LinearRole role, ShapeTable& shapes)
        : Linear(inner->parameters()), inner_(std::move(inner)), role_(role), shapes_(shapes) {
        for (const Parameter* p : parameters_) whole_outputs_ += p->shape[0];
    }

    Tensor forward(const Tensor& x, Saved& saved, Context& context,
                   const Tensor& residual) override {
        const ShapeTable::Region region(shapes_, parameters_.front()->part());
        const bool column = role_ == LinearRole::column;
        if (!column) shapes_.note("input", x, parameters_.front()->shape[1]);
        Tensor y = inner_->forward(x, saved, context, residual);
        if (column) {  // the plain linears have no region that has recorded these two
            shapes_.note("norm's output", x, x.cols());
            shapes_.note("input", x, x.cols());
        } else {
            shapes_.note("partial sum", y, y.cols());
        }
        shapes_.note(column ? "output" : "output + residual", y, whole_outputs_);
        return y;
    }
    Tensor backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        return inner_->backward_input(dy, saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }
    Tensor backward(const Tensor& dy, Saved& saved, Context& context,
                    WeightGradient when) override {
        return inner_->backward(dy, saved, context, when);
    }

private:
    std::unique_ptr<Linear> inner_;
    LinearRole role_;
    int64_t whole_outputs_ = 0;
    ShapeTable& shapes_;
};

class RecordedEmbedding : public Embedding {
public:
    RecordedEmbedding(std::unique_ptr<Embedding> inner, ShapeTable& shapes)
        : Embedding(nullptr), inner_(std::move(inner)), shapes_(shapes) {}

    Tensor forward(Saved& saved, Context& context) override {
        const ShapeTable::Region region(shapes_, "embedding");
        Tensor x = inner_->forward(saved, context);
        shapes_.note("output", x, x.cols());
        return x;
    }
    void backward_input(const Tensor& dy, Saved& saved, Context& context) override {
        inner_->backward_input(dy, saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }

private:
    std::unique_ptr<Embedding> inner_;
    ShapeTable& shapes_;
};

// Records what forward keeps as the logits: by then they have been overwritten by their gradient,
// which has the same shape.
class RecordedHead : public Head {
public:
    RecordedHead(std::unique_ptr<Head> inner, int64_t vocabulary, ShapeTable& shapes)
        : Head(nullptr, 0), inner_(std::move(inner)), vocab_(vocabulary), shapes_(shapes) {}

    Tensor logits(const Tensor& x) const override { return inner_->logits(x); }
    void forward(const Tensor& x, Saved& saved, Context& context) override {
        const ShapeTable::Region region(shapes_, "head");
        inner_->forward(x, saved, context);
        saved.for_each([&](const std::string& name, const Tensor& kept) {
            if (name == "dlogits") shapes_.note("logits", kept, vocab_);
        });
    }
    Tensor backward_input(Saved& saved, Context& context) override {
        return inner_->backward_input(saved, context);
    }
    void backward_weight(Saved& saved, Context& context) override {
        inner_->backward_weight(saved, context);
    }
    Tensor backward(Saved& saved, Context& context, WeightGradient when) override {
        return inner_->backward(saved, context, when);
    }

private:
    std::unique_ptr<Head> inner_;
    int64_t vocab_;
    ShapeTable& shapes_;
};

// The region that the options ask for, recording.
inline std::unique_ptr<ParallelRegion> recorded_region(const Communicator& tp,
                                                       const TensorOptions& options,
                                                       ShapeTable& shapes) {
    if (options.sequence_parallel)
        return std::make_unique<RecordedRegion<SequenceParallelRegion>>(tp, options, shapes);
    return std::make_unique<RecordedRegion<ParallelRegion>>(tp, options, shapes);
}
// Wraps the parts that `factories` make in these recording ones.
inline void record_shapes(ModuleFactories& factories, int64_t vocabulary, ShapeTable& shapes) {
    factories.linear = [&shapes, linear = factories.linear](
                           ParameterList& list, const ModuleFactories& factories,
                           const ModulePath& path, LinearRole role,
                           const ModuleFactories::LinearShape& shape) {
        return std::make_unique<RecordedLinear>(linear(list, factories, path, role, shape), role,
                                                shapes);
    };
    factories.embedding = [&shapes, embedding = factories.embedding](ParameterList& list) {
        return std::make_unique<RecordedEmbedding>(embedding(list), shapes);
    };
    factories.head = [&shapes, vocabulary, head = factories.head](ParameterList& list,
                                                                  const Stage& stage) {
        return std::make_unique<RecordedHead>(head(list, stage), vocabulary, shapes);
    };
}

}  // namespace ultrascale::tensor_parallel
