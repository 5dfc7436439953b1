// --trace: the times of all ranks are on one clock, and every span says what it belongs to.
#include <map>
#include <set>

#include "compare_runs.h"

namespace ultrascale::test {
namespace {

struct Event {
    int rank;
    std::string lane, name;
    double begin, end;  // microseconds
    Json args;

    std::string operation() const { return args.at("operation"); }
    bool holds(const Event& other) const {
        return begin <= other.begin + 2e-3 && other.end <= end + 2e-3;
    }  // written in ns
};

// A run's trace.
struct Traced {
    std::vector<Event> events;
    bool through_host;  // run_program.h
};
Traced trace_of(int ranks, const std::string& chapter, const std::string& arguments) {
    TempDir dir;
    const std::string file = dir / "trace.json";
    const Outcome run = train(ranks, chapter, fmt::format("--trace {} {}", file, arguments));
    const Json trace = Json::parse(slurp(file), nullptr, false);
    std::map<std::pair<int, int>, std::string> lanes;
    std::vector<Event> events;
    if (!trace.is_object()) return ADD_FAILURE() << "no trace", Traced{};
    for (const Json& event : trace.at("traceEvents"))
        if (event.at("ph") == "M" && event.at("name") == "thread_name")
            lanes[{event.at("pid"), event.at("tid")}] = event.at("args").at("name");
    for (const Json& event : trace.at("traceEvents")) {
        if (event.contains("ts")) {
            EXPECT_GE(event.at("ts").get<double>(), 0);
        }
        if (event.at("ph") != "X") continue;
        const double begin = event.at("ts"), duration = event.at("dur");
        EXPECT_GE(duration, 0);
        events.push_back({event.at("pid"), lanes.at({event.at("pid"), event.at("tid")}),
                          event.at("name"), begin, begin + duration, event.at("args")});
    }
    return {events, run.through_host};
}

// Returns the trace of a training of the small model.
std::vector<Event> traced(int ranks, const char* chapter, const std::string& arguments) {
    const SmallModel model;
    return trace_of(ranks, chapter,
                    fmt::format("--model {} --seq 40 --steps 3 --micro-batch 2 {}", model.path(),
                                arguments))
        .events;
}

// Counts how often an operation of a rank runs at the same time as communication of this rank.
int at_once(const std::vector<Event>& events) {
    int count = 0;
    for (const Event& sent : events)
        if (sent.lane != "compute" && sent.args.contains("group"))
            for (const Event& computed : events)
                count += computed.rank == sent.rank && computed.lane == "compute" &&
                         computed.args.at("flops") > 0 && computed.begin < sent.end &&
                         sent.begin < computed.end;
    return count;
}

std::set<std::string> names_of(const std::vector<Event>& events) {
    std::set<std::string> names;
    for (const Event& event : events) names.insert(event.name);
    return names;
}

// Within a lane spans are nested or disjoint: Perfetto drops spans that overlap in another way.
void expect_nested(std::vector<Event> events) {
    std::ranges::stable_sort(events, [](const Event& a, const Event& b) {
        return std::tuple(a.rank, a.lane, a.begin, -a.end) <
               std::tuple(b.rank, b.lane, b.begin, -b.end);
    });
    const double tolerance =
        on_gpu ? 100 : 2e-3;  // microseconds: communication through the host has the host's clock
    std::vector<const Event*> open;
    for (const Event& event : events) {
        const auto over = [&](const Event* e) {
            return e->rank != event.rank || e->lane != event.lane ||
                   e->end <= event.begin + tolerance;
        };
        while (!open.empty() && over(open.back())) open.pop_back();
        if (!open.empty()) {
            EXPECT_TRUE(open.back()->holds(event))
                << open.back()->name << " and " << event.name << " in " << event.lane;
        }
        open.push_back(&event);
    }
}

// A collective ends on no rank before it has begun on all, because each rank's result needs the
// data of all ranks.
void expect_one_clock(const std::vector<Event>& events) {
    const std::set<std::string> meetings = {"all-reduce", "all-gather", "reduce-scatter",
                                            "all-to-all"};
    struct Stretch {
        double begin = 1e30, end = 0;
    };
    struct Call {
        int ranks = 0;
        std::map<int, Stretch> by_rank;
    };
    std::map<std::string, Call> calls;  // by group, kind and number
    for (const Event& event : events) {
        if (!meetings.contains(event.operation())) continue;
        const Json& args = event.args;
        Call& call = calls[fmt::format(
            "{} number {} of {} from rank {} on", event.operation(), args.at("call").get<int>(),
            args.at("group").get<std::string>(), args.at("first_rank").get<int>())];
        call.ranks = args.at("ranks");
        Stretch& stretch = call.by_rank[event.rank];  // a call by copy engines has several spans
        stretch.begin = std::min(stretch.begin, event.begin),
        stretch.end = std::max(stretch.end, event.end);
    }
    EXPECT_GT(calls.size(), 10u);
    const double tolerance = on_gpu ? 100 : 0;  // a GPU's clock is known to some 10 us
    int late = 0;
    for (const auto& [name, call] : calls) {
        EXPECT_EQ(int(call.by_rank.size()), call.ranks) << name;
        double last_begin = 0, first_end = 1e30;
        for (const auto& [rank, stretch] : call.by_rank)
            last_begin = std::max(last_begin, stretch.begin),
            first_end = std::min(first_end, stretch.end);
        late += last_begin > first_end + tolerance;
    }
    EXPECT_EQ(late, 0) << "of " << calls.size()
                       << " collectives end on one rank before they begin on another";
}

void expect_names(const std::vector<Event>& events, std::initializer_list<const char*> names) {
    const std::set<std::string> all = names_of(events);
    for (const char* name : names) EXPECT_TRUE(all.contains(name)) << name;
}

TEST(Trace, RanksAreOnOneClockAndSayWhatTravels) {
    const std::vector<Event> zero = traced(4, "02_zero", "--stage 3 --no-verify");
    expect_one_clock(zero);
    expect_nested(zero);
    expect_names(zero, {"all-gather layers.1", "reduce-scatter layers.1", "all-gather embedding",
                        "reduce-scatter head", "adamw layers.1", "all-reduce gradient norm",
                        "all-reduce loss"});
    const std::vector<Event> bucket =
        traced(4, "01_data_parallel", "--sync bucket --bucket-mb 0.05 --no-verify");
    expect_one_clock(bucket);
    expect_nested(bucket);
    expect_names(bucket, {"all-reduce bucket 1", "all-reduce bucket 3", "wait for gradients"});
    const std::vector<Event> tensor =
        traced(4, "03_tensor_parallel", "--tp 2 --overlap chunk --no-verify");
    expect_one_clock(tensor);
    expect_nested(tensor);
    const std::vector<Event> halves =
        traced(2, "03_tensor_parallel", "--sequence-parallel --overlap halves --no-verify");
    expect_one_clock(halves);
    expect_nested(halves);  // the second half's sections are in a lane of their own
    expect_names(halves, {"micro-batch 0", "micro-batch 1", "layers.1 backward"});
    expect_names(
        tensor, {"all-reduce layers.1.mlp.down_proj forward",
                 "all-reduce layers.1.mlp.gate_proj+up_proj backward",
                 "all-reduce embedding forward", "all-reduce model.layers.1.mlp.down_proj.weight"});
}

TEST(Trace, OtherTechniquesSayWhatTravels) {
    for (const char* sync : {"naive", "overlap"})
        expect_names(traced(2, "01_data_parallel", fmt::format("--sync {} --no-verify", sync)),
                     {"all-reduce model.layers.1.self_attn.q_proj.weight",
                      "all-reduce model.embed_tokens.weight"});
    expect_names(traced(2, "02_zero", "--stage 1 --offload optimizer --no-verify"),
                 {"reduce-scatter layers.1", "all-gather layers.1", "AdamW on the host layers.1",
                  "copy layers.1"});
    expect_names(
        traced(2, "03_tensor_parallel", "--sequence-parallel --no-verify"),
        {"all-gather layers.1.self_attn.q_proj+k_proj+v_proj forward",
         "reduce-scatter layers.1.self_attn.o_proj forward", "all-reduce model.norm.weight"});
    const std::vector<Event> ring = traced(2, "04_context_parallel", "--no-verify");
    expect_one_clock(ring);
    expect_nested(ring);
    expect_names(ring, {"send/recv layers.1 forward", "send/recv layers.1 backward",
                        "all-reduce model.norm.weight"});
    const std::vector<Event> pipeline =
        traced(2, "05_pipeline", "--schedule zb-h1 --grad-accum 6 --no-verify");
    expect_nested(pipeline);
    expect_names(pipeline,
                 {"F1", "W1", "send/recv F1", "send/recv B1", "layers.2 backward-weight"});
}

// Whether overlap is faster depends on how busy the machine is, so only `make bench` measures it.
TEST(Trace, OverlappedCommunicationRunsWhileTheRankComputes) {
    TempDir experts;
    put(experts / "config.json", config_json({{"model_type", "mixtral"},
                                              {"num_hidden_layers", 4},
                                              {"hidden_size", 512},
                                              {"num_attention_heads", 8},
                                              {"head_dim", 64},
                                              {"intermediate_size", 512},
                                              {"max_position_embeddings", 256},
                                              {"num_local_experts", 8},
                                              {"num_experts_per_tok", 2}}));
    const auto run = [&](const std::string& chapter, const std::string& arguments) {
        // On a GPU the backward of a smaller model is too short to hide anything.
        const std::string model = contains(chapter, "expert") ? experts.path() : "small";
        return trace_of(
            2, chapter,
            fmt::format("{} --steps 2 --no-verify {}",
                        on_gpu ? fmt::format("--model {} --seq 256 --micro-batch 16", model)
                               : "--layers 3 --micro-batch 8",
                        arguments));
    };
    for (const auto& [chapter, apart, together] :
         std::vector<std::tuple<const char*, const char*, std::vector<const char*>>>{
             {"01_data_parallel", "--sync naive", {"--sync overlap"}},
             {"03_tensor_parallel",
              "--overlap none",
              {"--overlap async", "--overlap chunk", "--sequence-parallel --overlap chunk",
               "--overlap halves", "--sequence-parallel --overlap halves"}},
             {"06_expert_parallel",
              "--shared 1 --overlap none",
              {"--overlap gradients", "--shared 1 --overlap shared", "--overlap chunks",
               "--dispatch rank --overlap gradients"}}}) {
        EXPECT_EQ(at_once(run(chapter, apart).events), 0) << apart;
        for (const char* arguments : together) {
            EXPECT_TRUE(in_one_of_six_tries([&] {
                const Traced overlapped = run(chapter, arguments);
                return (at_once(overlapped.events) > 0) == !overlapped.through_host;
            })) << arguments;
        }
    }
}

// Every operation of the model has its name, and lies in its unit's pass, which lies in a phase, in
// a micro-batch, in a step.
TEST(Trace, NamesFollowTheModel) {
    TempDir dir;
    put(dir / "other.txt", std::string(400, 'x'));
    const std::vector<Event> events = traced(
        0, "00_single_gpu",
        fmt::format("--grad-accum 2 --verify --val-every 2 --val-data {}", dir / "other.txt"));
    expect_nested(events);
    std::vector<const Event*> sections;
    for (const Event& event : events)
        if (event.lane == "phase") sections.push_back(&event);
    const auto within = [&](const Event& event, const std::string& name) {
        return std::ranges::any_of(sections, [&](const Event* s) {
            return s != &event && s->name.starts_with(name) && s->holds(event);
        });
    };
    std::map<std::string, int> count;
    for (const Event& event : events) {
        ++count[event.name];
        const size_t unit = event.name.find("layers.");
        if (event.lane != "compute") continue;
        EXPECT_TRUE(within(event, "step ")) << event.name;
        if (unit == std::string::npos) continue;
        EXPECT_TRUE(within(event, event.name.substr(unit, 8))) << event.name;
        EXPECT_TRUE(within(event, event.name.ends_with(" forward") ? "forward" : "backward"))
            << event.name;
        EXPECT_TRUE(within(event, "micro-batch ")) << event.name;
    }
    for (const char* linear :
         {"layers.0.self_attn.q_proj+k_proj+v_proj", "layers.1.self_attn.o_proj",
          "layers.2.mlp.gate_proj+up_proj", "layers.2.mlp.down_proj", "head"})
        for (const char* product : {"forward", "dX", "dW"})
            EXPECT_EQ(count[fmt::format("matmul {} {}", linear, product)], 6) << linear;
    for (const char* name :
         {"attention_forward layers.0 forward", "attention_backward layers.0 backward",
          "head backward", "rmsnorm_backward layers.1.post_attention_layernorm backward",
          "embedding_forward embedding forward", "rmsnorm_forward head.norm forward",
          "layers.2 forward", "forward", "backward"})
        EXPECT_EQ(count[name], 6) << name;
    for (const char* name : {"step 1", "step 2", "step 3"}) EXPECT_EQ(count[name], 1) << name;
    EXPECT_EQ(count["validation"], 2);
    EXPECT_GT(count["verification"], 0);
    for (const char* name : {"micro-batch 0", "micro-batch 1", "update"})
        EXPECT_EQ(count[name], 3) << name;
    EXPECT_EQ(count["matmul"], 0);
    for (const Event& event : events) {
        if (event.name == "validation" ||
            event.name == "micro-batch 1") {  // a validation belongs to no step
            EXPECT_EQ(within(event, "step "), event.name != "validation");
        }
    }
}

TEST(Trace, RecomputationCanBeTold) {
    const std::vector<Event> full = traced(0, "00_single_gpu", "--recompute full --no-verify");
    expect_nested(full);
    expect_names(full, {"layers.1 recomputed forward", "matmul layers.1.mlp.down_proj forward",
                        "matmul layers.1.mlp.down_proj recomputed forward",
                        "matmul layers.1.mlp.down_proj dX"});
    expect_names(traced(0, "00_single_gpu", "--attention naive --recompute selective --no-verify"),
                 {"attention_naive_forward layers.1 forward",
                  "attention_naive_forward layers.1 recomputed forward"});
}

}  // namespace
}  // namespace ultrascale::test
