#include "paged.hpp"

#include <algorithm>
#include <atomic>
#include <new>

#include "decode_kernel.hpp"
#include "paged_plain.hpp"
#include "prefill_kernel.hpp"
#include "threads.hpp"
#include "workspace.hpp"

namespace tilewise {
namespace {

constexpr int64_t kSplitKeys = 512;    // keys of a piece: multiples of it, whatever else is in the batch
constexpr int64_t kRowsInPlace = 32;    // rows of a kv head up to which keys are read in place; beyond, packing pays
constexpr int64_t kPrefillRows = 512;  // rows that meet a packed block of keys
constexpr int64_t kStateFloats = 64 << 10;      // of a block of rows, so that it stays in the cache
constexpr int64_t kSmallWork = 1 << 20;         // multiply-adds that are not worth waking a thread for

// Rows of some queries and heads of one sequence, over all keys they see: `pieces` runs of keys, merged in their order.
struct Job {
  RowBlock rows;
  Range keys;
  bool prefill = false;     // packed keys, one piece
  int64_t pieces = 0;
  float* states = nullptr;  // of all pieces
  std::atomic<int64_t> left{0};
};
struct KeyPiece {
  int64_t job, index, cost;
};

int64_t pieces_of(Range k) { return k.empty() ? 1 : (k.end - 1) / kSplitKeys - k.begin / kSplitKeys + 1; }
Range piece_of(Range k, int64_t i) {
  const int64_t base = k.begin / kSplitKeys + i;
  return {std::max(k.begin, base * kSplitKeys), std::min(k.end, (base + 1) * kSplitKeys)};
}

class PagedSchedule {
 public:
  explicit PagedSchedule(const PagedArguments& a)
      : a_(a), group_(a.q_heads / a.kv_heads), kernel_(decode_kernel(a.dtype, a.pages.dtype)),
        prefill_(prefill_kernel(a)), columns_(kernel_.columns(a.v_dim)) {}

  void run() {
    count(a_.kv_heads);
    const int64_t workers = work_ > kSmallWork ? num_threads() : 1;
    count(heads_each(workers));
    Workspace space(Workspace::padded(static_cast<std::size_t>(jobs_) * sizeof(Job)) +
                    Workspace::padded(static_cast<std::size_t>(pieces_) * sizeof(KeyPiece)) +
                    Workspace::padded(static_cast<std::size_t>(floats_) * sizeof(float)));
    job_ = space.take<Job>(static_cast<std::size_t>(jobs_));
    piece_ = space.take<KeyPiece>(static_cast<std::size_t>(pieces_));
    fill(space.take<float>(static_cast<std::size_t>(floats_)));
    if (workers > 1)  // the longest first; equal ones as they come
      std::sort(piece_, piece_ + pieces_, [](const KeyPiece& x, const KeyPiece& y) {
        return x.cost != y.cost ? x.cost > y.cost : x.job != y.job ? x.job < y.job : x.index < y.index;
      });
    parallel_for(pieces_, [&](int64_t i, int) { run_piece(piece_[i]); }, static_cast<int>(workers));
  }

