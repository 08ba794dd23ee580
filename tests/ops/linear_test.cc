#include "cases/linear.h"

#include "harness/conformance.h"

namespace sluice::test {

INSTANTIATE_TYPED_TEST_SUITE_P(Linear, Conformance, Linear);

// Every layer of a model updates the residual stream in place.
TEST(LinearInPlace, YMayBeTheResidualItself) {
  for (WeightLayout layout : {WeightLayout::kPanels16, WeightLayout::kRowMajor}) {
    const Linear::Problem p{.tokens = 5, .features = 37, .width = 50, .layout = layout, .residual = true};
    for (const auto& device : every_level(2)) {
      HostArgs<Linear> host(p, Spread::kContiguous);
      Random random(4);
      Suite<Linear>::fill(p, Fill::kNormal, host, random);
      const Expectations wanted = reference(p, host.args());
      for (const Candidate<Linear>* c : device->catalog().table<Linear>()) {
        if (!c->supports(p, device->info()).accepted()) continue;
        const Config config = best_config(*c, p, device->info());
        const size_t bytes = config.workspace_bytes;
        void* scratch = device->allocate(bytes).value();
        Linear::Args args = host.args();
        GuardedTensor& y = *host.find("y");
        std::memcpy(y.view().data, args.residual.data,
                    static_cast<size_t>(bytes_of(p.y, elements_of(args.y))));
        args.residual = args.y;
        const Workspace workspace{static_cast<std::byte*>(scratch), bytes};
        ASSERT_TRUE(enqueue(*c, p, config.launches, args, workspace, device->stream()).ok());
        expect_within(wanted[0], y, std::string(c->name) + " on " + text(device->info()));
        device->release(scratch);
      }
    }
  }
}

}  // namespace sluice::test
