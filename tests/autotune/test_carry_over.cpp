// Which schedule a record's wisdom comes to for other shapes than the one that was timed.
#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "generator/render.hpp"
#include "tests/autotune/wisdom_records.hpp"

using namespace flashjit;
using namespace flashjit::autotune;
using namespace flashjit::test;

TEST_CASE("other shapes: what the model predicts, times what it was off by where a schedule was timed") {
  const Target target = target_of("sm_90a");
  const Problem full{.dtype = DType::bf16, .head_dim = 128};
  const std::vector<std::string> names{"wgmma:m128n128s2cl2", "wgmma:m128n128s2p3", "wgmma:m128n128s2"};
  const auto predicted = [&](std::size_t i, const Shape& shape) {
    return predict(full, shape, parse_schedule(names.at(i)), target);
  };
  // Pairs of CTAs won; each took so many times what the model predicted.
  const auto timed = [&](std::array<double, 3> off_by, const Shape& shape = kShape) {
    WisdomRecord pair = record(names[0], off_by[0] * predicted(0, shape));
    pair.problem = full;
    pair.shape = shape;
    pair.bucket = bucket_of(full, shape, target);
    pair.timings = {{"mma:m128n128w8s1kv1", 1e-3}, {"of another version", 1e-3}};  // they count for nothing
    for (std::size_t i = 0; i < names.size(); ++i)
      pair.timings.emplace_back(names[i], off_by.at(i) * predicted(i, shape));
    return pair;
  };
  const auto asked = [&](const WisdomRecord& pair, int rows) {
    return ask({}, with({pair}), with_rows(rows), full);
  };
  const auto name = [](const std::optional<WisdomChoice>& choice) { return to_string(choice->schedule); };

  const WisdomRecord even = timed({0.9, 1, 0.92});
  CHECK(name(asked(even, 4096)) == names[0]);
  CHECK(asked(even, 4096)->words == "shipped wisdom (sm_90a)");
  CHECK(name(asked(even, 4097)) == names[2]);  // 4,224 rows instead of 4,352
  CHECK(asked(even, 4097)->words == "shipped wisdom (sm_90a, carried over by the model)");
  CHECK(name(ask(with({even}), {}, with_rows(4097), full)) == names[2]);
  // What was slower than predicted is so elsewhere, too.
  CHECK(name(asked(timed({0.9, 1, 0.99}), 4097)) == names[0]);
  CHECK(name(asked(timed({0.9, 0.8, 0.99}), 4097)) == names[1]);
  // Timed where it is asked for the winner has won, whatever one timing says; and elsewhere counts as no
  // slower there than the others.
  CHECK(name(asked(timed({0.9, 1, 0.8}, with_rows(4097)), 4097)) == names[0]);
  CHECK(name(asked(timed({0.9, 1, 0.8}), 4096)) == names[0]);
  // Of another bucket what the model likes best counts, too: off by as much as the one in the middle.
  const std::string likes = favourite(full, with_rows(2100));
  REQUIRE(std::find(names.begin(), names.end(), likes) == names.end());
  CHECK(name(asked(timed({0.9, 0.9, 0.9}), 2100)) == likes);
  CHECK(name(asked(timed({0.5, 0.9, 0.9}), 2100)) == names[0]);
}

TEST_CASE("under a mask other shapes take schedules in the winner's order only") {
  Shape many = with_rows(1024);
  many.batch = 16;
  WisdomRecord timed = record("wgmma:m128n64s4p2", 0.13);
  timed.shape = many;
  timed.bucket = bucket_of(kProblem, many, target_of("sm_90a"));
  timed.timings = {
      {"wgmma:m128n64s4p2", 0.13}, {"wgmma:m192n64s4qr0p2", 0.13}, {"wgmma:m192n64s4qr0p3", 0.13}};
  CHECK(to_string(ask(with({timed}), {}, many).value().schedule) == "wgmma:m128n64s4p2");
  Shape group = many;  // 192 rows gain most from heads side by side
  group.heads_kv = 1;
  CHECK(to_string(ask(with({timed}), {}, group).value().schedule) == "wgmma:m192n64s4qr0p2");
  Shape longer = many;
  longer.seqlen_q = longer.seqlen_k = 1152;  // six tiles of 192 rows
  CHECK(to_string(ask(with({timed}), {}, longer).value().schedule) == "wgmma:m192n64s4qr0p2");
}