 private:
  // f(rows, keys, prefill) for each job.
  template <class F> void each_job(F&& f) const {
    const int64_t n = sequences(a_.batch);
    for (int64_t i = 0; i < n; i++) {
      const PagedSequence s = sequence(a_.batch, i);
      const bool prefill = s.q_len > 1 && s.q_len * group_ > kRowsInPlace;
      const int64_t most = prefill ? std::max<int64_t>(1, kPrefillRows / group_) : s.q_len;
      const int64_t heads = prefill ? 1 : heads_;
      for (int64_t q = 0; q < s.q_len; q += most) {
        const int64_t queries = std::min(most, s.q_len - q);
        const Range keys = s.visible({q, q + queries}, a_.meaning);
        for (int64_t h = 0; h < a_.kv_heads; h += heads)
          f(RowBlock{s, q, queries, h, std::min(heads, a_.kv_heads - h), group_}, keys, prefill);
      }
    }
  }
  void count(int64_t heads) {
    heads_ = heads;
    jobs_ = pieces_ = floats_ = work_ = 0;
    each_job([&](const RowBlock& rows, Range keys, bool prefill) {
      const int64_t n = prefill ? 1 : pieces_of(keys);
      jobs_++;
      pieces_ += n;
      if (n > 1) floats_ += n * State::floats(rows.rows(), columns_);
      work_ += keys.size() * cost_of_key(rows);
    });
  }
  int64_t cost_of_key(const RowBlock& rows) const {  // a key costs its loads, however few the rows
    return std::max<int64_t>(rows.rows_of_head(), 4) * rows.heads * (a_.qk_dim + a_.v_dim);
  }
  // Heads that a job takes: fewer than all where there are too few pieces to go round. No row's bits depend on it.
  int64_t heads_each(int64_t workers) const {
    const int64_t most = std::max<int64_t>(1, kStateFloats / (std::max(group_, kRowsInPlace) * columns_));
    int64_t parts = 1;
    if (workers > 1 && pieces_ < 4 * workers)
      parts = std::min((4 * workers + pieces_ - 1) / std::max<int64_t>(pieces_, 1), work_ / (kSmallWork / 4) + 1);
    return std::clamp<int64_t>((a_.kv_heads + parts - 1) / parts, 1, std::min(most, a_.kv_heads));
  }
  void fill(float* states) {
    int64_t j = 0, p = 0;
    each_job([&](const RowBlock& rows, Range keys, bool prefill) {
      Job* job = new (job_ + j) Job;
      job->rows = rows;
      job->keys = keys;
      job->prefill = prefill;
      job->pieces = prefill ? 1 : pieces_of(keys);
      job->left = job->pieces;
      if (job->pieces > 1) {
        job->states = states;
        states += job->pieces * State::floats(rows.rows(), columns_);
      }
      for (int64_t i = 0; i < job->pieces; i++) {
        const Range k = prefill ? keys : piece_of(keys, i);
        piece_[p++] = {j, i, k.size() * cost_of_key(rows)};
      }
      j++;
    });
  }
  void run_piece(const KeyPiece& piece) const {
    Job& job = job_[piece.job];
    if (job.prefill) return prefill_(a_, job.rows);
    const int64_t floats = State::floats(job.rows.rows(), columns_);
    if (job.pieces == 1) {
      Workspace space(static_cast<std::size_t>(floats) * sizeof(float));
      float* state = space.take<float>(static_cast<std::size_t>(floats));
      kernel_.run(a_, job.rows, job.keys, state);
      kernel_.finish(a_, job.rows, state, 1);
      return;
    }
    kernel_.run(a_, job.rows, piece_of(job.keys, piece.index), job.states + piece.index * floats);
    if (job.left.fetch_sub(1, std::memory_order_acq_rel) == 1) kernel_.finish(a_, job.rows, job.states, job.pieces);
  }

  const PagedArguments& a_;
  const int64_t group_;
  const DecodeKernel& kernel_;
  const PrefillKernel prefill_;
  const int64_t columns_;
  int64_t heads_ = 1, jobs_ = 0, pieces_ = 0, floats_ = 0, work_ = 0;
  Job* job_ = nullptr;
  KeyPiece* piece_ = nullptr;
};

// Rows that no sequence owns.
template <class Real> void clear(const PagedArguments& a, int64_t first, int64_t end) {
  for (int64_t t = first; t < end; t++)
    for (int64_t h = 0; h < a.q_heads; h++) {
      zero_row(a.dtype, a.v_dim, a.out, t * a.os.t + h * a.os.h);
      if (a.lse)
        static_cast<Real*>(a.lse)[h * a.lse_strides.h + t * a.lse_strides.t] = -std::numeric_limits<Real>::infinity();
    }
}

}  // namespace

ValueError paged(const PagedArguments& a) {
  const ValueError wrong = check_batch(a.batch, a.pages, a.max_tokens,
                                       [&](const PagedSequence& s) { return s.visible({0, s.q_len}, a.meaning); });
  if (wrong != ValueError::ok) return wrong;
  const int64_t n = sequences(a.batch), first = n ? a.batch.cu_q_lens[0] : 0, end = n ? a.batch.cu_q_lens[n] : 0;
  const auto clear_rest = a.dtype == DType::f64 ? clear<double> : clear<float>;
  clear_rest(a, 0, first);
  clear_rest(a, end, a.max_tokens);
  if (a.dtype == DType::f64 || a.pages.dtype == DType::f64) paged_plain(a);
  else PagedSchedule(a).run();
  return ValueError::ok;
}

}  // namespace tilewise
