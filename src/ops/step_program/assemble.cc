#include "ops/step_program/assemble.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "core/ceil_div.h"
#include "cuda/layout.h"

namespace adder::cuda::program {
namespace {

// ---- mixers -------------------------------------------------------------------------------------

// Whether the elements are those of a matrix (rows, columns) with this first one and row stride.
bool is_matrix(const ConstTensorView& view, const void* data, std::int64_t row, std::int64_t rows,
               std::int64_t columns) {
  return view.data == data && view.dim(0) == rows && view.dim(1) == columns &&
         (rows == 1 || view.stride(0) == row);
}

bool is_contiguous_per_sequence(const TensorView& state) {
  const std::int64_t columns = state.dim(3);
  return state.stride(3) == 1 && state.stride(2) == columns &&
         state.stride(1) == state.dim(2) * columns;
}

// The rows of the first of a mixer's projections: those before `begin` make z, those before `end`
// x, the others B, C and dt, each from a row on that is counted from `end`.
struct MixerRows {
  std::int64_t begin, end;
  std::int64_t B, C, dt;
};

// If that projection makes all that the heads take, and the second takes all that both give.
std::optional<MixerRows> mixer_rows(const LinearStepArgs& linear, const SsdStepArgs& heads,
                                    const LinearStepArgs& next) {
  if (!linear.conv || heads.z.defined() || before_of(next) != Before::gate ||
      !next.gated_norm->z.defined()) {
    return std::nullopt;
  }
  const LinearStepConv& conv = *linear.conv;
  const std::int64_t batch = linear.y.dim(0);
  const std::int64_t headdim = heads.x.dim(2);
  const std::int64_t channels = heads.x.dim(1) * headdim;
  const std::int64_t end = conv.begin + channels;  // x comes first in the convolution
  const auto B = column_within(conv.y, heads.B);
  const auto C = column_within(conv.y, heads.C);
  const auto dt = column_within(linear.y, heads.dt);
  const auto heads_are_whole = [&](const ConstTensorView& view) {
    return view.dim(1) == 1 || view.stride(1) == headdim;
  };
  const bool gate_is_theirs =
      conv.begin == channels &&
      is_matrix(next.gated_norm->z, linear.y.data, linear.y.stride(0), batch, channels) &&
      is_matrix(next.x, heads.y.data, heads.y.stride(0), batch, channels);
  if (heads.x.data != conv.y.data || heads.x.dim(0) != batch ||
      (batch > 1 && heads.x.stride(0) != conv.y.stride(0)) || !heads_are_whole(heads.x) ||
      !heads_are_whole(heads.y) || !gate_is_theirs || !B || !C || !dt ||
      !is_contiguous_per_sequence(heads.state)) {
    return std::nullopt;
  }
  // Four columns are taken at once.
  const std::int64_t conv_channels = conv.weight.dim(0);
  const auto fits = [&](std::int64_t first, const ConstTensorView& view) {
    const std::int64_t last = first + (view.dim(1) - 1) * view.stride(1) + view.dim(2) - 1;
    return view.stride(1) >= 0 && first >= channels && last < conv_channels &&
           (first - channels) % 4 == 0 && view.stride(1) % 4 == 0;
  };
  const std::int64_t last_dt = *dt + (heads.dt.dim(1) - 1) * heads.dt.stride(1);
  if (!fits(*B, heads.B) || !fits(*C, heads.C) || heads.dt.stride(1) < 0 ||
      *dt < conv.begin + conv_channels || last_dt >= linear.y.dim(1)) {
    return std::nullopt;
  }
  return MixerRows{
      .begin = conv.begin, .end = end, .B = *B - channels, .C = *C - channels, .dt = *dt - end};
}

// Whether every block has one of so many rows at least: then whoever has taken them all knows that
// all blocks are as far, and none is so late that what it has yet to take is overwritten.
bool all_give(std::int64_t rows, int blocks) { return rows >= blocks; }

int most_rows(const Spread& rows) { return rows.rows + (rows.extra > 0 ? 1 : 0); }
int tiles(int rows) { return static_cast<int>(ceil_div(rows, kTileRows)); }

template <typename X>
std::optional<Instruction<X>> mixer_of(const LinearStepArgs& linear, const SsdStepArgs& heads,
                                       const LinearStepArgs& next, const Layout& layout,
                                       int blocks) {
  const std::optional<MixerRows> rows = mixer_rows(linear, heads, next);
  if (!rows || heads.x.dim(2) < kFewestHeadChannels || !all_give(rows->begin, blocks)) {
    return std::nullopt;
  }
  const std::int64_t out = linear.y.dim(1);
  Instruction<X> mixer{
      .kind = Kind::mixer, .linear = linear_of<X>(linear, blocks), .heads = heads_of(heads)};
  Linear<X>& p = mixer.linear;
  p.shared = spread(rows->end, out, blocks);
  p.channels = spread(rows->begin, rows->end, blocks);
  p.others = spread(0, rows->begin, blocks);
  const int rows_beside = most_rows(p.shared) + most_rows(p.channels);
  if (most_rows(p.channels) > kMostChannels || rows_beside > kMostRowsBeside ||
      tiles(rows_beside) + tiles(most_rows(p.others)) > layout.round_tiles) {
    return std::nullopt;
  }
  p.given = static_cast<int>(rows->begin);
  Heads& h = mixer.heads;
  h.exchange = static_cast<int>(rows->begin);
  h.exchange_size = static_cast<int>(round_up(out - rows->end, 4));
  h.exchange_B = static_cast<int>(rows->B);
  h.exchange_C = static_cast<int>(rows->C);
  h.exchange_dt = static_cast<int>(rows->dt);
  return mixer;
}

// ---- links --------------------------------------------------------------------------------------

// An instruction and, if it is one, the projection that it begins with.
template <typename X>
struct Item {
  Instruction<X> instruction;
  const LinearStepArgs* linear = nullptr;
  bool takes_from_mixer = false;
};

std::int64_t batch_of(const Operation& operation) {
  if (const auto* linear = std::get_if<LinearStepArgs>(&operation)) return linear->y.dim(0);
  if (const auto* heads = std::get_if<SsdStepArgs>(&operation)) return heads->x.dim(0);
  return std::get<SelectiveScanStepArgs>(operation).x.dim(0);
}

template <typename X>
std::vector<Item<X>> items_of(std::span<const Operation> operations, const Layout& layout,
                              int blocks) {
  std::vector<Item<X>> out;
  // The kernel that knows mixers has a single sequence.
  const bool may_have_mixers =
      std::all_of(operations.begin(), operations.end(),
                  [](const Operation& operation) { return batch_of(operation) == 1; });
  bool after_mixer = false;
  for (std::size_t i = 0; i < operations.size(); ++i) {
    const auto* linear = std::get_if<LinearStepArgs>(&operations[i]);
    if (may_have_mixers && linear != nullptr && i + 2 < operations.size()) {
      const auto* heads = std::get_if<SsdStepArgs>(&operations[i + 1]);
      const auto* next = std::get_if<LinearStepArgs>(&operations[i + 2]);
      if (heads != nullptr && next != nullptr) {
        if (auto mixer = mixer_of<X>(*linear, *heads, *next, layout, blocks)) {
          out.push_back({.instruction = *mixer, .linear = linear, .takes_from_mixer = after_mixer});
          after_mixer = true;
          ++i;
          continue;
        }
      }
    }
    if (linear != nullptr) {
      out.push_back({.instruction = {.kind = Kind::linear, .linear = linear_of<X>(*linear, blocks)},
                     .linear = linear,
                     .takes_from_mixer = after_mixer});
    } else if (const auto* heads = std::get_if<SsdStepArgs>(&operations[i])) {
      out.push_back({.instruction = {.kind = Kind::ssd, .heads = heads_of(*heads)}});
    } else {
      const auto& scan = std::get<SelectiveScanStepArgs>(operations[i]);
      out.push_back({.instruction = {.kind = Kind::scan, .channels = channels_of<X>(scan)}});
    }
    after_mixer = false;
  }
  return out;
}

// Whether x of the norm that `next` begins with is the result of the projection before it.
template <typename X>
bool takes_result(const Item<X>& before, const Item<X>& next, int blocks) {
  if (before.instruction.kind != Kind::linear || next.linear == nullptr || !next.linear->norm ||
      !next.linear->x.defined() || before.linear->conv) {
    return false;
  }
  const TensorView& y = before.linear->y;
  const ConstTensorView& x = next.linear->x;
  return all_give(y.dim(1), blocks) && x.dtype == y.dtype &&
         is_matrix(x, y.data, y.stride(0), y.dim(0), y.dim(1));
}

// Gives results to the instruction after it wherever that can take them.
template <typename X>
void link(std::vector<Item<X>>& items, int blocks) {
  const auto residual_of = [](const Item<X>& item) {
    return item.linear != nullptr && item.linear->norm ? item.linear->norm->residual.data : nullptr;
  };
  const auto new_residual_of = [](const Item<X>& item) -> const void* {
    return item.linear != nullptr && item.linear->norm ? item.linear->norm->new_residual.data
                                                       : nullptr;
  };
  for (std::size_t i = 1; i < items.size(); ++i) {
    Item<X>& now = items[i];
    Item<X>& before = items[i - 1];
    if (now.takes_from_mixer) {
      now.instruction.linear.takes = true;
      continue;
    }
    if (!takes_result(before, now, blocks)) continue;
    // The residual, if an instruction of the program made it, must be a copy of each block's own:
    // the one that the last norm left, which nobody else needs. Memory may have had others before
    // and will have others later: what counts is who reads between this writer and the next.
    const void* residual = residual_of(now);
    Item<X>* maker = nullptr;
    bool is_last_norm = true;
    for (std::size_t k = i; k-- > 0 && maker == nullptr;) {
      if (items[k].linear == nullptr || !items[k].linear->norm) continue;
      if (new_residual_of(items[k]) == residual) {
        maker = &items[k];
      } else {
        is_last_norm = false;
      }
    }
    if (maker != nullptr) {
      std::size_t readers = 0;
      for (std::size_t k = static_cast<std::size_t>(maker - items.data()) + 1; k < items.size();
           ++k) {
        if (residual_of(items[k]) == residual) ++readers;
        if (new_residual_of(items[k]) == residual) break;
      }
      if (!is_last_norm || readers > 1) continue;
    }
    if (maker != nullptr) {
      maker->instruction.linear.keeps_residual = true;
      maker->instruction.linear.new_residual = {};
    }
    Linear<X>& p = now.instruction.linear;
    p.takes = true;
    p.takes_residual = maker != nullptr;
    p.keeps_residual = true;  // whose sum with x is nowhere else
    before.instruction.linear.gives = true;
    before.instruction.linear.given = static_cast<int>(before.linear->y.dim(1));
  }
}

// Instructions that give as many numbers take turns in two parts of memory: one that takes what
// another gives cannot write where it, or a slower block, still reads; and one that gives after it
// has taken something from every block that was done with what was there two turns ago.
template <typename X>
int place_links(std::vector<Item<X>>& items) {
  constexpr int kTurns = 2;  // of parts
  struct Place {
    int at[kTurns];
    std::uint32_t turns[kTurns];
    int next = 0;
  };
  using Sizes = std::tuple<int, int, int>;
  std::map<Sizes, Place> places;
  std::vector<std::pair<Sizes, int>> given(items.size());
  int size = 0;
  for (std::size_t i = 0; i < items.size(); ++i) {
    Instruction<X>& instruction = items[i].instruction;
    const bool is_mixer = instruction.kind == Kind::mixer;
    if (!is_mixer && !instruction.linear.gives) continue;
    const Linear<X>& p = instruction.linear;
    const Sizes sizes{p.batch, p.given, is_mixer ? instruction.heads.exchange_size : 0};
    const auto [place, is_new] = places.try_emplace(sizes);
    if (is_new) {
      const int numbers = p.batch * (p.given + std::get<2>(sizes));
      for (int& at : place->second.at) {
        at = size;
        size += static_cast<int>(round_up(numbers, 32));
      }
    }
    const int part = place->second.next;
    place->second.next = (part + 1) % kTurns;
    instruction.gives_to = {
        .at = place->second.at[part], .turn = place->second.turns[part]++, .turns = 0};
    given[i] = {sizes, part};
  }
  for (std::size_t i = 0; i < items.size(); ++i) {
    Instruction<X>& instruction = items[i].instruction;
    const bool gives = instruction.kind == Kind::mixer || instruction.linear.gives;
    if (gives) {
      const auto& [sizes, part] = given[i];
      instruction.gives_to.turns = places[sizes].turns[part];
    }
    if (i > 0) instruction.takes_from = items[i - 1].instruction.gives_to;
  }
  return size;
}

}  // namespace

template <typename X>
Assembled<X> assemble(std::span<const Operation> operations, const Layout& layout, int blocks) {
  std::vector<Item<X>> items = items_of<X>(operations, layout, blocks);
  Assembled<X> out;
  // For mixers alone: without them there is little to gain, less than another kernel costs.
  out.is_linked = std::any_of(items.begin(), items.end(), [](const Item<X>& item) {
    return item.instruction.kind == Kind::mixer;
  });
  if (out.is_linked) link(items, blocks);
  out.exchange_size = place_links(items);
  for (std::size_t i = 0; i < items.size(); ++i) {
    Instruction<X>& instruction = items[i].instruction;
    const auto enters = [&](std::size_t k) { return k > 0 && !items[k].instruction.linear.takes; };
    instruction.enters = enters(i);
    instruction.leaves = i + 1 == items.size() || enters(i + 1);
    if (instruction.leaves) ++out.meetings;
    const Linear<X>& p = instruction.linear;
    if (p.keeps_residual) out.residual_size = std::max(out.residual_size, p.batch * p.in);
    out.instructions.push_back(instruction);
  }
  return out;
}

template Assembled<float> assemble(std::span<const Operation>, const Layout&, int);
template Assembled<bf16> assemble(std::span<const Operation>, const Layout&, int);

}  // namespace adder::cuda::program
