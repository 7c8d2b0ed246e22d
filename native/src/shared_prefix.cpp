// Prefixes that sequences of a step share: what the caller found is checked, and laid out for the attention kernel.
#include <stdexcept>

#include "attention_layout.h"
#include "program.h"

namespace octavo {
namespace {

void require(bool ok, const char* what) {
  if (!ok) throw std::invalid_argument(what);
}

// Whether two sequences' tables name the same blocks in the partitions [from, to).
bool same_blocks(const Batch::Table& table, int block_size, int one, int two, int from, int to) {
  const int64_t first = (int64_t)from * OCT_ATTN_PARTITION / block_size;
  const int64_t end = ((int64_t)to * OCT_ATTN_PARTITION + block_size - 1) / block_size;
  const int32_t *x = table.ids.data() + one * table.width, *y = table.ids.data() + two * table.width;
  for (int64_t b = first; b < end; b++) {
    if (x[b] != y[b]) return false;
  }
  return true;
}

}  // namespace

// Runs extend what their members already share, from the first partition on, and every row lies behind them.
void Program::check_shared(const Batch& batch) const {
  if (batch.shared.empty()) return;
  require(batch.shared.size() == pools_.size(), "set_shared needs one entry a group");
  for (size_t g = 0; g < batch.shared.size(); g++) {
    const Batch::Shared& shared = batch.shared[g];
    std::vector<int32_t> parts(batch.sequences.size(), 0);
    for (const SharedRun& run : shared.runs) {
      require(run.first >= 0 && run.count >= 1 && (int64_t)run.first + run.count <= (int64_t)shared.members.size(),
              "a shared run names members that are not there");
      require(run.from < run.to, "a shared run holds at least one partition");
      const int32_t* members = shared.members.data() + run.first;
      for (int i = 0; i < run.count; i++) {
        require(members[i] >= 0 && members[i] < (int64_t)batch.sequences.size(), "a member is no sequence of the step");
        require(parts[(size_t)members[i]] == run.from, "a sequence shares its partitions in order, each once");
        require((int64_t)run.to * OCT_ATTN_PARTITION <= batch.sequences[(size_t)members[i]].start,
                "a shared partition lies before all rows of its sequences");
        require(same_blocks(batch.tables[g], pools_[g]->block_size, members[0], members[i], run.from, run.to),
                "sequences that share a partition have the same blocks there");
        parts[(size_t)members[i]] = run.to;
      }
    }
  }
}

void Program::prepare_shared(const Batch& batch, size_t group) {
  std::vector<SharedRun>& runs = shared_runs_[group];
  std::vector<SharedRow>& rows = shared_rows_[group];
  runs.clear();
  rows.clear();
  if (batch.shared.empty()) return;
  const Batch::Shared& shared = batch.shared[group];
  std::vector<SeqRun>& seqs = runs_[group];
  for (const SharedRun& run : shared.runs) {
    const int first = (int)rows.size();
    for (int i = 0; i < run.count; i++) {
      const int32_t seq = shared.members[(size_t)(run.first + i)];
      for (int32_t r = 0; r < seqs[(size_t)seq].count; r++) rows.push_back({seq, r});
      seqs[(size_t)seq].shared = run.to;
    }
    runs.push_back({first, (int32_t)rows.size() - first, run.from, run.to});
  }
  int64_t slot = 0;
  for (SeqRun& s : seqs) {
    if (s.shared == 0) continue;
    s.slot = slot;
    slot += (int64_t)s.count * ((s.start + s.count - 1) / OCT_ATTN_PARTITION + 1);
  }
}

}  // namespace octavo
