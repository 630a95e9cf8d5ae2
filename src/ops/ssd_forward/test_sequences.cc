// Packed sequences, resets and padding on the CPU.

#include <gtest/gtest.h>

#include "ops/ssd_forward/test_cpu.h"

namespace adder {
namespace {

using test::cpu_runner;
using test::in_every_tier;

TEST(SsdForward, PackedSequencesOfOddLengthsEqualEachAlone_KnownBug9) {
  in_every_tier([] { packed_sequences_equal_each_alone(cpu_runner(3)); });
}

TEST(SsdForward, AnEmptySequenceEndsAsItBegan) {
  an_empty_sequence_ends_as_it_began(cpu_runner(1));
}

TEST(SsdForward, NoSequencesAtAll) { no_sequences_at_all(cpu_runner(1)); }

TEST(SsdForward, TheStateRestartsWhereSeqIdxChanges_KnownBug9) {
  the_state_restarts_where_seq_idx_changes(cpu_runner(2));
}

TEST(SsdForward, ResetsInsidePackedSequences) { resets_inside_packed_sequences(cpu_runner(2)); }

TEST(SsdForward, PaddingLeaksNowhere_KnownBug5) { padding_leaks_nowhere(cpu_runner(2)); }

TEST(SsdForward, PaddingBetweenTokensIsSkipped_KnownBug5) {
  padding_between_tokens_is_skipped(cpu_runner(1));
}

TEST(SsdForward, SeqIdxMayBeStrided) { seq_idx_may_be_strided(cpu_runner(1)); }

}  // namespace
}  // namespace adder
