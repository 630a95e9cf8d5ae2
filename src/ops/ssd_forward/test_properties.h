#pragma once

// Properties of ssd_forward that every implementation must have, whatever device it runs on. Each
// is a function of a runner, so that they are written once; values, sizes and what is particular to
// an implementation are in its own tests.

#include <functional>
#include <vector>

#include "ops/ssd_forward/test_case.h"

namespace adder::test {

struct SsdRunner {
  std::function<SsdOutput(const SsdCase&)> run;
  /// Fails the test unless the result is accurate enough.
  std::function<void(const SsdCase&, const SsdOutput&)> judge;
  /// Of the inputs. Most properties are tried with each.
  std::vector<DType> dtypes{DType::f32};
  /// What later tokens may hold without a trace in earlier outputs.
  std::vector<float> garbage{1e30F};
  /// Runs of equal seq_idx equal the same tokens alone, bit for bit: chunks are cut between them.
  bool cuts_at_runs = false;

  void expect_right(const SsdCase& c) const { judge(c, run(c)); }
};

void chunk_size_changes_nothing(const SsdRunner& runner);
void states_add_up_over_many_chunks(const SsdRunner& runner);
void prefix_sums_cost_no_accuracy(const SsdRunner& runner);
void any_split_resumes_from_the_state(const SsdRunner& runner);
void later_tokens_never_change_earlier_outputs(const SsdRunner& runner);
void zero_time_step_keeps_the_state(const SsdRunner& runner);
void is_linear_in_x(const SsdRunner& runner);
void groups_equal_repeated_B_and_C(const SsdRunner& runner);
void a_row_equals_the_row_alone(const SsdRunner& runner);
void extreme_decays_stay_finite(const SsdRunner& runner);
void mixed_extreme_steps_keep_their_order(const SsdRunner& runner);
void all_equal_inputs_stay_finite(const SsdRunner& runner);
void takes_every_option(const SsdRunner& runner);
void limits_the_time_step(const SsdRunner& runner);
void reads_slices_of_the_convolutions_output(const SsdRunner& runner);
void nan_shows_instead_of_being_clamped_away(const SsdRunner& runner);

void packed_sequences_equal_each_alone(const SsdRunner& runner);
void an_empty_sequence_ends_as_it_began(const SsdRunner& runner);
void no_sequences_at_all(const SsdRunner& runner);
void the_state_restarts_where_seq_idx_changes(const SsdRunner& runner);
void resets_inside_packed_sequences(const SsdRunner& runner);
void padding_leaks_nowhere(const SsdRunner& runner);
void padding_between_tokens_is_skipped(const SsdRunner& runner);
void seq_idx_may_be_strided(const SsdRunner& runner);

}  // namespace adder::test
