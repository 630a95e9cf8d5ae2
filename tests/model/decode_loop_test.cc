#include "tests/model/decode_loop.h"
#include "tests/model/batch.h"

#include "tests/model/batch.h"
#include "tests/model/looping_backend.h"

namespace adder {
namespace {

test::LoopBehaviour behaviour;

}  // namespace

std::unique_ptr<Backend> make_backend_with_loops() {
  behaviour = {};
  return std::make_unique<test::LoopingBackend>(std::make_unique<CpuBackend>(1), behaviour);
}
std::unique_ptr<Backend> make_backend_without_loops() { return std::make_unique<CpuBackend>(1); }
std::string why_no_backend_with_loops() { return {}; }

namespace {

TEST_P(DecodeLoops, PauseAndGoOn) {
  behaviour.ring = 16;
  behaviour.ahead = 1000;
  GenerateOptions options = kDrawn;
  options.max_tokens = 100;
  for (int given_up_after : {100, 15, 16, 17, 40}) {
    Session expected = prompted(*host_);
    Session got = prompted(*device_);
    Generation host = expected.generate(options);
    Generation device = got.generate(options);
    auto a = host.begin();
    auto b = device.begin();
    for (int i = 1; i < given_up_after; ++i, ++a, ++b) ASSERT_EQ(*b, *a);
    expect_same(got, expected);
  }
}

TEST_P(DecodeLoops, AreMadeOnceAndStartedOnce) {
  GenerateOptions options = kDrawn;
  options.max_tokens = 9000;
  for (int i = 1; i <= 3; ++i) {
    Session session = prompted(*device_);
    generate(session, options);
    EXPECT_EQ(behaviour.made, 1);
    EXPECT_EQ(behaviour.started, i);
  }
  Session sessions[] = {prompted(*device_), prompted(*device_)};
  Generation generations[] = {sessions[0].generate(kDrawn), sessions[1].generate(kDrawn)};
  for (Generation& generation : generations) generation.begin();
  EXPECT_EQ(behaviour.made, 2);
}

}  // namespace
}  // namespace adder
