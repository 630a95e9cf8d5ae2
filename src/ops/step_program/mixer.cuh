#pragma once

// The step of a mixer's heads, by warps of their own while the rest of its projection is
// multiplied: a block has the states of the channels whose x it makes. B, C and dt, which blocks
// make for each other, come first of all. For one sequence: the few warps beside would be slower
// with the states of more than all the others are one operation later.

#include "ops/step_program/product.cuh"
#include "ops/step_program/states.cuh"

namespace adder::cuda::program {

template <typename X>
class Beside {
 public:
  __device__ Beside(const Params<X>& p, const Shared& shared, const Ring& ring)
      : p_(p), shared_(shared), ring_(ring), launches_(Grid(p.arrivals).launches(p.meetings)) {}

  /// Goes along with all instructions.
  __device__ void run(typename Fetcher<X, kSideThreads>::Memory& memory) {
    Fetcher<X, kSideThreads> fetcher(p_, memory, thread());
#pragma unroll 1
    for (int i = 0; i < p_.count; ++i) {
      sync_side();
      const Instruction<X>& instruction = fetcher.get(i);
      fetcher.advance(i);
      if (!is_projection(instruction)) continue;
      const Linear<X>& linear = instruction.linear;
      const Share share(linear);
      if (instruction.kind == Kind::mixer) {
        ring_.advance(weight_stages(linear, share.split));
        run(linear, instruction.heads, share, Exchange<X>(p_, instruction.gives_to, launches_));
      }
      ring_.advance(weight_stages(linear, share.rows - share.split));
    }
  }

 private:
  __device__ static int thread() {
    return static_cast<int>(threadIdx.x) - kFirstSideWarp * kWarpSize;
  }
  __device__ static int warp() { return warp_index() - kFirstSideWarp; }

  __device__ __forceinline__ void run(const Linear<X>& p, const Heads& heads, const Share& share,
                                      const Exchange<X>& exchange) {
    const Maker<X, 1, true> maker(p, shared_, exchange, nullptr);
    // Each thread finishes one row. What it needs besides the sum is there before that.
    const int place = thread();
    const bool exists = place < share.split;
    const int row = share.row_of(place);
    ConvInput conv;
    conv.load(p, row, 0, exists);
    Channel channel{};
    float D = 0;
    if (exists && place >= share.shared.rows) {
      const int index = row - p.channels.first;
      channel.head = index / heads.headdim;
      if (heads.D != nullptr) D = heads.D[heads.D_has_headdim ? index : channel.head];
    }
    const States states(heads, share.channels.first - p.channels.first, share.channels.rows);

    // Shared rows first, unless all are there at once.
    int begin = 0;
    int end = share.shared_end() == share.split ? share.split : share.shared.rows;
    wait_for_others(kSharedRows);
#pragma unroll 1
    while (true) {
      if (end == share.split) wait_for_others(kChannelRows);
      if (begin <= place && place < end) {
        float v = sum_of<X, 1>(shared_, place, 0) * maker.scale_of(0);
        if (p.bias != nullptr) v += p.bias[row];
        if (conv.channel >= 0) v = convolve(p, 0, v, conv);
        if (place < share.shared.rows) {
          exchange.put(heads.exchange + row - p.shared.first, v);
        } else {
          channel.x = v;
          channel.Dx = D * v;
          shared_.channels[place - share.shared.rows] = channel;
        }
      }
      if (end == share.split) break;
      begin = end;
      end = share.split;
    }
    sync_side();  // all channels are known
    run_states(heads, states, exchange);
    arrive_for_others(kMixerEnd);
  }

  // The block's channels, [first, first + count) of all heads'. What belongs to a head is known to
  // a lane each.
  struct States {
    int first, count, first_head, head, group;
    bool is_head;
    float A, bias;

    __device__ __forceinline__ States(const Heads& p, int from, int number)
        : first(from), count(number), first_head(from / p.headdim) {
      head = first_head + lane_index();
      group = head / p.heads_per_group;
      is_head = head * p.headdim < first + count;
      A = is_head ? p.A[head] : 0.0F;
      bias = is_head && p.dt_bias != nullptr ? p.dt_bias[head] : 0.0F;
    }
  };

  // A warp has two rows at a time, a lane twice four columns of one.
  __device__ __forceinline__ void run_states(const Heads& p, const States& own,
                                             const Exchange<X>& exchange) {
    constexpr int kLanes = kWarpSize / 2;
    constexpr int kVectors = kMostColumns / (4 * kLanes);
    const int column = 4 * (lane_index() % kLanes);
    const auto has = [&](int i) { return column + 4 * kLanes * i < p.dstate; };
    int group = -1;
    float dt = 0;
    float decay = 0;
    float b[kVectors][4] = {};
    float c[kVectors][4] = {};
    const auto receive = [&] {
      bool all = false;
      do {
        all = true;
        dt = 0;
        if (own.is_head) {
          all = exchange.take(p.exchange + p.exchange_dt + own.head * p.dt.column, dt);
        }
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          if (!has(i)) continue;
          const int at = p.exchange + column + 4 * kLanes * i;
          all = exchange.take(at + p.exchange_B + group * p.B.column, b[i]) && all;
          all = exchange.take(at + p.exchange_C + group * p.C.column, c[i]) && all;
        }
      } while (!__all_sync(kFullWarp, all));
      dt = time_step(dt + own.bias, p.dt_options);
      decay = expf(dt * own.A);
    };
#pragma unroll 1
    for (int begin = 0; begin < own.count; begin += p.stage_rows) {
      ring_.wait_until_full();
      const auto* states = reinterpret_cast<const float*>(ring_.stage()) + column;
      const int end = min(begin + p.stage_rows, own.count);
#pragma unroll 1
      for (int pair = begin + 2 * warp(); pair < end; pair += 2 * kSideWarps) {
        const int row = min(pair + lane_index() / kLanes, end - 1);  // the last one perhaps twice
        const Channel of_row = shared_.channels[row];
        const int lane = of_row.head - own.first_head;
        const int group_now = __shfl_sync(kFullWarp, own.group, lane);
        if (__any_sync(kFullWarp, group_now != group)) {
          group = group_now;
          receive();
        }
        const float decay_now = __shfl_sync(kFullWarp, decay, lane);
        const float weight = __shfl_sync(kFullWarp, dt, lane) * of_row.x;
        float* to = p.state + (own.first + row) * p.dstate + column;
        float y = 0;
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          if (!has(i)) continue;
          float state[4];
          load_floats(states + (row - begin) * p.dstate + 4 * kLanes * i, true, state);
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            state[k] = decay_now * state[k] + weight * b[i][k];
            y += state[k] * c[i][k];
          }
          store_floats(to + 4 * kLanes * i, state);
        }
#pragma unroll
        for (int distance = kLanes / 2; distance > 0; distance /= 2) {
          y += __shfl_xor_sync(kFullWarp, y, distance);
        }
        if (column == 0) shared_.channels[row].x = y + of_row.Dx;
      }
      __syncwarp();
      ring_.release_by_side(warp());
      ring_.advance();
    }
  }

  const Params<X>& p_;
  const Shared shared_;
  Ring ring_;
  std::uint32_t launches_;
};

}  // namespace adder::cuda::program
