// A pipeline may hold several stages of a Llama in one process, with their parameters in one list.
#include "llama_runs.h"

namespace ultrascale {
namespace {

using namespace test;

TEST(Stages, ThatShareAListOfParametersEqualTheWhole) {
    const std::vector<HostBatch> batches = {random_batch(2, 19, 11), random_batch(1, 19, 13)};
    for (bool tied : {false, true})
        for (bool split : {false, true})
            for (const ModelOptions& options : all_options({DType::fp32, DType::bf16})) {
                LlamaConfig config = small(tied);
                config.layers = 3;
                const auto whole = make(config, options);
                const ModuleFactories factories = default_factories(config, options);
                ParameterList list;
                Llama first(config, options, factories, {0, 1, true, false}, &list);
                Llama second(config, options, factories, {1, 3, false, true}, &list);
                list.allocate_values(options.dtype);
                list.allocate_grads(options.dtype);
                list.initialize(1);
                EXPECT_EQ(&first.parameters(), &list);
                EXPECT_EQ(&second.parameters(), &list);
                EXPECT_EQ(run(list, {&first, &second}, batches, split),
                          run(*whole, batches, split));

                // Each stage has its own unit names, indices and parameters; only a tied head
                // shares the embedding's parameter.
                std::vector<std::string> names;
                for (const Llama* stage : {&first, &second})
                    for (size_t u = 0; u < stage->units().size(); ++u) {
                        const Unit &unit = stage->units()[u], &same = whole->units()[names.size()];
                        EXPECT_EQ(unit.name, same.name);
                        EXPECT_EQ(unit.index, int(u));
                        EXPECT_EQ(unit.gradients_in_forward, same.gradients_in_forward);
                        ASSERT_EQ(unit.parameters.size(), same.parameters.size());
                        for (size_t p = 0; p < unit.parameters.size(); ++p) {
                            EXPECT_EQ(unit.parameters[p]->name, same.parameters[p]->name);
                            EXPECT_EQ(unit.parameters[p], list.find(same.parameters[p]->name));
                        }
                        names.push_back(unit.name);
                    }
                EXPECT_EQ(names.size(), whole->units().size());
            }
}

}  // namespace
}  // namespace ultrascale
